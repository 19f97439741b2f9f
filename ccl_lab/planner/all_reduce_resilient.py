"""Resilient all_reduce: the healthy nodes use, among themselves, what the degraded one cannot.

    stage 1   ring of all on (1-Y)D at the rate the degraded node has left; reduce-scatter of the others on YD, on NICs it lost
    stage 2   the degraded node's raw part meets the partial sums, the result goes to all, in K chunks

Is: the choice of Y and the reasons to fall back. Is not: the ops (lane_meeting). Invariant: one node lost, others healthy, three or more.
The paper's partial ring ends with an all-gather that stage 2 would overwrite; here it ends with the reduce-scatter.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..ir import Builder
from . import all_reduce_lanes, formulas_degraded
from .all_reduce_balance import WHOLE, balance, healthy_cost
from .all_reduce_lanes import Level, Shares
from .cost import Cost
from .degraded import is_degraded, node_order, remaining
from .kept import kept_with_problem
from .problem import Problem

# A node whose rate is this close to the best is as good as healthy.
SAME = 0.995
# What the simulator adds to the estimate where sums inside the nodes come before meetings: `auto` counts it. Less where a timetable says
# when those sums are needed.
SLACK_INSIDE, SLACK_TIMED = 1.5, 1.2


class Split(NamedTuple):
    """Shares to build, or balance instead: `why`, in words."""

    shares: Shares | None
    why: str


def straggler(problem: Problem) -> tuple[tuple[int, ...], int, str]:
    """(healthy nodes in ring order, the degraded one, ''), or why there is no such split."""
    left, order = remaining(problem.topology), node_order(problem.topology)
    hurt = [node for node in order if left[node] < SAME]
    if not is_degraded(problem.topology) or not hurt:
        return (), -1, "no node has lost more than another"
    if len(order) == 2:
        return (), -1, "of two nodes only one is healthy, which leaves nobody for a partial ring"
    if len(hurt) > 1:
        return (), -1, f"{len(hurt)} nodes lost NICs (recursive takes several), so there is no one degraded node"
    return tuple(node for node in order if node != hurt[0]), hurt[0], ""


@kept_with_problem
def split(problem: Problem) -> Split:
    """Y = X or Y*, whichever is estimated to be faster; balance where that is."""
    members, hurt, why = straggler(problem)
    if why:
        return Split(None, f"resilient falls back to balance: {why}")
    n, x = len(members) + 1, float(1 - remaining(problem.topology)[hurt])
    choices = {"X": x, "Y*": formulas_degraded.y_star(n, x)}
    shares = {name: Shares(1 - y, (Level(members, (hurt,), y),)) for name, y in choices.items()}
    seconds = {name: all_reduce_lanes.estimate(problem, each).seconds for name, each in shares.items()}
    best = min(seconds, key=lambda name: (seconds[name], name))
    k = all_reduce_lanes.depth_of(problem, shares[best]).waves
    ratio = formulas_degraded.resilient(n, x, choices[best], k)
    told = f"resilient: Y = {best} = {choices[best]:.4g}, K = {k}, so T/T0 = {ratio:.3f} by the formula, balance {1 / (1 - x):.3f}"
    plain = all_reduce_lanes.estimate(problem, WHOLE).seconds
    if plain < seconds[best]:
        return Split(None, f"{told}; falls back to balance, which is estimated to be faster for this size")
    return Split(shares[best], told)


def resilient(problem: Problem) -> Builder:
    """Two stages around one degraded node.

    T/T0 = 1 + (1+1/K) nX/(2(n-1)(1-X)) for Y = X over n nodes. Bytes over the NICs of the degraded node: 2(n-1)/n (1-Y) + Y of the
    message. Scratch: ranks of a node + 1 blocks. Averages too: avg is a sum until the end. Balance where `split` says why.
    Source: R2CCL, arXiv 2512.25059 (resilient AllReduce).
    """
    return build(problem, "resilient", split(problem))


def resilient_cost(problem: Problem) -> Cost:
    """T = max(T1 + T3 on the lanes of all, T2 on those of the others) + latency."""
    return cost_of(problem, split(problem))


def build(problem: Problem, name: str, found: Split) -> Builder:
    """What a split says, under `name`."""
    if found.shares is not None:
        return all_reduce_lanes.build(problem, name, found.shares)
    b = balance(problem)
    b.algorithm = name
    return b


def cost_of(problem: Problem, found: Split) -> Cost:
    """Its cost."""
    if found.shares is not None:
        cost = all_reduce_lanes.estimate(problem, found.shares)
        inside = problem.topology.gpus_per_node > 1
        slack = SLACK_TIMED if found.shares.tight else SLACK_INSIDE
        return cost._replace(seconds=cost.seconds * slack) if inside and found.shares.levels else cost
    return all_reduce_lanes.estimate(problem, WHOLE) if is_degraded(problem.topology) else healthy_cost(problem)


def fractions(problem: Problem) -> np.ndarray:
    """b of each node, f64[n_nodes], where losses of less than 0.5 % count as none."""
    left = remaining(problem.topology)
    return np.where(left >= SAME, 1.0, left)
