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
from ..ir.layout import element_offset
from ..topo import Topology
from .changes import NONE, Changes
from .columns import too_long
from .swaps import Noting

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]

_PUT, _WAIT, _WORK, _GIVE = range(4)
_OK, _OVERFLOW, _UNSUPPORTED = 0, 2, 5


class _Row(NamedTuple):
    """What some ranks do on all channels: so many times each, and with whom; of each channel its bytes, and ticks of nominal time."""

    step: int
    ranks: I64
    times: I64
    peer: I64
    nbytes: tuple[int, ...]
    ticks: tuple[int, ...]
    raised: tuple[int, int] = (0, 0)  # of a wait: the first row of the puts that it waits for, and how many rows that are
    blocks: I64 | None = None  # so many times the bytes and ticks each


class _Lanes(Noting):
    """Notes what lanes do, each as often as it does."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._times: I64 | None = None  # of what is told now, as it is told
        self._round: I64 | None = None  # ranks of a round of several calls
        self.rows: list[_Row] = []

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
        rows, first = np.flatnonzero(times > 0), len(self.rows)
        self._times, self._round = times[rows], self._of_ranks(rows % (len(times) // self.channels), rows)
        emit(rows, 0)
        self._times = self._round = None
        found = self.rows[first:]
        ranks = np.concatenate([row.ranks for row in found])
        if all(row.step == _WORK for row in found) and len(np.unique(ranks)) == len(ranks) or len(found) == 1:
            return
        if [row.step for row in found] != [_WORK, _PUT] or not np.isin(found[0].ranks, found[1].ranks).all():
            raise Inapplicable("several ops that come many times, each before the next time of the others")
        self.rows[first] = found[0]._replace(step=_GIVE)

    def _emit(self, kind: Kind, rank: Ints, channel: Ints, *, peer: Ints = -1, sig_channel: Ints = -1, value: Ints = 0,
              dst: Ref | None = None, srcs: Sequence[Ref] = (), arg: Ints = 0, n_chunks: Ints = 0) -> None:  # fmt: skip
        ranks = np.atleast_1d(np.asarray(rank, np.int64))
        if not len(ranks):
            return
        mine = self._of_ranks(ranks, ranks)
        channels = np.broadcast_to(np.asarray(channel, np.int64), ranks.shape).reshape(self.channels, -1)
        if (np.diff(mine) <= 0).any() or (channels != np.arange(self.channels)[:, None]).any() or any(ref.rank is not None for ref in srcs):
            raise Inapplicable("not all channels do the same, or they work on memory of others")
        if kind in (Kind.put, Kind.wait):
            if not np.array_equal(np.broadcast_to(sig_channel, ranks.shape), channels.ravel()):
                raise Inapplicable("signals between channels")
            to = self._of_ranks(peer, ranks)
            if kind == Kind.put and dst is not None:
                self._open.append(len(self.rows))
                nbytes, ticks, blocks = self._bytes(dst, ranks)
                self.rows.append(_Row(_PUT, mine, self._often(ranks), to, nbytes, ticks, blocks=blocks))
            else:
                self.rows.append(self._wait(mine, to, self._of_ranks(value, ranks)))
        elif kind in (Kind.copy, Kind.reduce) and dst is not None:
            times, (nbytes, _, blocks) = self._often(ranks), self._bytes(dst, ranks)
            if kind == Kind.copy and self.in_place:
                keep = ~self._of_ranks(self.same_memory(ranks, dst, srcs[0]), ranks).astype(bool)
                mine, times = mine[keep], times[keep]
                blocks = None if blocks is None else blocks[keep]
            nbytes = tuple(each * len(srcs) for each in nbytes)
            if len(mine):
                self.rows.append(_Row(_WORK, mine, times, mine, nbytes, (0,) * self.channels, blocks=blocks))
        else:
            raise Inapplicable("ops of another kind")

    def _of_ranks(self, cells: Ints, ranks: I64) -> I64:
        """Of lanes, channel by channel, that are alike in all channels: those of the ranks."""
        if len(ranks) % self.channels:
            raise Inapplicable("not all channels do the same")
        by_channel = np.broadcast_to(np.asarray(cells, np.int64), ranks.shape).reshape(self.channels, -1)
        if (by_channel != by_channel[:1]).any():
            raise Inapplicable("not all channels do the same")
        return by_channel[0]

    def _often(self, ranks: I64) -> I64:
        """How often each rank does what is told."""
        if self._times is None:
            return np.ones(len(ranks) // self.channels, np.int64)
        if len(ranks) == len(self._times):
            return self._of_ranks(self._times, ranks)
        if self._round is None:
            raise Inapplicable("some of what comes many times comes once")
        return self._of_ranks(self._times, self._times)[np.searchsorted(self._round, self._of_ranks(ranks, ranks))]

    def _bytes(self, dst: Ref, ranks: I64) -> tuple[tuple[int, ...], tuple[int, ...], I64 | None]:
        """Of each channel: its bytes, and its ticks of nominal time; and how many times that is, by rank, where ranks differ."""
        span, first = (np.broadcast_to(np.asarray(each, np.int64), ranks.shape).reshape(self.channels, -1) for each in (dst.n, dst.chunk))
        place, spans = first % self.parts, self._of_ranks(span.ravel(), ranks)
        if self.parts == 1:
            each, ticks = (self._count * self._itemsize,) * self.channels, (self._count * self._itemsize,) * self.channels
        else:
            begin = place[:, 0]
            if (place != begin[:, None]).any() or (spans != spans[0]).any() or int(spans[0]) > self.parts:
                raise Inapplicable("chunks of one channel differ")
            nbytes = element_offset(begin + spans[0], self.parts, self._count) - element_offset(begin, self.parts, self._count)
            each = tuple((nbytes * self._itemsize).tolist())
            ticks = (int(spans[0]) * -(-self._count // self.parts) * self._itemsize,) * self.channels
            spans = np.ones(1, np.int64)
        if (spans == spans[0]).all():
            return tuple(one * int(spans[0]) for one in each), tuple(one * int(spans[0]) for one in ticks), None
        return each, ticks, spans

    def _wait(self, ranks: I64, peer: I64, value: I64) -> _Row:
        """A wait for all of some puts of a peer."""
        raised, taken = np.zeros(len(ranks), np.int64), []
        for row in self._open:
            put = self.rows[row]
            place = np.minimum(np.searchsorted(put.ranks, peer), len(put.ranks) - 1)
            hit = (put.ranks[place] == peer) & (put.peer[place] == ranks)
            if not hit.any():
                continue
            if np.count_nonzero(hit) != len(put.ranks):
                raise Inapplicable("a wait for some puts, and others for the rest")
            raised += np.where(hit, put.times[place], 0)
            taken.append(row)
        if not taken or (raised != value).any() or any(row not in taken for row in self._open if taken[0] < row < taken[-1]):
            raise Inapplicable("a wait for what was not put yet, or for some of it")
        self._open = [row for row in self._open if row not in taken]
        nothing = (0,) * self.channels
        return _Row(_WAIT, ranks, np.ones(len(ranks), np.int64), peer, nothing, nothing, (taken[0], taken[-1] - taken[0] + 1))


def _columns(rows: list[_Row], n: int) -> dict[str, Any]:
    """Numbers where all ranks are alike, arrays by rank where they are not."""
    many: list[I64] = []
    peers: list[I64] = []
    spans: list[I64] = []
    times, some, apart, whom, blocks = ([-1] * len(rows) for _ in range(5))
    for i, row in enumerate(rows):
        times[i], apart[i] = int(row.times[0]), int(row.peer[0] ^ row.ranks[0])
        if len(row.ranks) < n or (row.times != row.times[0]).any():
            some[i] = len(many)
            many.append(np.zeros(n, np.int32))
            many[-1][row.ranks] = row.times
        if n & (n - 1) or (row.ranks ^ row.peer != apart[i]).any():
            whom[i] = len(peers)
            peers.append(np.arange(n, dtype=np.int32))
            peers[-1][row.ranks] = row.peer
        if row.blocks is not None:
            blocks[i] = len(spans)
            spans.append(np.zeros(n, np.int32))
            spans[-1][row.ranks] = row.blocks
    def cells(name: str) -> I64:
        return np.array([getattr(row, name) for row in rows], np.int64).ravel()

    raised = cells("raised").reshape(-1, 2)
    numbers = {"times": times, "some": some, "apart": apart, "whom": whom, "blocks": blocks}
    tables = {"many": many, "peers": peers, "spans": spans}
    return {**{name: np.array(column, np.int64) for name, column in numbers.items()},
            **{name: np.concatenate(found) if found else np.zeros(0, np.int32) for name, found in tables.items()},
            "step": cells("step").astype(np.uint8), "raise": raised[:, 0].copy(), "raises": raised[:, 1].copy(),
            "nbytes": cells("nbytes"), "ticks": cells("ticks")}  # fmt: skip


def _tiers(rows: list[_Row], topology: Topology, channels: int) -> dict[str, Any]:
    """What switches add to the latencies of puts."""
    tier, found = np.full(len(rows), -1), []
    for i, row in enumerate(rows):
        if row.step == _PUT and topology.tiers_add_latency:
            tier[i] = len(found)
            found.append(np.zeros((channels, topology.n_ranks), np.int64))
            for channel in range(channels):
                found[-1][channel, row.ranks] = topology.tier_latency_ps(row.ranks, row.peer, channel)
    return {"tier": tier, "tier_ps": np.concatenate(found).ravel() if found else np.zeros(0, np.int64)}


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
    nics, each = np.zeros((told.channels, n), np.int64), topology.n_nodes * topology.nics_per_node
    if topology.n_nodes > 1:
        nics = topology.nic_of(np.arange(n), np.arange(told.channels)[:, None]).reshape(nics.shape) + (
            topology.node_of * topology.nics_per_node)
    tx, rx = (np.ascontiguousarray(3 * n * (each > 0) + side * each + nics, np.int32).ravel() for side in (0, 1))
    finish = late_ps.copy()
    status = _core.simulate_swaps({
        "ranks": n, "channels": told.channels, "alpha_ps": alpha_ps, **_columns(told.rows, n), **_tiers(told.rows, topology, told.channels),
        "node_of": np.ascontiguousarray(topology.node_of, np.int32), "tx": tx, "rx": rx, "bytes_per_s": links.bytes_per_s,
        "latency_ps": links.latency_ps, "late_ps": late_ps, **changes.columns(), "finish_ps": finish})  # fmt: skip
    if status == _OVERFLOW:
        raise too_long()
    if status != _OK:
        raise Inapplicable("sums are put one by one over links that others use meanwhile" if status == _UNSUPPORTED else
                           "some lanes wait for ever, or there is no memory for them")
    return finish, {"ops": sum(len(row.ranks) for row in told.rows) * told.channels}
