"""The table of views: every name leads to a function, and nothing is loaded before it is drawn."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import ccl_lab
from ccl_lab import views
from ccl_lab.widgets import chart


@pytest.mark.parametrize("name", sorted(views.VIEWS))
def test_every_view_resolves(name: str) -> None:
    module, function = views.VIEWS[name].split(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_the_nouns_do_not_load_the_widgets() -> None:
    code = (
        "import sys, ccl_lab; ccl_lab.Topology, ccl_lab.Schedule, ccl_lab.Trace, ccl_lab.plan, ccl_lab.verify; "
        "print(sorted({'anywidget', 'ipywidgets', 'plotly', 'torch', 'pandas'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_bandwidth_lines_are_named_after_what_tells_traces_apart():
    topology = ccl_lab.Topology.cluster(nodes=4, gpus_per_node=1, nics_per_node=1)
    traces = [
        ccl_lab.simulate(ccl_lab.plan("all_reduce", topology, nbytes, algorithm=name), topology)
        for name in ("ring", "direct")
        for nbytes in (1024, 1 << 20)
    ]
    for records in (traces, [trace.stats().to_dict() for trace in traces]):
        lines = chart.spec(records)["lines"]
        assert {line["name"]: line["nbytes"] for line in lines} == {"ring": [1024, 1 << 20], "direct": [1024, 1 << 20]}


def test_an_axis_of_bytes_has_ticks_that_people_say():
    axis = chart.size_axis([1 << 30, 65536, 1 << 20, 1 << 20])
    assert (axis["tickvals"], axis["ticktext"]) == ([65536, 1 << 20, 1 << 30], ["64 KiB", "1 MiB", "1 GiB"])
    assert len(chart.size_axis([1 << k for k in range(36)])["tickvals"]) <= 9
    assert chart.size_axis([])["tickvals"] == []


def test_figures_of_plotly_take_the_looks_of_the_lab_when_asked(monkeypatch):
    io = pytest.importorskip("plotly.io")
    monkeypatch.setattr(io.templates, "default", io.templates.default)
    chart.plot_style()
    import plotly.graph_objects as go

    layout = go.Figure().layout.template.layout
    assert (layout.paper_bgcolor, layout.colorway[0], layout.legend.orientation) == ("rgba(0,0,0,0)", chart.COLORS[0], "v")
    assert chart.template().layout.legend.orientation == "h"  # what charts of bandwidth have stays as it was
