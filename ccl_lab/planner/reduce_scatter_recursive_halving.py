"""Recursive halving reduce_scatter: partners swap the halves they do not keep, and add.

On one node far partners come first, so what a rank keeps is one run of blocks. Over several nodes near partners come first,
so that only a g-th crosses between nodes. Invariants: after step i a rank keeps core / 2^(i+1) blocks, numbered 0, 1, … in
scratch region i; rank e of the extra ones (n not a power of two) is represented by rank e - core, whose blocks come in pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..ir import Buffer, Builder
from .cost import log2_floor
from .problem import Problem
from .runs import Run, lanes, put_run, reduce_run, signals_of, wait_run, wait_times


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

    def pieces(self, rank, step: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """(extra, times, count): `rank` keeps after `step` so many times a run of `count` blocks, the i-th one from block(…, i) on."""
        size, one = self.kept(step), np.ones_like(rank)
        for extra in (0, 1) if self.n > self.core else (0,):
            most = self.n - self.core - self.block(rank, step, 0) if extra else size * one  # blocks that there are
            if self.far_first:
                yield extra, one, np.clip(most, 0, size)
            else:
                yield extra, np.clip(-(-most // (2 * self.distance(step))), 0, size) if extra else most, one


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
    rank, channel = lanes(b, plan.core)
    partner = rank ^ plan.distance(step)
    folded = (rank < extra) & (step == 0)
    repeat = b.rounds if folded.any() else b.repeat
    for is_extra, times, counts in plan.pieces(partner, step):
        def some(rows: np.ndarray, i: int, is_extra: int = is_extra, counts: np.ndarray = counts) -> None:
            mine, at, count, first = rank[rows], channel[rows], counts[rows], folded[rows]
            held = plan.held(mine, step, plan.block(partner[rows], step, i), is_extra)
            if first.any():
                landed = Run(Buffer.scratch, plan.fold + held.block)
                reduce_run(b, mine, landed, [held, landed], np.where(first, count, 0), at)
                held = Run(np.where(first, int(Buffer.scratch), int(held.buf)), np.where(first, landed.block, held.block))
            slot = plan.regions[step] + is_extra * plan.kept(step) + i
            put_run(b, mine, partner[rows], held, Run(Buffer.scratch, slot), count, at)

        repeat(times, some)


def _add(b: Builder, plan: Plan, extra: int, step: int) -> None:
    """What the partner gave is added to the half kept; the last sum goes to OUTPUT."""
    rank, channel = lanes(b, plan.core)
    pieces = list(plan.pieces(rank, step))
    signals = sum(times * signals_of(b, count) for _, times, count in pieces)
    wait_times(b, rank, rank ^ plan.distance(step), signals, channel)
    folded = (rank < extra) & (step == 0)
    repeat = b.rounds if folded.any() else b.repeat
    for is_extra, times, counts in pieces:
        def some(rows: np.ndarray, i: int, is_extra: int = is_extra, counts: np.ndarray = counts) -> None:
            mine, at, count, first = rank[rows], channel[rows], counts[rows], folded[rows]
            held = plan.held(mine, step, plan.block(mine, step, i), is_extra)
            landed = Run(Buffer.scratch, plan.regions[step] + is_extra * plan.kept(step) + i)
            total = Run(Buffer.output, 0) if step == plan.levels - 1 and not is_extra else landed
            reduce_run(b, mine, total, [held, landed], np.where(first, 0, count), at)
            if first.any():
                third = Run(Buffer.scratch, plan.fold + held.block)
                reduce_run(b, mine, total, [held, landed, third], np.where(first, count, 0), at)

        repeat(times, some)


def _fold_in(b: Builder, plan: Plan, extra: int) -> None:
    rank, channel = lanes(b, extra)
    b.step = 0
    put_run(b, rank + plan.core, rank, Run(Buffer.input, 0), Run(Buffer.scratch, plan.fold), plan.n, channel)
    wait_run(b, rank, rank + plan.core, [plan.n], channel)


def _fold_out(b: Builder, plan: Plan, extra: int) -> None:
    """The block of an extra rank is the second one its representative kept."""
    rank, channel = lanes(b, extra)
    last = Run(Buffer.scratch, plan.regions[-1] + 1)
    put_run(b, rank, rank + plan.core, last, Run(Buffer.output, 0), 1, channel)
    wait_run(b, rank + plan.core, rank, [1], channel)
