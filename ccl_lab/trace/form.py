"""What every file form of a trace shares: its metadata, its checksum and the bounds a reader keeps.

Is: the agreement between writers (export/) and readers (importers/). Is not: a format.
Invariants: a file carries `version`, `meta` (JSON) and `crc32` over meta and all columns in the order of
COLUMNS; a file written by version N is read by every later version.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import DecodeError, UsageError
from .columns import COLUMNS, TRACE_VERSION
from .model import Trace

MAX_SPANS = 100_000_000
MAX_META_BYTES = 64 * 2**20
MAX_FILE_BYTES = 16 * 2**30
# columns that came later than version 1; files before them lack them
SINCE = {"name": 2}
KEY_VERSION, KEY_META, KEY_CRC = "ccl_lab.trace", "ccl_lab.meta", "ccl_lab.crc32"


def encode_meta(meta: Mapping[str, Any]) -> str:
    """Meta as JSON text; the same text for equal meta."""
    return json.dumps(meta, sort_keys=True, allow_nan=False, separators=(",", ":"))


def decode_meta(text: bytes | str, where: str) -> dict[str, Any]:
    """The meta of `encode_meta`. Raises DecodeError naming `where`."""
    if len(text) > MAX_META_BYTES:
        raise DecodeError(f"{where}: meta is {len(text)} long: expected at most {MAX_META_BYTES}.")
    try:
        meta = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"{where}: meta is no JSON: {str(error)[:200]}") from None
    if not isinstance(meta, dict):
        raise DecodeError(f"{where}: meta is a {type(meta).__name__}: expected an object.")
    return meta


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is not JSON")


def columns_of(version: int) -> list[str]:
    """The columns that a file of this version has, in order."""
    return [name for name in COLUMNS if SINCE.get(name, 1) <= version]


def checksum(columns: Mapping[str, np.ndarray], meta_text: str, version: int = TRACE_VERSION) -> int:
    """CRC-32 of the meta text and all columns of that version: finds damage, not malice. Cost: about 1 ns per 2 bytes."""
    crc = zlib.crc32(meta_text.encode())
    for name in columns_of(version):
        crc = zlib.crc32(np.ascontiguousarray(columns[name]), crc)
    return crc


def check_version(version: Any, where: str) -> None:
    """Raises DecodeError unless this version of the form can be read."""
    if type(version) is not int or not 1 <= version <= TRACE_VERSION:
        newer = " A newer ccl_lab wrote it." if type(version) is int and version > TRACE_VERSION else ""
        raise DecodeError(
            f"{where}: trace version {str(version)[:40]!r}: expected 1..{TRACE_VERSION}.{newer}"
        )


def build(columns: Mapping[str, np.ndarray], meta: Mapping[str, Any], where: str) -> Trace:
    """The trace of decoded columns. Raises DecodeError where they, or the meta, are none."""
    try:
        return Trace(columns, meta)
    except (UsageError, RecursionError) as error:
        raise DecodeError(f"{where}: {str(error)[:200]}") from None


def check_content(trace: Trace, meta_text: str, crc: Any, where: str, version: int = TRACE_VERSION) -> None:
    """Raises DecodeError where the content is not what a writer of that version wrote."""
    found = checksum(trace.columns, meta_text, version)
    if type(crc) is not int or crc != found:
        expected = str(crc)[:40]
        raise DecodeError(
            f"{where}: checksum is {found}, expected {expected}: the file is damaged or was edited."
        )
