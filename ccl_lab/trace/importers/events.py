"""Reads the events of a Kineto or Chrome JSON file window by window, so that a file of any size needs little memory.

Is: from a byte stream to batches of events with the few members importers look at; the arguments of an event stay bytes
until somebody asks. Is not: aware of what an event means.
Invariants: any bytes give whole events or a DecodeError naming file and byte; a window is cut only where the JSON before the
cut parses as a list of its own, so never inside an event; numbers are exact (a time that a double cannot hold to the
ns is read as a decimal). A file that ends after a whole event, without its closing brackets, is read and noted; one
that ends inside an event is refused, unless `recover`.

    { head members, "traceEvents": [ event , event , ... ] , tail members }      or      [ event , event , ...
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any, BinaryIO

import msgspec
import numpy as np

from ...errors import DecodeError
from ..form import MAX_SPANS

_WINDOW = 8 * 2**20
_MAX_HEAD = 64 * 2**20
# a window that cannot be cut is parsed again with more: this bounds how often
_MAX_UNCUT = 64 * 2**20
_TRIES = 8
_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
_LONG_FRACTION = re.compile(rb'"ts"\s*:\s*\d{13,}\.\d')
_BORDER = re.compile(rb"\}\s*,\s*$")
# beyond this a double of microseconds no longer tells every ns
_EXACT_US = 2.0**43
_MAX_US = 9.0e15


class Event(msgspec.Struct, gc=False):
    """What an importer looks at first; `args` holds JSON bytes."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    ts: float | None = None
    dur: float | None = None
    tid: int | str | float | None = None
    args: msgspec.Raw = msgspec.Raw(b"")


class _ExactEvent(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str = ""
    ts: Decimal | None = None
    dur: float | None = None
    tid: int | str | float | None = None
    args: msgspec.Raw = msgspec.Raw(b"")


_DECODER = msgspec.json.Decoder(list[Event])
_EXACT = msgspec.json.Decoder(list[_ExactEvent])
_ANYTHING = msgspec.json.Decoder()


class EventFile:
    """The events of one file. `head` and `tail`: members beside the events; `notes`: what was mended."""

    def __init__(self, stream: BinaryIO, where: str, recover: bool = False) -> None:
        self.where, self.recover = where, recover
        self.head: dict[str, Any] = {}
        self.notes: list[str] = []
        self.n_events = 0
        self._in_object = False
        self._stream, self._offset, self._buffer, self._ended = stream, 0, b"", False

    def __iter__(self) -> Iterator[list[Any]]:
        self._open()
        while True:
            batch = self._window()
            if batch is None:
                break
            self._count(len(batch))
            yield batch
        batch = self._last()
        self._count(len(batch))
        yield batch

    def _count(self, n: int) -> None:
        self.n_events += n
        if self.n_events > MAX_SPANS:
            raise DecodeError(
                f"{self.where}: more than {MAX_SPANS} events: cut the file, or record fewer steps."
            )

    def _more(self) -> None:
        piece = self._stream.read(_WINDOW)
        self._ended = not piece
        self._buffer += piece

    def _open(self) -> None:
        """Reads the members before the events."""
        while True:
            self._more()
            text = self._buffer.lstrip(b"\xef\xbb\xbf \t\r\n")
            if text[:1] == b"[":
                self._cut(len(self._buffer) - len(text) + 1)
                return
            for found in _OPENING.finditer(self._buffer):
                head = (
                    self._buffer[: found.start()].strip().removeprefix(b"\xef\xbb\xbf").rstrip(b",").rstrip()
                )
                members = _members(head + b"}")
                if members is not None:
                    self.head, self._in_object = members, True
                    self._cut(found.end())
                    return
            if self._ended or len(self._buffer) > _MAX_HEAD:
                raise DecodeError(
                    f'{self.where}: byte {len(self._buffer)}: no list "traceEvents" found: expected the JSON that '
                    "torch.profiler's export_chrome_trace writes."
                )

    def _cut(self, n: int) -> None:
        self._offset += n
        self._buffer = self._buffer[n:]

    def _window(self) -> list[Any] | None:
        """The whole events of the next window; None when the rest of the file is in the buffer."""
        while not self._ended:
            self._more()
            if len(self._buffer) > _MAX_UNCUT and not self._ended:
                raise DecodeError(
                    f"{self.where}: byte {self._offset}: no whole event in the {_MAX_UNCUT} bytes from here: the file is damaged "
                    f"there; {self.n_events} events before it are whole."
                )
            at = len(self._buffer)
            for _ in range(_TRIES if not self._ended else 0):
                at = self._border(at)
                if at <= 0:
                    break
                batch = _decode(b"[" + self._buffer[:at] + b"]")
                if batch is not None:
                    self._cut(at)
                    self._cut(len(self._buffer) - len(self._buffer.lstrip()))
                    self._cut(1)  # the comma
                    return batch
        return None

    def _border(self, before: int) -> int:
        """Where the last "}" before `before` ends that is followed by a comma and a brace; 0: nowhere."""
        at = before
        while (at := self._buffer.rfind(b"{", 0, at)) > 0:
            found = _BORDER.search(self._buffer, max(0, at - 64), at)
            if found:
                return found.start() + 1
        return 0

    def _last(self) -> list[Any]:
        """The events up to the end of the list, and the members after it."""
        text = self._buffer.decode("utf-8", "replace")
        try:
            exact = Decimal if _LONG_FRACTION.search(self._buffer) else None
            events, end = json.JSONDecoder(strict=False, parse_float=exact).raw_decode("[" + text)
        except (ValueError, RecursionError) as error:
            return self._unterminated(error)
        rest = text[end - 1 :].strip()
        if rest and not self._tail(rest):
            self.notes.append(f"{len(rest)} bytes after the events are no JSON and were left out")
        elif not rest and self._in_object:
            self.notes.append("the file ends without its closing brackets; all events were read")
        return _lenient(events, self.where, self.n_events)

    def _tail(self, rest: str) -> bool:
        members = _members(("{" + rest.lstrip(", \t\r\n")).encode())
        if members is None:
            return rest in ("}", "]")
        self.head |= members
        return True

    def _unterminated(self, error: Exception) -> list[Any]:
        whole = self._buffer.rstrip(b" \t\r\n,\0")
        at = self._offset + len(self._buffer)
        batch = _decode(b"[" + whole + b"]") if not whole or whole.endswith(b"}") else None
        if batch is not None and (batch or self.n_events):
            self.notes.append(
                f"the file ends at byte {at} without its closing brackets; all {self.n_events + len(batch)} events were read"
            )
            return batch
        border, batch = len(self._buffer), None
        for _ in range(_TRIES):
            border = self._border(border)
            batch = _decode(b"[" + self._buffer[:border] + b"]") if border else []
            if batch is not None:
                break
        n = self.n_events + len(batch or [])
        lost = len(self._buffer) - border
        if not self.recover or batch is None or not n:
            what = str(error).split(":")[0][:100]
            raise DecodeError(
                f"{self.where}: byte {self._offset + max(border, 0)}: the file is cut off inside an event, or damaged ({what}): "
                f'expected events up to "]", found {n} whole ones, then {lost} bytes that are none. '
                + ("recover=True (--recover) reads what is whole." if n else "Record it again.")
            )
        self.notes.append(
            f"the file is cut off: the {n} whole events were read, the {lost} bytes after them left out"
        )
        return batch


def _members(text: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(text.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _decode(text: bytes) -> list[Any] | None:
    """The events of a JSON list; None where it is none."""
    try:
        batch: list[Any] = _DECODER.decode(text)
    except msgspec.ValidationError:
        try:
            return _lenient(_ANYTHING.decode(text), "", 0)
        except (msgspec.DecodeError, DecodeError, RecursionError, UnicodeDecodeError):
            return None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        # NaN, control characters, bytes that are no UTF-8: the profiler has written all of these
        try:
            return _lenient(json.loads(text.decode("utf-8", "replace"), strict=False), "", 0)
        except (ValueError, RecursionError, DecodeError):
            return None
    if any(e.ts is not None and e.ts >= _EXACT_US for e in batch) and _LONG_FRACTION.search(text):
        try:
            return _EXACT.decode(text)
        except msgspec.DecodeError:
            return batch
    return batch


def _lenient(events: Any, where: str, first: int) -> list[Any]:
    """Events from plain JSON values; an event that is none is refused, a member of another type ignored."""
    found = []
    for number, e in enumerate(events, first):
        if not isinstance(e, dict):
            raise DecodeError(f"{where}: traceEvents[{number}] is a {type(e).__name__}: expected an object.")
        args = e.get("args")
        raw = msgspec.Raw(_encode(args)) if isinstance(args, dict) and args else msgspec.Raw(b"")
        words = [e.get(k) if isinstance(e.get(k), str) else "" for k in ("ph", "cat", "name")]
        length = _number(e.get("dur"))
        length = float(length) if isinstance(length, Decimal) else length
        found.append(Event(*words, _number(e.get("ts")), length, e.get("tid"), raw))
    return found


def _encode(args: Any) -> bytes:
    try:
        return json.dumps(args, default=float).encode()
    except (ValueError, RecursionError, TypeError):
        return b""


def _number(value: Any) -> Any:
    if isinstance(value, Decimal):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def arguments(event: Any) -> dict[str, Any]:
    """The arguments of an event; empty where there are none."""
    raw = bytes(event.args)
    if not raw:
        return {}
    try:
        found = _ANYTHING.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return _members(raw) or {}
    return found if isinstance(found, dict) else {}


def nanoseconds(values: list[Any], where: str, what: str) -> np.ndarray:
    """Whole ns of microseconds (doubles or decimals), i64[n]; the nearest, exactly.

    Microseconds are split first: times a thousand, a double of a present-day clock would lose the last ns.
    """
    if any(isinstance(value, Decimal) for value in values):
        try:
            exact = [
                int((Decimal(value) * 1000).to_integral_value()) if value is not None else None
                for value in values
            ]
        except (InvalidOperation, ValueError, OverflowError):
            raise DecodeError(f"{where}: {what}: a time that is no number.") from None
        if any(ns is None or abs(ns) > _MAX_US * 1000 for ns in exact):
            raise DecodeError(f"{where}: {what}: a time is missing or beyond 64 bits: expected microseconds.")
        return np.array(exact, np.int64)
    us = np.array([np.nan if value is None else value for value in values], np.float64)
    bad = ~(np.abs(us) <= _MAX_US)
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise DecodeError(
            f"{where}: {what} of event {at} among these is {values[at]}: expected microseconds."
        )
    whole = np.floor(us)
    return whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)
