"""The closed form of every algorithm's cost: T in seconds, steps, and the bytes that the busiest rank and NIC send.

    n ranks, K nodes of g, p = 2^floor(log2 n), M message, B block, k chunks, C channels; hop(S, d), far, near, add as in `cost`

Is: one function per algorithm, each with its formula and source. Is not: used for correctness. Invariant: `steps` and, for
sizes that divide evenly, `rank_bytes` are those of the schedule (upper bounds where the docstring says "at most").
"""

from __future__ import annotations

from .cost import (
    OP_SECONDS,
    Cost,
    broadcast_depth,
    hierarchical_seconds,
    log2_ceil,
    log2_floor,
    of,
    ring_channels,
    ring_depth,
    tree_depth,
    tree_height,
    tree_slices,
)
from .problem import Problem

# -- rings


def _ring(problem: Problem, steps: int, chunk: float, channels: int, reducing: float) -> Cost:
    """T = steps max(C k o, crossing chunks/nic, C chunk/fabric or C add and 1/(C k) of the other, mean over edges of hop + add) + alpha.

    A ring is periodic: its rate is the largest cycle mean of its max-plus matrix, which is either one busy link or the
    round trip of a chunk over all n edges, K of them between nodes (Baccelli et al., "Synchronization and Linearity", 3.2).
    `chunk`: bytes per channel and step; `reducing`: share of the steps that add.
    """
    at = of(problem)
    both, lanes = channels * chunk, channels * (ring_depth(problem, channels) if reducing else 1)
    fabric, added = both / at.fabric, reducing * at.add(both)
    crossings = at.nodes if at.nodes > 1 else 0
    shared = max(1.0, channels * at.one_nic / at.node_nic) if crossings else 0.0
    nic = chunk * shared / at.one_nic if crossings else 0.0
    hop = at.near(chunk) + added / lanes
    round_trip = (crossings * (OP_SECONDS + at.alpha_nic + nic + added / lanes) + (at.n - crossings) * hop) / at.n
    seconds = steps * max(nic, max(fabric, added) + min(fabric, added) / lanes, round_trip, lanes * OP_SECONDS) + at.alpha
    return Cost(seconds, steps, steps * both, steps * chunk * shared)


def all_reduce_ring(problem: Problem) -> Cost:
    """2(n-1) steps of M/n, half of them adding. Patarasuk and Yuan 2009."""
    channels = ring_channels(problem)
    return _ring(problem, 2 * problem.n - 2, problem.nbytes / problem.n / channels, channels, 0.5)


def all_reduce_bidirectional_ring(problem: Problem) -> Cost:
    """As ring, with half of the channels running backwards. Patarasuk and Yuan 2009."""
    channels = ring_channels(problem, both_ways=True)
    return _ring(problem, 2 * problem.n - 2, problem.nbytes / problem.n / channels, channels, 0.5)


def all_gather_ring(problem: Problem) -> Cost:
    """n-1 steps of B. Thakur et al. 2005, 4.1."""
    channels = ring_channels(problem)
    return _ring(problem, problem.n - 1, problem.block_bytes / channels, channels, 0.0)


def reduce_scatter_ring(problem: Problem) -> Cost:
    """n-1 steps of B, all adding. Thakur et al. 2005, 4.2."""
    channels = ring_channels(problem)
    return _ring(problem, problem.n - 1, problem.block_bytes / channels, channels, 1.0)


# -- steps at power-of-two distances


def _distances(problem: Problem) -> list[int]:
    return [1 << i for i in range(log2_floor(problem.n))]


def _far_bytes(problem: Problem, moves: list[tuple[int, float]], senders: int | None = None) -> float:
    """Bytes over the busiest NIC of moves (distance, bytes per rank)."""
    at = of(problem)
    share = at.crowding if senders is None else at.one_nic / at.rank_nic
    return share * sum(nbytes for distance, nbytes in moves if distance >= at.group) if at.nodes > 1 else 0.0


def all_reduce_halving_doubling(problem: Problem) -> Cost:
    """T = sum over i < log2 p of 2 hop(M/2^(i+1), 2^i) + add; and 2 hop(M, p) + add if p < n. Thakur et al. 2005, 4.5."""
    at, size = of(problem), problem.nbytes
    core = 1 << log2_floor(problem.n)
    extra = problem.n > core
    moves = [(d, size / (2 * d)) for d in _distances(problem)]
    seconds = sum(2 * at.hop(nbytes, d) + at.add(nbytes) for d, nbytes in moves)
    seconds += (2 * at.hop(size, core) + at.add(size)) if extra else 0.0
    folded = [(core, size / 2)] if extra else []
    return Cost(seconds, 2 * len(moves) + 2 * extra, 2 * (core - 1) / core * size + extra * size,
                2 * _far_bytes(problem, moves + folded))


def all_reduce_recursive_doubling(problem: Problem) -> Cost:
    """T = sum over i < log2 p of hop(M, 2^i) + add(M); and 2 hop(M, p) + add if p < n. Thakur et al. 2005, 4.5."""
    at, size = of(problem), problem.nbytes
    core = 1 << log2_floor(problem.n)
    extra = problem.n > core
    moves = [(d, float(size)) for d in _distances(problem)]
    seconds = sum(at.hop(size, d) + at.add(size) for d, _ in moves) + ((2 * at.hop(size, core) + at.add(size)) if extra else 0.0)
    return Cost(seconds, len(moves) + 2 * extra, (len(moves) + extra) * size, _far_bytes(problem, moves + [(core, size)] * extra))


def all_reduce_double_binary_tree(problem: Problem) -> Cost:
    """T = latency of 2h hops + max(2M/(NICs of a node), 2M/fabric + add(M), 4 C k o); K = 2: M over the NICs.

    At most 2M a rank on one node, 3M on several (2M where slices divide evenly among the ranks of a node). Sanders et al. 2009.
    """
    at, size = of(problem), problem.nbytes
    slices, depth, height = tree_slices(problem), tree_depth(problem), tree_height(problem)
    chunk = size / 2 / slices / depth
    across = log2_ceil(at.nodes) if at.nodes > 1 else 0
    latency = 2 * across * (at.far(chunk, 1) + at.add(chunk)) + 2 * (height - across) * (at.near(chunk) + at.add(chunk))
    crossing = min(at.nodes - 1, 2) * size / slices * max(1.0, slices * at.one_nic / at.node_nic) if across else 0.0
    seconds = latency + max(crossing / at.one_nic, 2 * size / at.fabric + at.add(size), 4 * slices * depth * OP_SECONDS)
    return Cost(seconds, 4 * (depth + 2 * height - 1), (2 if at.nodes == 1 else 3) * size, crossing)


def all_reduce_direct(problem: Problem) -> Cost:
    """T = alpha + max((n-1) o, (g-1)M/fabric, (n-g)M g/NICs of a node) + add(M, n). One shot, NCCLX 2.2."""
    return _everyone(problem, problem.nbytes, of(problem).add(problem.nbytes, problem.n))


def _everyone(problem: Problem, nbytes: float, extra: float, steps: int = 1) -> Cost:
    """Everyone sends `nbytes` to everyone at once, and then works for `extra` seconds."""
    at = of(problem)
    far = at.n - at.group if at.nodes > 1 else 0
    seconds = at.alpha + max((at.n - 1) * OP_SECONDS, (at.group - 1) * nbytes / at.fabric, far * nbytes * at.crowding / at.one_nic)
    return Cost(seconds + extra, steps, (at.n - 1) * nbytes, far * nbytes * at.crowding)


def all_reduce_hierarchical(problem: Problem) -> Cost:
    """T of `cost.rings_seconds`; 2(g-1)M/g inside the node and 2(K-1)M/(gK) between nodes. Jia et al. 2018, 3.3."""
    at, share = of(problem), problem.nbytes / of(problem).group
    crosses = 2 * (at.nodes - 1) * share / at.nodes
    seconds = hierarchical_seconds(problem)
    return Cost(seconds, 2 * at.nodes, 2 * (at.group - 1) * share + crosses, crosses * at.crowding)


def all_gather_recursive_doubling(problem: Problem) -> Cost:
    """T = sum of hop(b B n/p, d), near first b = d, far first b = p/(2d); and hop(B, p) + hop((n-1)B, p) if p < n.

    (n-1)B a rank for n = p; otherwise rank 0 sends (p-1 + sum of min(2^i, n-p) + n-1)B, or ceil((n-p)/2^(i+1)) far first.
    Thakur et al. 2005, 4.1.
    """
    far_first, n = problem.topology.n_nodes > 1, problem.n
    core = 1 << log2_floor(n)
    cost = _recursive(problem, 0.0, far_first=far_first, fold_in=1, fold_out=n - 1)
    if n == core:
        return cost
    extras = sum(-(-(n - core) // (2 * d)) if far_first else min(d, n - core) for d in _distances(problem))
    return cost._replace(rank_bytes=(core - 1 + extras + n - 1) * problem.block_bytes)


def reduce_scatter_recursive_halving(problem: Problem) -> Cost:
    """T = sum of hop(b B n/p, d) + add, near first b = p/(2d), far first b = d; and hop(nB, p) + hop(B, p) + add if p < n.

    (n-1)B a rank for n = p; at most nB otherwise. Thakur et al. 2005, 4.2.
    """
    return _recursive(problem, 1.0, far_first=problem.topology.n_nodes > 1, fold_in=problem.n, fold_out=1)


def _recursive(problem: Problem, adding: float, far_first: bool, fold_in: int, fold_out: int) -> Cost:
    at, n, block = of(problem), problem.n, problem.block_bytes
    core = 1 << log2_floor(n)
    moves = [(d, (core // (2 * d) if far_first else d) * block * n / core) for d in _distances(problem)]
    seconds = sum(at.hop(nbytes, d) + adding * at.add(nbytes) for d, nbytes in moves)
    rank_bytes = (n - 1) * block
    if n > core:
        seconds += at.hop(fold_in * block, core) + at.hop(fold_out * block, core) + adding * at.add(fold_in * block)
        moves += [(core, (fold_in + fold_out) * block)]
        rank_bytes = n * block
    return Cost(seconds, log2_floor(n) + 2 * (n > core), rank_bytes, _far_bytes(problem, moves))


def all_gather_bruck(problem: Problem) -> Cost:
    """T = sum over s of far(min(2^s, n - 2^s) B), min(2^s, g) senders a node, as the first of a node always crosses. Bruck et al. 1997."""
    at, n = of(problem), problem.n
    moves = [(1 << s, min(1 << s, n - (1 << s)) * problem.block_bytes) for s in range(log2_ceil(n))]
    sent = (n - 1) * problem.block_bytes
    seconds = sum(at.far(nbytes, min(d, at.group)) for d, nbytes in moves)
    return Cost(seconds, len(moves), sent, max(sent * at.one_nic / at.rank_nic, _far_bytes(problem, moves)) if at.nodes > 1 else 0.0)


def all_gather_direct(problem: Problem) -> Cost:
    """T = alpha + max((n-1) o, (g-1)B/fabric, (n-g)B g/NICs of a node). NCCLX 1.7."""
    return _everyone(problem, problem.block_bytes, 0.0)


def reduce_scatter_direct(problem: Problem) -> Cost:
    """T = alpha + max((n-1) o, (g-1)B/fabric, (n-g)B g/NICs of a node) + add(B, n). NCCLX 1.7."""
    return _everyone(problem, problem.block_bytes, of(problem).add(problem.block_bytes, problem.n))


# -- from and to a root


def _tree(problem: Problem, adding: float, senders_bytes: float) -> Cost:
    at, size = of(problem), problem.nbytes
    moves = [(1 << i, float(size)) for i in range(log2_ceil(problem.n))]
    seconds = sum(at.hop(size, d, 1) + adding * at.add(size) for d, _ in moves)
    return Cost(seconds, len(moves), senders_bytes, _far_bytes(problem, moves, 1))


def broadcast_binomial(problem: Problem) -> Cost:
    """T = sum over i < ceil(log2 n) of hop(M, 2^i), one sender a node. Thakur et al. 2005, 4.3."""
    return _tree(problem, 0.0, log2_ceil(problem.n) * problem.nbytes)


def reduce_binomial(problem: Problem) -> Cost:
    """T = sum over i < ceil(log2 n) of hop(M, 2^i) + add(M). Thakur et al. 2005, 4.4."""
    return _tree(problem, 1.0, problem.nbytes)


def _chain(problem: Problem, adding: float) -> Cost:
    at, channels = of(problem), ring_channels(problem)
    depth = broadcast_depth(problem, channels)
    chunk = problem.nbytes / channels / depth
    both = channels * chunk
    added = adding * at.add(both)
    crossings = at.nodes - 1
    nic = chunk / at.one_nic * max(1.0, channels * at.one_nic / at.node_nic) if crossings else 0.0
    first = crossings * (at.alpha_nic + nic + added) + (at.n - 1 - crossings) * (at.near(both) + added)
    return Cost(first + (depth - 1) * max(nic, both / at.fabric, added, channels * OP_SECONDS), at.n - 1 + depth - 1, problem.nbytes,
                problem.nbytes * max(1 / channels, at.one_nic / at.node_nic) if crossings else 0.0)


def broadcast_pipelined_ring(problem: Problem) -> Cost:
    """T = sum over the chain of hop(M/(Ck)) + (k-1) max(C o, M/(Ck nic), M/(k fabric)). Thakur et al. 2005, 4.3."""
    return _chain(problem, 0.0)


def reduce_ring(problem: Problem) -> Cost:
    """As broadcast_pipelined_ring, with add(M/k) at each hop."""
    return _chain(problem, 1.0)


def _star(problem: Problem, rank_bytes: float) -> Cost:
    at, block = of(problem), problem.block_bytes
    far = at.n - at.group if at.nodes > 1 else 0
    seconds = at.alpha + max((at.n - 1) * OP_SECONDS, (at.group - 1) * block / at.fabric, far * block / at.rank_nic)
    return Cost(seconds, 1, rank_bytes, far * block * at.one_nic / at.rank_nic)


def gather_direct(problem: Problem) -> Cost:
    """T = alpha + max((n-1) o, (g-1)B/fabric, (n-g)B/NICs of the root)."""
    return _star(problem, problem.block_bytes)


def scatter_direct(problem: Problem) -> Cost:
    """T = alpha + max((n-1) o, (g-1)B/fabric, (n-g)B/NICs of the root)."""
    return _star(problem, (problem.n - 1) * problem.block_bytes)


def _subtrees(problem: Problem, rank_blocks: int) -> Cost:
    at, n = of(problem), problem.n
    moves = [(1 << i, min(1 << i, n - (1 << i)) * problem.block_bytes) for i in range(log2_ceil(n))]
    seconds = sum(at.hop(nbytes, d, 1) for d, nbytes in moves)
    return Cost(seconds, len(moves), rank_blocks * problem.block_bytes, _far_bytes(problem, moves, 1))


def gather_binomial(problem: Problem) -> Cost:
    """T = sum over i of hop(min(2^i, n - 2^i) B, 2^i). Thakur and Gropp 2003."""
    n = problem.n
    return _subtrees(problem, max(min(1 << i, n - (1 << i)) for i in range(log2_ceil(n))))


def scatter_binomial(problem: Problem) -> Cost:
    """T = sum over i of hop(min(2^i, n - 2^i) B, 2^i). Thakur et al. 2005, 4.3."""
    return _subtrees(problem, problem.n - 1)


# -- all to all, point to point, barriers


def _copies(problem: Problem) -> float:
    """Seconds of the local copies: the own block, in place every block once more."""
    blocks = problem.n if problem.in_place else 1
    return of(problem).add(blocks * problem.block_bytes, 1)


def all_to_all_direct(problem: Problem) -> Cost:
    """T = alpha + max((n-1) o, (g-1)B/fabric, (n-g)B g/NICs of a node) + copies. NCCLX 2.6: T_c (N-1) + S/BW."""
    return _everyone(problem, problem.block_bytes, _copies(problem), steps=problem.n - 1)


def all_to_all_paired(problem: Problem) -> Cost:
    """T = (g-1) near(B) + (n-g) far(B) + copies. Thakur et al. 2005, 4.6."""
    at, n, block = of(problem), problem.n, problem.block_bytes
    far = n - at.group if at.nodes > 1 else 0
    seconds = (n - 1 - far) * at.near(block) + far * at.far(block) + _copies(problem)
    return Cost(seconds, n - 1 if n & (n - 1) == 0 else n, (n - 1) * block, far * block * at.crowding)


def all_to_all_hierarchical(problem: Problem) -> Cost:
    """T = near(K(g-1)B) + alpha + max((K-1) 3o, (K-1) g B g/NICs of a node) + copies; K = 1: as direct. NCCLX 2.6 (rail peers)."""
    at, block = of(problem), problem.block_bytes
    inside, across = at.nodes * (at.group - 1) * block, (at.nodes - 1) * at.group * block
    if at.nodes == 1:
        return Cost(all_to_all_direct(problem).seconds, 2, inside)
    seconds = max(at.near(inside), at.nodes * (at.group - 1) * OP_SECONDS) + _copies(problem)
    seconds += max(at.far(across), 3 * (at.nodes - 1) * OP_SECONDS)
    return Cost(seconds, at.nodes + 1, inside + across, across * at.crowding)


def send_recv_direct(problem: Problem) -> Cost:
    """T = hop(M). Hockney's model."""
    at = of(problem)
    apart = problem.topology.node_of[problem.root] != problem.topology.node_of[problem.peer]
    moved = 0 if problem.root == problem.peer else problem.nbytes
    return Cost(at.far(moved, 1) if apart else at.near(moved), 1, moved, moved * at.one_nic / at.rank_nic if apart else 0.0)


def barrier_dissemination(problem: Problem) -> Cost:
    """T = ceil(log2 n) (alpha + o). Hensgen et al. 1988."""
    steps = log2_ceil(problem.n)
    return Cost(steps * (of(problem).alpha + OP_SECONDS), steps, 0.0)


def barrier_central(problem: Problem) -> Cost:
    """T = 2 (alpha + (n-1) o). Mellor-Crummey and Scott 1991."""
    return Cost(2 * (of(problem).alpha + (problem.n - 1) * OP_SECONDS), 2, 0.0)
