"""Closed forms of exposed communication: what a schedule's makespan is longer than its computation, R * c.

    schedule                      exposed
    sequential                    (R-1) p
    k_slice                       q + (k-1) max(0, q - R c/k),  q = (R-1)(alpha + beta/k)
    ring, direct, m sub-slices    max(0, c/m + (R-1)(m alpha + beta) - R c) + (R-1) a
    … one slow link, x f          beta becomes f beta

R ranks, c: computation of a slice, p = alpha + beta: one hop of a slice, a: one add of a slice. sequential and k_slice add on the
communication channel, between hops: p becomes p + a. The term (R-1) a is exact for m = 1; the code has the longest path for any m,
and for adds that are fused into partitions (scattering.py), which the table above does not know.

Is: arithmetic in whatever unit the times have; Fraction in, Fraction out. Is not: the simulator, which gets the same numbers from the
schedules (tests/sim). Invariants: equal to the simulator's makespan - R c, but an upper bound where one slow link meets adds that
take time or are fused. Source: table and symbols as derived for CommFuse (arXiv 2604.24013); longest paths derived here.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Union

from ..arguments import amount, whole
from ..errors import UsageError

Time = Union[int, float, Fraction]


def closed_form(
    schedule: str,
    n_ranks: int,
    c: Time,
    alpha: Time,
    beta: Time,
    *,
    k: int = 1,
    m: int = 1,
    add: Time = 0,
    adds: str = "separate",
    slow_link: Time = 1,
    launch: Time = 0,
) -> Time:
    """Exposed communication of `schedule` (sequential, k_slice, ring, direct) in the unit of its times.

    c: computation of a slice; alpha + beta: a hop of a slice. k: slices; m: sub-slices; add: one add of a slice; adds: separate,
    early or fused (scattering.py); slow_link: factor on beta of the slowest link; launch: what each partition costs beyond its work.
    Exact rational arithmetic if no argument is a float. Raises UsageError for numbers that make no schedule.
    """
    times = {"c": c, "alpha": alpha, "beta": beta, "add": add, "launch": launch}
    times = {name: amount(value, name) for name, value in times.items()}
    n_ranks, k, m = (whole(value, name, 1) for name, value in (("n_ranks", n_ranks), ("k", k), ("m", m)))
    slow_link = amount(slow_link, "slow_link", least=1)
    exact = [Fraction(value) for value in times.values()]
    exposed = _exposed(schedule, n_ranks, exact[0], exact[1], exact[2] * Fraction(slow_link), k, m, exact[3], adds, exact[4])
    return float(exposed) if any(isinstance(value, float) for value in (*times.values(), slow_link)) else exposed


def _exposed(schedule: str, n: int, c: Fraction, alpha: Fraction, beta: Fraction, k: int, m: int, add: Fraction, adds: str,
             launch: Fraction) -> Fraction:  # fmt: skip
    if schedule in ("sequential", "k_slice"):
        k = 1 if schedule == "sequential" else k
        work = n * c / k + (launch if k == 1 else n * launch)
        q = (n - 1) * (alpha + beta / k + add / k)
        return q + (k - 1) * max(Fraction(0), q - work) + (k * work - n * c)
    if schedule not in ("ring", "direct"):
        raise UsageError(f"overlap schedule {schedule!r} has no closed form: expected sequential, k_slice, ring or direct.")
    piece, hop = c / m + launch, alpha + beta / m
    if n == 1:
        return m * piece - c
    makespan = {"fused": _fused, "early": _early, "separate": _ring if schedule == "ring" else _direct}.get(adds)
    if makespan is None or (schedule, adds) == ("ring", "early"):
        raise UsageError(f"adds={adds!r} by {schedule}: expected separate, {'early, ' if schedule == 'direct' else ''}or fused.")
    return makespan(n, m, piece, hop, add / m, schedule) - n * c


# Longest paths. A compute stream makes n m pieces; a link sends (n-1) m hops, one after the other, each after its piece; what
# arrives is added (add) or, fused, waited for by the piece that adds it. All are linear in where they switch, so the ends suffice.


def _ring(n: int, m: int, piece: Fraction, hop: Fraction, add: Fraction, _: str) -> Fraction:
    """Every hop is followed by an add, and from the second step on every piece too."""
    step = max(hop, piece + add)
    chains = [piece + s * (hop + add) + (n * m - 1 - s * m) * step for s in (1, n - 1)]
    return max(n * m * piece + (n - 1) * m * add, *chains)


def _direct(n: int, m: int, piece: Fraction, hop: Fraction, add: Fraction, _: str) -> Fraction:
    """All adds follow the last piece, in the order of arrival."""
    sent = (n - 1) * m
    first, last = _arrival(0, piece, hop) + sent * add, _arrival(sent - 1, piece, hop) + add
    return max(n * m * piece + sent * add, first, last)


def _early(n: int, m: int, piece: Fraction, hop: Fraction, add: Fraction, _: str) -> Fraction:
    """The own pieces wait for all rounds but the last, whose adds follow."""
    own = n * m * piece
    if n > 2:
        own = max([own] + [_arrival((n - 3) * m + j, piece, hop) + (m - j) * piece for j in (0, m - 1)])
    return max([own + m * add] + [_arrival((n - 2) * m + j, piece, hop) + (m - j) * add for j in (0, m - 1)])


def _fused(n: int, m: int, piece: Fraction, hop: Fraction, _: Fraction, schedule: str) -> Fraction:
    """`sends` hops, each followed by the piece that waited for it; before them the slower of stream and link."""
    step, most = max(piece, hop), n - 1 if schedule == "ring" else 1
    return max([n * m * piece] + [piece + s * (hop + piece) + (n * m - 1 - s * m) * step for s in (1, most)])


def _arrival(q: int, piece: Fraction, hop: Fraction) -> Fraction:
    """When hop q of a link that starts with piece 0 has arrived."""
    return max((q + 1) * piece + hop, piece + (q + 1) * hop)
