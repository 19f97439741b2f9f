"""Spans on their way to the browser: numbered lanes, 16-byte records, batches of at most 1 MiB.

Is: trace columns -> (content, wire bytes, detail bytes). Is not: transport (see `stream`).
Invariants: a lane keeps its number for the life of a source; times of a batch are ticks after the batch's origin, and a
tick is 1 ns unless a span or the batch is too long for 32 bits.

    wire     WIRE_DTYPE, generated from the schema: begin, length, op_id, lane, kind, status
    detail   DETAIL_DTYPE: nbytes f64, peer i32, step i32, row by row beside the wire records
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..trace.columns import COLUMNS, WIRE_DTYPE

DETAIL_DTYPE = np.dtype([("nbytes", "<f8"), ("peer", "<i4"), ("step", "<i4")])
MAX_MESSAGE_BYTES = 1 << 20
BATCH_SPANS = (MAX_MESSAGE_BYTES - 4096) // (WIRE_DTYPE.itemsize + DETAIL_DTYPE.itemsize)
MAX_LANES = 1 << 16
_U32 = 2**32 - 1

Columns = Mapping[str, np.ndarray]


class Lanes:
    """The lane table of one source: (node, rank, track, index) -> number."""

    def __init__(self) -> None:
        self._number: dict[int, int] = {}
        self._rows: list[tuple[int, int, int, int]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def numbers(self, columns: Columns) -> np.ndarray:
        """The lane of each span, u16[n]; new lanes are added. Raises OverflowError beyond 65,536 lanes."""
        node, rank = columns["node"].astype(np.int64), columns["rank"].astype(np.int64)
        track, index = columns["track"].astype(np.int64), columns["index"].astype(np.int64)
        key = (((node & 0xFFFFF) << 20 | (rank & 0xFFFFF)) << 8 | track) << 15 | (index & 0x7FFF)
        unique, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        numbers = np.empty(len(unique), np.int64)
        for i, (value, row) in enumerate(zip(unique.tolist(), first.tolist(), strict=False)):
            if value not in self._number:
                if len(self._rows) >= MAX_LANES:
                    raise OverflowError(
                        "a timeline holds 65,536 lanes; select ranks first: trace.where(rank=range(64))"
                    )
                self._number[value] = len(self._rows)
                self._rows.append((int(node[row]), int(rank[row]), int(track[row]), int(index[row])))
            numbers[i] = self._number[value]
        return numbers[inverse].astype(np.uint16)

    def table(self, start: int = 0, stop: int | None = None) -> dict[str, list[int]]:
        """Lanes from number `start` to `stop` (not included), as columns."""
        rows = self._rows[start:stop]
        return {name: [row[i] for row in rows] for i, name in enumerate(("node", "rank", "track", "index"))}

    def rows(self) -> list[tuple[int, int, int, int]]:
        """(node, rank, track, index) by number."""
        return list(self._rows)


def from_records(spans: np.ndarray) -> dict[str, np.ndarray]:
    """Structured spans as columns; absent columns are -1 (step, peer, op_id) or 0."""
    names = spans.dtype.names or ()
    missing = {"step": -1, "peer": -1, "op_id": -1}
    return {
        name: spans[name] if name in names else np.full(len(spans), missing.get(name, 0), dtype)
        for name, dtype in COLUMNS.items()
    }


def encode(columns: Columns, lane: np.ndarray, origin_ns: int) -> list[tuple[dict[str, Any], bytes, bytes]]:
    """Batches of the given spans, in their order. Cost: a copy of the columns.

    Returns (content, wire, detail) of each; content holds count, origin_ns (after `origin_ns`), tick_ns.
    """
    out = []
    n = len(lane)
    for low in range(0, n, BATCH_SPANS):
        part = slice(low, min(n, low + BATCH_SPANS))
        out.append(_encode_one(columns, lane, origin_ns, part))
    return out


def _encode_one(
    columns: Columns, lane: np.ndarray, origin_ns: int, part: slice
) -> tuple[dict[str, Any], bytes, bytes]:
    begin = columns["begin_ns"][part].astype(np.int64)
    length = np.maximum(columns["end_ns"][part].astype(np.int64) - begin, 0)
    base = int(begin.min())
    longest = max(int(begin.max()) - base, int(length.max()))
    tick = 1
    while longest // tick > _U32:
        tick *= 2
    wire = np.zeros(len(begin), WIRE_DTYPE)
    wire["begin"] = (begin - base) // tick
    wire["length"] = length // tick
    for name in ("op_id", "kind", "status"):
        wire[name] = columns[name][part]
    wire["lane"] = lane[part]
    detail = np.zeros(len(begin), DETAIL_DTYPE)
    for name in ("nbytes", "peer", "step"):
        detail[name] = columns[name][part]
    content = {"count": len(begin), "origin_ns": base - origin_ns, "tick_ns": tick}
    return content, wire.tobytes(), detail.tobytes()
