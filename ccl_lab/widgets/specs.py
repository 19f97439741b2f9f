"""What the browser needs of a value: plain dicts and binary columns of a trace, topology or schedule.

Is: value -> spec. Is not: a widget. Works with anything that has the attributes it reads, so no noun is imported, only
the names of its columns.
"""

from __future__ import annotations

import uuid
import weakref
from typing import Any

import numpy as np

from ..ir.table import OP_COLUMNS, SOURCE_COLUMNS
from .faults import spec_of
from .stream import SpanStream

META_KEYS = (
    "source",
    "collective",
    "algorithm",
    "n_ranks",
    "nbytes",
    "dtype",
    "redop",
    "time_us",
    "drops",
    "emulated",
    "device",
    "labels",
)
MAX_SCHEDULE_OPS = 200_000
_links: dict[int, tuple[Any, str]] = {}


def link_of(value: Any) -> str:
    """A name shared by all views of one value, so that their cursors move together."""
    key = id(value)
    known = _links.get(key)
    if known is not None and known[0]() is value:
        return known[1]
    name = uuid.uuid4().hex
    try:
        _links[key] = (weakref.ref(value, lambda _: _links.pop(key, None)), name)
    except TypeError:
        pass
    return name


def meta_spec(trace: Any, topology: Any = None) -> dict[str, Any]:
    """The part of a trace's meta that a picture shows."""
    meta = dict(getattr(trace, "meta", {}) or {})
    out = {key: _plain(meta[key]) for key in META_KEYS if meta.get(key) is not None}
    where = meta.get("topology")
    if isinstance(where, dict) and "emulated" in where:
        out.setdefault("emulated", bool(where["emulated"]))
    if topology is not None:
        out.setdefault("emulated", bool(getattr(topology, "emulated", False)))
    if out.get("source") == "simulated":
        out.pop("emulated", None)
    if isinstance(meta.get("faults"), (list, tuple)):
        out["faults"] = spec_of(list(meta["faults"]), _node_of(trace, topology))
    return out


def _node_of(trace: Any, topology: Any) -> list[int]:
    """The node of each rank, from the topology or else from the spans."""
    if topology is not None:
        return np.asarray(topology.node_of).astype(int).tolist()
    return topology_from_columns(trace.columns)["node_of"] if hasattr(trace, "columns") else []


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def stream_of(trace: Any, source: str) -> SpanStream:
    """All spans of a trace in order of begin."""
    columns = trace.columns
    stream = SpanStream(source)
    order = np.argsort(columns["begin_ns"], kind="stable")
    stream.append({name: column[order] for name, column in columns.items()}, keep_all=True)
    return stream


def topology_spec(topology: Any) -> dict[str, Any] | None:
    """Nodes, ranks, NICs and their line rates; accepts a Topology or the dict a trace's meta holds."""
    if topology is None:
        return None
    nics = int(topology.nics_per_node)
    return {
        "name": str(getattr(topology, "name", "")),
        "n_nodes": int(topology.n_nodes),
        "n_ranks": int(topology.n_ranks),
        "node_of": np.asarray(topology.node_of).astype(int).tolist(),
        "local_of": np.asarray(topology.local_of).astype(int).tolist(),
        "nics_per_node": nics,
        "nic_gbits": np.asarray(topology.nic_gbits, float).tolist(),
        "rails": bool(getattr(topology, "rails", True)),
        "emulated": bool(getattr(topology, "emulated", False)),
        "device": str(getattr(topology, "device", "cpu")),
    }


def topology_from_meta(meta: dict[str, Any]) -> Any:
    """The Topology a trace was made on, or None where its meta does not say."""
    data = meta.get("topology")
    if not isinstance(data, dict):
        return None
    from ..errors import CclError
    from ..topo import Topology

    try:
        return Topology.from_dict(data)
    except CclError:
        return None


def topology_from_columns(columns: Any) -> dict[str, Any]:
    """What the spans alone say of nodes and NICs; line rates unknown (0)."""
    rank, node = np.asarray(columns["rank"]), np.asarray(columns["node"])
    is_nic = np.isin(columns["track"], (1, 2))
    n_ranks = int(rank.max()) + 1 if len(rank) else 0
    n_nodes = int(node.max()) + 1 if len(node) else 0
    nics = int(np.asarray(columns["index"])[is_nic].max()) + 1 if is_nic.any() else 0
    node_of = np.zeros(n_ranks, int)
    node_of[rank[rank >= 0]] = node[rank >= 0]
    local_of = [int((node_of[:r] == node_of[r]).sum()) for r in range(n_ranks)]
    return {"name": "", "n_nodes": n_nodes, "n_ranks": n_ranks, "node_of": node_of.tolist(), "local_of": local_of,
            "nics_per_node": nics, "nic_gbits": [0.0] * (n_nodes * nics), "rails": True, "emulated": False, "device": ""}  # fmt: skip


def schedule_spec(schedule: Any) -> dict[str, Any]:
    """The op table as binary columns; of a very large one, the first ranks that fit."""
    ops = schedule.ops
    rank = np.asarray(ops.rank)
    keep = np.arange(len(rank))
    shown = int(schedule.n_ranks)
    if len(keep) > MAX_SCHEDULE_OPS:
        shown = max(1, int(np.searchsorted(np.cumsum(np.bincount(rank)), MAX_SCHEDULE_OPS)))
        keep = np.flatnonzero(rank < shown)[:MAX_SCHEDULE_OPS]
    columns = {name: np.asarray(getattr(ops, name))[keep].astype("<i4").tobytes() for name in OP_COLUMNS}
    sources = {name: np.asarray(getattr(ops, name)).astype("<i4").tobytes() for name in SOURCE_COLUMNS}
    return {
        "collective": _name(schedule.collective),
        "algorithm": str(schedule.algorithm),
        "n_ranks": int(schedule.n_ranks),
        "shown_ranks": shown,
        "n_channels": int(getattr(schedule, "n_channels", 1)),
        "parts": int(getattr(schedule, "parts", 1)),
        "nbytes": int(getattr(schedule, "nbytes", 0) or 0),
        "dtype": _name(getattr(schedule, "dtype", "")),
        "reasons": [str(reason) for reason in getattr(schedule, "reasons", ())],
        "timetable": bool(getattr(schedule, "timetable", False)),
        "op_id": keep.astype("<i4").tobytes(),
        "columns": columns,
        "sources": sources,
    }


def _name(value: Any) -> str:
    return getattr(value, "name", None) or str(value)
