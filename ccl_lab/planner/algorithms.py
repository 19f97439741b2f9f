"""The table of algorithms: (collective, name) -> how to build it, what it costs, when it fits.

Is: the one place that names algorithms; `plan`, `auto` and the tests read it. Invariant: names are unique per collective.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..arguments import instance
from ..errors import UsageError, suggest
from ..ir import Builder, Chains, Meetings, NodeTrees, Paired, Pairs, Rails, RingLoops, Schedule
from . import (
    all_gather_bruck,
    all_gather_direct,
    all_gather_one_pass,
    all_gather_recursive_doubling,
    all_gather_ring,
    all_reduce_balance,
    all_reduce_direct,
    all_reduce_double_binary_tree,
    all_reduce_flat,
    all_reduce_halving_doubling,
    all_reduce_hierarchical,
    all_reduce_meetings,
    all_reduce_one_pass,
    all_reduce_optcc,
    all_reduce_recursive,
    all_reduce_recursive_doubling,
    all_reduce_resilient,
    all_reduce_ring,
    all_reduce_two_level,
    all_to_all_direct,
    all_to_all_hierarchical,
    all_to_all_one_pass,
    all_to_all_paired,
    balance,
    barrier,
    broadcast_binomial,
    broadcast_one_pass,
    broadcast_pipelined_ring,
    formulas,
    formulas_mapped,
    gather,
    reduce_binomial,
    reduce_one_pass,
    reduce_ring,
    reduce_scatter_direct,
    reduce_scatter_one_pass,
    reduce_scatter_recursive_halving,
    reduce_scatter_ring,
    runs,
    scatter,
    send_recv_direct,
    send_recv_one_pass,
)
from .all_reduce_resilient import Split
from .cost import Cost
from .mapped import unshared
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
    """One row: `build(problem)`, `cost(problem)`, and `misfit(problem)`, empty where it can be used.

    Of algorithms on rings also `loops(problem)`, what they repeat, and `node_phase(problem)`, what comes before it in each node (Outline);
    of those on chains `chains(problem)`, of direct ones `pairs(problem)`, of those along rails `rails(problem)`, of
    exchanges `paired(problem)`, of those that meet a node that lost a NIC `meetings(problem)`, of two trees `trees(problem)`, of those that
    swap many blocks at a time `swaps(problem)`.
    """

    build: Callable[[Problem], Builder]
    cost: Callable[[Problem], Cost]
    misfit: Callable[[Problem], str] = always
    loops: Callable[[Problem], RingLoops | None] | None = None
    node_phase: Callable[[Problem], Callable[[np.ndarray], Schedule] | None] | None = None
    chains: Callable[[Problem], Chains] | None = None
    pairs: Callable[[Problem], Pairs | None] | None = None
    rails: Callable[[Problem], Rails | None] | None = None
    paired: Callable[[Problem], Paired | None] | None = None
    meetings: Callable[[Problem], Meetings | None] | None = None
    trees: Callable[[Problem], NodeTrees | None] | None = None
    swaps: Callable[[Problem], bool] | None = None


_ALL_TO_ALL = {
    "direct": Algorithm(all_to_all_direct.direct, formulas.all_to_all_direct, pairs=all_to_all_direct.pairs),
    "paired": Algorithm(all_to_all_paired.paired, formulas.all_to_all_paired, paired=all_to_all_paired.exchanges),
    "hierarchical": Algorithm(all_to_all_hierarchical.hierarchical, formulas.all_to_all_hierarchical, nodes_of_equal_size,
                              rails=all_to_all_hierarchical.rails),
    "one_pass": Algorithm(all_to_all_one_pass.one_pass, formulas_mapped.all_to_all_one_pass, unshared),
    "balance": Algorithm(balance.all_to_all, balance.all_to_all_cost, pairs=balance.all_to_all_pairs),
}

# Made for topologies that lost NICs: `auto` takes them there only; asked for by name they are planned anywhere.
DEGRADED = ("balance", "resilient", "recursive", "optcc", "mix")


def _like_balance(split: Callable[[Problem], Split]) -> dict[str, Any]:
    """Of all_reduce: where nothing is lost, and where their shares are no faster, they are balance, and repeat what it repeats."""
    return {"loops": lambda problem: all_reduce_balance.loops(problem) if split(problem).shares is None else None,
            "node_phase": all_reduce_balance.node_phase, "meetings": partial(all_reduce_meetings.meetings, split)}


ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "all_reduce": {
        "ring": Algorithm(all_reduce_ring.ring, formulas.all_reduce_ring, loops=all_reduce_ring.loops),
        "bidirectional_ring": Algorithm(all_reduce_ring.bidirectional_ring, formulas.all_reduce_bidirectional_ring,
                                        loops=all_reduce_ring.loops_both_ways),
        "halving_doubling": Algorithm(all_reduce_halving_doubling.halving_doubling, formulas.all_reduce_halving_doubling),
        "recursive_doubling": Algorithm(all_reduce_recursive_doubling.recursive_doubling, formulas.all_reduce_recursive_doubling),
        "double_binary_tree": Algorithm(all_reduce_double_binary_tree.double_binary_tree, formulas.all_reduce_double_binary_tree,
                                        trees=all_reduce_double_binary_tree.node_trees),
        "direct": Algorithm(all_reduce_direct.direct, formulas.all_reduce_direct, pairs=all_reduce_direct.pairs),
        "hierarchical": Algorithm(all_reduce_hierarchical.hierarchical, formulas.all_reduce_hierarchical, nodes_of_equal_size,
                                  all_reduce_hierarchical.loops, all_reduce_hierarchical.node_phase),
        "flat": Algorithm(all_reduce_flat.flat, formulas_mapped.all_reduce_flat, unshared),
        "one_pass": Algorithm(all_reduce_one_pass.one_pass, formulas_mapped.all_reduce_one_pass, unshared),
        "two_level": Algorithm(all_reduce_two_level.two_level, formulas_mapped.all_reduce_two_level, unshared),
        "balance": Algorithm(all_reduce_balance.balance, all_reduce_balance.cost, loops=all_reduce_balance.loops,
                             node_phase=all_reduce_balance.node_phase),
        "resilient": Algorithm(all_reduce_resilient.resilient, all_reduce_resilient.resilient_cost,
                               **_like_balance(all_reduce_resilient.split)),
        "recursive": Algorithm(all_reduce_recursive.recursive, all_reduce_recursive.recursive_cost,
                               **_like_balance(all_reduce_recursive.split)),
        "optcc": Algorithm(all_reduce_optcc.optcc, all_reduce_optcc.optcc_cost, **_like_balance(all_reduce_optcc.split_optcc)),
        "mix": Algorithm(all_reduce_optcc.mix, all_reduce_optcc.mix_cost, **_like_balance(all_reduce_optcc.split_mix)),
    },
    "all_gather": {
        "ring": Algorithm(all_gather_ring.ring, formulas.all_gather_ring, loops=all_gather_ring.loops),
        "recursive_doubling": Algorithm(all_gather_recursive_doubling.recursive_doubling, formulas.all_gather_recursive_doubling,
                                        swaps=runs.swaps),
        "bruck": Algorithm(all_gather_bruck.bruck, formulas.all_gather_bruck),
        "direct": Algorithm(all_gather_direct.direct, formulas.all_gather_direct, pairs=all_gather_direct.pairs),
        "one_pass": Algorithm(all_gather_one_pass.one_pass, formulas_mapped.all_gather_one_pass, unshared),
        "balance": Algorithm(balance.all_gather, balance.all_gather_cost, loops=balance.all_gather_loops),
    },
    "reduce_scatter": {
        "ring": Algorithm(reduce_scatter_ring.ring, formulas.reduce_scatter_ring, loops=reduce_scatter_ring.loops),
        "recursive_halving": Algorithm(reduce_scatter_recursive_halving.recursive_halving, formulas.reduce_scatter_recursive_halving,
                                       swaps=runs.swaps),
        "direct": Algorithm(reduce_scatter_direct.direct, formulas.reduce_scatter_direct, pairs=reduce_scatter_direct.pairs),
        "one_pass": Algorithm(reduce_scatter_one_pass.one_pass, formulas_mapped.reduce_scatter_one_pass, unshared),
        "balance": Algorithm(balance.reduce_scatter, balance.reduce_scatter_cost, loops=balance.reduce_scatter_loops),
    },
    "broadcast": {
        "binomial": Algorithm(broadcast_binomial.binomial, formulas.broadcast_binomial),
        "pipelined_ring": Algorithm(broadcast_pipelined_ring.pipelined_ring, formulas.broadcast_pipelined_ring,
                                    chains=broadcast_pipelined_ring.chained),
        "one_pass": Algorithm(broadcast_one_pass.one_pass, formulas_mapped.broadcast_one_pass, unshared),
        "balance": Algorithm(balance.broadcast, balance.broadcast_cost, chains=balance.broadcast_chains),
    },
    "reduce": {
        "binomial": Algorithm(reduce_binomial.binomial, formulas.reduce_binomial),
        "ring": Algorithm(reduce_ring.ring, formulas.reduce_ring, chains=reduce_ring.chained),
        "one_pass": Algorithm(reduce_one_pass.one_pass, formulas_mapped.reduce_one_pass, unshared),
        "balance": Algorithm(balance.reduce, balance.reduce_cost, chains=balance.reduce_chains),
    },
    "gather": {
        "direct": Algorithm(gather.direct, formulas.gather_direct),
        "binomial": Algorithm(gather.binomial, formulas.gather_binomial),
        "one_pass": Algorithm(gather.one_pass, formulas_mapped.gather_one_pass, unshared),
        "balance": Algorithm(balance.gather_to_root, balance.gather_cost),
    },
    "scatter": {
        "direct": Algorithm(scatter.direct, formulas.scatter_direct),
        "binomial": Algorithm(scatter.binomial, formulas.scatter_binomial),
        "one_pass": Algorithm(scatter.one_pass, formulas_mapped.scatter_one_pass, unshared),
        "balance": Algorithm(balance.scatter_from_root, balance.scatter_cost),
    },
    "all_to_all": _ALL_TO_ALL,
    "all_to_allv": _ALL_TO_ALL,
    "send_recv": {
        "direct": Algorithm(send_recv_direct.direct, formulas.send_recv_direct),
        "one_pass": Algorithm(send_recv_one_pass.one_pass, formulas_mapped.send_recv_one_pass, unshared),
        "balance": Algorithm(balance.send_recv, balance.send_recv_cost),
    },
    "barrier": {
        "dissemination": Algorithm(barrier.dissemination, formulas.barrier_dissemination),
        "central": Algorithm(barrier.central, formulas.barrier_central),
        "flat": Algorithm(barrier.flat, formulas_mapped.barrier_flat, unshared),
    },
}


def find(collective: str, name: str) -> Algorithm:
    """The algorithm `name` of `collective`; UsageError with a suggestion and the list if there is none."""
    known = ALGORITHMS[collective]
    if instance(name, "algorithm", str, f"a name, one of {', '.join(known)}") not in known:
        hint = suggest(name, [*known, "auto"])
        names = "" if hint.startswith(" Known") else f" Known: {', '.join([*known, 'auto'])}."
        raise UsageError(f"algorithm {name!r} of {collective} is unknown.{hint}{names}")
    return known[name]
