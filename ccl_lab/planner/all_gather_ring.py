"""Ring all_gather: every block travels once round the ring, on one ring per NIC.

Invariant: the block that arrived at step s is what goes on at step s + 1.
"""

from __future__ import annotations

from ..ir import Builder
from .orders import rings
from .problem import Problem


def ring(problem: Problem) -> Builder:
    """Ring all_gather.

    Steps: n-1. Bytes sent per rank: n-1 blocks, (n-1)/n of the message. Any n, no scratch.
    Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005, 4.1.
    """
    n, at = problem.n, rings(problem)
    b = problem.builder("ring", channels=at.channels, parts=at.channels)
    order = at.rank.reshape(at.channels, n)

    def chunk(position):
        return order[at.channel, position % n] * at.channels + at.channel

    own = chunk(at.position)
    b.put(rank=at.rank, peer=at.next, src=b.input[at.channel], dst=b.output[own], channel=at.channel)
    b.copy(rank=at.rank, src=b.input[at.channel], dst=b.output[own], channel=at.channel)
    for step in range(n - 1):
        arrived = chunk(at.position - 1 - step)
        b.step = step
        b.wait(rank=at.rank, peer=at.prev, channel=at.channel)
        if step < n - 2:
            b.step = step + 1
            b.put(rank=at.rank, peer=at.next, src=b.output[arrived], dst=b.output[arrived], channel=at.channel)
    return b
