"""What Python adds to a collective: `comm.all_reduce(x, out=x)` of 8 bytes beside the native call it ends in, and mpi4py.

Is: both in one run, alternating, the median over rounds of the mean of a batch; mpi4py beside it where it is installed for
`ccl-lab bench`. Is not: a comparison of engines (that is `bench.peers`). The aim: at most 2 us over the native call.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

RANKS, NBYTES, ROUNDS, BATCH = (1, 2), 8, 21, 2000
LIMIT_US = 2.0


def _batch(call: Any) -> float:
    begin = time.perf_counter_ns()
    for _ in range(BATCH):
        call()
    return (time.perf_counter_ns() - begin) / BATCH / 1000


def _medians(calls: dict[str, Any]) -> dict[str, float]:
    """Median µs of each call, the calls taking turns, so that a change of the machine's mood meets all."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            found[name].append(_batch(call))
    return {name: round(statistics.median(times), 3) for name, times in found.items()}


def worker() -> None:
    """One rank; rank 0 prints."""
    import numpy as np

    import ccl_lab as ccl
    from ccl_lab.ir import Collective

    with ccl.init() as comm:
        kind, engine = int(Collective.all_reduce), comm._member.engine
        x = np.zeros(NBYTES // 4, np.float32)
        y = np.zeros_like(x)
        for _ in range(10):
            comm.all_reduce(x, out=x)
            comm.all_reduce(x, out=y)
        row = _medians(
            {
                "native_us": lambda: engine.collective(kind, x, x, "sum", 0, -1, 30.0),
                "python_us": lambda: comm.all_reduce(x, out=x),
                "python_out_us": lambda: comm.all_reduce(x, out=y),
                "python_new_us": lambda: comm.all_reduce(x),
                "empty_us": lambda: None,
            }
        )
        comm.barrier()
        if comm.rank == 0:
            print(json.dumps(row))


def mpi_worker() -> None:
    """The same by mpi4py."""
    import numpy as np
    from mpi4py import MPI

    comm, x = MPI.COMM_WORLD, np.zeros(NBYTES // 4, np.float32)
    row = _medians({"mpi4py_us": lambda: comm.Allreduce(MPI.IN_PLACE, x)})
    if comm.Get_rank() == 0:
        print(json.dumps(row))


def measure_mpi4py(ranks: int) -> dict[str, float]:
    """By party of `ccl-lab bench` that runs mpi4py; {} where there is none."""
    from .peers.catalogue import catalogue, command, environment

    found = {}
    for party in catalogue()[0]:
        if party.kind != "mpi4py":
            continue
        *words, _ = command(party, ranks, os.cpu_count() or 1, [])
        done = subprocess.run(
            [*words, __file__, "mpi"], env=environment(party), capture_output=True, text=True, timeout=60
        )
        if done.returncode == 0:
            found[party.name + "_us"] = json.loads(done.stdout.strip().splitlines()[-1])["mpi4py_us"]
    return found


def run() -> dict[str, Any]:
    """One row for each number of ranks."""
    from .ranks import answer_of  # here, since this file is also run by itself, by mpirun

    rows = []
    for ranks in RANKS:
        row = {"ranks": ranks, "bytes": NBYTES, **answer_of("bench.python_overhead", ranks), **measure_mpi4py(ranks)}
        row["python_adds_us"] = round(row["python_us"] - row["native_us"], 3)
        rows.append(row)
    adds = max(row["python_adds_us"] for row in rows)
    two = rows[-1]
    return {
        "summary": f"8 B among 2 ranks: native call {two['native_us']:.2f} µs, Python {two['python_us']:.2f} µs; it adds at most "
        f"{adds:.2f} µs (aim: {LIMIT_US:g})",
        "rows": rows,
    }


if __name__ == "__main__":
    mpi_worker() if sys.argv[1:] == ["mpi"] else worker()
