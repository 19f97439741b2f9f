"""Tables of a run for a terminal, as nccl-tests print them, with the best peer and the floor beside ours.

Is: text of rows. Is not: arithmetic (`results`). Invariants: every number is of the rows given; a missing one is "-".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ccl_lab.units import format_size

from . import results
from .cells import Cell

_HEAD = (
    f"{'size':>11} {'count':>10} {'type':>6} {'redop':>5} | {'time':>9} {'algbw':>7} {'busbw':>7} {'#wrong':>6} | "
    f"{'plain':>9} | {'best peer':>9} {'algbw':>7} {'busbw':>7}  {'name':14} | {'ratio':>6} {'plain':>6} | {'floor':>9} {'of it':>5}"
)
_UNITS = (
    f"{'(B)':>11} {'(elements)':>10} {'':>6} {'':>5} | {'(us)':>9} {'(GB/s)':>7} {'(GB/s)':>7} {'':>6} | "
    f"{'(us)':>9} | {'(us)':>9} {'(GB/s)':>7} {'(GB/s)':>7}  {'':14} | {'':>6} {'':>6} | {'(us)':>9} {'':>5}"
)
SPLIT = ("all_gather", "reduce_scatter", "all_to_all")
REDUCING = ("all_reduce", "reduce_scatter")


def number(value: float | None, width: int, digits: int = 4) -> str:
    """Right-aligned, "-" for nothing."""
    return f"{'-' if value is None else format(value, f'.{digits}g'):>{width}}"


def _best(rows: Iterable[results.Row], what: Any) -> results.Row | None:
    return min((row for row in rows if what(row)), key=lambda row: row["median_us"], default=None)


def _line(cell: Cell, rows: list[results.Row], ours_name: str, rival: Any) -> str:
    ours = _best(rows, lambda row: row["peer"] == ours_name)
    plain = _best(rows, lambda row: row["peer"] == f"{ours_name}-plain")
    peer = _best(rows, rival)
    count = cell.bytes // 4 // (cell.ranks if cell.op in SPLIT else 1)
    floor = next((row["floor_us"] for row in rows if row.get("floor_us")), None)

    def us(row: results.Row | None) -> float | None:
        return None if row is None else float(row["median_us"])

    def ratio(row: results.Row | None) -> float | None:
        return None if row is None or peer is None else float(peer["median_us"]) / float(row["median_us"])

    def rates(row: results.Row | None) -> str:
        return " ".join(number(row and row[name], 7, 3) for name in results.COLUMNS[-2:])

    reached = None if ours is None or floor is None else 100 * floor / float(ours["median_us"])
    return (
        f"{cell.bytes:>11} {count:>10} {'float':>6} {'sum' if cell.op in REDUCING else 'none':>5} | {number(us(ours), 9)} "
        f"{rates(ours)} {'-' if ours is None else 0:>6} | {number(us(plain), 9)} | {number(us(peer), 9)} {rates(peer)}  "
        f"{peer['peer'] if peer else '-':14} | {number(ratio(ours), 6, 3)} {number(ratio(plain), 6, 3)} | {number(floor, 9)} "
        f"{'-' if reached is None else f'{reached:.0f}%':>5}"
    )


def table(rows: list[results.Row], ours: str = results.OURS, rival: Any = results.native_peer) -> str:
    """The nccl-tests table of every op, number of ranks and label: ours (registered, plain), the best peer, the floor."""
    lines = []
    groups: dict[tuple[str, int, str], dict[Cell, list[results.Row]]] = {}
    for row in rows:
        if row["op"] != "start_up":
            cell = results.cell_of(row)
            groups.setdefault((cell.op, cell.ranks, str(row.get("label"))), {}).setdefault(cell, []).append(
                row
            )
    for (op, ranks, label), cells in sorted(groups.items()):
        if label == "mixed" and any((op, ranks, clean) in groups for clean in results.CLEAN):
            continue
        lines += [f"# {op}, {ranks} ranks, float32, cores {label}", _HEAD, _UNITS]
        lines += [_line(cell, some, ours, rival) for cell, some in sorted(cells.items())]
        lines.append("")
    return "\n".join(lines)


def ranking(rows: list[results.Row]) -> str:
    """How often each peer was the best of a cell."""
    wins: dict[str, int] = {}
    for row in results.compare(rows, results.OURS) or ():
        wins[row.peer] = wins.get(row.peer, 0) + 1
    found = ", ".join(f"{peer} {n}" for peer, n in sorted(wins.items(), key=lambda item: -item[1]))
    return f"Best peer of how many cells: {found or 'nothing to compare'}"


def start_up(rows: list[results.Row]) -> str:
    """Seconds from spawn to the first all_reduce done, by ranks."""
    times = {
        (str(row["peer"]), int(row["ranks"])): row["median_us"] / 1e6
        for row in rows
        if row["op"] == "start_up"
    }
    if not times:
        return ""
    ranks = sorted({n for _, n in times})
    lines = [
        "# start-up: spawn to the first all_reduce done (s)",
        f"{'':22}" + "".join(f"{n:>9}" for n in ranks),
    ]
    names = dict.fromkeys(peer for peer, _ in times)
    last = ranks[-1]
    for peer in sorted(names, key=lambda name: times.get((name, last), 1e9)):
        lines.append(f"{peer:22}" + "".join(f"{number(times.get((peer, n)), 9, 3)}" for n in ranks))
    return "\n".join([*lines, ""])


def memory(found: dict[str, dict[str, int]]) -> str:
    """Bytes a rank holds beyond the bare process and its buffers, by party and ranks."""
    if not found:
        return ""
    ranks = sorted({int(n) for some in found.values() for n in some})
    lines = ["# memory of a rank beyond its process and the two buffers, after an all_reduce of 16 MiB"]
    lines.append(f"{'':22}" + "".join(f"{n:>12}" for n in ranks))
    for peer, some in found.items():
        cells = [format_size(max(0, some[str(n)])) if str(n) in some else "-" for n in ranks]
        lines.append(f"{peer:22}" + "".join(f"{text:>12}" for text in cells))
    return "\n".join([*lines, ""])


def faults(found: dict[tuple[str, int], dict[str, list[Cell]]], missing: dict[str, str]) -> str:
    """Who was left out of what, and why."""
    lines = [f"  {name}: {reason}" for name, reason in sorted(missing.items())]
    for (peer, ranks), reasons in sorted(found.items()):
        for reason, cells in reasons.items():
            where = f"{ranks} ranks" if ranks else "all"
            which = ", ".join(f"{cell.op} {format_size(cell.bytes)}" for cell in cells[:4])
            more = f" and {len(cells) - 4} more" if len(cells) > 4 else ""
            lines.append(f"  {peer}, {where}: {reason}{f' ({which}{more})' if cells else ''}")
    return "\n".join(["# left out", *lines, ""]) if lines else ""


def floor(values: dict[str, Any]) -> str:
    """The floor in a line."""
    if not values:
        return "# floor: not measured"
    names = {
        "cache_line_ns": "cache line {:.0f} ns one way", "yield_us": "yield {:.2f} us", "memcpy_64mib_gbytes_per_s":
        "memcpy 64 MiB {:.1f} GB/s", "sum_64mib_gbytes_per_s": "a += b 64 MiB {:.1f} GB/s", "loopback_8b_us":
        "loopback 8 B {:.1f} us", "loopback_stream_gbytes_per_s": "loopback stream {:.1f} GB/s",
    }  # fmt: skip
    return "# floor: " + ", ".join(
        form.format(values[name]) for name, form in names.items() if values.get(name) is not None
    )
