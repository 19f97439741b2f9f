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
from ..columns import COLUMNS
from ..form import KEY_CRC, KEY_META, KEY_VERSION, MAX_SPANS, build, check_content, check_version, decode_meta
from ..model import Trace

ARROW_MAGIC = b"ARROW1"
PARQUET_MAGIC = b"PAR1"
ROW_BYTES = sum(dtype.itemsize for dtype in COLUMNS.values())
# runs of equal values take almost no bytes in Parquet, so rows are bounded by more than the file's size
_PARQUET_ROWS, _PARQUET_ROWS_PER_BYTE = 1_000_000, 64
_PARQUET_CODECS = {"UNCOMPRESSED", "SNAPPY", "LZ4", "LZ4_RAW"}
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
    source = pa.py_buffer(data).slice(8)
    batches = []
    try:
        messages = pa.ipc.MessageReader.open_stream(source)
        schema = pa.ipc.read_schema(messages.read_next_message())
        _check_schema(schema, where)
        version, meta_text, crc = _metadata(schema.metadata, where)
        n = 0
        for message in messages:
            where_batch = f"{where}: batch {len(batches)}"
            n += _batch_rows(message, where_batch)
            if n > MAX_SPANS or n * ROW_BYTES > len(data):
                raise DecodeError(f"{where_batch}: {n} spans in {len(data)} bytes: too many.")
            batches.append(pa.ipc.read_record_batch(message, schema))
        table = pa.Table.from_batches(batches, schema=schema)
    except (StopIteration, *_BAD) as error:
        raise DecodeError(f"{where}: batch {len(batches)}: {_line(error)}") from None
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
    place = "footer"
    try:
        file = pq.ParquetFile(pa.py_buffer(data), page_checksum_verification=True)
        rows, footer = file.metadata.num_rows, file.metadata
        if not 0 <= rows <= min(MAX_SPANS, _PARQUET_ROWS + _PARQUET_ROWS_PER_BYTE * len(data)):
            raise DecodeError(f"{where}: footer: {rows} spans in {len(data)} bytes: too many.")
        _check_schema(file.schema_arrow, where)
        _check_chunks(footer, rows, where)
        version, meta_text, crc = _metadata(file.schema_arrow.metadata, where)
        place = "data"
        table = file.read(columns=list(COLUMNS), use_threads=False)
    except _BAD as error:
        raise DecodeError(f"{where}: {place}: {_line(error)}") from None
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
    if schema.names != list(COLUMNS):
        names = str(schema.names)[:200]
        raise DecodeError(f"{where}: schema: columns {names}: expected {', '.join(COLUMNS)}.")
    for name, dtype in COLUMNS.items():
        found, expected = schema.field(name).type, pa.from_numpy_dtype(dtype)
        if not found.equals(expected):
            raise DecodeError(f"{where}: schema: column {name!r} is {str(found)[:80]}: expected {expected}.")


def _check_chunks(footer: Any, rows: int, where: str) -> None:
    """Codecs whose expansion is bounded, and row groups that add up."""
    total = 0
    for g in range(footer.num_row_groups):
        group = footer.row_group(g)
        total += group.num_rows
        if group.num_rows < 0 or group.num_columns != len(COLUMNS):
            raise DecodeError(f"{where}: row group {g}: {group.num_rows} rows, {group.num_columns} columns.")
        for c in range(group.num_columns):
            chunk = group.column(c)
            if chunk.compression not in _PARQUET_CODECS or chunk.num_values != group.num_rows:
                raise DecodeError(
                    f"{where}: row group {g}, column {c}: {chunk.num_values} values, codec {chunk.compression}: "
                    f"expected {group.num_rows} and one of {', '.join(sorted(_PARQUET_CODECS))}."
                )
    if total != rows:
        raise DecodeError(f"{where}: footer: row groups have {total} spans, the file {rows}.")


def _metadata(metadata: dict[bytes, bytes] | None, where: str) -> tuple[int, str, int]:
    """(version, meta text, checksum) of the schema's metadata."""
    metadata = metadata or {}
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
    return numbers[0], found[KEY_META], numbers[1]


def _batch_rows(message: Any, where: str) -> int:
    """Rows a record batch message declares. Refuses other messages and compressed bodies.

    Reads the flatbuffer by hand because Arrow would inflate the body before we could ask:
    Message {0 version, 1 header_type, 2 header, ...}, RecordBatch {0 length, 1 nodes, 2 buffers, 3
    compression}.
    """
    if message.type != "record batch":
        raise DecodeError(f"{where}: a {message.type} message: expected a record batch.")
    raw = message.metadata.to_pybytes()
    try:
        root = struct.unpack_from("<I", raw, 0)[0]
        header = _slot(raw, root, 2)
        batch = header + struct.unpack_from("<I", raw, header)[0]
        length, compression = _slot(raw, batch, 0), _slot(raw, batch, 3)
        rows = struct.unpack_from("<q", raw, length)[0] if length else 0
    except struct.error:
        raise DecodeError(f"{where}: the header is cut off.") from None
    if compression:
        raise DecodeError(f"{where}: the body is compressed: write it without compression.")
    if rows < 0:
        raise DecodeError(f"{where}: {rows} spans.")
    return rows


def _slot(raw: bytes, table: int, number: int) -> int:
    """Where field `number` of a flatbuffer table lies; 0: absent."""
    vtable = table - struct.unpack_from("<i", raw, table)[0]
    if vtable < 0 or 4 + 2 * number >= struct.unpack_from("<H", raw, vtable)[0]:
        return 0
    offset = struct.unpack_from("<H", raw, vtable + 4 + 2 * number)[0]
    return table + offset if offset else 0


def _columns(table: pa.Table, where: str) -> dict[str, np.ndarray]:
    columns = {}
    for name in COLUMNS:
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
        check_content(trace, meta_text, crc, where)
    return trace


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:200] or type(error).__name__
