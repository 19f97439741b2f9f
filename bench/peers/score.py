"""Scores a run against what the engine must show: ratios per cell, geometric means, aims met.

Is: `python -m bench.peers.score FILE.json`, FILE being what --json wrote, or a record. Is not: a test; machines differ.
Invariants: the words of the goals are here once (GOALS, AIMS_US); a goal without data says so instead of passing.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ccl_lab.units import format_size

from . import results
from .cells import Cell

FIVE = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
KIB, MIB = 1 << 10, 1 << 20
# (ranks, bytes): what is physically there for all_reduce, in us, on a machine like the one the goals were set on.
AIMS_US = {
    (2, 8): 0.09, (2, 64 * KIB): 1.5, (2, MIB): 18, (2, 16 * MIB): 650, (2, 64 * MIB): 4500,
    (4, 8): 1.6, (4, 64 * KIB): 5, (4, MIB): 45, (4, 16 * MIB): 2000, (4, 64 * MIB): 11000,
    (8, 8): 4.5, (8, 64 * KIB): 14, (8, MIB): 110, (8, 16 * MIB): 5000, (8, 64 * MIB): 25000,
}  # fmt: skip
SMALL = 1024


@dataclass(frozen=True)
class Verdict:
    """One goal: what it asks, what was found, whether it is met (None: no data)."""

    goal: str
    found: str
    met: bool | None


def load(path: Path) -> tuple[list[results.Row], dict[str, Any]]:
    """(rows, the record around them or {}) of a --json file or a record."""
    found = json.loads(path.read_text())
    if isinstance(found, list):
        return found, {}
    if isinstance(found, dict) and isinstance(found.get("rows"), list):
        return found["rows"], found
    raise SystemExit(
        f'{path}: expected a list of rows, or a record with "rows", found {type(found).__name__}.'
    )


def _large(cell: Cell) -> bool:
    return cell.op in FIVE and cell.ranks in (2, 4, 8) and cell.bytes >= 64 * KIB


def _mean(
    goal: str, comparisons: Iterable[results.Comparison], wanted: Callable[[Cell], bool], least: float
) -> Verdict:
    ratios = [ratio for cell, ratio in results.cell_ratios(comparisons).items() if wanted(cell)]
    mean = results.geometric_mean(ratios)
    found = f"{mean:.2f}x over {len(ratios)} cells" if ratios else "no data"
    return Verdict(goal, found, None if not ratios else mean >= least)


def _none_below(
    goal: str, comparisons: Iterable[results.Comparison], wanted: Callable[[Cell], bool], least: float
) -> Verdict:
    some = [one for one in comparisons if wanted(one.cell)]
    below = [one for one in some if one.ratio < least]
    if not some:
        return Verdict(goal, "no data", None)
    worst = min(some, key=lambda one: one.ratio)
    found = f"{len(below)} of {len(some)}; worst {worst.ratio:.2f}x, {name_of(worst.cell)}, {worst.label}, {worst.peer}"
    return Verdict(goal, found, not below)


def name_of(cell: Cell) -> str:
    """ "all_reduce 4 ranks 64KiB"."""
    return f"{cell.op} {cell.ranks} ranks" + (f" {format_size(cell.bytes)}" if cell.bytes else "")


def verdicts(rows: list[results.Row]) -> list[Verdict]:
    """Every goal that rows can decide."""
    ours = results.compare(rows, results.OURS)
    plain = results.compare(rows, results.OURS_PLAIN)
    staged = results.compare(rows, results.OURS_STAGED)
    paths = [f"{results.OURS}-python", f"{results.OURS}-python-plain"]
    python = _best_of(one for name in paths for one in results.compare(rows, name, results.mpi4py_peer))
    gloo = _best_of(one for name in paths for one in results.compare(rows, name, results.gloo_peer))
    reduces = {
        n: (lambda cell, n=n: cell.op == "all_reduce" and cell.ranks == n and cell.bytes >= 16 * MIB)
        for n in (2, 4, 8)
    }
    small = lambda ranks: lambda cell: cell.op in FIVE and cell.bytes <= SMALL and cell.ranks in ranks  # noqa: E731
    return [
        _mean("registered, 64 KiB and more: geometric mean at least 1.5x", ours, _large, 1.5),
        *(
            _mean(f"all_reduce of 16 MiB and more, {n} ranks: at least {least:g}x", ours, reduces[n], least)
            for n, least in ((2, 2.0), (4, 2.5), (8, 2.5))
        ),
        _none_below("registered, 64 KiB and more: no cell below 0.9x", ours, _large, 0.9),
        _mean("plain, 64 KiB and more: geometric mean at least 1.2x", plain, _large, 1.2),
        _none_below("plain, 64 KiB and more: no cell below 0.8x", plain, _large, 0.8),
        _mean("plain, never registered: geometric mean at least 1.2x", staged, _large, 1.2),
        _none_below("plain, never registered: no cell below 0.8x", staged, _large, 0.8),
        _none_below("8 B and 1 KiB, 2 ranks: within 1.25x of the best peer", ours, small((2,)), 0.8),
        _none_below("8 B and 1 KiB, 4 and 8 ranks: faster than the best peer", ours, small((4, 8)), 1.0),
        _none_below("Python, 8 B and 1 KiB: within 1.25x of the best mpi4py", python, small((2, 4, 8)), 0.8),
        _mean(
            "Python against Gloo, all cells: geometric mean at least 20x",
            gloo,
            lambda cell: cell.op != "start_up",
            20,
        ),
        _floor(rows),
        _start(rows),
    ]


def right(left_out: Iterable[str] | None) -> Verdict:
    """Whether a rank of ours had a wrong result: what is wrong is not timed, so no row tells of it."""
    goal = "every result of ours is right"
    if left_out is None:
        return Verdict(goal, "no data", None)
    wrong = [line.strip() for line in left_out if line.strip().startswith(results.OURS) and "wrong result" in line]
    return Verdict(goal, wrong[0] if wrong else "all of them", not wrong)


def _floor(rows: list[results.Row]) -> Verdict:
    goal = "all_reduce and all_gather of 16 MiB and more: at least 80 % of what memory allows"
    some = [
        (float(row["floor_us"]) / float(row["median_us"]), results.cell_of(row))
        for row in rows
        if row["peer"] == results.OURS
        and row["op"] in FIVE[:2]
        and row["bytes"] >= 16 * MIB
        and row.get("floor_us")
    ]
    if not some:
        return Verdict(goal, "no data", None)
    worst = min(some)
    return Verdict(goal, f"worst {100 * worst[0]:.0f} %, {name_of(worst[1])}", worst[0] >= 0.8)


def _best_of(comparisons: Iterable[results.Comparison]) -> list[results.Comparison]:
    """Of several paths of ours the fastest per cell and label."""
    best: dict[tuple[Cell, str], results.Comparison] = {}
    for one in comparisons:
        key = (one.cell, one.label)
        if key not in best or one.ours_us < best[key].ours_us:
            best[key] = one
    return list(best.values())


def _start(rows: list[results.Row]) -> Verdict:
    goal = "start of 64 ranks: less than the best peer"
    times = {
        str(row["peer"]): float(row["median_us"]) / 1e6
        for row in rows
        if row["op"] == "start_up" and row["ranks"] == 64
    }
    peers = {name: value for name, value in times.items() if not results.is_ours(name)}
    if results.OURS not in times or not peers:
        return Verdict(goal, "no data", None)
    best = min(peers, key=lambda name: peers[name])
    return Verdict(
        goal, f"{times[results.OURS]:.2f} s, {best} {peers[best]:.2f} s", times[results.OURS] < peers[best]
    )


def aims(rows: list[results.Row]) -> list[tuple[int, int, float, float | None, str]]:
    """(ranks, bytes, aim, ours at its best label or None, that label) of all_reduce, registered."""
    found = []
    for (ranks, nbytes), aim in AIMS_US.items():
        some = [
            (float(row["median_us"]), str(row.get("label", "")))
            for row in rows
            if row["peer"] == results.OURS and results.cell_of(row) == Cell("all_reduce", ranks, nbytes)
        ]
        best = min(some, default=(None, ""))
        found.append((ranks, nbytes, aim, best[0], best[1]))
    return found


def text(rows: list[results.Row], below: float = 0.9, left_out: Iterable[str] | None = None) -> str:
    """The whole score, for a terminal; `left_out`: what the run said of parties that were not timed, where it is known."""
    ours = results.compare(rows, results.OURS)
    lines = ["Goals"]
    sign = {True: "met", False: "NOT MET", None: "no data"}
    lines += [f"  {sign[one.met]:8} {one.goal}: {one.found}" for one in [right(left_out), *verdicts(rows)]]
    reached = aims(rows)
    met = sum(found is not None and found <= aim for _, _, aim, found, _ in reached)
    lines += ["", f"Aims of all_reduce (us): {met} of {len(reached)} met"]
    for ranks, nbytes, aim, found, label in reached:
        shown = "-" if found is None else f"{found:.4g} ({label}){' met' if found <= aim else ''}"
        lines.append(f"  {ranks} ranks {format_size(nbytes):>7}  aim {aim:<7g} {shown}")
    lines += ["", "Geometric means, ours registered against the best native peer"]
    ratios = results.cell_ratios(one for one in ours if _large(one.cell))
    for op in FIVE:
        cells = [
            f"{n} ranks {_shown([r for c, r in ratios.items() if c.op == op and c.ranks == n])}"
            for n in (2, 4, 8)
        ]
        lines.append(f"  {op:15} {'  '.join(cells)}")
    low = sorted(
        (one for one in ours if one.ratio < below and one.cell.op in FIVE), key=lambda one: one.ratio
    )
    lines += ["", f"Cells below {below:g}x (ours registered): {len(low)}"]
    lines += [
        f"  {one.ratio:5.2f}x  {name_of(one.cell):32} {one.label:5} ours {one.ours_us:.4g} us, {one.peer} {one.peer_us:.4g} us"
        for one in low
    ]
    lines += ["", "All cells (ratio: best peer / ours)"]
    for name in (results.OURS, results.OURS_PLAIN):
        for one in results.compare(rows, name):
            lines.append(
                f"  {one.ratio:6.2f}x  {name:14} {name_of(one.cell):32} {one.label:7} ours {one.ours_us:<9.4g} "
                f"{one.peer} {one.peer_us:.4g} us (of {one.peers} peers)"
            )
    return "\n".join(lines)


def _shown(ratios: list[float]) -> str:
    mean = results.geometric_mean(ratios)
    return "-" if math.isnan(mean) else f"{mean:.2f}x"


def main() -> int:
    """Prints the score of a file."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers.score", description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="what ccl-lab bench --json wrote, or a record")
    parser.add_argument("--below", type=float, default=0.9, help="list cells below this ratio (default: 0.9)")
    given = parser.parse_args()
    rows, record = load(given.file)
    print(text(rows, given.below, record.get("left_out")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
