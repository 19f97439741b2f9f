"""Reads back the Chrome JSON that export/chrome.py writes.

Is: a checked path from foreign bytes to a Trace. Is not: a reader of real jobs' Kineto files; those are
refused with a word of what is missing.
Invariants: any input gives a Trace or a DecodeError naming file and place; the content is checked by its
CRC-32.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from ...errors import DecodeError
from ..columns import COLUMNS
from ..export.chrome import EXACT_NS, NUMBERS
from ..form import MAX_SPANS, build, check_content, check_version, encode_meta
from ..model import DEFAULTS, ENUMS, Trace

# everything but the events stands before them, so most damage shows before megabytes are parsed
_HEAD_BYTES = 4096
_OPENING = re.compile(rb"\s*\{")
_INT64 = np.iinfo(np.int64)


def read_chrome(data: bytes, where: str, verify: bool = True) -> Trace:
    """The trace in the bytes of a JSON file of ours. `verify=False` skips the checksum."""
    if not _OPENING.match(data[:_HEAD_BYTES]):
        raise DecodeError(f"{where}: byte 0: no JSON object.")
    if data.rstrip()[-1:] != b"}":
        raise DecodeError(f"{where}: byte {len(data)}: the JSON object is cut off.")
    try:
        document = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"{where}: {str(error)[:200]}") from None
    except MemoryError:
        raise DecodeError(f"{where}: too large for the memory of this machine.") from None
    if not isinstance(document, dict) or not isinstance(document.get("ccl_lab"), dict):
        raise DecodeError(f'{where}: no "ccl_lab" in it: only JSON written by ccl_lab is read here.')
    ours = document["ccl_lab"]
    check_version(ours.get("version"), f"{where}: ccl_lab")
    meta = ours.get("meta")
    if not isinstance(meta, dict):
        raise DecodeError(f"{where}: ccl_lab.meta is a {type(meta).__name__}: expected an object.")
    spans = _spans(document.get("traceEvents"), where)
    if ours.get("spans") != len(spans):
        raise DecodeError(f"{where}: {len(spans)} spans, ccl_lab.spans says {str(ours.get('spans'))[:40]}.")
    columns = _columns(spans, document.get("baseTimeNanoseconds"), where)
    trace = build(columns, meta, where)
    if verify:
        check_content(trace, encode_meta(trace.meta), ours.get("crc32"), where, ours["version"])
    return trace


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is not JSON")


def _spans(events: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(events, list):
        raise DecodeError(f"{where}: traceEvents is a {type(events).__name__}: expected a list.")
    if len(events) > MAX_SPANS:
        raise DecodeError(f"{where}: {len(events)} events: expected at most {MAX_SPANS}.")
    spans = []
    for number, event in enumerate(events):
        if not isinstance(event, dict):
            raise DecodeError(
                f"{where}: traceEvents[{number}] is a {type(event).__name__}: expected an object."
            )
        if event.get("ph") == "X":
            if not isinstance(event.get("args"), dict):
                raise DecodeError(f"{where}: traceEvents[{number}] has no args.")
            spans.append(event)
    return spans


def _columns(spans: list[dict[str, Any]], base: Any, where: str) -> dict[str, np.ndarray]:
    if type(base) is not int or not _INT64.min <= base <= _INT64.max:
        raise DecodeError(f"{where}: baseTimeNanoseconds is {str(base)[:40]}: expected a 64-bit integer.")
    args = [span["args"] for span in spans]
    columns = {
        name: _integers([a.get(name, DEFAULTS.get(name, 0)) for a in args], f"{where}: args.{name}")
        for name in NUMBERS
    }
    columns["kind"] = _words([a.get("kind") for a in args], "kind", where)
    columns["track"] = _words([span.get("cat") for span in spans], "track", where)
    columns["status"] = _words([a.get("status", "ok") for a in args], "status", where)
    if args and "begin_ns" in args[0]:
        columns["begin_ns"] = _integers([a.get("begin_ns") for a in args], f"{where}: args.begin_ns")
        columns["end_ns"] = _integers([a.get("end_ns") for a in args], f"{where}: args.end_ns")
    else:
        begin = _nanoseconds([span.get("ts") for span in spans], f"{where}: ts")
        length = _nanoseconds([span.get("dur") for span in spans], f"{where}: dur")
        if abs(base) > _INT64.max - 2 * EXACT_NS:
            raise DecodeError(f"{where}: baseTimeNanoseconds is {base}: too large.")
        columns["begin_ns"] = begin + base
        columns["end_ns"] = columns["begin_ns"] + length
    return _in_rows(columns, args, where)


def _integers(values: list[Any], where: str) -> np.ndarray:
    # bool is an int to Python but not to a trace
    if any(type(value) is not int for value in values):
        number = next(i for i, value in enumerate(values) if type(value) is not int)
        raise DecodeError(f"{where} of span {number} is {str(values[number])[:40]!r}: expected an integer.")
    try:
        return np.array(values, np.int64)
    except OverflowError:
        raise DecodeError(f"{where}: a number beyond 64 bits.") from None


def _nanoseconds(values: list[Any], where: str) -> np.ndarray:
    """Whole ns of non-negative microseconds."""
    if any(type(value) not in (int, float) for value in values):
        number = next(i for i, value in enumerate(values) if type(value) not in (int, float))
        raise DecodeError(f"{where} of span {number} is {str(values[number])[:40]!r}: expected a number.")
    try:
        with np.errstate(over="ignore"):
            ns = np.array(values, np.float64) * 1000.0
    except OverflowError:
        raise DecodeError(f"{where}: a number beyond 64 bits.") from None
    if len(ns) and not (0 <= float(ns.min()) and float(ns.max()) <= EXACT_NS):
        raise DecodeError(
            f"{where}: {ns.min() / 1000} to {ns.max() / 1000} µs: expected 0 to {EXACT_NS // 1000}."
        )
    return np.rint(ns).astype(np.int64)


def _words(values: list[Any], column: str, where: str) -> np.ndarray:
    known = {member.name: int(member) for member in ENUMS[column]}
    # a value this version has no name for was written as its number
    known |= {str(value): value for value in range(256) if value not in known.values()}
    try:
        return np.array([known[value] for value in values], COLUMNS[column])
    except (KeyError, TypeError):
        bad = next(i for i, value in enumerate(values) if not isinstance(value, str) or value not in known)
        raise DecodeError(f"{where}: {column} of span {bad} is {str(values[bad])[:40]!r}: unknown.") from None


def _in_rows(columns: dict[str, np.ndarray], args: list[dict[str, Any]], where: str) -> dict[str, np.ndarray]:
    """Back into the order of the trace, where the file has another."""
    if not args or "row" not in args[0]:
        return columns
    row = _integers([a.get("row") for a in args], f"{where}: args.row")
    if not np.array_equal(np.sort(row), np.arange(len(row))):
        raise DecodeError(f"{where}: args.row does not number the spans 0..{len(row) - 1}.")
    place = np.argsort(row)
    return {name: values[place] for name, values in columns.items()}
