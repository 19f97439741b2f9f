"""The first puzzle: a ring all_gather in five lines."""

from __future__ import annotations

import numpy as np

from ..ir import Kind, Schedule
from .model import Puzzle

TASK = """\
Write a ring all_gather. Every rank begins with one block in its input; at the end the output of every rank holds
all blocks, by rank. Each rank may write to its right neighbour only, and each block must travel each hop once.
Your function gets a Builder `b` and the number of ranks `n`; five lines are enough."""

PICTURE = """\
              rank 0      rank 1      rank 2      rank 3
copy          A . . .     . B . .     . . C .     . . . D
step 0        A . . D     A B . .     . B C .     . . C D      rank r sends its own block
step 1        A . C D     A B . D     A B C .     . B C D      ... and then what it just got
step 2        A B C D     A B C D     A B C D     A B C D"""

HINTS = (
    "work with r = np.arange(n): one call of b.put emits a row for every rank. b.copy moves the input to its place in the output.",
    "at step s, rank r sends block (r - s) % n to rank (r + 1) % n; source and destination are the same chunk of the output.",
    "a rank may send a block only once it has arrived: after each put, b.wait(rank=r, peer=(r - 1) % n).",
    "b.copy(rank=r, src=b.input[0], dst=b.output[r]); then for s in range(n - 1): "
    "a put from b.output[(r - s) % n] to b.output[(r - s) % n], and the wait of hint 3.",
)


def obeys(schedule: Schedule) -> str | None:
    """None for a ring; else what it breaks."""
    ops, n = schedule.ops, schedule.n_ranks
    if np.any(ops.kind == Kind.get):
        return "it reads from peers: use put."
    puts = ops.kind == Kind.put
    stray = puts & (ops.peer != (ops.rank + 1) % n)
    if np.any(stray):
        op = int(np.flatnonzero(stray)[0])
        return (
            f"rank {ops.rank[op]} writes to rank {ops.peer[op]}, which is not its right neighbour (op {op})."
        )
    hops = int(ops.n_chunks[puts].sum())
    if hops != n * (n - 1):
        return f"blocks travel {hops} hops: expected {n * (n - 1)}, each block n - 1 of them."
    return None


ring_all_gather = Puzzle("ring_all_gather", TASK, PICTURE, HINTS, "all_gather", obeys)
