"""Every rank puts something to every other one at once, without a row per op.

Is: what direct algorithms have in common: their puts, and what a rank does when all has come. Is not: what is moved. Invariant: together
with the rounds of planner/direct.py it says of every op of the unrolled schedule its rank, channel, peer and bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Pairs:
    """In round (d, k) the rank at grid[i, l] puts a part of a block to the one at grid[i + d, l + k], on each channel its own part.

    grid: int64[nodes, ranks of a node]; rounds: d = 1, 2, …, nodes - 1, then 0, in each k = 0, 1, …. All puts come at once; then all of
    them are waited for. keeps: a rank copies its own part before it waits; sums: it adds all of them after it, `flushes`: not before its
    own puts have left.
    """

    grid: np.ndarray
    channels: int
    keeps: bool = False
    sums: bool = False
    flushes: bool = False

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
