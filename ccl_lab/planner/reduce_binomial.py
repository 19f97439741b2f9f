"""Binomial reduce: the binomial broadcast backwards; each inner rank adds its children one after the other.

Invariant: positions count from the root, node by node; the child at distance 2^i lands in scratch block i, and sums collect
in block 0 (at the root in OUTPUT).
"""

from __future__ import annotations

import numpy as np

from ..ir import Buffer, Builder, Ref
from .cost import log2_ceil
from .orders import tree_order
from .problem import Problem


def binomial(problem: Problem) -> Builder:
    """Binomial tree.

    Steps: ceil(log2 n). Bytes sent per rank: one message (none by the root). ceil(log2 n) blocks of scratch. Any n, any root.
    Source: Thakur et al. 2005, 4.4.
    """
    n, order = problem.n, tree_order(problem.topology, problem.root)
    channels = problem.slices(problem.nics_per_rank, problem.nbytes)
    b = problem.builder("binomial", channels=channels, parts=channels, scratch_blocks=log2_ceil(n))
    everyone, part = np.tile(np.arange(n), channels), np.repeat(np.arange(channels), n)
    for step in range(log2_ceil(n)):
        distance = 1 << step
        b.step = step
        rows = everyone % (2 * distance) == distance
        position, channel = everyone[rows], part[rows]
        leaf = (position % 2 == 1) | (position == n - 1)
        landing = b.scratch[step * b.parts + channel]
        b.put(rank=order[position], peer=order[position - distance], dst=landing, channel=channel,
              src=Ref(np.where(leaf, int(Buffer.input), int(Buffer.scratch)), channel))
        parent = order[position - distance]
        b.wait(rank=parent, peer=order[position], channel=channel)
        total = Ref(np.where(parent == problem.root, int(Buffer.output), int(Buffer.scratch)), channel)
        b.reduce(rank=parent, dst=total, srcs=[b.input[channel] if step == 0 else total, landing], channel=channel)
    return b
