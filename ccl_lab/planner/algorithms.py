"""The table of algorithms: (collective, name) -> how to build it, what it costs, when it fits.

Is: the one place that names algorithms; `plan`, `auto` and the tests read it. Invariant: names are unique per collective.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..errors import UsageError, suggest
from ..ir import Builder
from . import (
    all_gather_ring,
    all_reduce_hierarchical,
    all_reduce_ring,
    all_to_all_direct,
    cost,
    reduce_scatter_ring,
)
from .problem import Problem


def always(problem: Problem) -> str:
    """Fits any problem."""
    return ""


def nodes_of_equal_size(problem: Problem) -> str:
    """Needs a grid of nodes by local index with at least two ranks a node."""
    sizes = sorted(set(problem.topology.ranks_per_node.tolist()))
    if len(sizes) > 1:
        return f"nodes hold different numbers of ranks ({', '.join(map(str, sizes))})"
    return "a node holds one rank, which leaves nothing to do inside it" if sizes == [1] else ""


class Algorithm(NamedTuple):
    """One row: `build(problem)`, `cost(problem)`, and `misfit(problem)`, empty where it can be used."""

    build: Callable[[Problem], Builder]
    cost: Callable[[Problem], cost.Cost]
    misfit: Callable[[Problem], str] = always


ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "all_reduce": {
        "ring": Algorithm(all_reduce_ring.ring, cost.all_reduce_ring),
        "bidirectional_ring": Algorithm(all_reduce_ring.bidirectional_ring, cost.all_reduce_bidirectional_ring),
        "hierarchical": Algorithm(all_reduce_hierarchical.hierarchical, cost.all_reduce_hierarchical, nodes_of_equal_size),
    },
    "all_gather": {
        "ring": Algorithm(all_gather_ring.ring, cost.all_gather_ring),
    },
    "reduce_scatter": {
        "ring": Algorithm(reduce_scatter_ring.ring, cost.reduce_scatter_ring),
    },
    "all_to_all": {
        "direct": Algorithm(all_to_all_direct.direct, cost.all_to_all_direct),
    },
    "all_to_allv": {
        "direct": Algorithm(all_to_all_direct.direct, cost.all_to_all_direct),
    },
}


def find(collective: str, name: str) -> Algorithm:
    """The algorithm `name` of `collective`; UsageError with a suggestion and the list if there is none."""
    known = ALGORITHMS[collective]
    if name not in known:
        hint = suggest(name, [*known, "auto"])
        names = "" if hint.startswith(" Known") else f" Known: {', '.join([*known, 'auto'])}."
        raise UsageError(f"algorithm {name!r} of {collective} is unknown.{hint}{names}")
    return known[name]
