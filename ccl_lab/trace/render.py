"""Small tables for notebooks and terminals, without pandas.

Is: rows -> HTML or aligned text. Is not: a widget. Everything that goes into HTML is escaped here.
Numbers of a column have the same decimals, so that they compare at a glance; thousands are separated.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

_DIGITS = 4  # of the largest number of a column
_FEW = 3  # decimals that a small number beside large ones can ask for
_LABELS = ("id", "rank", "node", "peer", "index")  # last words of columns whose integers are names, not amounts


def cell(value: Any) -> str:
    """A value as people read it: four digits of a float at least, thousands separated, `-` for nothing."""
    return cells([value])[0]


def cells(values: Sequence[Any], name: str = "") -> list[str]:
    """The cells of a column. Floats have the decimals that give the largest of them four digits and the
    smallest one at least one, where three decimals do; whole numbers of a label (`rank`, `op_id`) are not
    separated.

    >>> cells([190838.125, 0.0]), cells([0.04396, None]), cells([8388608], "nbytes"), cells([12345], "op_id")
    (['190,838', '0'], ['0.04396', '-'], ['8,388,608'], ['12345'])
    """
    sizes = [abs(v) for v in values if isinstance(v, float) and math.isfinite(v) and v]
    decimals = _decimals(max(sizes), min(sizes)) if sizes else 0
    label = name.rsplit("_", 1)[-1] in _LABELS
    return [_cell(value, decimals, label) for value in values]


def _decimals(largest: float, smallest: float) -> int:
    wanted = _DIGITS - 1 - math.floor(math.log10(largest))
    needed = min(-math.floor(math.log10(smallest)), _FEW)
    return max(wanted, needed, 0)


def _cell(value: Any, decimals: int, label: bool) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return str(value) if label else f"{value:,}"
    # Below a millionth of the unit zeros would have to be counted.
    return f"{value:.{_DIGITS}g}" if decimals > _DIGITS + 5 else f"{value:,.{decimals}f}"


def _columns(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[list[str]]:
    return [cells([row[i] for row in rows], name) for i, name in enumerate(head)]


def html_table(head: Sequence[str], rows: Sequence[Sequence[Any]], caption: str = "") -> str:
    """An HTML table; all text escaped. Heads may break after an underscore, so that tables fit a notebook."""
    title = f"<caption style='text-align:left'>{html.escape(caption)}</caption>" if caption else ""
    top = "".join(f"<th>{html.escape(name).replace('_', '_<wbr>')}</th>" for name in head)
    lines = zip(*_columns(head, rows), strict=True)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(v)}</td>" for v in line) + "</tr>" for line in lines)
    return f"<table>{title}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def text_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns aligned to the right, the first to the left."""
    lines = [list(head), *map(list, zip(*_columns(head, rows), strict=True))]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            v.ljust(w) if i == 0 else v.rjust(w) for i, (v, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
