"""Blocks that meet inside a node and cross to its own local index of every other node, without a row per op.

Is: what hierarchical all_to_all repeats. Is not: what is moved. Invariant: together with planner/all_to_all_hierarchical.py it says of
every op of the unrolled schedule its rank, peer and bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .pairs import part_bytes


@dataclass(frozen=True, eq=False)
class Rails:
    """The rank at grid[i, l] puts a block to each of its node for every other node, and one that stays there, all at once. Then, for the
    node d = 1, 2, … further on, it waits for one block of each of its node and puts blocks[l, 0], blocks[l, 1], … blocks to grid[i + d, l].
    At last it waits for all that comes. On each channel so with its own part of every block.

    grid: int64[nodes, ranks of a node]; blocks: int64[ranks of a node, puts], -1: no put. in_place: what came is copied, block
    by block, once its own puts have left; else its own block is.
    """

    grid: np.ndarray
    blocks: np.ndarray
    in_place: bool
    channels: int = 1

    def part_bytes(self, count: int, itemsize: int) -> np.ndarray:
        """Bytes of each channel's part of a block of `count` elements: int64[channels]."""
        return part_bytes(self.channels, count, itemsize)
