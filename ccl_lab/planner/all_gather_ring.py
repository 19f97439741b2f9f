"""Ring all_gather: every block travels once round the ring, on one ring per NIC.

Invariant: the block that arrived at step s is what goes on at step s + 1.
"""

from __future__ import annotations

import numpy as np

from ..ir import Builder, RingLoops
from .orders import Rings, ring_loops, rings, share_nics, ticks
from .problem import Problem


def ring(problem: Problem) -> Builder:
    """Ring all_gather.

    Steps: n-1, or a timetable where rings share NICs. Bytes sent per rank: n-1 blocks, (n-1)/n of the message. Any n, no scratch.
    Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005, 4.1.
    """
    at = rings(problem)
    return along(problem, "ring", at, timetable=share_nics(problem.topology, at.orders))


def along(problem: Problem, name: str, at: Rings, timetable: bool = False) -> Builder:
    """Ring all_gather along given rings."""
    n = problem.n
    b = problem.builder(name, channels=at.numbers, parts=at.units, timetable=timetable)
    tick = ticks(problem.topology, at, 1) if timetable else None

    def chunk(position):
        begin = at.orders[np.repeat(np.arange(at.channels), n), position % n] * at.units + at.first
        return slice(begin, begin + at.weight)

    own, mine = chunk(at.position), slice(at.first, at.first + at.weight)
    b.put(rank=at.rank, peer=at.next, src=b.input[mine], dst=b.output[own], channel=at.channel)
    b.copy(rank=at.rank, src=b.input[mine], dst=b.output[own], channel=at.channel)
    for step in range(n - 1):
        arrived = chunk(at.position - 1 - step)
        b.step = step if tick is None else tick(step)
        b.wait(rank=at.rank, peer=at.prev, channel=at.channel)
        if step < n - 2:
            b.step = step + 1 if tick is None else tick(step)
            b.put(rank=at.rank, peer=at.next, src=b.output[arrived], dst=b.output[arrived], channel=at.channel)
    return b


def loops(problem: Problem) -> RingLoops:
    """What `ring` repeats."""
    at = rings(problem)
    return loops_along(problem, at, timetable=share_nics(problem.topology, at.orders))


def loops_along(problem: Problem, at: Rings, timetable: bool = False) -> RingLoops:
    """What `along` repeats."""
    return ring_loops(at, at.units, at.first_of, stride=0, depth=1, steps=problem.n - 1, reducing=0,
                      copies=not problem.in_place, timetable=timetable)
