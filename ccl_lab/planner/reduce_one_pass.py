"""One-pass reduce on shared memory: each rank reduces its share of all inputs where they lie, into the root's output.

Invariant: share r of every buffer is read by rank r alone, before it writes share r of the root's output.
"""

from __future__ import annotations

import numpy as np

from ..ir import Buffer, Builder, Ref
from .mapped import everywhere, shares, wait_for_all
from .problem import Problem


def one_pass(problem: Problem) -> Builder:
    """One reduction of n sources a slice: at the root into its output, elsewhere into scratch and from there, still cached, to the root.

    Steps: 2. Bytes read from peers and put to the root, per rank: at most one message; memory reads one message and writes 1/n of one.
    Any n, any root, one block of scratch of which a rank touches its share, one node. Source: Hashmi et al., IPDPS 2018.
    """
    n, root = problem.n, problem.root
    at = shares(problem, problem.nbytes / n)
    b = problem.builder("one_pass", channels=at.channels, parts=n * at.channels * at.depth, scratch_blocks=1)
    away = at.rank != root
    for i in range(at.depth):
        mine = at.chunk(at.rank, i)
        b.step = 0
        total = Ref(np.where(away, int(Buffer.scratch), int(Buffer.output)), mine)
        b.reduce(rank=at.rank, dst=total, srcs=everywhere(b.input[mine], n), channel=at.channel)
        b.step = 1
        b.put(rank=at.rank[away], peer=root, src=b.scratch[mine[away]], dst=b.output[mine[away]], channel=at.channel[away],
              signal=i == at.depth - 1)
    b.step = 0
    for distance in range(1, n):
        peer = (at.rank + distance) % n
        rows = peer != root  # the root hears it with the puts
        b.signal(rank=at.rank[rows], peer=peer[rows], channel=at.channel[rows])
    wait_for_all(b, at, n)
    return b
