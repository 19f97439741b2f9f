"""The binary form of a schedule: versioned, checksummed, read strictly.

    offset   size   field                      (all numbers little-endian)
    0        8      magic "CCLSCHED"
    8        2      version of this layout, u16
    10       2      version of the op schema (OPS_VERSION), u16
    12       4      header bytes H, u32
    16       4      ops N, u32
    20       4      sources S, u32
    24       H      header: one JSON object with exactly the keys of HEADER
    24+H     …      op columns of OP_COLUMNS without src_begin, N cells each, one column after the other
             …      source columns of SOURCE_COLUMNS, S cells each
             …      scratch_pairs i32[n_ranks, scratch_blocks, 2] and counts i64[n_ranks, n_ranks], where the header has them
    end-4    4      CRC-32 of everything before it

Is: bytes <-> Schedule. Is not: a check that the schedule is correct (the verifier). Invariants: the size of the data is
compared with what the head promises before anything is allocated; any input that is not a schedule raises DecodeError
and nothing else; `decode(encode(s)).encode() == s.encode()`.
"""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import CclError, DecodeError
from . import collectives
from .ops import OPS_VERSION
from .table import OP_COLUMNS, SOURCE_COLUMNS, OpTable

if TYPE_CHECKING:
    from .schedule import Schedule

MAGIC, VERSION = b"CCLSCHED", 1
_HEAD = struct.Struct("<8sHHIII")
_STORED = {name: dtype for name, dtype in OP_COLUMNS.items() if name != "src_begin"}
_OP_BYTES = sum(dtype.itemsize for dtype in _STORED.values())
_SOURCE_BYTES = sum(dtype.itemsize for dtype in SOURCE_COLUMNS.values())
_PAIRS, _COUNTS = np.dtype("<i4"), np.dtype("<i8")

# key -> (type, smallest, largest) of the header's fields, shared with the text form
MAX_RANKS, MAX_INT = 1 << 20, (1 << 31) - 1
HEADER: dict[str, tuple[type, int, int]] = {
    "collective": (str, 0, 64),
    "algorithm": (str, 0, 256),
    "n_ranks": (int, 1, MAX_RANKS),
    "n_channels": (int, 1, 1 << 12),
    "parts": (int, 1, MAX_INT),
    "in_place": (bool, 0, 1),
    "root": (int, 0, MAX_RANKS),
    "peer": (int, -1, MAX_RANKS),
    "scratch_blocks": (int, 0, MAX_INT),
    "timetable": (bool, 0, 1),
    "nbytes": (int, 0, 1 << 62),
    "dtype": (str, 0, 64),
    "redop": (str, 0, 64),
    "reasons": (list, 0, 1024),
    "has_scratch_pairs": (bool, 0, 1),
    "has_counts": (bool, 0, 1),
}
# What a header says that was written before there was the key.
BEFORE = {"timetable": False}
_MAX_HEADER_BYTES = 1 << 20


def header_of(schedule: Schedule) -> dict[str, Any]:
    """Everything of a schedule but its arrays, as JSON types."""
    kinds = {int: int, bool: bool, str: str}
    fields = {
        key: kinds[kind](getattr(schedule, key))
        for key, (kind, _, _) in HEADER.items()
        if key in schedule.__dict__ and kind in kinds
    }
    return fields | {
        "reasons": [str(reason) for reason in schedule.reasons],
        "has_scratch_pairs": schedule.scratch_pairs is not None,
        "has_counts": schedule.counts is not None,
    }


def check_header(header: dict[str, Any]) -> None:
    """DecodeError unless every key of HEADER is there, of its type and in its range, and names and ranks fit."""
    if header.keys() != HEADER.keys():
        missing, unknown = sorted(HEADER.keys() - header.keys()), sorted(header.keys() - HEADER.keys())
        raise DecodeError(f"header: missing {missing}, unknown {[key[:40] for key in unknown[:8]]}.")
    for key, (kind, low, high) in HEADER.items():
        value = header[key]
        if type(value) is not kind:
            raise DecodeError(f"header {key!r}: expected {kind.__name__}, found {type(value).__name__}.")
        size = value if kind in (int, bool) else len(value)
        if not low <= size <= high:
            raise DecodeError(f"header {key!r}: expected {low} to {high}, found {size}.")
    if not all(type(reason) is str for reason in header["reasons"]):
        raise DecodeError("header 'reasons': expected a list of strings.")
    try:
        collectives.check_names(header["collective"], header["dtype"], header["redop"])
    except CclError as error:
        raise DecodeError(f"header: {error}") from None
    for key in ("root", "peer") if header["collective"] == "send_recv" else ("root",):
        if not 0 <= header[key] < header["n_ranks"]:
            raise DecodeError(
                f"header {key!r}: expected a rank from 0 to {header['n_ranks'] - 1}, found {header[key]}."
            )


def encode(schedule: Schedule) -> bytes:
    """The binary form of `schedule`. Cost: one pass over its columns."""
    head = header_of(schedule)
    check_header(head)
    text = json.dumps(head, sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode()
    ops = schedule.ops
    parts = [_HEAD.pack(MAGIC, VERSION, OPS_VERSION, len(text), len(ops), len(ops.src_rank)), text]
    parts += [
        getattr(ops, name).astype(dtype, copy=False).tobytes()
        for name, dtype in (_STORED | SOURCE_COLUMNS).items()
    ]
    shapes = {
        "scratch_pairs": (schedule.n_ranks, schedule.scratch_blocks, 2),
        "counts": (schedule.n_ranks, schedule.n_ranks),
    }
    for (name, shape), dtype in zip(shapes.items(), (_PAIRS, _COUNTS), strict=True):
        cells = getattr(schedule, name)
        if cells is not None:
            if np.shape(cells) != shape:
                raise DecodeError(f"{name}: expected shape {shape}, found {np.shape(cells)}.")
            parts.append(np.ascontiguousarray(cells, dtype).tobytes())
    body = b"".join(parts)
    return body + struct.pack("<I", zlib.crc32(body))


def decode(data: bytes | bytearray | memoryview) -> Schedule:
    """The schedule in `data`; DecodeError says what is wrong and at which byte. Cost: one pass; memory: that of `data`."""
    from .schedule import Schedule

    data = memoryview(data).cast("B")
    head_bytes, n_ops, n_sources = _read_head(data)
    header = _read_header(data[_HEAD.size : _HEAD.size + head_bytes])
    at = _HEAD.size + head_bytes
    n, blocks = header["n_ranks"], header["scratch_blocks"]
    pairs = n * blocks * 2 if header["has_scratch_pairs"] else 0
    counts = n * n if header["has_counts"] else 0
    promised = at + n_ops * _OP_BYTES + n_sources * _SOURCE_BYTES + pairs * 4 + counts * 8 + 4
    if promised != len(data):
        raise DecodeError(
            f"schedule: the head promises {promised} bytes ({n_ops} ops, {n_sources} sources, {pairs} scratch pairs, "
            f"{counts} counts), found {len(data)}."
        )
    columns: dict[str, np.ndarray] = {}
    for name, dtype in (_STORED | SOURCE_COLUMNS).items():
        cells = n_sources if name in SOURCE_COLUMNS else n_ops
        columns[name] = np.frombuffer(data, dtype, cells, at).copy()
        at += cells * dtype.itemsize
    arrays: dict[str, np.ndarray | None] = {"scratch_pairs": None, "counts": None}
    if header.pop("has_scratch_pairs"):
        arrays["scratch_pairs"] = np.frombuffer(data, _PAIRS, pairs, at).reshape(n, blocks, 2).copy()
        at += pairs * 4
    if header.pop("has_counts"):
        arrays["counts"] = np.frombuffer(data, _COUNTS, counts, at).reshape(n, n).copy()
    header["reasons"] = tuple(header["reasons"])
    return Schedule(ops=table_of(columns), **arrays, **header)


def table_of(columns: dict[str, np.ndarray]) -> OpTable:
    """The op table of decoded columns (without src_begin); DecodeError if they do not fit together."""
    count = columns["src_count"].astype(np.int64)
    if len(count) and (count.min() < 0 or count.max() > MAX_INT):
        op_id = int(np.argmax(count < 0))
        raise DecodeError(f"op {op_id}: {count[op_id]} sources; expected 0 or more.", op_id=op_id)
    total = int(count.sum())
    if total != len(columns["src_rank"]):
        raise DecodeError(
            f"ops: their source counts add up to {total}, the source table has {len(columns['src_rank'])} rows."
        )
    try:
        return OpTable(src_begin=np.cumsum(count) - count, **columns)
    except CclError as error:
        raise DecodeError(str(error), op_id=error.op_id) from None


def _read_head(data: memoryview) -> tuple[int, int, int]:
    """Bytes of the header, ops, sources; checks magic, versions, checksum."""
    if len(data) < _HEAD.size + 4:
        raise DecodeError(f"schedule: {len(data)} bytes; expected {_HEAD.size + 4} or more.")
    magic, version, ops_version, head_bytes, n_ops, n_sources = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise DecodeError(
            f"schedule, byte 0: expected {MAGIC!r}, found {bytes(magic)!r}; this is not a ccl_lab schedule."
        )
    for what, at, found, known in (
        ("version", 8, version, VERSION),
        ("op schema", 10, ops_version, OPS_VERSION),
    ):
        if found != known:
            raise DecodeError(f"schedule, byte {at}: {what} {found}; this ccl_lab reads {known}.")
    if head_bytes > min(_MAX_HEADER_BYTES, len(data) - _HEAD.size - 4):
        raise DecodeError(
            f"schedule, byte 12: a header of {head_bytes} bytes does not fit {len(data)} bytes."
        )
    if n_ops * _OP_BYTES + n_sources * _SOURCE_BYTES > len(data):
        raise DecodeError(
            f"schedule, byte 16: {n_ops} ops and {n_sources} sources do not fit {len(data)} bytes."
        )
    stored, found = struct.unpack_from("<I", data, len(data) - 4)[0], zlib.crc32(data[:-4])
    if stored != found:
        raise DecodeError(
            f"schedule, byte {len(data) - 4}: checksum {stored:#010x}, expected {found:#010x}; the data is damaged."
        )
    return head_bytes, n_ops, n_sources


def _read_header(text: memoryview) -> dict[str, Any]:
    try:
        header = json.loads(bytes(text).decode("ascii"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise DecodeError(
            f"schedule, byte {_HEAD.size}: the header is not JSON ({str(error)[:100]})."
        ) from None
    if type(header) is not dict:
        raise DecodeError(
            f"schedule, byte {_HEAD.size}: the header is a JSON {type(header).__name__}; expected an object."
        )
    header = BEFORE | header
    check_header(header)
    return header


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def load(path: Path) -> Schedule:
    """Reads a file in the binary or (`.txt`) text form; DecodeError names the file."""
    from .text import from_text

    data = Path(path).read_bytes()
    try:
        if Path(path).suffix == ".txt":
            return from_text(data.decode("utf-8"))
        return decode(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise DecodeError(f"{path}: {error}", op_id=getattr(error, "op_id", -1)) from None
