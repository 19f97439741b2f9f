"""The table of views: every name leads to a function, and nothing is loaded before it is drawn."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from ccl_lab import views


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
