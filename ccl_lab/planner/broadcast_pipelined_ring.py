"""Pipelined ring broadcast: the message runs along a chain of all ranks in chunks, on one chain per NIC.

Invariant: chunk = (channel, i); position p passes chunk i on at step i + p.
"""

from __future__ import annotations

from ..ir import Builder, Chains
from .cost import broadcast_depth
from .orders import Rings, chains
from .problem import Problem


def pipelined_ring(problem: Problem) -> Builder:
    """Pipelined chain.

    Steps: n - 1 + k - 1 for k chunks per channel. Bytes sent per rank: one message (none by the last). Any n, any root, no
    scratch. Source: Thakur et al. 2005, 4.3 (long messages); the ring of NCCL's Broadcast.
    """
    return along(problem, "pipelined_ring", chains(problem))


def along(problem: Problem, name: str, at: Rings) -> Builder:
    """Pipelined chain along given chains, the root at position 0 of each."""
    n, depth = problem.n, broadcast_depth(problem, at.channels)
    b = problem.builder(name, channels=at.numbers, parts=at.units * depth)
    root, later, forwards = at.position == 0, at.position > 0, (at.position > 0) & (at.position < n - 1)
    for i in range(depth):
        chunk = at.first * depth + i * at.weight
        after = chunk + at.weight
        for rows, src in ((root, b.input), (forwards, b.output)):
            if rows is forwards:
                b.step = i + at.position[later] - 1
                b.wait(rank=at.rank[later], peer=at.prev[later], channel=at.channel[later])
            b.step = i + at.position[rows]
            b.put(rank=at.rank[rows], peer=at.next[rows], src=src[chunk[rows] : after[rows]],
                  dst=b.output[chunk[rows] : after[rows]], channel=at.channel[rows])
    b.step = 0
    begin, end = at.first[root] * depth, (at.first + at.weight)[root] * depth
    b.copy(rank=at.rank[root], src=b.input[begin:end], dst=b.output[begin:end], channel=at.channel[root])
    return b


def chained(problem: Problem) -> Chains:
    """What `pipelined_ring` repeats."""
    return chained_along(problem, chains(problem))


def chained_along(problem: Problem, at: Rings) -> Chains:
    """What `along` repeats."""
    depth = broadcast_depth(problem, at.channels)
    return Chains(at.orders, at.channel_of, at.weight_of, at.units * depth, depth, adds=False,
                  keeps=not problem.in_place)
