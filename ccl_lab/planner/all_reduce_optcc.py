"""OptCC all_reduce around one straggler, and its mix with the plain ring that comes to the lower bound.

    optcc   the whole message in sections: reduce-scatter of the healthy, owner -> straggler, straggler adds and returns, all-gather of
            the healthy; on every other lane the straggler sends first and the owner adds, so that both directions are full
    mix     plain ring on 1-y, OptCC with the straggler sending first on y; y ends straggler and healthy nodes together

Is: the shares. Is not: the ops (lane_meeting). Invariant: three nodes or more and one straggler, else balance.
"""

from __future__ import annotations

from ..ir import Builder
from . import formulas_degraded
from .all_reduce_lanes import Level, Shares, estimate
from .all_reduce_resilient import Split, build, cost_of, straggler
from .cost import Cost
from .degraded import remaining
from .kept import kept_with_problem
from .problem import Problem

# Of the y of the formula: the less, the more time the lanes of the healthy have to spare for the latency of their stages. The
# estimate says which.
KEPT = (1.0, 0.99, 0.98, 0.97, 0.96, 0.95, 0.925, 0.9, 0.85)


@kept_with_problem
def split_optcc(problem: Problem) -> Split:
    """The whole message around the straggler."""
    members, hurt, why = straggler(problem)
    if why:
        return Split(None, f"optcc falls back to balance: {why}")
    n, x = len(members) + 1, float(1 - remaining(problem.topology)[hurt])
    return Split(Shares(0.0, (Level(members, (hurt,), 1.0),), through=True),
                 f"optcc: T/T0 = {formulas_degraded.optcc(n, x):.3f}, fluid")


@kept_with_problem
def split_mix(problem: Problem) -> Split:
    """y at, or a little below, that of the formula."""
    members, hurt, why = straggler(problem)
    if why:
        return Split(None, f"mix falls back to balance: {why}")
    n, x = len(members) + 1, float(1 - remaining(problem.topology)[hurt])

    def shares(y: float) -> Shares:
        return Shares(1 - y, (Level(members, (hurt,), y),), tight=True)

    most = formulas_degraded.y_mix(n, x)
    y = min((kept * most for kept in KEPT), key=lambda y: estimate(problem, shares(y)).seconds)
    return Split(shares(y),
                 f"mix: y = {y:.4g}, T/T0 = {formulas_degraded.mix(n, x, y):.3f}, fluid; bound {formulas_degraded.bound(n, x):.3f}")


def optcc(problem: Problem) -> Builder:
    """OptCC on the whole message.

    T/T0 = max{1/(1-X), (2n-3)/(n-1)} n/(2(n-1)), fluid. Bytes over the NICs of the straggler: the message, each way. Scratch: ranks of a
    node + 1 blocks. Source: OptCC, arXiv 2606.01680.
    """
    return build(problem, "optcc", split_optcc(problem))


def mix(problem: Problem) -> Builder:
    """Ring and OptCC side by side.

    T/T0 = max{n/(n-X), n/(2(n-1)(1-X))}, fluid, which is the lower bound. Source: derived; parts as `ring` and `optcc`.
    """
    return build(problem, "mix", split_mix(problem))


def optcc_cost(problem: Problem) -> Cost:
    """T = the straggler's message each way, or the healthy nodes' two passes, + latency."""
    return cost_of(problem, split_optcc(problem))


def mix_cost(problem: Problem) -> Cost:
    """T = the lanes of all with ring and meetings, or those of the healthy, + latency."""
    return cost_of(problem, split_mix(problem))
