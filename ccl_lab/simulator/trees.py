"""A double binary tree over nodes, timed without a row per op: columns for the native evaluation (native/src/sim/trees.hpp).

Is: where nodes are in the trees, and which NICs they use. Is not: the arithmetic. Invariant: the times are those of exact.py on the
unrolled schedule, to the picosecond, or `Inapplicable` is raised.
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
_WHY = {_UNLIKE: "columns do not fit, or rates inside nodes change", _OVERFLOW: "ops take minutes, or days",
        _TURNS: "more than 64 puts share a link in a step"}  # fmt: skip


def tree_finish(trees: NodeTrees, topology: Topology, count: int, itemsize: int, late_ps: I64, alpha_ps: int, changes: Changes = NONE, *,
                merge: bool = True) -> tuple[I64, dict[str, Any]]:  # fmt: skip
    """When each rank ends, i64[n_ranks], and counts: kinds of nodes, rounds of nodes and puts between them that were not taken from others.

    Message of `count` elements; merge: False evaluates every node in every round, for tests. Raises Inapplicable, also where rates
    inside nodes change in time. Cost: 0.1 us a round, node and edge, and some 3 us for a round of a node that is like no other.
    """
    n, nodes, links = topology.n_ranks, topology.n_nodes, topology.links
    ranks = np.lexsort((topology.local_of, topology.node_of))  # node by node
    by_link = np.concatenate([ranks, n + ranks, 2 * n + ranks, np.arange(3 * n, 3 * n + 2 * nodes * topology.nics_per_node)])
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
        "bytes_per_s": links.bytes_per_s[by_link], "latency_ps": links.latency_ps[by_link], "late_ps": late_ps[ranks],
        "tier_ps": _tier_ps(trees, topology, enters), "finish_ps": finish, **changes.columns()})  # fmt: skip
    if status == _OUT_OF_MEMORY:
        raise MemoryError("simulating trees")
    if status != _OK:
        raise Inapplicable(_WHY[status])
    ends = np.empty(n, np.int64)
    ends[ranks] = finish
    return ends, {"kinds": kinds, "evaluated": evaluated, "crossed": crossed}


def _tier_ps(trees: NodeTrees, topology: Topology, enters: I64) -> I64:
    """What switches add between a node and its parent, int64[2, 2, nodes, slices], flat: of what goes up, and down; empty where nothing."""
    if not topology.tiers_add_latency:
        return np.zeros(0, np.int64)
    found, slices = np.zeros((2, 2, *enters.shape), np.int64), np.arange(trees.slices)
    for tree, parent in enumerate(trees.parent):
        below = np.flatnonzero(parent >= 0)
        low, high, up = enters[below], enters[parent[below]], 2 * tree * trees.slices + slices
        # A root puts down in the channel in which it added.
        down = np.where(parent[parent[below]] < 0, 0, trees.slices)[:, None] + up
        found[tree, 0, below] = topology.tier_latency_ps(low, high, up)
        found[tree, 1, below] = topology.tier_latency_ps(high, low, down)
    return found.ravel()


def _levels(parent: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Hops to the root, int32[2, nodes]."""
    level, climber = np.zeros(parent.shape, np.int32), parent
    while (climber >= 0).any():
        level += climber >= 0
        climber = np.where(climber >= 0, np.take_along_axis(parent, np.maximum(climber, 0), axis=1), -1)
    return level
