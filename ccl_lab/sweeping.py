"""`sweep`: simulations over a grid of arguments, on any executor, with progress, and resumable.

    found = sweep({"what": "all_reduce", "topology": "h100:nodes=64", "nbytes": ["1MiB", "1GiB"], "algorithm": ["ring", "hierarchical"]},
                  file="sweep.jsonl")
    found.rows[0]["time_us"]

Is: the grid, its file and its rows. Is not: a model (simulation.py). Invariants: rows come in the order of the grid, whoever was first; a
file is only appended to, a line a row, and a line that was cut off is computed again; what is in the file is not computed again.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .arguments import file_path, flag, instance, named, shown
from .errors import CclError, DecodeError, UsageError, suggest

ARGUMENTS = ("what", "topology", "nbytes", "dtype", "late", "alpha", "faults", "algorithm", "redop", "in_place", "root", "peer", "channels",
             "mapped", "tier", "patience")  # fmt: skip


@dataclass(frozen=True)
class Sweep:
    """Rows of a grid, in its order: the arguments, and time_us, time_ps, algbw_gbytes_per_s, busbw_gbytes_per_s, ranks, chosen (the
    algorithm), wall_s; or `error`."""

    rows: tuple[dict[str, Any], ...]

    @property
    def errors(self) -> tuple[dict[str, Any], ...]:
        """The rows that failed."""
        return tuple(row for row in self.rows if "error" in row)

    def check(self) -> Sweep:
        """Itself; UsageError if a row failed, naming the first and its arguments."""
        if self.errors:
            first = self.errors[0]
            raise UsageError(f"{len(self.errors)} of {len(self.rows)} rows failed, the first with {first['error']} at "
                             f"{ {name: value for name, value in first.items() if name != 'error'} }.")
        return self

    def column(self, name: str) -> list[Any]:
        """One value of every row, None where it failed. Raises UsageError for an unknown name."""
        known = {each for row in self.rows for each in row}
        named(name, "column", known, verdict="is in no row")
        return [row.get(name) for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<Sweep: {len(self.rows)} rows, {len(self.errors)} failed>"


def sweep(grid: Mapping[str, Any], executor: Executor | None = None, *, file: str | os.PathLike[str] | None = None,
          progress: bool | Callable[[int, int], None] | None = None) -> Sweep:  # fmt: skip
    """Simulates every combination of the values of `grid`.

    grid: arguments of `simulate` by name; a list, a range, a column of NumPy or pandas gives several values, anything else one ("faults"
    takes a list of lists). executor: any of concurrent.futures (default: processes, one per core, for the time of the call). file: rows are
    appended to it as JSON lines, and those that are there are not computed again. progress: True prints a line on stderr, a function gets
    (done, all); default: True on a terminal.

    A row that fails holds `error`, and the others go on; `.check()` raises. Raises UsageError for an unknown argument or an empty list,
    DecodeError for a file of something else.

        >>> sweep({"what": "all_reduce", "topology": "h100:nodes=2", "nbytes": ["1MiB", "2MiB"]}, progress=False)   # doctest: +SKIP
        <Sweep: 2 rows, 0 failed>
    """
    points = _points(instance(grid, "grid", Mapping, "arguments of simulate by name"))  # type: ignore[type-abstract]
    if executor is not None and not hasattr(executor, "submit"):
        raise UsageError(f"executor {shown(executor)} is a {type(executor).__name__}: expected one of concurrent.futures.")
    file = None if file is None else file_path(file, "file")
    keys = [_key(point) for point in points]
    known = _read(file) if file is not None else {}
    missing = [i for i, key in enumerate(keys) if key not in known]
    tell = _teller(progress)
    tell(len(points) - len(missing), len(points))
    if missing:
        own = ProcessPoolExecutor(min(len(os.sched_getaffinity(0)), len(missing))) if executor is None else None
        try:
            for done, (i, found) in enumerate(_compute(own or executor, points, missing), len(points) - len(missing) + 1):  # type: ignore[arg-type]
                known[keys[i]] = found
                if file is not None:
                    _append(file, keys[i], found)
                tell(done, len(points))
        finally:
            if own:
                own.shutdown(cancel_futures=True)
    return Sweep(tuple({**point, **known[key]} for point, key in zip(points, keys, strict=True)))


def _values(given: Any) -> list[Any]:
    """The values of one argument, numbers as Python's own."""
    if isinstance(given, (list, tuple, range)):
        return [each.item() if isinstance(each, np.generic) else each for each in given]
    if getattr(given, "ndim", 0) == 1 and hasattr(given, "tolist"):
        return list(given.tolist())
    return [given.item() if isinstance(given, np.generic) else given]


def _points(grid: Mapping[str, Any]) -> list[dict[str, Any]]:
    axes = {name: _values(given) for name, given in grid.items()}
    for name, values in axes.items():
        if name not in ARGUMENTS:
            raise UsageError(f"sweep: simulate has no argument {name!r}.{suggest(str(name), ARGUMENTS)}")
        if not values:
            raise UsageError(f"sweep: no values for {name!r}; leave it out, or give one.")
    for name in ("what", "topology"):
        if name not in grid:
            raise UsageError(f"sweep: {name!r} is missing in the grid.")
    return [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]


def _key(point: Mapping[str, Any]) -> str:
    """What a row depends on, as text: values by their content, large ones by their digest."""
    def plain(value: Any) -> Any:
        if hasattr(value, "digest"):
            return f"{type(value).__name__} {value.digest}"
        if isinstance(value, Mapping):
            return {str(name): plain(each) for name, each in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [plain(each) for each in value]
        if value is None or isinstance(value, (str, int, float, bool)):
            return value
        raise UsageError(f"sweep: a value {value!r} cannot be told from others; expected text, numbers, a Topology or a Schedule.")

    return json.dumps({name: plain(value) for name, value in sorted(point.items())}, sort_keys=True)


def _compute(executor: Executor, points: Sequence[dict[str, Any]], missing: Sequence[int]) -> Any:
    """(index, outcome) of the points that are missing, as they are done."""
    futures = {executor.submit(simulate_point, points[i]): i for i in missing}
    for future in as_completed(futures):
        yield futures[future], future.result()


def simulate_point(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """One row: what a worker runs."""
    from .simulation import simulate

    begin = time.perf_counter()
    try:
        found = simulate(**{**arguments, "result": "summary"})
    except CclError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"ranks": found.meta["n_ranks"], "time_us": found.time_us, "time_ps": found.time_ps,
            "algbw_gbytes_per_s": found.algbw_gbytes_per_s, "busbw_gbytes_per_s": found.busbw_gbytes_per_s,
            "chosen": found.meta["algorithm"], "wall_s": time.perf_counter() - begin}  # fmt: skip


def _read(file: Path) -> dict[str, dict[str, Any]]:
    """Rows by key; an unfinished last line is left out."""
    if not file.exists():
        return {}
    known = {}
    lines = file.read_text().split("\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            row = json.loads(line)
            known[row["key"]] = row["found"]
        except (ValueError, KeyError, TypeError):
            if number == len(lines):  # cut off while it was written
                continue
            raise DecodeError(f"{file}, line {number}: expected a row of a sweep, found {line[:60]!r}. Give a file of its own.") from None
    return known


def _append(file: Path, key: str, found: Mapping[str, Any]) -> None:
    """One line, and a line end before it where the last line was cut off."""
    with file.open("ab+") as out:
        size = out.seek(0, os.SEEK_END)
        if size:
            out.seek(size - 1)
            if out.read(1) != b"\n":
                out.truncate(_last_line(file))
        out.write(json.dumps({"key": key, "found": found}).encode() + b"\n")


def _last_line(file: Path) -> int:
    return file.read_bytes().rfind(b"\n") + 1


def _teller(progress: bool | Callable[[int, int], None] | None) -> Callable[[int, int], None]:
    if callable(progress) and not isinstance(progress, type):
        return progress
    if progress is not None:
        progress = flag(progress, "progress")
    if progress or (progress is None and sys.stderr.isatty()):
        def tell(done: int, total: int) -> None:
            print(f"\rsweep: {done} of {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)

        return tell
    return lambda done, total: None
