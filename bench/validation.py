"""The models of NCCL and CTran against published measurements: fits each platform's few parameters anew, predicts rows left out,
prints all.

Is: the provenance of the numbers marked "fitted" in ccl_lab/simulator/models/platforms.py. For each platform: what was fitted, on
which rows; then each row's error with the stored parameters; then cross-validation, in which every row is predicted by parameters
that have not seen it: odd sizes from even ones and the other way round, and one number of GPUs from another. Is not: a timing.
Invariant: no parameter belongs to a size or a row; the fit is least squares of log(predicted / measured), in which errors beyond 5
% count linearly, so that one odd row cannot pull it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ccl_lab.simulator.models import CTRAN_PLATFORMS, PLATFORMS, published
from ccl_lab.simulator.models.published import BARS, Row

from .record import ROOT

TABLES = [ROOT / "labs" / "data" / name for name in ("all_reduce_published.csv", "ctran_gb200_busbw.csv")]

FITTED: dict[str, dict[str, float]] = {
    "hgx_h200": {"launch_us": 20, "nvls_share": 1.0, "nvls_depth": 1.0},
    "dgx_a100": {"ring_share": 0.8, "near_simple_us": 3.4, "line_share": 0.92},
    "h100_efa": {"launch_us": 20, "nic_latency_us": 10, "tree_depth": 2, "nvls_tree_share": 1.0, "ll_line_ns": 100},
    "gb200_nvl72": {"nvls_share": 1.0},
    "gb200_ctran": {"control_us": 20, "hop_us": 10, "reduce_us": 5, "nic_share": 0.95, "reduce_gbytes_per_s": 500},
}
"""Platform: parameters that its rows may move, and where the fit starts. hgx_h100 has none: all its rows are predictions."""

KNOWN: dict[str, dict[str, float]] = {"dgx_a100": {"near_simple_us": 0.7, "line_share": 0.2}}
"""Parameters whose start is a number of NCCL's own (src/graph/tuning.cc), and how far off, as a logarithm, that may well be: as much
counts like an error of 5 % of a row. Where few rows speak of one, an odd row alone does not carry it away."""

INHERITED = {
    "dgx_a100": {"launch_us": "hgx_h200"},
    "hgx_h100": {"nvls_share": "hgx_h200", "nvls_depth": "hgx_h200", "near_simple_us": "dgx_a100", "line_share": "dgx_a100",
                 "launch_us": "h100_efa", "nvls_tree_share": "h100_efa", "ll_line_ns": "h100_efa"},
    "h100_efa": {"nvls_share": "hgx_h200", "nvls_depth": "hgx_h200", "near_simple_us": "dgx_a100", "line_share": "dgx_a100"},
    "gb200_nvl72": {"nvls_depth": "hgx_h200", "launch_us": "h100_efa"},
}  # fmt: skip
"""Platform: parameters that it takes from the fit of another. hgx_h100's tree_depth is hgx_h200's nvls_depth: default, chunks of
one stage."""


def least_squares(errors: Callable[[Any], Any], start: Sequence[float], widths: Sequence[float] | None = None) -> np.ndarray:
    """x > 0 with the least robust sum of errors(x)^2; errors are of logarithms. widths: of what is known of x before (KNOWN), or inf."""
    x = np.log(np.asarray(start, float))
    first, pull = x.copy(), 0.05 / np.asarray(np.full(len(x), np.inf) if widths is None else widths, float)
    for _ in range(120):
        at = errors(np.exp(x))
        slopes = np.array([(errors(np.exp(x + step)) - at) / 1e-5 for step in 1e-5 * np.eye(len(x))]).T
        weight = 1 / np.maximum(1, np.abs(at) / 0.05)
        at, slopes, weight = np.append(at, pull * (x - first)), np.vstack([slopes, np.diag(pull)]), np.append(weight, np.ones(len(x)))
        move = np.linalg.solve(slopes.T @ (slopes * weight[:, None]) + 1e-3 * np.eye(len(x)), slopes.T @ (weight * at))
        x -= np.clip(move, -0.2, 0.2)
    return np.exp(x)


def fit(rows: Sequence[Row]) -> dict[str, Any]:
    """Parameter sets of all platforms, fitted on `rows` alone, in the order in which one inherits from another."""
    known: dict[str, Any] = {**PLATFORMS, **CTRAN_PLATFORMS}
    for name in ("hgx_h200", "dgx_a100", "h100_efa", "gb200_nvl72", "gb200_ctran", "hgx_h100"):
        taken = {field: getattr(known[source], field) for field, source in INHERITED.get(name, {}).items()}
        if name == "hgx_h100":
            taken["tree_depth"] = known["hgx_h200"].nvls_depth
        base = dataclasses.replace(known[name], **taken)
        fields, own = FITTED.get(name, {}), [row for row in rows if row.platform == name]
        if fields and own:
            base = _fit_one(base, fields, own)
        known[name] = base
    return known


def _fit_one(base: Any, fields: dict[str, float], rows: Sequence[Row]) -> Any:
    def replaced(values: Sequence[float]) -> Any:
        return dataclasses.replace(base, **dict(zip(fields, map(float, values), strict=True)))

    widths = [KNOWN.get(base.name, {}).get(field, np.inf) for field in fields]
    found = least_squares(lambda x: np.log1p(published.errors(rows, {base.name: replaced(x)})), list(fields.values()), widths)
    return replaced(found)


def folds(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """Name: which fold each row is in; a row is predicted by a fit on the other folds. Folds by GPUs are CTran's alone (others have
    one)."""
    sizes: dict[tuple[Any, ...], int] = {}
    by_size = []
    for row in rows:
        key = (row.platform, row.op, row.algorithm, row.gpus)
        sizes[key] = sizes.get(key, -1) + 1
        by_size.append(sizes[key] % 2)
    return {"every other size": np.array(by_size), "GPUs": np.array([row.gpus if row.platform == "gb200_ctran" else -1 for row in rows])}


def held_out(rows: Sequence[Row], fold: np.ndarray) -> np.ndarray:
    """Error of each row by the fit without its fold; NaN for rows in no fold (-1)."""
    found = np.full(len(rows), np.nan)
    for each in sorted(set(fold[fold >= 0])):
        known = fit([row for row, f in zip(rows, fold, strict=True) if f != each])
        there = np.flatnonzero(fold == each)
        found[there] = published.errors([rows[i] for i in there], known)
    return found


def _table(rows: Sequence[Row], columns: dict[str, np.ndarray]) -> None:
    print(f"{'platform':18} {'op':11} {'algorithm':19} {'gpus':>4} {'bytes':>12} {'measured us':>12}", *(f"{name:>18}" for name in columns))
    for i, row in enumerate(rows):
        cells = (f"{100 * error[i]:+17.1f}%" if np.isfinite(error[i]) else f"{'':>18}" for error in columns.values())
        print(f"{row.label:18} {row.op:11} {row.algorithm or '':19} {row.gpus:4d} {row.nbytes:12d} {row.time_us:12.1f}", *cells)


def _summaries(rows: Sequence[Row], columns: dict[str, np.ndarray]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for label in [*dict.fromkeys(row.label for row in rows), "all"]:
        for name, error in columns.items():
            there = [i for i, row in enumerate(rows) if label in (row.label, "all") and np.isfinite(error[i])]
            if there:
                found.setdefault(label, {})[name] = published.summary([rows[i] for i in there], error[there])
    return found


def run() -> dict[str, Any]:
    """All rows, fitted and predicted."""
    rows = [row for path in TABLES for row in published.read(path)]
    refitted = fit(rows)
    columns = {"stored": published.errors(rows), "fitted now": published.errors(rows, refitted)}
    columns |= {f"held out: {name}": held_out(rows, fold) for name, fold in folds(rows).items()}
    _table(rows, columns)
    stored: dict[str, Any] = {**PLATFORMS, **CTRAN_PLATFORMS}
    parameters = {
        name: {field: {"stored": getattr(stored[name], field), "fitted": round(getattr(refitted[name], field), 4)} for field in fields}
        for name, fields in FITTED.items()
    }
    for name, fields in parameters.items():
        print(name, *(f"{field} {value['fitted']:.4g} (stored {value['stored']:.4g})" for field, value in fields.items()), sep="; ")
    summaries = _summaries(rows, columns)
    for label, each in summaries.items():
        for name, ranges in each.items():
            print(f"{label:18} {name:26}", *(f"{size}: {v['rows']} rows, median {100 * v['median']:.1f} %, max {100 * v['max']:.1f} %"
                                             for size, v in ranges.items()), sep="  ")  # fmt: skip
    worst = {size: summaries["all"]["held out: every other size"][size] for size in BARS}
    return {
        "summary": "held out by size: "
        + ", ".join(f"{size} median {100 * v['median']:.1f} % max {100 * v['max']:.1f} %" for size, v in worst.items()),
        "bars": {size: {"median": median, "max": largest} for size, (median, largest) in BARS.items()},
        "fitted": parameters, "inherited": INHERITED, "errors": summaries,
        "rows": [
            {
                "platform": row.label, "op": row.op, "algorithm": row.algorithm, "gpus": row.gpus, "bytes": row.nbytes,
                "measured_us": row.time_us, "source": row.source,
                **{name: None if np.isnan(error[i]) else round(float(error[i]), 4) for name, error in columns.items()},
            }
            for i, row in enumerate(rows)
        ],
    }  # fmt: skip
