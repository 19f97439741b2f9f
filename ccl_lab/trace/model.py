"""The Trace: what happened, as one table of spans.

Is: an immutable value of numpy columns (ccl_lab/schema/trace.toml) and a `meta` dict of plain data, with
selection, joining and its own pictures. Is not: a recorder (native ring buffers), a file format (export/,
importers/) or a statistic (statistics.py).
Invariants: every column of COLUMNS is present with exactly its dtype, all of one length, read-only; `meta` is
plain data (what JSON can hold); a method never changes the trace, it returns another.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import views
from ..arguments import instance, is_one, listed, named, number, shown, whole
from ..errors import ShapeError, UsageError, suggest
from ..units import format_size, format_time
from .columns import COLUMNS, SPAN_DTYPE, SpanStatus
from .names import ENUMS, label, name_of, span_names, with_common_names

if TYPE_CHECKING:
    from .diff import TraceDiff
    from .exposed import Exposure
    from .statistics import TraceStatistics
    from .stragglers import Stragglers

DEFAULTS = {"rank": -1, "node": -1, "op_id": -1, "step": -1, "peer": -1}
_HTML_ROWS = 5


class Trace:
    """Spans of a run, measured, simulated or imported.

    Args:
        columns: name -> array of one length; missing columns are filled with -1 (rank, node, op_id, step,
            peer) or 0.
        meta: plain data about the run: source ("measured", "simulated", "imported"), collective, algorithm,
            n_ranks, nbytes (bytes of the larger buffer), dtype, redop, time_us, topology (dict),
            schedule_digest, drops, labels.

    Raises UsageError for an unknown column or a value outside the column's type, ShapeError for unequal
    lengths.

    >>> Trace({"rank": [0, 1], "end_ns": [5, 7]}, {"source": "simulated"})
    <Trace simulated, 2 spans, 2 ranks, 7 ns>
    """

    __slots__ = ("columns", "meta")
    __hash__ = None  # type: ignore[assignment]

    columns: dict[str, np.ndarray]
    meta: dict[str, Any]

    def __init__(
        self, columns: Mapping[str, Any] | None = None, meta: Mapping[str, Any] | None = None
    ) -> None:
        given = {} if columns is None else dict(instance(columns, "columns", Mapping, "arrays by name"))
        for name in given:
            if name not in COLUMNS:
                raise UsageError(f"trace column {name!r} is unknown.{suggest(name, COLUMNS)}")
        arrays = {name: _column(name, value) for name, value in given.items()}
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise ShapeError(
                f"trace columns differ in length: {lengths}. Every column needs one value per span."
            )
        n = next(iter(lengths.values()), 0)
        full = {
            name: arrays[name] if name in arrays else np.full(n, DEFAULTS.get(name, 0), dtype)
            for name, dtype in COLUMNS.items()
        }
        object.__setattr__(self, "columns", _read_only(full))
        object.__setattr__(self, "meta", plain({} if meta is None else dict(instance(meta, "meta", Mapping, "values by name")), "meta"))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a Trace cannot be changed; make another, e.g. with .replace({name}=...)")

    @classmethod
    def _of(cls, columns: dict[str, np.ndarray], meta: dict[str, Any]) -> Trace:
        """A trace of columns and meta already known to be right (selections of another trace)."""
        trace = object.__new__(cls)
        object.__setattr__(trace, "columns", _read_only(columns))
        object.__setattr__(trace, "meta", meta)
        return trace

    @classmethod
    def from_records(
        cls,
        records: np.ndarray,
        rank: int | np.ndarray = -1,
        node: int | np.ndarray = -1,
        meta: Mapping[str, Any] | None = None,
    ) -> Trace:
        """Spans of native records (SPAN_DTYPE, shape [n]); `rank`, `node`: scalars or one value per record.

        A span that was still open when it was read ends no earlier than it began.
        """
        if records.dtype != SPAN_DTYPE:
            raise UsageError(f"span records have dtype {records.dtype}: expected SPAN_DTYPE of this version.")
        columns: dict[str, Any] = {
            name: records[name].copy() for name in SPAN_DTYPE.names or () if name in COLUMNS
        }
        still_open = columns["status"] == SpanStatus.open
        columns["end_ns"] = np.where(
            still_open, np.maximum(columns["end_ns"], columns["begin_ns"]), columns["end_ns"]
        )
        n = len(records)
        return cls(columns | {"rank": np.broadcast_to(rank, n), "node": np.broadcast_to(node, n)}, meta)

    @classmethod
    def concat(cls, traces: Iterable[Trace]) -> Trace:
        """All spans one after the other. Meta keeps what all traces agree on; `drops` are added up, what each rank's `clock`
        says is put together."""
        parts = list(listed(traces, "traces", Trace, "several Traces"))
        if not parts:
            return cls()
        parts = with_common_names(parts)
        columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in COLUMNS}
        first = parts[0].meta
        meta = {k: v for k, v in first.items() if all(k in p.meta and p.meta[k] == v for p in parts[1:])}
        if any("drops" in part.meta for part in parts):
            meta["drops"] = sum(int(part.meta.get("drops", 0)) for part in parts)
        if "clock" not in meta and (clock := _clocks([part.meta.get("clock") for part in parts])):
            meta["clock"] = clock
        return cls._of(columns, meta)

    # Values

    def __len__(self) -> int:
        return len(self.columns["rank"])

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace):
            return NotImplemented
        return self.meta == other.meta and all(
            np.array_equal(self.columns[c], other.columns[c]) for c in COLUMNS
        )

    def __getitem__(self, key: str | slice | np.ndarray | list[int]) -> Any:
        """A column by name, or the spans a slice, mask or index array selects."""
        if isinstance(key, str):
            if key not in COLUMNS:
                raise UsageError(f"trace column {key!r} is unknown.{suggest(key, COLUMNS)}")
            return self.columns[key]
        if isinstance(key, (int, np.integer)):
            key = slice(key, key + 1 or None)
        return self._of({name: array[key] for name, array in self.columns.items()}, self.meta)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """One dict per span, enums by name; for small selections."""
        for row in range(len(self)):
            values = {name: label(name, int(array[row])) for name, array in self.columns.items()}
            yield values | {"name": name_of(self, row)}

    def __reduce__(self) -> tuple[Any, ...]:
        return (Trace, (dict(self.columns), self.meta))

    def __copy__(self) -> Trace:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Trace:
        return self._of(dict(self.columns), copy.deepcopy(self.meta, memo))

    def replace(self, **columns: Any) -> Trace:
        """The trace with these columns (or `meta=`) exchanged."""
        meta = columns.pop("meta", self.meta)
        return Trace({**self.columns, **columns}, meta)

    def with_meta(self, **entries: Any) -> Trace:
        """The trace with these entries of meta set."""
        return self._of(dict(self.columns), {**self.meta, **plain(entries, "meta")})

    # Selection

    def where(self, **filters: Any) -> Trace:
        """The spans for which every filter holds.

        A filter is a value, an enum name (`track="nic_tx"`), a collection of those, or a `slice(low,
        high)` of values (low included, high not). For begin_ns, end_ns and nbytes a tuple (low, high) is
        such a slice.

        >>> trace = Trace({"rank": [0, 1, 2], "begin_ns": [0, 5, 9]})
        >>> trace.where(rank=[1, 2], begin_ns=(0, 9))["rank"].tolist()
        [1]
        """
        mask = np.ones(len(self), bool)
        for name, wanted in filters.items():
            mask &= _matches(name, self[name], wanted)
        return self[mask]

    def between(self, begin_ns: int, end_ns: int) -> Trace:
        """The spans that touch [begin_ns, end_ns), uncut. Instants count where they happen."""
        begin_ns, end_ns = (number(each, what, "ns") for each, what in ((begin_ns, "begin_ns"), (end_ns, "end_ns")))
        begin, end = self.columns["begin_ns"], self.columns["end_ns"]
        return self[(begin < end_ns) & ((end > begin_ns) | ((end == begin) & (begin == begin_ns)))]

    def sorted(self, *by: str) -> Trace:
        """Ordered by these columns (default: begin_ns, end_ns, rank, op_id); stable."""
        names = [named(name, "column", COLUMNS) for name in by] or ["begin_ns", "end_ns", "rank", "op_id"]
        return self[np.lexsort([self[name] for name in reversed(names)])]

    # Facts

    @property
    def begin_ns(self) -> int:
        """Begin of the first span; 0 if there is none."""
        return int(self.columns["begin_ns"].min()) if len(self) else 0

    @property
    def end_ns(self) -> int:
        """End of the last span; 0 if there is none."""
        return int(self.columns["end_ns"].max()) if len(self) else 0

    @property
    def n_ranks(self) -> int:
        """Ranks of the run: meta, else the ranks that have spans."""
        known = self.meta.get("n_ranks")
        if isinstance(known, int):
            return known
        ranks = self.columns["rank"]
        return int(len(np.unique(ranks[ranks >= 0])))

    @property
    def names(self) -> list[str]:
        """A short name per span, e.g. "put → 3" or "segment ← 2"; built on each use."""
        return span_names(self)

    @property
    def time_us(self) -> float:
        """Time of one collective in µs: meta["time_us"], else the median over the collectives."""
        return self.stats().time_us

    @property
    def algbw_gbytes_per_s(self) -> float:
        """Algorithm bandwidth as nccl-tests define it: bytes of the larger buffer per time, 1e9 bytes/s."""
        return self.stats().algbw_gbytes_per_s

    @property
    def busbw_gbytes_per_s(self) -> float:
        """Bus bandwidth as nccl-tests define it: algbw times the factor of the collective."""
        return self.stats().busbw_gbytes_per_s

    def stats(self) -> TraceStatistics:
        """Statistics of collectives, ranks and NICs. Cost: a few sorts of the spans."""
        from .statistics import statistics

        return statistics(self)

    def exposure(self) -> Exposure:
        """What the time of each rank went to: computation, exposed communication and copies, nothing (exposed.py)."""
        from .exposed import exposure

        return exposure(self)

    def partition(self) -> list[dict[str, Any]]:
        """total = compute + exposed_comm + exposed_memcpy + idle: a dict per rank, µs (exposed.py)."""
        return self.exposure().partition()

    def stragglers(self) -> Stragglers:
        """Who is late in the collectives, who waits, and what they take without waiting (stragglers.py)."""
        from .stragglers import stragglers

        return stragglers(self)

    # Joins

    def join(self, schedule: Any) -> Trace:
        """The trace with `step` taken from the schedule by op_id.

        Spans without an op, or with one the schedule does not have, keep step -1. Raises UsageError where
        meta["schedule_digest"] says that another schedule was run.
        """
        if not hasattr(schedule, "ops"):
            raise UsageError(f"join({shown(schedule)}): expected the Schedule that was run.")
        ran, digest = self.meta.get("schedule_digest"), getattr(schedule, "digest", None)
        if ran and digest and ran != digest:
            raise UsageError(
                f"this trace is of schedule {ran}, not of {digest}: join the schedule that was run."
            )
        steps, op_id = np.asarray(schedule.ops.step), self.columns["op_id"]
        known = (op_id >= 0) & (op_id < len(steps))
        step = np.full(len(self), -1, COLUMNS["step"])
        step[known] = steps[op_id[known]]
        return self._of({**self.columns, "step": step}, self.meta)

    def diff(self, other: Trace) -> TraceDiff:
        """What changed from this trace to `other`, op by op (diff.py)."""
        from .diff import diff

        return diff(self, instance(other, "diff with", Trace, "another Trace"))

    # Files and other forms

    def save(self, path: str | Path, **options: Any) -> Path:
        """Writes .pftrace (Perfetto), .json, .json.gz (Chrome), .arrow, .parquet; .kineto (a folder for HTA), .et (Chakra) or
        .flight.json (flight recorder), one file a rank; by suffix. Returns the path."""
        from .files import save

        return save(self, path, **options)

    @classmethod
    def load(cls, *paths: str | Path, **options: Any) -> Trace:
        """Reads our own files, and jobs that others recorded: Kineto, flight recorder, Chakra; the content decides which.

        Args:
            paths: one file; or one a rank, a tar of them, or a folder, which become one trace of all ranks.
            options: classes: a table of your own before the built-in one, file or Rules (importers/classes.txt); align=False
                leaves each rank's clock as it was; recover=True reads what is whole of a file that is cut off.

        Raises UsageError where there is no such file, DecodeError for bytes that are no trace, UnsupportedError for
        formats that are only written. What was done to a foreign trace is in meta: clock, classified, notes.
        """
        from .files import load

        return load(*paths, **options)

    def to_arrow(self) -> Any:
        """A pyarrow.Table of the columns, meta in the schema's metadata."""
        from .export.arrow import to_table

        return to_table(self)

    @classmethod
    def from_arrow(cls, table: Any) -> Trace:
        """The trace of a pyarrow.Table made by `to_arrow`."""
        from .importers.arrow import from_table

        return from_table(table)

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with enums as categories. Raises UnsupportedError without pandas."""
        from .export.arrow import to_pandas

        return to_pandas(self)

    # Pictures

    def timeline(self, **options: Any) -> Any:
        """The timeline widget: lanes per rank, channel and NIC."""
        return views.draw("timeline", self, **options)

    def heatmap(self, **options: Any) -> Any:
        """The NIC heatmap widget: rate per NIC over time against line rate."""
        return views.draw("heatmap", self, **options)

    def overlap(self, other: Trace | None = None, **options: Any) -> Any:
        """The widget that says what is exposed: a stacked bar per rank, beside those of `other` where one is given."""
        return views.draw("overlap", self, other=other, **options)

    def facts(self) -> list[str]:
        """What the trace is, in a few short phrases."""
        meta = self.meta
        what = " ".join(str(meta[k]) for k in ("source", "collective", "algorithm") if meta.get(k))
        found = [what] if what else []
        found.append(f"{len(self)} span" + "s" * (len(self) != 1))
        if self.n_ranks:
            found.append(f"{self.n_ranks} rank" + "s" * (self.n_ranks != 1))
        if isinstance(meta.get("nbytes"), int):
            found.append(format_size(meta["nbytes"]))
        if len(self):
            found.append(format_time((self.end_ns - self.begin_ns) * 1e-9))
        if meta.get("drops"):
            found.append(f"{meta['drops']} spans dropped")
        return found

    def __repr__(self) -> str:
        return f"<Trace {', '.join(self.facts())}>"

    def _repr_html_(self) -> str:
        from .render import html_table

        names = ["rank", "track", "index", "kind", "op_id", "step", "peer", "nbytes", "begin_us", "us"]
        first = self.begin_ns
        of_ops = self[self.columns["op_id"] >= 0]
        shown = (of_ops if len(of_ops) else self)[:_HTML_ROWS]
        rows = []
        for row in shown:
            times = {"begin_us": (row["begin_ns"] - first) / 1e3, "us": (row["end_ns"] - row["begin_ns"]) / 1e3}
            known = {name: None if value == -1 else value for name, value in row.items()}
            rows.append([(known | times)[name] for name in names])
        more = f"; {len(rows)} of {len(self)} spans:" if len(self) > len(rows) else ""
        return html_table(names, rows, caption=", ".join(self.facts()) + more)


def plain(value: Any, where: str) -> Any:
    """`value` as what JSON can hold: numpy scalars and arrays become numbers and lists, tuples lists."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, IntEnum):
        return value.name
    if isinstance(value, (int, str, bool)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UsageError(f"{where} is {value}: expected finite numbers.")
        return value
    if isinstance(value, np.ndarray):
        return plain(value.tolist(), where)
    if isinstance(value, Mapping):
        return {str(k): plain(v, f"{where}[{k!r}]") for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v, f"{where}[{i}]") for i, v in enumerate(value)]
    raise UsageError(
        f"{where} is a {type(value).__name__}: expected plain data (numbers, text, lists, dicts)."
    )


def _column(name: str, value: Any) -> np.ndarray:
    """`value` as a 1-D array of the column's dtype; refuses values the dtype cannot hold."""
    dtype, array = COLUMNS[name], np.asarray(value)
    if array.ndim != 1:
        raise ShapeError(f"trace column {name!r} has shape {array.shape}: expected one value per span.")
    if array.dtype == dtype:
        return array
    if array.size == 0:
        return array.astype(dtype)
    if array.dtype.kind not in "iub":
        raise UsageError(f"trace column {name!r} has dtype {array.dtype}: expected integers ({dtype}).")
    info = np.iinfo(dtype)
    if int(array.min()) < info.min or int(array.max()) > info.max:
        raise UsageError(f"trace column {name!r} holds {array.min()}..{array.max()}: outside {dtype}.")
    return array.astype(dtype)


def _read_only(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    for name, array in columns.items():
        if array.flags.writeable:
            # a view: the caller's own array stays writable for the caller
            columns[name] = view = array.view()
            view.flags.writeable = False
    return columns


def _matches(name: str, array: np.ndarray, wanted: Any) -> np.ndarray:
    if isinstance(wanted, tuple) and name in ("begin_ns", "end_ns", "nbytes"):
        if len(wanted) != 2:
            raise UsageError(f"{name}={wanted!r}: expected (low, high), low included, high not.")
        wanted = slice(*wanted)
    if isinstance(wanted, range) and wanted.step == 1:
        wanted = slice(wanted.start, wanted.stop)
    if isinstance(wanted, slice):
        mask = np.ones(len(array), bool)
        if wanted.start is not None:
            mask &= array >= wanted.start
        if wanted.stop is not None:
            mask &= array < wanted.stop
        return mask
    if isinstance(wanted, (str, int, np.integer)):
        return array == _value(name, wanted)
    if is_one(wanted):
        wanted = [wanted]
    return np.isin(array, np.array([_value(name, item) for item in wanted], np.int64))


def _value(name: str, item: Any) -> int:
    """The number an item of a filter means: itself, or the member of the column's enum of that name."""
    if isinstance(item, str):
        enum = ENUMS.get(name)
        if enum is None:
            raise UsageError(f"{name}={item!r}: expected a number.")
        if item not in enum.__members__:
            raise UsageError(f"{name}={item!r} is unknown.{suggest(item, enum.__members__)}")
        return int(enum[item])
    if isinstance(item, (int, np.integer)):
        return whole(item, f"{name} =", -(2**63)) if not isinstance(item, bool) else int(item)
    raise UsageError(
        f"{name}={item!r} is a {type(item).__name__}: expected a number, a name or a collection of those."
    )


def _clocks(clocks: list[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """What the clocks of several ranks were moved by, where all were found in the same way; else None."""
    joint: dict[str, Any] = {}
    for clock in clocks:
        if not clock:
            return None
        for key, value in clock.items():
            known = joint.setdefault(key, {} if isinstance(value, Mapping) else value)
            if not isinstance(value, Mapping):
                if known != value:
                    return None
            elif any(known.setdefault(rank, of_rank) != of_rank for rank, of_rank in value.items()):
                return None
    return joint
