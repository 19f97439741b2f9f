"""`python -m ccl_lab.cli` is `ccl-lab`."""

from . import main

raise SystemExit(main())
