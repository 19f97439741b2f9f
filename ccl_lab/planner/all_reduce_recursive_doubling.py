"""Recursive doubling all_reduce: everyone swaps the whole message with ranks ever further away.

Is: the algorithm of the fewest steps, for messages that are all latency. Other numbers of ranks than powers of two: rank e of the extra
ones adds into rank e - core first and gets the result at the end. Invariant: after step s a rank holds the sum of 2^(s+1) ranks; both of
a pair add in rank order, so all ranks have the same bits.
"""

from __future__ import annotations

import numpy as np

from ..ir import Buffer, Builder, Ref
from .cost import log2_floor
from .folding import put_result, wait_for_result
from .problem import Problem
from .runs import everyone


def recursive_doubling(problem: Problem) -> Builder:
    """Recursive doubling.

    Steps: log2(p), p the largest power of two <= n, and 2 more if p < n. Bytes sent per rank: log2(p) messages. Scratch: a block for
    each step, since a fast partner of a later step may be early. Source: Thakur et al. 2005, 4.5.
    """
    n, levels = problem.n, log2_floor(problem.n)
    core, extra = 1 << levels, n - (1 << levels)
    channels = problem.slices(problem.nics_per_rank, problem.nbytes)
    b = problem.builder("recursive_doubling", channels=channels, parts=channels, scratch_blocks=levels + (extra > 0))
    rank, channel = everyone(core, channels)
    folded = np.zeros(len(rank), bool)
    if extra:
        _fold_in(b, core, extra, levels)
        folded = rank < extra
    for level in range(levels):
        partner, landing = rank ^ (1 << level), level * b.parts + channel
        # What a rank swaps first is its input, later its partial sum.
        own = np.where((level == 0) & ~folded, int(Buffer.input), int(Buffer.output))
        b.step = level + (extra > 0)
        b.put(rank=rank, peer=partner, src=Ref(own, channel), dst=b.scratch[landing], channel=channel)
        b.wait(rank=rank, peer=partner, channel=channel)
        for rows, theirs_first in ((rank > partner, True), (rank < partner, False)):
            mine, theirs = Ref(own[rows], channel[rows]), b.scratch[landing[rows]]
            b.flush(rank=rank[rows], channel=channel[rows])  # the sum takes the place of what is being sent
            b.reduce(rank=rank[rows], dst=b.output[channel[rows]], srcs=[theirs, mine] if theirs_first else [mine, theirs],
                     channel=channel[rows])
    if extra:
        put_result(b, core, extra, b.output[everyone(extra, channels).channel], levels + 1)
    return b


def _fold_in(b: Builder, core: int, extra: int, levels: int) -> None:
    rank, channel = everyone(extra, b.channels)
    landing = levels * b.parts + channel
    b.step = 0
    b.put(rank=rank + core, peer=rank, src=b.input[channel], dst=b.scratch[landing], channel=channel)
    if b.early_waits:
        wait_for_result(b, core, extra, levels + 1)
        b.step = 0
    b.wait(rank=rank, peer=rank + core, channel=channel)
    b.reduce(rank=rank, dst=b.output[channel], srcs=[b.input[channel], b.scratch[landing]], channel=channel)
