"""Direct all_reduce: everyone sends everything to everyone, and everyone adds it up. For small messages.

Invariant: sources are added in rank order, so all ranks get bitwise the same floats.
"""

from __future__ import annotations

from ..ir import Builder, Pairs
from .direct import cuts, rounds, slot, sources, steps
from .problem import Problem
from .runs import everyone


def direct(problem: Problem) -> Builder:
    """One shot: n-1 puts, one reduction of n sources.

    Steps: 1, or a timetable where NICs are shared unevenly (direct.py). Bytes sent per rank: n-1 messages. n-1 blocks of scratch. Any n.
    Source: the one-shot all_reduce of NCCLX, arXiv 2510.20171, and of TensorRT-LLM.
    """
    n = problem.n
    channels = problem.slices(problem.nics_per_rank, problem.nbytes)
    timetable = cuts(problem, channels, alone=channels == 1) is not None
    b = problem.builder("direct", channels=channels, parts=channels, scratch_blocks=n - 1, timetable=timetable)
    rank, channel = everyone(n, channels)
    for b.step, (to, _) in zip(steps(problem, timetable), rounds(problem, rank), strict=True):
        b.put(rank=rank, peer=to, src=b.input[channel], dst=b.scratch[slot(rank, to) * b.parts + channel], channel=channel)
    for b.step, (_, source) in zip(steps(problem, timetable), rounds(problem, rank), strict=True):
        b.wait(rank=rank, peer=source, channel=channel)
    if problem.in_place:
        b.flush(rank=rank, channel=channel)  # the sum overwrites what the puts read
    b.reduce(rank=rank, dst=b.output[channel], srcs=sources(rank, n, channel, channel, b.parts), channel=channel)
    return b


def pairs(problem: Problem) -> Pairs | None:
    """What `direct` repeats; None where nodes differ in size."""
    channels = problem.slices(problem.nics_per_rank, problem.nbytes)
    return None if problem.grid is None else Pairs(problem.grid, channels, sums=True, flushes=problem.in_place,
                                                   cuts=cuts(problem, channels, alone=channels == 1))
