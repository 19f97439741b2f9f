"""One-pass all_reduce on shared memory: each rank reduces its share of all inputs where they lie, and writes it to all outputs.

Invariant: share r of every buffer is touched by rank r alone, which reads all of a slice before it writes any: so in place is safe.
"""

from __future__ import annotations

from ..ir import Builder
from .mapped import everywhere, put_to_all, shares, wait_for_all
from .problem import Problem


def one_pass(problem: Problem) -> Builder:
    """One reduction of n sources a slice, then n-1 puts of the result while it is in the cache.

    Steps: 2. Bytes read from peers and put to them, per rank: 2(n-1)/n of the message; memory reads and writes two messages a rank.
    Any n, no scratch, one node. Source: Hashmi et al., "Designing efficient shared address space reduction collectives for
    multi-/many-cores", IPDPS 2018 (each rank reduces its partition of all buffers directly).
    """
    n, at = problem.n, shares(problem, problem.nbytes / problem.n)
    b = problem.builder("one_pass", channels=at.channels, parts=n * at.channels * at.depth)
    for i in range(at.depth):
        mine = at.chunk(at.rank, i)
        b.step = 0
        b.reduce(rank=at.rank, dst=b.output[mine], srcs=everywhere(b.input[mine], n), channel=at.channel)
        b.step = 1
        put_to_all(b, at, n, b.output[mine], b.output[mine], i)
    wait_for_all(b, at, n)
    return b
