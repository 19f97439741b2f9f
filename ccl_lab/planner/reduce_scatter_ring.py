"""Ring reduce_scatter: every block travels round the ring and gathers each rank's share, on one ring per NIC.

Invariant: the block that arrived at step s is what goes on at step s + 1; the block of position p arrives there last.
"""

from __future__ import annotations

import numpy as np

from ..ir import Builder, RingLoops
from .cost import ring_depth
from .orders import Rings, ring_loops, rings, share_nics, ticks
from .problem import Problem


def ring(problem: Problem) -> Builder:
    """Ring reduce_scatter.

    Steps: n-1, or a timetable where rings share NICs. Bytes sent per rank: n-1 blocks, (n-1)/n of the message. Any n; n blocks of
    scratch, each written once, so that no credit has to travel back.
    Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005, 4.2.
    """
    at = rings(problem)
    return along(problem, "ring", at, timetable=share_nics(problem.topology, at.orders))


def along(problem: Problem, name: str, at: Rings, timetable: bool = False) -> Builder:
    """Ring reduce_scatter along given rings."""
    n, depth = problem.n, ring_depth(problem, at.channels)
    parts = at.units * depth
    b = problem.builder(name, channels=at.numbers, parts=parts, scratch_blocks=n, timetable=timetable)
    tick = ticks(problem.topology, at, depth) if timetable else None

    def chunk(position, i):
        begin = at.orders[np.repeat(np.arange(at.channels), n), position % n] * parts + at.first * depth + i * at.weight
        return slice(begin, begin + at.weight)

    for i in range(depth):
        first = chunk(at.position - 1, i)
        b.put(rank=at.rank, peer=at.next, src=b.input[first], dst=b.scratch[first], channel=at.channel)
    for step in range(n - 1):
        for i in range(depth):
            arrived = chunk(at.position - 2 - step, i)
            last = step == n - 2
            b.step = step if tick is None else tick(step * depth + i)
            b.wait(rank=at.rank, peer=at.prev, channel=at.channel)
            begin = at.first * depth + i * at.weight
            total = b.output[begin : begin + at.weight] if last else b.scratch[arrived]
            b.reduce(rank=at.rank, dst=total, srcs=[b.scratch[arrived], b.input[arrived]], channel=at.channel)
            if not last:
                b.step = step + 1 if tick is None else tick(step * depth + i)
                b.put(rank=at.rank, peer=at.next, src=total, dst=total, channel=at.channel)
    return b


def loops(problem: Problem) -> RingLoops:
    """What `ring` repeats."""
    at = rings(problem)
    return loops_along(problem, at, timetable=share_nics(problem.topology, at.orders))


def loops_along(problem: Problem, at: Rings, timetable: bool = False) -> RingLoops:
    """What `along` repeats."""
    depth = ring_depth(problem, at.channels)
    first = at.first_of * depth
    return ring_loops(at, at.units * depth, first, stride=0, depth=depth, steps=problem.n - 1, reducing=problem.n - 1,
                      timetable=timetable)
