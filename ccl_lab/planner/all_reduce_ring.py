"""Ring all_reduce: a reduce-scatter ring, then an all-gather ring, on one ring per NIC.

Is: `ring` and `bidirectional_ring`. Invariant: chunk j of a channel is what position j sends first; a chunk that arrived
at step s is what goes on at step s + 1.
"""

from __future__ import annotations

import numpy as np

from ..ir import Builder, RingLoops
from .cost import ring_depth
from .orders import Rings, orders_of, rings, share_nics, ticks
from .problem import Problem


def ring(problem: Problem) -> Builder:
    """Ring all_reduce.

    Steps: 2(n-1), or a timetable where rings share NICs. Bytes sent per rank: 2(n-1)/n of the message. Any n. Out of place it needs no
    scratch: partial sums land in OUTPUT; in place one block of scratch.
    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009.
    """
    return _ring(problem, "ring", rings(problem))


def bidirectional_ring(problem: Problem) -> Builder:
    """Ring all_reduce on half of the message clockwise and on the other half counterclockwise.

    Steps and bytes as `ring`, half to each neighbour, so that links used in one direction by a single ring carry data both ways.
    Source: as ring; two directions as in torus collectives.
    """
    return _ring(problem, "bidirectional_ring", rings(problem, both_ways=True))


def _ring(problem: Problem, name: str, at: Rings) -> Builder:
    n, depth = problem.n, ring_depth(problem, at.channels)
    timetable = share_nics(problem.topology, at.orders)
    b = problem.builder(name, channels=at.numbers, parts=at.units * n * depth, scratch_blocks=int(problem.in_place), timetable=timetable)
    tick = ticks(problem.topology, at, depth) if timetable else None
    # Out of place OUTPUT is free until the final values come round, and those come only after the partial ones left.
    landing = b.scratch if problem.in_place else b.output

    def chunk(position, i):
        begin = (at.first * n + position % n * at.weight) * depth + i * at.weight
        return slice(begin, begin + at.weight)

    for i in range(depth):
        first = chunk(at.position, i)
        b.put(rank=at.rank, peer=at.next, src=b.input[first], dst=landing[first], channel=at.channel)
    for step in range(2 * n - 2):
        reducing, last = step < n - 1, step == 2 * n - 3
        for i in range(depth):
            arrived = chunk(at.position - 1 - step, i)
            b.step = step if tick is None else tick(step * depth + i)
            b.wait(rank=at.rank, peer=at.prev, channel=at.channel)
            if reducing:
                b.reduce(rank=at.rank, dst=b.output[arrived], srcs=[landing[arrived], b.input[arrived]], channel=at.channel)
            if not last:
                b.step = step + 1 if tick is None else tick(step * depth + i)
                target = landing if step + 1 < n - 1 else b.output
                b.put(rank=at.rank, peer=at.next, src=b.output[arrived], dst=target[arrived], channel=at.channel)
    return b


def loops(problem: Problem) -> RingLoops:
    """What `ring` repeats."""
    return _loops(problem, orders_of(problem))


def loops_both_ways(problem: Problem) -> RingLoops:
    """What `bidirectional_ring` repeats."""
    return _loops(problem, orders_of(problem, both_ways=True))


def _loops(problem: Problem, orders: np.ndarray) -> RingLoops:
    n, channel = problem.n, np.arange(len(orders))
    depth = ring_depth(problem, len(orders))
    return RingLoops(orders=orders, channel=channel, parts=len(orders) * n * depth, depth=depth, steps=2 * n - 2, reducing=n - 1,
                     first=channel[:, None] * n * depth, stride=depth, span=1, slice_of=np.zeros((len(orders), 1), np.int64),
                     timetable=share_nics(problem.topology, orders))
