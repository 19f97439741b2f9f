"""Flat all_reduce on shared memory: everyone reduces the whole message from all inputs where they lie. For small messages.

Invariant: in place nobody overwrites its input before all have read it: the sum waits in scratch.
"""

from __future__ import annotations

from ..ir import Builder
from .mapped import Shares, end_reading, everywhere
from .problem import Problem
from .runs import everyone


def flat(problem: Problem) -> Builder:
    """One reduction of n sources, and word to everyone that it is done.

    Steps: 1. Bytes read from peers, per rank: n-1 messages. In place one block of scratch. Any n, one node.
    Source: the one-shot all_reduce as in `direct`, reading instead of sending; Hashmi et al., IPDPS 2018.
    """
    n = problem.n
    channels = problem.slices(1, problem.nbytes)
    at = Shares(*everyone(n, channels), channels, 1)
    b = problem.builder("flat", channels=channels, parts=channels, scratch_blocks=int(problem.in_place))
    total = b.scratch if problem.in_place else b.output
    b.reduce(rank=at.rank, dst=total[at.channel], srcs=everywhere(b.input[at.channel], n), channel=at.channel)
    end_reading(b, at, n)
    if problem.in_place:
        b.copy(rank=at.rank, src=b.scratch[at.channel], dst=b.output[at.channel], channel=at.channel)
    return b
