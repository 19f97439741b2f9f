"""The ops that changed most between two traces, as rows for a table.

Is: join by (rank, op_id, track) and sort. Is not: statistics (`trace.diff`), which it uses where it is given one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..trace.columns import SpanKind, Track


def lined_up(a: Any, b: Any) -> Any:
    """The TraceDiff of two traces; for anything that is no Trace, the same columns joined here."""
    if hasattr(a, "diff"):
        return a.diff(b)
    return _join(a.columns, b.columns)


def _per_op(columns: Any) -> dict[str, np.ndarray]:
    """One row per (rank, op_id, track): first begin (after the trace's begin) and time from first begin to last end."""
    has = np.asarray(columns["op_id"]) >= 0
    c = {name: np.asarray(column)[has] for name, column in columns.items()}
    key = (c["rank"].astype(np.int64) << 40) | (c["op_id"].astype(np.int64) << 8) | c["track"]
    unique, first, group = np.unique(key, return_index=True, return_inverse=True)
    begin = np.full(len(unique), np.iinfo(np.int64).max)
    end = np.full(len(unique), np.iinfo(np.int64).min)
    np.minimum.at(begin, group, c["begin_ns"])
    np.maximum.at(end, group, c["end_ns"])
    origin = int(np.min(columns["begin_ns"])) if len(columns["begin_ns"]) else 0
    out = {name: c[name][first] for name in ("rank", "op_id", "track", "kind", "peer", "step")}
    return {**out, "key": unique, "begin": begin - origin, "duration": end - begin}


def _join(a: Any, b: Any) -> dict[str, Any]:
    left, right = _per_op(a), _per_op(b)
    _, i, j = np.intersect1d(left["key"], right["key"], assume_unique=True, return_indices=True)
    ops = {name: left[name][i] for name in ("rank", "op_id", "track", "kind", "peer", "step")}
    ops |= {"duration_a_ns": left["duration"][i], "duration_b_ns": right["duration"][j]}
    ops |= {
        "duration_delta_ns": right["duration"][j] - left["duration"][i],
        "begin_delta_ns": right["begin"][j] - left["begin"][i],
    }
    return {"ops": ops, "only_a": len(left["key"]) - len(i), "only_b": len(right["key"]) - len(j)}


def changes(diff: Any, rows: int) -> dict[str, Any]:
    """The `rows` largest changes of duration, largest first; times in ns.

    Returns {"rows": [{op, rank, track, kind, step, peer, a, b, delta, moved}], "joined", "only_a", "only_b"}.
    """
    get = diff.get if isinstance(diff, dict) else lambda name: getattr(diff, name)
    ops = get("ops")
    delta = np.asarray(ops["duration_delta_ns"])
    order = np.argsort(-np.abs(delta), kind="stable")[:rows]
    out = []
    for i in order.tolist():
        out.append({
            "op": int(ops["op_id"][i]), "rank": int(ops["rank"][i]), "track": Track(int(ops["track"][i])).name,
            "kind": SpanKind(int(ops["kind"][i])).name, "step": int(ops["step"][i]), "peer": int(ops["peer"][i]),
            "a": int(ops["duration_a_ns"][i]), "b": int(ops["duration_b_ns"][i]), "delta": int(delta[i]),
            "moved": int(ops["begin_delta_ns"][i]),
        })  # fmt: skip
    return {"rows": out, "joined": len(delta), "only_a": int(get("only_a")), "only_b": int(get("only_b"))}
