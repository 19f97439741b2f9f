"""Chains: ranks along which chunks are passed on, one rank after the other, without a row per op.

Is: what the planner's pipelined broadcasts and reductions repeat. Is not: rings (loops.py), where every rank begins and ends.
Invariant: they say of every op of the unrolled schedule its rank, channel, peer and bytes, and in which order ops are written.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Chains:
    """Chains over all ranks, each with chunks of its own of one block of `parts` parts.

    orders: int64[chains, ranks], from the rank where chunks begin to the one where they end; channel, weight: int64[chains]. On each chain
    the first rank puts `depth` chunks of `weight` parts to the next one; every other rank waits for a chunk, with `adds` adds its own, and
    passes it on if it is not the last. Ops are written chunk by chunk, in a chunk chain by chain, ranks from the root on. keeps: the first
    rank copies what it sent, at its end.
    """

    orders: np.ndarray
    channel: np.ndarray
    weight: np.ndarray
    parts: int
    depth: int
    adds: bool
    keeps: bool = False

    def chunk_bytes(self, count: int, itemsize: int) -> np.ndarray:
        """Bytes of every chunk, of a block of `count` elements: int64[chains, depth]."""
        begin = (np.cumsum(self.weight) - self.weight)[:, None] * self.depth + np.arange(self.depth) * self.weight[:, None]
        return ((begin + self.weight[:, None]) * count // self.parts - begin * count // self.parts) * itemsize

    def nominal_parts(self, count: int) -> np.ndarray:
        """What a chunk of each chain takes in nominal time, in parts: int64[chains], 0 where blocks of `count` elements have no bytes.

        All parts count as long as the longest (Layout.nominal_bytes), so by this unit the order is the same as by bytes.
        """
        return self.weight * (count > 0)
