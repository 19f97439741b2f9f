"""Recursive resilient all_reduce: several nodes lost different amounts.

    b1 <= ... <= bn sorted; ring k over the nodes with b >= bk carries the slice (bk - b(k-1)); the others meet it with their raw parts

Is: the slices. Is not: the ops (lane_meeting). Invariant: slices add up to the message; a slice's members have at least its b.
"""

from __future__ import annotations

import numpy as np

from ..ir import Builder
from . import all_reduce_lanes, formulas_degraded
from .all_reduce_lanes import Level, Shares
from .all_reduce_resilient import Split, build, cost_of, fractions
from .cost import Cost
from .degraded import bridges, is_degraded, node_order
from .kept import kept_with_problem
from .problem import Problem

# Scratch holds a raw part of every outsider of a level; more of them, and fewer slices are made.
MOST_OUTSIDERS = 16


@kept_with_problem
def split(problem: Problem) -> Split:
    """The slices of all levels of loss."""
    if not is_degraded(problem.topology) or problem.topology.n_nodes == 2:
        why = "of two nodes only one can be healthy" if problem.topology.n_nodes == 2 else "no node has lost more than another"
        return Split(None, f"recursive falls back to balance: {why}")
    left, order = fractions(problem), node_order(problem.topology)
    levels, heights = [], np.unique(np.round(left, 6))
    for below, height in zip(heights[:-1], heights[1:], strict=True):
        members = tuple(node for node in order if left[node] >= height - 1e-6)
        outsiders = tuple(node for node in order if left[node] < height - 1e-6)
        if len(outsiders) > MOST_OUTSIDERS:
            return Split(None, f"recursive falls back to balance: {len(outsiders)} nodes lost NICs, more than {MOST_OUTSIDERS}")
        levels.append(Level(members, outsiders, float(height - below)))
    if not levels:
        return Split(None, "recursive falls back to balance: all nodes have the same rate left")
    shares = Shares(float(heights[0]), tuple(levels))
    k = all_reduce_lanes.depth_of(problem, shares).waves
    ratio = formulas_degraded.recursive(left.tolist(), k)
    bridge = bridges(problem.topology)
    told = f"recursive: {len(levels) + 1} slices, K = {k}, T/T0 = {ratio:.3f} as of the worst node alone"
    return Split(shares, f"{told}; {bridge}" if bridge else told)


def recursive(problem: Problem) -> Builder:
    """Resilient all_reduce for any losses; for one degraded node it is resilient with Y = X.

    T/T0 that of the worst node alone. Scratch: ranks of a node + 1 + outsiders blocks. Source: R2CCL, arXiv 2512.25059.
    """
    return build(problem, "recursive", split(problem))


def recursive_cost(problem: Problem) -> Cost:
    """T = lanes of all with all meetings + latency."""
    return cost_of(problem, split(problem))
