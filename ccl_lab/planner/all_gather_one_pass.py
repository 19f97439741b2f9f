"""One-pass all_gather on shared memory: each rank writes its block to all outputs, slice by slice.

Invariant: block r of every output is written by rank r alone.
"""

from __future__ import annotations

from ..ir import Builder
from .mapped import put_to_all, shares, wait_for_all
from .problem import Problem


def one_pass(problem: Problem) -> Builder:
    """n-1 puts of every slice, so that it comes from memory once and from the cache the other times.

    Steps: 1. Bytes put to peers, per rank: n-1 blocks, (n-1)/n of the message; memory reads one block and writes n. Any n, no scratch,
    one node. Source: as `direct`; slices as in Peng et al., "Optimizing MPI collectives on shared memory multi-cores", SC 2023.
    """
    n, at = problem.n, shares(problem, problem.block_bytes)
    b = problem.builder("one_pass", channels=at.channels, parts=at.channels * at.depth)
    for i in range(at.depth):
        src, own = b.input[at.part(i)], b.output[at.rank * b.parts + at.part(i)]
        put_to_all(b, at, n, src, own, i)
        b.copy(rank=at.rank, src=src, dst=own, channel=at.channel)
    wait_for_all(b, at, n)
    return b
