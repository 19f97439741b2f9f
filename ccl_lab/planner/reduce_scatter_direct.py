"""Direct reduce_scatter: every rank sends each block straight to its owner, who adds them all at once.

Invariant: sources are added in rank order.
"""

from __future__ import annotations

from ..ir import Builder, Pairs
from .direct import cuts, rounds, slot, sources, steps
from .problem import Problem
from .runs import everyone


def direct(problem: Problem) -> Builder:
    """n-1 puts each, one reduction of n sources.

    Steps: 1, or a timetable where NICs are shared unevenly (direct.py). Bytes sent per rank: n-1 blocks, (n-1)/n of the message. n-1
    blocks of scratch. Any n.
    Source: NCCLX, arXiv 2510.20171 (direct ReduceScatter).
    """
    n = problem.n
    channels = problem.slices(problem.nics_per_rank, problem.block_bytes)
    timetable = cuts(problem, channels, alone=channels == 1) is not None
    b = problem.builder("direct", channels=channels, parts=channels, scratch_blocks=n - 1, timetable=timetable)
    rank, channel = everyone(n, channels)
    for b.step, (to, _) in zip(steps(problem, timetable), rounds(problem, rank), strict=True):
        b.put(rank=rank, peer=to, src=b.input[to * b.parts + channel], dst=b.scratch[slot(rank, to) * b.parts + channel],
              channel=channel)
    for b.step, (_, source) in zip(steps(problem, timetable), rounds(problem, rank), strict=True):
        b.wait(rank=rank, peer=source, channel=channel)
    b.reduce(rank=rank, dst=b.output[channel], channel=channel,
             srcs=sources(rank, n, rank * b.parts + channel, channel, b.parts))
    return b


def pairs(problem: Problem) -> Pairs | None:
    """What `direct` repeats; None where nodes differ in size."""
    channels = problem.slices(problem.nics_per_rank, problem.block_bytes)
    return None if problem.grid is None else Pairs(problem.grid, channels, sums=True, cuts=cuts(problem, channels, alone=channels == 1))
