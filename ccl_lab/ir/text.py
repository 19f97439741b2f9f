"""The text form of a schedule: a few `key = value` lines, then one op per line, as `describe` prints it.

    ccl_lab schedule 1
    collective = "all_gather"
    n_ranks = 2
    …
    ops:
    op 0 (rank 0, channel 0, step 0): put output[0] -> rank 1 output[0] +signal on channel 0
    op 1 (rank 1, channel 0, step 0): wait signal 1 of rank 0 on channel 0

Is: Schedule <-> text for people, diffs and version control. Is not: compact (the binary form is). Invariants: the round
trip is exact; cells that the sentence of an op does not show are appended as `{name=value}` when they are not zero;
ops count in the order of their lines (the number after `op` is for the reader); `#` begins a comment line; any other
text raises DecodeError that names the line.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..errors import CclError, DecodeError
from .codec import BEFORE, HEADER, MAX_INT, check_header, header_of, table_of
from .ops import Buffer, Kind
from .table import OP_COLUMNS, SOURCE_COLUMNS, Op, describe

if TYPE_CHECKING:
    from .schedule import Schedule

TITLE = "ccl_lab schedule 1"
_INT = r"-?\d{1,10}"
_LINE = re.compile(
    rf"op(?: \d{{1,10}})? \(rank ({_INT}), channel ({_INT}), step ({_INT})\): ([a-z]+)(?: (.*?))??(?: \{{([^{{}}]*)\}})?"
)
_REF = re.compile(rf"(?:rank ({_INT}) )?(?:(input|output|scratch)|buffer ({_INT}))\[({_INT})(?::({_INT}))?\]")
_SIGNAL = re.compile(rf"(.*?) \+signal on channel ({_INT})")
_WAIT = re.compile(rf"signal ({_INT}) of rank ({_INT}) on channel ({_INT})")
_PEER = re.compile(rf"rank ({_INT})|(all peers)")
_SOURCE = re.compile(rf"({_INT})/({_INT})/({_INT})")
_COMPUTE = re.compile(rf"partition ({_INT})(?: (.*))?")
_CELLS = ("peer", "sig_channel", "value", "dst_buf", "dst_chunk", "n_chunks", "arg")
_ARRAYS = ("scratch_pairs", "counts")


class _Bad(Exception):
    """What is wrong with a line."""


def to_text(schedule: Schedule) -> str:
    """The text form. Cost: Python time per op."""
    header = header_of(schedule)
    lines = [TITLE]
    lines += [f"{key} = {json.dumps(header[key])}" for key in HEADER if not key.startswith("has_")]
    for name in _ARRAYS:
        cells = getattr(schedule, name)
        if cells is not None:
            lines.append(f"{name} = {json.dumps(np.asarray(cells).tolist())}")
    lines.append("ops:")
    lines += [_write(op) for op in schedule.ops]
    return "\n".join(lines) + "\n"


def _write(op: Op) -> str:
    line = describe(op)
    shown = _read(line)
    extra = [f"{name}={getattr(op, name)}" for name in _CELLS if getattr(op, name) != shown[name]]
    if list(op.sources) != shown["sources"]:
        extra += [f"source={rank}/{buf}/{chunk}" for rank, buf, chunk in op.sources]
    return f"{line} {{{', '.join(extra)}}}" if extra else line


def from_text(text: str) -> Schedule:
    """Reads the text form; DecodeError names the line. Cost: Python time per op."""
    from .schedule import Schedule

    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1)]
    lines = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if not lines or lines[0][1] != TITLE:
        _fail(
            lines[0][0] if lines else 1, f"expected {TITLE!r}, found {lines[0][1][:60] if lines else ''!r}."
        )
    begin = next((i for i, (_, line) in enumerate(lines) if line == "ops:"), None)
    if begin is None:
        _fail(lines[-1][0], "expected a line 'ops:' before the ops.")
    header, arrays = _read_header(lines[1:begin])
    rows = [_read_numbered(number, line) for number, line in lines[begin + 1 :]]
    columns = {
        name: np.array([row[name] for row in rows], dtype)
        for name, dtype in OP_COLUMNS.items()
        if name not in ("src_begin", "src_count")
    }
    columns["src_count"] = np.array([len(row["sources"]) for row in rows], np.int32)
    sources = np.array([source for row in rows for source in row["sources"]], np.int64).reshape(-1, 3)
    columns |= {name: sources[:, i].astype(dtype) for i, (name, dtype) in enumerate(SOURCE_COLUMNS.items())}
    return Schedule(ops=table_of(columns), **header, **arrays)


def _fail(number: int, what: str) -> NoReturn:
    raise DecodeError(f"line {number}: {what}")


def _read_header(lines: list[tuple[int, str]]) -> tuple[dict[str, Any], dict[str, np.ndarray | None]]:
    header: dict[str, Any] = {}
    arrays: dict[str, np.ndarray | None] = dict.fromkeys(_ARRAYS)
    for number, line in lines:
        key, equals, value = (part.strip() for part in line.partition("="))
        if (
            not equals
            or key in header
            or (key not in _ARRAYS and (key not in HEADER or key.startswith("has_")))
        ):
            _fail(
                number,
                f"expected one 'key = value' for each of {', '.join(k for k in HEADER if not k.startswith('has_'))}; "
                f"found {line[:60]!r}.",
            )
        try:
            header[key] = json.loads(value)
        except (ValueError, RecursionError):
            _fail(number, f"the value of {key!r} is not JSON: {value[:60]!r}.")
        if key in _ARRAYS:
            arrays[key] = _read_array(number, key, header[key])
    for name in _ARRAYS:
        header.pop(name, None)
        header[f"has_{name}"] = arrays[name] is not None
    header = BEFORE | header
    try:
        check_header(header)
    except CclError as error:
        _fail(lines[-1][0] if lines else 1, str(error))
    n = header["n_ranks"]
    for name, shape in (("scratch_pairs", (n, header["scratch_blocks"], 2)), ("counts", (n, n))):
        cells = arrays[name]
        if header.pop(f"has_{name}") and cells is not None:
            if cells.size != np.prod(shape, dtype=object):
                raise DecodeError(f"{name}: expected shape {shape}, found {cells.shape}.")
            arrays[name] = cells.reshape(shape)
    header["reasons"] = tuple(header["reasons"])
    return header, arrays


def _read_array(number: int, key: str, value: Any) -> np.ndarray:
    dtype = np.int32 if key == "scratch_pairs" else np.int64
    try:
        cells = np.array(value, object)
        flat = [
            int(cell)
            if type(cell) is int
            else _fail(number, f"{key}: {str(cell)[:40]!r} is not a whole number.")
            for cell in cells.flat
        ]
        return np.array(flat, dtype).reshape(cells.shape)
    except (ValueError, OverflowError):
        _fail(number, f"{key}: expected nested lists of whole numbers of one shape.")


def _read_numbered(number: int, line: str) -> dict[str, Any]:
    try:
        row = _read(line)
    except _Bad as error:
        _fail(number, f"{error}; found {line[:120]!r}.")
    for name, dtype in OP_COLUMNS.items():
        limits = np.iinfo(dtype)
        if name in row and not limits.min <= row[name] <= limits.max:
            _fail(number, f"{name} {row[name]} does not fit {limits.min} to {limits.max}.")
    for source in row["sources"]:
        if not all(-MAX_INT - 1 <= cell <= MAX_INT for cell in source) or not 0 <= source[1] <= 255:
            _fail(number, f"source {source} (rank, buffer, chunk) is out of range.")
    return row


def _read(line: str) -> dict[str, Any]:
    """Cells of one op line; _Bad says what was expected."""
    match = _LINE.fullmatch(line)
    if not match:
        raise _Bad("expected 'op N (rank R, channel C, step S): KIND …'")
    rank, channel, step = (int(match[i]) for i in (1, 2, 3))
    if match[4] not in Kind.__members__:
        raise _Bad(f"{match[4]!r} is none of {', '.join(Kind.__members__)}")
    kind = Kind[match[4]]
    row: dict[str, Any] = {
        "rank": rank,
        "channel": channel,
        "step": step,
        "kind": int(kind),
        "peer": -1,
        "sig_channel": -1,
        "value": 0,
        "dst_buf": 0,
        "dst_chunk": 0,
        "n_chunks": 0,
        "arg": 0,
        "sources": [],
    }
    rest = match[5] or ""
    if kind in (Kind.put, Kind.signal) and (signal := _SIGNAL.fullmatch(rest)):
        rest, row["sig_channel"] = signal[1], int(signal[2])
    _READERS[kind](row, rest)
    if kind == Kind.get and row["sources"]:
        row["peer"] = row["sources"][0][0]
    for item in filter(None, (match[6] or "").split(",")):
        name, _, value = (part.strip() for part in item.partition("="))
        if name == "source" and (source := _SOURCE.fullmatch(value)):
            row["sources"].append(tuple(map(int, source.groups())))
            continue
        if name not in _CELLS or not re.fullmatch(_INT, value):
            raise _Bad(f"expected {{name=number}} with a name of {', '.join(_CELLS)}")
        row[name] = int(value)
    return row


def _read_move(row: dict[str, Any], rest: str) -> None:
    left, arrow, right = rest.rpartition("-> ")
    target = _REF.fullmatch(right)
    if not arrow or not target:
        raise _Bad("expected 'SOURCES -> BUFFER[CHUNK]' or 'SOURCES -> BUFFER[FIRST:END]'")
    where, row["dst_buf"], row["dst_chunk"], row["n_chunks"] = _ref(target, row["rank"])
    if row["kind"] == Kind.put:
        row["peer"] = where
    _read_sources(row, left.strip().split(" + " if row["kind"] == Kind.compute else ", "), "its destination")


def _read_sources(row: dict[str, Any], pieces: list[str], what: str) -> None:
    for piece in filter(None, pieces):
        source = _REF.fullmatch(piece)
        if not source:
            raise _Bad(f"source {piece[:40]!r}: expected 'BUFFER[CHUNK]' or 'rank R BUFFER[FIRST:END]'")
        rank, buf, chunk, n_chunks = _ref(source, row["rank"])
        row["n_chunks"] = row["n_chunks"] or n_chunks
        if n_chunks != row["n_chunks"]:
            raise _Bad(f"source {piece[:40]!r} has {n_chunks} chunks, {what} {row['n_chunks']}")
        row["sources"].append((rank, buf, chunk))


def _ref(match: re.Match[str], rank: int) -> tuple[int, int, int, int]:
    first = int(match[4])
    buf = int(Buffer[match[2]]) if match[2] else int(match[3])
    return int(match[1]) if match[1] else rank, buf, first, int(match[5]) - first if match[5] else 1


def _read_peer(row: dict[str, Any], rest: str) -> None:
    match = _PEER.fullmatch(rest)
    if not match:
        raise _Bad("expected 'rank R' or 'all peers'")
    row["peer"] = int(match[1]) if match[1] else -1


def _read_wait(row: dict[str, Any], rest: str) -> None:
    match = _WAIT.fullmatch(rest)
    if not match:
        raise _Bad("expected 'wait signal VALUE of rank R on channel C'")
    row["value"], row["peer"], row["sig_channel"] = int(match[1]), int(match[2]), int(match[3])


def _read_compute(row: dict[str, Any], rest: str) -> None:
    match = _COMPUTE.fullmatch(rest)
    if not match:
        raise _Bad("expected 'compute partition I', then what it reads, or 'input[CHUNK] + BUFFER[CHUNK] -> BUFFER[CHUNK]'")
    row["arg"], operands = int(match[1]), match[2] or ""
    if "->" in operands:
        row["value"] = 1
        _read_move(row, operands)
    else:
        _read_sources(row, operands.split(", "), "another")


_READERS = {
    Kind.put: _read_move,
    Kind.get: _read_move,
    Kind.copy: _read_move,
    Kind.reduce: _read_move,
    Kind.signal: _read_peer,
    Kind.flush: _read_peer,
    Kind.wait: _read_wait,
    Kind.compute: _read_compute,
}
