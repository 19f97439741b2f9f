"""A small table of results: equally long numpy columns with rows as people read them.

Is: what statistics and diffs hand out per collective, rank, NIC or op. Is not: a dataframe; convert with
`to_dict`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import UsageError, suggest
from .render import html_table, text_table

_ROWS = 20


class Table:
    """Columns by name, all of one length, read-only in spirit. `table["time_us"]` is an array."""

    __slots__ = ("columns", "title")

    def __init__(self, title: str, columns: Mapping[str, np.ndarray]) -> None:
        self.title = title
        self.columns = {name: np.asarray(values) for name, values in columns.items()}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.columns:
            raise UsageError(f"{self.title}: no column {name!r}.{suggest(name, self.columns)}")
        return self.columns[name]

    def take(self, rows: np.ndarray) -> Table:
        """The rows a mask, slice or index array selects."""
        return Table(self.title, {name: values[rows] for name, values in self.columns.items()})

    def rows(self) -> list[dict[str, Any]]:
        """One dict per row; NaN becomes None."""
        plain = {name: _plain(values) for name, values in self.columns.items()}
        return [dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True)]

    def to_dict(self) -> dict[str, list[Any]]:
        """Column name -> list of plain values; NaN becomes None."""
        return {name: _plain(values) for name, values in self.columns.items()}

    def text(self, limit: int = _ROWS) -> str:
        """Aligned columns, at most `limit` rows."""
        rows = [list(row.values()) for row in self.take(np.arange(min(limit, len(self)))).rows()]
        more = f"\n… {len(self) - limit} more" if len(self) > limit else ""
        return text_table(list(self.columns), rows) + more

    def __repr__(self) -> str:
        return f"{self.title} ({len(self)})\n{self.text()}"

    def _repr_html_(self) -> str:
        rows = [list(row.values()) for row in self.take(np.arange(min(_ROWS, len(self)))).rows()]
        more = f" (first {_ROWS} of {len(self)})" if len(self) > _ROWS else ""
        return html_table(list(self.columns), rows, caption=self.title + more)


def _plain(values: np.ndarray) -> list[Any]:
    if values.dtype.kind == "f":
        return [None if value != value else value for value in values.tolist()]
    return values.tolist()
