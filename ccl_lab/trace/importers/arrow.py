"""Reads traces from Arrow IPC files and Parquet.

Is: a checked path from foreign bytes to a Trace. Is not: a general Arrow reader: only our columns with our
types, no nulls, no compression in `.arrow`.
Invariants: any input gives a Trace or a DecodeError naming file and place; nothing is allocated beyond a
fixed factor of the input size. An IPC file is read as the stream it contains, message by message, and each
batch header is looked at before Arrow decodes it; the footer is not used.

    "ARROW1\\0\\0" | schema message | record batch messages ... | end of stream | footer | length | "ARROW1"
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import DecodeError, UsageError
from ..columns import COLUMNS, TRACE_VERSION
from ..form import (
    KEY_CRC,
    KEY_META,
    KEY_VERSION,
    MAX_SPANS,
    build,
    check_content,
    check_version,
    columns_of,
    decode_meta,
)
from ..model import Trace
from .thrift import read_struct

ARROW_MAGIC = b"ARROW1"
PARQUET_MAGIC = b"PAR1"
_SCHEMA, _RECORD_BATCH = 1, 3
ROW_BYTES = sum(COLUMNS[name].itemsize for name in columns_of(1))
# runs of equal values take almost no bytes in Parquet, so rows are bounded by more than the file's size
_PARQUET_ROWS, _PARQUET_ROWS_PER_BYTE = 1_000_000, 64
_PARQUET_CODECS = {0, 1, 5, 7}  # none, snappy, lz4, lz4_raw
_WIDTHS = {len(columns_of(version)) for version in range(1, TRACE_VERSION + 1)}
_BAD = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, IndexError, OverflowError, MemoryError)


def read_arrow(data: bytes | memoryview, where: str, verify: bool = True) -> Trace:
    """The trace in the bytes of an Arrow IPC file. `verify=False` skips the checksum (fuzzing what lies
    behind)."""
    if len(data) < 24 or bytes(data[:8]) != ARROW_MAGIC + b"\0\0":
        raise DecodeError(f"{where}: byte 0: not an Arrow file: expected {ARROW_MAGIC!r}.")
    if bytes(data[-6:]) != ARROW_MAGIC:
        raise DecodeError(
            f"{where}: byte {len(data) - 6}: the Arrow file is cut off: expected {ARROW_MAGIC!r} at its end."
        )
    _check_batches(memoryview(data), where)
    try:
        with pa.ipc.open_stream(pa.py_buffer(data).slice(8)) as reader:
            _check_schema(reader.schema, where)
            version, meta_text, crc = _metadata(reader.schema, where)
            table = reader.read_all()
    except _BAD as error:
        raise DecodeError(f"{where}: {_line(error)}") from None
    return _trace(table, version, meta_text, crc if verify else None, where)


def read_parquet(data: bytes | memoryview, where: str, verify: bool = True) -> Trace:
    """The trace in the bytes of a Parquet file. `verify=False` skips our checksum."""
    import pyarrow.parquet as pq

    if len(data) < 12 or bytes(data[:4]) != PARQUET_MAGIC:
        raise DecodeError(f"{where}: byte 0: not a Parquet file: expected {PARQUET_MAGIC!r}.")
    if bytes(data[-4:]) != PARQUET_MAGIC:
        raise DecodeError(
            f"{where}: byte {len(data) - 4}: the Parquet file is cut off: expected {PARQUET_MAGIC!r}."
        )
    rows = _check_footer(data, where)
    try:
        file = pq.ParquetFile(pa.py_buffer(data), page_checksum_verification=True)
        _check_schema(file.schema_arrow, where)
        version, meta_text, crc = _metadata(file.schema_arrow, where)
        table = file.read(columns=columns_of(version), use_threads=False)
    except _BAD as error:
        raise DecodeError(f"{where}: {_line(error)}") from None
    if len(table) != rows:
        raise DecodeError(f"{where}: data: {len(table)} spans, the footer says {rows}.")
    return _trace(table, version, meta_text, crc if verify else None, where)


def from_table(table: Any) -> Trace:
    """The trace of a pyarrow.Table with our columns; without our metadata the meta is empty."""
    if not isinstance(table, pa.Table):
        raise UsageError(f"expected a pyarrow.Table, not a {type(table).__name__}.")
    where = "table"
    _check_schema(table.schema, where)
    metadata = table.schema.metadata or {}
    meta = decode_meta(metadata[KEY_META.encode()], where) if KEY_META.encode() in metadata else {}
    return Trace(_columns(table, where), meta)


def _check_schema(schema: pa.Schema, where: str) -> None:
    if schema.names not in [columns_of(version) for version in range(1, TRACE_VERSION + 1)]:
        names = str(schema.names)[:200]
        raise DecodeError(f"{where}: schema: columns {names}: expected {', '.join(COLUMNS)}.")
    for name in schema.names:
        found, expected = schema.field(name).type, pa.from_numpy_dtype(COLUMNS[name])
        if not found.equals(expected):
            raise DecodeError(f"{where}: schema: column {name!r} is {str(found)[:80]}: expected {expected}.")


def _check_footer(data: bytes | memoryview, where: str) -> int:
    """Rows a Parquet footer declares: row groups add up, codecs are those whose expansion is bounded.

    Reads the footer by hand: pyarrow 26 ends the process when asked for the codec of a damaged chunk.
    FileMetaData {3 num_rows, 4 row_groups}, RowGroup {1 columns, 3 num_rows}, ColumnChunk {1 file_path, 3
    meta_data}, ColumnMetaData {4 codec, 5 num_values}.
    """
    size = int.from_bytes(data[-8:-4], "little")
    if size > len(data) - 12:
        raise DecodeError(
            f"{where}: byte {len(data) - 8}: a footer of {size} bytes in a file of {len(data)}."
        )
    try:
        footer = read_struct(bytes(data[len(data) - 8 - size : len(data) - 8]))
        rows, total = footer[3], 0
        if not 0 <= rows <= min(MAX_SPANS, _PARQUET_ROWS + _PARQUET_ROWS_PER_BYTE * len(data)):
            raise DecodeError(f"{where}: footer: {rows} spans in {len(data)} bytes: too many.")
        for group in footer[4]:
            total += group[3]
            chunks = [chunk[3] for chunk in group[1] if 1 not in chunk]
            if len(chunks) not in _WIDTHS or not 0 <= group[3] <= rows:
                raise DecodeError(
                    f"{where}: footer: a row group of {len(chunks)} columns and {group[3]} spans."
                )
            for number, chunk in enumerate(chunks):
                if chunk[4] not in _PARQUET_CODECS or chunk[5] != group[3]:
                    raise DecodeError(
                        f"{where}: footer: column {number} has {chunk[5]} values in codec {chunk[4]}: expected "
                        f"{group[3]}, not compressed or by snappy or lz4."
                    )
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DecodeError(f"{where}: footer: {type(error).__name__}: {_line(error)}") from None
    if total != rows:
        raise DecodeError(f"{where}: footer: row groups have {total} spans, the file {rows}.")
    return int(rows)


def _metadata(schema: pa.Schema, where: str) -> tuple[int, str, int]:
    """(version, meta text, checksum) of the schema's metadata."""
    metadata: dict[bytes, bytes] = schema.metadata or {}
    found = {}
    for key in (KEY_VERSION, KEY_META, KEY_CRC):
        if key.encode() not in metadata:
            raise DecodeError(f"{where}: schema: no metadata {key!r}: not a trace written by ccl_lab.")
        try:
            found[key] = metadata[key.encode()].decode()
        except UnicodeDecodeError:
            raise DecodeError(f"{where}: schema: metadata {key!r} is no text.") from None
    numbers = []
    for key in (KEY_VERSION, KEY_CRC):
        text = found[key]
        if not (0 < len(text) <= 10 and text.isascii() and text.isdigit()):
            raise DecodeError(f"{where}: schema: metadata {key!r} is {text[:40]!r}: expected a number.")
        numbers.append(int(text))
    check_version(numbers[0], where)
    if schema.names != columns_of(numbers[0]):
        raise DecodeError(
            f"{where}: schema: columns of another version than {numbers[0]}, which the file says it is."
        )
    return numbers[0], found[KEY_META], numbers[1]


def _check_batches(data: memoryview, where: str) -> None:
    """Walks the messages of an IPC file: a schema, then record batches that are not compressed and not too
    long.

    Reads the flatbuffers by hand because Arrow would inflate a body, or allocate for it, before we could ask:
    Message {0 version, 1 header_type, 2 header, 3 bodyLength}, RecordBatch {0 length, ..., 3 compression}.
    """
    at, n, rows = 8, 0, 0
    try:
        while True:
            mark, size = struct.unpack_from("<Ii", data, at)
            if mark != 0xFFFFFFFF or size < 0:
                raise DecodeError(f"{where}: byte {at}: expected a message.")
            if size == 0:
                return
            raw = bytes(data[at + 8 : at + 8 + size])
            root = struct.unpack_from("<I", raw, 0)[0]
            kind, header, length = _slot(raw, root, 1), _slot(raw, root, 2), _slot(raw, root, 3)
            body = struct.unpack_from("<q", raw, length)[0] if length else 0
            kind = raw[kind] if kind else 0
            if kind != (_SCHEMA if n == 0 else _RECORD_BATCH):
                raise DecodeError(f"{where}: byte {at}: message {n} is of type {kind}: unexpected.")
            if not 0 <= body <= len(data):
                raise DecodeError(f"{where}: byte {at}: message {n} has a body of {body} bytes.")
            if n:
                rows += _batch_rows(raw, header, f"{where}: byte {at}: message {n}")
                if rows > MAX_SPANS or rows * ROW_BYTES > len(data):
                    raise DecodeError(f"{where}: byte {at}: {rows} spans in {len(data)} bytes: too many.")
            at, n = at + 8 + size + body, n + 1
    except (struct.error, IndexError):
        raise DecodeError(f"{where}: byte {at}: message {n} is cut off.") from None


def _batch_rows(raw: bytes, header: int, where: str) -> int:
    """Rows a record batch declares. Refuses compressed bodies."""
    batch = header + struct.unpack_from("<I", raw, header)[0]
    length, compression = _slot(raw, batch, 0), _slot(raw, batch, 3)
    rows = struct.unpack_from("<q", raw, length)[0] if length else 0
    if compression:
        raise DecodeError(f"{where}: the body is compressed: write it without compression.")
    if rows < 0:
        raise DecodeError(f"{where}: {rows} spans.")
    return rows


def _slot(raw: bytes, table: int, number: int) -> int:
    """Where field `number` of a flatbuffer table lies; 0: absent."""
    vtable = table - struct.unpack_from("<i", raw, table)[0]
    if vtable < 0:
        raise IndexError
    if 4 + 2 * number >= struct.unpack_from("<H", raw, vtable)[0]:
        return 0
    offset = struct.unpack_from("<H", raw, vtable + 4 + 2 * number)[0]
    return table + offset if offset else 0


def _columns(table: pa.Table, where: str) -> dict[str, np.ndarray]:
    columns = {}
    for name in table.schema.names:
        column = table.column(name)
        if column.null_count:
            raise DecodeError(f"{where}: column {name!r} has {column.null_count} nulls: expected none.")
        columns[name] = column.to_numpy()
    return columns


def _trace(table: pa.Table, version: int, meta_text: str, crc: int | None, where: str) -> Trace:
    try:
        table.validate(full=True)
        columns = _columns(table, where)
    except _BAD as error:
        raise DecodeError(f"{where}: data: {_line(error)}") from None
    trace = build(columns, decode_meta(meta_text, where), where)
    if crc is not None:
        check_content(trace, meta_text, crc, where, version)
    return trace


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:200] or type(error).__name__
