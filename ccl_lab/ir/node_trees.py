"""A double binary tree over nodes, with chains inside them, without a row per op.

Is: who is above whom, and in how many chunks a message passes. Is not: what is moved. Invariant: together with the rounds of
planner/all_reduce_double_binary_tree.py it says of every op of the unrolled schedule its rank, channel, step, peer and bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class NodeTrees:
    """Two trees, each for half of a message, in `slices` slices of `depth` chunks.

    parent: int64[2, nodes], -1 at the roots; color: int64[2, nodes], 0 or 1, of the edge to it. Slice c enters a node of g ranks at its
    rank c * g // slices, and passes all others in a chain; it goes up on channel c, and down on c + slices, in the second tree 2 slices on.
    """

    parent: np.ndarray
    color: np.ndarray
    slices: int
    depth: int
