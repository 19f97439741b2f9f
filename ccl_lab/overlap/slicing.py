"""The rivals of decomposition: the whole collective before or after the computation, and both cut in k slices.

    sequential (k = 1)  one computation, one collective, one after the other: exposes (R - 1)(alpha + beta)
    k_slice             slice j of every block is computed while the collective of slice j - 1 (or j + 1) runs: exposes
                        q + (k - 1) max(0, q - R c / k), q = (R - 1)(alpha + beta / k)

Is: schedules with a ring collective (all_to_all: R - 1 rounds) per slice. Is not: pipelined inside a collective: the next slice's
collective begins when this one is done at the rank. Invariants: partition block * k + j is part j of a block; with k = 1 there is
one partition, 0, the whole. A reduce_scatter adds on the communication channel.
"""

from __future__ import annotations

import numpy as np

from ..ir import Builder
from .streams import COMM, COMPUTE, tell


def all_gather(b: Builder, n: int, k: int) -> None:
    """Gather slice j, then compute on it while slice j + 1 is gathered."""
    r = np.arange(n)
    for j in range(k):
        for step in range(n):
            b.step = j * n + step
            block = (r - step) % n
            if step > 0:
                b.wait(rank=r, peer=(r - 1) % n, channel=COMM)
            if step < n - 1:
                own = step == 0 and not b.in_place
                src = b.input[j] if own else b.output[block * k + j]
                b.put(rank=r, peer=(r + 1) % n, src=src, dst=b.output[block * k + j], channel=COMM)
            if step == 0:
                b.copy(rank=r, src=b.input[j], dst=b.output[r * k + j], channel=COMM)
        tell(b, r, COMM, COMPUTE)
        _read_slice(b, n, k, j)


def all_to_all_before(b: Builder, n: int, k: int) -> None:
    """Exchange slice j, then compute on it while slice j + 1 is exchanged."""
    r = np.arange(n)
    for j in range(k):
        _exchange(b, n, k, j)
        tell(b, r, COMM, COMPUTE)
        _read_slice(b, n, k, j)


def all_to_all_after(b: Builder, n: int, k: int) -> None:
    """Compute slice j, then exchange it while slice j + 1 is computed."""
    r = np.arange(n)
    for j in range(k):
        _make_slice(b, n, k, j)
        tell(b, r, COMPUTE, COMM)
        _exchange(b, n, k, j)


def reduce_scatter(b: Builder, n: int, k: int) -> None:
    """Compute slice j, then reduce_scatter it round the ring while slice j + 1 is computed."""
    r = np.arange(n)
    for j in range(k):
        _make_slice(b, n, k, j)
        tell(b, r, COMPUTE, COMM)
        for step in range(n - 1):
            b.step = j * n + step
            block = (r - 2 - step) % n
            src = b.input[(r - 1) % n * k + j] if step == 0 else b.scratch[(step - 1) * k + j]
            arrived = b.scratch[step * k + j]
            b.put(rank=r, peer=(r + 1) % n, src=src, dst=arrived, channel=COMM)
            b.wait(rank=r, peer=(r - 1) % n, channel=COMM)
            result = b.output[j] if step == n - 2 else arrived
            b.reduce(rank=r, dst=result, srcs=[arrived, b.input[block * k + j]], channel=COMM)
        if n == 1:
            b.copy(rank=r, src=b.input[j], dst=b.output[j], channel=COMM)


def _exchange(b: Builder, n: int, k: int, j: int) -> None:
    r = np.arange(n)
    for step in range(1, n):
        b.step = j * n + step - 1
        peer = (r + step) % n
        b.put(rank=r, peer=peer, src=b.input[peer * k + j], dst=b.output[r * k + j], channel=COMM)
    b.copy(rank=r, src=b.input[r * k + j], dst=b.output[r * k + j], channel=COMM)
    for step in range(1, n):
        b.wait(rank=r, peer=(r - step) % n, channel=COMM)


def _read_slice(b: Builder, n: int, k: int, j: int) -> None:
    r = np.arange(n)
    if k == 1:
        b.compute(rank=r, arg=0, reads=[b.output[0:n]], channel=COMPUTE)
        return
    for step in range(n):
        block = (r - step) % n
        b.compute(rank=r, arg=block * k + j, reads=[b.output[block * k + j]], channel=COMPUTE)


def _make_slice(b: Builder, n: int, k: int, j: int) -> None:
    r = np.arange(n)
    if k == 1:
        b.compute(rank=r, arg=0, produces=b.input[0:n], channel=COMPUTE)
        return
    for step in range(n):
        block = (r + 1 + step) % n
        b.compute(rank=r, arg=block * k + j, produces=b.input[block * k + j], channel=COMPUTE)
