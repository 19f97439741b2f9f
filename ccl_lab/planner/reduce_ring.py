"""Pipelined ring reduce: partial sums run along a chain of all ranks to the root, on one chain per NIC.

Invariant: chunk = (channel, i); position p (the root is 0) passes chunk i on at step i + n - 1 - p.
"""

from __future__ import annotations

from ..ir import Buffer, Builder, Chains, Ref
from .cost import broadcast_depth
from .orders import Rings, chains
from .problem import Problem


def ring(problem: Problem) -> Builder:
    """Pipelined chain.

    Steps: n - 1 + k - 1 for k chunks per channel. Bytes sent per rank: one message (none by the root). One block of scratch.
    Any n, any root. Source: the ring of NCCL's Reduce; Thakur et al. 2005, 4.4 discusses long messages.
    """
    return along(problem, "ring", chains(problem))


def along(problem: Problem, name: str, at: Rings) -> Builder:
    """Pipelined chain along given chains, the root at position 0 of each."""
    n, depth = problem.n, broadcast_depth(problem, at.channels)
    b = problem.builder(name, channels=at.numbers, parts=at.units * depth, scratch_blocks=1)
    last, adds, root = at.position == n - 1, at.position < n - 1, at.position == 0
    inner = adds & ~root
    for i in range(depth):
        chunk = at.first * depth + i * at.weight
        after = chunk + at.weight
        step = i + n - 1 - at.position
        b.step = step[last]
        b.put(rank=at.rank[last], peer=at.prev[last], src=b.input[chunk[last] : after[last]],
              dst=b.scratch[chunk[last] : after[last]], channel=at.channel[last])
        b.step = step[adds] - 1
        b.wait(rank=at.rank[adds], peer=at.next[adds], channel=at.channel[adds])
        for rows, total in ((root, Buffer.output), (inner, Buffer.scratch)):
            where, b.step = slice(chunk[rows], after[rows]), step[rows] - 1
            b.reduce(rank=at.rank[rows], dst=Ref(total, where.start, at.weight[rows]), srcs=[b.scratch[where], b.input[where]],
                     channel=at.channel[rows])
        where, b.step = slice(chunk[inner], after[inner]), step[inner]
        b.put(rank=at.rank[inner], peer=at.prev[inner], src=b.scratch[where], dst=b.scratch[where], channel=at.channel[inner])
    return b


def chained(problem: Problem) -> Chains:
    """What `ring` repeats."""
    return chained_along(problem, chains(problem))


def chained_along(problem: Problem, at: Rings) -> Chains:
    """What `along` repeats."""
    depth = broadcast_depth(problem, at.channels)
    return Chains(at.orders[:, ::-1], at.channel_of, at.weight_of, at.units * depth, depth, adds=True)
