"""Schedules in which all ranks do the same at the same time, timed while they are planned: exchanges, as in halving-doubling.

Where every rank puts and waits, op for op, the same number of parts, all puts of a call inside nodes or all between them, and no rank has
two puts under way unless it waited or added in between, nominal time is one for all ranks whose NICs are private: what is told first is
served first, and a call is some arithmetic with columns of ranks. Where ranks share NICs, as those do that lost one, what all do is noted,
and evaluated put by put for those whom it reaches (native/src/sim/exchanges.hpp).

Is: a Builder whose ops are evaluated at once, or noted. Is not: what ranks do that are not alike (flow.py). Invariant: the times are
those of exact.py on the unrolled schedule, to the picosecond, or Inapplicable is raised.
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
from ..ir.layout import element_offset
from ..topo import Topology
from .changes import NONE, Changes
from .columns import busy_ps, no_tiers

I64 = npt.NDArray[np.int64]

_LATEST_PS = 2**60


def _all_equal(column: npt.NDArray[Any]) -> bool:
    return column.strides[0] == 0 or bool((column == column[0]).all())


class _Side:
    """A link of each rank: when it is free, its latency, and how long it is busy."""

    def __init__(self, topology: Topology, link: I64, held_ps: int) -> None:
        self.latency_ps, self.free_ps, self._held_ps = topology.links.latency_ps[link], np.zeros(len(link), np.int64), held_ps
        self._rates, self._rate_of = np.unique(topology.links.bytes_per_s[link], return_inverse=True)

    def busy_ps(self, nbytes: I64, rows: I64 | slice = slice(None)) -> I64:
        """Of some ranks, which move `nbytes` each: few different numbers."""
        sizes, size_of = (nbytes[:1], 0) if _all_equal(nbytes) else np.unique(nbytes, return_inverse=True)
        table = np.stack([(self._held_ps if size else 0) + busy_ps(int(size), self._rates) for size in sizes])
        return table[size_of, self._rate_of[rows]]


_PUT, _WAIT, _SIGNAL, _FLUSH, _WORK = range(5)
_STEP = {Kind.put: _PUT, Kind.wait: _WAIT, Kind.signal: _SIGNAL}
_OK = 0


class _Program:
    """What every rank does, op by op, where some share NICs. links: each rank's NICs, sending and receiving."""

    def __init__(self, topology: Topology, links: Sequence[I64], late_ps: I64, alpha_ps: int) -> None:
        n = topology.n_ranks
        self._n = n
        self._given = {"ranks": n, "alpha_ps": alpha_ps, "bytes_per_s": topology.links.bytes_per_s, "late_ps": late_ps,
                       "latency_ps": topology.links.latency_ps, "tx": links[0].astype(np.int32),
                       "rx": links[1].astype(np.int32)}  # fmt: skip
        self._rows: list[tuple[int, ...]] = []  # step, near, apart, ticks, raise, nbytes, row
        self._bytes: list[I64] = []
        self._alone: list[tuple[int, I64]] = []  # what not all ranks have done yet
        self._done: I64 | None = None  # how many of these each rank has done; None: all of them
        self._open: list[int] = []  # rows of raises that nobody has waited for

    def alone(self, step: int, ranks: I64, nbytes: I64) -> None:
        """An op of some ranks, as the others have or will have it before they meet again."""
        if len(ranks) == self._n and self._done is None:
            self._alone.append((step, nbytes))
            return
        if self._done is None:
            self._done = np.full(self._n, len(self._alone))
        places = self._done[ranks]
        place = int(places[0])
        if (places != place).any():
            raise Inapplicable("ranks are not in step")
        if place == len(self._alone):
            self._alone.append((step, np.full(self._n, -1)))
        if self._alone[place][0] != step:
            raise Inapplicable("ranks are not in step")
        self._alone[place][1][ranks] = nbytes
        self._done[ranks] = place + 1

    def _met(self) -> None:
        if self._done is not None and (self._done != len(self._alone)).any():
            raise Inapplicable("ranks are not in step")
        for step, nbytes in self._alone:
            self._row(step, nbytes)
        self._alone, self._done = [], None

    def _row(self, step: int, nbytes: I64 | None, near: bool = False, apart: int = 0, ticks: int = 0, raised: int = -1) -> None:
        one = nbytes is None or _all_equal(nbytes)
        self._rows.append((step, near, apart, ticks, raised, 0 if nbytes is None else int(nbytes[0]), -1 if one else len(self._bytes)))
        if nbytes is not None and not one:
            self._bytes.append(np.ascontiguousarray(nbytes, np.int64))

    def together(self, kind: Kind, apart: int, near: bool, ticks: int, nbytes: I64 | None) -> None:
        """A put, wait or signal of all ranks, whose partners are those xor `apart`."""
        if self._n & (self._n - 1):
            raise Inapplicable("partners are not those of a power of two of ranks")
        self._met()
        raised = -1
        if kind == Kind.wait:
            raised = next((row for row in self._open if self._rows[row][2] == apart), -1)
            if raised < 0:
                raise Inapplicable("a wait for what was not put yet")
            self._open.remove(raised)
        else:
            self._open.append(len(self._rows))
        self._row(_STEP[kind], nbytes if kind == Kind.put else None, near, apart, ticks, raised)

    def finish(self, merge: bool) -> tuple[I64, int]:
        """When each rank ends, and how many ranks were evaluated by themselves."""
        self._met()
        names = ("step", "near", "apart", "ticks", "raise", "nbytes", "row")
        columns: dict[str, Any] = {name: np.array(column, np.uint8 if name in ("step", "near") else np.int64)
                                   for name, column in zip(names, zip(*self._rows, strict=True), strict=True)}  # fmt: skip
        columns["bytes"] = np.concatenate(self._bytes) if self._bytes else np.zeros(0, np.int64)
        finish = np.zeros(self._n, np.int64)
        status, members = _core.simulate_exchanges({**self._given, **columns, "merge": merge, "finish_ps": finish})
        if status != _OK:
            raise Inapplicable("ranks that share NICs meet in another way")
        return finish, members


class _InStep(Builder):
    """Times what it is told."""

    def __init__(self, topology: Topology, count: int, itemsize: int, late_ps: I64, alpha_ps: int, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        n = self.n_ranks
        if self.channels > 1 or self.counts is not None or self.timetable:
            raise Inapplicable("ranks have several channels, or a timetable")
        self._ranks, self._count, self._itemsize, self._late_ps = np.arange(n), count, itemsize, late_ps
        self._node_of = topology.node_of
        shared, links = False, [np.zeros(n, np.int64)] * 2
        if topology.n_nodes > 1:
            nic = topology.node_of * topology.nics_per_node + topology.nic_of(self._ranks, 0)
            shared = bool((np.bincount(nic) > 1).any())
            links = [3 * n + side * topology.n_nodes * topology.nics_per_node + nic for side in (0, 1)]
        if not shared:
            self._far = [_Side(topology, link, alpha_ps) for link in links]
            self._near = [_Side(topology, self._ranks + side * n, alpha_ps) for side in (0, 1)]
            self._memory = _Side(topology, 2 * n + self._ranks, 0)
        self._clock, self._left = late_ps.copy(), late_ps.copy()
        self._shape = np.zeros(n, np.uint64)  # of what each rank did so far
        self._alike = True  # whether all did the same
        self._put_since = False
        self._partners: dict[int, tuple[I64, bool | None]] = {}  # by how far they are apart, and whether in one node (None: some)
        self._put_to: set[int] = set()
        self._raised: list[tuple[int, I64]] = []  # not waited for: how far, and when it is seen, by receiver
        self._program = _Program(topology, links, late_ps, alpha_ps) if shared else None
        self.ops = 0

    def repeat(self, times: I64, emit: Callable[[I64, int], None]) -> None:
        """Not taken: ranks move different numbers of blocks there."""
        raise Inapplicable("what comes several times")

    def _emit(self, kind: Kind, rank: Ints, channel: Ints, *, peer: Ints = -1, sig_channel: Ints = -1, value: Ints = 0,
              dst: Ref | None = None, srcs: Sequence[Ref] = (), arg: Ints = 0, n_chunks: Ints = 0) -> None:  # fmt: skip
        ranks = np.atleast_1d(np.asarray(rank, np.int64))
        parts = np.broadcast_to(np.asarray(dst.n if dst else 0, np.int64), ranks.shape)
        if not len(ranks):
            return
        if not (np.array_equal(ranks, self._ranks) or (np.diff(ranks) > 0).all()) or any(ref.rank is not None for ref in srcs):
            raise Inapplicable("several ops of a rank at one time, or memory of other ranks")
        self.ops += len(ranks)
        if kind in (Kind.put, Kind.signal, Kind.wait):
            self._exchange(kind, ranks, np.broadcast_to(np.asarray(peer, np.int64), ranks.shape), sig_channel, value, dst, parts)
        elif kind == Kind.reduce and dst is not None:
            if self._program:
                self._program.alone(_WORK, ranks, self._bytes(dst, ranks) * len(srcs))
            else:
                self._add(ranks, self._bytes(dst, ranks) * len(srcs))
        elif kind == Kind.flush and np.all(np.asarray(peer) < 0):
            if self._program:
                self._program.alone(_FLUSH, ranks, np.zeros(len(ranks), np.int64))
            else:
                self._clock[ranks] = np.maximum(self._clock[ranks], self._left[ranks])
        else:
            raise Inapplicable("ops of another kind")
        self._note(ranks, (int(kind), len(srcs)), parts)
        self._put_since = kind == Kind.put or (self._put_since and kind == Kind.signal)

    def _note(self, ranks: I64, what: tuple[int, int], parts: I64) -> None:
        """A number that tells ranks apart which did different things, or in another order: as long as all are alike it stays as it is."""
        if len(ranks) == self.n_ranks and _all_equal(parts) and self._in_step():
            return
        each = parts.astype(np.uint64) * np.uint64(1 << 24) + np.uint64((what[0] << 16) + what[1])
        self._shape[ranks] = (self._shape[ranks] ^ each) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1)
        self._alike = False

    def _in_step(self) -> bool:
        self._alike = self._alike or _all_equal(self._shape)
        return self._alike

    def _bytes(self, dst: Ref, ranks: I64) -> I64:
        span = np.broadcast_to(np.asarray(dst.n, np.int64), ranks.shape)
        if self._count % self.parts == 0:
            each = self._count // self.parts * self._itemsize
            return np.broadcast_to(span[:1] * each, ranks.shape) if _all_equal(span) else span * each
        first = np.broadcast_to(np.asarray(dst.chunk, np.int64), ranks.shape)
        begin, end = (element_offset(chunk, self.parts, self._count) for chunk in (first, first + span))
        return (end - begin) * self._itemsize

    def _partner(self, ranks: I64, peer: I64) -> tuple[int, bool]:
        """How far partners are apart, and whether they are in one node."""
        apart = int(peer[0]) ^ int(ranks[0])
        if apart not in self._partners:
            partner = self._ranks ^ apart
            near = self._node_of[partner % self.n_ranks] == self._node_of
            self._partners[apart] = partner, bool(near[0]) if _all_equal(near) else None
        partner, inside = self._partners[apart]
        if not apart or not np.array_equal(ranks, self._ranks) or not np.array_equal(peer, partner):
            raise Inapplicable("not every rank has a partner")
        if inside is None:
            raise Inapplicable("some partners are in the same node")
        return apart, inside

    def _exchange(self, kind: Kind, ranks: I64, peer: I64, number: Ints, value: Ints, dst: Ref | None, parts: I64) -> None:
        apart, near = self._partner(ranks, peer)
        if not self._in_step() or not _all_equal(parts) or not np.all(np.asarray(number) == 0):
            raise Inapplicable("ranks are not in step")
        if self._program:
            ticks = int(parts[0]) * -(-self._count // self.parts) * self._itemsize if kind == Kind.put and not near else 0
            self._program.together(kind, apart, near, ticks, self._bytes(dst, ranks) if dst else None)
        if kind == Kind.wait:
            self._wait(apart, value)
            return
        if kind == Kind.signal and apart in self._put_to:
            raise Inapplicable("a signal behind a put, which is seen after it")
        if kind == Kind.put:
            self._put_to.add(apart)
            if self._put_since:
                raise Inapplicable("two puts in a row")
        if self._program:
            self._raised.append((apart, self._clock))
            return
        tx, rx = self._near if near else self._far
        seen = self._clock
        if kind == Kind.put:
            assert dst is not None
            nbytes = self._bytes(dst, ranks)
            start = np.maximum(np.maximum(self._clock, self._late_ps[peer]), np.maximum(tx.free_ps, rx.free_ps[peer]))
            tx.free_ps = start + tx.busy_ps(nbytes)
            rx.free_ps = start[peer] + rx.busy_ps(nbytes[peer])
            seen = np.maximum(tx.free_ps, rx.free_ps[peer])
            if seen.max() > _LATEST_PS:
                raise Inapplicable("it would take days")
            self._left = np.maximum(self._left, seen)
        self._raised.append((apart, (seen + tx.latency_ps)[peer] + rx.latency_ps))

    def _wait(self, apart: int, value: Ints) -> None:
        found = next((i for i, (source, _) in enumerate(self._raised) if source == apart), -1)
        if found < 0 or not np.all(np.asarray(value) == 1):
            raise Inapplicable("a wait for what was not put yet")
        seen = self._raised.pop(found)[1]
        if not self._program:
            self._clock = np.maximum(self._clock, seen)

    def _add(self, ranks: I64, nbytes: I64) -> None:
        memory = self._memory
        done = np.maximum(self._clock[ranks], memory.free_ps[ranks]) + memory.busy_ps(nbytes, ranks)
        self._clock[ranks] = memory.free_ps[ranks] = done

    def finish(self, merge: bool) -> tuple[I64, dict[str, int]]:
        """When each rank ends, i64[n_ranks], and counts."""
        if self._program:
            times, members = self._program.finish(merge)
            return times, {"ops": self.ops, "ranks": members}
        return np.maximum(self._clock, self._left), {"ops": self.ops}


def in_step_finish(outline: Outline, topology: Topology, count: int, itemsize: int, late_ps: I64, alpha_ps: int,
                   changes: Changes = NONE, *, merge: bool = True) -> tuple[I64, dict[str, Any]]:  # fmt: skip
    """When each rank ends, i64[n_ranks], and counts: ops and, where some ranks share NICs, ranks that were evaluated.

    merge: False evaluates all of these, for tests. Raises Inapplicable where ranks are not in step.

    Cost: some 10 ns an op.
    """
    if changes:
        raise Inapplicable("rates that change in time")
    no_tiers(topology)
    timers: list[_InStep] = []

    def make(*arguments: Any, **options: Any) -> _InStep:
        timers.append(_InStep(topology, count, itemsize, late_ps, alpha_ps, *arguments, **options))
        return timers[-1]

    outline.emit(make)
    return timers[-1].finish(merge)
