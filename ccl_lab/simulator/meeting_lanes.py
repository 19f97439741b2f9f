"""One lane of a meeting (meetings.py): when its messages come, and in which batches, sweep by sweep over all nodes.

    Batches   nominal time: (tick, place in the tick) of ops as one number, key = tick * 2^20 + place; NICs are free at keys of ticks
    Times     picoseconds

Both do the same ops in the same order, one class a clock. Nodes are numbered as (*members, outsider). `scan` stands for a link, or a
channel, that comes to one thing after the other.

Is: what happens on NICs and in the memory of the ranks that cross. Is not: what happens inside nodes. Invariant: every NIC is served in
the order of its batches, or Inapplicable is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import Inapplicable
from .meeting_sweeps import Batched, Timed

I64 = npt.NDArray[np.int64]

PLACES = 1 << 20  # of a tick
NEVER = np.iinfo(np.int64).max
_MOST_STEPS = 256  # of a reduce-scatter in which raw parts come


def tick_of(key: I64) -> I64:
    """The key of the first batch of its tick."""
    return key & ~np.int64(PLACES - 1)


def scan(ready: I64, free: int, each: I64) -> I64:
    """Starts of things served one after the other: start[k] = max(ready[k], start[k - 1] + each[k - 1]), the first not before `free`."""
    behind = np.cumsum(each) - each
    ready = ready.copy()
    ready[0] = max(int(ready[0]), free)
    return behind + np.maximum.accumulate(ready - behind)


class Raws(NamedTuple):
    """How the outsider's raw parts come among the hops of a reduce-scatter on the same lane. early: of each step, bool[m], who puts before
    them; order: of members, in which the outsider puts."""

    early: list[npt.NDArray[np.bool_]]
    order: I64


class Batches:
    """Of one lane, and what it ends with. batch: i64[nodes], of the last op of each node; tx, rx: keys at which its NICs are free."""

    def __init__(self, nodes: int, target: int = 0) -> None:
        self.sweeps = Batched(target)
        self.batch = np.full(nodes, -1, np.int64)
        self.tx, self.rx = np.zeros((2, nodes), np.int64)
        self.last_into = np.full(nodes, -1, np.int64)  # batch of the last put into each node, if another node puts there next
        self.last_from = np.full(nodes, -1, np.int64)

    def copy(self) -> Batches:
        """Another that goes on from here."""
        other = copy(self)
        for name in ("batch", "tx", "rx", "last_into", "last_from"):
            setattr(other, name, getattr(self, name).copy())
        return other

    def own(self, who: I64, level: I64) -> None:
        """A wait for what a rank of the node raised in batch `level`."""
        self.batch[who] = np.maximum(self.batch[who], level) + 1

    def seen(self, who: I64, key: I64) -> None:
        """A wait for what another node put."""
        self.batch[who] = np.maximum(self.batch[who] + 1, key)

    def _into(self, who: I64, source: I64, first: I64) -> None:
        """NICs of `who` get from `source`, from batch `first` on: whatever came from others came before."""
        other = (self.last_from[who] != source) & (self.last_into[who] >= first)
        if other.any():
            raise Inapplicable("a node is met before its ring is through")
        self.last_from[who] = source

    def first(self, at: I64, ticks: I64, shift: int) -> I64:
        """All along `at` put to the next: keys at which that is seen, by receiver."""
        ahead = np.roll(at, -1)
        self.batch[at] += 1
        self._into(ahead, at, self.batch[at])
        return np.roll(self._put(at, ahead, ticks[(np.arange(len(at)) - shift) % len(at)]), 1)

    def _put(self, source: I64, to: I64, ticks: I64) -> I64:
        leave = np.maximum(np.maximum(tick_of(self.batch[source]), self.tx[source]), self.rx[to]) + ticks
        self.tx[source] = self.rx[to] = leave
        self.last_into[to] = self.batch[source]
        return leave

    def sweep(self, at: I64, came: I64, ticks: I64, shift: int, steps: int, reducing: int) -> None:
        """The steps after the first put: wait, add (the first `reducing`), put (not the last one)."""
        ahead = np.roll(at, -1)
        batch, free = self.batch[at], np.maximum(self.tx[at], self.rx[ahead])
        if steps > 1:
            self.sweeps.around(batch, free, came, ticks, shift, steps - 1, reducing)
            self.tx[at] = self.rx[ahead] = free
            self.last_into[ahead] = batch
        self.batch[at] = np.maximum(batch + 1, came) + (steps <= reducing)

    # -- the outsider sends, and owners add

    def hops_and_raws(self, ticks: I64) -> tuple[I64, I64, Raws]:
        """Members begin a reduce-scatter while the outsider puts raw parts to them: keys at which the last hop that was begun is seen, and
        the raw parts, by receiver; how these came among the hops.

        Hops of the raw parts' batch or before it do not depend on them. Of one batch a hop has the first turn; then its receiver's raw
        part has another one, and the first turn of the outsider is for the first member without.
        """
        m, raw = len(self.batch) - 1, int(self.batch[-1]) + 1
        every = np.arange(m)
        if ((self.last_from[:m] != m) & (self.last_into[:m] >= raw)).any():
            raise Inapplicable("the node that lost a NIC meets others before their ring is through")
        self._into((every + 1) % m, every, np.where(self.batch[:m] + 1 <= raw, self.batch[:m] + 1, NEVER))
        came, early, same = [np.zeros(m, np.int64)], [], np.zeros(m, bool)
        before = np.ones(m, bool)
        while len(early) < m - 1:
            now = before & np.roll(before, 1) if early else before
            now = now & (self._hop(len(early), came[-1], self.batch[:m]) <= raw)
            if early and not now.any():
                break
            if len(early) == _MOST_STEPS:
                raise Inapplicable("the node that lost a NIC meets members in the middle of their reduce-scatter")
            came.append(self._hops(len(early), came[-1], now, ticks))
            same |= np.roll(now & (self.batch[:m] == raw), 1)
            early.append(now)
            before = now
        self.last_into[:m] = -1  # compared here
        order = every if same.all() else np.append(np.argmin(same), np.delete(every, np.argmin(same))) if same.any() else every
        seen = self.row(ticks, order)
        for step, now in enumerate(early):
            came[step + 1] += self._hops(step, came[step], ~now, ticks)
        return came[-1], seen, Raws(early, order)

    @staticmethod
    def _hop(step: int, came: I64, batch: I64) -> I64:
        """Batches of the puts of a step: after a wait and an addition, but the first one."""
        return np.maximum(batch + 1, came) + 2 if step else batch + 1

    def _hops(self, step: int, came: I64, now: npt.NDArray[np.bool_], ticks: I64) -> I64:
        """Some members put what they hold in a step of their reduce-scatter: keys at which it is seen by receiver, 0 for the others."""
        who, m = np.flatnonzero(now), len(now)
        seen = np.zeros(m, np.int64)
        self.batch[who] = self._hop(step, came[who], self.batch[who])
        seen[(who + 1) % m] = self._put(who, (who + 1) % m, ticks[(who - 1 - step) % m])
        return seen

    def row(self, ticks: I64, order: I64 | None = None) -> I64:
        """The outsider puts to each member, in a row: keys at which that is seen. order: of members, in which that is served."""
        m = len(self.batch) - 1
        order, seen = np.arange(m) if order is None else order, np.empty(m, np.int64)
        self.batch[m] += 1
        key = int(self.batch[m])
        self._into(np.arange(m), np.full(m, m), np.full(m, key))
        each = ticks[order]
        seen[order] = scan(np.maximum(self.rx[order], tick_of(np.int64(key))), int(self.tx[m]), each) + each
        self.tx[m], self.rx[:m] = seen[order[-1]], seen
        self.last_into[:m] = key
        return seen

    def partials(self, ticks: I64) -> tuple[I64, I64]:
        """Each member puts to the outsider once: (members in the order in which that is served, keys at which it is seen by member)."""
        m = len(self.batch) - 1
        self.batch[:m] += 1
        turn = (np.arange(m) + 1) % m
        order = np.lexsort((turn, self.batch[:m]))
        return order, self._to_outsider(order, ticks)

    def _to_outsider(self, order: I64, ticks: I64) -> I64:
        m, key = len(order), self.batch[order]
        self._into(np.array([m]), np.array([-1]), key[:1])
        each = ticks[order]
        leave = scan(np.maximum(tick_of(key), self.tx[order]), int(self.rx[m]), each) + each
        self.rx[m], self.tx[order] = leave[-1], leave
        seen = np.empty(m, np.int64)
        seen[order] = leave
        return seen

    def outsider_adds(self, seen: I64, level: int) -> None:
        """It waits for the members' parts in the order of rounds, once for its own, and adds."""
        m = len(seen)
        key = np.roll(seen, 1) + 1  # of the additions
        first = max(int(self.batch[m]) + 1, int(key[0]) - 1)
        key[0] = max(first, level) + 2
        self.batch[m] = scan(key, 0, np.full(m, 2))[-1]

    # -- rounds

    def rounds(self, ticks: I64, back: bool) -> I64:
        """Finished sections go round the members; back: and to the outsider. Returns the members in the order of their puts to it."""
        m = len(self.batch) - 1
        batch, free = self.batch[:m].copy(), np.maximum(self.tx[:m], np.roll(self.rx[:m], -1))
        self._into((np.arange(m) + 1) % m, np.arange(m), batch + 1)
        stream = self.sweeps.before(batch, free, ticks)
        self.tx[: m - 1], self.rx[1:m] = free[: m - 1], free[: m - 1]
        order = np.zeros(0, np.int64)
        last = int(batch[m - 1])
        if back:
            batch[m - 1] = last = last + 1
            order = _with_last(batch)
            self.batch[:m] = batch
            seen = np.roll(self._to_outsider(order, ticks), 1)
            wait = np.maximum.accumulate(seen - np.arange(m))
            self.batch[m] = max(int(wait[-1]) + m - 1, int(self.batch[m]) + m)
        # The last member, whose edge the outsider leaves first.
        turns = 2 * np.arange(1, m)
        put = np.maximum.accumulate(np.maximum(stream + 1 - turns, last)) + turns
        each = ticks[m - np.arange(1, m)]
        leave = scan(tick_of(put), max(int(self.tx[m - 1]), int(self.rx[0])), each) + each
        self.tx[m - 1] = self.rx[0] = leave[-1]
        free = np.maximum(self.tx[:m], np.roll(self.rx[:m], -1))
        came = self.sweeps.after(batch, free, leave, ticks)
        self.tx[: m - 2], self.rx[1 : m - 1] = free[: m - 2], free[: m - 2]
        self.batch[: m - 1] = np.maximum(batch[: m - 1] + 1, came)
        self.batch[m - 1] = put[-1]
        return order


def _with_last(batch: I64) -> I64:
    """Members by (batch, op) of their puts to the outsider: the last one's op is the first, the others' come in order."""
    m = len(batch)
    if (np.diff(batch[: m - 1]) < 0).any():
        raise Inapplicable("members come back to the node that lost a NIC in another order than round by round")
    return np.insert(np.arange(m - 1), np.searchsorted(batch[: m - 1], batch[m - 1], side="left"), m - 1)


class Cost(NamedTuple):
    """How long things take, in ps. add, nic: [rates, chunks], to add a chunk, or to put it; of each node, which rate its memory and both
    sides of its NIC have, and its part of a path's latency on either side; met: what switches add to those from nodes to nodes."""

    add: I64
    nic: I64
    memory_kind: I64
    tx_kind: I64
    rx_kind: I64
    tx_latency: I64
    rx_latency: I64
    met: Callable[[I64, I64], I64]


class Times:
    """As Batches, in ps. cost: of what crosses next; clock: of the channel; left: when all puts of a node had left; memory: when it is free
    at first."""

    def __init__(self, late: I64, memory: I64, target: int = 0) -> None:
        self.sweeps, self.memory = Timed(target), memory
        self.clock, self.tx, self.rx, self.left = late.copy(), late * 0, late.copy(), late.copy()
        self.cost: Cost

    def own(self, who: I64, at_ps: I64) -> None:
        """A wait for what a rank of the node raised."""
        self.clock[who] = np.maximum(self.clock[who], at_ps)

    def path(self, source: I64, to: I64) -> I64:
        """Latencies from NIC to NIC."""
        return self.cost.tx_latency[source] + self.cost.rx_latency[to] + self.cost.met(source, to)

    def first(self, at: I64, shift: int) -> I64:
        """As Batches: when what is put is seen, by receiver."""
        return np.roll(self._put(at, np.roll(at, -1), (np.arange(len(at)) - shift) % len(at)), 1)

    def _put(self, source: I64, to: I64, chunk: I64) -> I64:
        cost = self.cost
        start = np.maximum(np.maximum(self.clock[source], self.tx[source]), self.rx[to])
        self.tx[source], self.rx[to] = start + cost.nic[cost.tx_kind[source], chunk], start + cost.nic[cost.rx_kind[to], chunk]
        leave = np.maximum(self.tx[source], self.rx[to])
        self.left[source] = np.maximum(self.left[source], leave)
        return leave + self.path(source, to)

    def hops_and_raws(self, raws: Raws) -> tuple[I64, I64]:
        """As Batches, in an order that it found."""
        came = [np.zeros(len(raws.order), np.int64)]
        for step, now in enumerate(raws.early):
            came.append(self._hops(step, came[-1], now))
        seen = self.row(raws.order)
        for step, now in enumerate(raws.early):
            came[step + 1] += self._hops(step, came[step], ~now)
        return came[-1], seen

    def _hops(self, step: int, came: I64, now: npt.NDArray[np.bool_]) -> I64:
        """As Batches."""
        who, m = np.flatnonzero(now), len(now)
        seen, chunk = np.zeros(m, np.int64), (who - 1 - step) % m
        if step:
            self.add(who, chunk, came[who])
        seen[(who + 1) % m] = self._put(who, (who + 1) % m, chunk)
        return seen

    def sweep(self, at: I64, came: I64, shift: int, steps: int, reducing: int) -> None:
        """As Batches."""
        cost, ahead, k = self.cost, np.roll(at, -1), len(at)
        came = np.maximum(came, self.memory[at])
        if steps > 1:
            clock, tx, rx = self.clock[at], self.tx[at], self.rx[ahead]
            costs = self.path(at, ahead), cost.add, cost.nic, cost.memory_kind[at], cost.tx_kind[at], cost.rx_kind[ahead]
            self.sweeps.around(clock, tx, rx, came, costs, shift, steps - 1, reducing)
            self.clock[at], self.tx[at], self.rx[ahead] = clock, tx, rx
            self.left[at] = np.maximum(self.left[at], np.maximum(tx, rx))
        clock = np.maximum(self.clock[at], came)
        if steps <= reducing:
            clock = clock + cost.add[cost.memory_kind[at], (np.arange(k) - steps - shift) % k]
        self.clock[at] = clock

    def row(self, order: I64 | None = None) -> I64:
        """As Batches: when it is seen."""
        cost, m = self.cost, len(self.clock) - 1
        order, seen = np.arange(m) if order is None else order, np.empty(m, np.int64)
        tx, rx = cost.nic[cost.tx_kind[m], order], cost.nic[cost.rx_kind[order], order]
        start = scan(np.maximum(self.rx[order], self.clock[m]), int(self.tx[m]), tx)
        self.tx[m], self.rx[order] = start[-1] + tx[-1], start + rx
        leave = start + np.maximum(tx, rx)
        self.left[m] = max(self.left[m], leave.max())
        seen[order] = leave + self.path(np.array(m), order)
        return seen

    def add(self, who: I64, chunk: I64, seen: I64) -> None:
        """Nodes wait for a message and add it."""
        self.clock[who] = np.maximum(np.maximum(self.clock[who], seen), self.memory[who]) + self.cost.add[self.cost.memory_kind[who], chunk]

    def to_outsider(self, order: I64) -> I64:
        """Each member puts its section, in that order: when it is seen, by member."""
        cost, m = self.cost, len(order)
        tx, rx = cost.nic[cost.tx_kind[order], order], cost.nic[cost.rx_kind[m], order]
        start = scan(np.maximum(self.clock[order], self.tx[order]), int(self.rx[m]), rx)
        self.tx[order], self.rx[m] = start + tx, start[-1] + rx[-1]
        leave = start + np.maximum(tx, rx)
        self.left[order] = np.maximum(self.left[order], leave)
        seen = np.empty(m, np.int64)
        seen[order] = leave + self.path(order, np.array(m))
        return seen

    def outsider_adds(self, seen: I64, own_ps: int) -> None:
        """As Batches."""
        m, cost = len(seen), self.cost
        section = np.roll(np.arange(m), 1)
        add = cost.add[cost.memory_kind[m], section]
        first = max(int(self.clock[m]), own_ps, int(self.memory[m]))
        self.clock[m] = scan(seen[section], first, add)[-1] + add[-1]

    def rounds(self, order: I64) -> None:
        """As Batches; order: members in that of their puts to the outsider, none where there are no such."""
        cost, m = self.cost, len(self.clock) - 1
        at, ahead = np.arange(m), (np.arange(m) + 1) % m
        latency = self.path(at, ahead)
        costs = latency, cost.add, cost.nic, cost.memory_kind[:m], cost.tx_kind[:m], cost.rx_kind[ahead]
        clock, tx, rx = self.clock[:m], self.tx[:m], self.rx[ahead]
        stream = self.sweeps.before(clock, tx, rx, costs)
        self.left[: m - 1] = np.maximum(self.left[: m - 1], np.maximum(tx, rx)[: m - 1])
        self.tx[:m], self.rx[ahead] = tx, rx
        if len(order):
            self.clock[m] = max(int(self.clock[m]), int(self.to_outsider(order).max()))
        chunk = m - np.arange(1, m)
        each = cost.nic[cost.tx_kind[m - 1], chunk], cost.nic[cost.rx_kind[0], chunk]
        now = np.maximum.accumulate(np.maximum(stream, clock[m - 1]))
        both = np.maximum(*each)
        start = scan(now, max(int(self.tx[m - 1]), int(self.rx[0])), both)
        clock[m - 1] = now[-1]
        self.tx[m - 1], self.rx[0] = start[-1] + each[0][-1], start[-1] + each[1][-1]
        self.left[m - 1] = max(int(self.left[m - 1]), int(start[-1] + both[-1]))
        tx, rx = self.tx[:m].copy(), self.rx[ahead]
        came = self.sweeps.after(clock, tx, rx, start + both + latency[m - 1], costs)
        self.left[: m - 2] = np.maximum(self.left[: m - 2], np.maximum(tx, rx)[: m - 2])
        self.tx[:m], self.rx[ahead] = tx, rx
        clock[: m - 1] = np.maximum(clock[: m - 1], came)
