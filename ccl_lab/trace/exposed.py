"""What the time of each rank went to: computation, communication nobody hid, copies nobody hid, nothing.

Is: the partition total = compute + exposed_comm + exposed_memcpy + idle per rank, in whole ns, with overlap,
effective communication time (Flux, arXiv 2406.06858) and the collective that exposes most. Is not: a guess at why
(stragglers.py), nor at classes of foreign kernels (importers/classes.py): it takes tracks and kinds as they are.

    compute         |∪ compute|
    exposed_comm    |∪ comm − ∪ compute|
    exposed_memcpy  |∪ memcpy − ∪ compute − ∪ comm|
    idle            total − the three; total is from the first begin to the last end of the rank

What is what: compute spans of the compute track are computation (one on a channel also holds what passed until the channel
went on). Everything else an op of a schedule does is communication, waiting for a peer and its additions included, as it
would be inside a kernel of NCCL; a wait for oneself only orders two channels of a rank and is none. A collective span on a
channel is a communication kernel; on the control track it is the time from entry to end, and counts as communication only
where nothing else of that rank says what it did. A copy without an op is a memcpy. Faults, recovery and marks of the user
take no time of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from ..units import format_time
from .columns import SpanKind, Track
from .intervals import coverage_within, covered, union
from .table import Table

if TYPE_CHECKING:
    from .model import Trace

_OP_KINDS = [
    SpanKind.put,
    SpanKind.get,
    SpanKind.signal,
    SpanKind.wait,
    SpanKind.flush,
    SpanKind.copy,
    SpanKind.reduce,
]
_COMM_KINDS = [*_OP_KINDS, SpanKind.segment, SpanKind.ready]
_ON_WIRES = [Track.nic_tx, Track.nic_rx, Track.fabric]


class Occupation(IntEnum):
    """What a span keeps its rank busy with."""

    nothing = 0
    compute = 1
    comm = 2
    memcpy = 3


def occupations(trace: Trace) -> np.ndarray:
    """The Occupation of each span, u8[n]."""
    c = trace.columns
    kind, track, found = c["kind"], c["track"], np.zeros(len(trace), np.uint8)
    ours = c["rank"] >= 0
    is_compute = (kind == SpanKind.compute) & (track == Track.compute) & ours
    memcpy = (track == Track.copy) & (kind == SpanKind.copy) & (c["op_id"] < 0) & ours
    to_self = (kind <= SpanKind.flush) & (c["peer"] == c["rank"]) & ~np.isin(track, _ON_WIRES)
    comm = (np.isin(kind, _COMM_KINDS) & ~to_self) | (
        (kind == SpanKind.collective) & (track != Track.control)
    )
    comm &= ours & ~memcpy & ~is_compute
    found[comm], found[memcpy], found[is_compute] = Occupation.comm, Occupation.memcpy, Occupation.compute
    found[_bare_entries(trace, comm)] = Occupation.comm
    return found


def _bare_entries(trace: Trace, comm: np.ndarray) -> np.ndarray:
    """Entry-to-end spans of ranks that say nothing else of that collective (a node's own paths, a cut trace)."""
    c = trace.columns
    entries = np.flatnonzero(
        (c["kind"] == SpanKind.collective) & (c["track"] == Track.control) & (c["rank"] >= 0)
    )
    key = (c["rank"].astype(np.int64) << 32) | c["coll_id"]
    said = comm | ((c["kind"] == SpanKind.compute) & (c["rank"] >= 0))
    return entries[~np.isin(key[entries], np.unique(key[said]))]


@dataclass(frozen=True, repr=False)
class Exposure:
    """What the time of each rank went to.

    `ranks`: a row per rank, whole ns: rank, total_ns, compute_ns, comm_ns, exposed_comm_ns, exposed_memcpy_ns, idle_ns, and
    overlapped_ns (computation and communication at once); total = compute + exposed_comm + exposed_memcpy + idle.
    `collectives`: a row per (coll_id, rank): busy_ns and exposed_ns of its communication, and `row`, a span of it.
    """

    trace: Trace
    ranks: Table
    collectives: Table

    def partition(self) -> list[dict[str, Any]]:
        """A dict per rank in µs: rank, total_us, compute_us, comm_us, exposed_comm_us, exposed_memcpy_us, idle_us, overlap_pct.

        overlap_pct is the part of the communication that ran under computation, in percent; None without any.
        """
        names = ("total", "compute", "comm", "exposed_comm", "exposed_memcpy", "idle")
        rows = []
        for row in self.ranks.rows():
            overlap = 100 * row["overlapped_ns"] / row["comm_ns"] if row["comm_ns"] else None
            times = {f"{name}_us": row[f"{name}_ns"] / 1e3 for name in names}
            rows.append({"rank": row["rank"], **times, "overlap_pct": overlap})
        return rows

    @property
    def overlap_pct(self) -> float | None:
        """Overlap over all ranks together, percent; None where nothing communicates."""
        comm = int(self.ranks["comm_ns"].sum())
        return 100 * int(self.ranks["overlapped_ns"].sum()) / comm if comm else None

    @property
    def time_ns(self) -> int:
        """The longest total of a rank."""
        return int(self.ranks["total_ns"].max()) if len(self.ranks) else 0

    def ect_ns(self, best_compute_ns: int | None = None) -> int:
        """Effective communication time: overall time minus the best time of the computation not split up.

        best_compute_ns: that time (default: the most any rank computed here). May be negative. Source: Flux, section 5.
        """
        best = best_compute_ns
        if best is None:
            best = int(self.ranks["compute_ns"].max()) if len(self.ranks) else 0
        return self.time_ns - best

    def efficiency(self, without_overlap: Trace, best_compute_ns: int | None = None) -> float | None:
        """1 − ECT / ECT of the run without overlap; 1: all hidden, 0: nothing gained, negative: lost. None where there was none.

        best_compute_ns: as in `ect_ns` (default: the most a rank computed in the run without overlap).
        """
        base = exposure(without_overlap)
        if best_compute_ns is None:
            best_compute_ns = base.time_ns - base.ect_ns()
        whole = base.ect_ns(best_compute_ns)
        return 1 - self.ect_ns(best_compute_ns) / whole if whole else None

    @property
    def worst(self) -> dict[str, Any] | None:
        """The collective and rank with the most exposed communication: coll_id, rank, name, exposed_us, busy_us; None without."""
        if not len(self.collectives) or not self.collectives["exposed_ns"].max():
            return None
        row = self.collectives.rows()[int(np.argmax(self.collectives["exposed_ns"]))]
        times = {"exposed_us": row["exposed_ns"] / 1e3, "busy_us": row["busy_ns"] / 1e3}
        name = collective_name(self.trace, row["row"])
        return {"coll_id": row["coll_id"], "rank": row["rank"], "name": name, **times}

    def words(self) -> str:
        """One sentence."""
        if not len(self.ranks):
            return "No rank computes or communicates here."
        at = int(np.argmax(self.ranks["exposed_comm_ns"]))
        row = self.ranks.rows()[at]
        total = format_time(row["total_ns"] * 1e-9)
        if not row["comm_ns"]:
            return f"Nothing communicates; rank {row['rank']} computes {_share(row['compute_ns'], row['total_ns'])} of {total}."
        if not row["exposed_comm_ns"]:
            hidden = "all communication runs under computation"
            return f"On every rank {hidden}: of {total} nothing is exposed, {_share(row['idle_ns'], row['total_ns'])} idle."
        text = (
            f"Rank {row['rank']} spends {format_time(row['exposed_comm_ns'] * 1e-9)} of {total} "
            f"({_share(row['exposed_comm_ns'], row['total_ns'])}) on communication that no computation hides; "
            f"{_share(row['overlapped_ns'], row['comm_ns'])} of its communication runs under computation"
        )
        worst = self.worst
        if worst and len(np.unique(self.collectives["coll_id"])) > 1:
            text += (
                f"; worst is {worst['name']} (collective {worst['coll_id']}) with "
                f"{format_time(worst['exposed_us'] * 1e-6)} on rank {worst['rank']}"
            )
        return text + "."

    def to_dict(self) -> dict[str, Any]:
        """Plain data: partition, overlap_pct, worst, words."""
        return {
            "ranks": self.partition(),
            "overlap_pct": self.overlap_pct,
            "worst": self.worst,
            "words": self.words(),
        }

    def __repr__(self) -> str:
        return f"{self.words()}\n{self._table().text()}"

    def _repr_html_(self) -> str:
        from html import escape

        return f"<p>{escape(self.words())}</p>{self._table()._repr_html_()}"

    def _table(self) -> Table:
        rows = self.partition()
        names = list(rows[0]) if rows else ["rank"]
        columns = {n: np.array([np.nan if r[n] is None else r[n] for r in rows]) for n in names}
        return Table("Partition", columns)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "0 %"


def collective_name(trace: Trace, row: int) -> str:
    """What the collective of a span is called: by its operation, else by the span's own name."""
    from .names import name_of
    from .stragglers import op_of

    return op_of(trace, int(trace["coll_id"][row])) or name_of(trace, row) or "communication"


def exposure(trace: Trace) -> Exposure:
    """The partition of every rank that computes, communicates or copies. Cost: a few sorts of the spans."""
    what = occupations(trace)
    c = trace.columns
    entered = (c["kind"] == SpanKind.collective) & (c["rank"] >= 0)
    counted = np.flatnonzero((what != Occupation.nothing) | entered)
    ranks, group = np.unique(c["rank"][counted], return_inverse=True)
    group, n = group.reshape(-1).astype(np.int64), len(ranks)
    begin = c["begin_ns"][counted].astype(np.int64)
    end = np.maximum(c["end_ns"][counted].astype(np.int64), begin)
    what = what[counted]

    def us(*classes: Occupation) -> np.ndarray:
        mask = np.isin(what, classes)
        return covered(begin[mask], end[mask], group[mask], n)

    compute, comm = us(Occupation.compute), us(Occupation.comm)
    both = us(Occupation.compute, Occupation.comm)
    busy = us(Occupation.compute, Occupation.comm, Occupation.memcpy)
    first, last = np.full(n, np.iinfo(np.int64).max), np.full(n, np.iinfo(np.int64).min)
    np.minimum.at(first, group, begin)
    np.maximum.at(last, group, end)
    columns = {
        "rank": ranks.astype(np.int64),
        "total_ns": last - first,
        "compute_ns": compute,
        "comm_ns": comm,
        "exposed_comm_ns": both - compute,
        "exposed_memcpy_ns": busy - both,
        "idle_ns": last - first - busy,
        "overlapped_ns": compute + comm - both,
    }
    hides = what == Occupation.compute
    under = union(begin[hides], end[hides], group[hides])
    return Exposure(
        trace, Table("Ranks", columns), _collectives(trace, counted, what, (begin, end, group), ranks, under)
    )


def _collectives(
    trace: Trace,
    counted: np.ndarray,
    what: np.ndarray,
    times: tuple[np.ndarray, np.ndarray, np.ndarray],
    ranks: np.ndarray,
    under: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> Table:
    """Busy and exposed time of each collective on each rank: its own union, and what of that no computation covers."""
    mask = what == Occupation.comm
    begin, end, group = (array[mask] for array in times)
    rows = counted[mask]
    n = max(1, len(ranks))
    keys, which, first = _distinct(trace["coll_id"][rows].astype(np.int64) * n + group)
    begin, end, key = union(begin, end, which)
    hidden = coverage_within(begin, end, keys[key] % n, under)
    busy, exposed = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
    np.add.at(busy, key, end - begin)
    np.add.at(exposed, key, end - begin - hidden)
    columns = {
        "coll_id": keys // n,
        "rank": ranks[keys % n].astype(np.int64),
        "busy_ns": busy,
        "exposed_ns": exposed,
    }
    return Table("Collectives", columns | {"row": rows[first]})


def _distinct(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    distinct, first, which = np.unique(keys, return_index=True, return_inverse=True)
    return distinct, which.reshape(-1), first


def partition(trace: Trace) -> list[dict[str, Any]]:
    """A dict per rank in µs: rank, total_us, compute_us, comm_us, exposed_comm_us, exposed_memcpy_us, idle_us, overlap_pct.

    total = compute + exposed_comm + exposed_memcpy + idle, exactly in ns. Measured, simulated and imported traces alike.

    >>> from ccl_lab.trace import Trace
    >>> spans = {"rank": [0, 0], "track": [3, 0], "kind": [7, 0], "peer": [-1, 1]}
    >>> trace = Trace(spans | {"begin_ns": [0, 6000], "end_ns": [8000, 9000]})
    >>> [row["exposed_comm_us"] for row in partition(trace)]
    [1.0]
    """
    return exposure(trace).partition()
