"""Schedules with compute ops, written out by hand for tests of the engine.

Is: matmul + reduce_scatter and all_gather + matmul, each direct. Is not: the planner (`ccl_lab.overlap`).
Channel 0 of a rank computes, channel 1 moves bytes.
"""

from __future__ import annotations

import numpy as np

from ccl_lab.ir import Builder, Schedule


def matmul_reduce_scatter(n: int, parts: int = 1) -> Schedule:
    """Block d of INPUT is what a rank makes for rank d, in `parts` partitions. Each goes off as soon as it is made; the own one is
    made last, and the others are added to it in that same partition."""
    r = np.arange(n)
    b = Builder("reduce_scatter", n, algorithm="direct_decomposed", channels=2, parts=parts, scratch_blocks=max(n - 1, 1))
    for s in range(1, n):
        to = (r + s) % n
        for part in range(parts):
            made = b.input[to * parts + part]
            b.compute(rank=r, arg=to * parts + part, produces=made)
            b.signal(rank=r, peer=r, sig_channel=0)
            b.wait(rank=r, peer=r, channel=1, sig_channel=0)
            b.put(rank=r, peer=to, src=made, dst=b.scratch[(n - 1 - s) * parts + part], channel=1)
        b.step += 1
    for s in range(1, n):
        b.wait(rank=r, peer=(r + s) % n, sig_channel=1, count=parts)
    for part in range(parts):
        others = [b.scratch[(s - 1) * parts + part] for s in range(1, n)]
        b.compute(rank=r, arg=r * parts + part, produces=b.input[r * parts + part], adds=others, dst=b.output[part])
    b.flush(rank=r, channel=1)
    return b.build()


def all_gather_matmul(n: int) -> Schedule:
    """Every rank works on its own block first, then on the others' in the order in which they come."""
    r = np.arange(n)
    b = Builder("all_gather", n, algorithm="direct_decomposed", channels=2)
    for s in range(1, n):
        b.put(rank=r, peer=(r + s) % n, src=b.input[0], dst=b.output[r], channel=1)
    b.copy(rank=r, src=b.input[0], dst=b.output[r])
    b.compute(rank=r, arg=r, reads=[b.output[r]])
    for s in range(1, n):
        source = (r - s) % n
        b.wait(rank=r, peer=source, sig_channel=1)
        b.compute(rank=r, arg=source, reads=[b.output[source]])
    b.flush(rank=r, channel=1)
    return b.build()
