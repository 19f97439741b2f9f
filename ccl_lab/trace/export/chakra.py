"""Traces as Chakra execution traces (.et), one file a rank.

Is: what each rank did as nodes in time, computation, sends, receives, collectives and copies; importers/chakra.py reads it back.
Is not: a trace of NICs: bytes on wires are what the sends already say.
Invariants: a node depends on the one before it on its stream, so the order holds for who ignores times; whole ns stand in the
attributes begin_ns and duration_ns beside the µs of the format. The layout is drawn in importers/chakra.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..columns import SpanKind, Track
from ..exposed import Occupation
from ..importers.chakra import COLLECTIVE, COLLECTIVES, COMPUTE, LOAD, RECV, SEND
from ..importers.protobuf import delimited, put_bytes, put_int
from ..lanes import put_wait_pairs
from ..stragglers import op_of
from .kineto import Busy

if TYPE_CHECKING:
    from ..model import Trace

_SCHEMA, _VERSION = "1.0.2-chakra.0.0.4", "0.0.4"
_ON_WIRES = (Track.nic_tx, Track.nic_rx, Track.fabric)
_IN_METADATA, _IN_NODE = 2, 10


def encode_ranks(trace: Trace) -> dict[int, bytes]:
    """Rank -> bytes of its file. Cost: about 20 µs per span."""
    busy = Busy(trace)
    puts, waits = put_wait_pairs(trace)
    pairs = list(enumerate(zip(puts.tolist(), waits.tolist(), strict=True)))
    tags = {row: number for number, pair in pairs for row in pair}
    arrived = {wait: int(trace["nbytes"][put]) for _, (put, wait) in pairs}
    return {rank: _file(busy, rank, tags, arrived) for rank in busy.ranks}


def _file(busy: Busy, rank: int, tags: dict[int, int], arrived: dict[int, int]) -> bytes:
    head = put_bytes(1, _VERSION) + _text(_IN_METADATA, "schema", _SCHEMA)
    head += _int(_IN_METADATA, "rank", rank) + _int(_IN_METADATA, "n_ranks", busy.trace.n_ranks)
    out, before = [delimited(head)], {}
    for row, what, stream, name, number in busy.of(rank):
        if int(busy.trace["track"][row]) in _ON_WIRES:
            continue
        node = put_int(1, number + 1) + put_bytes(2, name)
        if stream in before:
            node += put_int(5, before[stream])
        before[stream] = number + 1
        node += _node(busy.trace, row, what, tags.get(row, -1), arrived.get(row)) + _int(
            _IN_NODE, "stream", stream
        )
        out.append(delimited(node))
    return b"".join(out)


def _node(trace: Trace, row: int, what: int, tag: int, arrived: int | None) -> bytes:
    """Type, times and attributes of a node."""
    begin = max(0, int(trace["begin_ns"][row]))
    length = max(0, int(trace["end_ns"][row]) - int(trace["begin_ns"][row]))
    node = put_int(6, begin // 1000) + put_int(7, length // 1000) + _bool("is_cpu_op", False)
    node += _int(_IN_NODE, "begin_ns", begin) + _int(_IN_NODE, "duration_ns", length)
    if what == Occupation.compute:
        return node + put_int(3, COMPUTE)
    if what == Occupation.memcpy:
        return node + put_int(3, LOAD) + _int(_IN_NODE, "tensor_size", int(trace["nbytes"][row]))
    kind, peer, rank = int(trace["kind"][row]), int(trace["peer"][row]), int(trace["rank"][row])
    nbytes = int(trace["nbytes"][row]) if arrived is None else arrived
    node += _int(_IN_NODE, "comm_size", nbytes)
    if kind in (SpanKind.put, SpanKind.wait) and peer >= 0:
        sends = kind == SpanKind.put
        ends = _int(_IN_NODE, "comm_src", rank if sends else peer) + _int(
            _IN_NODE, "comm_dst", peer if sends else rank
        )
        return (
            node
            + put_int(3, SEND if sends else RECV)
            + ends
            + (_int(_IN_NODE, "comm_tag", tag) if tag >= 0 else b"")
        )
    coll = int(trace["coll_id"][row])
    op = op_of(trace, coll)
    node += put_int(3, COLLECTIVE) + _text(_IN_NODE, "pg_name", "0")
    if kind == SpanKind.collective:
        node += _int(_IN_NODE, "seq", coll)
    return node + (_int(_IN_NODE, "comm_type", COLLECTIVES.index(op)) if op in COLLECTIVES else b"")


def _int(field: int, name: str, value: int) -> bytes:
    return put_bytes(field, put_bytes(1, name) + put_int(9, value))


def _bool(name: str, value: bool) -> bytes:
    return put_bytes(_IN_NODE, put_bytes(1, name) + put_int(27, value))


def _text(field: int, name: str, value: str) -> bytes:
    return put_bytes(field, put_bytes(1, name) + put_bytes(29, value))
