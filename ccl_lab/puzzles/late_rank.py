"""A puzzle about traces: which rank is late?

Is: a task, hints, and a check of a function on jobs whose late rank is known. Is not: a puzzle about schedules (model.py).
Invariant: `check` never raises for a wrong answer; it says what the named rank really did.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..trace import SpanKind, Trace, Track
from ..units import format_time
from .model import Told, Verdict

TASK = """\
Write a function that names the late rank of a job: the one the others wait for. It gets a Trace; the spans of
kind "collective" say when each rank entered and left each collective (columns rank, coll_id, begin_ns, end_ns),
on one clock."""

PICTURE = """\
          collective 0             collective 1
rank 0    ......[==============]   ...[===========]
rank 1    ...[=================]   ......[========]      = in the collective: waiting, then moving bytes
rank 2    ...............[=====]   ..........[====]      who is late spends the least time there"""

HINTS = (
    'spans = trace.where(kind="collective"); a collective moves bytes only once the last rank has entered.',
    "who spends most time in collectives is a victim, not the culprit. And whoever is last once may be first the next time: add up.",
    "for each collective: last = its latest begin_ns; charge the sum of (last - begin_ns) over all ranks to the rank that began last.",
)


def job(seed: int, n_ranks: int = 6, n_collectives: int = 12) -> tuple[Trace, int]:
    """A made-up job and its late rank: late by a lot now and then, while another is last more often, by little."""
    rng = np.random.default_rng(seed)
    late, often = (int(r) for r in rng.permutation(n_ranks)[:2])
    rows, clock = [], 0
    for coll in range(n_collectives):
        begin = clock + rng.integers(0, 2_000, n_ranks)
        begin[often] += 3_000
        if coll % 3 == 0:
            begin[late] += 80_000
        end = int(begin.max()) + 20_000
        rows += [(rank, coll, int(begin[rank]), end) for rank in range(n_ranks)]
        clock = end + 50_000
    rank, coll_id, begin_ns, end_ns = np.array(rows, np.int64).T
    n = len(rows)
    columns = {"rank": rank, "coll_id": coll_id, "begin_ns": begin_ns, "end_ns": end_ns}
    return Trace(
        columns | {"kind": np.full(n, SpanKind.collective), "track": np.full(n, Track.channel)},
        {"collective": "all_reduce"},
    ), late


@dataclass(frozen=True)
class TracePuzzle(Told):
    """A question to a trace, answered by a function."""

    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)

    def check(self, answer: Callable[[Trace], Any]) -> Verdict:
        """Asks the function about several jobs."""
        for seed in self.seeds:
            trace, late = job(seed)
            try:
                found = int(answer(trace))
            except Exception as error:  # whatever a reader's function raises is shown to the reader
                return Verdict(False, f"on job {seed} your function raised {type(error).__name__}: {error}")
            if found != late:
                return Verdict(False, f"on job {seed} it names rank {found}, but {_what(trace, found, late)}")
        return Verdict(
            True, f"named in all {len(self.seeds)} jobs. trace.stragglers() does the same, with the numbers."
        )


def _what(trace: Trace, found: int, late: int) -> str:
    rows = {row["rank"]: row for row in trace.stragglers().ranks.rows()}
    if found not in rows:
        return f"there are ranks 0 to {max(rows)}."
    mine, other = rows[found], rows[late]
    waits, mine_for, other_for = (
        format_time(us * 1e-6) for us in (mine["wait_us"], mine["charged_us"], other["charged_us"])
    )
    return f"that one itself waits {waits}; the others wait {mine_for} for it, and {other_for} for another."


late_rank = TracePuzzle("late_rank", TASK, PICTURE, HINTS)
