"""The curves of a run as one HTML file: time over size, a panel per op and number of ranks.

Is: plotly figures of rows, with plotly's own script inside, so that the file opens anywhere. Is not: a second set of
numbers. Invariants: ours are thick and coloured, the best peer is black, every other peer is thin and grey; one label.
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ccl_lab.units import format_size

from . import results

# Okabe and Ito's palette: told apart by all eyes.
COLOURS = {
    "ccl_lab": "#0072B2", "ccl_lab-plain": "#56B4E9", "ccl_lab-staged": "#009E73",
    "ccl_lab-python": "#D55E00", "ccl_lab-python-plain": "#E69F00",
}  # fmt: skip
_GREY = "rgba(120,120,120,0.45)"


def label_with_most(rows: list[results.Row]) -> str:
    """The label that most rows carry: the one that is drawn."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[str(row.get("label", "unknown"))] = counts.get(str(row.get("label", "unknown")), 0) + 1
    return max(counts, key=lambda label: (label in results.CLEAN, counts[label]), default="unknown")


def figure(rows: list[results.Row], label: str) -> go.Figure:
    """Rows of ops by columns of ranks; log-log; hover gives peer, time and bandwidth."""
    shown = [
        row
        for row in rows
        if row.get("label", "unknown") == label and row["bytes"] > 0 and row["op"] != "start_up"
    ]
    ops, ranks = list(dict.fromkeys(row["op"] for row in shown)), sorted({row["ranks"] for row in shown})
    plot = make_subplots(
        rows=max(1, len(ops)), cols=max(1, len(ranks)),
        subplot_titles=[f"{op}, {n} ranks" for op in ops for n in ranks], horizontal_spacing=0.05, vertical_spacing=0.06,
    )  # fmt: skip
    listed: set[str] = set()
    for i, op in enumerate(ops):
        for j, n in enumerate(ranks):
            for trace in _panel([row for row in shown if row["op"] == op and row["ranks"] == n], listed):
                plot.add_trace(trace, row=i + 1, col=j + 1)
    plot.update_xaxes(type="log", title_text="bytes")
    plot.update_yaxes(type="log", title_text="time (µs)")
    plot.update_layout(
        template="plotly_white", height=330 * max(1, len(ops)), title=f"Time over size, cores {label}"
    )
    return plot


def _panel(rows: list[results.Row], listed: set[str]) -> list[go.Scatter]:
    peers: dict[str, list[results.Row]] = {}
    best: dict[int, results.Row] = {}
    for row in sorted(rows, key=lambda row: row["bytes"]):
        peers.setdefault(row["peer"], []).append(row)
        size = int(row["bytes"])
        if (
            results.native_peer(row)
            and row["median_us"] < best.get(size, {"median_us": float("inf")})["median_us"]
        ):
            best[size] = row
    traces = [_trace(name, some, _GREY, 1, listed) for name, some in peers.items() if name not in COLOURS]
    if best:
        traces.append(_trace("best peer", [best[size] for size in sorted(best)], "#000000", 2, listed))
    traces += [
        _trace(name, peers[name], colour, 3, listed) for name, colour in COLOURS.items() if name in peers
    ]
    return traces


def _trace(name: str, rows: list[results.Row], colour: str, width: int, listed: set[str]) -> go.Scatter:
    first = name not in listed
    listed.add(name)
    words = [
        f"{row['peer']}<br>{format_size(int(row['bytes']))}: {row['median_us']:.4g} µs (p95 {row['p95_us']:.4g})"
        f"<br>busbw {row['busbw_gbytes_per_s']:.3g} GB/s"
        for row in rows
    ]
    return go.Scatter(
        x=[row["bytes"] for row in rows], y=[row["median_us"] for row in rows], name=name, legendgroup=name,
        showlegend=first, mode="lines+markers", marker={"size": 3 + width}, line={"color": colour, "width": width},
        text=words, hoverinfo="text",
    )  # fmt: skip


def write(rows: list[results.Row], facts: dict[str, Any], path: Path) -> None:
    """One file: the figure of each clean label, and the facts of the run below."""
    labels = [label for label in results.LABELS if any(row.get("label", "unknown") == label for row in rows)]
    clean = [label for label in labels if label in results.CLEAN] or labels
    clean.sort(key=lambda label: label != label_with_most(rows))
    parts = [
        figure(rows, label).to_html(full_html=False, include_plotlyjs=at == 0)
        for at, label in enumerate(clean)
    ]
    body = "\n".join(parts) or "<p>No rows.</p>"
    words = html.escape(json.dumps(facts, indent=1, default=str))
    path.write_text(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>ccl_lab beside its peers</title></head>\n'
        f'<body style="font-family: sans-serif; margin: 1rem">\n{body}\n<h2>Run</h2>\n<pre>{words}</pre>\n</body></html>\n'
    )
