"""Reads Chakra execution traces (.et): the graph of one rank as spans.

Is: from a varint-delimited file to a Part, with the file's durations or with others (replay). Is not: where other durations come from.
Invariants: any bytes give a Part or a DecodeError naming node and byte.

    varint length, GlobalMetadata {1 version, 2 attr} ; then for each node: varint length, Node {1 id, 2 name, 3 type, 4 ctrl_deps,
    5 data_deps, 6 start_time_micros, 7 duration_micros, 8 inputs, 9 outputs, 10 attr}
    type: 2, 3 memory load and store, 4 computation, 5 send, 6 receive, 7 collective.  attr: {1 name, 3 … 31 a value}

What the device did counts; where the file has only host operations (is_cpu_op), these do. Most files have durations
and no times: then each node begins when the data it depends on are there and its lane (computation, communication, memory) is
free, in the order of the file. That is a layout, not a measurement, and meta says so. Our own files carry whole ns beside
the µs of the format.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import DecodeError
from .classes import Classifier, SpanClass
from .job import MAX_RANKS, Comm, Doing, Part, op_word, rank_in_name
from .protobuf import fields, numbers, signed, varint

LOAD, STORE, COMPUTE, SEND, RECV, COLLECTIVE = 2, 3, 4, 5, 6, 7
COLLECTIVES = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter",
    "barrier",
)
_MAX_US = 2**52
_MAX_NODES = 20_000_000


def read_chakra(data: bytes, where: str, classifier: Classifier) -> Part:
    """The rank in an .et file."""
    meta, nodes = _nodes(data, where)
    known = [node for node in nodes if node["type"] in (LOAD, STORE, COMPUTE, SEND, RECV, COLLECTIVE)]
    device = [node for node in known if not node["attr"].get("is_cpu_op")]
    timed = [node for node in device if node["duration"] > 0 or "begin_ns" in node["attr"]]
    notes = []
    if not timed:
        timed = [node for node in known if node["duration"] > 0]
        if timed:
            notes.append("no device operation has a duration: what the host did is shown")
    if any(node["start"] for node in timed) or any("begin_ns" in node["attr"] for node in timed):
        times = [_times(node, where) for node in timed]
    else:
        times = _layout(nodes, timed)
        notes.append(
            "the file has durations and no times: nodes are laid out by dependencies, one at a time on each lane"
        )
    part = _part(timed, times, meta, where, classifier)
    part.notes[:0] = notes
    return part


def replay_chakra(
    data: bytes, where: str, classifier: Classifier, duration_ns: Callable[[dict[str, Any], Comm | None], int | None]
) -> Part:
    """The rank in an .et file with durations of its own: each node begins when all it depends on is done and its lane is free.

    duration_ns: of a node {id, name, type, duration (us), attr} and, where it communicates, what; None: the file's. Host operations
    order others and take no time, where the file has device operations. Times in the file are ignored.
    """
    meta, nodes = _nodes(data, where)
    known = [node for node in nodes if node["type"] in (LOAD, STORE, COMPUTE, SEND, RECV, COLLECTIVE)]
    timed = [node for node in known if not node["attr"].get("is_cpu_op")] or known
    for node in timed:
        said = duration_ns(node, _comm(node) if node["type"] in (SEND, RECV, COLLECTIVE) else None)
        node["duration_ns"] = min(node["duration"], _MAX_US) * 1000 if said is None else min(max(said, 0), _MAX_US * 1000)
    waiting = [{**node, "deps": node["deps"] + node["after"]} for node in nodes]
    chosen = {id(node) for node in timed}
    timed = [copy for node, copy in zip(nodes, waiting, strict=True) if id(node) in chosen]
    part = _part(timed, _layout(waiting, timed), meta, where, classifier)
    part.notes.append("a replay: durations are a model's or the file's, times follow from dependencies, one node at a time on each lane")
    return part


def _nodes(data: bytes, where: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    at, nodes, meta = 0, [], {}
    number = 0
    try:
        while at < len(data):
            size, begin = varint(data, at)
            if size > len(data) - begin:
                raise DecodeError(
                    f"{where}: byte {at}: the file is cut off inside node {number}: expected {size} bytes, found {len(data) - begin}; "
                    f"{max(0, number - 1)} nodes before it are whole. Write it again."
                )
            message = data[begin : begin + size]
            if number == 0:
                meta = _metadata(message)
            else:
                nodes.append(_node(message))
            at, number = begin + size, number + 1
            if number > _MAX_NODES:
                raise DecodeError(f"{where}: more than {_MAX_NODES} nodes.")
    except (ValueError, UnicodeDecodeError, struct.error) as error:
        raise DecodeError(
            f"{where}: byte {at}: message {number} is no Chakra node: {str(error)[:120]}."
        ) from None
    if not meta.get("version") and not meta["attr"] and not nodes:
        raise DecodeError(f"{where}: byte 0: no Chakra trace: expected GlobalMetadata and nodes.")
    return meta, nodes


def _metadata(message: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {"version": "", "attr": {}}
    for number, value in fields(message):
        if number == 1 and isinstance(value, bytes):
            found["version"] = value.decode()
        elif number == 2 and isinstance(value, bytes):
            found["attr"].update([_attribute(value)])
    return found


def _node(message: bytes) -> dict[str, Any]:
    node: dict[str, Any] = {"id": 0, "name": "", "type": 0, "deps": [], "after": [], "start": 0, "duration": 0, "attr": {}}
    for number, value in fields(message):
        if number in (1, 3, 6, 7):
            if not isinstance(value, int):
                raise ValueError(f"field {number} is no number")
            node[{1: "id", 3: "type", 6: "start", 7: "duration"}[number]] = value
        elif number == 2 and isinstance(value, bytes):
            node["name"] = value.decode("utf-8", "replace")
        elif number in (4, 5):
            node["after" if number == 4 else "deps"] += numbers(value)
        elif number == 10 and isinstance(value, bytes):
            node["attr"].update([_attribute(value)])
    return node


def _attribute(message: bytes) -> tuple[str, Any]:
    """(name, value): numbers, bools and text; lists and other kinds as None."""
    name, value = "", None
    for number, raw in fields(message):
        if number == 1 and isinstance(raw, bytes):
            name = raw.decode("utf-8", "replace")
        elif number == 3 and isinstance(raw, bytes) and len(raw) == 8:
            value = struct.unpack("<d", raw)[0]
        elif number in (7, 9) and isinstance(raw, int):
            value = signed(raw)
        elif number in (11, 13, 27) and isinstance(raw, int):
            value = raw
        elif number in (15, 17) and isinstance(raw, int):
            value = (raw >> 1) ^ -(raw & 1)
        elif number in (29, 31) and isinstance(raw, bytes):
            value = raw.decode("utf-8", "replace")
    return name, value


def _times(node: dict[str, Any], where: str) -> tuple[int, int]:
    begin, length = _whole(node, "begin_ns"), _whole(node, "duration_ns")
    if begin is not None and length is not None:
        return begin, begin + length
    if node["start"] > _MAX_US or node["duration"] > _MAX_US:
        raise DecodeError(
            f"{where}: node {node['id']} is at {node['start']} µs for {node['duration']} µs: expected less than {_MAX_US}."
        )
    return node["start"] * 1000, (node["start"] + node["duration"]) * 1000


def _whole(node: dict[str, Any], name: str) -> int | None:
    value = node["attr"].get(name)
    return value if type(value) is int and 0 <= value < 2**61 else None


def _layout(nodes: list[dict[str, Any]], timed: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """(begin, end) in ns for durations alone. Dependencies on later nodes are not waited for."""
    wanted = {id(node) for node in timed}
    done: dict[int, int] = {}
    free = {0: 0, 1: 0, 2: 0}
    times = []
    for node in nodes:
        ready = max((done.get(dep, 0) for dep in node["deps"]), default=0)
        if id(node) in wanted:
            lane = _lane(node["type"])
            begin = max(ready, free[lane])
            length = node.get("duration_ns", min(node["duration"], _MAX_US) * 1000)
            ready = free[lane] = begin + length
            times.append((begin, ready))
        done[node["id"]] = ready
    if times and times[-1][1] > 2**61:
        return [(0, 0)] * len(times)
    return times


def _lane(kind: int) -> int:
    return 0 if kind == COMPUTE else 2 if kind in (LOAD, STORE) else 1


def _part(
    nodes: list[dict[str, Any]],
    times: list[tuple[int, int]],
    meta: dict[str, Any],
    where: str,
    classifier: Classifier,
) -> Part:
    names: dict[str, int] = {}
    which, doing, comms = [], [], {}
    for row, node in enumerate(nodes):
        which.append(names.setdefault(node["name"], len(names)))
        kind = node["type"]
        if kind == COMPUTE:
            judged = classifier.rule(node["name"]).span_class
            what = {SpanClass.communication: Doing.communication, SpanClass.memcpy: Doing.memcpy}.get(
                judged, Doing.compute
            )
        else:
            what = Doing.memcpy if kind in (LOAD, STORE) else Doing.communication
        doing.append(what)
        if what == Doing.communication:
            comms[row] = _comm(node)
    span = np.array(times, np.int64).reshape(-1, 2)
    names_list, name = list(names), np.array(which, np.int64)
    classifier.account(names_list, name, span[:, 1] - span[:, 0])
    rank = meta["attr"].get("rank")
    n_ranks = meta["attr"].get("n_ranks")
    lane = np.array(
        [
            max(0, node["attr"].get("stream") or 0) if type(node["attr"].get("stream")) is int else 0
            for node in nodes
        ],
        np.int64,
    )
    return Part(
        where,
        "chakra",
        rank if type(rank) is int and 0 <= rank < MAX_RANKS else rank_in_name(where),
        n_ranks if type(n_ranks) is int and 0 < n_ranks < MAX_RANKS else 0,
        np.array(doing, np.uint8),
        span[:, 0],
        span[:, 1],
        lane,
        name,
        names_list,
        comms,
        meta={"schema": str(meta["attr"].get("schema") or meta["version"])[:80]},
    )


def _comm(node: dict[str, Any]) -> Comm:
    attr, kind = node["attr"], node["type"]
    size = attr.get("comm_size")
    nbytes = size if type(size) is int and 0 <= size < 2**61 else 0
    group = str(attr.get("pg_name") or "")[:200]
    seq = attr.get("seq")
    number = seq if type(seq) is int and seq >= 0 else -1
    if kind in (SEND, RECV):
        peer = attr.get("comm_dst" if kind == SEND else "comm_src")
        return Comm(
            "send" if kind == SEND else "recv",
            group,
            number,
            nbytes,
            peer if type(peer) is int and 0 <= peer < MAX_RANKS else -1,
        )
    what = attr.get("comm_type")
    op = COLLECTIVES[what] if type(what) is int and 0 <= what < len(COLLECTIVES) else op_word(node["name"])
    return Comm(op, group, number, nbytes)
