"""Halving-doubling all_reduce: reduce_scatter by recursive halving, all_gather by recursive doubling.

Is: vector halving with distance doubling, so the large halves stay near and the small ones travel far. Other numbers of
ranks than powers of two: rank e of the extra ones folds into rank e - core first and gets the result at the end.
Invariant: after step s of the halving a rank holds the sum of 2^(s+1) ranks of its range [low, low + size).
"""

from __future__ import annotations

import numpy as np

from ..ir import Buffer, Builder, Ref
from .cost import log2_floor
from .folding import put_result, wait_for_result
from .problem import Problem
from .runs import everyone


def halving_doubling(problem: Problem) -> Builder:
    """Rabenseifner's all_reduce.

    Steps: 2 log2(p), p the largest power of two <= n, and 2 more if p < n. Bytes sent per rank: 2(p-1)/p of the message; with
    p < n a folded rank sends one message more. Scratch: 2 blocks (1 if p = 2) used in turn, 1 more for the fold; a
    landing block is written again only after its reader signalled that it is done.
    Source: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; Thakur et al. 2005, 4.5.
    """
    n, levels = problem.n, log2_floor(problem.n)
    core, extra = 1 << levels, n - (1 << levels)
    channels = problem.slices(problem.nics_per_rank, problem.nbytes / core)
    landings = min(2, levels)
    b = problem.builder("halving_doubling", channels=channels, parts=channels * core, scratch_blocks=landings + (extra > 0))
    fold = landings * b.parts
    if extra:
        _fold_in(b, core, extra, fold)
    rank, channel = everyone(core, channels)
    low, size = _halve_all(b, rank, channel, levels, extra, fold), 1
    for level in reversed(range(levels)):
        low, size = _double(b, rank, channel, low, size, level, 2 * levels - 1 - level + (extra > 0))
    if extra:
        put_result(b, core, extra, Ref(Buffer.output, everyone(extra, channels).channel * core, core), 2 * levels + 1)
    return b


def _halve_all(b: Builder, rank, channel, levels, extra, fold):
    """All levels, puts in the order in which they happen: who meets nobody yet that waits for an extra rank is ahead of all others.

    Returns the chunk that each keeps. Its landing block is what a partner that is ahead waits for; if that is free it puts, and waits then.
    """
    row, low = np.arange(len(rank)), channel << levels
    first = [np.full(len(rank), extra > 0)] + [(rank >> level << level >= extra) & (extra > 0) for level in range(1, levels + 1)]
    for ahead in (True, False):
        for level in range(levels):
            puts = first[level] & (first[level - 1][row ^ (1 << level)] if level >= 2 else rank >= extra)
            adds = first[level + 1] | (puts & b.early_waits)
            waits = puts | (first[level] & (level >= 2 and b.early_waits))
            b.step = level + (extra > 0)
            for told, what in ((waits, _wait_for_landing), (puts, _give), (adds, _add)):
                at = np.flatnonzero(told == ahead)
                if len(at):
                    what(b, rank[at], channel[at], low[at], level, levels, extra, fold)
                if what is _add:
                    low[at] += ((rank[at] >> level) & 1) << (levels - 1 - level)
    return low


def _wait_for_landing(b: Builder, rank, channel, low, level, levels, extra, fold):
    """Until the partner's landing block is free again."""
    if level >= 2:
        b.wait(rank=rank, peer=rank ^ (1 << level), channel=channel)


def _halves(rank, low, level, levels):
    """What a rank keeps and what it gives, from which chunk on, and of how many."""
    half = 1 << (levels - 1 - level)
    upper = (rank >> level) & 1
    return low + upper * half, low + (1 - upper) * half, half


def _give(b: Builder, rank, channel, low, level, levels, extra, fold):
    """Partners at distance 2^level swap halves: each gives one."""
    _, give, half = _halves(rank, low, level, levels)
    folded = (rank < extra) & (level == 0)
    if folded.any():
        f = np.flatnonzero(folded)
        b.wait(rank=rank[f], peer=rank[f] + (1 << levels), channel=channel[f])
        b.reduce(rank=rank[f], dst=Ref(Buffer.output, give[f], half), channel=channel[f],
                 srcs=[Ref(Buffer.input, give[f], half), Ref(Buffer.scratch, fold + give[f], half)])
    own = Buffer.input if level == 0 else Buffer.output
    b.put(rank=rank, peer=rank ^ (1 << level), src=Ref(np.where(folded, int(Buffer.output), int(own)), give, half),
          dst=Ref(Buffer.scratch, level % 2 * b.parts + give, half), channel=channel)


def _add(b: Builder, rank, channel, low, level, levels, extra, fold):
    """Each adds the other half, and says two levels before it when its landing block is free."""
    keep, _, half = _halves(rank, low, level, levels)
    folded = (rank < extra) & (level == 0)
    own = Buffer.input if level == 0 else Buffer.output
    b.wait(rank=rank, peer=rank ^ (1 << level), channel=channel)
    for rows, more in ((np.flatnonzero(~folded), False), (np.flatnonzero(folded), True)):
        at = keep[rows]
        srcs = [Ref(own, at, half), Ref(Buffer.scratch, level % 2 * b.parts + at, half)]
        srcs += [Ref(Buffer.scratch, fold + at, half)] if more else []
        b.reduce(rank=rank[rows], dst=Ref(Buffer.output, at, half), srcs=srcs, channel=channel[rows])
    if level + 2 < levels:
        b.signal(rank=rank, peer=rank ^ (4 << level), channel=channel)


def _double(b: Builder, rank, channel, low, size, level, step):
    """Partners at distance 2^level swap what they hold."""
    distance = 1 << level
    held = Ref(Buffer.output, low, size)
    b.step = step
    b.put(rank=rank, peer=rank ^ distance, src=held, dst=held, channel=channel)
    b.wait(rank=rank, peer=rank ^ distance, channel=channel)
    return low - ((rank & distance) > 0) * size, 2 * size


def _fold_in(b: Builder, core: int, extra: int, fold: int) -> None:
    rank, channel = everyone(extra, b.channels)
    low = channel * core
    b.step = 0
    b.put(rank=rank + core, peer=rank, src=Ref(Buffer.input, low, core), dst=Ref(Buffer.scratch, fold + low, core), channel=channel)
    if b.early_waits:
        wait_for_result(b, core, extra, 2 * log2_floor(core) + 1)
