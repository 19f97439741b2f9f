"""Samples made into rows, and rows compared: medians, best peers, ratios, geometric means.

Is: arithmetic on plain values, the same for a run just done and for a saved file. Is not: measuring or printing.
Invariants: only rows of equal labels are compared; a cell's ratio is the peer's time over ours, so above 1 is faster; the
better of in place and out of place counts, for every party, so a row of one form alone is not compared where there are two.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ccl_lab.trace.statistics import bandwidths

from .cells import Cell, Sample

Row = dict[str, Any]
COLUMNS = ("peer", "op", "ranks", "bytes", "median_us", "p95_us", "algbw_gbytes_per_s", "busbw_gbytes_per_s")
OURS, OURS_PLAIN, OURS_STAGED = "ccl_lab", "ccl_lab-plain", "ccl_lab-staged"
CLEAN = ("core", "near", "far", "unknown")  # labels that say the same thing wherever they stand; "mixed" does not
LABELS = (*CLEAN, "mixed")
_AS_COLLECTIVE = {"ping_pong": "send_recv", "start_up": "barrier"}
# How much slower than the best a peer may be and still be timed in every round.
CONTENDER = 1.3


def row(peer: str, cell: Cell, times_us: Sequence[float], medians_us: Sequence[float], **more: Any) -> Row:
    """One row of the --json list: times_us are all batches, medians_us one value per round."""
    median = statistics.median(medians_us)
    algbw, busbw = bandwidths(_AS_COLLECTIVE.get(cell.op, cell.op), cell.ranks, cell.bytes, median)
    return {
        "peer": peer, "op": cell.op, "ranks": cell.ranks, "bytes": cell.bytes, "median_us": median,
        "p95_us": float(np.percentile(np.asarray(times_us, float), 95)), "algbw_gbytes_per_s": algbw,
        "busbw_gbytes_per_s": busbw, "rounds": len(medians_us), "batches": len(times_us), **more,
    }  # fmt: skip


def rows_of(samples: Iterable[Sample], kinds: dict[str, dict[str, Any]]) -> list[Row]:
    """A row per peer, cell and label; kinds: {peer: its language, buffers, ...}, copied into its rows."""
    groups: dict[tuple[str, Cell, str], dict[int, list[Sample]]] = {}
    for sample in samples:
        forms = groups.setdefault((sample.peer, sample.cell, sample.label), {})
        forms.setdefault(sample.in_place, []).append(sample)
    found = []
    for (peer, cell, label), forms in groups.items():
        candidates = []
        for in_place, some in forms.items():
            times = [value for one in some for value in one.batch_us]
            medians = [statistics.median(one.batch_us) for one in some]
            ns = statistics.median(one.cache_line_ns for one in some)
            more = {"label": label, "in_place": in_place, "cache_line_ns": ns, **kinds.get(peer, {})}
            candidates.append(row(peer, cell, times, medians, forms=sorted(forms), **more))
        found.append(min(candidates, key=lambda one: one["median_us"]))
    return sorted(
        found, key=lambda one: (one["op"], one["ranks"], one["bytes"], one["label"], one["median_us"])
    )


def cell_of(one: Row) -> Cell:
    """The cell a row is about."""
    return Cell(str(one["op"]), int(one["ranks"]), int(one["bytes"]))


def is_ours(name: str) -> bool:
    return name == OURS or name.startswith(f"{OURS}-")


def language_of(one: Row) -> str:
    """ "native" or "python"; rows of files that do not say are told by their names."""
    name = str(one["peer"])
    python = name.startswith(("mpi4py", "gloo", f"{OURS}-python"))
    return str(one.get("language") or ("python" if python else "native"))


@dataclass(frozen=True)
class Comparison:
    """One cell at one label: ours beside the best peer there."""

    cell: Cell
    label: str
    ours_us: float
    peer: str
    peer_us: float
    peers: int

    @property
    def ratio(self) -> float:
        return self.peer_us / self.ours_us


def native_peer(one: Row) -> bool:
    """Any peer that is not ours and not called from Python, Gloo included where a file lists it so."""
    return not is_ours(str(one["peer"])) and language_of(one) == "native"


def whole(rows: Iterable[Row]) -> list[Row]:
    """Those that were timed in every form that their peer has in the cell at any label; all of a file that does not say.

    The cores change within seconds, so that a party may have been far apart in one form only, and that the slower one.
    """
    rows = list(rows)
    known: dict[tuple[str, Cell], set[int]] = {}
    for one in rows:
        known.setdefault((str(one["peer"]), cell_of(one)), set()).update(one.get("forms", ()))
    return [one for one in rows if set(one.get("forms", ())) >= known[str(one["peer"]), cell_of(one)]]


def mpi4py_peer(one: Row) -> bool:
    return str(one["peer"]).startswith("mpi4py")


def gloo_peer(one: Row) -> bool:
    return str(one["peer"]).startswith("gloo")


def compare(rows: Iterable[Row], ours: str, rival: Callable[[Row], bool] = native_peer) -> list[Comparison]:
    """A comparison per cell and label where both are there; mixed labels count only where a cell has no other.

    Both: ours in every form, and a rival in every form of its own. Other rivals there count too: in the form that is missing they can
    only be faster than told.
    """
    mine: dict[tuple[Cell, str], float] = {}
    best: dict[tuple[Cell, str], tuple[float, str]] = {}
    peers: dict[tuple[Cell, str], int] = {}
    rows = list(rows)
    complete, told = {id(one) for one in whole(rows)}, set()
    for one in rows:
        key, time_us = (cell_of(one), str(one.get("label", "unknown"))), float(one["median_us"])
        if one["peer"] == ours:
            if id(one) in complete:
                mine[key] = min(time_us, mine.get(key, math.inf))
        elif rival(one):
            if id(one) in complete:
                told.add(key)
            best[key] = min((time_us, str(one["peer"])), best.get(key, (math.inf, "")))
            peers[key] = peers.get(key, 0) + 1
    both = [key for key in mine if key in told]
    clean = {cell for cell, label in both if label in CLEAN}
    return [
        Comparison(
            cell, label, mine[cell, label], best[cell, label][1], best[cell, label][0], peers[cell, label]
        )
        for cell, label in sorted(
            both, key=lambda key: (key[0], LABELS.index(key[1]) if key[1] in LABELS else 9)
        )
        if label in CLEAN or cell not in clean
    ]


def per_cell(comparisons: Iterable[Comparison]) -> dict[Cell, list[Comparison]]:
    """The comparisons of each cell, one a label."""
    found: dict[Cell, list[Comparison]] = {}
    for one in comparisons:
        found.setdefault(one.cell, []).append(one)
    return found


def geometric_mean(values: Iterable[float]) -> float:
    """nan of nothing.

    >>> round(geometric_mean([1.0, 4.0]), 9)
    2.0
    """
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def cell_ratios(comparisons: Iterable[Comparison]) -> dict[Cell, float]:
    """A cell's ratio: the geometric mean over its labels."""
    return {cell: geometric_mean(one.ratio for one in some) for cell, some in per_cell(comparisons).items()}


def contenders(rows: Iterable[Row]) -> set[tuple[str, Cell]]:
    """Peers worth timing again: near the best of their language in a cell, at any label. Ours always are."""
    rows = list(rows)
    best: dict[tuple[Cell, str, str], float] = {}

    def key(one: Row) -> tuple[Cell, str, str]:
        group = "gloo" if gloo_peer(one) else language_of(one)
        return cell_of(one), str(one.get("label")), group

    for one in rows:
        if not is_ours(str(one["peer"])):
            best[key(one)] = min(float(one["median_us"]), best.get(key(one), math.inf))
    return {
        (str(one["peer"]), cell_of(one))
        for one in rows
        if is_ours(str(one["peer"])) or float(one["median_us"]) <= CONTENDER * best[key(one)]
    }


def floor_us(cell: Cell, floor: dict[str, Any], cores: int) -> float | None:
    """The least a cell can take on this machine by the floor measured in the same run; None where there is no model.

    Bytes that must cross memory among n ranks, as bytes copied (one read and one write): all_reduce n*S (every input read,
    every output written), all_gather and all_to_all n*S, reduce_scatter (n+1)*S/2, broadcast (n-1)*S, ping_pong S; by the
    rate at which all cores copy together at that size. Beside it the hand-over: one cache line, and one yield for each
    further turn of ranks on a core.
    """
    rates = floor.get("copy_together_gbytes_per_s") or {}
    if not rates or floor.get("cache_line_ns") is None:
        return None
    n, size = cell.ranks, cell.bytes
    copied = {
        "all_reduce": n * size, "all_gather": n * size, "all_to_all": n * size, "reduce_scatter": (n + 1) * size / 2,
        "broadcast": (n - 1) * size, "ping_pong": size, "barrier": 0,
    }.get(cell.op)  # fmt: skip
    if copied is None:
        return None
    nearest = min(rates, key=lambda known: abs(math.log(int(known) / max(size, 1))))
    turns = 0 if cell.op == "ping_pong" and n <= cores else math.ceil(n / cores) - 1
    hand_over = floor["cache_line_ns"] * 1e-3 + turns * float(floor.get("yield_us") or 0)
    return hand_over + copied / (float(rates[nearest]) * 1e3)
