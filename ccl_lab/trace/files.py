"""Files of traces, by suffix.

Is: the table from suffix to writer and reader, whole-or-nothing writing, bounded reading. Is not: any one
format.
Invariants: a file that exists under its name is complete (written beside it, then renamed); reading raises
DecodeError for any bytes that are no trace, UsageError for a suffix or path that cannot be meant.
"""

from __future__ import annotations

import gzip
import io
import os
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DecodeError, UnsupportedError, UsageError
from .form import MAX_FILE_BYTES

if TYPE_CHECKING:
    from .model import Trace

SUFFIXES = (".arrow", ".parquet", ".json", ".json.gz", ".pftrace")
MAX_JSON_BYTES = 2 * 2**30
_PIECE = 2**20


def suffix_of(path: str | Path) -> str:
    """Which of SUFFIXES a path has. Raises UsageError naming the known ones."""
    name = Path(path).name.lower()
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if name.endswith(suffix):
            return suffix
    raise UsageError(
        f"{name!r}: the suffix does not say which format is meant. Known: {', '.join(SUFFIXES)}."
    )


def save(trace: Trace, path: str | Path, **options: Any) -> Path:
    """Writes `trace` in the format of the suffix; options are those of the writer (`schedule=` for flows).

    Returns the path. Raises UsageError for an unknown suffix or a folder that does not exist.
    """
    path = Path(path)
    suffix = suffix_of(path)
    if not path.parent.is_dir():
        raise UsageError(f"{path}: the folder {path.parent} does not exist.")
    write = _writer(suffix)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    try:
        write(trace, Path(temporary), **options)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _writer(suffix: str) -> Callable[..., None]:
    if suffix == ".arrow":
        from .export.arrow import write_arrow

        return lambda trace, path, schedule=None: write_arrow(trace, path)
    if suffix == ".parquet":
        from .export.arrow import write_parquet

        return lambda trace, path, schedule=None: write_parquet(trace, path)
    if suffix == ".pftrace":
        from .export.perfetto import write_perfetto

        return write_perfetto
    from .export.chrome import write_chrome

    return lambda trace, path, schedule=None: write_chrome(trace, path, schedule, zipped=suffix == ".json.gz")


def load(path: str | Path) -> Trace:
    """Reads a trace. Raises UsageError where there is no such file, DecodeError for bytes that are no
    trace of ours, UnsupportedError for formats that are only written."""
    path = Path(path)
    suffix = suffix_of(path)
    if suffix == ".pftrace":
        raise UnsupportedError(
            f"{path}: Perfetto files are only written. Load the .arrow, .parquet or .json of the run; open this one "
            "in https://ui.perfetto.dev."
        )
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise UsageError(f"{path} is not a file.")
        if size > MAX_FILE_BYTES:
            raise DecodeError(f"{path}: {size} bytes: expected at most {MAX_FILE_BYTES}.")
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from None
    return decode(data, suffix, str(path))


def decode(data: bytes, suffix: str, where: str, verify: bool = True) -> Trace:
    """The trace in `data`, which has the format of `suffix`. Never raises anything but DecodeError.

    `verify=False` skips the checksum of the content. Cost: about 50 µs for what is refused at once.
    """
    if suffix in (".arrow", ".parquet"):
        from .importers.arrow import read_arrow, read_parquet

        return (read_arrow if suffix == ".arrow" else read_parquet)(data, where, verify)
    from .importers.chrome import read_chrome

    if suffix == ".json.gz":
        data = unzip(data, where)
    return read_chrome(data, where, verify)


def unzip(data: bytes, where: str, limit: int = MAX_JSON_BYTES) -> bytes:
    """The content of a gzip file, at most `limit` bytes of it."""
    out = io.BytesIO()
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            while piece := stream.read(_PIECE):
                out.write(piece)
                if out.tell() > limit:
                    raise DecodeError(f"{where}: unpacks to more than {limit} bytes.")
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DecodeError(
            f"{where}: byte {out.tell()} of the unpacked file: no gzip: {str(error)[:200]}"
        ) from None
    return out.getvalue()
