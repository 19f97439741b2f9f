"""The planner: from a collective and a topology to a schedule, with the reasons in words and numbers.

Is: `plan`, and one algorithm a file. Is not: a proof (verifier) or a measurement. Invariants: any number of ranks, any
root, in place or not; what `plan` returns does not depend on anything but its arguments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..arguments import instance
from ..errors import Inapplicable, UsageError
from ..ir import Builder, Outline, Schedule, collectives
from ..topo import Topology
from ..units import Size
from . import choose
from .algorithms import ALGORITHMS, Algorithm, find
from .cost import Cost
from .problem import Problem, make_problem

__all__ = ["ALGORITHMS", "Algorithm", "Cost", "Problem", "algorithms", "estimate", "outline", "plan"]


def plan(collective: str, topology: Topology | int, nbytes: Size = "1MiB", *, algorithm: str = "auto", dtype: str = "float32",
         redop: str = "sum", in_place: bool = False, root: int = 0, peer: int = 1, channels: int | None = None,
         counts: Any = None, mapped: bool = True, overlaps: bool = True) -> Schedule:
    """A schedule for `collective` on `topology` (or on that many ranks of one node).

    nbytes: size of the message, bytes or text ("64MiB"), as nccl-tests count it: the larger buffer of a rank; the schedule
    serves other sizes too. algorithm: a name of `algorithms(collective)`, or "auto" for the cheapest by estimate. root: of
    broadcast, reduce, gather, scatter, send_recv; peer: receiver of send_recv. channels: streams per rank (default: by
    NICs). counts: int[n, n] elements from rank i to rank j, for all_to_allv; then nbytes is ignored. mapped: ranks of a node can read
    each other's memory. overlaps: False where the core of a rank that adds is also what moves its bytes, as in soft RoCE on one core.

    Returns a Schedule whose `.reasons` compare all algorithms. Raises UsageError for an unknown name, a wrong root or
    size or an algorithm that does not fit the topology, DtypeError for a type or reduction the engine lacks, ShapeError
    for counts that do not fit.

        >>> plan("all_reduce", 4, "1MiB", algorithm="ring").n_steps
        6
    """
    problem = make_problem(collective, topology, nbytes, dtype=dtype, redop=redop, in_place=in_place, root=root, peer=peer,
                           channels=channels, counts=counts, mapped=mapped, overlaps=overlaps)
    _check_fits(problem, algorithm)
    if problem.n == 1:
        return _alone(problem, algorithm)
    ranked = choose.candidates(problem)
    chosen = choose.pick(problem, ranked) if algorithm == "auto" else algorithm
    why = choose.reasons(problem, ranked, chosen, automatic=algorithm == "auto")
    builder = find(collective, chosen).build(problem)
    return builder.build(nbytes=problem.nbytes, dtype=dtype, redop=redop, reasons=why)


def outline(collective: str, topology: Topology | int, nbytes: Size = "1MiB", *, algorithm: str = "auto", dtype: str = "float32",
            redop: str = "sum", in_place: bool = False, root: int = 0, peer: int = 1, channels: int | None = None,
            mapped: bool = True, overlaps: bool = True, passed_over: Mapping[str, str] = choose.NO_WHY) -> Outline:
    """The schedule that `plan` makes of the same arguments, without its rows: what the simulator takes where there would be too many.

    "auto" takes the cheapest that can be told in seconds, but for those that were `passed_over` (and why, for the reasons); above 1,024
    ranks those that spread a loss over the NICs that are left are compared around 64 nodes at most. Errors as `plan`; UsageError for one
    rank, which has nothing to unroll; Inapplicable where all were passed over. Cost: a few arrays of a number per rank.
    """
    problem = make_problem(collective, topology, nbytes, dtype=dtype, redop=redop, in_place=in_place, root=root, peer=peer,
                           channels=channels, counts=None, mapped=mapped, overlaps=overlaps)
    _check_fits(problem, algorithm)
    if problem.n == 1:
        raise UsageError(f"{collective} among 1 rank: nothing to outline; use plan.")
    chosen, why = algorithm, (f"{algorithm}: as asked",)
    if algorithm == "auto":
        left_out = choose.left_out(problem)
        ranked = choose.candidates(problem, without=choose.DEGRADED if left_out else ())
        chosen = choose.pick(problem, ranked, outlined=True, passed_over=passed_over)
        if not chosen:
            each = "; ".join(f"{name}: {reason}" for name, reason in passed_over.items())
            raise Inapplicable(f"no algorithm of {collective} is timed in seconds on topology {topology.name!r}: {each}; all others have "
                               "too many ops. Simulate fewer ranks, name one of them, or take tier='estimate', a closed form.")
        why = choose.reasons(problem, ranked, chosen, automatic=True, left_out=left_out, outlined=True, passed_over=passed_over)
    found = find(collective, chosen)

    def emit(make: Any) -> Builder:
        return found.build(dataclasses.replace(problem, make=make))

    candidate = choose.Candidate(chosen, found.cost(problem), "")
    about, told = choose.ops_about(problem, candidate), choose.told_about(problem, candidate)
    loops = found.loops(problem) if found.loops else None
    node_phase = found.node_phase(problem) if loops and found.node_phase else None
    chains = found.chains(problem) if found.chains else None
    pairs = found.pairs(problem) if found.pairs else None
    rails = found.rails(problem) if found.rails else None
    paired = found.paired(problem) if found.paired else None
    meetings = found.meetings(problem) if found.meetings else None
    swaps = found.swaps is not None and found.swaps(problem)
    return Outline(collective, chosen, problem.n, problem.in_place, problem.nbytes, dtype, redop, why, emit, about, told, loops,
                   node_phase, chains, pairs, rails, paired, meetings, found.trees(problem) if found.trees else None, swaps)


def _check_fits(problem: Problem, algorithm: str) -> None:
    """UsageError where an algorithm that was asked for is unknown or does not fit."""
    if instance(algorithm, "algorithm", str, "the name of one, or 'auto'") == "auto":
        return
    misfit = find(problem.collective, algorithm).misfit(problem) if problem.n > 1 else find(problem.collective, algorithm) and ""
    if misfit:
        fitting = ", ".join(each.name for each in choose.candidates(problem) if each.cost)
        raise UsageError(f"algorithm {algorithm!r} of {problem.collective} does not fit topology {problem.topology.name!r}: {misfit}. "
                         f"Use 'auto' or one of: {fitting}.")


def algorithms(collective: str) -> tuple[str, ...]:
    """Names of the algorithms of `collective`; UsageError if it is unknown."""
    collectives.check_names(collective)
    return tuple(ALGORITHMS[collective])


def estimate(collective: str, topology: Topology | int, nbytes: Size = "1MiB", *, algorithm: str, **options: Any) -> Cost:
    """The closed-form cost of an algorithm, without building its schedule; `options` as for `plan`."""
    given = {"dtype": "float32", "redop": "sum", "in_place": False, "root": 0, "peer": 1, "channels": None, "counts": None,
             "mapped": True, "overlaps": True}
    problem = make_problem(collective, topology, nbytes, **{**given, **options})
    return find(collective, algorithm).cost(problem)


def _alone(problem: Problem, algorithm: str) -> Schedule:
    """One rank: its output is its input."""
    name = next(iter(ALGORITHMS[problem.collective])) if algorithm == "auto" else algorithm
    builder: Builder = problem.builder(name)
    if problem.collective != "barrier":
        builder.copy(rank=0, src=builder.input[0], dst=builder.output[0])
    return builder.build(nbytes=problem.nbytes, dtype=problem.dtype, redop=problem.redop,
                         reasons=(f"{name}: 1 rank, nothing to send",))
