"""What schedule "auto" stands for on this machine: measured once a shape, agreed between the ranks, kept.

Is: three measurements (c: a slice of the computation, alpha and beta: a hop of a slice), an all_reduce, `overlap.choose`. Is not:
the model (choose.py). Invariants: what is measured once is keyed by what all ranks know, so that all measure in the same call and
choose the same; probes leave no trace in results.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from .choose import Choice, choose
from .operators import operator_of
from .plan import plan
from .workspace import How, how_of, workspace_of

REPEATS = 3
PIECES = 4  # what a slice is cut in to see what cutting costs


def settled(
    comm: Any, operator: str, how: How, key: tuple[Any, ...], rows: int, nbytes: int, probe: Callable[[int], None]
) -> How:
    """`how`, or what the model chooses where it is "auto".

    probe(m) computes all slices of this rank, each in m pieces; `rows`, `nbytes`: of a slice; `key`: what its time depends on.
    """
    if how.schedule != "auto":
        return how
    if comm.size == 1:
        return How("sequential")
    space = workspace_of(comm)
    found = space.choices.get((operator, *key))
    if found is None:
        # The slowest rank is what all wait for.
        measured = comm.all_reduce(np.array(_measured_s(comm, operator, rows, nbytes, probe)), "max")
        c, alpha, beta, add, launch = map(float, measured)
        found = space.choices[(operator, *key)] = choose(
            c, alpha, beta, comm.size, operator=operator, add=add, launch=launch, divides=rows
        )
    return how_of(found, None, None)


def _measured_s(
    comm: Any, operator: str, rows: int, nbytes: int, probe: Callable[[int], None]
) -> tuple[float, float, float, float, float]:
    """Seconds: c, alpha, beta, add, launch as `choose` takes them."""
    whole = _median_s(lambda: probe(1))
    pieces = min(PIECES, rows)
    launch = (_median_s(lambda: probe(pieces)) - whole) / (comm.size * (pieces - 1)) if pieces > 1 else 0.0
    add = 0.0
    if operator_of(operator).adds:
        some, other = np.zeros(max(nbytes // 4, 1), np.float32), np.zeros(max(nbytes // 4, 1), np.float32)
        add = _median_s(lambda: np.add(some, other, out=some))
    return (whole / comm.size, *_hop_s(comm, nbytes), add, max(launch, 0.0))


def choices(comm: Any) -> dict[tuple[Any, ...], Choice]:
    """What "auto" chose so far on `comm`: {(operator, rows of a block, elements of a row, dtype, …): Choice}; see `.reasons`."""
    return dict(workspace_of(comm).choices)


def _median_s(work: Callable[[], None]) -> float:
    work()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _hop_s(comm: Any, nbytes: int) -> tuple[float, float]:
    """(alpha, beta): seconds that a piece more, and the bytes of a slice of `nbytes`, keep a link busy.

    Latency is not in alpha but in beta: pieces of a slice are under way together.
    """
    hops = workspace_of(comm).hops
    if nbytes not in hops:
        whole, cut = _ring_s(comm, nbytes, 1), _ring_s(comm, nbytes, PIECES)
        alpha = max(cut - whole, 0.0) / (PIECES - 1) / (comm.size - 1)
        hops[nbytes] = (alpha, max(whole / (comm.size - 1) - alpha, 0.0))
    return hops[nbytes]


def _ring_s(comm: Any, nbytes: int, m: int) -> float:
    """Seconds of a ring of slices of `nbytes`, in m pieces, whose computation takes no time."""
    space, elements = workspace_of(comm), -(-max(nbytes // 4, 1) // m) * m
    schedule = plan(
        "all_gather_matmul", "ring", comm.size, sub_slices=m, dtype="float32", nbytes=4 * elements * comm.size
    )
    out = space.buffer("output", elements * comm.size, "float32")
    source = out[comm.rank * elements : (comm.rank + 1) * elements]

    def run() -> None:
        comm.run(schedule, source, out=out, compute=lambda partition, target, sources: None)

    run()
    times = []
    for _ in range(REPEATS):
        comm.barrier()
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times)
