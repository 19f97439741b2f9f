"""Recursive halving reduce_scatter: partners swap the halves they do not keep, and add.

On one node far partners come first, so what a rank keeps is one run of blocks. Over several nodes near partners come first,
so that only a g-th crosses between nodes. Invariants: after step i a rank keeps core / 2^(i+1) blocks, numbered 0, 1, … in
scratch region i; rank e of the extra ones (n not a power of two) is represented by rank e - core, whose blocks come in pairs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..ir import Buffer, Builder
from .cost import log2_floor
from .problem import Problem
from .runs import Run, everyone, put_run, reduce_run, wait_run


class Plan(NamedTuple):
    """What stays the same over the steps: `fold` is the scratch block where the input of an extra rank lands."""

    n: int
    levels: int
    far_first: bool
    fold: int
    regions: tuple[int, ...]

    @property
    def core(self) -> int:
        return 1 << self.levels

    def distance(self, step: int) -> int:
        return 1 << (self.levels - 1 - step if self.far_first else step)

    def kept(self, step: int) -> int:
        """Blocks kept after `step`."""
        return self.core >> (step + 1)

    def block(self, rank, step: int, i: int):
        """The i-th block that `rank` keeps after `step`."""
        d = self.distance(step)
        return (rank & ~(d - 1)) + i if self.far_first else rank % (2 * d) + 2 * d * i

    def held(self, rank, step: int, block, extra: int) -> Run:
        """Where `rank` holds `block` (of its extra rank if `extra`) before `step`: INPUT, then scratch region step - 1."""
        if step == 0:
            return Run(Buffer.input, block + extra * self.core)
        d = self.distance(step)
        index = block - (rank & ~(2 * d - 1)) if self.far_first else (block - rank % d) // d
        return Run(Buffer.scratch, self.regions[step - 1] + extra * self.kept(step - 1) + index)

    def pieces(self, rank, step: int):
        """(i, extra, block, count) for each run that `rank` keeps after `step`."""
        size = self.kept(step)
        for extra in (0, 1) if self.n > self.core else (0,):
            for i in [0] if self.far_first else range(size):
                block = self.block(rank, step, i)
                count = size if self.far_first else 1
                yield i, extra, block, np.clip(self.n - self.core - block, 0, count) if extra else np.full_like(rank, count)


def recursive_halving(problem: Problem) -> Builder:
    """Recursive halving, far first on one node, near first over several.

    Steps: log2(p), p the largest power of two <= n, and 2 more if p < n. Bytes sent per rank: n-1 blocks; with
    p < n at most n (an extra rank sends all of them). Scratch: p-1 blocks; with p < n twice that and n more.
    Source: Thakur et al. 2005, 4.2; vector halving and distance doubling: NCCLX, arXiv 2510.20171.
    """
    n, levels = problem.n, log2_floor(problem.n)
    core, extra = 1 << levels, n - (1 << levels)
    sizes = [(core >> (i + 1)) * (1 + (extra > 0)) for i in range(levels)]
    plan = Plan(n, levels, problem.topology.n_nodes == 1, sum(sizes), tuple(int(x) for x in np.cumsum([0, *sizes[:-1]])))
    channels = problem.slices(problem.nics_per_rank, problem.block_bytes)
    b = problem.builder("recursive_halving", channels=channels, parts=channels, scratch_blocks=sum(sizes) + n * (extra > 0))
    if extra:
        _fold_in(b, plan, extra)
    for step in range(levels):
        b.step = step + (extra > 0)
        _give(b, plan, extra, step)
        _add(b, plan, extra, step)
    if extra:
        b.step = levels + 1
        _fold_out(b, plan, extra)
    return b


def _give(b: Builder, plan: Plan, extra: int, step: int) -> None:
    """The half that the partner keeps goes to it; in the first step with the extra rank's input added."""
    rank, channel = everyone(plan.core, b.channels)
    partner = rank ^ plan.distance(step)
    folded = (rank < extra) & (step == 0)
    for i, is_extra, block, count in plan.pieces(partner, step):
        held = plan.held(rank, step, block, is_extra)
        if folded.any():
            landed = Run(Buffer.scratch, plan.fold + held.block)
            reduce_run(b, rank, landed, [held, landed], np.where(folded, count, 0), channel)
            held = Run(np.where(folded, int(Buffer.scratch), int(held.buf)), np.where(folded, landed.block, held.block))
        slot = plan.regions[step] + is_extra * plan.kept(step) + i
        put_run(b, rank, partner, held, Run(Buffer.scratch, slot), count, channel)


def _add(b: Builder, plan: Plan, extra: int, step: int) -> None:
    """What the partner gave is added to the half kept; the last sum goes to OUTPUT."""
    rank, channel = everyone(plan.core, b.channels)
    pieces = list(plan.pieces(rank, step))
    wait_run(b, rank, rank ^ plan.distance(step), [count for *_, count in pieces], channel)
    folded = (rank < extra) & (step == 0)
    for i, is_extra, block, count in pieces:
        held = plan.held(rank, step, block, is_extra)
        landed = Run(Buffer.scratch, plan.regions[step] + is_extra * plan.kept(step) + i)
        total = Run(Buffer.output, 0) if step == plan.levels - 1 and not is_extra else landed
        reduce_run(b, rank, total, [held, landed], np.where(folded, 0, count), channel)
        if folded.any():
            third = Run(Buffer.scratch, plan.fold + held.block)
            reduce_run(b, rank, total, [held, landed, third], np.where(folded, count, 0), channel)


def _fold_in(b: Builder, plan: Plan, extra: int) -> None:
    rank, channel = everyone(extra, b.channels)
    b.step = 0
    put_run(b, rank + plan.core, rank, Run(Buffer.input, 0), Run(Buffer.scratch, plan.fold), plan.n, channel)
    wait_run(b, rank, rank + plan.core, [plan.n], channel)


def _fold_out(b: Builder, plan: Plan, extra: int) -> None:
    """The block of an extra rank is the second one its representative kept."""
    rank, channel = everyone(extra, b.channels)
    last = Run(Buffer.scratch, plan.regions[-1] + 1)
    put_run(b, rank, rank + plan.core, last, Run(Buffer.output, 0), 1, channel)
    wait_run(b, rank + plan.core, rank, [1], channel)
