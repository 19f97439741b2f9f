"""One-pass reduce_scatter on shared memory: rank r reduces block r of all inputs where they lie.

Invariant: block r of every input is read by rank r alone, so OUTPUT may be block r of INPUT.
"""

from __future__ import annotations

from ..ir import Builder
from .mapped import Shares, end_reading, everywhere
from .problem import Problem
from .runs import everyone


def one_pass(problem: Problem) -> Builder:
    """One reduction of n sources.

    Steps: 1. Bytes read from peers, per rank: n-1 blocks; memory reads n blocks and writes one. Any n, no scratch, one node.
    Source: Hashmi et al., "Designing efficient shared address space reduction collectives for multi-/many-cores", IPDPS 2018.
    """
    n = problem.n
    channels = problem.slices(1, problem.block_bytes)
    at = Shares(*everyone(n, channels), channels, 1)
    b = problem.builder("one_pass", channels=channels, parts=channels)
    mine = b.input[at.rank * b.parts + at.channel]
    b.reduce(rank=at.rank, dst=b.output[at.channel], srcs=everywhere(mine, n), channel=at.channel)
    end_reading(b, at, n)
    return b
