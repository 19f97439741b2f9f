"""Halving-doubling all_reduce: reduce_scatter by recursive halving, all_gather by recursive doubling.

Is: vector halving with distance doubling, so the large halves stay near and the small ones travel far. Other numbers of
ranks than powers of two: rank e of the extra ones folds into rank e - core first and gets the result at the end.
Invariant: after step s of the halving a rank holds the sum of 2^(s+1) ranks of its range [low, low + size).
"""

from __future__ import annotations

import numpy as np

from ..ir import Buffer, Builder, Ref
from .cost import log2_floor
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
    low, size = channel * core, core
    for level in range(levels):
        low, size = _halve(b, rank, channel, low, size, level, levels, extra, fold)
    for level in reversed(range(levels)):
        low, size = _double(b, rank, channel, low, size, level, 2 * levels - 1 - level + (extra > 0))
    if extra:
        _fold_out(b, core, extra)
    return b


def _halve(b: Builder, rank, channel, low, size, level, levels, extra, fold):
    """Partners at distance 2^level swap halves: each gives one and adds the other."""
    distance, half = 1 << level, size // 2
    upper = (rank & distance) > 0
    keep, give, partner = low + upper * half, low + ~upper * half, rank ^ distance
    landing = level % 2 * b.parts
    b.step = level + (extra > 0)
    folded = (rank < extra) & (level == 0)
    if folded.any():
        f = np.flatnonzero(folded)
        b.wait(rank=rank[f], peer=rank[f] + len(rank) // b.channels, channel=channel[f])
        b.reduce(rank=rank[f], dst=Ref(Buffer.output, give[f], half), channel=channel[f],
                 srcs=[Ref(Buffer.input, give[f], half), Ref(Buffer.scratch, fold + give[f], half)])
    if level >= 2:
        b.wait(rank=rank, peer=partner, channel=channel)  # the partner's landing block is free again
    own = Buffer.input if level == 0 else Buffer.output
    b.put(rank=rank, peer=partner, src=Ref(np.where(folded, int(Buffer.output), int(own)), give, half),
          dst=Ref(Buffer.scratch, landing + give, half), channel=channel)
    b.wait(rank=rank, peer=partner, channel=channel)
    for rows, more in ((np.flatnonzero(~folded), False), (np.flatnonzero(folded), True)):
        at = keep[rows]
        srcs = [Ref(own, at, half), Ref(Buffer.scratch, landing + at, half)]
        srcs += [Ref(Buffer.scratch, fold + at, half)] if more else []
        b.reduce(rank=rank[rows], dst=Ref(Buffer.output, at, half), srcs=srcs, channel=channel[rows])
    if level + 2 < levels:
        b.signal(rank=rank, peer=rank ^ (distance << 2), channel=channel)
    return keep, half


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


def _fold_out(b: Builder, core: int, extra: int) -> None:
    rank, channel = everyone(extra, b.channels)
    whole = Ref(Buffer.output, channel * core, core)
    b.step = 2 * log2_floor(core) + 1
    b.put(rank=rank, peer=rank + core, src=whole, dst=whole, channel=channel)
    b.wait(rank=rank + core, peer=rank, channel=channel)
