"""`auto`: every algorithm that fits is priced, the cheapest is taken, and the reasons are put in words and numbers.

Is: a comparison of closed-form estimates. Is not: a measurement; the reasons say "estimated".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from .. import units
from ..ir import Pairs
from ..topo import Topology
from . import all_reduce_optcc, all_reduce_recursive, all_reduce_resilient, bounds
from .algorithms import ALGORITHMS, DEGRADED
from .all_reduce_balance import WHOLE
from .all_reduce_lanes import rows
from .cost import (
    Cost,
    broadcast_depth,
    groups,
    hierarchical_cut,
    ring_channels,
    slice_depth,
    tree_depth,
    tree_slices,
)
from .degraded import is_degraded, lost, remaining, ring_lanes, unlike
from .problem import Problem

# A table of ops of more rows takes seconds and gigabytes: `auto` looks for a shorter one.
MOST_OPS = 5_000_000
# Without a table they are told one by one, in some 0.1 us each, but for rings, whose rounds are alike: `auto` looks for seconds.
MOST_TOLD = 50_000_000
# Puts between ranks of which two share a NIC since another one is lost: some 10 ns each, around so many nodes at most.
MOST_TURNS, MOST_ODD = 300_000_000, 16
# Of ranks of a node times slices that pass them: trees whose nodes are evaluated in microseconds each.
MOST_IN_TREES = 512
# Algorithms in which a rank has an op or more for every other rank, however few the steps.
PER_PEER = ("direct", "paired", "recursive_doubling", "recursive_halving")

# Rings of which every message may have to be timed, in minutes, unless nodes are alike: who asks for them by name waits, `auto` does not
# try.
BOTH_WAYS = ("bidirectional_ring",)

# Lanes over the NICs that are left are planned kind by kind of node: among more ranks than that only around so many that are not as most.
ALWAYS_WITH_LANES, MOST_UNLIKE = 1024, 64

# Algorithms that read peers' memory in place.
IN_PLACE = ("one_pass", "flat", "two_level")


class Candidate(NamedTuple):
    """An algorithm with its estimate, or with the reason why it is not one."""

    name: str
    cost: Cost | None
    misfit: str


def candidates(problem: Problem, without: Collection[str] = ()) -> list[Candidate]:
    """Every algorithm of the collective, but for those `without`: those that fit by estimated time, then the others."""
    found = []
    for name, algorithm in ALGORITHMS[problem.collective].items():
        if name in without:
            continue
        misfit = algorithm.misfit(problem)
        found.append(Candidate(name, None if misfit else algorithm.cost(problem), misfit))
    return sorted(found, key=lambda each: (each.cost is None, each.cost.seconds if each.cost else 0.0))


def left_out(problem: Problem) -> str:
    """Why those for lost NICs are not compared, without tables of ops; empty where they are."""
    topology = problem.topology
    if problem.n <= ALWAYS_WITH_LANES or topology.n_nodes == 1 or not topology.nics_per_node:
        return ""
    odd = unlike(topology)
    if odd <= MOST_UNLIKE:
        return ""
    return (f"{odd:,} of {topology.n_nodes:,} nodes have lost NICs or slower ones, each in its own way: above {ALWAYS_WITH_LANES:,} ranks "
            f"lanes are planned around {MOST_UNLIKE} of them")


NO_WHY: Mapping[str, str] = {}


def pick(problem: Problem, ranked: list[Candidate], outlined: bool = False, passed_over: Mapping[str, str] = NO_WHY) -> str:
    """The cheapest whose table of ops has at most MOST_OPS rows; outlined: of those without a table, in rings, in chains, or MOST_TOLD.

    Of those within 1 % of it, one that works on shared memory in place, then the one with the fewest ops: the model says that they
    are as fast, but it prices a slice that is still in the caches as one that comes from memory. passed_over: those that are not to be
    taken; where nothing is left beside them, the empty name.
    """
    fitting = [each for each in ranked if each.cost and each.name not in passed_over
               and (each.name not in DEGRADED or is_degraded(problem.topology))]  # fmt: skip
    short = [each for each in fitting if not _long(problem, each, outlined)]
    if not short:
        return "" if passed_over else min(fitting, key=lambda each: ops_about(problem, each)).name
    best = short[0].cost.seconds if short[0].cost else 0.0
    close = [each for each in short if each.cost and each.cost.seconds <= 1.01 * best]
    return min(close, key=lambda each: (each.name not in IN_PLACE, ops_about(problem, each))).name


def _long(problem: Problem, candidate: Candidate, outlined: bool) -> bool:
    if not outlined:
        return ops_about(problem, candidate) > MOST_OPS
    algorithm = ALGORITHMS[problem.collective][candidate.name]
    if told_about(problem, candidate) <= MOST_TOLD or algorithm.chains:
        return False
    if algorithm.trees and problem.topology.n_nodes > 1 and tree_slices(problem) * problem.topology.gpus_per_node <= MOST_IN_TREES:
        return False
    if algorithm.pairs and (pairs := algorithm.pairs(problem)) is not None and _pairs_fit(problem.topology, pairs):
        return False
    if algorithm.paired and _in_step(problem):
        return False
    if algorithm.swaps and algorithm.swaps(problem):
        return False
    if algorithm.rails and algorithm.rails(problem) is not None:
        return False
    if algorithm.meetings and (meetings := algorithm.meetings(problem)) is not None and not meetings.misfit:
        return False
    loops = algorithm.loops if candidate.name not in BOTH_WAYS else None
    return loops is None or loops(problem) is None


def _pairs_fit(topology: Topology, pairs: Pairs) -> bool:
    """Whether every rank's puts to every other one are timed in seconds: they have a timetable, or share NICs evenly, or few are lost
    (simulator/pairs.py)."""
    if topology.n_nodes == 1:
        return True
    if pairs.cuts:
        return True
    ranks, nics = topology.gpus_per_node, topology.nics_per_node
    lame = np.count_nonzero(np.any(topology.nic_bytes_per_s.reshape(topology.n_nodes, nics) == 0, axis=1)) if nics else 0
    few = lame == 0 or (lame <= MOST_ODD and topology.n_ranks**2 * max(nics // max(ranks, 1), 1) <= MOST_TURNS)
    even = bool(np.all(topology.ranks_per_node == ranks)) and nics > 0 and (ranks % nics == 0 or nics % ranks == 0)
    return few and even


def _in_step(problem: Problem) -> bool:
    """Whether exchanges keep all ranks in step with each other (simulator/paired.py)."""
    topology, algorithm = problem.topology, ALGORITHMS[problem.collective]["paired"]
    own = topology.nics_per_node >= topology.gpus_per_node and bool(np.all(topology.nic_bytes_per_s > 0))
    even = problem.n == topology.gpus_per_node * topology.n_nodes and problem.n & (problem.n - 1) == 0
    return own and even and algorithm.paired is not None and algorithm.paired(problem) is not None


# Partners swap all they hold, in blocks that lie apart: as many puts in a row as there are blocks.
_SWAPS = {"all_gather": "recursive_doubling", "reduce_scatter": "recursive_halving"}


def told_about(problem: Problem, candidate: Candidate) -> int:
    """Ops that are told where nothing is unrolled: of those that come several times in a row one, if no other has their NICs."""
    about, topology = ops_about(problem, candidate), problem.topology
    if candidate.cost is None or _SWAPS.get(problem.collective) != candidate.name or topology.n_nodes == 1:
        return about
    if problem.slices(problem.nics_per_rank, problem.block_bytes) > 1:
        return about
    if candidate.name == "recursive_halving" and problem.n & (problem.n - 1):
        return about  # representatives add what others gave before they put it: one after the other
    users = np.bincount(topology.node_of * topology.nics_per_node + topology.nic_of(np.arange(problem.n), 0))
    sharing = 2 * int(users[users > 1].sum())  # and those from whom they get
    return min(about, 4 * problem.n * candidate.cost.steps + sharing * 2 * problem.n // topology.gpus_per_node)


def ops_about(problem: Problem, candidate: Candidate) -> int:
    """Rows of the table of ops, within a small factor: three a step and channel, or two for every other rank."""
    if candidate.cost is None:
        return 0
    steps, name = candidate.cost.steps, candidate.name
    if name in DEGRADED and is_degraded(problem.topology):
        return _degraded_ops(problem, name)
    name = {"all_reduce": "hierarchical" if problem.grid is not None and problem.grid.shape[1] > 1 else "ring"}.get(
        problem.collective, "direct" if problem.collective.startswith("all_to_all") else "ring") if name in DEGRADED else name
    one_block = problem.collective == "all_reduce" and name == "recursive_doubling"
    if name in PER_PEER and problem.collective not in ("gather", "scatter", "send_recv") and not one_block:
        return problem.n * 2 * problem.n
    if problem.collective == "send_recv":
        return 5
    if name in ("one_pass", "flat"):  # a few for every other rank, and as many again for every slice
        return problem.n * (2 + slice_depth(problem, problem.nbytes / problem.n)) * problem.n
    if name == "two_level":
        return problem.n * 3 * sum(groups(problem.n))
    if name == "double_binary_tree":
        return problem.n * 10 * tree_slices(problem) * tree_depth(problem)
    if name == "hierarchical" and problem.collective == "all_reduce":
        return problem.n * (3 * steps + 4 * problem.topology.gpus_per_node) * hierarchical_cut(problem).slices
    if name == "hierarchical":
        return problem.n * 2 * problem.n
    if name in ("pipelined_ring", "ring") and problem.collective in ("broadcast", "reduce"):
        return problem.n * 3 * ring_channels(problem) * broadcast_depth(problem, ring_channels(problem))
    return problem.n * 3 * steps * (ring_channels(problem, both_ways=name == "bidirectional_ring") if "ring" in name else 1)


SPLITS = {"resilient": all_reduce_resilient.split, "recursive": all_reduce_recursive.split,
          "optcc": all_reduce_optcc.split_optcc, "mix": all_reduce_optcc.split_mix}


def _degraded_ops(problem: Problem, name: str) -> int:
    """Rows of the algorithms for a loss."""
    if problem.collective == "all_reduce":
        return rows(problem, (SPLITS[name](problem).shares if name in SPLITS else None) or WHOLE)
    if problem.collective.startswith("all_to_all"):
        return problem.n * 2 * problem.n * 8
    lanes = len(ring_lanes(problem.topology).channel)
    rings = problem.n * 3 * problem.n * lanes
    if problem.collective in ("gather", "scatter", "send_recv"):
        return min(rings, (2 if problem.collective == "send_recv" else problem.n) * 2 * 8)
    if problem.collective in ("broadcast", "reduce"):
        return min(rings, problem.n * 3 * lanes * broadcast_depth(problem, lanes))
    return rings


def loss(problem: Problem) -> tuple[str, ...]:
    """What a degraded topology means for the plan, in words and numbers: what is lost, how shares were made, and the lower bound."""
    topology = problem.topology
    if not is_degraded(topology):
        return ()
    left = remaining(topology)
    worst = int(left.argmin())
    told = [f"degraded: node {worst} has {left[worst]:.4g} of the best node's rate left, X = {lost(topology):.4g}"]
    if problem.collective == "all_reduce":
        told += [split(problem).why for split in SPLITS.values()]
    told.append(f"lower bound: {units.format_time(bounds.of_problem(problem))} on the NICs that are left")
    return tuple(told)


def reasons(problem: Problem, ranked: list[Candidate], chosen: str, automatic: bool, left_out: str = "",
            outlined: bool = False, passed_over: Mapping[str, str] = NO_WHY) -> tuple[str, ...]:  # fmt: skip
    """One line per algorithm, the chosen one first, then what a loss means, or why those made for it are left out; outlined, passed_over:
    as `pick`."""
    ranked = sorted(ranked, key=lambda each: each.name != chosen)
    best = next(each.cost for each in ranked if each.name == chosen)
    lines = []
    for each in ranked:
        if each.cost is None:
            lines.append(f"{each.name}: does not fit: {each.misfit}")
            continue
        tail = ("chosen" if automatic else "as asked") if each.name == chosen else _against(each.cost, best)
        if each.name in passed_over:
            tail += f"; passed over: {passed_over[each.name]}"
        elif each.name != chosen and _long(problem, each, outlined):
            tail += f"; about {ops_about(problem, each):,} ops, too many to {'time in seconds: name it' if outlined else 'build'}"
        lines.append(f"{each.name}: {_numbers(each.cost)}; {tail}")
    if left_out:
        names = [name for name in DEGRADED if name in ALGORITHMS[problem.collective]]
        return (*lines, *([f"{', '.join(names)}: not compared: {left_out}"] if names else ()))
    return tuple(lines) + loss(problem)


def _numbers(cost: Cost) -> str:
    steps = f"{cost.steps} step{'' if cost.steps == 1 else 's'}"
    where = f"{_megabytes(cost.nic_bytes)} per NIC" if cost.nic_bytes else f"{_megabytes(cost.rank_bytes)} per rank"
    memory = f", {_megabytes(cost.memory_bytes)} through memory" if cost.memory_bytes else ""
    return f"{steps}, {where}{memory}, estimated {units.format_time(cost.seconds)}"


def _against(cost: Cost, best: Cost | None) -> str:
    if best is None or best.seconds == 0:
        return "as fast"
    ratio = cost.seconds / best.seconds
    if 0.995 < ratio < 1.005:
        return "as fast as the chosen"
    return f"{ratio:.2f} times the chosen" if ratio >= 1 else f"{1 / ratio:.2f} times faster than the chosen"


def _megabytes(nbytes: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.4g} {name}"
    return f"{nbytes:.4g} B"
