"""What all_to_allv_dynamic, dispatch and combine must give, for all ranks at once, in plain numpy.

Is: the definition that the engine is compared with, bit by bit; one loop for each sentence of the documentation. Is not: fast, and
not used by anything that moves bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .moe import Dispatched, Placement, accumulator

Received = tuple[np.ndarray, np.ndarray, np.ndarray]  # buffers, lengths, rows


def all_to_allv_dynamic(
    x: list[np.ndarray], lengths: list[Any], ids: list[Any], blocks: list[Any], outs: list[np.ndarray]
) -> list[Received]:
    """By rank: its receive buffers, which begin as outs[rank] ([ranks, capacity, ...]), everybody's lengths, and the rows that came."""
    n = len(x)
    found = [(out.copy(), np.array(lengths, np.int64), np.zeros(n, np.int64)) for out in outs]
    for sender in range(n):
        begins = np.concatenate([[0], np.cumsum(lengths[sender])])
        listed = iter(ids[sender])
        for receiver in range(n):
            buffers, _, rows = found[receiver]
            for _ in range(blocks[sender][receiver]):
                split = next(listed)
                for row in x[sender][begins[split] : begins[split + 1]]:
                    buffers[sender, rows[sender]] = row
                    rows[sender] += 1
    return found


def dispatch(x: list[np.ndarray], experts: list[np.ndarray], weights: list[np.ndarray], where: Placement, dedup: bool) -> list[Dispatched]:
    """By rank: the tokens that have an expert there, in the order in which they come."""
    found = []
    for rank in range(len(x)):
        order = [(sender, token) for sender, token in _order(x, where, rank, dedup) if _wants(experts[sender][token], where, rank)]
        k = experts[0].shape[1]
        tokens = np.array([x[s][t] for s, t in order], x[0].dtype).reshape(-1, x[0].shape[1])
        mine = [[e if e >= 0 and where.owner[e] == rank else -1 for e in experts[s][t]] for s, t in order]
        factors = np.array([weights[s][t] for s, t in order], np.float32).reshape(-1, k)
        pairs = np.array(order, np.int32).reshape(-1, 2)
        found.append(Dispatched(tokens, np.array(mine, np.int32).reshape(-1, k), factors, pairs[:, 0], pairs[:, 1]))
    return found


def combine(y: list[np.ndarray], came: list[Dispatched], tokens: list[int], where: Placement, dedup: bool) -> list[np.ndarray]:
    """By rank: the sum of what came back for each of its tokens, in the order in which it is added."""
    n, hidden, dtype = len(y), y[0].shape[1], y[0].dtype
    totals = []
    for sender in range(n):
        total = np.zeros((tokens[sender], hidden), accumulator(dtype))
        for token in range(tokens[sender]):
            groups = [where.ranks_of(node) for node in range(where.n_nodes)] if dedup else [[rank] for rank in range(n)]
            for group in groups:
                made = [value for rank in group for value in _made(y[rank], came[rank], sender, token)]
                if not made:
                    continue
                partial = np.zeros(hidden, accumulator(dtype))
                for value in made:
                    partial += value
                total[token] += partial.astype(dtype)
        totals.append(total.astype(dtype))
    return totals


def dense(
    x: np.ndarray, experts: np.ndarray, weights: np.ndarray, expert: Any
) -> np.ndarray:
    """The layer without ranks, in float64: each token through each of its experts. expert(e, token) -> its result."""
    found = np.zeros(x.shape, np.float64)
    for token, (chosen, factors) in enumerate(zip(experts, weights, strict=True)):
        for e, factor in zip(chosen, factors, strict=True):
            if e >= 0:
                found[token] += np.float64(factor) * expert(int(e), x[token].astype(np.float64))
    return found


def rows_over_rails(experts: list[np.ndarray], where: Placement, dedup: bool) -> np.ndarray:
    """int64[nodes, nodes]: tokens that go from node to node; what the bitmaps predict. The way back carries as many."""
    found = np.zeros((where.n_nodes, where.n_nodes), np.int64)
    for sender, chosen in enumerate(experts):
        wanted = where.destinations(chosen)
        bitmaps = where.bitmaps(wanted)
        for node in range(where.n_nodes):
            rows = (bitmaps[:, node] > 0).sum() if dedup else wanted[:, where.ranks_of(node)].sum()
            found[where.node_of[sender], node] += rows
    np.fill_diagonal(found, 0)
    return found


def _wants(experts: np.ndarray, where: Placement, rank: int) -> bool:
    return any(e >= 0 and where.owner[e] == rank for e in experts)


def _order(x: list[np.ndarray], where: Placement, rank: int, dedup: bool) -> list[tuple[int, int]]:
    """(sender, token) in the order in which they would come to `rank`: dedup: through the rail peers of its node, in turn."""
    senders = list(range(len(x)))
    if dedup:
        senders.sort(key=lambda sender: (where.local_of[sender], where.node_of[sender]))
    return [(sender, token) for sender in senders for token in range(len(x[sender]))]


def _made(y: np.ndarray, came: Dispatched, sender: int, token: int) -> list[np.ndarray]:
    return [y[row] for row in np.flatnonzero((came.senders == sender) & (came.indices == token))]
