"""`auto`: every algorithm that fits is priced, the cheapest is taken, and the reasons are put in words and numbers.

Is: a comparison of closed-form estimates. Is not: a measurement; the reasons say "estimated".
"""

from __future__ import annotations

from typing import NamedTuple

from .. import units
from .algorithms import ALGORITHMS
from .cost import Cost
from .problem import Problem

# Every rank talks to every other: the table of ops has n * n rows, which is not worth building far beyond this.
MANY_RANKS = 512
QUADRATIC = ("direct", "paired", "hierarchical", "recursive_doubling", "recursive_halving")


class Candidate(NamedTuple):
    """An algorithm with its estimate, or with the reason why it is not one."""

    name: str
    cost: Cost | None
    misfit: str


def candidates(problem: Problem) -> list[Candidate]:
    """Every algorithm of the collective: those that fit by estimated time, then the others."""
    found = []
    for name, algorithm in ALGORITHMS[problem.collective].items():
        misfit = algorithm.misfit(problem)
        found.append(Candidate(name, None if misfit else algorithm.cost(problem), misfit))
    return sorted(found, key=lambda each: (each.cost is None, each.cost.seconds if each.cost else 0.0))


def pick(problem: Problem, ranked: list[Candidate]) -> str:
    """The cheapest; among very many ranks, the cheapest whose table of ops stays small."""
    fitting = [each.name for each in ranked if each.cost]
    if problem.n > MANY_RANKS:
        fitting = [name for name in fitting if name not in QUADRATIC] or fitting
    return fitting[0]


def reasons(problem: Problem, ranked: list[Candidate], chosen: str, automatic: bool) -> tuple[str, ...]:
    """One line per algorithm, the chosen one first."""
    ranked = sorted(ranked, key=lambda each: each.name != chosen)
    best = next(each.cost for each in ranked if each.name == chosen)
    lines = []
    for each in ranked:
        if each.cost is None:
            lines.append(f"{each.name}: does not fit: {each.misfit}")
            continue
        tail = ("chosen" if automatic else "as asked") if each.name == chosen else _against(each.cost, best)
        lines.append(f"{each.name}: {_numbers(each.cost)}; {tail}")
    return tuple(lines)


def _numbers(cost: Cost) -> str:
    steps = f"{cost.steps} step{'' if cost.steps == 1 else 's'}"
    where = f"{_megabytes(cost.nic_bytes)} per NIC" if cost.nic_bytes else f"{_megabytes(cost.rank_bytes)} per rank"
    return f"{steps}, {where}, estimated {units.format_time(cost.seconds)}"


def _against(cost: Cost, best: Cost | None) -> str:
    if best is None or best.seconds == 0:
        return "as fast"
    ratio = cost.seconds / best.seconds
    return f"{ratio:.2f} times the chosen" if ratio >= 1 else f"{1 / ratio:.2f} times faster than the chosen"


def _megabytes(nbytes: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.4g} {name}"
    return f"{nbytes:.4g} B"
