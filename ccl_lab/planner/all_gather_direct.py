"""Direct all_gather: every rank writes its block into every other rank's output.

Invariant: no two ranks of a round write to the same one (direct.py).
"""

from __future__ import annotations

from ..ir import Builder, Pairs
from .direct import cuts, rounds, steps
from .problem import Problem
from .runs import everyone


def direct(problem: Problem) -> Builder:
    """n-1 puts each, none waiting for another.

    Steps: 1, or a timetable where NICs are shared unevenly (direct.py). Bytes sent per rank: n-1 blocks, (n-1)/n of the message. Any n,
    no scratch.
    Source: NCCLX, arXiv 2510.20171 (direct AllGather); the linear algorithm of MPI libraries.
    """
    n = problem.n
    channels = problem.slices(problem.nics_per_rank, problem.block_bytes)
    timetable = cuts(problem, channels) is not None
    b = problem.builder("direct", channels=channels, parts=channels, timetable=timetable)
    rank, channel = everyone(n, channels)
    own = rank * channels + channel
    for b.step, (to, _) in zip(steps(problem, timetable), rounds(problem, rank), strict=True):
        b.put(rank=rank, peer=to, src=b.input[channel], dst=b.output[own], channel=channel)
    b.copy(rank=rank, src=b.input[channel], dst=b.output[own], channel=channel)
    for b.step, (_, source) in zip(steps(problem, timetable), rounds(problem, rank), strict=True):
        b.wait(rank=rank, peer=source, channel=channel)
    return b


def pairs(problem: Problem) -> Pairs | None:
    """What `direct` repeats; None where nodes differ in size."""
    channels = problem.slices(problem.nics_per_rank, problem.block_bytes)
    return None if problem.grid is None else Pairs(problem.grid, channels, keeps=not problem.in_place, cuts=cuts(problem, channels))
