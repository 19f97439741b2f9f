"""Partners that swap many blocks at every step, timed lane by lane: around lost NICs, where rates change, among any number of ranks.

A *lane* is a channel of a rank. What comes many times in a row is one row here, and one event a lane in the native evaluation
(native/src/sim/swaps.hpp), which puts them in the static order. Where all nodes are alike, and in step, swaps.py is faster.

Is: a Builder that notes what lanes do; the columns of the evaluation. Is not: arithmetic. Invariant: the times are those of exact.py on the
unrolled schedule, to the picosecond, or Inapplicable is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import Inapplicable
from ..ir import Kind, Outline, Ref
from ..ir.builder import Ints
from ..topo import Topology
from .changes import NONE, Changes
from .columns import too_long
from .swaps import Noting

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]

_PUT, _WAIT, _WORK, _GIVE = range(4)
_OK, _OVERFLOW, _UNSUPPORTED = 0, 2, 5


class _Row(NamedTuple):
    """What some ranks do on all channels, with rank xor `apart`: so many times each; of each channel its bytes, and ticks of nominal time.

    some, blocks: where ranks differ, rows of the table by rank: how often each does it (0: not at all), how many times the bytes and ticks.
    """

    step: int
    apart: int
    times: int
    some: int
    nbytes: tuple[int, ...]
    ticks: tuple[int, ...]
    blocks: int = -1
    raised: tuple[int, int] = (0, 0)  # of a wait: the first row of the puts that it waits for, and how many rows that are


class _Puts(NamedTuple):
    """Who puts so many times, and to which ranks, where nobody has waited for that yet."""

    ranks: I64
    times: I64
    peer: I64


class _Lanes(Noting):
    """Notes what lanes do, each as often as it does."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._times: I64 | None = None  # of what is told now, as it is told
        self._round: I64 | None = None  # ranks of a round of several calls
        self._told: list[I64] = []      # ranks of its calls
        self._open: dict[int, _Puts] = {}  # by row
        self._by_rank: dict[bytes, int] = {}  # the table by rank: cells of a row, and its number
        self.rows: list[_Row] = []
        self.ops = 0  # that were told, on all channels

    def repeat(self, times: I64, emit: Callable[[I64, int], None]) -> None:
        """One of them is told, and how often it comes."""
        if self._times is not None or not len(times) or times.max() <= 1:
            super().repeat(times, emit)
            return
        rows = np.flatnonzero(times > 0)
        self._times = times[rows]
        emit(rows, 0)
        self._times = None

    def rounds(self, times: I64, emit: Callable[[I64, int], None]) -> None:
        """One round is told: sums of different ranks, or sums that some ranks put one by one."""
        if self._times is not None or not len(times) or times.max() <= 1:
            super().rounds(times, emit)
            return
        first, self._round = len(self.rows), np.flatnonzero(times > 0)
        self._times, self._told = times[self._round], []
        emit(self._round, 0)
        self._times = self._round = None
        steps = [row.step for row in self.rows[first:]]
        if len(steps) <= 1 or set(steps) == {_WORK} and len(np.unique(np.concatenate(self._told))) == sum(map(len, self._told)):
            return
        if steps != [_WORK, _PUT] or not np.isin(*self._told).all():
            raise Inapplicable("several ops that come many times, each before the next time of the others")
        self.rows[first] = self.rows[first]._replace(step=_GIVE)

    def _emit(self, kind: Kind, rank: Ints, channel: Ints, *, peer: Ints = -1, sig_channel: Ints = -1, value: Ints = 0,
              dst: Ref | None = None, srcs: Sequence[Ref] = (), arg: Ints = 0, n_chunks: Ints = 0) -> None:  # fmt: skip
        ranks = np.atleast_1d(np.asarray(rank, np.int64))
        if not len(ranks):
            return
        if (np.diff(ranks) <= 0).any() or np.any(channel) or any(ref.rank is not None for ref in srcs):
            raise Inapplicable("not all channels do the same, or they work on memory of others")
        if kind in (Kind.put, Kind.wait):
            if np.any(sig_channel):
                raise Inapplicable("signals between channels")
            to = np.broadcast_to(np.asarray(peer, np.int64), ranks.shape)
            if kind == Kind.put and dst is not None:
                puts = _Puts(ranks, self._often(ranks), to)
                self._open[len(self.rows)] = puts
                self._note(_PUT, ranks, puts.times, to, self._blocks(dst, ranks))
            else:
                self._note(_WAIT, ranks, np.ones(len(ranks), np.int64), to, raised=self._waited(ranks, to, value))
        elif kind in (Kind.copy, Kind.reduce) and dst is not None:
            times, blocks = self._often(ranks), self._blocks(dst, ranks)
            if kind == Kind.copy and self.in_place:
                keep = ~self.same_memory(ranks, dst, srcs[0])
                ranks, times, blocks = ranks[keep], times[keep], blocks[keep]
            if len(ranks):
                self._note(_WORK, ranks, times, ranks, blocks, len(srcs))
        else:
            raise Inapplicable("ops of another kind")

    def _note(self, step: int, ranks: I64, times: I64, peer: I64, blocks: I64 | None = None, each: int = 1,
              raised: tuple[int, int] = (0, 0)) -> None:  # fmt: skip
        """A row; each: so many times the bytes of its blocks."""
        apart, size, of = ranks ^ peer, 0, -1
        if (apart != apart[0]).any():
            raise Inapplicable("not every rank has a partner")
        if self._round is not None:
            self._told.append(ranks)
        some = -1 if len(ranks) == self.n_ranks and (times == times[0]).all() else self._table(ranks, times)
        if blocks is not None:
            alike = (blocks == blocks[0]).all()
            size, of = (int(blocks[0]), -1) if alike else (1, self._table(ranks, blocks))
        ticks = size * self.part_ticks if step == _PUT else 0
        nbytes = tuple(one * size * each for one in self.part_bytes)
        self.ops += len(ranks) * self.channels
        self.rows.append(_Row(step, int(apart[0]), int(times[0]), some, nbytes, (ticks,) * self.channels, of, raised))

    def _table(self, ranks: I64, cells: I64) -> int:
        """The row of the table by rank that has these cells, and none for other ranks."""
        row = np.zeros(self.n_ranks, np.int32)
        row[ranks] = cells
        return self._by_rank.setdefault(row.tobytes(), len(self._by_rank))

    def _often(self, ranks: I64) -> I64:
        """How often each rank does what is told."""
        if self._times is None:
            return np.ones(len(ranks), np.int64)
        if len(ranks) == len(self._times):
            return self._times
        if self._round is None:
            raise Inapplicable("some of what comes many times comes once")
        return self._times[np.searchsorted(self._round, ranks)]

    def _waited(self, ranks: I64, peer: I64, value: Ints) -> tuple[int, int]:
        """The first row of the puts of a peer that are waited for, and how many rows that are: all of some puts."""
        raised, taken = np.zeros(len(ranks), np.int64), []
        for row, put in self._open.items():
            place = peer if len(put.ranks) == self.n_ranks else np.minimum(np.searchsorted(put.ranks, peer), len(put.ranks) - 1)
            hit = (put.ranks[place] == peer) & (put.peer[place] == ranks)
            if not hit.any():
                continue
            if np.count_nonzero(hit) != len(put.ranks):
                raise Inapplicable("a wait for some puts, and others for the rest")
            raised += np.where(hit, put.times[place], 0)
            taken.append(row)
        if not taken or (raised != value).any() or any(row not in taken for row in self._open if taken[0] < row < taken[-1]):
            raise Inapplicable("a wait for what was not put yet, or for some of it")
        for row in taken:
            del self._open[row]
        return taken[0], taken[-1] - taken[0] + 1

    def columns(self) -> dict[str, Any]:
        """Of the native evaluation."""
        raised = np.array([row.raised for row in self.rows], np.int64).reshape(-1, 2)
        each = {name: np.array([getattr(row, name) for row in self.rows], np.int64).ravel()
                for name in ("apart", "times", "some", "blocks", "nbytes", "ticks")}  # fmt: skip
        return {**each, "step": np.array([row.step for row in self.rows], np.uint8), "raise": raised[:, 0].copy(),
                "raises": raised[:, 1].copy(), "by_rank": np.frombuffer(b"".join(self._by_rank), np.int32)}  # fmt: skip


def _tiers(told: _Lanes, by_rank: I32, topology: Topology) -> dict[str, Any]:
    """What switches add to the latencies of puts: which of a few numbers."""
    tier, found, n = np.full(len(told.rows), -1), [np.zeros(0, np.uint8)], told.n_ranks
    network = topology.network if topology.tiers_add_latency else None
    tier_ps = np.unique([0, *(each.latency_ps for each in network.tiers)] if network else [0])
    for i, row in enumerate(told.rows):
        if row.step == _PUT and network:
            ranks = np.arange(n) if row.some < 0 else np.flatnonzero(by_rank[row.some * n:(row.some + 1) * n])
            tier[i] = (len(found) - 1) // told.channels
            for channel in range(told.channels):
                found.append(np.zeros(n, np.uint8))
                found[-1][ranks] = np.searchsorted(tier_ps, topology.tier_latency_ps(ranks, ranks ^ row.apart, channel))
    return {"tier": tier, "tier_of": np.concatenate(found), "tier_ps": tier_ps}


def swap_lane_finish(outline: Outline, topology: Topology, count: int, itemsize: int, late_ps: I64, alpha_ps: int,
                     changes: Changes = NONE) -> tuple[I64, dict[str, Any]]:  # fmt: skip
    """When each rank ends, i64[n_ranks], and counts: ops that were told. Raises Inapplicable; UsageError after 13 days.

    Cost: some 0.2 us an op.
    """
    noted: list[_Lanes] = []

    def make(*arguments: Any, **options: Any) -> _Lanes:
        noted.append(_Lanes(count, itemsize, *arguments, **options))
        return noted[-1]

    outline.emit(make)
    told, n, links = noted[-1], topology.n_ranks, topology.links
    columns = told.columns()
    nics, each = np.zeros((told.channels, n), np.int64), topology.n_nodes * topology.nics_per_node
    if topology.n_nodes > 1:
        nics = topology.nic_of(np.arange(n), np.arange(told.channels)[:, None]).reshape(nics.shape) + (
            topology.node_of * topology.nics_per_node)
    tx, rx = (np.ascontiguousarray(3 * n * (each > 0) + side * each + nics, np.int32).ravel() for side in (0, 1))
    finish = late_ps.copy()
    status = _core.simulate_swaps({
        "ranks": n, "channels": told.channels, "alpha_ps": alpha_ps, **columns, **_tiers(told, columns["by_rank"], topology),
        "node_of": np.ascontiguousarray(topology.node_of, np.int32), "tx": tx, "rx": rx, "bytes_per_s": links.bytes_per_s,
        "latency_ps": links.latency_ps, "late_ps": late_ps, **changes.columns(), "finish_ps": finish})  # fmt: skip
    if status == _OVERFLOW:
        raise too_long()
    if status != _OK:
        raise Inapplicable("sums are put one by one over links that others use meanwhile" if status == _UNSUPPORTED else
                           "some lanes wait for ever, or there is no memory for them")
    return finish, {"ops": told.ops}
