"""All_reduce around nodes that lost NICs, without a row per op: lanes one by one, sweep by sweep, and what nodes do inside.

    node phase       inside each node, once for each kind of node          exact.py
    lanes            rings, reduce-scatters, rounds of the meetings        meeting_lanes.py; with several such nodes meeting_rounds.py
    inside nodes     sums that go to another lane, results that go round   meeting_fabrics.py

Every lane has NICs and ranks to itself, so lanes wait for one another inside nodes alone. Batches of all lanes are found first: they order
what a node's fabric serves. Then times are found lane by lane, as soon as what a lane needs from others in its nodes is there.

Is: who does what when. Is not: arithmetic of NICs. Invariant: the times are those of exact.py on the unrolled schedule, to the picosecond,
or Inapplicable is raised.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import Inapplicable
from ..ir import Kind, Meetings
from ..topo import Topology, duration_ps
from .changes import NONE, Changes
from .exact import core_times
from .hierarchy import _classes
from .meeting_fabrics import Fabrics
from .meeting_lanes import Batches, Cost, Times
from .meeting_rounds import RoundBatches, RoundTimes

I64 = npt.NDArray[np.int64]

_MOST_KINDS = 64  # a table of chunks for each
_DTYPES = {1: "int8", 2: "float16", 4: "float32", 8: "float64"}


class Inside(NamedTuple):
    """What the node phase leaves behind: [classes, jobs, slices] begin_ps, begin_batch; the others [classes, ranks of a node]."""

    class_of: I64
    begin_ps: I64
    begin_batch: I64
    memory_ps: I64
    tx_ps: I64
    rx_ps: I64
    end_ps: I64


class Lanes:
    """Columns of one evaluation. Nodes are numbered (*members, *outsiders): `node` [nodes]; grid [nodes, ranks of a node].

    local: [slices, nodes], local index of the rank that crosses; apart_local [lanes apart, members].
    """

    def __init__(self, part: Meetings, topology: Topology, count: int, itemsize: int, late_ps: I64, alpha_ps: int, target: int) -> None:
        self.target = target
        self.part, self.topology, self.count, self.itemsize, self.alpha_ps = part, topology, count, itemsize, alpha_ps
        self.node = np.append(part.members, part.outsiders)
        self.grid = topology.by_node(topology.local_of).reshape(topology.n_nodes, -1)[self.node]
        self.late = late_ps[self.grid]
        self.m, self.n, self.slices, self.group = len(part.members), len(self.node), len(part.channel), self.grid.shape[1]
        self.local, self.apart_local = topology.local_of[part.rank].astype(np.int64), topology.local_of[part.apart_rank].astype(np.int64)
        self.has_ring = len(part.ring) > 0
        self.inside = self._node_phase()

    def _node_phase(self) -> Inside:
        part, topology, m = self.part, self.topology, self.m
        meets = self.local.T.copy()
        away = np.flatnonzero(part.apart_of >= 0)
        meets[:m, away] = self.apart_local[part.apart_of[away]].T
        rings = self.local.T if self.has_ring else meets[:, :0]
        rates = [column[self.grid] for column in (topology.fabric_bytes_per_s, topology.fabric_latency_ps, topology.local_bytes_per_s)]
        class_of, example = _classes([rings, meets, *rates, self.late])
        found: dict[str, list[Any]] = {name: [] for name in Inside._fields[1:]}
        assert part.node_phase is not None
        for node in example:
            schedule = part.node_phase(rings[node], meets[node])
            layout, ops = schedule.layout(nbytes=self.count * self.itemsize, dtype=_DTYPES[self.itemsize]), schedule.ops
            one = topology.subset(self.grid[node])
            times = core_times(schedule, one, layout, self.late[node], np.zeros(len(ops), np.int64), self.alpha_ps)
            signals, puts, adds = (np.flatnonzero(ops.kind == kind) for kind in (Kind.signal, Kind.put, Kind.reduce))
            found["begin_ps"].append(times.arrive_ps[signals].reshape(-1, self.slices))
            found["begin_batch"].append(times.level[signals].astype(np.int64).reshape(-1, self.slices))
            free, memory, end = np.zeros(len(one.links), np.int64), np.zeros(self.group, np.int64), self.late[node].copy()
            for side in (0, 1):
                link = times.links[puts, side]
                busy = [duration_ps(int(each), int(rate)) for each, rate in
                        zip(times.nbytes[puts], one.links.bytes_per_s[link], strict=True)]
                held = np.where(times.nbytes[puts] > 0, self.alpha_ps, 0)
                np.maximum.at(free, link, times.start_ps[puts] + held + np.array(busy, np.int64))
            np.maximum.at(memory, ops.rank[adds], times.end_ps[adds])
            np.maximum.at(end, ops.rank, times.end_ps)
            np.maximum.at(end, ops.rank[puts], times.leave_ps[puts])
            for name, each in zip(Inside._fields[3:], (memory, free[: self.group], free[self.group : 2 * self.group], end), strict=True):
                found[name].append(each)
        return Inside(class_of, **{name: np.stack(each) for name, each in found.items()})

    def begins(self, job: int, s: int) -> tuple[I64, I64]:
        """(ps, batch) by node at which a slice was handed to its lane; job 0: the ring (where there is one), -1: the meeting."""
        found = self.inside
        return found.begin_ps[found.class_of, job, s], found.begin_batch[found.class_of, job, s]

    def bounds(self, job: int, s: int) -> I64:
        """Parts at which the chunks of a slice begin, and its end."""
        lo, hi, chunks = int(self.part.lo[job, s]), int(self.part.hi[job, s]), len(self.part.ring) if self.has_ring and job == 0 else self.m
        return lo + (hi - lo) * np.arange(chunks + 1) // chunks

    def ticks(self, job: int, s: int) -> I64:
        """Of each chunk, as keys of batches."""
        return np.diff(self.bounds(job, s)) * (-(-self.count // self.part.parts) * self.itemsize) << 20

    def nbytes(self, job: int, s: int) -> I64:
        """Of each chunk."""
        return np.diff(self.bounds(job, s) * self.count // self.part.parts) * self.itemsize

    def whole(self, job: int, s: int) -> int:
        """Bytes of a slice."""
        return int(self.nbytes(job, s).sum())

    def cost(self, job: int, s: int, lane: int = -1) -> Cost:
        """What a slice's chunks take on its own lane, or on one of members."""
        part, topology = self.part, self.topology
        own = part.rank[s], part.nic[s], part.channel[s]
        rank, nic, channel = own if lane < 0 else (part.apart_rank[lane], part.apart_nic[lane], part.apart_channel[lane])
        node, links, first = self.node[: len(rank)], topology.links, 3 * topology.n_ranks
        tx, rx = (first + (side * topology.n_nodes + node) * topology.nics_per_node + nic for side in (0, 1))
        memory, memory_kind = np.unique(topology.local_bytes_per_s[rank], return_inverse=True)
        rates, kind = np.unique(np.concatenate([links.bytes_per_s[tx], links.bytes_per_s[rx]]), return_inverse=True)
        sizes, which = np.unique(self.nbytes(job, s), return_inverse=True)

        def table(rates: I64, times: int, held: int) -> I64:
            each = [[(held if size else 0) + duration_ps(times * int(size), int(rate)) for size in sizes] for rate in rates]
            return np.array(each, np.int64)[:, which]

        if max(len(memory), len(rates)) > _MOST_KINDS:
            raise Inapplicable("NICs, or memories, have too many different rates")
        return Cost(table(memory, 2, 0), table(rates, 1, self.alpha_ps), memory_kind, kind[: len(node)], kind[len(node) :],
                    links.latency_ps[tx], links.latency_ps[rx],
                    lambda source, to: topology.tier_latency_ps(rank[source], rank[to], channel))

    def fresh(self, s: int, lane: int = -1) -> Times:
        """A lane before anything crosses on it."""
        local = self.local[s] if lane < 0 else self.apart_local[lane]
        at = np.arange(len(local))
        memory = self.inside.memory_ps[self.inside.class_of[at], local]
        return Times(self.late[at, local], memory, self.target)


def meeting_finish(part: Meetings, topology: Topology, count: int, itemsize: int, late_ps: I64, alpha_ps: int,
                   changes: Changes = NONE, *, merge: bool = True, target: int = 0) -> tuple[I64, dict[str, Any]]:  # fmt: skip
    """When each rank ends, i64[n_ranks], and counts: lanes, messages between nodes.

    A message of `count` elements. merge: as of others, nothing here is merged; target: code for one of _core.vector_targets(), for tests.
    Raises Inapplicable, which names what does not fit. Cost: some 0.7 ns a message, and 6 rows of a number a node for each put inside them.
    """
    if part.misfit:
        raise Inapplicable(part.misfit)
    if changes:
        raise Inapplicable("rates that change in time")
    if count == 0:
        raise Inapplicable("messages between nodes are empty")
    return Evaluation(Lanes(part, topology, count, itemsize, late_ps, alpha_ps, target)).run()


class Evaluation:
    """Batches of all lanes, then times of all."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes, self.part, self.m = lanes, lanes.part, lanes.m
        self.n = n = lanes.n
        slices = lanes.slices
        self.every = np.arange(self.m)
        self.ring_batch = np.full((slices, n), -1, np.int64)
        self.end_batch = np.full((slices, n), -1, np.int64)
        self.over_batch = np.full((slices, n), -1, np.int64)
        self.orders: list[Any] = [None] * slices
        self.puts: dict[tuple[int, int], list[int]] = {}
        self.over: dict[int, int] = {}
        self.known: dict[Any, Any] = {}
        self.finish = lanes.inside.end_ps[lanes.inside.class_of].copy()

    def run(self) -> tuple[I64, dict[str, Any]]:
        """What `meeting_finish` returns."""
        lanes = self.lanes
        jobs = range(len(self.part.lo))
        longest = max(int(lanes.ticks(job, s).max()) for job in jobs for s in range(lanes.slices)) >> 20
        if longest * self.n * (lanes.slices + 8) >= 1 << 42:
            raise Inapplicable("nominal time does not fit")
        for lane in range(len(self.part.apart_channel)):
            self._apart_batches(lane)
        for s in range(lanes.slices):
            self._batches(s)
        self._hand()
        for lane in range(len(self.part.apart_channel)):
            self._apart_times(lane)
        times = [self._ring_times(s) for s in range(lanes.slices)]
        todo = list(range(lanes.slices))
        while todo:
            self.fabrics.advance()
            ready = [s for s in todo if self.part.apart_of[s] < 0 or (self._handed(s) >= 0).all()]
            if not ready:
                raise Inapplicable("lanes wait for one another inside nodes in different orders")
            for s in ready:
                self._times(s, times[s])
                todo.remove(s)
        self.fabrics.advance()
        return self._ends()

    # -- batches

    def _apart_batches(self, lane: int) -> None:
        lanes, found = self.lanes, Batches(self.m, self.lanes.target)
        mine = np.flatnonzero(self.part.apart_of == lane).tolist()
        for i, s in enumerate(mine):
            if i == 0:
                found.own(self.every, lanes.begins(-1, s)[1][: self.m])
            ticks = lanes.ticks(-1, s)
            came = found.first(self.every, ticks, 1)
            if i > 0:
                self.over_batch[mine[i - 1], : self.m] = found.batch
            found.sweep(self.every, came, ticks, 1, self.m - 1, self.m - 1)
            if i + 1 < len(mine):
                found.own(self.every, lanes.begins(-1, mine[i + 1])[1][: self.m])
            else:
                self.over_batch[s, : self.m] = found.batch + 1

    def _batches(self, s: int) -> None:
        """Those of a slice's lane; slices of which all that matters is equal have the same."""
        lanes, part, known = self.lanes, self.part, self.known
        of_ring = [lanes.ticks(0, s), lanes.begins(0, s)[1]] if lanes.has_ring else []
        ring = tuple(each.tobytes() for each in of_ring)
        if ring not in known:
            known[ring] = self._ring_batches(*of_ring)
        own, through = bool(part.apart_of[s] < 0), bool(part.through[s])
        ticks, level = lanes.ticks(-1, s), lanes.begins(-1, s)[1]
        key = (*ring, ticks.tobytes(), level.tobytes(), self.over_batch[s].tobytes(), own, through)
        if key not in known:
            known[key] = self._meeting_batches(known[ring].copy(), ticks, level, self.over_batch[s], own, through)
        self.end_batch[s], self.orders[s] = known[key]
        if lanes.has_ring:
            self.ring_batch[s] = known[ring].batch

    def _ring_batches(self, ticks: I64 | None = None, level: I64 | None = None) -> Batches:
        """Up to what goes round the nodes after the ring; where there is none, none yet."""
        found, ring, n = Batches(self.n, self.lanes.target), self.part.ring, self.n
        if ticks is not None and level is not None:
            found.own(ring, level[ring])
            came = found.first(ring, ticks, 0)
            found.sweep(ring, came, ticks, 0, 2 * n - 2, n - 1)
            found.batch += 1
        return found

    def _meeting_batches(self, found: Batches, ticks: I64, level: I64, over: I64, own: bool, through: bool) -> tuple[I64, Any]:
        """(batches in which results go round the nodes, orders that `_times` asks for)."""
        m, every = self.m, self.every
        if self.n > m + 1:
            orders = RoundBatches(found, ticks, self.n - m).run(level, over[:m])
            found.batch += 1
            return found.batch, orders
        if own:
            found.own(every, level[:m])
        if not through:
            found.own(np.array([m]), level[m:])
        raws, came, done = None, None, 0
        if own and not through:
            came, seen, raws = found.hops_and_raws(ticks)
            done = len(raws.early) - 1
        elif own:
            came = found.first(every, ticks, 1)
        elif not through:
            seen = found.row(ticks)
        if came is not None:
            found.sweep(every, came, ticks, 1 + done, m - 1 - done, m - 1)
        if through:
            if not own:
                found.own(every, over[:m])
            order, seen = found.partials(ticks)
            found.outsider_adds(seen, int(level[m]))
            found.seen(every, found.row(ticks))
            found.rounds(ticks, back=False)
        else:
            found.seen(every, seen)
            if not own:
                found.own(every, over[:m])
            found.batch[:m] += 1
            order = found.rounds(ticks, back=True)
            found.batch[m] += 1
        found.batch[: m - 1] += 1
        return found.batch, (raws, order)

    # -- inside nodes

    def _hand(self) -> None:
        """Tells the puts inside nodes, in the order of their ops."""
        lanes, part, every = self.lanes, self.part, np.arange(self.lanes.slices)
        found = lanes.inside
        self.fabrics = Fabrics(lanes.topology, lanes.grid, found.tx_ps[found.class_of], found.rx_ps[found.class_of], lanes.late,
                               lanes.alpha_ps)

        def go_round(batch: I64, job: int, slices: I64) -> None:
            for distance in range(1, lanes.group):
                for s in slices.tolist():
                    mate = (lanes.local[s] + distance) % lanes.group
                    self.puts.setdefault((job, s), []).append(self.fabrics.put(batch[s], lanes.local[s], mate, lanes.whole(job, s)))

        if lanes.has_ring:
            go_round(self.ring_batch, 0, every)
        turn = [int((part.apart_of[:s] == part.apart_of[s]).sum()) for s in every]
        for s in sorted(np.flatnonzero(part.apart_of >= 0).tolist(), key=lambda s: (turn[s], s)):
            others = np.zeros(self.n - self.m, np.int64)
            source = np.append(lanes.apart_local[part.apart_of[s]], others)
            self.over[s] = self.fabrics.put(self.over_batch[s], source, lanes.local[s], np.append(lanes.nbytes(-1, s), others))
        for through in (False, True):
            go_round(self.end_batch, -1, every[part.through == through])
        self.fabrics.close()

    def _goes_round(self, job: int, s: int, clock: I64) -> None:
        """A slice's lane hands its result to the other ranks of each node."""
        for row in self.puts[job, s]:
            self.fabrics.ready_ps[row] = clock

    def _handed(self, s: int) -> I64:
        """When what members added on a lane apart is there, by member."""
        return self.fabrics.seen_ps[self.over[s], : self.m]

    # -- times

    def _apart_times(self, lane: int) -> None:
        lanes, m, every = self.lanes, self.m, self.every
        found, mine = lanes.fresh(0, lane), np.flatnonzero(self.part.apart_of == lane).tolist()
        for i, s in enumerate(mine):
            if i == 0:
                found.own(every, lanes.begins(-1, s)[0][:m])
            found.cost = lanes.cost(-1, s, lane)
            came = found.first(every, 1)
            found.sweep(every, came, 1, m - 1, m - 1)
            if i + 1 < len(mine):
                found.own(every, lanes.begins(-1, mine[i + 1])[0][:m])
            self.fabrics.ready_ps[self.over[s], :m] = found.clock
        self._raise(every, lanes.apart_local[lane], np.maximum(found.clock, found.left))

    def _ring_times(self, s: int) -> Times:
        lanes, part, n = self.lanes, self.part, self.n
        found = lanes.fresh(s)
        if lanes.has_ring:
            found.own(part.ring, lanes.begins(0, s)[0][part.ring])
            found.cost = lanes.cost(0, s)
            came = found.first(part.ring, 0)
            found.sweep(part.ring, came, 0, 2 * n - 2, n - 1)
            self._goes_round(0, s, found.clock)
        return found

    def _times(self, s: int, found: Times) -> None:
        lanes, part, m, every = self.lanes, self.part, self.m, self.every
        own, through, begin = part.apart_of[s] < 0, bool(part.through[s]), lanes.begins(-1, s)[0]
        found.cost = lanes.cost(-1, s)
        if self.n > m + 1:
            RoundTimes(found, self.orders[s], self.n - m).run(begin, self._handed(s))
            self._end(s, found)
            return
        raws, order = self.orders[s]
        came, done = None, 0
        if own:
            found.own(every, begin[:m])
        if not through:
            found.own(np.array([m]), begin[m:])
        if own and not through:
            came, seen = found.hops_and_raws(raws)
            done = len(raws.early) - 1
        elif own:
            came = found.first(every, 1)
        elif not through:
            seen = found.row()
        if came is not None:
            found.sweep(every, came, 1 + done, m - 1 - done, m - 1)
        if not own and through:
            found.own(every, self._handed(s))
        if through:
            found.outsider_adds(found.to_outsider(order), int(begin[m]))
            found.own(every, found.row())
            found.rounds(order[:0])
        else:
            if not own:
                found.own(every, self._handed(s))
            found.add(every, every, seen)
            found.rounds(order)
        self._end(s, found)

    # -- ends

    def _end(self, s: int, found: Times) -> None:
        self._goes_round(-1, s, found.clock)
        self._raise(np.arange(self.n), self.lanes.local[s], np.maximum(found.clock, found.left))

    def _raise(self, node: I64, local: I64, ps: I64) -> None:
        self.finish[node, local] = np.maximum(self.finish[node, local], ps)

    def _ends(self) -> tuple[I64, dict[str, Any]]:
        self.fabrics.raise_to(self.finish)
        out = np.empty(self.lanes.topology.n_ranks, np.int64)
        out[self.lanes.grid] = self.finish
        m, n, slices = self.m, self.n, self.lanes.slices
        messages = slices * ((2 * n * (n - 1) if self.lanes.has_ring else 0) + m * (m - 1) * 2 + 2 * m * (n - m))
        return out, {"lanes": slices, "messages": messages}
