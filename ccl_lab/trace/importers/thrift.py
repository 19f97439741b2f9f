"""Reads structs in Thrift's compact protocol, the encoding of a Parquet footer.

Is: a decoder from bytes to {field id: value} with nested dicts and lists, so that a footer can be looked
at before a library trusts it. Is not: a Thrift library: no names, no services, nothing is written.
Invariants: any bytes give a dict or a ValueError; nesting and sizes are bounded by the input.

    field: (id delta << 4 | type) [zigzag id if delta is 0] value; a 0 byte ends the struct
"""

from __future__ import annotations

from typing import Any

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_INTEGERS = (4, 5, 6)
_MAX_DEPTH = 12


def read_struct(data: bytes) -> dict[int, Any]:
    """The struct at the begin of `data`: field id -> int, bytes, bool, list or dict. Raises ValueError."""
    try:
        return _Reader(data).struct(0)
    except IndexError:
        raise ValueError("the struct is cut off") from None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def byte(self) -> int:
        value = self.data[self.at]
        self.at += 1
        return value

    def varint(self) -> int:
        value, shift = 0, 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ValueError(f"a number of more than 64 bits before byte {self.at}")

    def integer(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise ValueError(f"{size} bytes wanted at byte {self.at}, {len(self.data) - self.at} left")
        self.at += size
        return self.data[self.at - size : self.at]

    def struct(self, depth: int) -> dict[int, Any]:
        found: dict[int, Any] = {}
        number = 0
        while head := self.byte():
            number = number + (head >> 4) if head >> 4 else self.integer()
            kind = head & 0x0F
            found[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self.value(kind, depth)
        return found

    def value(self, kind: int, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise ValueError(f"structs nested deeper than {_MAX_DEPTH} at byte {self.at}")
        if kind in _INTEGERS:
            return self.integer()
        if kind in (_BYTE, _TRUE, _FALSE):
            return self.byte()
        if kind == _DOUBLE:
            return self.take(8)
        if kind == _BINARY:
            return self.take(self.varint())
        if kind in (_LIST, _SET):
            head = self.byte()
            size = head >> 4 if head >> 4 < 15 else self.varint()
            if size > len(self.data) - self.at:
                raise ValueError(f"a list of {size} at byte {self.at}, {len(self.data) - self.at} bytes left")
            return [self.value(head & 0x0F, depth + 1) for _ in range(size)]
        if kind == _STRUCT:
            return self.struct(depth + 1)
        raise ValueError(f"a value of type {kind} at byte {self.at}")
