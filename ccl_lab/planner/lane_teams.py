"""What all_reduce over lanes is made of: sums inside a node, and rings over all nodes.

    inside a node   every rank puts its part to the rank that crosses with it, which adds all of it, or chunk by chunk where rings come by
                    (decision 21); at the end that rank hands the result round
    Ring            a ring all_reduce among all nodes, slice by slice, each slice on a lane; a Meeting (lane_meeting) is the other kind

Is: the ops. Is not: the choice of shares and lanes (all_reduce_lanes). Invariants: a region of the message belongs to one slice; chunks
are equal to within a part; a signal inside a node has a number of its own per slice and lane, so that no wait is ended by another's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..ir import Buffer, Builder, Ref
from ..topo import Topology
from .degraded import I64, Lanes
from .direct import sources


class Role(NamedTuple):
    """What a slice uses for one job: channel i64[S], rank i64[S, nodes of the job]."""

    channel: I64
    rank: I64

    @classmethod
    def of(cls, lanes: Lanes, rows: I64, nodes: tuple[int, ...]) -> Role:
        """Rows of `lanes`, one per slice; the columns of `nodes`."""
        at = [lanes.nodes.index(node) for node in nodes]
        return cls(lanes.channel[rows], lanes.rank[rows][:, at])


@dataclass
class Frame:
    """The builder with the places of things: scratch blocks, the channel for work inside a node, numbers for signals in it."""

    b: Builder
    topology: Topology
    local: int
    group: int = 1
    ids: Iterator[int] = field(default_factory=lambda: iter(()))
    scatter_id: int = 0
    gather_id: int = 0
    arrivals: list[tuple[I64, I64]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.group = self.topology.gpus_per_node
        self.alone = self.topology.ranks_per_node[self.topology.node_of] == 1
        if self.group > 1:
            self.scatter_id, self.gather_id = next(self.ids), next(self.ids)

    def numbers(self, count: int) -> I64:
        """Signal numbers for use inside a node, one per slice."""
        return np.array([next(self.ids) for _ in range(count)], np.int64)

    def own(self, rank: I64, lo: I64, hi: I64) -> Ref:
        """What the node of `rank` contributes: INPUT of the only rank, or the sum that lies in OUTPUT."""
        return Ref(np.where(self.alone[rank], int(Buffer.input), int(Buffer.output)), lo, hi - lo)

    def landing(self, lo: I64, hi: I64, block: int = 0) -> Ref:
        """Scratch for what comes from other nodes: block 0 of a ring, 1 + o of outsider o."""
        base = (self.group - 1 + block) * self.b.parts
        return Ref(int(Buffer.scratch), base + lo, hi - lo)

    # -- inside a node

    def _mates(self, rank: I64) -> Iterator[tuple[I64, I64]]:
        """(rows, mate) for every other rank of the node of each row's rank."""
        topology = self.topology
        size, node, local = topology.ranks_per_node[topology.node_of[rank]], topology.node_of[rank], topology.local_of[rank]
        table = self._table()
        for distance in range(1, self.group):
            rows = np.flatnonzero(distance < size)
            yield rows, table[node[rows], (local[rows] + distance) % size[rows]]

    def _table(self) -> I64:
        found = getattr(self, "_ranks", None)
        if found is None:
            found = np.full((self.topology.n_nodes, self.group), -1, np.int64)
            found[self.topology.node_of, self.topology.local_of] = np.arange(self.topology.n_ranks)
            self._ranks = found
        return found

    def scatter(self, rank: I64, lo: I64, hi: I64, number: I64 | None = None) -> None:
        """Everyone in the node puts its [lo, hi) to `rank`, and raises `number` there, or that for what is added at once."""
        number = np.full(len(rank), self.scatter_id) if number is None else number
        local = self.topology.local_of
        for rows, mate in self._mates(rank):
            slot = local[mate] - (local[mate] > local[rank[rows]])
            base = slot.astype(np.int64) * self.b.parts
            self.b.put(rank=mate, peer=rank[rows], src=self.b.input[lo[rows] : hi[rows]], channel=self.local, sig_channel=number[rows],
                       dst=self.b.scratch[base + lo[rows] : base + hi[rows]])

    def add(self, rank: I64, lo: I64, hi: I64, ready: I64) -> None:
        """`rank` adds what the node put, in rank order, and raises `ready` for the channel that goes on with it."""
        for row in np.flatnonzero(~self.alone[rank]):
            one = slice(row, row + 1)
            mates = self._table()[self.topology.node_of[rank[row]]]
            others = mates[(mates >= 0) & (mates != rank[row])]
            self.b.wait(rank=np.full(len(others), rank[row]), peer=others, channel=self.local, sig_channel=self.scatter_id)
            self.sum_up(rank[one], lo[one], hi[one], self.local)
            self.b.signal(rank=rank[one], peer=rank[one], channel=self.local, sig_channel=ready[one])

    def sum_up(self, rank: I64, lo: I64, hi: I64, channel: I64 | int, arrived: bool = False) -> None:
        """`rank` adds what its node has of [lo, hi), in rank order, to what has `arrived` from another one."""
        sizes, channel = self.topology.ranks_per_node[self.topology.node_of[rank]], np.broadcast_to(channel, rank.shape)
        for size in np.unique(sizes).tolist():
            rows = np.flatnonzero(sizes == size)
            first, end = lo[rows], hi[rows]
            terms = sources(self.topology.local_of[rank[rows]].astype(np.int64), size, first, first, self.b.parts, end - first)
            if arrived:
                terms.insert(0, self.landing(first, end))
            if len(terms) > 1:
                self.b.reduce(rank=rank[rows], dst=self.b.output[first:end], srcs=terms, channel=channel[rows])

    def wait_own(self, rank: I64, channel: I64, ready: I64) -> None:
        """The channel waits for the sum of the node."""
        rows = np.flatnonzero(~self.alone[rank])
        if len(rows):
            self.b.wait(rank=rank[rows], peer=rank[rows], channel=channel[rows], sig_channel=ready[rows])

    def wait_for_mates(self, rank: I64, channel: I64, number: I64) -> None:
        """The channel waits for what the node put."""
        for rows, mate in self._mates(rank):
            self.b.wait(rank=rank[rows], peer=mate, channel=channel[rows], sig_channel=number[rows])

    def hand_round(self, rank: I64, lo: I64, hi: I64, channel: I64) -> None:
        """`rank` puts the result to everyone in its node."""
        for rows, mate in self._mates(rank):
            done = self.b.output[lo[rows] : hi[rows]]
            self.b.put(rank=rank[rows], peer=mate, src=done, dst=done, channel=channel[rows], sig_channel=self.gather_id)

    def expect(self, rank: I64, times: int) -> None:
        """Each `rank` hands something round so many times."""
        self.arrivals += [(mate, rank[rows]) for rows, mate in self._mates(rank)] * times

    def arrive(self) -> None:
        """Every rank waits for all that is handed to it."""
        if self.arrivals:
            pairs = np.concatenate([np.stack(pair, axis=1) for pair in self.arrivals])
            pairs, count = np.unique(pairs, axis=0, return_counts=True)
            self.b.wait(rank=pairs[:, 0], peer=pairs[:, 1], channel=self.local, sig_channel=self.gather_id, count=count)

    def hand_over(self, rank: I64, to: I64, src: Ref, lo: I64, hi: I64, channel: I64, to_channel: I64, number: I64) -> None:
        """[lo, hi) goes from `rank` to OUTPUT of `to` in the same node, or stays where the two are one; raises `number` for `to`."""
        same, b = rank == to, self.b
        one, two = np.flatnonzero(same & (channel != to_channel)), np.flatnonzero(~same)
        if len(one):
            b.signal(rank=rank[one], peer=rank[one], channel=channel[one], sig_channel=number[one])
        if len(two):
            buf = np.broadcast_to(src.buf, rank.shape)[two]
            b.put(rank=rank[two], peer=to[two], src=Ref(buf, lo[two], (hi - lo)[two]), dst=b.output[lo[two] : hi[two]],
                  channel=channel[two], sig_channel=number[two])


def cut(lo: I64, hi: I64, count: int) -> I64:
    """i64[S, count + 1]: where `count` equal chunks of each region begin, and the end."""
    return lo[:, None] + (hi - lo)[:, None] * np.arange(count + 1) // count


def mean_length(starts: I64, depth: int) -> float:
    """Parts of `depth` chunks, of regions that `cut` cut: those of the first ones, about as many as of the others."""
    return float((starts[:, depth] - starts[:, 0]).mean())


class Ring:
    """Ring all_reduce of regions among all nodes: `waves` passes one after the other, each of `depth` chunks a step and node.

    tick: ticks of a timetable that a chunk takes, which slice by slice differ little; 0 where steps count hops. summed: nodes add theirs up
    before, as meetings need it; else each chunk is added where it is needed, to what arrived, which reads memory once less.
    """

    def __init__(self, frame: Frame, role: Role, lo: I64, hi: I64, waves: int, depth: int, summed: bool) -> None:
        self.frame, self.role, self.waves, self.depth, self.summed = frame, role, waves, depth, summed
        self.nodes, self.tick = role.rank.shape[1], 0.0
        self.starts = cut(lo, hi, waves * depth * self.nodes)
        self.ready = frame.numbers(len(lo)) if frame.group > 1 else np.zeros(len(lo), np.int64)

    def _rows(self, wave: int) -> tuple[I64, I64, I64, I64]:
        """(rank, lo, hi, slice) of everyone who crosses in a wave."""
        per = self.depth * self.nodes
        n = self.nodes
        lo, hi = np.repeat(self.starts[:, wave * per], n), np.repeat(self.starts[:, (wave + 1) * per], n)
        return self.role.rank.ravel(), lo, hi, np.repeat(np.arange(len(self.starts)), n)

    def scatter(self, wave: int) -> None:
        """Parts of this wave go to the ranks that cross."""
        rank, lo, hi, at = self._rows(wave)
        self.frame.scatter(rank, lo, hi, None if self.summed else self.ready[at])

    def add(self, wave: int) -> None:
        """Ranks that cross add them, where that is not done on lanes."""
        rank, lo, hi, at = self._rows(wave)
        if self.summed:
            self.frame.add(rank, lo, hi, self.ready[at])

    def at(self, wave: int, step: int = 0, chunk: int = 0) -> int:
        """The step of a schedule at which `chunk` chunks of `step` have come; what has come is passed on at once, and waits at the NIC."""
        hops = wave * (2 * self.nodes - 2) + step
        return round((hops * self.depth + chunk) * self.tick) if self.tick else hops

    def hops(self, wave: int) -> Iterator[float]:
        """One pass: what arrived at a step goes on at the next; then the result goes round the node. Step by step: about how many parts a
        lane carried in each."""
        frame, b, n = self.frame, self.frame.b, self.nodes
        rank, lo, hi, at = self._rows(wave)
        channel, node, each = self.role.channel[at], np.tile(np.arange(n), len(self.starts)), mean_length(self.starts, self.depth)
        ahead, behind = np.roll(self.role.rank, -1, axis=1).ravel(), np.roll(self.role.rank, 1, axis=1).ravel()
        b.step = self.at(wave)
        (frame.wait_own if self.summed else frame.wait_for_mates)(rank, channel, self.ready[at])

        def chunk(position: I64, i: int) -> tuple[I64, I64]:
            index = (wave * n + position % n) * self.depth + i
            return self.starts[at, index], self.starts[at, index + 1]

        if not self.summed:
            frame.sum_up(rank, chunk(node, 0)[0], chunk(node, self.depth - 1)[1], channel)
        for i in range(self.depth):
            first = chunk(node, i)
            b.put(rank=rank, peer=ahead, src=frame.own(rank, *first), dst=frame.landing(*first), channel=channel)
        for step in range(2 * n - 2):
            for i in range(self.depth):
                arrived = chunk(node - 1 - step, i)
                done = b.output[arrived[0] : arrived[1]]
                b.step = self.at(wave, step, i + 1)
                b.wait(rank=rank, peer=behind, channel=channel)
                if step < n - 1 and self.summed:
                    b.reduce(rank=rank, dst=done, srcs=[frame.landing(*arrived), frame.own(rank, *arrived)], channel=channel)
                elif step < n - 1:
                    frame.sum_up(rank, *arrived, channel, arrived=True)
                if step < 2 * n - 3:
                    b.step = b.step if self.tick else self.at(wave, step + 1)
                    b.put(rank=rank, peer=ahead, src=done, dst=frame.landing(*arrived) if step + 1 < n - 1 else done, channel=channel)
            yield each
        frame.hand_round(rank, lo, hi, channel)
