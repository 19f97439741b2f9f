"""Computation whose results go away: compute + reduce_scatter and compute + all_to_all, decomposed (CommFuse, arXiv 2604.24013).

    reduce_scatter, ring    step i: rank r computes its partial of slice (r - 1 - i) while the sum so far arrives from r - 1, adds,
                            sends to r + 1. What is computed first travels farthest; the own slice is last. Slice s is summed in
                            the order s+1, s+2, …, s
    reduce_scatter, direct  step i: rank r computes slice (r + 1 + i) and puts it to its owner; own last; the owner adds to its own
                            what came, in the order s, s-1, s-2, …, s+1
    all_to_all, direct      the same without the adds

Is: schedules; exposed, with slices of time c, a hop alpha + beta and an add of time a on the compute stream:
max(0, c/m + (R-1)(m alpha + beta) - R c) + (R-1) a. Is not: what is computed. Invariants: partition block * m + j makes sub-slice j
of INPUT block `block`; results leave from where they were made. Memory beyond input and output: R - 1 slices.

An add may be fused into the partition that makes the other addend; that partition then waits for what it adds before it starts:

    adds      ring                                   direct
    separate  R - 1 adds                             R - 1 adds
    early                                            the last round's is separate, the others came long before: costs a instead
    fused     none; hides a hop only if              none; hides a hop only if alpha + beta/m <= c (1 - 1/m)
              alpha + beta/m <= c (1 - 1/m)
"""

from __future__ import annotations

import numpy as np

from ..ir import Builder
from .streams import COMM, COMPUTE, before_the_next, tell


def reduce_scatter_ring(b: Builder, n: int, m: int, adds: str) -> None:
    """Sums go round; each rank adds its partial when it has both."""
    r, fused = np.arange(n), adds == "fused"
    for step in range(n):
        b.step = step
        block, last = (r - 1 - step) % n, step == n - 1
        for j in range(m):
            made, arrived = b.input[block * m + j], b.scratch[(step - 1) * m + j]
            result = b.output[j] if last else arrived
            if step == 0:
                result = b.output[j] if last else made
                b.compute(rank=r, arg=block * m + j, produces=made, dst=result, channel=COMPUTE)
            elif fused:
                result = b.output[j] if last else made
                b.wait(rank=r, peer=(r - 1) % n, channel=COMPUTE)
                b.compute(rank=r, arg=block * m + j, produces=made, adds=[arrived], dst=result, channel=COMPUTE)
            else:
                b.compute(rank=r, arg=block * m + j, produces=made, channel=COMPUTE)
                b.wait(rank=r, peer=(r - 1) % n, channel=COMPUTE)
                b.reduce(rank=r, dst=result, srcs=[arrived, made], channel=COMPUTE)
            if not last:
                tell(b, r, COMPUTE, COMM)
                b.put(rank=r, peer=(r + 1) % n, src=result, dst=b.scratch[step * m + j], channel=COMM, sig_channel=COMPUTE)


def reduce_scatter_direct(b: Builder, n: int, m: int, adds: str) -> None:
    """Partials go to their owner, which adds them in the order of their rounds."""
    r, rounds = np.arange(n), range(n - 1)
    fused = rounds[: {"separate": 0, "early": max(n - 2, 0), "fused": n - 1}[adds]]
    for step in range(n - 1):
        b.step = step
        block = (r + 1 + step) % n
        for j in range(m):
            made = b.input[block * m + j]
            b.compute(rank=r, arg=block * m + j, produces=made, channel=COMPUTE)
            tell(b, r, COMPUTE, COMM)
            b.put(rank=r, peer=block, src=made, dst=b.scratch[step * m + j], channel=COMM, sig_channel=COMPUTE)
        before_the_next(b, block, step, n - 2)
    b.step = n - 1
    for j in range(m):
        for step in fused:
            b.wait(rank=r, peer=(r - 1 - step) % n, channel=COMPUTE)
        arrived = [b.scratch[step * m + j] for step in fused]
        b.compute(rank=r, arg=r * m + j, produces=b.input[r * m + j], adds=arrived, dst=b.output[j], channel=COMPUTE)
    for step in rounds[len(fused) :]:
        for j in range(m):
            b.wait(rank=r, peer=(r - 1 - step) % n, channel=COMPUTE)
            b.reduce(rank=r, dst=b.output[j], srcs=[b.output[j], b.scratch[step * m + j]], channel=COMPUTE)


def all_to_all_direct(b: Builder, n: int, m: int) -> None:
    """Blocks go to their peer as they are made, the next rank's first; the own block is made where it belongs."""
    r = np.arange(n)
    for step in range(n - 1):
        b.step = step
        block = (r + 1 + step) % n
        for j in range(m):
            made = b.input[block * m + j]
            b.compute(rank=r, arg=block * m + j, produces=made, channel=COMPUTE)
            tell(b, r, COMPUTE, COMM)
            b.put(rank=r, peer=block, src=made, dst=b.output[r * m + j], channel=COMM)
        before_the_next(b, block, step, n - 2)
    b.step = n - 1
    for j in range(m):
        b.compute(rank=r, arg=r * m + j, produces=b.input[r * m + j], dst=b.output[r * m + j], channel=COMPUTE)
    for step in range(n - 1):
        b.wait(rank=r, peer=(r - 1 - step) % n, channel=COMM, count=m)
