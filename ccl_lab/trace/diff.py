"""What changed between two traces, op by op.

Is: the join of two traces by (rank, op_id, track), e.g. simulated and measured, before and after a fault.
Is not: a judgement; the numbers are deltas, the first trace is the base.
Definitions: within one collective an op's begin is counted from the begin of that collective, its spans
are taken from the first begin to the last end; over repeats of the collective the medians of begin and
duration count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import views
from ..units import format_time
from .columns import SpanKind, Track
from .model import ENUMS, label
from .render import cell
from .table import Table

if TYPE_CHECKING:
    from .model import Trace


@dataclass(frozen=True)
class OpTimes:
    """One row per (rank, op_id, track), ordered so; times in ns, i64[n]; spans without an op are not in
    it."""

    rank: np.ndarray
    op_id: np.ndarray
    track: np.ndarray
    kind: np.ndarray
    peer: np.ndarray
    step: np.ndarray
    nbytes: np.ndarray
    begin_ns: np.ndarray
    duration_ns: np.ndarray
    repeats: np.ndarray

    def key(self) -> np.ndarray:
        """One number per row, equal where (rank, op_id, track) are."""
        return (self.rank.astype(np.int64) << 40) | (self.op_id.astype(np.int64) << 8) | self.track


def op_times(trace: Trace, tracks: list[Track] | None = None) -> OpTimes:
    """The time of each op on each track. Cost: two sorts."""
    spans = trace.where(track=tracks) if tracks is not None else trace
    spans = spans[(spans["op_id"] >= 0) & (spans["rank"] >= 0)]
    c = spans.columns
    if not len(spans):
        return OpTimes(*(np.zeros(0, np.int64) for _ in range(10)))
    order = np.lexsort((c["begin_ns"], c["coll_id"], c["track"], c["op_id"], c["rank"]))
    c = {name: column[order] for name, column in c.items()}
    new_op = _changes(c["rank"], c["op_id"], c["track"])
    once = np.flatnonzero(new_op | _changes(c["coll_id"]))
    begin = np.minimum.reduceat(c["begin_ns"], once)
    end = np.maximum.reduceat(c["end_ns"], once)
    origin = _origins(trace, c["coll_id"][once])
    op_of = np.cumsum(new_op[once]) - 1
    starts = once[new_op[once]]
    n = len(starts)
    columns = [
        c[name][starts].astype(np.int64) for name in ("rank", "op_id", "track", "kind", "peer", "step")
    ]
    return OpTimes(
        *columns,
        _medians(np.add.reduceat(c["nbytes"], once), op_of, n),
        _medians(begin - origin, op_of, n),
        _medians(end - begin, op_of, n),
        np.bincount(op_of, minlength=n),
    )


def _changes(*keys: np.ndarray) -> np.ndarray:
    new = np.zeros(len(keys[0]), bool)
    new[0] = True
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return new


def _origins(trace: Trace, coll_id: np.ndarray) -> np.ndarray:
    """The begin of each of these collectives: when its first rank entered."""
    kinds = trace["kind"]
    # faults and marks of the user may come long before the collective they fall into
    relevant = kinds <= SpanKind.ready
    colls, begins = trace["coll_id"][relevant], trace["begin_ns"][relevant]
    distinct, which = np.unique(colls, return_inverse=True)
    first = np.full(len(distinct), np.iinfo(np.int64).max)
    np.minimum.at(first, which, begins)
    return first[np.searchsorted(distinct, coll_id)]


def _medians(values: np.ndarray, group: np.ndarray, n: int) -> np.ndarray:
    """The lower median of each group; groups are contiguous and numbered 0..n-1."""
    order = np.lexsort((values, group))
    counts = np.bincount(group, minlength=n)
    firsts = np.concatenate(([0], np.cumsum(counts)[:-1]))
    return values[order][firsts + (counts - 1) // 2].astype(np.int64)


def pair(a: Trace, b: Trace, tracks: list[Track] | None = None) -> Table:
    """The ops both traces have, joined by (rank, op_id, track): one row each.

    Columns: rank, op_id, track, kind, peer, step, nbytes, begin_a_ns, begin_b_ns, duration_a_ns,
    duration_b_ns.
    """
    return _join(op_times(a, tracks), op_times(b, tracks))[0]


def _join(a: OpTimes, b: OpTimes) -> tuple[Table, int, int]:
    """The joined rows, and how many rows only a and only b have."""
    _, rows_a, rows_b = np.intersect1d(a.key(), b.key(), assume_unique=True, return_indices=True)
    step = np.where(a.step[rows_a] >= 0, a.step[rows_a], b.step[rows_b])
    columns = {name: getattr(a, name)[rows_a] for name in ("rank", "op_id", "track", "kind", "peer")}
    columns |= {"step": step, "nbytes": a.nbytes[rows_a]}
    columns |= {"begin_a_ns": a.begin_ns[rows_a], "begin_b_ns": b.begin_ns[rows_b]}
    columns |= {"duration_a_ns": a.duration_ns[rows_a], "duration_b_ns": b.duration_ns[rows_b]}
    return Table("Ops", columns), len(a.rank) - len(rows_a), len(b.rank) - len(rows_b)


def _words(name: str, values: np.ndarray) -> np.ndarray:
    """Enum columns by name, others as they are."""
    return np.array([str(label(name, v)) for v in values.tolist()], object) if name in ENUMS else values


def _in_us(top: Table) -> Table:
    """The same narrow enough for a cell of a notebook: durations, and how much later and longer, in µs."""
    columns = {name: top[name] for name in ("rank", "op_id", "track", "kind", "peer", "step", "nbytes")}
    times = {"a_us": "duration_a_ns", "b_us": "duration_b_ns", "later_us": "begin_delta_ns", "longer_us": "duration_delta_ns"}
    return Table(top.title, columns | {name: np.round(top[column] / 1e3, 1) for name, column in times.items()})


@dataclass(frozen=True, repr=False)
class TraceDiff:
    """What changed from trace `a` to trace `b`.

    ops: a row per joined op and track with duration_delta_ns and begin_delta_ns (b minus a), in ns;
    only_a, only_b: how many ops on a track only one of them has.
    """

    a: Trace
    b: Trace
    ops: Table
    only_a: int
    only_b: int

    def top(self, n: int = 10, by: str = "duration_delta_ns") -> Table:
        """The n ops that changed most (by absolute value of a column), largest first; kind and track by
        name."""
        order = np.argsort(-np.abs(self.ops[by]), kind="stable")[:n]
        table = self.ops.take(order)
        columns = {name: _words(name, values) for name, values in table.columns.items()}
        return Table(f"Ops by {by}", columns)

    def per_rank(self) -> Table:
        """Per rank: sum of duration deltas over waits and over everything else, in ns."""
        rank, delta = self.ops["rank"], self.ops["duration_delta_ns"]
        ranks, group = np.unique(rank, return_inverse=True)
        waits = np.isin(self.ops["kind"], [SpanKind.wait, SpanKind.flush, SpanKind.ready])
        columns = {"rank": ranks}
        for name, mask in (("waiting_delta_ns", waits), ("working_delta_ns", ~waits)):
            columns[name] = np.zeros(len(ranks), np.int64)
            np.add.at(columns[name], group[mask], delta[mask])
        return Table("Ranks", columns)

    def summary(self) -> str:
        """The change in words: total time, ops, the largest change."""
        time_a, time_b = self.a.time_us, self.b.time_us
        ratio = f" ({time_b / time_a:.3f} of it)" if time_a else ""
        lines = [f"time {cell(time_a)} µs -> {cell(time_b)} µs{ratio}; {len(self.ops):,} ops joined"]
        if self.only_a or self.only_b:
            lines.append(f"{self.only_a} only in the first, {self.only_b} only in the second")
        worst = self.top(1)
        if len(worst) and worst["duration_delta_ns"][0]:
            row = worst.rows()[0]
            word = "longer" if row["duration_delta_ns"] > 0 else "shorter"
            took = format_time(abs(row["duration_delta_ns"]) * 1e-9)
            lines.append(
                f"largest change: {row['kind']} op {row['op_id']} of rank {row['rank']} took {took} {word}"
            )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the times, counts, and the ops as columns."""
        times = {"time_a_us": self.a.time_us, "time_b_us": self.b.time_us}
        return times | {"only_a": self.only_a, "only_b": self.only_b, "ops": self.ops.to_dict()}

    def timeline(self, **options: Any) -> Any:
        """The widget that shows both, one above the other."""
        return views.draw("trace_diff", self, **options)

    def __repr__(self) -> str:
        return f"{self.summary()}\n{_in_us(self.top(5)).text()}"

    def _repr_html_(self) -> str:
        from html import escape

        return f"<p>{escape(self.summary())}</p>{_in_us(self.top())._repr_html_()}"


def diff(a: Trace, b: Trace) -> TraceDiff:
    """Joins `a` and `b` by (rank, op_id, track) and takes b minus a. Cost: a few sorts of both."""
    table, only_a, only_b = _join(op_times(a), op_times(b))
    columns = dict(table.columns)
    columns["begin_delta_ns"] = columns["begin_b_ns"] - columns["begin_a_ns"]
    columns["duration_delta_ns"] = columns["duration_b_ns"] - columns["duration_a_ns"]
    return TraceDiff(a, b, Table("Ops", columns), only_a, only_b)
