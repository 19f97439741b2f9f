"""Balance for all_reduce: the algorithm is the ring between nodes, the lanes are those that are left.

Is: what the other all_reduce algorithms for a loss fall back to, and what a plan without a loss would be. Invariant: without a loss it is
the healthy algorithm itself.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..ir import Builder, RingLoops, Schedule
from . import all_reduce_hierarchical, all_reduce_lanes, all_reduce_ring, formulas
from .all_reduce_lanes import Shares
from .cost import Cost
from .degraded import is_degraded
from .problem import Problem

WHOLE = Shares(1.0)


def balance(problem: Problem) -> Builder:
    """Ring all_reduce over lanes whose shares are c_i / sum(c), of what the ranks of each node have; the result goes round the nodes.

    Steps: 2(K-1) a pass over K nodes. Bytes over the NICs of a node: 2(K-1)/K of the message, T/T0 = 1/(1-X). Any number of ranks a
    node; at most ranks of a node + 1 blocks of scratch. Source: R2CCL, arXiv 2512.25059 (Balance).
    """
    if is_degraded(problem.topology):
        return all_reduce_lanes.build(problem, "balance", WHOLE)
    return healthy(problem, "balance")


def cost(problem: Problem) -> Cost:
    """T = 2(K-1) M/K over the slowest lane, + what nodes do inside; without a loss that of the healthy algorithm."""
    return all_reduce_lanes.estimate(problem, WHOLE) if is_degraded(problem.topology) else healthy_cost(problem)


def healthy(problem: Problem, name: str) -> Builder:
    """The plan where nothing is lost: hierarchical where nodes are equal and hold several ranks, else ring."""
    b = all_reduce_hierarchical.hierarchical(problem) if _is_grid(problem) else all_reduce_ring.ring(problem)
    b.algorithm = name
    return b


def loops(problem: Problem) -> RingLoops | None:
    """What it repeats; None where it is not made of rings that are alike."""
    if is_degraded(problem.topology):
        return all_reduce_lanes.loops(problem, WHOLE)
    return all_reduce_hierarchical.loops(problem) if _is_grid(problem) else all_reduce_ring.loops(problem)


def node_phase(problem: Problem) -> Callable[[np.ndarray], Schedule] | None:
    """What comes before its rings inside each node; None where they are all there is."""
    if is_degraded(problem.topology):
        return all_reduce_lanes.node_phase(problem, WHOLE)
    return all_reduce_hierarchical.node_phase(problem) if _is_grid(problem) else None


def healthy_cost(problem: Problem) -> Cost:
    """Its cost."""
    return formulas.all_reduce_hierarchical(problem) if _is_grid(problem) else formulas.all_reduce_ring(problem)


def _is_grid(problem: Problem) -> bool:
    return problem.grid is not None and problem.grid.shape[1] > 1
