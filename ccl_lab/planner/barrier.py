"""Barriers: nobody leaves before everyone has entered.

Is: signals only, no bytes. Invariant: every rank's last wait depends on a signal that depends on every rank's first.
"""

from __future__ import annotations

import numpy as np

from ..ir import Builder
from .cost import log2_ceil
from .problem import Problem


def dissemination(problem: Problem) -> Builder:
    """At step s, rank r signals r + 2^s and waits for r - 2^s.

    Steps: ceil(log2 n). Signals per rank: ceil(log2 n). Any n.
    Source: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988.
    """
    n = problem.n
    b = problem.builder("dissemination")
    rank = np.arange(n)
    for b.step in range(log2_ceil(n)):
        b.signal(rank=rank, peer=(rank + (1 << b.step)) % n)
        b.wait(rank=rank, peer=(rank - (1 << b.step)) % n)
    return b


def central(problem: Problem) -> Builder:
    """Everyone signals rank 0, which then signals everyone.

    Steps: 2. Signals: n-1 in, n-1 out of rank 0. Any n. Source: Mellor-Crummey and Scott, ACM TOCS 9(1), 1991 (central barrier).
    """
    b = problem.builder("central")
    others, centre = np.arange(1, problem.n), np.zeros(problem.n - 1, np.int64)
    b.signal(rank=others, peer=centre)
    b.wait(rank=centre, peer=others)
    b.step = 1
    b.signal(rank=centre, peer=others)
    b.wait(rank=others, peer=centre)
    return b


def flat(problem: Problem) -> Builder:
    """Everyone signals everyone: on shared memory a flag of one's own, which all others look at.

    Steps: 1. Signals per rank: n-1. Any n, one node. Source: the flat tree of Jain et al., "Framework for scalable intra-node collective
    operations using shared memory", SC 2018, without a root.
    """
    n, rank = problem.n, np.arange(problem.n)
    b = problem.builder("flat")
    for distance in range(1, n):
        b.signal(rank=rank, peer=(rank + distance) % n)
    for distance in range(1, n):
        b.wait(rank=rank, peer=(rank - distance) % n)
    return b
