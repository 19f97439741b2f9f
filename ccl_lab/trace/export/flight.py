"""Traces as dumps of PyTorch's flight recorder (JSON), one file a rank.

Is: the collectives of each rank in the form that torch's own analyser and importers/flight.py read. Is not: what happened inside
of a collective.
Invariants: one entry per collective of the rank, in order of begin; discovered times are the exact ones; a collective that
had not ended has none.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from ..columns import SpanKind, SpanStatus, Track
from ..stragglers import op_of

if TYPE_CHECKING:
    from ..model import Trace

_VERSION = "2.10"
_TIMEOUT_MS = 600_000
_DTYPES = {
    "float32": "Float",
    "float64": "Double",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int32": "Int",
    "int64": "Long",
    "int16": "Short",
    "int8": "Char",
    "uint8": "Byte",
}


def encode_ranks(trace: Trace) -> dict[int, bytes]:
    """Rank -> bytes of its dump."""
    kind, imported = trace["kind"], trace.meta.get("source") == "imported"
    mine = kind == SpanKind.collective
    if imported:
        # sends and receives of a foreign job; our own puts are parts of collectives
        mine |= (
            (trace["track"] == Track.channel)
            & np.isin(kind, [SpanKind.put, SpanKind.wait])
            & (trace["peer"] >= 0)
        )
    rows = np.flatnonzero(mine & (trace["rank"] >= 0))
    rows = rows[np.lexsort((trace["coll_id"][rows], trace["begin_ns"][rows]))]
    ranks = trace["rank"][rows]
    return {rank: _dump(trace, rows[ranks == rank].tolist(), rank) for rank in np.unique(ranks).tolist()}


def _dump(trace: Trace, rows: list[int], rank: int) -> bytes:
    entries = [_entry(trace, row, number, rank) for number, row in enumerate(rows)]
    ids = [entry["collective_seq_id"] for entry in entries]
    ended = [entry["collective_seq_id"] for entry in entries if entry["state"] == "completed"]
    status = {
        "last_enqueued_collective": max(ids, default=-1),
        "last_started_collective": max(ids, default=-1),
        "last_completed_collective": max(ended, default=-1),
    }
    ranks = str(list(range(trace.n_ranks))) if trace.n_ranks <= 4096 else ""
    dump = {
        "version": _VERSION,
        "rank": rank,
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "pg_status": {"0": status},
        "entries": entries,
    }
    return (json.dumps(dump, indent=1) + "\n").encode()


def _entry(trace: Trace, row: int, number: int, rank: int) -> dict[str, Any]:
    c = trace.columns
    coll, begin, end = int(c["coll_id"][row]), int(c["begin_ns"][row]), int(c["end_ns"][row])
    open_still = c["status"][row] == SpanStatus.open
    peer, kind = int(c["peer"][row]), int(c["kind"][row])
    is_p2p = kind in (SpanKind.put, SpanKind.wait)
    what = op_of(trace, coll)
    if is_p2p:
        what = f"send {rank}->{peer}" if kind == SpanKind.put else f"recv {rank}<-{peer}"
    dtype = str(trace.meta.get("dtype") or "uint8")
    size = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2}.get(
        dtype, 1
    )
    nbytes = int(c["nbytes"][row])
    if nbytes % size:
        dtype, size = "uint8", 1
    sizes, types = [[nbytes // size]], [_DTYPES.get(dtype, "Byte")]
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": coll,
        "p2p_seq_id": coll if is_p2p else 0,
        "op_id": number + 1,
        "profiling_name": f"ccl_lab:{what or 'communication'}",
        "input_sizes": sizes,
        "input_dtypes": types,
        "output_sizes": sizes,
        "output_dtypes": types,
        "time_created_ns": begin,
        "duration_ms": None if open_still else (end - begin) / 1e6,
        "state": "started" if open_still else "completed",
        "time_discovered_started_ns": begin,
        "time_discovered_completed_ns": None if open_still else end,
        "retired": not open_still,
        "timeout_ms": _TIMEOUT_MS,
        "is_p2p": is_p2p,
    }
