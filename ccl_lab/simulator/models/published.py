"""Published measurements beside the model: one row a measurement, its source, the model's time and error.

Is: a reader of such tables (labs/data/all_reduce_published.csv, ctran_gb200_busbw.csv, or your own). Is not: the fit
(bench/validation.py). Invariant: a row is predicted by its platform's one parameter set; where the table does not tell the algorithm, the
model chooses.
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Union

import numpy as np
import numpy.typing as npt

from ...errors import UsageError
from .nccl import FACTORS
from .platforms import CtranPlatform, Platform, find
from .predict import predict

F64 = npt.NDArray[np.float64]

ALGORITHM_WORDS = {"ring": "ring", "nvls": "nvls", "tree": "tree"}
"""What a platform's label may say of the algorithm: "H200 1x8 NVLS"."""

LARGE_BYTES, MIDDLE_BYTES = 64 << 20, 64 << 10
BARS = {"large": (0.05, 0.15), "middle": (0.15, 0.35)}
"""Median and largest error allowed: from 64 MiB on, and from 64 KiB to below it."""


@dataclasses.dataclass(frozen=True)
class ErrorBar:
    """How far predictions of a size range were from published rows that their fit had not seen, as shares: median and largest of `rows`.

    platform: on which they were measured; "all" where nothing is published on the one asked for.
    """

    platform: str
    rows: int
    median: float
    largest: float


_HELD_OUT = {
    "h100_efa": {"large": (9, 0.0127, 0.0635), "middle": (7, 0.0498, 0.1234)},
    "hgx_h100": {"large": (5, 0.0091, 0.0118)},
    "gb200_nvl72": {"large": (5, 0.0125, 0.08)},
    "hgx_h200": {"large": (6, 0.0117, 0.0227), "middle": (8, 0.0254, 0.1175)},
    "dgx_a100": {"large": (4, 0.0646, 0.1128), "middle": (3, 0.1955, 0.2419)},
    "gb200_ctran": {"large": (18, 0.0152, 0.0607), "middle": (28, 0.0609, 0.26)},
    "all": {"large": (47, 0.0125, 0.1128), "middle": (46, 0.0622, 0.2419)},
}
"""As bench/validation.py finds them: every other size from the rest, CTran's numbers of GPUs from one another."""


def range_of(nbytes: float) -> str:
    """"large", "middle", or "" below 64 KiB."""
    return "large" if nbytes >= LARGE_BYTES else "middle" if nbytes >= MIDDLE_BYTES else ""


def error_bar(platform: str, nbytes: float) -> ErrorBar | None:
    """The error to expect of a prediction of `nbytes` on a platform, by its name; None below 64 KiB, where no row was held out."""
    size = range_of(nbytes)
    if not size:
        return None
    name = platform if size in _HELD_OUT.get(platform, {}) else "all"
    return ErrorBar(name, *_HELD_OUT[name][size])


@dataclasses.dataclass(frozen=True)
class Row:
    """One measurement: on `label`, `op` of `nbytes` among `gpus`, took time_us.

    platform: our name of it; nodes: NVLink domains (72 GPUs of an NVL72 are one); algorithm: None where the table does not tell.
    """

    label: str
    platform: str
    op: str
    algorithm: str | None
    nodes: int
    gpus: int
    nbytes: int
    time_us: float
    source: str

    @property
    def busbw_gbytes_per_s(self) -> float:
        """As nccl-tests define it."""
        return self.nbytes / self.time_us / 1e3 * FACTORS[self.op](self.gpus)

    @property
    def range(self) -> str:
        """"large", "middle", or "" below 64 KiB."""
        return range_of(self.nbytes)


def _number(row: dict[str, str], key: str, path: Path, line: int) -> float:
    try:
        return float(row[key])
    except (KeyError, TypeError, ValueError):
        raise UsageError(f"{path}, line {line}: expected a number in column {key!r}, found {row.get(key)!r}.") from None


def read(path: Union[str, Path]) -> list[Row]:
    """The rows of a table of published measurements.

    Columns: gpus, bytes, and either platform, measure (time_us or busbw_gbytes_per_s), value (all_reduce by NCCL), or op,
    algorithm, busbw_gbytes_per_s (CTran); source. Raises UsageError naming file and line where a cell is missing or unknown.
    """
    path = Path(path)
    try:
        lines = list(csv.DictReader(path.read_text().splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error}).") from None
    return [_row(row, path, line) for line, row in enumerate(lines, 2)]


def _row(row: dict[str, str], path: Path, line: int) -> Row:
    ctran = "op" in row
    op = row["op"] if ctran else "all_reduce"
    label = "GB200 CTran" if ctran else row.get("platform") or ""
    measure = "busbw_gbytes_per_s" if ctran else row.get("measure") or ""
    gpus, nbytes = (int(_number(row, key, path, line)) for key in ("gpus", "bytes"))
    value = _number(row, measure if ctran else "value", path, line)
    if op not in FACTORS or measure not in ("time_us", "busbw_gbytes_per_s") or not value > 0 or gpus < 2 or nbytes < 1:
        raise UsageError(f"{path}, line {line}: {op!r} of {nbytes} bytes on {gpus} GPUs, {measure!r} {value}: expected one of "
                         f"{', '.join(FACTORS)}, of 1 byte or more on 2 GPUs or more, and time_us or busbw_gbytes_per_s above 0.")
    time = value if measure == "time_us" else nbytes * FACTORS[op](gpus) / value / 1e3
    source = row.get("source") or ""
    if ctran:
        return Row(label, "gb200_ctran", op, row.get("algorithm"), gpus, gpus, nbytes, time, source)
    try:
        platform = find(label)[0]
    except UsageError as error:
        raise UsageError(f"{path}, line {line}: {error}") from None
    algorithm = next((ALGORITHM_WORDS[word] for word in label.lower().split() if word in ALGORITHM_WORDS), None)
    return Row(label, platform.name, op, algorithm, -(-gpus // platform.gpus_per_node), gpus, nbytes, time, source)


def errors(rows: Sequence[Row], platforms: Mapping[str, Union[Platform, CtranPlatform]] | None = None) -> F64:
    """Predicted over measured time, minus 1, of each row; f64[rows]. platforms: parameter sets that replace the known ones."""
    found = np.empty(len(rows))
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault((row.op, row.platform, row.algorithm, row.nodes, row.gpus), []).append(i)
    for (op, name, algorithm, nodes, gpus), group in groups.items():
        platform = (platforms or {}).get(name, name)  # type: ignore[call-overload]
        said = predict(op, platform, [rows[i].nbytes for i in group], algorithm, nodes=nodes, gpus=gpus)  # type: ignore[arg-type]
        found[group] = said.time_us / [rows[i].time_us for i in group] - 1
    return found


def summary(rows: Iterable[Row], error: F64) -> dict[str, dict[str, float]]:
    """{"large": {rows, median, max}, "middle": …} of the absolute errors."""
    ranges = np.array([row.range for row in rows])
    found = {}
    for name in BARS:
        there = np.abs(error[ranges == name])
        if len(there):
            found[name] = {"rows": len(there), "median": float(np.median(there)), "max": float(there.max())}
    return found
