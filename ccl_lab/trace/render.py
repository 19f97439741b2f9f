"""Small tables for notebooks and terminals, without pandas.

Is: rows -> HTML or aligned text. Is not: a widget. Everything that goes into HTML is escaped here.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any


def cell(value: Any) -> str:
    """A value as people read it: four digits of a float, `-` for nothing."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def html_table(head: Sequence[str], rows: Sequence[Sequence[Any]], caption: str = "") -> str:
    """An HTML table; all text escaped."""
    title = f"<caption style='text-align:left'>{html.escape(caption)}</caption>" if caption else ""
    top = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell(v))}</td>" for v in row) + "</tr>" for row in rows
    )
    return f"<table>{title}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def text_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns aligned to the right, the first to the left."""
    lines = [list(head)] + [[cell(v) for v in row] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            v.ljust(w) if i == 0 else v.rjust(w) for i, (v, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
