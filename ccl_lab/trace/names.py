"""What spans and their enum values are called.

Is: the short name of a span, by its kind and peer or, in foreign traces, by the table `meta["names"]` that the column `name`
refers to (0: none). Is not: a drawing.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from .columns import SpanKind, SpanStatus, Track

if TYPE_CHECKING:
    from .model import Trace

ENUMS: dict[str, type[IntEnum]] = {"track": Track, "kind": SpanKind, "status": SpanStatus}


def span_names(trace: Trace) -> list[str]:
    """A short name per span, made once per distinct (kind, track, peer). Cost: one sort."""
    if not len(trace):
        return []
    c = trace.columns
    keys = np.stack([c[column].astype(np.int64) for column in ("kind", "track", "peer", "name")], axis=1)
    distinct, which = np.unique(keys, axis=0, return_inverse=True)
    given = _names(trace)
    names = [
        given[name] if 0 < name < len(given) else _name(kind, track, peer)
        for kind, track, peer, name in distinct.tolist()
    ]
    return [names[i] for i in which.reshape(-1).tolist()]


def name_of(trace: Trace, row: int) -> str:
    """The name a foreign trace gave this span; "" where there is none."""
    names, number = _names(trace), int(trace.columns["name"][row])
    return names[number] if 0 < number < len(names) else ""


def _names(trace: Trace) -> list[str]:
    """The names that spans refer to by number; the first stands for none."""
    names = trace.meta.get("names")
    return [str(name) for name in names] if isinstance(names, list) else []


def with_common_names(parts: list[Trace]) -> list[Trace]:
    """The traces with one table of names for all."""
    tables = [_names(part) for part in parts]
    if all(table == tables[0] for table in tables):
        return parts
    numbers: dict[str, int] = {"": 0}
    moved = []
    for part, table in zip(parts, tables, strict=True):
        number = np.array([0] + [numbers.setdefault(name, len(numbers)) for name in table[1:]], np.uint32)
        name = part.columns["name"]
        moved.append((part, number[np.where(name < len(number), name, 0)]))
    return [part.replace(name=name, meta=part.meta | {"names": list(numbers)}) for part, name in moved]


def _name(kind: int, track: int, peer: int) -> str:
    name = str(label("kind", kind))
    if peer < 0:
        return name
    towards_us = track == Track.nic_rx or kind in (SpanKind.wait, SpanKind.get)
    return f"{name} {'←' if towards_us else '→'} {peer}"


def label(column: str, value: int) -> Any:
    """The enum name of a value of that column; the number where it has none."""
    enum = ENUMS.get(column)
    if enum is None:
        return value
    try:
        return enum(value).name
    except ValueError:
        return value
