"""Reads pickles that hold builtin containers and scalars, and nothing else.

Is: the way to read a flight recorder's default file without running what is in it. Is not: pickle.load, which runs whatever
the file says.
Invariants: no class or function named in the file is ever looked up or called; persistent ids and extension codes are refused;
any bytes give plain data or a DecodeError.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any, NoReturn

from ...errors import DecodeError

MAX_BYTES = 2**30
# what builds dicts, lists, tuples, sets, numbers, text and bytes; nothing that imports, calls or sets state
_ALLOWED = {
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET",
    "LONG_BINGET", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8", "EMPTY_LIST", "APPEND", "APPENDS", "LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT", "DICT",
    "SETITEM", "SETITEMS", "EMPTY_SET", "ADDITEMS", "FROZENSET",
}  # fmt: skip
_MAX_MEMO = 50_000_000


class _Plain(pickle.Unpickler):
    """The second fence: the opcodes have been looked at already."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it has a persistent id")


def read_plain(data: bytes, where: str) -> Any:
    """The plain data in a pickle. Raises DecodeError naming what else it holds, before anything is built."""
    if len(data) > MAX_BYTES:
        raise DecodeError(f"{where}: a pickle of {len(data)} bytes: expected at most {MAX_BYTES}.")
    try:
        for opcode, argument, at in pickletools.genops(data):
            if opcode.name not in _ALLOWED:
                named = f" ({str(argument)[:80]})" if argument is not None else ""
                raise DecodeError(
                    f"{where}: byte {at}: the pickle would run code: {opcode.name}{named}. Expected only dicts, lists, tuples, text "
                    "and numbers, as the flight recorder writes; this file was not read. Do not load it with pickle either."
                )
            if opcode.name in ("PUT", "LONG_BINPUT") and int(argument) > _MAX_MEMO:
                raise DecodeError(f"{where}: byte {at}: a memo of {argument} entries: the pickle is damaged.")
        return _Plain(io.BytesIO(data), encoding="utf-8", errors="replace").load()
    except DecodeError:
        raise
    except MemoryError:
        raise DecodeError(f"{where}: the pickle is too large for the memory of this machine.") from None
    except RecursionError:
        raise DecodeError(f"{where}: the pickle nests too deep.") from None
    except Exception as error:  # an unpickler raises anything at all on damaged bytes
        raise DecodeError(f"{where}: no whole pickle: {type(error).__name__}: {str(error)[:160]}.") from None
