"""What of the communication is exposed, as the pictures show it: numbers of every rank, one sentence, the worst op.

Is: an Exposure (ccl_lab/trace/exposed.py) as plain data for the page, and the difference of two in words. Is not: the
definition of the partition. Invariant: times are whole ns; `begin` and `end` of an op are after `origin_ns`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir.ops import Kind
from ..trace import SpanKind, Trace
from ..trace.exposed import Exposure, Occupation, collective_name, exposure, occupations
from ..trace.intervals import coverage_within, union
from ..units import format_time

_MAX_ROWS = 4096


def computes(trace: Any) -> bool:
    """True where a span of computation is in the trace: then there is something to hide communication under."""
    return bool(np.any((trace.columns["kind"] == SpanKind.compute) & (trace.columns["rank"] >= 0)))


def exposure_of(trace: Any) -> Exposure | None:
    """The Exposure of a trace (or of what has columns and meta like one) that computes; None for others."""
    if not computes(trace):
        return None
    return exposure(trace if isinstance(trace, Trace) else Trace(trace.columns, trace.meta))


def exposure_spec(found: Exposure, origin_ns: int) -> dict[str, Any]:
    """{"ranks": [whole ns per rank], "words", "overlap_pct", "ect_ns", "time_ns", "worst": worst op or None}.

    Of more than 4,096 ranks those that expose most are told.
    """
    table = found.ranks
    if len(table) > _MAX_ROWS:
        keep = np.sort(np.argsort(-table["exposed_comm_ns"], kind="stable")[:_MAX_ROWS])
        table = table.take(keep)
    return {
        "ranks": table.rows(),
        "words": found.words(),
        "overlap_pct": found.overlap_pct,
        "ect_ns": found.ect_ns(),
        "time_ns": found.time_ns,
        "worst": worst_op(found, origin_ns),
    }


def worst_op(found: Exposure, origin_ns: int) -> dict[str, Any] | None:
    """The op (or, where spans name none, the collective) whose communication exposes most on one rank; None: nothing is exposed.

    Returns rank, op (-1: none), coll_id, name, exposed_ns, busy_ns of all its spans together, and begin, end of the span
    to look at: the one that exposes most.
    """
    trace = found.trace
    what = occupations(trace)
    rows = np.flatnonzero(what == Occupation.comm)
    c = {name: column[rows] for name, column in trace.columns.items()}
    if not len(rows):
        return None
    rank, begin = c["rank"].astype(np.int64), c["begin_ns"].astype(np.int64)
    end = np.maximum(c["end_ns"].astype(np.int64), begin)
    hides = what == Occupation.compute
    under = union(*(trace.columns[name][hides].astype(np.int64) for name in ("begin_ns", "end_ns", "rank")))
    # Spans of one op on a channel, a wire and a NIC are one thing.
    which, count = _numbered(c["coll_id"], rank, c["op_id"])
    b, e, key = union(begin, end, which)
    of_rank = np.zeros(count, np.int64)
    of_rank[which] = rank
    exposed, busy = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.add.at(busy, key, e - b)
    np.add.at(exposed, key, e - b - coverage_within(b, e, of_rank[key], under))
    worst = int(np.argmax(exposed))
    if not exposed[worst]:
        return None
    mine = np.flatnonzero(which == worst)
    shown = (end - begin)[mine] - coverage_within(begin[mine], end[mine], rank[mine], under)
    at = mine[np.lexsort((c["track"][mine], -shown))[0]]
    coll_id, op = int(c["coll_id"][at]), int(c["op_id"][at])
    return {
        "rank": int(rank[at]),
        "op": op,
        "coll_id": coll_id,
        "name": _name(trace, int(rows[at]), op, coll_id),
        "exposed_ns": int(exposed[worst]),
        "busy_ns": int(busy[worst]),
        "begin": int(begin[at]) - origin_ns,
        "end": int(end[at]) - origin_ns,
    }


def _numbered(*columns: np.ndarray) -> tuple[np.ndarray, int]:
    """The number of each row's combination of values, and how many there are. Cost: a sort a column."""
    found, count = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        values, number = np.unique(column, return_inverse=True)
        distinct, found = np.unique(found * len(values) + number.reshape(-1), return_inverse=True)
        found, count = found.reshape(-1), len(distinct)
    return found, count


def _name(trace: Trace, row: int, op: int, coll_id: int) -> str:
    if op < 0:
        return f"{collective_name(trace, row)} {coll_id}"
    kind, peer = int(trace["kind"][row]), int(trace["peer"][row])
    arrow = "←" if kind in (Kind.wait, Kind.get) else "→"
    return f"{SpanKind(kind).name} {arrow} {peer} (op {op})" if peer >= 0 else f"{SpanKind(kind).name} (op {op})"


def same_schedule(a: Any, b: Any) -> bool:
    """False where the two runs are known to be of different schedules, so that their ops have nothing to do with each other."""
    one, two = (dict(getattr(trace, "meta", {}) or {}) for trace in (a, b))
    return all(not one.get(key) or not two.get(key) or one[key] == two[key] for key in ("schedule_digest", "algorithm", "collective"))


def difference(a: Exposure, b: Exposure, labels: tuple[str, str]) -> str:
    """What became of the exposed communication from `a` to `b`, in one or two sentences."""
    before, after = (max(each.ranks["exposed_comm_ns"].tolist(), default=0) for each in (a, b))
    first, second = labels
    if before == after:
        text = f"Both expose {_time(before)} on their worst rank"
    else:
        word = "less" if after < before else "more"
        text = (
            f"{second} exposes {_time(abs(before - after))} {word} than {first} on the worst rank: {_of_total(before, a)} "
            f"became {_of_total(after, b)}"
        )
    if a.overlap_pct is not None and b.overlap_pct is not None:
        text += f"; overlap {a.overlap_pct:.1f} % → {b.overlap_pct:.1f} %"
    text += f"; it takes {_time(b.time_ns)} instead of {_time(a.time_ns)} ({_ratio(b.time_ns, a.time_ns)} of it)."
    computed = [max(each.ranks["compute_ns"].tolist(), default=0) for each in (a, b)]
    if computed[0] and computed[0] != computed[1]:
        text += f" Its computation takes {_ratio(computed[1], computed[0])} times as long."
    return text


def _time(ns: int) -> str:
    return format_time(ns * 1e-9)


def _of_total(exposed: int, of: Exposure) -> str:
    share = 100 * exposed / of.time_ns if of.time_ns else 0.0
    return f"{_time(exposed)} ({share:.1f} %)"


def _ratio(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else "–"
