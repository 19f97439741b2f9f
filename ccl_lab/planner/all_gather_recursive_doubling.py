"""Recursive doubling all_gather: partners swap all they hold, at every power-of-two distance.

On one node near partners come first, so what a rank holds is one run of blocks. Over several nodes far partners come first,
when there is little to send: between nodes travels one g-th of what near-first would send.
Invariant: rank e of the extra ones (n not a power of two) is represented by rank e - core.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..ir import Buffer, Builder
from .cost import log2_floor
from .problem import Problem
from .runs import Everyone, Run, lanes, put_run, signals_of, wait_run, wait_times


def recursive_doubling(problem: Problem) -> Builder:
    """Recursive doubling, near first on one node, far first over several.

    Steps: log2(p), p the largest power of two <= n, and 2 more if p < n. Bytes sent per rank: p-1 blocks; with p < n up to p-1 more
    for the extra ranks on the way, and n-1 at the end by the partner of each. No scratch.
    Source: Thakur et al. 2005, 4.1; farthest-first: NCCLX, arXiv 2510.20171 (AllGather).
    """
    n, levels = problem.n, log2_floor(problem.n)
    core, extra = 1 << levels, n - (1 << levels)
    channels = problem.slices(problem.nics_per_rank, problem.block_bytes)
    b = problem.builder("recursive_doubling", channels=channels, parts=channels)
    at = lanes(b, core)
    if extra:
        _fold_in(b, core, extra)
    for step in range(levels):
        b.step = step + (extra > 0)
        _swap(b, problem, at, step, levels, first=step == 0)
    if extra:
        b.step = levels + 1
        _fold_out(b, core, extra)
    return b


class Held(NamedTuple):
    """Runs of `count` blocks, from `block` on, `stride` apart, so many `times`: int64[ranks]."""

    block: np.ndarray
    stride: int
    times: np.ndarray
    count: np.ndarray


def _swap(b: Builder, problem: Problem, at: Everyone, step: int, levels: int, first: bool) -> None:
    far_first = problem.topology.n_nodes > 1
    distance = 1 << (levels - 1 - step if far_first else step)
    runs = held_far_first(problem.n, levels, distance) if far_first else held_near_first(problem.n, levels, distance)
    partner = at.rank ^ distance
    for run in runs(at.rank):
        def some(rows: np.ndarray, i: int, run: Held = run) -> None:
            rank, block = at.rank[rows], run.block[rows] + i * run.stride
            own = np.broadcast_to(first, rank.shape) & (block == rank)
            put_run(b, rank, partner[rows], Run(np.where(own, int(Buffer.input), int(Buffer.output)), np.where(own, 0, block)),
                    Run(Buffer.output, block), run.count[rows], at.channel[rows])

        b.repeat(run.times, some)
    if first:
        b.copy(rank=at.rank, src=b.input[at.channel], dst=b.output[at.rank * b.parts + at.channel], channel=at.channel)
    total = sum(run.times * signals_of(b, run.count) for run in runs(partner))
    wait_times(b, at.rank, partner, total, at.channel)


def held_near_first(n: int, levels: int, distance: int):
    """rank -> what it holds before the near-first step of `distance`: its aligned group, and their extras."""
    core = 1 << levels

    def runs(rank):
        low = rank & ~(distance - 1)
        counts = (low, np.full_like(rank, distance)), (low + core, np.clip(n - core - low, 0, distance))
        return [Held(block, 0, np.ones_like(rank), count) for block, count in counts]

    return runs


def held_far_first(n: int, levels: int, distance: int):
    """rank -> what it holds before the far-first step of `distance`: every block equal to it modulo 2 distance."""
    core, stride = 1 << levels, 2 * distance

    def runs(rank):
        block, one = rank % stride, np.ones_like(rank)
        extra = np.clip(-(-(n - core - block) // stride), 0, core // stride)
        return [Held(block, stride, one * (core // stride), one), Held(block + core, stride, extra, one)]

    return runs


def _fold_in(b: Builder, core: int, extra: int) -> None:
    """Extra ranks give their block to their representative, which waits for it."""
    rank, channel = lanes(b, extra)
    own = b.output[(rank + core) * b.parts + channel]
    b.step = 0
    b.put(rank=rank + core, peer=rank, src=b.input[channel], dst=own, channel=channel)
    b.copy(rank=rank + core, src=b.input[channel], dst=own, channel=channel)
    b.wait(rank=rank, peer=rank + core, channel=channel)


def _fold_out(b: Builder, core: int, extra: int) -> None:
    """Extra ranks get every block but their own."""
    rank, channel = lanes(b, extra)
    own = rank + core
    for block, count in ((np.zeros_like(own), own), (own + 1, core + extra - 1 - own)):
        put_run(b, rank, own, Run(Buffer.output, block), Run(Buffer.output, block), count, channel)
    wait_run(b, own, rank, [own, core + extra - 1 - own], channel)
