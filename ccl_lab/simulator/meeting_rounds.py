"""One lane of members that meet several nodes which lost NICs, as meeting_lanes.py for one.

    raw parts   outsider o puts the section of member (t + o) % m to it in round t; it adds what comes, in the order of rounds
    rounds      finished sections go round the members; in O rounds in a row (round p + 1 - o is that of outsider o, modulo m) member p
                puts its own section to the outsiders instead, and passes nothing on: neither did, a round before, the one before it

So members keep step, and each puts its m - 1 items in O + m - 1 rounds. Numbered from member O - 1 on, to begin with the first whose rounds
with outsiders lie in a row, they are

    ordinary    the first m - O: member p passes on chunks p, p - 1, … 0, puts to outsiders O - 1, … 0, passes on m - 1, m - 2, … p + 2
    special     the last O, q = 0, … O - 1: to outsiders q, … 0; m - O chunks; to outsiders O - 1, … q + 1; a chunk at once; O - 2 more

Is: what meeting_lanes.Batches and Times do for one outsider. Is not: lanes on which members reduce among themselves. Invariant: every NIC
is served in the order of its batches, or Inapplicable is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import Inapplicable
from .meeting_lanes import Batches, Times, scan, tick_of
from .meeting_sweeps import along_batches, along_times, order_puts, serve_puts

I64 = npt.NDArray[np.int64]


class Puts(NamedTuple):
    """Puts between nodes, in the order of their ops: source, to, and the member whose section it is."""

    source: I64
    to: I64
    section: I64

    def take(self, rows: I64) -> Puts:
        """Some of them."""
        return Puts(*(each[rows] for each in self))


class Orders(NamedTuple):
    """In which NICs serve raw parts, what goes back early, and what each special member puts late."""

    raws: I64
    back: I64
    late: list[I64]


class Places:
    """Who stands where. at[k]: the member that is number k, from which on chunks are counted, too."""

    def __init__(self, members: int, outsiders: int) -> None:
        m, o = members, outsiders
        self.m, self.outsiders = m, o
        self.at = (np.arange(m) + o - 1) % m
        self.ordinary, self.special = self.at[: m - o], self.at[m - o :]
        turn, who = np.repeat(np.arange(m), o), np.tile(np.arange(o), m)
        edge = (turn + who) % m
        self.raws = Puts(m + who, edge, edge)
        behind = (edge - 1) % m
        self.back = Puts(behind, m + who, behind).take(np.flatnonzero(who <= edge))
        # A special member's late puts: to outsiders O - 1, … q + 1, then an item to the next member.
        self.late = [self._late(q) for q in range(o)]

    def _late(self, q: int) -> Puts:
        m, o = self.m, self.outsiders
        who, me = np.arange(o - 1, q, -1), int(self.special[q])
        return Puts(np.full(len(who) + 1, me), np.append(m + who, (me + 1) % m), np.append(np.full(len(who), me), self.item(q, m - o)))

    def item(self, q: int, i: int) -> int:
        """The section that special member q puts as item i."""
        return int((self.special[q] - i) % self.m)

    def items(self, q: int, first: int, end: int) -> I64:
        """Those of items [first, end)."""
        return (self.special[q] - np.arange(first, end)) % self.m

    def adds(self, k: int) -> I64:
        """The outsider whose raw part each member adds k-th."""
        return (np.minimum(np.arange(self.m), self.outsiders - 1) - k) % self.outsiders


@lru_cache(maxsize=8)
def places(members: int, outsiders: int) -> Places:
    """As `Places`; at least twice as many members as outsiders."""
    return Places(members, outsiders)


class RoundBatches:
    """A lane after its ring, in batches. ticks: of each section."""

    def __init__(self, found: Batches, ticks: I64, outsiders: int) -> None:
        self.found, self.ticks = found, ticks
        self.at = places(len(found.batch) - outsiders, outsiders)

    def run(self, level: I64, over: I64) -> Orders:
        """level: of sums inside nodes, by node; over: when what members added elsewhere is there."""
        raws = self._raws(level[self.at.m :], over)
        orders = self._rounds()
        return orders._replace(raws=raws)

    def _serve(self, puts: Puts, batch: I64, order: I64) -> I64:
        found, each = self.found, self.ticks[puts.section]
        return serve_puts(puts.source, puts.to, order, tick_of(batch), each, each, found.tx, found.rx)

    def _order_behind(self, first: tuple[I64, I64, I64], puts: Puts, batch: I64) -> npt.NDArray[np.int32]:
        """In which NICs serve puts that come after `first` (source, to, batch), ops before them that are served elsewhere."""
        columns = [np.append(*each) for each in zip(first, (puts.source, puts.to, batch), strict=True)]
        order = order_puts(self.at.m + self.at.outsiders, *columns) - len(first[0])
        return order[order >= 0].astype(np.int32)

    def _raws(self, level: I64, over: I64) -> I64:
        found, at, m = self.found, self.at, self.at.m
        every, outsider = np.arange(m), m + np.arange(at.outsiders)
        found.own(outsider, level)
        found.batch[outsider] += 1
        key = found.batch[outsider]
        for who, first in zip(outsider, key, strict=True):
            if ((found.last_from[:m] != who) & (found.last_into[:m] >= first)).any():
                raise Inapplicable("the nodes that lost a NIC meet others before their ring is through")
        batch = found.batch[at.raws.source]
        order = order_puts(m + at.outsiders, at.raws.source, at.raws.to, batch)
        seen = self._serve(at.raws, batch, order)[np.lexsort((at.raws.to, at.raws.source))].reshape(-1, m)
        found.last_into[:m], found.last_from[:m] = key.max(), -1
        for k in range(at.outsiders):
            found.seen(every, seen[at.adds(k), every])
            if k == 0:
                found.own(every, over)
            found.batch[:m] += 1
        return order

    def _rounds(self) -> Orders:
        found, at, m, o = self.found, self.at, self.at.m, self.at.outsiders
        most = m - o + 1
        first, ahead = at.at[:most], at.at[1 : most + 1]
        batch, free = found.batch[first], np.maximum(found.tx[first], found.rx[ahead])
        stream = found.sweeps.before(batch, free, self.ticks[first])
        found.tx[first[:-1]] = found.rx[ahead[:-1]] = free[:-1]
        found.batch[at.ordinary] = batch[:-1]
        found.batch[at.special] += 1
        seen = np.zeros((o, m), np.int64)
        order = self._back(seen)
        late, streams = self._begin(seen, stream)
        streams = self._finish(streams)
        self._outsiders(seen)
        rest = found.batch[first], np.maximum(found.tx[first], found.rx[ahead])
        came = found.sweeps.after(*rest, streams[-1][o - 1 :], self.ticks[first])
        found.tx[first[:-1]] = found.rx[ahead[:-1]] = rest[1][:-1]
        found.batch[at.ordinary] = np.maximum(rest[0][:-1] + 1, came)
        return Orders(order, order, late)

    def _back(self, seen: I64) -> I64:
        """Members put their sections to the outsiders, but the late ones; an ordinary one's first put of that batch is to the next one."""
        found, at, m = self.found, self.at, self.at.m
        batch = found.batch[at.back.source]
        order = self._order_behind((at.ordinary, (at.ordinary + 1) % m, found.batch[at.ordinary]), at.back, batch)
        for who in range(m, m + at.outsiders):
            if batch[at.back.to == who].min() <= found.last_into[who]:
                raise Inapplicable("members come back to the nodes that lost a NIC before these are through")
        seen[at.back.to - m, at.back.source] = self._serve(at.back, batch, order)
        return order

    def _pass(self, q: int, stream: I64, first: int) -> I64:
        """Special member q waits for each message of `stream` and puts an item after it: keys at which these are seen."""
        found, me = self.found, int(self.at.special[q])
        ahead, turns, count = (me + 1) % self.at.m, 2 * np.arange(1, len(stream) + 1), len(stream)
        if not count:
            return stream
        put = np.maximum.accumulate(np.maximum(stream + 1 - turns, found.batch[me])) + turns
        each = self.ticks[self.at.items(q, first, first + count)]
        leave = scan(tick_of(put), max(int(found.tx[me]), int(found.rx[ahead])), each) + each
        found.tx[me] = found.rx[ahead] = leave[-1]
        found.batch[me] = put[-1]
        return leave

    def _begin(self, seen: I64, stream: I64) -> tuple[list[I64], list[I64]]:
        """Special members up to the item after their late puts: orders of these, keys at which items are seen."""
        found, at, m, o = self.found, self.at, self.at.m, self.at.outsiders
        late, streams = [], []
        last = int(found.batch[at.back.source].max())
        for q, puts in enumerate(at.late):
            leave = self._pass(q, stream, 0)
            key = int(found.batch[at.special[q]])
            if q + 1 < o and key <= last:
                raise Inapplicable("members come back to the nodes that lost a NIC in another order than round by round")
            last = key
            batch = np.full(len(puts.source), key)
            order = self._order_behind((puts.source[:1], puts.to[-1:], batch[:1]), puts, batch)
            left = self._serve(puts, batch, order)
            seen[puts.to[:-1] - m, puts.source[:-1]] = left[:-1]
            late.append(order)
            streams.append(np.append(leave, left[-1]))
            stream = leave
        return late, streams

    def _finish(self, streams: list[I64]) -> list[I64]:
        """The first chunks of the last special member pass all ordinary ones; then special members do the rest."""
        found, at, m, o = self.found, self.at, self.at.m, self.at.outsiders
        came = streams[-1][: o - 1].copy()
        ahead = (at.ordinary + 1) % m
        batch, free = found.batch[at.ordinary], np.maximum(found.tx[at.ordinary], found.rx[ahead])
        along_batches(batch, free, came, self.ticks[at.items(o - 1, 0, o - 1)])
        found.batch[at.ordinary] = batch
        found.tx[at.ordinary] = found.rx[ahead] = free
        for q in range(o):
            streams[q] = np.append(streams[q], self._pass(q, came[:-1], m - o + 1))
            me = at.special[q]
            found.batch[me] = max(int(found.batch[me]) + 1, int(came[-1]))
            came = streams[q][m - o :]
        return streams

    def _outsiders(self, seen: I64) -> None:
        """They wait for the sections round by round."""
        found, m = self.found, self.at.m
        for o in range(self.at.outsiders):
            wait = np.roll(seen[o], 1 - o) - np.arange(m)
            found.batch[m + o] = max(int(wait.max()) + m - 1, int(found.batch[m + o]) + m)


class RoundTimes:
    """As RoundBatches, in ps, in the orders that it found."""

    def __init__(self, found: Times, orders: Orders, outsiders: int) -> None:
        self.found, self.orders = found, orders
        self.at = places(len(found.clock) - outsiders, outsiders)

    def run(self, begin: I64, over: I64) -> None:
        """begin, over: when sums inside nodes, and what members added elsewhere, are there."""
        found, at, m, o = self.found, self.at, self.at.m, self.at.outsiders
        every, outsider = np.arange(m), m + np.arange(o)
        found.own(outsider, begin[m:])
        seen = self._serve(at.raws, self.orders.raws)[np.lexsort((at.raws.to, at.raws.source))].reshape(-1, m)
        found.own(every, over)
        for k in range(o):
            found.add(every, every, seen[at.adds(k), every])
        self._rounds()

    def _serve(self, puts: Puts, order: I64) -> I64:
        """When they are seen."""
        found, cost = self.found, self.found.cost
        each = [cost.nic[kind, puts.section] for kind in (cost.tx_kind[puts.source], cost.rx_kind[puts.to])]
        left = serve_puts(puts.source, puts.to, order, found.clock[puts.source], each[0], each[1], found.tx, found.rx)
        np.maximum.at(found.left, puts.source, left)
        return left + found.path(puts.source, puts.to)

    def _rounds(self) -> None:
        found, at, m, o = self.found, self.at, self.at.m, self.at.outsiders
        first = at.at[: m - o + 1]
        stream = self._swept(found.sweeps.before, first)[1]
        self._to_outsiders(at.back, self._serve(at.back, self.orders.back))
        streams = []
        for q, puts in enumerate(at.late):
            items = self._pass(q, stream, 0)
            seen = self._serve(puts, self.orders.late[q])
            self._to_outsiders(puts.take(np.arange(len(seen) - 1)), seen[:-1])
            streams.append(np.append(items, seen[-1]))
            stream = items
        came = streams[-1][: o - 1].copy()
        self._along(came)
        for q in range(o):
            streams[q] = np.append(streams[q], self._pass(q, came[:-1], m - o + 1))
            found.clock[at.special[q]] = max(int(found.clock[at.special[q]]), int(came[-1]))
            came = streams[q][m - o :]
        clock, last = self._swept(lambda *given: found.sweeps.after(*given[:3], streams[-1][o - 1 :], given[3]), first)
        found.clock[at.ordinary] = np.maximum(clock, last)

    def _costs(self, who: I64, section: I64) -> tuple[I64, ...]:
        """As sweeps take them, of puts from each of `who` to the member after it."""
        cost, ahead = self.found.cost, (who + 1) % self.at.m
        return (self.found.path(who, ahead), cost.add[:, section], cost.nic[:, section], cost.memory_kind[who], cost.tx_kind[who],
                cost.rx_kind[ahead])

    def _put(self, who: I64, clock: I64, tx: I64, rx: I64) -> None:
        found = self.found
        found.clock[who], found.tx[who], found.rx[(who + 1) % self.at.m] = clock, tx, rx
        found.left[who] = np.maximum(found.left[who], np.maximum(tx, rx))

    def _swept(self, sweep: Callable[..., I64], first: I64) -> tuple[I64, I64]:
        """A sweep over ordinary members, in front of a special one: (their clocks, what it returns)."""
        found = self.found
        clock, tx, rx = found.clock[first], found.tx[first], found.rx[(first + 1) % self.at.m]
        came = sweep(clock, tx, rx, self._costs(first, first))
        self._put(first[:-1], clock[:-1], tx[:-1], rx[:-1])
        return clock[:-1], came

    def _to_outsiders(self, puts: Puts, seen: I64) -> None:
        np.maximum.at(self.found.clock, puts.to, seen)

    def _pass(self, q: int, stream: I64, first: int) -> I64:
        """As RoundBatches."""
        found, cost, me = self.found, self.found.cost, int(self.at.special[q])
        ahead, count = (me + 1) % self.at.m, len(stream)
        if not count:
            return stream
        section = self.at.items(q, first, first + count)
        tx, rx = cost.nic[cost.tx_kind[me], section], cost.nic[cost.rx_kind[ahead], section]
        now, both = np.maximum.accumulate(np.maximum(stream, found.clock[me])), np.maximum(tx, rx)
        start = scan(now, max(int(found.tx[me]), int(found.rx[ahead])), both)
        found.clock[me], found.tx[me], found.rx[ahead] = now[-1], start[-1] + tx[-1], start[-1] + rx[-1]
        found.left[me] = max(int(found.left[me]), int(start[-1] + both[-1]))
        return start + both + found.path(np.array(me), np.array(ahead))

    def _along(self, came: I64) -> None:
        found, at = self.found, self.at
        ahead = (at.ordinary + 1) % at.m
        clock, tx, rx = found.clock[at.ordinary], found.tx[at.ordinary], found.rx[ahead]
        along_times(clock, tx, rx, came, self._costs(at.ordinary, at.items(at.outsiders - 1, 0, at.outsiders - 1)))
        self._put(at.ordinary, clock, tx, rx)
