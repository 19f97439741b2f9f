"""What the general engine adds to a schedule: small and middle all_reduces by the executor over shared memory.

Is: the native call (`Engine.run`, or start and wait where there is none) and `Communicator.all_reduce` on registered memory,
by algorithm, size and number of ranks. Is not: a comparison with other libraries, nor of collectives that are not run op
by op. Ranks are processes of this machine; times are of rank 0, medians over batches.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from typing import Any

from .ranks import answer_of

ALGORITHMS = ("ring", "bidirectional_ring", "halving_doubling")
SIZES = (8, 1 << 10, 1 << 16, 1 << 20)
RANKS = (2, 4)
BATCHES, BATCH_S = 11, 0.01


def _batches(call: Any, iterations: int) -> float:
    """Median over batches of the µs of one call."""
    for _ in range(max(iterations // 10, 5)):
        call()
    found = []
    for _ in range(BATCHES):
        begin = time.perf_counter_ns()
        for _ in range(iterations):
            call()
        found.append((time.perf_counter_ns() - begin) / iterations / 1000)
    return statistics.median(found)


def _iterations(comm: Any, call: Any) -> int:
    """As many as rank 0 says fit in a batch; all ranks must do the same number."""
    import numpy as np

    for _ in range(20):
        call()
    begin = time.perf_counter()
    for _ in range(20):
        call()
    guess = BATCH_S / max((time.perf_counter() - begin) / 20, 1e-7)
    said = comm.broadcast(np.array([int(guess)], np.int64), root=0)
    return int(min(max(said[0], 5), 5000))


def worker() -> None:
    """One rank: measures all cases; rank 0 prints them."""
    import numpy as np

    import ccl_lab as ccl
    from ccl_lab.engine.buffers import as_bytes
    from ccl_lab.ir.layout import Layout

    comm = ccl.init()
    member, rows = comm._member, []
    engine = member.engine
    for algorithm in os.environ["BENCH_ALGORITHMS"].split(","):
        for nbytes in map(int, os.environ["BENCH_SIZES"].split(",")):
            x = comm.empty(nbytes // 4, "float32")
            x[:] = 0
            schedule = ccl.plan("all_reduce", comm.topology, nbytes, algorithm=algorithm, in_place=True)
            program = member.program(schedule, Layout(schedule, x.size, "float32"), "sum")
            view = as_bytes(x)

            if hasattr(engine, "run"):

                def native(program: Any = program, view: Any = view) -> None:
                    engine.run(program, None, view, coll_id=1, timeout_s=30.0)
            else:

                def native(program: Any = program, view: Any = view) -> None:
                    engine.start(program, None, view, coll_id=1, timeout_s=30.0).wait()

            def python(x: Any = x, algorithm: str = algorithm) -> None:
                comm.all_reduce(x, out=x, algorithm=algorithm)

            row = {"algorithm": algorithm, "bytes": nbytes, "ranks": comm.size}
            for name, call in (("native_us", native), ("python_us", python)):
                row[name] = round(_batches(call, _iterations(comm, call)), 3)
            rows.append(row)
            assert not np.isnan(x).any()
    comm.barrier()
    if comm.rank == 0:
        print(json.dumps(rows))
    comm.close()


def measure(ranks: int, transport: str = "shm", **environment: str) -> list[dict[str, Any]]:
    """Starts the ranks and returns rank 0's rows."""
    cases = {"BENCH_ALGORITHMS": ",".join(ALGORITHMS), "BENCH_SIZES": ",".join(map(str, SIZES))}
    return answer_of("bench.engine_overhead", ranks, **({"CCL_LAB_TRANSPORT": transport} | cases | environment))


def run() -> dict[str, Any]:
    """All cases by shared memory, and the ring over sockets."""
    rows = [row | {"transport": "shm"} for ranks in RANKS for row in measure(ranks)]
    rows += [row | {"transport": "tcp"} for row in measure(2, "tcp", BENCH_ALGORITHMS="ring")]
    small = [row for row in rows if row["bytes"] == 8 and row["ranks"] == 2 and row["transport"] == "shm"]
    native = statistics.median(row["native_us"] for row in small)
    python = statistics.median(row["python_us"] - row["native_us"] for row in small)
    return {
        "summary": f"8 B among 2 ranks, op by op: {native:.1f} µs; Python adds {python:.1f} µs",
        "rows": rows,
    }


if __name__ == "__main__":
    worker()
