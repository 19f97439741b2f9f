"""The seam by which a value draws itself without knowing the widgets.

Is: a table from the name of a view to the function that draws it, loaded when first asked for, so that nouns stay
below the widgets and a headless rank never imports them. Is not: drawing code.
"""

from __future__ import annotations

import importlib
from typing import Any

VIEWS = {
    "timeline": "ccl_lab.widgets:timeline",
    "heatmap": "ccl_lab.widgets:heatmap",
    "overlap": "ccl_lab.widgets:overlap",
    "topology": "ccl_lab.widgets:topology",
    "schedule": "ccl_lab.widgets:schedule",
    "trace_diff": "ccl_lab.widgets:trace_diff",
    "bandwidth": "ccl_lab.widgets:bandwidth",
    "panel": "ccl_lab.widgets:panel",
}


def draw(view: str, value: Any, **options: Any) -> Any:
    """Draws `value` in the named view; returns a widget."""
    module, function = VIEWS[view].split(":")
    return getattr(importlib.import_module(module), function)(value, **options)
