"""A double binary tree over nodes, timed without a row per op: columns for the native evaluation (native/src/sim/trees.hpp).

Is: where nodes are in the trees, and which NICs they use. Is not: the arithmetic. Invariant: the times are those of exact.py on the unrolled
schedule, to the picosecond, or `Inapplicable` is raised.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import Inapplicable
from ..ir import NodeTrees
from ..topo import Topology
from .changes import NONE, Changes

I64 = npt.NDArray[np.int64]

_OK, _UNLIKE, _OVERFLOW, _TURNS, _OUT_OF_MEMORY = range(5)
_WHY = {_UNLIKE: "columns do not fit", _OVERFLOW: "ops take minutes, or days", _TURNS: "more than 64 puts share a link in a step"}


def tree_finish(trees: NodeTrees, topology: Topology, count: int, itemsize: int, late_ps: I64, alpha_ps: int, changes: Changes = NONE, *,
                merge: bool = True) -> tuple[I64, dict[str, Any]]:  # fmt: skip
    """When each rank ends, i64[n_ranks], and counts: kinds of nodes, rounds of nodes that were not taken from others, and puts between them.

    Message of `count` elements; merge: False evaluates every node in every round, for tests. Raises Inapplicable, also where rates change in
    time or switches add latencies. Cost: 0.1 us a round, node and edge, and 10 us for a round of a node that is like no other.
    """
    if changes is not NONE and len(changes.columns()["change_link"]):
        raise Inapplicable("rates change in time")
    if topology.tiers_add_latency:
        raise Inapplicable("switches add latencies")
    n, nodes, links = topology.n_ranks, topology.n_nodes, topology.links
    ranks = np.lexsort((topology.local_of, topology.node_of))  # node by node
    by_link = np.concatenate([ranks, n + ranks, 2 * n + ranks, np.arange(3 * n, len(links.bytes_per_s))])
    if topology.nics_per_node > np.iinfo(np.uint16).max:
        raise Inapplicable(f"nodes have {topology.nics_per_node} NICs, and {np.iinfo(np.uint16).max} can be told apart")
    first = np.concatenate([[0], np.cumsum(topology.ranks_per_node)])
    enters = ranks[first[:-1, None] + np.arange(trees.slices) * topology.ranks_per_node[:, None] // trees.slices]
    nic = np.empty((nodes, 4, trees.slices), np.uint16)
    for channel in range(4):
        nic[:, channel] = topology.nic_of(enters, channel * trees.slices + np.arange(trees.slices))
    finish = late_ps[ranks]
    status, kinds, evaluated, crossed = _core.simulate_trees({
        "nodes": nodes, "slices": trees.slices, "depth": trees.depth, "nics": topology.nics_per_node, "count": count, "itemsize": itemsize,
        "alpha_ps": alpha_ps, "merge": merge, "first_rank": first.astype(np.int32), "parent": trees.parent.astype(np.int32).ravel(),
        "level": _levels(trees.parent).ravel(), "color": trees.color.astype(np.int32).ravel(), "nic": nic.ravel(),
        "bytes_per_s": links.bytes_per_s[by_link], "latency_ps": links.latency_ps[by_link], "late_ps": late_ps[ranks], "finish_ps": finish})  # fmt: skip
    if status == _OUT_OF_MEMORY:
        raise MemoryError("simulating trees")
    if status != _OK:
        raise Inapplicable(_WHY[status])
    ends = np.empty(n, np.int64)
    ends[ranks] = finish
    return ends, {"kinds": kinds, "evaluated": evaluated, "crossed": crossed}


def _levels(parent: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Hops to the root, int32[2, nodes]."""
    level, climber = np.zeros(parent.shape, np.int32), parent
    while (climber >= 0).any():
        level += climber >= 0
        climber = np.where(climber >= 0, np.take_along_axis(parent, np.maximum(climber, 0), axis=1), -1)
    return level
