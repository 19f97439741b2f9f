"""What direct algorithms share: the order of receivers, where the data of each sender lands, and the sources of one big reduction.

Invariants: sources are always in rank order, so every rank computes bitwise the same sum of floats; in a round no two ranks write to the
same one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..ir import Buffer, Ref
from .problem import Problem


def rounds(problem: Problem, rank: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(receiver, sender) of each of `rank` in the n-1 rounds; int64, as long as `rank`.

    Round (d, k) goes d nodes on and k local indices on, other nodes first: what the ranks of a node send over its NICs at one time goes
    to as many ranks. By distance in rank order all would begin with the next node's first rank, since own node's puts are over at
    once; that incast costs half as much again. Where nodes differ in size, by distance.
    """
    grid = problem.grid
    if grid is None:
        for distance in range(1, problem.n):
            yield (rank + distance) % problem.n, (rank - distance) % problem.n
        return
    nodes, size = grid.shape
    at = np.empty(problem.n, np.int64)
    at[grid.ravel()] = np.arange(problem.n)
    node, local = np.divmod(at[rank], size)
    for d in (*range(1, nodes), 0):
        for k in range(d == 0, size):
            yield grid[(node + d) % nodes, (local + k) % size], grid[(node - d) % nodes, (local - k) % size]


def slot(sender: np.ndarray, receiver: np.ndarray) -> np.ndarray:
    """Scratch block at `receiver` for what `sender` puts: senders in order, the receiver itself left out."""
    return sender - (sender > receiver)


def sources(me: np.ndarray, group: int, own_chunk: np.ndarray, landed_chunk: np.ndarray, parts: int, n_chunks: int = 1) -> list[Ref]:
    """Sources in order 0 … group-1: what landed in each slot, and the INPUT of member `me` at its own place."""
    refs = []
    for member in range(group):
        mine = me == member
        chunk = np.where(mine, own_chunk, slot(np.full_like(me, member), me) * parts + landed_chunk)
        refs.append(Ref(np.where(mine, int(Buffer.input), int(Buffer.scratch)), chunk, n_chunks))
    return refs
