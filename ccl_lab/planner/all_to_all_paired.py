"""Paired all_to_all and all_to_allv: in each step two ranks exchange with each other, and go on when both are done.

Invariant: in a step every rank has one partner at most, so no receiver is written to by two.
"""

from __future__ import annotations

import numpy as np

from ..ir import Builder, Paired
from .all_to_all_direct import exchange_builder, keep_own, receive, send
from .problem import Problem


def paired(problem: Problem) -> Builder:
    """Pairwise exchange: partner r xor s for powers of two, (s - r) mod n otherwise.

    Steps: n-1 for powers of two, else n (in each of which one or two ranks may rest). Bytes sent per rank: n-1 blocks. In place it
    needs n blocks of scratch. Any n. Source: Thakur et al. 2005, 4.6 (pairwise exchange).
    """
    n = problem.n
    b, rank, channel = exchange_builder(problem, "paired", problem.slices(problem.nics_per_rank, problem.block_bytes))
    keep_own(b, problem, rank, channel)
    for b.step, s in enumerate(rounds(n)):
        partner = rank ^ s if n & (n - 1) == 0 else (s - rank) % n
        rows = np.flatnonzero(partner != rank)
        send(b, problem, rank[rows], partner[rows], channel[rows])
        receive(b, problem, rank[rows], partner[rows], channel[rows])
    return b


def exchanges(problem: Problem) -> Paired | None:
    """What `paired` repeats; None of all_to_allv."""
    if problem.counts is not None:
        return None
    return Paired(problem.slices(problem.nics_per_rank, problem.block_bytes), problem.in_place)


def rounds(n: int) -> range:
    """Steps of the exchange."""
    return range(1, n) if n & (n - 1) == 0 else range(n)
