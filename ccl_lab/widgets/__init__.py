"""Views of ccl_lab in JupyterLab, Notebook and VS Code, and in one file without any of them.

Is: the functions that draw a Trace, Topology, Schedule or World; each returns a widget that a notebook shows.
Is not: drawing code (the browser's half is the bundle in static/). Every interaction leaves an ordinary value:
`.selection` is a Trace.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import units
from ..errors import UsageError
from . import exposed, specs
from .chart import plot_style, size_axis
from .export import export_html
from .faults import ICONS
from .view import View

if TYPE_CHECKING:
    from .live import Panel

__all__ = [
    "View",
    "bandwidth",
    "export_html",
    "heatmap",
    "overlap",
    "panel",
    "plot_style",
    "schedule",
    "size_axis",
    "timeline",
    "topology",
    "trace_diff",
]


def timeline(
    trace: Any,
    *,
    schedule: Any = None,
    height: int | None = None,
    folded: bool | None = None,
    name: str = "trace",
) -> View:
    """The timeline of a trace: a lane per rank and channel, NIC, copy engine and computation.

    Where ranks compute, communication that no computation hides is hatched, a folded rank is a stacked row, and a
    sentence above says what is exposed. folded: a row per rank at first (default: where there are many lanes).
    schedule: its ops are drawn below, linked. height: pixels of the lanes (default: what they need, at most 520).
    name: the variable that the Python shown after a click uses. Cost: a copy of the trace, 32 bytes a span.
    """
    views: list[dict[str, Any]] = [{"view": "timeline", "source": "a", "height": height, "folded": folded}]
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


def overlap(trace: Any, other: Any = None, *, labels: tuple[str, str] | None = None, name: str = "trace") -> View:
    """What is exposed: a stacked bar per rank (computation, exposed communication and copies, idle), with the numbers.

    other: a second trace, whose bars stand below those of the first; labels: what to call the two. A click on the worst op
    leaves it as `.selection`. Raises UsageError where a trace has no computation that could hide anything.
    """
    traces = {"a": trace} if other is None else {"a": trace, "b": other}
    found = {key: exposed.exposure_of(each) for key, each in traces.items()}
    for key, each in found.items():
        if each is None:
            where = "the trace" if other is None else f"the {'first' if key == 'a' else 'second'} trace"
            raise UsageError(
                f"{where} has no computation that could hide communication: expected spans of kind compute. "
                "Run or simulate a schedule with compute ops, or draw the time of ranks with trace.stats()."
            )
    labels = labels or _labels(trace, other)
    data = {"exposure": _exposures(traces, found, labels)}
    metas = {key: specs.meta_spec(each) for key, each in traces.items()}
    view = {"view": "overlap", "sources": list(traces), "labels": list(labels), "metas": metas}
    words = data["exposure"]["difference" if other is not None else "a"]
    return View([view], traces=traces, data=data, name=name, link=specs.link_of(trace),
                summary=f"<overlap: {words if isinstance(words, str) else words['words']}>")  # fmt: skip


def _labels(a: Any, b: Any) -> tuple[str, str]:
    """What tells the two traces apart: their algorithms, without the words both begin with, else where they are from."""

    def said(word: str) -> tuple[str, str]:
        return tuple(str((getattr(each, "meta", None) or {}).get(word) or "") for each in (a, b))  # type: ignore[return-value]

    one, two = said("algorithm")
    if not one or not two or one == two:
        one, two = said("source")
        return (one, two) if one and two and one != two else ("before", "after")
    common = os.path.commonprefix([one, two])
    common = common[: common.rfind("_") + 1]
    return (one[len(common) :], two[len(common) :])


def _exposures(traces: dict[str, Any], found: dict[str, Any], labels: tuple[str, str]) -> dict[str, Any]:
    """What `data["exposure"]` of a view holds: per source, and the difference in words where there are two."""
    specs_ = {
        key: exposed.exposure_spec(each, int(np.min(traces[key].columns["begin_ns"])))
        for key, each in found.items()
        if each is not None
    }
    if len(specs_) == 2:
        # One measure for both: what computing took where it was disturbed least.
        best = min(found[key].time_ns - found[key].ect_ns() for key in specs_)
        for key, each in specs_.items():
            each["ect_ns"] = found[key].ect_ns(best)
        return {**specs_, "difference": exposed.difference(found["a"], found["b"], labels)}
    return specs_


def trace_diff(
    a: Any, b: Any = None, *, labels: tuple[str, str] | None = None, rows: int = 40
) -> View:
    """Two traces above each other on one axis from their begins, what that did to exposure, and the ops that changed most.

    a: a Trace, or a TraceDiff (then `b` is left out). labels: what to call them (default: their algorithms where those
    differ, else simulated and measured where one is, else before and after). rows: how many changes to list; of two different schedules no ops are compared.
    """
    from .changes import changes, lined_up

    found = a if b is None else None
    a, b = (found.a, found.b) if found is not None else (a, b)
    labels = labels or _labels(a, b)
    traces = {"a": a, "b": b}
    streams = {"a": specs.stream_of(a, "a"), "b": specs.stream_of(b, "b")}
    views: list[dict[str, Any]] = [
        {"view": "timeline", "source": key, "title": label, "max_height": 230, "folded": True}
        for key, label in zip("ab", labels, strict=False)
    ]
    data: dict[str, Any] = {}
    exposures = {key: exposed.exposure_of(each) for key, each in traces.items()}
    data["exposure"] = _exposures(traces, exposures, labels)
    if "difference" in data["exposure"]:
        views.append({"view": "overlap", "sources": ["a", "b"], "labels": list(labels)})
    if exposed.same_schedule(a, b) or "difference" not in data["exposure"]:
        data["changes"] = {**changes(found if found is not None else lined_up(a, b), rows), "labels": list(labels)}
        views.append({"view": "changes"})
    said = f": {data['exposure']['difference']}" if "difference" in data["exposure"] else ""
    return View(views, streams=streams, traces=traces, name="trace", data=data,
                metas={"a": specs.meta_spec(a), "b": specs.meta_spec(b)}, summary=f"<diff of two traces{said}>")  # fmt: skip


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
    return [
        {"node": int(key[0]), "nic": int(key[1]), "state": str(word), "icon": ICONS.get(str(word), "!")}
        for key, word in state.items()
    ]


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
    if any(view["view"] == "timeline" for view in views):
        data["exposure"] = _exposures({"a": trace}, {"a": exposed.exposure_of(trace)}, ("", ""))
    n = len(trace.columns["rank"])
    what = " ".join(str(meta[k]) for k in ("source", "algorithm", "collective") if meta.get(k))
    size = f", {units.format_size(int(meta['nbytes']))}" if meta.get("nbytes") else ""
    return View(views, streams={"a": stream}, traces={"a": trace}, metas={"a": meta}, data=data, link=specs.link_of(trace),
                name=name, summary=f"<{views[0]['view']}: {what or 'trace'}{size}, {n} spans>")  # fmt: skip
