"""Runs the code cells of a notebook in one process: `notebook FILE [TRACE]`; with TRACE, saves the notebook's variable `trace` there.

labs/data/rdma_by_hand.arrow was made so:
python -m tests.rig --nics 1 --share labs/data -- \\
    python -m tests.rdma.bodies.notebook labs/14_rdma_by_hand.ipynb labs/data/rdma_by_hand.arrow
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

source, names = Path(sys.argv[1]), {"__name__": "__main__"}
target = Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else None
cells = [cell for cell in json.loads(source.read_text())["cells"] if cell["cell_type"] == "code"]
os.chdir(source.parent)
for number, cell in enumerate(cells):
    exec(compile("".join(cell["source"]), f"{source.name}, code cell {number}", "exec"), names)
if target:
    names["trace"].save(target)
