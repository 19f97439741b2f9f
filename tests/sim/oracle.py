"""A naive simulator: events on a heap, one queue per link, integer picoseconds.

Is: the meaning of time in ccl_lab/simulator/exact.py, told as things that happen rather than as formulas, so that a
mistake in one is not a mistake in both. Is not: fast, or used by anything but tests. Invariant: nothing happens at a time
that is not the time of an event.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import Any

from ccl_lab.ir import Kind

MOVERS = (Kind.put, Kind.get, Kind.copy, Kind.reduce)


class Oracle:
    """Runs one schedule; afterwards begin, end, start, leave, arrive, level: {op_id: ps} and finish: [ps per rank]."""

    def __init__(self, schedule: Any, topology: Any, layout: Any, late: list[int] | None = None,
                 compute: Any = None, alpha: int = 0, changes: dict[Any, list[tuple[int, int]]] | None = None) -> None:  # fmt: skip
        self.ops, self.timetable = list(schedule.ops), schedule.timetable
        self.topology, self.op_bytes, self.compute = topology, [int(b) for b in layout.op_bytes()], compute
        part = -(-layout.count // schedule.parts) * layout.itemsize
        self.nominal_bytes = self.op_bytes if layout.counts is not None else [op.n_chunks * part for op in self.ops]
        self.alpha, self.changes = alpha, changes or {}
        self.late = late or [0] * schedule.n_ranks
        self.channels: dict[tuple[int, int], list[Any]] = defaultdict(list)
        for op in self.ops:
            self.channels[op.rank, op.channel].append(op)
        self.level: dict[int, int] = {}
        self.find_order()
        by_level = sorted(self.ops, key=lambda op: (self.level[op.op_id], op.op_id))
        self.raises: dict[Any, list[int]] = defaultdict(list)
        for op in by_level:
            if self.counter_raised(op):
                self.raises[self.counter_raised(op)].append(op.op_id)
        self.run()

    # order

    @staticmethod
    def counter_raised(op: Any) -> Any:
        return (op.peer, op.rank, op.sig_channel) if op.kind in (Kind.put, Kind.signal) and op.sig_channel >= 0 else None

    @staticmethod
    def goes_on(op: Any) -> bool:
        return op.kind == Kind.signal or (op.kind == Kind.put and op.peer != op.rank)

    def find_order(self) -> None:
        """Plays the schedule in nominal time: a byte takes one tick on any NIC (bytes as if all parts were alike), all else none.
        What can begin at a tick begins in rounds (batches); `queues` are the links' ops in that order. In a timetable nothing takes ticks,
        and an op does not begin before the tick of its step."""
        todo = {key: list(ops) for key, ops in self.channels.items()}
        can_go_on = dict.fromkeys(todo, 0)  # tick, by channel
        seen: dict[Any, list[int]] = defaultdict(list)  # ticks of the raises of a counter
        free: dict[Any, int] = defaultdict(int)
        left: dict[Any, int] = defaultdict(int)
        self.queues: dict[Any, list[int]] = defaultdict(list)
        batch = 0
        while any(todo.values()):
            begins = {key: tick for key, ops in todo.items() if ops and (tick := self.tick_of(ops[0], can_go_on[key], seen)) is not None}
            assert begins, "deadlock"
            tick = min(begins.values())
            reached = []
            for key in (key for key, at in begins.items() if at == tick):
                row = 1
                while row < len(todo[key]) and self.goes_on(todo[key][row - 1]) and self.goes_on(todo[key][row]) and (
                        not self.timetable or todo[key][row].step <= tick):
                    row += 1
                reached += [todo[key].pop(0) for _ in range(row)]
            reached.sort(key=lambda op: op.op_id)
            leaves = self.take(self.in_turns(reached), tick, free)
            for op in reached:
                self.level[op.op_id] = batch
                key = op.rank, op.channel
                if (counter := self.counter_raised(op)) is not None:
                    seen[counter].append(max([leaves[op.op_id], *seen[counter][-1:]]))
                if op.kind == Kind.put:
                    left[key] = max(left[key], leaves[op.op_id])
                can_go_on[key] = {Kind.get: leaves[op.op_id], Kind.flush: max(tick, left[key])}.get(op.kind, tick)
            batch += 1

    def tick_of(self, op: Any, can_go_on: int, seen: dict[Any, list[int]]) -> int | None:
        if self.timetable:
            can_go_on = max(can_go_on, op.step)
        if op.kind != Kind.wait or op.value <= 0:
            return can_go_on
        raised = seen[op.rank, op.peer, op.sig_channel]
        return max(can_go_on, raised[op.value - 1]) if len(raised) >= op.value else None

    def in_turns(self, batch: list[Any]) -> list[Any]:
        given: set[Any] = set()  # (link, turn)
        turns = {}
        for op in batch:
            links = self.links(op) if op.kind in MOVERS else []
            turn = 0
            while any((link, turn) in given for link in links):
                turn += 1
            given |= {(link, turn) for link in links}
            turns[op.op_id] = turn
        return sorted(batch, key=lambda op: (turns[op.op_id], op.op_id))

    def take(self, ops: list[Any], tick: int, free: dict[Any, int]) -> dict[int, int]:
        leaves = {}
        for op in ops:
            leaves[op.op_id] = tick
            links = self.links(op) if op.kind in MOVERS else []
            for link in links:
                self.queues[link].append(op.op_id)
            if op.kind in (Kind.put, Kind.get) and links[0][0].startswith("nic") and not self.timetable:
                leaves[op.op_id] = max([tick, *(free[link] for link in links)]) + self.nominal_bytes[op.op_id]
                free.update(dict.fromkeys(links, leaves[op.op_id]))
        return leaves

    # links

    def between(self, src: int, dst: int, channel: int) -> list[Any]:
        node = self.topology.node_of
        if src == dst:
            return [("local", src)]
        if node[src] == node[dst]:
            return [("fabric_tx", src), ("fabric_rx", dst)]
        nics = [int(self.topology.nic_of(rank, channel)) for rank in (src, dst)]
        return [("nic_tx", int(node[src]), nics[0]), ("nic_rx", int(node[dst]), nics[1])]

    def links(self, op: Any) -> list[Any]:
        if op.kind == Kind.put or op.kind == Kind.signal:
            return self.between(op.rank, op.peer, op.channel)
        if op.kind == Kind.get:
            return self.between(op.peer, op.rank, op.channel)
        return [("local", op.rank)]

    def rate(self, link: Any) -> int:
        t = self.topology
        if link[0] == "local":
            return int(t.local_bytes_per_s[link[1]])
        if link[0].startswith("fabric"):
            return int(t.fabric_bytes_per_s[link[1]])
        return int(t.nic_bytes_per_s[link[1] * t.nics_per_node + link[2]])

    def latency(self, links: list[Any]) -> int:
        total = 0
        for link in links:
            if link[0] != "local":
                whole = int(self.topology.fabric_latency_ps[link[1]] if link[0].startswith("fabric")
                            else self.topology.nic_latency_ps[link[1] * self.topology.nics_per_node + link[2]])  # fmt: skip
                total += whole // 2 if link[0].endswith("rx") else whole - whole // 2
        return total + self.between_switches(links)

    def between_switches(self, links: list[Any]) -> int:
        """Of the lowest tier with a switch above both NICs."""
        if self.topology.network is None or not links or not links[0][0].startswith("nic"):
            return 0
        (_, node, nic), (_, other, other_nic) = links
        for tier in self.topology.network.tiers:
            if tier.group_of[node] == tier.group_of[other] and (nic == other_nic or not tier.per_rail):
                return int(tier.latency_ps)
        raise AssertionError("no switch above both")

    def duration(self, op: Any, link: Any) -> int:
        work = self.op_bytes[op.op_id] * (len(op.sources) if op.kind == Kind.reduce else 1)
        held = self.alpha if work and link[0] != "local" else 0
        if link in self.changes:
            return self.through(self.now + held, work * 10**12, [(0, self.rate(link)), *self.changes[link]]) - self.now
        return held + (0 if self.rate(link) >= 2**62 else -(-work * 10**12 // self.rate(link)))

    @staticmethod
    def through(now: int, left: int, rates: list[tuple[int, int]]) -> int:
        """When `left` bytes times 10^12 have passed, from `now` on."""
        for (begin, rate), (end, _) in zip(rates, [*rates[1:], (None, 0)], strict=True):
            if end is not None and end <= now:
                continue
            now = max(now, begin)
            passes = left if end is None else min(left, (end - now) * rate)
            if passes == left:
                return now + (-(-left // rate) if left else 0)
            left, now = left - passes, end
        raise AssertionError("nothing passes any more")

    # events

    def at(self, time: int, what: Any, *args: Any) -> None:
        self.serial += 1
        heapq.heappush(self.heap, (time, self.serial, what, args))

    def prepare(self) -> None:
        self.begin: dict[int, int] = {}
        self.end: dict[int, int] = {}
        self.start: dict[int, int] = {}
        self.leave: dict[int, int] = {}
        self.arrive: dict[int, int] = {}
        self.position = dict.fromkeys(self.channels, 0)
        self.issued: set[int] = set()
        self.busy: set[Any] = set()
        self.gone: set[int] = set()
        self.landed: set[int] = set()
        self.count: dict[Any, int] = defaultdict(int)
        self.sleeping: dict[Any, list[tuple[Any, Any]]] = defaultdict(list)  # (condition, op) of channels, by what they wait for
        self.finish = list(self.late)

    def run(self) -> None:
        self.prepare()
        self.heap: list[Any] = []
        self.serial = 0
        for rank, channel in self.channels:
            self.at(self.late[rank], self.next_op, (rank, channel))
        while self.heap:
            self.now, _, what, args = heapq.heappop(self.heap)
            what(*args)
        assert len(self.end) == len(self.ops) and not any(self.sleeping.values())

    def next_op(self, key: Any) -> None:
        if self.position[key] == len(self.channels[key]):
            return
        op = self.channels[key][self.position[key]]
        self.begin[op.op_id] = self.now
        getattr(self, "do_" + op.kind.name)(op)

    def done(self, op: Any) -> None:
        key = (op.rank, op.channel)
        self.end[op.op_id] = self.now
        self.finish[op.rank] = max(self.finish[op.rank], self.now)
        self.position[key] += 1
        self.next_op(key)

    def when(self, condition: Any, op: Any, key: Any) -> None:
        if condition():
            self.done(op)
        else:
            self.sleeping[key].append((condition, op))

    def wake(self, key: Any) -> None:
        asked = [(condition(), condition, op) for condition, op in self.sleeping.pop(key, ())]
        self.sleeping[key] = [(condition, op) for ready, condition, op in asked if not ready]
        for ready, _, op in asked:
            if ready:
                self.done(op)

    def do_put(self, op: Any) -> None:
        self.at(max(self.now, self.late[op.peer]), self.issue, op)
        if op.peer != op.rank:
            self.done(op)

    def do_get(self, op: Any) -> None:
        asked = self.now + self.latency(self.between(op.rank, op.peer, op.channel))
        self.at(max(asked, self.late[op.peer]), self.issue, op)

    def do_copy(self, op: Any) -> None:
        self.at(max([self.now] + [self.late[rank] for rank, _, _ in op.sources]), self.issue, op)

    do_reduce = do_copy

    def do_signal(self, op: Any) -> None:
        self.at(self.now + self.latency(self.links(op)), self.land, op)
        self.done(op)

    def do_wait(self, op: Any) -> None:
        counter = (op.rank, op.peer, op.sig_channel)
        self.when(lambda: self.count[counter] >= op.value, op, counter)

    def do_flush(self, op: Any) -> None:
        mine = [p.op_id for p in self.channels[op.rank, op.channel]
                if p.kind == Kind.put and p.op_id < op.op_id and op.peer in (-1, p.peer)]  # fmt: skip
        self.when(lambda: all(p in self.gone for p in mine), op, ("gone", op.rank, op.channel))

    def do_compute(self, op: Any) -> None:
        self.at(self.now + self.compute(op.rank, op.arg), self.done, op)

    def issue(self, op: Any) -> None:
        self.issued.add(op.op_id)
        self.serve(op.op_id)

    def serve(self, op_id: int) -> None:
        """Starts the op if it was issued, is first in the queue of each of its links, and all of them are idle."""
        op = self.ops[op_id]
        links = self.links(op)
        if op_id not in self.issued or any(link in self.busy or self.queues[link][0] != op_id for link in links):
            return
        self.start[op_id] = self.now
        durations = [self.duration(op, link) for link in links]
        for link, duration in zip(links, durations, strict=True):
            self.busy.add(link)
            self.at(self.now + duration, self.release, link)
        self.at(self.now + max(durations), self.left, op)

    def release(self, link: Any) -> None:
        self.busy.remove(link)
        self.queues[link].pop(0)
        if self.queues[link]:
            self.serve(self.queues[link][0])

    def left(self, op: Any) -> None:
        self.leave[op.op_id] = self.now
        self.gone.add(op.op_id)
        self.finish[op.rank] = max(self.finish[op.rank], self.now)
        self.at(self.now + self.latency(self.links(op)), self.land, op)
        self.wake(("gone", op.rank, op.channel))

    def land(self, op: Any) -> None:
        self.landed.add(op.op_id)
        if self.counter_raised(op):
            counter = self.counter_raised(op)
            order = self.raises[counter]
            while self.count[counter] < len(order) and order[self.count[counter]] in self.landed:
                self.arrive[order[self.count[counter]]] = self.now
                self.count[counter] += 1
            self.wake(counter)
        else:
            self.arrive[op.op_id] = self.now
        if op.kind not in (Kind.put, Kind.signal) or (op.kind == Kind.put and op.peer == op.rank):
            self.done(op)
