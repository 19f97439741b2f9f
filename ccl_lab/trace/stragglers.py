"""Who is late: per collective what it takes without waiting, who waited how long, and for whom.

Is: arithmetic on entry and end of each rank in each collective. Is not: a search for why a rank is late.
Definitions, per collective over the ranks that took part: latency = the shortest time any rank spent in it (waiting for late
ranks removed); skew = latest − earliest begin, and end; a rank waits from its begin until the last rank begins, but not longer
than it was in there; that wait is charged to the rank that began last.
Invariants: one rank alone waits for nobody; the late rank is the one charged with most waiting, None where waiting is under 1 % of
the time in collectives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..units import format_time
from .statistics import entries_of, starts_of
from .table import Table

if TYPE_CHECKING:
    from .model import Trace

_NEGLIGIBLE = 0.01


@dataclass(frozen=True, repr=False)
class Stragglers:
    """`collectives`: a row each: coll_id, op, ranks, nbytes, begin_ns, latency_us, time_us, begin_skew_us, end_skew_us,
    wait_us (sum over ranks), last_rank (−1: nobody waited). `ranks`: a row per rank: rank, wait_us, charged_us (waiting of
    others for it), came_last. `waits`: a row per (collective, rank): coll_id, rank, wait_us, time_us."""

    collectives: Table
    ranks: Table
    waits: Table

    @property
    def late_rank(self) -> int | None:
        """The rank the others waited for most; None where waiting is negligible."""
        charged = self.ranks["charged_us"]
        whole = float(self.waits["time_us"].sum())
        if not len(charged) or float(charged.sum()) <= _NEGLIGIBLE * whole or not whole:
            return None
        return int(self.ranks["rank"][int(np.argmax(charged))])

    def words(self) -> str:
        """One sentence."""
        late = self.late_rank
        if late is None:
            return (
                "No rank is late."
                if len(self.ranks) > 1
                else "One rank alone: who is late is not to be seen."
            )
        row = next(row for row in self.ranks.rows() if row["rank"] == late)
        whole = float(self.waits["time_us"].sum())
        waited = float(self.ranks["wait_us"].sum())
        return (
            f"Rank {late} is late: it came last in {row['came_last']} of {len(self.collectives)} collectives, "
            f"and the others spent {format_time(row['charged_us'] * 1e-6)} waiting for it; "
            f"{100 * waited / whole:.0f} % of the time in collectives is waiting."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data: late_rank, words, a dict per collective with the wait of each rank (µs)."""
        return {
            "late_rank": self.late_rank,
            "words": self.words(),
            "collectives": self.rows(),
            "ranks": self.ranks.rows(),
        }

    def rows(self) -> list[dict[str, Any]]:
        """A dict per collective; `wait_us` maps ranks to their wait."""
        of: dict[int, dict[int, float]] = {}
        for coll, rank, wait in zip(
            *(self.waits[name].tolist() for name in ("coll_id", "rank", "wait_us")), strict=True
        ):
            of.setdefault(coll, {})[rank] = wait
        return [row | {"wait_us": of[row["coll_id"]]} for row in self.collectives.rows()]

    def __repr__(self) -> str:
        return "\n\n".join([self.words(), repr(self.ranks), repr(self.collectives)])

    def _repr_html_(self) -> str:
        from html import escape

        return f"<p>{escape(self.words())}</p>{self.ranks._repr_html_()}{self.collectives._repr_html_()}"


def stragglers(trace: Trace) -> Stragglers:
    """Who is late in the collectives of a trace. Cost: a few sorts of its collective spans."""
    entries = entries_of(trace)
    starts = starts_of(entries.coll_id)
    n = len(starts)
    counts = np.diff(np.append(starts, len(entries.rank)))
    spent = entries.end - entries.begin

    def over(function: np.ufunc, values: np.ndarray) -> np.ndarray:
        return function.reduceat(values, starts) if n else np.zeros(0, np.int64)

    first, last = over(np.minimum, entries.begin), over(np.maximum, entries.begin)
    latest = np.repeat(last, counts)
    wait = np.minimum(latest - entries.begin, spent)
    came = (entries.begin == latest) & (latest > np.repeat(first, counts))
    # of several that came at once the lowest is named
    last_rank = over(np.minimum, np.where(came, entries.rank, np.iinfo(np.int64).max))
    last_rank = np.where(last > first, last_rank, -1)
    waited = over(np.add, wait)
    ranks, group = np.unique(entries.rank, return_inverse=True)
    group = group.reshape(-1)
    charged, came_last = np.zeros(len(ranks), np.int64), np.zeros(len(ranks), np.int64)
    blamed = np.flatnonzero(last_rank >= 0)
    at = np.searchsorted(ranks, last_rank[blamed])
    np.add.at(charged, at, waited[blamed])
    np.add.at(came_last, at, 1)
    own = np.zeros(len(ranks), np.int64)
    np.add.at(own, group, wait)
    collectives = {
        "coll_id": entries.coll_id[starts],
        "op": np.array([op_of(trace, coll) for coll in entries.coll_id[starts].tolist()], object),
        "ranks": counts,
        "nbytes": over(np.maximum, entries.nbytes),
        "begin_ns": first,
        "latency_us": over(np.minimum, spent) / 1e3,
        "time_us": over(np.maximum, spent) / 1e3,
        "begin_skew_us": (last - first) / 1e3,
        "end_skew_us": (over(np.maximum, entries.end) - over(np.minimum, entries.end)) / 1e3,
        "wait_us": waited / 1e3,
        "last_rank": last_rank,
    }
    per_rank = {"rank": ranks, "wait_us": own / 1e3, "charged_us": charged / 1e3, "came_last": came_last}
    each = {"coll_id": entries.coll_id, "rank": entries.rank, "wait_us": wait / 1e3, "time_us": spent / 1e3}
    return Stragglers(Table("Collectives", collectives), Table("Ranks", per_rank), Table("Waits", each))


def op_of(trace: Trace, coll_id: int) -> str:
    """What a collective is called: imported traces say it for each, others for the run."""
    ops = trace.meta.get("coll_ops")
    if isinstance(ops, list) and 0 <= coll_id < len(ops):
        return str(ops[coll_id])
    return str(trace.meta.get("collective") or "")
