"""Binomial broadcast: whoever has the message passes it on, each time to half of the ranks in its care.

Invariant: positions count from the root, node by node; long distances come first, so a message enters each node once
(for nodes of a power of two of ranks).
"""

from __future__ import annotations

import numpy as np

from ..ir import Builder
from .cost import log2_ceil
from .orders import tree_order
from .problem import Problem


def binomial(problem: Problem) -> Builder:
    """Binomial tree.

    Steps: ceil(log2 n). Bytes sent by the root: ceil(log2 n) messages. Any n, any root, no scratch.
    Source: Thakur et al. 2005, 4.3.
    """
    n, order = problem.n, tree_order(problem.topology, problem.root)
    channels = problem.slices(problem.nics_per_rank, problem.nbytes)
    b = problem.builder("binomial", channels=channels, parts=channels)
    position, channel = np.tile(np.arange(n), channels), np.repeat(np.arange(channels), n)
    for step in range(log2_ceil(n)):
        distance = 1 << (log2_ceil(n) - 1 - step)
        b.step = step
        sends = (position % (2 * distance) == 0) & (position + distance < n)
        for rows, src in ((sends & (position == 0), b.input), (sends & (position > 0), b.output)):
            part = channel[rows]
            b.put(rank=order[position[rows]], peer=order[position[rows] + distance], src=src[part], dst=b.output[part], channel=part)
        part = channel[sends]
        b.wait(rank=order[position[sends] + distance], peer=order[position[sends]], channel=part)
    part = np.arange(channels)
    b.copy(rank=np.full(channels, problem.root), src=b.input[part], dst=b.output[part], channel=part)
    return b
