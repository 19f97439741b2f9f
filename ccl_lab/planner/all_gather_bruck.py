"""Bruck's all_gather: ceil(log2 n) steps for any number of ranks.

Is: Bruck without its final rotation, since blocks are written where they belong, in two runs where they wrap around.
Invariant: before the step of distance d rank r holds blocks r, r+1, …, r+d-1 (mod n).
"""

from __future__ import annotations

import numpy as np

from ..ir import Buffer, Builder
from .problem import Problem
from .runs import Run, everyone, put_run, wait_run


def bruck(problem: Problem) -> Builder:
    """Bruck's algorithm.

    Steps: ceil(log2 n). Bytes sent per rank: n-1 blocks, (n-1)/n of the message. Any n, no scratch.
    Source: Bruck, Ho, Kipnis, Upfal and Weathersby, IEEE TPDS 8(11), 1997.
    """
    n = problem.n
    channels = problem.slices(problem.nics_per_rank, problem.block_bytes)
    b = problem.builder("bruck", channels=channels, parts=channels)
    rank, channel = everyone(n, channels)

    def runs(first, count):
        """Blocks first … first+count-1 modulo n: up to n, and from 0 on."""
        straight = np.minimum(count, n - first)
        return [(first, straight), (np.zeros_like(first), count - straight)]

    distance = 1
    while distance < n:
        count, to, source = min(distance, n - distance), (rank - distance) % n, (rank + distance) % n
        for block, length in runs(rank, count):
            src = Run(Buffer.input, 0) if distance == 1 else Run(Buffer.output, block)
            put_run(b, rank, to, src, Run(Buffer.output, block), length, channel)
        if distance == 1:
            b.copy(rank=rank, src=b.input[channel], dst=b.output[rank * b.parts + channel], channel=channel)
        wait_run(b, rank, source, [length for _, length in runs(source, count)], channel)
        distance *= 2
        b.step += 1
    return b
