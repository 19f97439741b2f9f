"""The engine's half of lab 14: rank 1 sends 4 MiB to rank 0 over the NICs of two machines; rank 0 saves the trace: `lab_engine FILE`.

labs/data/rdma_engine.arrow was made so:
python -m tests.rig --vms 2 --nics 2 --share labs/data -- python -m tests.rdma.bodies.lab_engine labs/data/rdma_engine.arrow
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

import ccl_lab as ccl

from .jobs import ME, join, numbers

NBYTES = 4 << 20
target = Path(sys.argv[1]).resolve()


def part(rank: int) -> Path:
    return target.with_name(f"{target.stem}-{rank}.arrow")


with join() as comm:
    mine = ccl.empty(NBYTES // 4, "int32")
    for _ in range(2):  # the first makes the connections, the second is kept
        mine[:] = numbers(1, mine.shape) if ME == 1 else 0
        comm.barrier()
        comm.trace()
        comm.send(mine, 0) if ME == 1 else comm.recv(mine, 1)
    # Each machine's clock began with it; that of the day is the host's on both.
    trace, ahead = comm.trace(), time.time_ns() - time.monotonic_ns()
    trace.replace(begin_ns=trace["begin_ns"] + ahead, end_ns=trace["end_ns"] + ahead).save(part(ME))
    assert np.array_equal(mine, numbers(1, mine.shape))
    comm.barrier()
    if ME == 0:
        print(comm.explain())
        whole = ccl.Trace.concat([ccl.Trace.load(part(rank)) for rank in range(comm.size)])
        whole.replace(begin_ns=whole["begin_ns"] - whole.begin_ns, end_ns=whole["end_ns"] - whole.begin_ns).save(target)
        for rank in range(comm.size):
            part(rank).unlink()
