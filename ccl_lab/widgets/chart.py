"""algbw and busbw against message size, in plotly for notebooks and as plain lines for the small native chart; the look of all plotly figures.

Is: records -> figure. Is not: a measurement. The plotly template has no ground of its own and middle-grey ink, so that
it reads on dark and light pages alike (plotly's own stays white in a dark theme).
"""

from __future__ import annotations

from typing import Any

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star")
_TELLING = ("collective", "algorithm", "source", "transport", "ranks", "n_ranks", "dtype")
_INK = "#808a94"
_GRID = "rgba(128,138,148,0.28)"


def _rows(records: Any) -> list[dict[str, Any]]:
    if hasattr(records, "to_dict") and hasattr(records, "columns"):
        return list(records.to_dict("records"))
    return [_facts(record) for record in records]


def _facts(record: Any) -> dict[str, Any]:
    """The single values of a record, or of a trace; tables inside a record are nothing a line is named after."""
    if hasattr(record, "meta"):
        rates = {name: getattr(record, name) for name in ("algbw_gbytes_per_s", "busbw_gbytes_per_s")}
        record = {**record.meta, **rates}
    return {key: value for key, value in dict(record).items() if not isinstance(value, (list, dict, tuple))}


def _nbytes(row: dict[str, Any]) -> int:
    return int(row["nbytes"] if "nbytes" in row else row["bytes"])


def spec(records: Any) -> dict[str, Any]:
    """{"lines": [{name, nbytes, algbw, busbw}]}: a line for each combination of what tells records apart."""
    rows = _rows(records)
    telling = [key for key in _TELLING if len({str(row.get(key)) for row in rows}) > 1] or ["algorithm"]
    lines: dict[str, list[tuple[int, float, float]]] = {}
    for row in rows:
        name = " ".join(
            str(row[key]) if key not in ("ranks", "n_ranks") else f"{row[key]} ranks"
            for key in telling
            if row.get(key) is not None
        )
        point = (_nbytes(row), float(row["algbw_gbytes_per_s"]), float(row["busbw_gbytes_per_s"]))
        lines.setdefault(name or "bandwidth", []).append(point)
    out = []
    for name, points in lines.items():
        points.sort()
        nbytes, algbw, busbw = (list(column) for column in zip(*points, strict=False))
        out.append({"name": name, "nbytes": nbytes, "algbw": algbw, "busbw": busbw})
    return {"lines": out}


def template() -> Any:
    """The plotly template that follows the page: transparent ground, ink that reads on dark and light."""
    import plotly.graph_objects as go

    axis = {
        "gridcolor": _GRID,
        "zerolinecolor": _GRID,
        "linecolor": _GRID,
        "ticks": "outside",
        "tickcolor": _GRID,
        "exponentformat": "none",
        "separatethousands": True,
        "automargin": True,  # long tick labels move the title of an axis aside
        "title": {"standoff": 10},
    }
    layout = {
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "colorway": list(COLORS),
        "font": {"color": _INK, "family": "system-ui, sans-serif", "size": 12}, "xaxis": axis, "yaxis": axis,
        "margin": {"l": 64, "r": 16, "t": 36, "b": 52}, "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
    }  # fmt: skip
    return go.layout.Template(layout=layout)


def plot_style() -> None:
    """From here on the plotly figures of this process look like those of ccl_lab: no ground of their own, ink that reads on dark and light.

    Is: the default template of plotly (`plotly.io.templates`), with the legend beside the figure and room for a title. A figure that names
    a template of its own keeps it. Undo: `plotly.io.templates.default = "plotly"`.
    """
    import plotly.io

    beside = template()
    legend = {"orientation": "v", "y": 1, "yanchor": "top"}
    beside.layout.update(margin={"t": 56, "r": 24}, legend=legend, title={"x": 0, "xref": "paper", "font": {"size": 15}})
    plotly.io.templates["ccl_lab"] = beside
    plotly.io.templates.default = "ccl_lab"


def size_axis(sizes: Any, title: str = "message size", ticks: int = 9) -> dict[str, Any]:
    """A logarithmic axis of bytes whose ticks say 64 KiB and not 65.536k: `figure.update_xaxes(**size_axis(sizes))`.

    sizes: bytes, in any order; at most some `ticks` of them get a tick.
    """
    from .. import units

    found = sorted({int(size) for size in sizes})
    shown = found[:: max(1, -(-len(found) // ticks))]
    return {"type": "log", "title": title, "tickvals": shown, "ticktext": [units.format_size(n) for n in shown]}


def figure(records: Any) -> Any:
    """A plotly Figure: busbw solid, algbw dotted, a colour and a symbol per line. records: see `ccl_lab.widgets.bandwidth`."""
    import plotly.graph_objects as go

    from .. import units

    lines = spec(records)["lines"]
    fig = go.Figure()
    for k, line in enumerate(lines):
        style = {"color": COLORS[k % len(COLORS)]}
        marker = {"symbol": SYMBOLS[k % len(SYMBOLS)], "size": 8}
        text = [units.format_size(n) for n in line["nbytes"]]
        for word, dash in (("busbw", "solid"), ("algbw", "dot")):
            hover = f"{line['name']} {word}<br>%{{text}}<br>%{{y:.4g}} GB/s<extra></extra>"
            fig.add_scatter(x=line["nbytes"], y=line[word], name=f"{line['name']} {word}", text=text, hovertemplate=hover,
                            mode="lines+markers", line={**style, "dash": dash}, marker=marker)  # fmt: skip
    fig.update_xaxes(**size_axis(n for line in lines for n in line["nbytes"]))
    fig.update_yaxes(title="GB/s", rangemode="tozero")
    fig.update_layout(template=template(), height=380)
    return fig
