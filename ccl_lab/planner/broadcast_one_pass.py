"""One-pass broadcast on shared memory: each rank takes its share from the root's buffer and writes it to all outputs.

Invariant: share r of every buffer is touched by rank r alone; the root ends when all have read.
"""

from __future__ import annotations

import numpy as np

from ..ir import Buffer, Builder, Ref
from .mapped import shares, wait_for_all
from .problem import Problem


def one_pass(problem: Problem) -> Builder:
    """A copy from the root of every slice, then a put to each other rank while it is in the cache; the root's output included.

    Steps: 2 (1 among 2 ranks in place). Bytes read from the root and put to peers, per rank: one message; memory reads 1/n of a message and
    writes one. All ranks work alike, where a root that writes to all, or receivers that all read, would leave cores idle.
    Any n, any root, no scratch, one node. Source: the scatter and all-gather of van de Geijn (Thakur et al. 2005, 4.3) on shared memory.
    """
    n, root = problem.n, problem.root
    at = shares(problem, problem.nbytes / n)
    b = problem.builder("one_pass", channels=at.channels, parts=n * at.channels * at.depth)
    for i in range(at.depth):
        mine = at.chunk(at.rank, i)
        b.step = 0
        b.copy(rank=at.rank, src=b.input[mine].at(root), dst=b.output[mine], channel=at.channel)
        if problem.in_place:
            # The root has nothing to copy. This keeps it in step: else its puts would all come before the others' on every port.
            b.flush(rank=np.full(at.channels, root), channel=np.arange(at.channels))
        held = Ref(np.where(at.rank == root, int(Buffer.input), int(Buffer.output)), mine)
        for distance in range(1, n):
            _put(b, problem, at.rank, (at.rank + distance) % n, held, mine, at.channel, last=i == at.depth - 1)
    wait_for_all(b, at, n)
    return b


def _put(b: Builder, problem: Problem, rank: np.ndarray, peer: np.ndarray, held: Ref, mine: np.ndarray, channel: np.ndarray,
         last: bool) -> None:
    """To every peer, but in place not to the root, which has it; the root only hears that it has been read."""
    b.step = np.asarray(rank != problem.root, np.int32)
    rows = (peer != problem.root) if problem.in_place else np.ones(len(rank), bool)
    b.step = b.step[rows]
    b.put(rank=rank[rows], peer=peer[rows], src=Ref(held.buf[rows], mine[rows]), dst=b.output[mine[rows]], channel=channel[rows],
          signal=last)
    if last and not rows.all():
        b.step = 0
        b.signal(rank=rank[~rows], peer=peer[~rows], channel=channel[~rows])
