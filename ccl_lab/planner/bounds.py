"""Lower bounds: seconds that no schedule of a collective can beat on the NICs of a topology.

    a node moves at least        its own contribution out once, what it lacks in once, at the rate of its NICs
    all nodes together move      2(K-1) messages (all_reduce over K nodes), over the sum of all rates

Is: what crosses between nodes, counted in bytes. Is not: an estimate (no latency, no memory, no fabric). Invariant: monotone: a slower NIC
never lowers a bound. Sources: derived from counting; for one straggler equal to OptCC, arXiv 2606.01680:
T/T0 >= max{n/(n-X), n/(2(n-1)(1-X))} for all_reduce.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import UsageError
from ..topo import Topology
from ..units import Size
from .problem import Problem, make_problem


def lower_bound(topology: Topology, collective: str, nbytes: Size, *, root: int = 0, peer: int = 1, counts: Any = None) -> float:
    """Seconds below which no schedule of `collective` of `nbytes` (as nccl-tests count) can be on `topology`.

    0.0 on a single node and for barriers. Raises UsageError for unknown names and ranks, and where a node that must send has no NIC.
    """
    return of_problem(make_problem(collective, topology, nbytes, dtype="int8", redop="sum", in_place=False, root=root, peer=peer,
                                   channels=None, counts=counts))


def of_problem(problem: Problem) -> float:
    """`lower_bound` of a problem."""
    topology = problem.topology
    if topology.n_nodes == 1 or problem.collective == "barrier":
        return 0.0
    rate = topology.nic_bytes_per_s.reshape(topology.n_nodes, -1).sum(axis=1).astype(float)
    out, into, total = _moves(problem)
    most = np.maximum(out, into)
    if (most[rate == 0] > 0).any():
        node = int(np.flatnonzero((rate == 0) & (most > 0))[0])
        raise UsageError(f"node {node} of topology {topology.name!r} has no NIC that is up; {problem.collective} cannot cross.")
    alone = float(np.max(most / np.maximum(rate, 1e-9), where=rate > 0, initial=0.0))
    return max(alone, total / float(rate.sum()))


def _moves(problem: Problem) -> tuple[np.ndarray, np.ndarray, float]:
    """Bytes that each node must send, and receive, f64[n_nodes]; and bytes that all together must send."""
    topology, nodes = problem.topology, problem.topology.n_nodes
    group, block = topology.ranks_per_node.astype(float), float(problem.block_bytes)
    everything = np.full(nodes, float(problem.nbytes))
    own, others = group * block, (problem.n - group) * block
    root = np.arange(nodes) == topology.node_of[problem.root]
    match problem.collective:
        case "all_reduce":
            return everything, everything, 2 * (nodes - 1) * problem.nbytes
        case "all_gather":
            return own, others, float(others.sum())
        case "reduce_scatter":
            return others, own, float(others.sum())
        case "broadcast":
            return everything * root, everything * ~root, (nodes - 1) * problem.nbytes
        case "reduce":
            return everything * ~root, everything * root, (nodes - 1) * problem.nbytes
        case "gather":
            return own * ~root, others * root, float((own * ~root).sum())
        case "scatter":
            return others * root, own * ~root, float((own * ~root).sum())
        case "send_recv":
            peer = np.arange(nodes) == topology.node_of[problem.peer]
            return everything * (root & ~peer), everything * (peer & ~root), problem.nbytes * float((root & ~peer).any())
    if problem.counts is None:
        return group * others, group * others, float((group * others).sum())
    pairs = problem.counts * float(_item(problem))
    across = topology.node_of[:, None] != topology.node_of[None, :]
    sent, got = (pairs * across).sum(axis=1), (pairs * across).sum(axis=0)
    return (np.bincount(topology.node_of, sent, nodes), np.bincount(topology.node_of, got, nodes), float(sent.sum()))


def _item(problem: Problem) -> int:
    from ..ir import collectives

    return collectives.itemsize(problem.dtype)
