"""Every rank puts something to every other one at once, without a row per op.

Is: what direct algorithms have in common: their puts, and what a rank does when all has come. Is not: what is moved. Invariant: together
with the rounds of planner/direct.py it says of every op of the unrolled schedule its rank, channel, peer and bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Cuts:
    """Parts of a block that go over each channel, where rounds are a timetable.

    parts: of a block. whole: int64[channels], between nodes that lost nothing. nodes: int64[h], those that did; table:
    int64[h, ranks, channels], what counts for each of their ranks, put or got; left: float64[h + 1], what each of them has left, and last
    what others have: of two the one with less left says, of equal ones the sender. inside: int64[first channels], inside a node.
    by_node: what nodes put to those as far from them is one step; else a round is.
    """

    parts: int
    whole: np.ndarray
    nodes: np.ndarray
    table: np.ndarray
    left: np.ndarray
    inside: np.ndarray
    by_node: bool = False

    def bytes_of(self, first: np.ndarray, n: np.ndarray, count: int, itemsize: int) -> np.ndarray:
        """Bytes of `n` parts from each `first` on, of a block of `count` elements: int64."""
        return ((first + n) * count // self.parts - first * count // self.parts) * itemsize


@dataclass(frozen=True, eq=False)
class Pairs:
    """In round (d, k) the rank at grid[i, l] puts a part of a block to the one at grid[i + d, l + k], on each channel its own part.

    grid: int64[nodes, ranks of a node]; rounds: d = 1, 2, …, nodes - 1, then 0, in each k = 0, 1, …. All puts come at once; then all of
    them are waited for. keeps: a rank copies its own part before it waits; copies: after each wait it copies what came, once what it put to
    the same rank has left; sums: it adds all of them after the last wait, `flushes`: not before its own puts have left. cuts: where nodes
    lost NICs, what goes over which channel; then rounds are a timetable, and who copies what came, or sums, has one channel.
    """

    grid: np.ndarray
    channels: int
    keeps: bool = False
    copies: bool = False
    sums: bool = False
    flushes: bool = False
    cuts: Cuts | None = None

    def part_bytes(self, count: int, itemsize: int) -> np.ndarray:
        """Bytes of each channel's part of a block of `count` elements: int64[channels]."""
        return part_bytes(self.channels, count, itemsize)


@dataclass(frozen=True)
class Paired:
    """In step s = 1, 2, … rank r and rank r xor s put a part of a block to each other, on each channel its own part, and wait for it.

    Where ranks are no power of two, rank r and rank s - r, modulo their number, in step s = 0, 1, …; who would meet itself rests.
    in_place: what came is copied, once what was put has left; else a rank copies its own part before step 1.
    """

    channels: int
    in_place: bool

    def part_bytes(self, count: int, itemsize: int) -> np.ndarray:
        """Bytes of each channel's part of a block of `count` elements: int64[channels]."""
        return part_bytes(self.channels, count, itemsize)


def part_bytes(channels: int, count: int, itemsize: int) -> np.ndarray:
    """Bytes of each channel's part of a block of `count` elements: int64[channels]."""
    return np.diff(np.arange(channels + 1, dtype=np.int64) * count // channels) * itemsize
