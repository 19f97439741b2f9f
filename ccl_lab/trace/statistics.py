"""Statistics of a trace: collectives, ranks and NICs.

Is: latency, algbw and busbw as nccl-tests define them, percentiles over repeats, skew and who came last,
what each rank did, what each NIC carried. Is not: overlap with computation or a critical path.
Definitions: the time of a collective is the longest time any rank spent in it (nccl-tests `-a 3`); its
latency the shortest (waiting for late ranks removed). algbw = bytes of the larger buffer of a rank / time;
busbw = algbw * factor. A rank is busy while anything of it works (a put in flight is work), waiting while
it waits and nothing of it works; the mean rate of a NIC is taken over the time of the collectives, without
the gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UsageError, suggest
from ..ir.ops import Collective
from ..units import format_size
from .columns import SpanKind, Track
from .intervals import covered, covered_without, union
from .rates import MAX_BINS, line_rates, rate_bins
from .render import cell
from .table import Table

if TYPE_CHECKING:
    from .model import Trace

PERCENTILES = (50, 90, 95, 99)
_PEAK_BINS = 256
_WAITING = [SpanKind.wait, SpanKind.ready, SpanKind.flush]
_WORKING = [Track.channel, Track.nic_tx, Track.compute, Track.copy, Track.fabric]
_NOT_WORK = [SpanKind.collective, SpanKind.fault, SpanKind.recovery, SpanKind.user]


def bus_factor(collective: str, n_ranks: int) -> float:
    """busbw / algbw as nccl-tests define it.

    all_reduce 2(n-1)/n; all_gather, reduce_scatter, all_to_all(v), gather, scatter (n-1)/n; broadcast,
    reduce, send_recv 1; barrier 0 (no bytes). Raises UsageError for an unknown collective.

    >>> bus_factor("all_reduce", 8)
    1.75
    """
    if collective not in Collective.__members__:
        raise UsageError(
            f"collective {collective!r} is unknown.{suggest(collective, Collective.__members__)}"
        )
    others = (n_ranks - 1) / n_ranks if n_ranks > 0 else 0.0
    factors = {"all_reduce": 2 * others, "broadcast": 1.0, "reduce": 1.0, "send_recv": 1.0, "barrier": 0.0}
    return factors.get(collective, others)


def bandwidths(collective: str, n_ranks: int, nbytes: int, time_us: float) -> tuple[float, float]:
    """(algbw, busbw) in 1e9 bytes/s; nbytes: bytes of the larger buffer of a rank. 0 where there is no
    time."""
    algbw = nbytes / (time_us * 1e3) if time_us > 0 else 0.0
    return algbw, algbw * bus_factor(collective, n_ranks)


@dataclass(frozen=True, repr=False)
class TraceStatistics:
    """What a trace says in numbers.

    time_us: of one collective (the run's own measure where meta has it, else the median);
    time_percentiles_us over the collectives; `collectives`, `ranks`, `nics`: tables with a row each.
    """

    collective: str
    algorithm: str
    n_ranks: int
    nbytes: int
    n_spans: int
    drops: int
    time_us: float
    algbw_gbytes_per_s: float
    busbw_gbytes_per_s: float
    time_percentiles_us: dict[str, float]
    collectives: Table
    ranks: Table
    nics: Table

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: the facts, and each table as a list of rows."""
        facts = {k: v for k, v in self.__dict__.items() if not isinstance(v, Table)}
        return facts | {t: getattr(self, t).rows() for t in ("collectives", "ranks", "nics")}

    def summary(self) -> str:
        """One line."""
        what = " ".join(word for word in (self.collective, self.algorithm) if word) or "trace"
        line = f"{what}, {self.n_ranks} ranks, {format_size(self.nbytes)}: {cell(self.time_us)} µs"
        if self.algbw_gbytes_per_s:
            line += (
                f", algbw {cell(self.algbw_gbytes_per_s)} GB/s, busbw {cell(self.busbw_gbytes_per_s)} GB/s"
            )
        return line + (f", {self.drops} spans dropped" if self.drops else "")

    def __repr__(self) -> str:
        parts = [self.summary()]
        if len(self.collectives) > 1:
            parts.append("time_us " + ", ".join(f"{k} {cell(v)}" for k, v in self.time_percentiles_us.items()))
        return "\n\n".join(parts + [repr(t) for t in self._tables()])

    def _repr_html_(self) -> str:
        from html import escape

        return f"<p>{escape(self.summary())}</p>" + "".join(t._repr_html_() for t in self._tables())

    def _tables(self) -> list[Table]:
        """What is shown: clocks begin anywhere, so collectives are told from the begin of the first one."""
        columns = dict(self.collectives.columns)
        begin = columns["begin_ns"]
        after = {"begin_us": (begin - begin.min()) / 1e3} if len(begin) else {}
        shown = {new: values for name in columns for new, values in (after if name == "begin_ns" else {name: columns[name]}).items()}
        return [t for t in (Table(self.collectives.title, shown), self.ranks, self.nics) if len(t)]


def statistics(trace: Trace) -> TraceStatistics:
    """All statistics of a trace. Cost: a few sorts of its spans."""
    meta = trace.meta
    name = meta.get("collective") if meta.get("collective") in Collective.__members__ else ""
    entries = entries_of(trace)
    collectives = _collectives(trace, entries, name)
    times = collectives["time_us"]
    own = meta.get("time_us")
    time_us = float(own) if isinstance(own, (int, float)) else float(np.median(times)) if len(times) else 0.0
    nbytes = _size(meta, collectives)
    algbw, busbw = bandwidths(name, trace.n_ranks, nbytes, time_us) if name else (0.0, 0.0)
    percentiles = {"min": float(times.min()), "max": float(times.max())} if len(times) else {}
    percentiles |= {f"p{p}": float(np.percentile(times, p)) for p in PERCENTILES if len(times)}
    return TraceStatistics(
        collective=name,
        algorithm=str(meta.get("algorithm") or ""),
        n_ranks=trace.n_ranks,
        nbytes=nbytes,
        n_spans=len(trace),
        drops=int(meta.get("drops") or 0),
        time_us=time_us,
        algbw_gbytes_per_s=algbw,
        busbw_gbytes_per_s=busbw,
        time_percentiles_us=percentiles,
        collectives=collectives,
        ranks=_ranks(trace, entries),
        nics=_nics(trace, collectives),
    )


@dataclass(frozen=True)
class Entries:
    """One row per (collective, rank), ordered so: entry and end of that rank, bytes its collective span
    names; i64[n] each."""

    coll_id: np.ndarray
    rank: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    nbytes: np.ndarray


def entries_of(trace: Trace) -> Entries:
    """When each rank entered and left each collective."""
    spans = trace.where(kind=SpanKind.collective)
    if not len(spans):
        # a trace without entry spans (imported, or cut): from the first to the last thing the rank did
        spans = trace.where(kind=list(range(SpanKind.collective)))
        spans = spans[spans["rank"] >= 0]
    coll, rank = spans["coll_id"], spans["rank"]
    order = np.lexsort((rank, coll))
    coll, rank = coll[order], rank[order]
    starts = starts_of(coll, rank)
    if not len(starts):
        empty = np.zeros(0, np.int64)
        return Entries(empty, empty, empty, empty, empty)
    is_entry = spans["kind"][order] == SpanKind.collective
    return Entries(
        coll[starts].astype(np.int64),
        rank[starts].astype(np.int64),
        np.minimum.reduceat(spans["begin_ns"][order], starts),
        np.maximum.reduceat(spans["end_ns"][order], starts),
        np.maximum.reduceat(np.where(is_entry, spans["nbytes"][order], 0), starts),
    )


def starts_of(*keys: np.ndarray) -> np.ndarray:
    """Where a new combination of the keys begins, in arrays sorted by them."""
    n = len(keys[0])
    new = np.zeros(n, bool)
    new[:1] = True
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(new)


def _collectives(trace: Trace, entries: Entries, name: str) -> Table:
    starts = starts_of(entries.coll_id)
    if not len(starts):
        names = ["coll_id", "ranks", "nbytes", "begin_ns", "time_us", "latency_us", "algbw_gbytes_per_s"]
        names += ["busbw_gbytes_per_s", "begin_skew_us", "end_skew_us", "last_rank"]
        return Table("Collectives", {column: np.zeros(0) for column in names})
    counts = np.diff(np.append(starts, len(entries.rank)))
    first, last = np.minimum.reduceat(entries.begin, starts), np.maximum.reduceat(entries.begin, starts)
    end_first, end_last = np.minimum.reduceat(entries.end, starts), np.maximum.reduceat(entries.end, starts)
    spent = entries.end - entries.begin
    time_us = np.maximum.reduceat(spent, starts) / 1e3
    known = trace.meta.get("nbytes")
    nbytes = np.maximum.reduceat(entries.nbytes, starts)
    if isinstance(known, int):
        nbytes = np.full(len(starts), known, np.int64)
    algbw = np.divide(nbytes, time_us * 1e3, out=np.zeros(len(starts)), where=time_us > 0)
    factor = _factors(trace, entries.coll_id[starts], name)
    came_last = np.repeat(last, counts) == entries.begin
    last_rank = np.maximum.reduceat(np.where(came_last, entries.rank, -1), starts)
    columns = {
        "coll_id": entries.coll_id[starts],
        "ranks": counts,
        "nbytes": nbytes,
        "begin_ns": first,
        "time_us": time_us,
        "latency_us": np.minimum.reduceat(spent, starts) / 1e3,
        "algbw_gbytes_per_s": algbw,
        "busbw_gbytes_per_s": algbw * factor,
        "begin_skew_us": (last - first) / 1e3,
        "end_skew_us": (end_last - end_first) / 1e3,
        "last_rank": np.where(last > first, last_rank, -1),
    }
    return Table("Collectives", columns)


def _factors(trace: Trace, coll_id: np.ndarray, name: str) -> np.ndarray:
    """busbw / algbw of each collective; NaN where its operation is not known."""
    ops, sizes = trace.meta.get("coll_ops"), trace.meta.get("coll_ranks")
    if not isinstance(ops, list):
        return np.full(len(coll_id), bus_factor(name, trace.n_ranks) if name else np.nan)
    sizes = sizes if isinstance(sizes, list) and len(sizes) == len(ops) else [0] * len(ops)
    known = [
        bus_factor(op, size if isinstance(size, int) and size > 0 else trace.n_ranks) if op in Collective.__members__ else np.nan
        for op, size in zip(ops, sizes, strict=True)
    ]
    table = np.array([*known, np.nan])
    return table[np.minimum(coll_id, len(known))]


def _size(meta: dict[str, Any], collectives: Table) -> int:
    if isinstance(meta.get("nbytes"), int):
        return int(meta["nbytes"])
    sizes = np.unique(collectives["nbytes"])
    return int(sizes[0]) if len(sizes) == 1 else 0


def _ranks(trace: Trace, entries: Entries) -> Table:
    spans = trace[trace["rank"] >= 0]
    ranks, group = np.unique(spans["rank"], return_inverse=True)
    n, kind, track = len(ranks), spans["kind"], spans["track"]
    node = np.full(n, -1, np.int64)
    node[group] = spans["node"]
    counted = np.isin(track, _WORKING) & ~np.isin(kind, _NOT_WORK)
    waits = np.isin(kind, _WAITING)
    copies = counted & ((track == Track.copy) | np.isin(kind, [SpanKind.copy, SpanKind.reduce]))

    def us(mask: np.ndarray) -> np.ndarray:
        return covered(spans["begin_ns"][mask], spans["end_ns"][mask], group[mask], n) / 1e3

    either = counted | waits
    begin, end = spans["begin_ns"][either], spans["end_ns"][either]
    waiting = covered_without(begin, end, group[either], waits[either], n) / 1e3
    early, last = _arrivals(entries, ranks)
    sent = np.zeros(n, np.int64)
    out = (track == Track.nic_tx) | ((track == Track.fabric) & (kind != SpanKind.get))
    np.add.at(sent, group[out], spans["nbytes"][out])
    columns = {
        "rank": ranks.astype(np.int64),
        "node": node,
        "busy_us": us(counted & ~waits),
        "waiting_us": waiting,
        "copying_us": us(copies),
        "sending_us": us(out),
        "computing_us": us(counted & (track == Track.compute)),
        "sent_nbytes": sent,
        "early_us": early,
        "came_last": last,
    }
    return Table("Ranks", columns)


def _arrivals(entries: Entries, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Per rank: µs it was in collectives before the last rank came, and how often it came last itself."""
    early, last = np.zeros(len(ranks)), np.zeros(len(ranks), np.int64)
    starts = starts_of(entries.coll_id)
    if not len(starts):
        return early, last
    counts = np.diff(np.append(starts, len(entries.rank)))
    latest = np.repeat(np.maximum.reduceat(entries.begin, starts), counts)
    first = np.repeat(np.minimum.reduceat(entries.begin, starts), counts)
    row = np.searchsorted(ranks, entries.rank)
    np.add.at(early, row, (latest - entries.begin) / 1e3)
    came = (entries.begin == latest) & (latest > first)
    np.add.at(last, row[came], 1)
    return early, last


def _nics(trace: Trace, collectives: Table) -> Table:
    spans = trace.where(track=[Track.nic_tx, Track.nic_rx])
    keys = np.stack([spans["node"], spans["index"], spans["track"]], axis=1).astype(np.int64)
    nics, group = np.unique(keys, axis=0, return_inverse=True)
    group, n = group.reshape(-1), len(nics)
    nbytes = np.zeros(n, np.int64)
    np.add.at(nbytes, group, spans["nbytes"])
    busy_ns = covered(spans["begin_ns"], spans["end_ns"], group, n)
    window_ns = _window_ns(trace, collectives)
    peak = np.zeros(n)
    if n:
        n_bins = max(1, min(_PEAK_BINS, MAX_BINS // n))
        bins = rate_bins(spans, max(1, -(-(spans.end_ns - spans.begin_ns) // n_bins)))
        peak = bins.gbits_per_s.max(axis=1)
    mean = nbytes * 8.0 / window_ns if window_ns else np.zeros(n)
    line = line_rates(trace.meta, nics[:, 0], nics[:, 1])
    line = np.full(n, np.nan) if line is None else line
    columns = {
        "node": nics[:, 0],
        "nic": nics[:, 1],
        "direction": np.where(nics[:, 2] == Track.nic_tx, "tx", "rx"),
        "nbytes": nbytes,
        "busy_us": busy_ns / 1e3,
        "mean_gbits_per_s": mean,
        "busy_gbits_per_s": np.divide(nbytes * 8.0, busy_ns, out=np.zeros(n), where=busy_ns > 0),
        "peak_gbits_per_s": peak,
        "line_gbits_per_s": line,
        "utilisation": np.divide(mean, line, out=np.full(n, np.nan), where=line > 0),
    }
    return Table("NICs", columns)


def _window_ns(trace: Trace, collectives: Table) -> int:
    """The time in which NICs could have been busy: that of the collectives, without the gaps between them."""
    if not len(collectives):
        return trace.end_ns - trace.begin_ns
    begin = collectives["begin_ns"].astype(np.int64)
    end = begin + np.ceil(collectives["time_us"] * 1e3).astype(np.int64)
    begin, end, _ = union(begin, end)
    return int((end - begin).sum())
