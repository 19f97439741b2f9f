"""Published measurements beside the model: one row a measurement, its source, the model's time and error.

Is: a reader of two tables (labs/data/all_reduce_published.csv, ctran_gb200_busbw.csv) and the mapping of their platforms to ours.
Is not: the fit (bench/validation.py). Invariant: a row is predicted by its platform's one parameter set, with NCCL's choice of
algorithm left to the model; CTran's tables name the algorithm.
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
from .platforms import PLATFORMS, CtranPlatform, Platform
from .predict import predict

F64 = npt.NDArray[np.float64]

MEASURED_ON = {
    "H100 p5 EFA 2x8": "h100_efa",
    "H100 IB 8x8": "hgx_h100",
    "GB200 NVL72": "gb200_nvl72",
    "H200 1x8 NVLS": "hgx_h200",
    "A100 1x8 ring": "dgx_a100",
}
"""A platform of the tables: our parameter set."""

LARGE_BYTES, MIDDLE_BYTES = 64 << 20, 64 << 10
BARS = {"large": (0.05, 0.15), "middle": (0.15, 0.35)}
"""Median and largest error allowed: from 64 MiB on, and from 64 KiB to below it."""


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
        return "large" if self.nbytes >= LARGE_BYTES else "middle" if self.nbytes >= MIDDLE_BYTES else ""


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
    label = "GB200 CTran" if ctran else row.get("platform", "")
    if op not in FACTORS or not (ctran or label in MEASURED_ON):
        raise UsageError(f"{path}, line {line}: op {op!r} on platform {label!r}: expected one of {', '.join(FACTORS)} on one of "
                         f"{', '.join(MEASURED_ON)}.")
    gpus, nbytes = (int(_number(row, key, path, line)) for key in ("gpus", "bytes"))
    measure = "busbw_gbytes_per_s" if ctran else row.get("measure", "")
    value = _number(row, measure if ctran else "value", path, line)
    if measure not in ("time_us", "busbw_gbytes_per_s") or not value > 0:
        raise UsageError(f"{path}, line {line}: measure {measure!r} of {value}: expected time_us or busbw_gbytes_per_s above 0.")
    time = value if measure == "time_us" else nbytes * FACTORS[op](gpus) / value / 1e3
    platform = "gb200_ctran" if ctran else MEASURED_ON[label]
    nodes = gpus if ctran else -(-gpus // PLATFORMS[platform].gpus_per_node)
    return Row(label, platform, op, row.get("algorithm"), nodes, gpus, nbytes, time, row.get("source") or "")


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
