"""Which overlap schedule is best for measured times, by the closed forms, and why in words and numbers.

Is: the argmin over candidates. Is not: a measurement (`tune` measures). Invariants: no candidate has a predicted time (computation and
what is exposed) less than 1 - CLOSE of the choice's; among those so close the one with the fewest partitions, then a ring before
direct, then the least exposed: predictions are not better than that, each partition is a risk more, and a link of a ring has one sender.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from ..arguments import amount, whole
from .closed_form import Time, closed_form
from .operators import operator_of

SLICES = (2, 4, 8, 16, 32)
MAX_SUB_SLICES = 64
CLOSE = Fraction(1, 100)  # of the time: what measured c, alpha and beta are good for


class Timing(NamedTuple):
    """What is known of a machine and a shape, in one unit: see `choose`."""

    c: Time
    alpha: Time
    beta: Time
    add: Time = 0
    slow_link: Time = 1
    launch: Time = 0


class Candidate(NamedTuple):
    """A schedule with its number of slices (k) or sub-slices (m), how it adds (None: it does not), and its predicted exposed time."""

    schedule: str
    k: int
    m: int
    adds: str | None
    exposed: Time

    def __str__(self) -> str:
        cut = {"sequential": "", "k_slice": f" k={self.k}"}.get(self.schedule, f" m={self.m}")
        return self.schedule + cut + (f", adds {self.adds}" if self.adds else "")


@dataclass(frozen=True)
class Choice:
    """The best schedule: `schedule`, `k`, `m`, `adds` as `plan` takes them, `exposed` time predicted, `reasons` in words."""

    schedule: str
    k: int
    m: int
    adds: str | None
    exposed: Time
    reasons: tuple[str, ...]
    candidates: tuple[Candidate, ...]

    def __str__(self) -> str:
        return "; ".join(self.reasons)


def choose(
    c: Time,
    alpha: Time,
    beta: Time,
    n_ranks: int,
    *,
    operator: str = "matmul_reduce_scatter",
    add: Time = 0,
    slow_link: Time = 1,
    launch: Time = 0,
    divides: int | None = None,
) -> Choice:
    """The schedule that exposes least, to 1 % of the time, for a slice's computation `c` and its hop `alpha + beta`.

    All times in one unit (that of `exposed`): c: computation of one rank's slice; alpha: a hop without its bytes; beta: the bytes of a
    slice; add: one add of a slice; launch: what every partition costs beyond its work. slow_link: factor on beta of the slowest link.
    divides: rows of a slice, where only k and m that divide them will do. Raises UsageError for negative times or no ranks.

        >>> choose(10, 0, 14, 4).schedule, choose(10, 0, 6, 4).exposed
        ('ring', Fraction(0, 1))
    """
    what, given = operator_of(operator), Timing(c, alpha, beta, add, slow_link, launch)
    timing = c, alpha, beta, add, slow_link, launch = Timing(*(amount(value, name) for name, value in given._asdict().items()))
    n_ranks = whole(n_ranks, "n_ranks", 1)
    if divides is not None:
        divides = whole(divides, "divides", 1)
    found = []
    for schedule, k, m, adds in _candidates(what.by, what.adds, n_ranks, timing, divides):
        exposed = closed_form(schedule, n_ranks, c, alpha, beta, k=k, m=m, add=add if what.adds else 0, adds=adds or "separate",
                              slow_link=slow_link, launch=launch)  # fmt: skip
        found.append(Candidate(schedule, k, m, adds, exposed))
    least = min(one.exposed for one in found)
    enough = least + (n_ranks * Fraction(c) + Fraction(least)) * CLOSE
    close = [one for one in found if one.exposed <= enough]
    best = min(close, key=lambda one: (_n_partitions(one, n_ranks), one.schedule == "direct", one.exposed))
    return Choice(*best, reasons=_reasons(best, found, n_ranks, timing), candidates=tuple(found))


def _n_partitions(one: Candidate, n_ranks: int) -> int:
    return one.k * one.m * (1 if one.schedule == "sequential" else n_ranks)


def _candidates(
    by: tuple[str, ...], sums: bool, n_ranks: int, timing: Timing, divides: int | None
) -> list[tuple[str, int, int, str | None]]:
    def fits(parts: int) -> bool:
        return divides is None or divides % parts == 0

    found: list[tuple[str, int, int, str | None]] = [("sequential", 1, 1, None)]
    if n_ranks == 1:
        return found
    found += [("k_slice", k, 1, None) for k in SLICES if fits(k)]
    for m in filter(fits, _sub_slices(n_ranks, timing, divides)):
        for way in by:
            if not sums:
                found.append((way, 1, m, None))
                continue
            found.append((way, 1, m, "early" if way == "direct" else "separate"))
            if m > 1 and timing.add:
                found.append((way, 1, m, "fused"))
    return found


def _sub_slices(n_ranks: int, timing: Timing, divides: int | None) -> list[int]:
    """1, powers of two, the whole numbers around sqrt(c / ((R-1) alpha)), the zero of its derivative, and what divides the rows."""
    found = {2**i for i in range(MAX_SUB_SLICES.bit_length())}
    if timing.alpha > 0 and n_ranks > 1:
        best = math.sqrt(timing.c / ((n_ranks - 1) * timing.alpha))
        found |= {int(best), int(best) + 1}
    if divides is not None:
        found |= {m for m in range(1, MAX_SUB_SLICES + 1) if divides % m == 0}
    return sorted(m for m in found if 1 <= m <= MAX_SUB_SLICES)


def _reasons(best: Candidate, found: list[Candidate], n_ranks: int, timing: Timing) -> tuple[str, ...]:
    if n_ranks == 1:
        return ("1 rank: there is nothing to communicate",)
    p, c = timing.alpha + timing.beta * timing.slow_link, timing.c
    ratio = f", {p / c:.3g} of a slice's computation" if c else ""
    say = [f"{best} exposes {_number(best.exposed)}: a slice's computation takes {_number(c)}, a hop of it {_number(p)}{ratio}"]
    whole = n_ranks * c
    if best.schedule in ("ring", "direct"):
        if best.exposed == 0:
            say.append(f"every hop hides behind the computation of a slice (m alpha + beta <= c (R - 1/m)/(R - 1), R = {n_ranks})")
        elif p > c:
            say.append(f"links are busier than the computation ({_number((n_ranks - 1) * p)} of {_number(whole)}); m = {best.m} shortens "
                       "the first and last piece without paying alpha too often")  # fmt: skip
    elif best.schedule == "k_slice":
        say.append(f"with hops longer than a slice's computation, {best.k} slices of all blocks leave less at the ends than R - 1 tails")
    else:
        say.append("cutting costs more than it hides")
    others = {one.schedule: one for one in sorted(found, key=lambda one: -one.exposed) if one.schedule != best.schedule}
    say += [f"{one} would expose {_number(one.exposed)}" for one in others.values()]
    return tuple(say)


def _number(value: Time) -> str:
    return f"{float(value):.4g}"
