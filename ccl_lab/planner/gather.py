"""Gather: the root collects a block of every rank, directly or over a binomial tree; on shared memory directly too.

Invariant: positions count from the root, modulo n; a rank of the tree holds the blocks of positions v+1, v+2, … of its
subtree in scratch blocks 0, 1, …, and its own in INPUT.
"""

from __future__ import annotations

import numpy as np

from ..ir import Buffer, Builder
from .cost import log2_ceil
from .problem import Problem
from .runs import Run, everyone, put_run, wait_run


def direct(problem: Problem) -> Builder:
    """Everyone puts its block into the root's output.

    Steps: 1. Bytes sent per rank: one block (none by the root). Any n, any root, no scratch.
    Source: the linear algorithm of MPI libraries.
    """
    return _direct(problem, "direct", problem.slices(problem.nics_per_rank, problem.block_bytes))


def one_pass(problem: Problem) -> Builder:
    """Everyone writes its block into the root's output: what `direct` does, which on shared memory is one pass by all ranks at once.

    Steps: 1. Bytes sent per rank: one block (none by the root). Any n, any root, no scratch, one node.
    Source: as `direct`; memory reads and writes each block once, the least there is.
    """
    return _direct(problem, "one_pass", problem.slices(1, problem.block_bytes))


def _direct(problem: Problem, name: str, channels: int) -> Builder:
    n, root = problem.n, problem.root
    b = problem.builder(name, channels=channels, parts=channels)
    rank, channel = everyone(n, channels)
    away = rank != root
    b.put(rank=rank[away], peer=root, src=b.input[channel[away]], dst=b.output[rank[away] * b.parts + channel[away]],
          channel=channel[away])
    keep_own(b, root)
    b.wait(rank=np.full(int(away.sum()), root), peer=rank[away], channel=channel[away])
    return b


def keep_own(b: Builder, root: int) -> None:
    """The root's own block."""
    part = np.arange(b.channels)
    b.copy(rank=np.full(b.channels, root), src=b.input[part], dst=b.output[root * b.parts + part], channel=part)


def binomial(problem: Problem) -> Builder:
    """Binomial tree: subtrees travel as one run of blocks.

    Steps: ceil(log2 n). Bytes received by the root: n-1 blocks; sent per rank: its subtree. Scratch: half of the blocks at most.
    Any n, any root. Source: Thakur and Gropp, "Improving the performance of collective operations in MPICH", 2003.
    """
    n, root = problem.n, problem.root
    channels = problem.slices(problem.nics_per_rank, problem.block_bytes)
    b = problem.builder("binomial", channels=channels, parts=channels, scratch_blocks=max(0, (1 << (log2_ceil(n) - 1)) - 1))
    everybody, part = everyone(n, channels)
    for step in range(log2_ceil(n)):
        distance = 1 << step
        rows = everybody % (2 * distance) == distance
        v, channel = everybody[rows], part[rows]
        parent, size = v - distance, np.minimum(distance, n - v)
        to_root = parent == 0
        rank, to = (v + root) % n, (parent + root) % n
        counts = []
        for first, count, src in runs_of_subtree(v, size, to_root, n, root):
            landing = Run(np.where(to_root, int(Buffer.output), int(Buffer.scratch)),
                          np.where(to_root, (first + root) % n, first - parent - 1))
            b.step = step
            put_run(b, rank, to, src, landing, count, channel)
            counts.append(count)
        wait_run(b, to, rank, counts, channel)
    keep_own(b, root)
    return b


def runs_of_subtree(v, size, wraps, n: int, root: int):
    """(first position, count, where it is) of rank v's own block and of its subtree's, cut where ranks wrap to 0."""
    yield v, np.ones_like(v), Run(Buffer.input, 0)
    rest = size - 1
    straight = np.where(wraps, np.clip(n - root - (v + 1), 0, rest), rest)
    yield v + 1, straight, Run(Buffer.scratch, 0)
    yield v + 1 + straight, rest - straight, Run(Buffer.scratch, straight)
