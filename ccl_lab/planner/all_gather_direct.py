"""Direct all_gather: every rank writes its block into every other rank's output.

Invariant: no two ranks of a round write to the same one (direct.py).
"""

from __future__ import annotations

from ..ir import Builder, Pairs
from .direct import rounds
from .problem import Problem
from .runs import everyone


def direct(problem: Problem) -> Builder:
    """n-1 puts each, none waiting for another.

    Steps: 1. Bytes sent per rank: n-1 blocks, (n-1)/n of the message. Any n, no scratch.
    Source: NCCLX, arXiv 2510.20171 (direct AllGather); the linear algorithm of MPI libraries.
    """
    n = problem.n
    channels = problem.slices(problem.nics_per_rank, problem.block_bytes)
    b = problem.builder("direct", channels=channels, parts=channels)
    rank, channel = everyone(n, channels)
    own = rank * channels + channel
    for to, _ in rounds(problem, rank):
        b.put(rank=rank, peer=to, src=b.input[channel], dst=b.output[own], channel=channel)
    b.copy(rank=rank, src=b.input[channel], dst=b.output[own], channel=channel)
    for _, source in rounds(problem, rank):
        b.wait(rank=rank, peer=source, channel=channel)
    return b


def pairs(problem: Problem) -> Pairs | None:
    """What `direct` repeats; None where nodes differ in size."""
    channels = problem.slices(problem.nics_per_rank, problem.block_bytes)
    return None if problem.grid is None else Pairs(problem.grid, channels, keeps=not problem.in_place)
