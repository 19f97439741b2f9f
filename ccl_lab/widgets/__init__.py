"""Views of ccl_lab in JupyterLab, Notebook and VS Code, and in one file without any of them.

Is: the functions that draw a Trace, Topology, Schedule or World; each returns a widget that a notebook shows.
Is not: drawing code (the browser's half is the bundle in static/). Every interaction leaves an ordinary value:
`.selection` is a Trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import units
from . import specs
from .export import export_html
from .view import View

if TYPE_CHECKING:
    from .live import Panel

__all__ = [
    "View",
    "bandwidth",
    "export_html",
    "heatmap",
    "panel",
    "schedule",
    "timeline",
    "topology",
    "trace_diff",
]


def timeline(trace: Any, *, schedule: Any = None, height: int | None = None, name: str = "trace") -> View:
    """The timeline of a trace: a lane per rank and channel, NIC, copy engine and computation.

    schedule: its ops are drawn below, linked. height: pixels of the lanes (default: what they need, at most 520).
    name: the variable that the Python shown after a click uses. Cost: a copy of the trace, 32 bytes a span.
    """
    views: list[dict[str, Any]] = [{"view": "timeline", "source": "a", "height": height}]
    data = {}
    if schedule is not None:
        views.append({"view": "schedule"})
        data["schedule"] = specs.schedule_spec(schedule)
    return _of_trace(trace, views, data, name)


def heatmap(trace: Any, topology: Any = None, *, height: int | None = None, name: str = "trace") -> View:
    """Gb/s of every NIC over time, sent and received, against its line rate. The cursor is that of the timeline."""
    return _of_trace(trace, [{"view": "heatmap", "source": "a", "height": height}], {}, name, topology)


def topology(topology: Any, *, trace: Any = None, faults: Any = None, name: str = "topology") -> View:
    """Nodes with their ranks, NICs and rails; with a trace, the rate of each NIC at the cursor.

    faults: {(node, nic): "down"} or an object with such a `.state()`, shown with a word and an icon.
    """
    data = {"topology": specs.topology_spec(topology), "faults": _faults(faults)}
    views = [{"view": "topology", "source": "a" if trace is not None else None}]
    if trace is None:
        return View(views, data=data, link=specs.link_of(topology), name=name, summary=repr(topology))
    return _of_trace(trace, views, data, name, topology)


def schedule(schedule: Any, *, trace: Any = None, name: str = "schedule") -> View:
    """Steps by ranks: what each rank does at each step, and the way of any chunk you click."""
    data = {"schedule": specs.schedule_spec(schedule)}
    if trace is not None:
        return _of_trace(trace, [{"view": "schedule", "source": "a"}], data, name)
    text = f"{data['schedule']['algorithm']} {data['schedule']['collective']} of {schedule.n_ranks} ranks"
    return View(
        [{"view": "schedule"}],
        data=data,
        link=specs.link_of(schedule),
        name=name,
        summary=f"<schedule {text}>",
    )


def trace_diff(
    a: Any, b: Any = None, *, labels: tuple[str, str] = ("before", "after"), rows: int = 40
) -> View:
    """Two traces above each other on one axis from their begins, and the ops that changed most.

    a: a Trace, or a TraceDiff (then `b` is left out). labels: what to call them. rows: how many changes to list.
    """
    from .changes import changes, lined_up

    found = a if b is None else None
    a, b = (found.a, found.b) if found is not None else (a, b)
    streams = {"a": specs.stream_of(a, "a"), "b": specs.stream_of(b, "b")}
    views = [
        {"view": "timeline", "source": key, "title": label, "height": 230, "folded": True}
        for key, label in zip("ab", labels, strict=False)
    ]
    data = {
        "changes": {**changes(found if found is not None else lined_up(a, b), rows), "labels": list(labels)}
    }
    return View([*views, {"view": "changes"}], streams=streams, traces={"a": a, "b": b}, name="trace", data=data,
                metas={"a": specs.meta_spec(a), "b": specs.meta_spec(b)}, summary="<diff of two traces>")  # fmt: skip


def bandwidth(records: Any, *, backend: str = "plotly") -> Any:
    """algbw and busbw against message size, a line per algorithm.

    records: dicts (or a data frame) with nbytes, algbw_gbytes_per_s, busbw_gbytes_per_s and what tells the lines apart
    (algorithm, source, ranks). backend: "plotly" (a figure that follows the theme) or "native" (small, for one-file exports).
    """
    from .chart import figure, spec

    if backend == "native":
        return View([{"view": "bandwidth"}], data={"bandwidth": spec(records)}, summary="<bandwidth>")
    return figure(records)


def panel(world: Any, **options: Any) -> Panel:
    """Everything of a running world together, live: topology, NIC heatmap, timeline, and the row of controls."""
    from .live import Panel

    return Panel(world, **options)


def _faults(faults: Any) -> list[dict[str, Any]]:
    state = faults.state() if hasattr(faults, "state") else faults
    if not isinstance(state, dict):
        return []
    return [{"node": int(key[0]), "nic": int(key[1]), "state": str(word)} for key, word in state.items()]


def _of_trace(
    trace: Any, views: list[dict[str, Any]], data: dict[str, Any], name: str, topology: Any = None
) -> View:
    stream = specs.stream_of(trace, "a")
    topology = (
        topology if topology is not None else specs.topology_from_meta(dict(getattr(trace, "meta", {}) or {}))
    )
    if "topology" not in data:
        found = specs.topology_spec(topology)
        data["topology"] = found if found is not None else specs.topology_from_columns(trace.columns)
    meta = specs.meta_spec(trace, topology)
    n = len(trace.columns["rank"])
    what = " ".join(str(meta[k]) for k in ("source", "algorithm", "collective") if meta.get(k))
    size = f", {units.format_size(int(meta['nbytes']))}" if meta.get("nbytes") else ""
    return View(views, streams={"a": stream}, traces={"a": trace}, metas={"a": meta}, data=data, link=specs.link_of(trace),
                name=name, summary=f"<{views[0]['view']}: {what or 'trace'}{size}, {n} spans>")  # fmt: skip
