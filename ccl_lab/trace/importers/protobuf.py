"""Reads and writes the wire form of protobuf, as much of it as Chakra needs.

Is: varints, length-delimited messages, packed numbers. Is not: a protobuf library: no descriptors, no groups.
Invariants: any bytes give fields or a ValueError; nothing is allocated beyond the input.

    field: varint (number << 3 | type), then by type: 0 varint, 1 eight bytes, 2 varint length and bytes, 5 four bytes
"""

from __future__ import annotations

from collections.abc import Iterator


def varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, where it ends) of the varint at `at`. Raises ValueError."""
    value = shift = 0
    while True:
        if at >= len(data):
            raise ValueError(f"a number is cut off at byte {at}")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
        if shift > 63:
            raise ValueError(f"a number of more than 64 bits before byte {at}")


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of each field of a message; a value is an int (varint) or bytes. Raises ValueError."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise ValueError(f"field number 0 before byte {at}")
        if kind == 0:
            value, at = varint(data, at)
            yield number, value
            continue
        if kind not in (1, 2, 5):
            raise ValueError(f"a field of wire type {kind} before byte {at}")
        size = 8 if kind == 1 else 4 if kind == 5 else -1
        if size < 0:
            size, at = varint(data, at)
        if size > len(data) - at:
            raise ValueError(f"{size} bytes wanted at byte {at}, {len(data) - at} left")
        yield number, data[at : at + size]
        at += size


def numbers(value: int | bytes) -> list[int]:
    """A repeated number: one, or packed many."""
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        number, at = varint(value, at)
        found.append(number)
    return found


def signed(value: int) -> int:
    """A varint as an int64."""
    return value - 2**64 if value >= 2**63 else value


def put_varint(value: int) -> bytes:
    """The varint of a number (negative: as 64 bits)."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def put_int(number: int, value: int) -> bytes:
    """A varint field."""
    return put_varint(number << 3) + put_varint(value)


def put_bytes(number: int, value: bytes | str) -> bytes:
    """A length-delimited field."""
    raw = value.encode() if isinstance(value, str) else value
    return put_varint(number << 3 | 2) + put_varint(len(raw)) + raw


def delimited(message: bytes) -> bytes:
    """A message with its length before it."""
    return put_varint(len(message)) + message
