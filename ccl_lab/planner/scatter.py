"""Scatter: the root hands a block to every rank, directly or over a binomial tree; on shared memory every rank takes its own.

Invariant: positions count from the root, modulo n; a rank of the tree holds the blocks of positions v+1, v+2, … of its
subtree in scratch blocks 0, 1, …; its own arrives in OUTPUT.
"""

from __future__ import annotations

import numpy as np

from ..ir import Buffer, Builder
from .cost import log2_ceil
from .problem import Problem
from .runs import Run, everyone, put_run, wait_run


def direct(problem: Problem) -> Builder:
    """The root puts every block where it belongs.

    Steps: 1. Bytes sent by the root: n-1 blocks. Any n, any root, no scratch. Source: the linear algorithm of MPI libraries.
    """
    n, root = problem.n, problem.root
    channels = problem.slices(problem.nics_per_rank, problem.block_bytes)
    b = problem.builder("direct", channels=channels, parts=channels)
    position, channel = everyone(n, channels)
    away = position > 0
    rank, part = (position[away] + root) % n, channel[away]
    b.put(rank=np.full(len(rank), root), peer=rank, src=b.input[rank * b.parts + part], dst=b.output[part], channel=part)
    keep_own(b, root)
    b.wait(rank=rank, peer=root, channel=part)
    return b


def one_pass(problem: Problem) -> Builder:
    """Every rank copies its block from the root's input; the root waits until all have.

    Steps: 1. Bytes read from the root, per rank: one block. Any n, any root, no scratch, one node.
    Source: the linear algorithm by reading, so that n cores work and not one: Jain et al., "Framework for scalable intra-node collective
    operations using shared memory", SC 2018.
    """
    n, root = problem.n, problem.root
    channels = problem.slices(1, problem.block_bytes)
    b = problem.builder("one_pass", channels=channels, parts=channels)
    rank, channel = everyone(n, channels)
    b.copy(rank=rank, src=b.input[rank * b.parts + channel].at(root), dst=b.output[channel], channel=channel)
    away = rank != root
    b.signal(rank=rank[away], peer=root, channel=channel[away])
    b.wait(rank=np.full(int(away.sum()), root), peer=rank[away], channel=channel[away])
    return b


def keep_own(b: Builder, root: int) -> None:
    """The root's own block."""
    part = np.arange(b.channels)
    b.copy(rank=np.full(b.channels, root), src=b.input[root * b.parts + part], dst=b.output[part], channel=part)


def binomial(problem: Problem) -> Builder:
    """Binomial tree: each step hands on the blocks of half of a subtree, as one run of blocks.

    Steps: ceil(log2 n). Bytes sent by the root: n-1 blocks. Scratch: half of the blocks at most. Any n, any root.
    Source: Thakur et al. 2005, 4.3 (first half of the long broadcast).
    """
    n, root = problem.n, problem.root
    channels = problem.slices(problem.nics_per_rank, problem.block_bytes)
    b = problem.builder("binomial", channels=channels, parts=channels, scratch_blocks=max(0, (1 << (log2_ceil(n) - 1)) - 1))
    everybody, part = everyone(n, channels)
    for step in range(log2_ceil(n)):
        distance = 1 << (log2_ceil(n) - 1 - step)
        rows = (everybody % (2 * distance) == 0) & (everybody + distance < n)
        v, channel = everybody[rows], part[rows]
        child, at_root = v + distance, v == 0
        rest = np.minimum(distance, n - child) - 1
        straight = np.where(at_root, np.clip(n - root - (child + 1), 0, rest), rest)
        rank, to = (v + root) % n, (child + root) % n
        pieces = ((child, np.ones_like(child), Run(Buffer.output, 0)), (child + 1, straight, Run(Buffer.scratch, 0)),
                  (child + 1 + straight, rest - straight, Run(Buffer.scratch, straight)))
        for first, count, landing in pieces:
            held = Run(np.where(at_root, int(Buffer.input), int(Buffer.scratch)),
                       np.where(at_root, (first + root) % n, first - v - 1))
            b.step = step
            put_run(b, rank, to, held, landing, count, channel)
        wait_run(b, to, rank, [count for _, count, _ in pieces], channel)
    keep_own(b, root)
    return b
