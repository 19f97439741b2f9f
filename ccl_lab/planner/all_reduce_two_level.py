"""Two-level all_reduce on shared memory: sums inside groups, then across them, so that no rank deals with all others. For many ranks.

    rank = group * g + member; chunk = (channel, member, group)
    step 0   member j adds part j of its group             g sources
    step 1   group a's member j adds chunk (j, a)          k sources: member j of every group
    step 2   … and puts it to member j of every group      k-1 puts
    step 3   member j puts part j to its group             g-1 puts

Invariants: part j of a buffer is read only by member j of its group before that member writes it; chunk (j, a) of a partial sum
only by group a's member j. Ranks beyond g * k are read by their group and written to, and do nothing else.
"""

from __future__ import annotations

import numpy as np

from ..ir import Builder
from .cost import groups
from .problem import Problem


def two_level(problem: Problem) -> Builder:
    """Groups of g = floor(sqrt(n)) ranks, k = floor(n/g) groups.

    Steps: 4 (3 where g is 1). Peers a rank deals with: k-1 + g-1, one more where n > gk, instead of n-1. Bytes read from peers and put
    to them, per rank: 2(gk-1)/(gk) of the message, 2/g more where the group has such a rank. Any n, no scratch, one node.
    Source: Hashmi et al., IPDPS 2018; Katevenis et al., "A framework for hierarchical single-copy MPI collectives", CLUSTER 2022.
    """
    size, count = groups(problem.n)
    channels = problem.slices(1, problem.nbytes / problem.n)
    b = problem.builder("two_level", channels=channels, parts=channels * size * count)
    level = _Level(b, problem.n, size, count, channels)
    level.reduce_in_groups()
    level.reduce_across()
    level.spread_across()
    level.spread_in_groups()
    return b


class _Level:
    """Rows of (channel, group, member), and the four steps."""

    def __init__(self, b: Builder, n: int, size: int, count: int, channels: int) -> None:
        self.b, self.n, self.size, self.count = b, n, size, count
        self.channel, self.group, self.member = (
            x.ravel() for x in np.meshgrid(np.arange(channels), np.arange(count), np.arange(size), indexing="ij"))
        self.rank = self.group * size + self.member
        self.begin = (self.channel * size + self.member) * count
        self.mine = self.begin + self.group
        # Fewer than there are groups, so a group has at most one.
        self.extra = size * count + self.group
        self.has_extra = self.extra < n

    def reduce_in_groups(self) -> None:
        b = self.b
        b.step = 0
        for rows, extra in ((~self.has_extra, False), (self.has_extra, True)):
            if not rows.any():
                continue
            part = slice(self.begin[rows], self.begin[rows] + self.count)
            lenders = [self.group[rows] * self.size + member for member in range(self.size)] + ([self.extra[rows]] if extra else [])
            sources = [b.input[part].at(rank) for rank in lenders]
            if len(sources) == 1:
                b.copy(rank=self.rank[rows], src=b.input[part], dst=b.output[part], channel=self.channel[rows])
            else:
                b.reduce(rank=self.rank[rows], dst=b.output[part], srcs=sources, channel=self.channel[rows])

    def _across(self, distance: int) -> np.ndarray:
        """The same member of the group `distance` further on."""
        return (self.group + distance) % self.count * self.size + self.member

    def reduce_across(self) -> None:
        b = self.b
        for distance in range(1, self.count):
            b.signal(rank=self.rank, peer=self._across(distance), channel=self.channel)
        b.step = 1
        for distance in range(1, self.count):
            b.wait(rank=self.rank, peer=self._across(-distance), channel=self.channel)
        sources = [b.output[self.mine].at(group * self.size + self.member) for group in range(self.count)]
        b.reduce(rank=self.rank, dst=b.output[self.mine], srcs=sources, channel=self.channel)

    def spread_across(self) -> None:
        b = self.b
        b.step = 2
        done = b.output[self.mine]
        for distance in range(1, self.count):
            b.put(rank=self.rank, peer=self._across(distance), src=done, dst=done, channel=self.channel)
        for distance in range(1, self.count):
            b.wait(rank=self.rank, peer=self._across(-distance), channel=self.channel)

    def spread_in_groups(self) -> None:
        b = self.b
        b.step = 3
        part, first = slice(self.begin, self.begin + self.count), self.group * self.size
        for distance in range(1, self.size):
            b.put(rank=self.rank, peer=first + (self.member + distance) % self.size, src=b.output[part], dst=b.output[part],
                  channel=self.channel)
        rows = self.has_extra
        lent = slice(self.begin[rows], self.begin[rows] + self.count)
        if rows.any():
            b.put(rank=self.rank[rows], peer=self.extra[rows], src=b.output[lent], dst=b.output[lent], channel=self.channel[rows])
        for distance in range(1, self.size):
            b.wait(rank=self.rank, peer=first + (self.member - distance) % self.size, channel=self.channel)
        if rows.any():
            b.wait(rank=self.extra[rows], peer=self.rank[rows], channel=self.channel[rows])
