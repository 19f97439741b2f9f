"""Computation on what arrives: all_gather + compute and all_to_all + compute, decomposed (CommFuse, arXiv 2604.24013).

    all_gather, ring    step i: rank r computes shard (r - i) while it forwards it to r + 1; own first, the last moves nothing
    all_gather, direct  rank r puts its shard to r + 1, r + 2, …; computes its own, then r - 1, r - 2, … as they arrive
    all_to_all, direct  the same, with the block of each peer

Is: schedules, cost with slices of time c and a hop alpha + beta: R - 1 transfers of each of m sub-slices per rank; exposed
max(0, c/m + (R-1)(m alpha + beta) - R c). Is not: what is computed. Invariants: partition block * m + j is sub-slice j of the block
of that rank; the transport writes straight into OUTPUT, where it is computed on; nothing is copied but one's own block, where
input and output are apart.
"""

from __future__ import annotations

import numpy as np

from ..ir import Builder, Ref
from .streams import COMM, COMPUTE, before_the_next, tell


def all_gather_ring(b: Builder, n: int, m: int) -> None:
    """Shards go round; each is computed on while it is forwarded."""
    r = np.arange(n)
    for step in range(n):
        b.step = step
        block = (r - step) % n
        for j in range(m):
            here = _own(b, r * m, j) if step == 0 else b.output[block * m + j]
            if step > 0:
                b.wait(rank=r, peer=(r - 1) % n, channel=COMM)
                tell(b, r, COMM, COMPUTE)
            if step < n - 1:
                b.put(rank=r, peer=(r + 1) % n, src=here, dst=b.output[block * m + j], channel=COMM)
            b.compute(rank=r, arg=block * m + j, reads=[here], channel=COMPUTE)
    _keep_own(b, n, m)


def all_gather_direct(b: Builder, n: int, m: int) -> None:
    """Every rank puts its shard to all others, the next one first."""
    r = np.arange(n)
    for step in range(1, n):
        b.step = step - 1
        for j in range(m):
            peer = (r + step) % n
            b.put(rank=r, peer=peer, src=_own(b, r * m, j), dst=b.output[r * m + j], channel=COMM, sig_channel=COMPUTE)
        before_the_next(b, peer, step, n - 1)
    _compute_as_it_arrives(b, n, m, own=[_own(b, r * m, j) for j in range(m)])
    _keep_own(b, n, m)


def all_to_all_direct(b: Builder, n: int, m: int) -> None:
    """Round i: send to r + i, receive from r - i, compute what came in the round before."""
    r = np.arange(n)
    for step in range(1, n):
        b.step = step - 1
        peer = (r + step) % n
        for j in range(m):
            b.put(rank=r, peer=peer, src=b.input[peer * m + j], dst=b.output[r * m + j], channel=COMM, sig_channel=COMPUTE)
        before_the_next(b, peer, step, n - 1)
    _compute_as_it_arrives(b, n, m, own=[b.input[r * m + j] for j in range(m)])
    b.copy(rank=r, src=b.input[r * m : r * m + m], dst=b.output[r * m : r * m + m], channel=COMM)


def _compute_as_it_arrives(b: Builder, n: int, m: int, own: list[Ref]) -> None:
    r = np.arange(n)
    for step in range(n):
        b.step = step
        block = (r - step) % n
        for j in range(m):
            if step > 0:
                b.wait(rank=r, peer=block, channel=COMPUTE)
            b.compute(rank=r, arg=block * m + j, reads=[b.output[block * m + j] if step else own[j]], channel=COMPUTE)


def _own(b: Builder, first: np.ndarray, j: int) -> Ref:
    return b.output[first + j] if b.in_place else b.input[j]


def _keep_own(b: Builder, n: int, m: int) -> None:
    r = np.arange(n)
    b.copy(rank=r, src=b.input[0:m], dst=b.output[r * m : r * m + m], channel=COMM)
