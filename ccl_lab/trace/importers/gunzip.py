"""Unpacks gzip as a stream.

Is: a reader that gives what was packed, piece by piece. Is not: a guard of memory for callers that keep all of it.
Invariants: a read gives at most what was asked for; damage, and an end that comes too early, are a DecodeError naming file and
byte, or with `recover` for an early end the end of the stream.
"""

from __future__ import annotations

import io
import zlib
from typing import BinaryIO

from ...errors import DecodeError
from ..form import MAX_FILE_BYTES

_PIECE = 2**18
_WITH_HEADER = 31


class Gunzip(io.RawIOBase):
    """The unpacked bytes of a gzip stream (of several members, one after the other)."""

    def __init__(self, packed: BinaryIO, where: str, recover: bool = False) -> None:
        super().__init__()
        self._packed, self._where, self._recover = packed, where, recover
        self._unpack = zlib.decompressobj(_WITH_HEADER)
        self._waiting, self._given = b"", 0

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._packed.close()
        super().close()

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes; b"" at the end."""
        out = bytearray()
        while size < 0 or len(out) < size:
            piece = self._piece(_PIECE if size < 0 else min(_PIECE * 8, size - len(out)))
            if not piece:
                break
            out += piece
        return bytes(out)

    def _piece(self, most: int) -> bytes:
        while True:
            if self._unpack.eof:
                self._waiting = self._unpack.unused_data.lstrip(b"\0") or self._packed.read(_PIECE).lstrip(
                    b"\0"
                )
                if not self._waiting:
                    return b""
                self._unpack = zlib.decompressobj(_WITH_HEADER)
            if not self._waiting:
                self._waiting = self._packed.read(_PIECE)
                if (
                    not self._waiting
                    and not (piece := self._unpack.decompress(b"", most))
                    and not self._unpack.eof
                ):
                    if self._recover and self._given:
                        return b""
                    raise DecodeError(
                        f"{self._where}: byte {self._given} of the unpacked file: the gzip file is cut off: expected its end. "
                        "recover=True (--recover) reads what is whole."
                    )
            try:
                piece = self._unpack.decompress(self._waiting, most)
            except zlib.error as error:
                raise DecodeError(
                    f"{self._where}: byte {self._given} of the unpacked file: no gzip: {str(error)[:120]}."
                ) from None
            self._waiting = self._unpack.unconsumed_tail
            self._given += len(piece)
            if self._given > MAX_FILE_BYTES:
                raise DecodeError(f"{self._where}: unpacks to more than {MAX_FILE_BYTES} bytes.")
            if piece:
                return piece
