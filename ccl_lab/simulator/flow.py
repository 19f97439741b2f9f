"""Schedules timed while they are planned: every call of a Builder is evaluated at once and not kept.

First as written, which is right where ops are written in the order in which they happen; where that is not so (lost NICs, pipelines)
all over again, ordered: then transfers are kept until nothing can come before them, at some three times the cost.

Is: a Builder whose ops go to the native evaluation (native/src/sim/flow.hpp) instead of a table. Is not: the arithmetic. Invariant: the
times are those of exact.py on the unrolled schedule, to the picosecond, or Inapplicable is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import Inapplicable
from ..ir import Builder, Kind, Outline, Ref
from ..ir.builder import Ints
from ..topo import Topology
from .changes import NONE, Changes
from .columns import too_long
from .patience import allowed, check_work

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]

_OK, _DISORDER, _OVERFLOW, _BAD_OP, _TOO_EARLY, _UNSUPPORTED, _TOO_MANY, _DEADLOCK, _CLOSED = range(9)
_WHY = {
    _DISORDER: "a link would be served in another order than the one in which ops are written",
    _BAD_OP: "an op has a rank, peer or channel out of range",
    _TOO_EARLY: "a wait is written before its signal, or long after it",
    _UNSUPPORTED: "it has ops that are evaluated with the whole schedule only",
    _DEADLOCK: "some ops wait for ever",
    _CLOSED: "it has ops of channels that it said to be done",
}


class _Timer(Builder):
    """Times what it is told."""

    def __init__(self, links: dict[str, Any], topology: Topology, count: int, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self.counts is not None:
            raise Inapplicable("all_to_allv has a size for each pair")
        if topology.nics_per_node > np.iinfo(np.uint16).max:
            raise Inapplicable(f"nodes have {topology.nics_per_node} NICs, and {np.iinfo(np.uint16).max} can be told apart")
        crosses = topology.n_nodes > 1
        nic = np.empty((self.n_ranks if crosses else 0, self.channels), np.uint16)
        for channel in range(self.channels if crosses else 0):
            nic[:, channel] = topology.nic_of(np.arange(self.n_ranks), channel)
        self._late_ps, self._topology, self.unordered = links["late_ps"], topology, False
        self.early_waits = bool(links["ordered"])  # who waits holds nobody up, as one might that could still be told anything
        self._times, self._singly = np.zeros(0, np.int32), links["singly"]
        self._flow = _core.Flow({**links, "ranks": self.n_ranks, "channels": self.channels, "nodes": topology.n_nodes,
                                 "nics": topology.nics_per_node, "nic": nic.ravel(), "count": count, "parts": self.parts,
                                 "timetable": int(self.timetable), "most_waiting": min(allowed(_MOST_WAITING), _MOST_KEPT)})  # fmt: skip

    def repeat(self, times: I64, emit: Callable[[I64, int], None]) -> None:
        """One of them is told, and how often it comes; all are where ranks have several channels, or others meet them on a link."""
        if self._singly or self.channels > 1 or self.timetable or not len(times) or times.max() <= 1:
            check_work(int(times.sum()), _MOST_SINGLY, f"ops of ranks with {self.channels} channels, which take turns on what these share,",
                       100e-9)  # fmt: skip
            super().repeat(times, emit)
            return
        rows = np.flatnonzero(times > 0)
        self._times = np.ascontiguousarray(times[rows], np.int32)
        emit(rows, 0)
        self._times = np.zeros(0, np.int32)

    def ends(self, rank: Ints, channel: Ints) -> None:
        ranks, channels = np.broadcast_arrays(np.atleast_1d(np.asarray(rank, np.int32)), np.asarray(channel, np.int32))
        self._check(self._flow.close(np.ascontiguousarray(ranks.ravel()), np.ascontiguousarray(channels.ravel())))

    def _emit(self, kind: Kind, rank: Ints, channel: Ints, *, peer: Ints = -1, sig_channel: Ints = -1, value: Ints = 0,
              dst: Ref | None = None, srcs: Sequence[Ref] = (), arg: Ints = 0, n_chunks: Ints = 0) -> None:  # fmt: skip
        ranks = np.atleast_1d(np.asarray(rank, np.int32))
        cells = (ranks, channel, peer, sig_channel, value, dst.chunk if dst else 0, dst.n if dst else n_chunks, self.step)
        columns = [np.ascontiguousarray(np.broadcast_to(np.asarray(cell, np.int32), ranks.shape)) for cell in cells]
        ready, tier_ps = self._ready(ranks, srcs), np.zeros(0, np.int64)
        if self._topology.network is not None and kind in (Kind.put, Kind.signal):
            tier_ps = np.ascontiguousarray(self._topology.tier_latency_ps(ranks, columns[2], columns[1]), np.int64)
        if kind == Kind.copy and self.in_place:
            keep = ~self.same_memory(columns[0], dst, srcs[0])  # type: ignore[arg-type]
            columns = [np.ascontiguousarray(column[keep]) for column in columns]
            ready = ready[keep] if len(ready) else ready
        *columns, step = columns
        status = self._flow.run(int(kind), *columns, len(srcs), ready, tier_ps, step, self._times)
        self._check(status)

    def _check(self, status: int) -> None:
        if status == _OVERFLOW:
            raise too_long()
        self.unordered = status in (_DISORDER, _TOO_EARLY)
        if status == _TOO_MANY:
            most = allowed(_MOST_WAITING)
            raise Inapplicable(f"more than {most:,} ops, of 40 bytes each, wait for others at one time (patience="
                               f"{2 * most / _MOST_WAITING:g} allows twice as many)")  # fmt: skip
        if status != _OK:
            raise Inapplicable(_WHY[status])

    def _ready(self, rank: I32, srcs: Sequence[Ref]) -> I64:
        """When the owners of all memory that is read have entered; empty where that is the rank itself."""
        if all(ref.rank is None for ref in srcs) or not self._late_ps.any():
            return np.zeros(0, np.int64)
        owners = [np.broadcast_to(rank if ref.rank is None else np.asarray(ref.rank), rank.shape) for ref in srcs]
        return np.ascontiguousarray(np.max([self._late_ps[owner] for owner in owners], axis=0))

    def finish(self) -> I64:
        """When each rank ends, i64[n_ranks]."""
        out = self._late_ps.copy()
        self._check(self._flow.finish(out))
        return out

    @property
    def ops(self) -> int:
        return int(self._flow.ops)


# Of one step, where what comes several times is told each time.
_MOST_SINGLY = 200_000_000
# Ops that are put in order take 0.2 to 0.4 us each, and 40 bytes as long as they wait: no more of them than numbers of 32 bits tell apart.
MOST_ORDERED = 30_000_000
_MOST_WAITING, _MOST_KEPT = 6_000_000, 2**31 - 1


def flow_finish(outline: Outline, topology: Topology, count: int, itemsize: int, late_ps: I64,
                alpha_ps: int, changes: Changes = NONE) -> tuple[I64, dict[str, Any]]:  # fmt: skip
    """When each rank ends, i64[n_ranks]; how many ops that took, and whether they were put in order. Raises Inapplicable."""
    links = topology.links
    columns = {"node_of": np.ascontiguousarray(topology.node_of, np.int32), "bytes_per_s": links.bytes_per_s,
               "latency_ps": links.latency_ps, "late_ps": late_ps, "alpha_ps": alpha_ps, "itemsize": itemsize,
               **changes.columns()}  # fmt: skip

    def told(ordered: bool, singly: bool = False) -> _Timer | None:
        """What has timed all ops; None where they would have to be put in order, or told singly, and can be."""
        timers: list[_Timer] = []

        def make(*arguments: Any, **options: Any) -> _Timer:
            timers.append(_Timer({**columns, "ordered": ordered, "singly": singly}, topology, count, *arguments, **options))
            return timers[-1]

        try:
            outline.emit(make)
        except Inapplicable as why:
            if singly or not timers or not timers[-1].unordered:
                raise
            check_work(outline.ops_about if ordered else outline.told_about, MOST_ORDERED, f"ops put in order ({why})", 300e-9)
            return None
        return timers[-1]

    timer, in_order = told(False), {}
    if timer is None:
        timer, in_order = told(True) or told(True, singly=True), {"ordered": True}
    assert timer is not None
    return timer.finish(), {"ops": timer.ops, **in_order}
