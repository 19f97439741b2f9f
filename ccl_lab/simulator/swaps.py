"""Partners that swap many blocks at every step, timed by columns of nodes: on any channels, and where ranks share NICs.

Where all nodes use their NICs alike and partners are rank xor a power of two, all nodes are at one place at one tick of nominal time. So
the static order is found for one node, whose partner is itself: a *lane* is a channel of a local index, and what it does in some batch (as
in native/src/sim/flow.hpp) it does in every node. Batches are taken one after the other. In one of them what goes over a pair of links
goes over no other one: lanes of a NIC to the same NIC of one other node, channels of a rank to one other rank of its node. They take turns
there, round by round: the rounds behind the first one wait for nothing but the one before, and are sums. So it is with sums in a rank's
memory.

Is: a Builder that notes what every lane does; its evaluation, an order by lanes and times by columns of nodes. Is not: lost NICs, which put
nodes out of step, nor rates that change in time (swap_lanes.py). Invariant: the times are those of exact.py on the unrolled schedule, to
the picosecond, or Inapplicable is raised.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import Inapplicable
from ..ir import Builder, Kind, Outline, Ref
from ..ir.builder import Ints
from ..ir.layout import element_offset
from ..topo import Topology, lane_nics
from .changes import NONE, Changes
from .columns import busy_ps, too_long

I64 = npt.NDArray[np.int64]
Lane = tuple[int, int]  # channel, local index

_PLACE_BITS = 20  # of a batch: its place in its tick
_PLACES = 1 << _PLACE_BITS
_LATEST_PS = 2**60


class _Op(NamedTuple):
    """What every lane does: a put to the rank so far `apart`, that many times, or a wait for all of `put`, or copies or sums."""

    kind: Kind
    times: int = 1
    apart: int = 0
    nbytes: tuple[int, ...] = ()  # of each channel
    span: int = 0  # chunks, in nominal time
    put: int = -1


class Noting(Builder):
    """Notes what lanes do, of blocks of `count` elements: no blocks of sizes of their own, no timetable.

    Every channel has a part of each block; it is told of the first one, and the others do the same with their own parts.
    """

    def __init__(self, count: int, itemsize: int, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self.counts is not None or self.timetable:
            raise Inapplicable("blocks have sizes of their own, or steps are a timetable")
        if self.parts != self.channels:
            raise Inapplicable("channels do not have a part of every block each")
        self.told_channels = 1
        self.part_bytes = tuple((np.diff(element_offset(np.arange(self.parts + 1), self.parts, count)) * itemsize).tolist())
        self.part_ticks = -(-count // self.parts) * itemsize

    def _blocks(self, dst: Ref, ranks: I64) -> I64:
        """How many blocks each row moves, of which the channels have their parts."""
        if np.mod(dst.chunk, self.parts).any() or self.parts > 1 and np.any(np.not_equal(dst.n, 1)):
            raise Inapplicable("chunks of several channels")
        return np.broadcast_to(np.asarray(dst.n, np.int64), ranks.shape)


class _Program(Noting):
    """Notes what all lanes do, if they do the same."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._rank = np.arange(self.n_ranks)
        self._times = 1
        self._open: list[int] = []  # puts that nobody has waited for
        self.program: list[_Op] = []

    def repeat(self, times: I64, emit: Callable[[I64, int], None]) -> None:
        """One of them is told, and how often it comes."""
        if not len(times) or times.max() <= 0:
            return
        if (times != times[0]).any():
            raise Inapplicable("ranks move different numbers of blocks")
        self._times = int(times[0])
        emit(np.arange(len(times)), 0)
        self._times = 1

    def _emit(self, kind: Kind, rank: Ints, channel: Ints, *, peer: Ints = -1, sig_channel: Ints = -1, value: Ints = 0,
              dst: Ref | None = None, srcs: Sequence[Ref] = (), arg: Ints = 0, n_chunks: Ints = 0) -> None:  # fmt: skip
        ranks = np.atleast_1d(np.asarray(rank, np.int64))
        if not np.array_equal(ranks, self._rank) or np.any(channel) or any(ref.rank is not None for ref in srcs):
            raise Inapplicable("not all ranks do the same, or they work on memory of others")
        if kind in (Kind.put, Kind.wait):
            if np.any(sig_channel):
                raise Inapplicable("signals between channels")
            self._swap(kind, np.broadcast_to(peer, ranks.shape), value, dst)
        elif kind in (Kind.copy, Kind.reduce) and dst is not None:
            none = self.same_memory(ranks, dst, srcs[0]) if kind == Kind.copy and self.in_place else np.zeros(1, bool)
            if none.any() and not none.all():
                raise Inapplicable("some copies are none")
            if not none.all():
                span = self._span(dst)
                self.program.append(_Op(Kind.reduce, self._times, nbytes=tuple(each * span * len(srcs) for each in self.part_bytes)))
        else:
            raise Inapplicable("ops of another kind")

    def _swap(self, kind: Kind, peer: I64, value: Ints, dst: Ref | None) -> None:
        apart = int(peer[0])
        if apart <= 0 or apart & (apart - 1) or not np.array_equal(peer, self._rank ^ apart):
            raise Inapplicable("not every rank has a partner")
        if kind == Kind.put and dst is not None:
            span = self._span(dst)
            self._open.append(len(self.program))
            self.program.append(_Op(kind, self._times, apart, tuple(each * span for each in self.part_bytes), span))
            return
        put = next((at for at in self._open if self.program[at].apart == apart), -1)
        if put < 0 or not np.all(np.asarray(value) == self.program[put].times):
            raise Inapplicable("a wait for what was not put yet, or for some of it")
        self._open.remove(put)
        self.program.append(_Op(kind, apart=apart, put=put))

    def _span(self, dst: Ref) -> int:
        """How many blocks all of them move."""
        blocks = self._blocks(dst, self._rank)
        if (blocks != blocks[0]).any():
            raise Inapplicable("ranks move different numbers of blocks")
        return int(blocks[0])


class _Link:
    """A link of every node: when it is free, in each of them; the last batch that it served, and when in nominal time, one for all."""

    def __init__(self, nodes: int, ids: slice) -> None:
        self.free_ps, self.ids, self.batch, self.tick = np.zeros(nodes, np.int64), ids, -1, 0

    def serves(self, first: int, last: int) -> None:
        """Batches from the first to the last one."""
        if first <= self.batch:
            raise Inapplicable("what goes over a link in one batch goes over others, or links serve several batches at one time")
        self.batch = last


class _Lane:
    """Where it is in the program; times are by node."""

    def __init__(self, late_ps: I64) -> None:
        self.at, self.batch, self.row = 0, -1, False
        self.clock_ps = self.left_ps = late_ps
        self.came_ps: dict[int, I64] = {}  # by put that is not served yet: when the lane came to it, and went on
        self.raised: dict[int, tuple[int, int, I64]] = {}  # by put: its batch, its tick, and when it is seen, by sender


def _in_turns(begin_ps: list[I64], out_ps: list[I64], into_ps: list[I64], times: int, free_ps: I64) -> tuple[list[I64], I64, I64]:
    """Puts of some lanes, round by round, over two links that are free by then: when the last of each has left, and when they are free."""
    each = [np.maximum(out, into) for out, into in zip(out_ps, into_ps, strict=True)]
    if sum(int(one.max()) for one in each) * times > _LATEST_PS:
        raise too_long()
    ends = []
    for begin, one in zip(begin_ps, each, strict=True):
        free_ps = np.maximum(begin, free_ps) + one
        ends.append(free_ps)
    if times > 1:
        free_ps = free_ps + (times - 2) * sum(each[1:], each[0])
        for i, one in enumerate(each):
            ends[i] = free_ps = free_ps + one
    if free_ps.max() > _LATEST_PS:
        raise too_long()
    return ends, free_ps - each[-1] + out_ps[-1], free_ps - each[-1] + into_ps[-1]


class _Walk:
    """All lanes of a node, in the static order."""

    def __init__(self, program: list[_Op], topology: Topology, nics: npt.NDArray[np.int32], late_ps: I64, alpha_ps: int, part_ticks: int):
        n, nodes, m = topology.n_ranks, topology.n_nodes, topology.nics_per_node
        self._program, self._topology, self._alpha_ps, self._part_ticks = program, topology, alpha_ps, part_ticks
        self._nodes, self._group, self._nic = nodes, n // nodes, nics
        group = self._group
        self._late = list(np.ascontiguousarray(late_ps.reshape(nodes, group).T))
        self._lanes = {(c, k): _Lane(self._late[k]) for c in range(len(nics)) for k in range(group)}
        self._ports = [[_Link(nodes, slice(first + k, first + n, group)) for k in range(group)] for first in (0, n)]
        self._memory = [_Link(nodes, slice(2 * n + k, 3 * n, group)) for k in range(group)]
        self._nics = [[_Link(nodes, slice(first + i, first + nodes * m, m)) for i in range(m)] for first in (3 * n, 3 * n + nodes * m)]
        self._known: dict[tuple[int, int], I64] = {}  # what bytes take, by first link
        self._pending: list[tuple[int, int, Lane]] = []  # a heap: batch, op, lane

    def finish(self) -> I64:
        """When each rank ends, i64[n_ranks]."""
        for name in self._lanes:
            self._go_on(name)
        while self._pending:
            batch = self._pending[0][0]
            lines: dict[tuple[int, int], list[Lane]] = {}  # what takes turns, by op and pair of links
            while self._pending and self._pending[0][0] == batch:
                _, at, lane = heapq.heappop(self._pending)
                lines.setdefault((at, self._line_of(at, lane)), []).append(lane)
            for (at, _), lanes in lines.items():
                (self._put if self._program[at].kind == Kind.put else self._work)(at, lanes, batch)
            for name in self._lanes:
                self._go_on(name)
        ends = [np.maximum(lane.clock_ps, lane.left_ps) for lane in self._lanes.values()]
        if any(lane.at < len(self._program) for lane in self._lanes.values()):
            raise Inapplicable("some lanes wait for ever")
        return np.ascontiguousarray(np.stack(ends).reshape(len(self._nic), self._group, self._nodes).max(axis=0).T).ravel()

    def _line_of(self, at: int, lane: Lane) -> int:
        op = self._program[at]
        return int(self._nic[lane]) if op.kind == Kind.put and op.apart >= self._group else lane[1]

    def _partner(self, op: _Op, lane: Lane) -> tuple[Lane, I64 | slice]:
        """The lane of the rank so far apart, and in which node that is."""
        if op.apart < self._group:
            return (lane[0], lane[1] ^ op.apart), slice(None)
        return lane, np.arange(self._nodes) ^ op.apart // self._group

    def _go_on(self, name: Lane) -> None:
        """Up to work, or to a wait for what is not there yet; puts on the way are to be served."""
        lane = self._lanes[name]
        while 0 <= lane.at < len(self._program):
            op = self._program[lane.at]
            if op.kind == Kind.put:
                lane.batch += not lane.row
                lane.row = True
                lane.came_ps[lane.at] = lane.clock_ps
                heapq.heappush(self._pending, (lane.batch, lane.at, name))
            elif op.kind == Kind.wait:
                source, nodes = self._partner(op, name)
                if op.put not in self._lanes[source].raised:
                    return
                batch, tick, seen = self._lanes[source].raised.pop(op.put)
                tick = max(max(lane.batch, 0) >> _PLACE_BITS, tick)
                lane.batch = max(tick << _PLACE_BITS, max(lane.batch, batch) + 1)
                lane.clock_ps = np.maximum(lane.clock_ps, seen[nodes])
                lane.row = False
            else:
                heapq.heappush(self._pending, (lane.batch + 1, lane.at, name))
                lane.at = ~lane.at  # until that is done
                return
            lane.at += 1

    def _busy(self, link: _Link, nbytes: int) -> I64:
        """What bytes take on a link, and what occupies it beyond that."""
        key = link.ids.start, nbytes
        if key not in self._known:
            held = 0 if 2 * self._topology.n_ranks <= key[0] < 3 * self._topology.n_ranks or not nbytes else self._alpha_ps
            self._known[key] = held + busy_ps(nbytes, self._topology.links.bytes_per_s[link.ids])
        return self._known[key]

    def _put(self, at: int, names: list[Lane], batch: int) -> None:
        """Lanes that take turns on one pair of links."""
        op, links = self._program[at], self._topology.links
        near, (to, there) = op.apart < self._group, self._partner(op, names[0])
        a, b = (self._ports[0][names[0][1]], self._ports[1][to[1]]) if near else (side[self._nic[to]] for side in self._nics)
        for link in (a, b):
            link.serves(batch, batch)
        begin = [np.maximum(self._lanes[name].came_ps.pop(at), self._late[self._partner(op, name)[0][1]][there]) for name in names]
        out, into = [self._busy(a, op.nbytes[c]) for c, _ in names], [self._busy(b, op.nbytes[c])[there] for c, _ in names]
        ends, a.free_ps, free = _in_turns(begin, out, into, op.times, np.maximum(a.free_ps, b.free_ps[there]))
        b.free_ps = free[there]
        latency = links.latency_ps[a.ids] + links.latency_ps[b.ids][there]
        tick, each = batch >> _PLACE_BITS, 0 if near else op.span * self._part_ticks
        if not near:
            tick = max(tick, a.tick, b.tick) + (op.times - 1) * len(names) * each
            a.tick = b.tick = tick + len(names) * each
        for place, (name, end) in enumerate(zip(names, ends, strict=True)):
            lane = self._lanes[name]
            lane.left_ps = np.maximum(lane.left_ps, end)
            lane.raised[at] = batch, tick + (place + 1) * each, end + latency + self._tiers(op, name)

    def _tiers(self, op: _Op, lane: Lane) -> I64 | int:
        """What switches add to the latency of a lane's put."""
        if self._topology.network is None or op.apart < self._group:
            return 0
        rank = np.arange(self._nodes) * self._group + lane[1]
        return np.asarray(self._topology.tier_latency_ps(rank, rank ^ op.apart, lane[0]), np.int64)

    def _work(self, at: int, names: list[Lane], batch: int) -> None:
        """Copies or sums of the channels of a rank, which take a batch each."""
        op, memory = self._program[at], self._memory[names[0][1]]
        memory.serves(batch, batch + op.times - 1)
        if batch % _PLACES + op.times > _PLACES:
            raise Inapplicable("more sums than there are places in a tick")
        takes = [self._busy(memory, op.nbytes[c]) for c, _ in names]
        ends, memory.free_ps, _ = _in_turns([self._lanes[name].clock_ps for name in names], takes, takes, op.times, memory.free_ps)
        for name, end in zip(names, ends, strict=True):
            lane = self._lanes[name]
            lane.clock_ps, lane.batch, lane.row, lane.at = end, batch + op.times - 1, False, ~lane.at + 1


def swap_finish(outline: Outline, topology: Topology, count: int, itemsize: int, late_ps: I64, alpha_ps: int,
                changes: Changes = NONE) -> tuple[I64, dict[str, Any]]:  # fmt: skip
    """When each rank ends, i64[n_ranks], and counts: ops that were told. Raises Inapplicable; UsageError after 13 days.

    Cost: some 50 ns an op.
    """
    if changes:
        raise Inapplicable("rates that change in time")
    noted: list[tuple[_Program, npt.NDArray[np.int32]]] = []
    n = topology.n_ranks

    def make(*arguments: Any, **options: Any) -> _Program:
        program = _Program(count, itemsize, *arguments, **options)
        nics = lane_nics(topology, program.channels)
        if nics is None or n & (n - 1):
            raise Inapplicable("nodes do not use their NICs alike, or ranks are no power of two")
        noted.append((program, nics))
        return program

    outline.emit(make)
    told, nics = noted[-1]
    walk = _Walk(told.program, topology, nics, late_ps, alpha_ps, told.part_ticks)
    return walk.finish(), {"ops": len(told.program) * told.channels * n}
