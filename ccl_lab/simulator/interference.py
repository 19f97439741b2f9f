"""Computation that runs beside communication is slower: how long each compute op then takes.

A compute op works at rate 1 while its rank communicates with nobody, and at rate 1 / factor while one of the rank's transfers
occupies a link (a put or get that it sends or receives, from its first byte to its last). It ends when its work is done, so
an op of nominal length d takes from d to factor * d, and exactly d where nothing overlaps.

Is: a fixed point by iteration, since longer computations move the communication they overlap with. Is not: a model of what
is contended (memory bandwidth, cores, caches): the factor is measured, not derived. Invariants: durations only grow from round to
round and never beyond factor * d, so the iteration ends; where rounds do not settle to the picosecond after ROUNDS, the
last (longest) durations stand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..ir import Kind, Schedule

if TYPE_CHECKING:
    from .exact import Times

I64 = npt.NDArray[np.int64]
ROUNDS = 64


def settle(schedule: Schedule, times: Times, alone_ps: I64, factor: float, again: Callable[[I64], Times]) -> Times:
    """Times in which every computation is as long as what runs beside it makes it; `again(compute_ps)` simulates."""
    compute_ps = alone_ps
    for _ in range(ROUNDS):
        longer = np.maximum(compute_ps, _stretched(schedule, times, alone_ps, factor))
        if np.array_equal(longer, compute_ps):
            break
        compute_ps = longer
        times = again(compute_ps)
    return times


def _stretched(schedule: Schedule, times: Times, alone_ps: I64, factor: float) -> I64:
    ops, out = schedule.ops, alone_ps.copy()
    computes = (ops.kind == Kind.compute) & (alone_ps > 0)
    moving = np.isin(ops.kind, (Kind.put, Kind.get)) & (ops.peer != ops.rank) & (times.leave_ps > times.start_ps)
    for rank in np.unique(ops.rank[computes]):
        rows = np.flatnonzero(computes & (ops.rank == rank))
        mine = moving & ((ops.rank == rank) | (ops.peer == rank))
        begins, ends = _union(times.start_ps[mine], times.leave_ps[mine])
        for row in rows:
            out[row] = _length(int(times.begin_ps[row]), int(alone_ps[row]), begins, ends, factor)
    return out


def _union(begin: I64, end: I64) -> tuple[I64, I64]:
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], np.maximum.accumulate(end[order]) if len(order) else end
    first = np.ones(len(begin), bool)
    first[1:] = begin[1:] > end[:-1]
    starts = np.flatnonzero(first)
    return begin[starts], end[np.append(starts[1:], len(end)) - 1] if len(starts) else end


def _length(begin: int, work: int, busy_begin: I64, busy_end: I64, factor: float) -> int:
    """Picoseconds that `work` takes from `begin` on, slowed in the busy intervals."""
    at: Any = begin
    i = int(np.searchsorted(busy_end, begin, side="right"))
    while work > 0:
        quiet = int(busy_begin[i]) - at if i < len(busy_begin) else work
        if quiet >= work:
            return int(at + work - begin)
        if quiet > 0:
            at, work = at + quiet, work - quiet
        slowed = int(busy_end[i]) - at
        done = int(slowed / factor)
        if done >= work:
            return int(at + min(slowed, round(work * factor)) - begin)
        at, work, i = at + slowed, work - done, i + 1
    return int(at - begin)
