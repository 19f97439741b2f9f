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
