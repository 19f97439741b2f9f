"""Real verbs without an RDMA NIC: small machines with soft RoCE NICs, as plain processes (see __main__.py).

Is: `run()` for tests and benchmarks, `obstacle()` for their skips, `python -m tests.rig` for a shell. Is not: part of the package, and it
needs nothing of it but the standard library. Needs Debian's linux-source-6.12 and build tools, once; no root and no KVM.
"""

from __future__ import annotations

from .errors import RigError, RigUnavailable
from .kernel import build, cached, obstacle
from .launcher import run, status_of
from .machine import DIED, TIMED_OUT, Outcome

__all__ = ["DIED", "TIMED_OUT", "Outcome", "RigError", "RigUnavailable", "build", "cached", "obstacle", "run", "status_of"]
