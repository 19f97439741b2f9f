"""What direct algorithms share: the order of receivers, where the data of each sender lands, and the sources of one big reduction.

**Timetable.** Where ranks share NICs unevenly, as around a lost one, what a node puts to one other is a step of a timetable. Each NIC may
carry for another number of ranks then, and all puts at once would fill the turns that one leaves free with any later ones, until nearly
every NIC waits for one that is elsewhere. That takes as long or longer, and nobody could say which turns they are but by dealing out all.

Invariants: sources are always in rank order, so every rank computes bitwise the same sum of floats; in a round no two ranks write to the
same one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..ir import Buffer, Cuts, Ref
from .degraded import rows_alike
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


def steps(problem: Problem, timetable: bool) -> Iterator[int]:
    """Step of each round: 0, or in a timetable one for all that goes to one other node."""
    nodes, size = (1, problem.n) if problem.grid is None else problem.grid.shape
    for number in range(problem.n - 1):
        yield min(number // size, nodes - 1) if timetable else 0


def cuts(problem: Problem, channels: int, alone: bool = True) -> Cuts | None:
    """What nodes put to each other step by step; None where all use their NICs evenly, and alike, so that no timetable is needed.

    alone: no rank adds or copies what came on one channel beside what came on others: the order of these would have to be timed, too.
    """
    grid, topology = problem.grid, problem.topology
    if grid is None or len(grid) == 1 or not alone:
        return None
    nic = topology.nic_of(grid[:, None, :], np.arange(channels)[None, :, None]).reshape(len(grid), -1)
    first, kind = rows_alike(nic)
    users = np.bincount(nic[0])
    if len(first) == 1 and len(np.unique(users[users > 0])) == 1:
        return None
    nodes, each = np.flatnonzero(kind != np.bincount(kind).argmax()), np.ones(channels, np.int64)
    table = np.ones((len(nodes), grid.shape[1], channels), np.int64)
    return Cuts(channels, each, nodes, table, np.ones(len(nodes) + 1), each, by_node=True)


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
