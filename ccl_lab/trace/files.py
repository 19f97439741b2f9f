"""Files of traces, by suffix.

Is: the table from suffix to writer and reader, whole-or-nothing writing, bounded reading of our own forms. Is not:
any one format, nor the look at foreign files (importers/sources.py).
Invariants: a file that exists under its name is complete (written beside it, then renamed); reading raises
DecodeError for any bytes that are no trace, UsageError for a suffix or path that cannot be meant.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments import file_path
from ..errors import DecodeError, UsageError

if TYPE_CHECKING:
    from .model import Trace

SUFFIXES = (".arrow", ".parquet", ".json", ".json.gz", ".pftrace", ".kineto", ".et", ".flight.json")
PER_RANK = (".et", ".flight.json")
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
    path = file_path(path)
    suffix = suffix_of(path)
    if not path.parent.is_dir():
        raise UsageError(f"{path}: the folder {path.parent} does not exist.")
    if suffix == ".kineto":
        return _save_folder(trace, path)
    if suffix in PER_RANK:
        return _save_ranks(trace, path, suffix)
    return _whole(path, lambda temporary: _writer(suffix)(trace, temporary, **options))


def _whole(path: Path, write: Callable[[Path], Any]) -> Path:
    """Writes a file beside its place and moves it there."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    try:
        write(Path(temporary))
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def _save_ranks(trace: Trace, path: Path, suffix: str) -> Path:
    """One file a rank: x.et for one rank, x.0.et, x.1.et, ... for several. Returns the path of the first."""
    if suffix == ".et":
        from .export.chakra import encode_ranks
    else:
        from .export.flight import encode_ranks
    files = encode_ranks(trace)
    if not files:
        raise UsageError(f"{path}: no rank does anything in this trace that a {suffix} file could say.")
    stem, several, paths = path.name[: -len(suffix)], len(files) > 1, []
    for rank, data in files.items():
        name = f"{stem}.{rank}{path.name[-len(suffix) :]}" if several else path.name
        paths.append(_whole(path.with_name(name), lambda temporary, data=data: temporary.write_bytes(data)))
    return paths[0]


def _save_folder(trace: Trace, path: Path) -> Path:
    """A folder with a file for each rank, moved to its place when complete; replaces only a folder of such files."""
    from .export.kineto import write_kineto

    if path.exists() and not (
        path.is_dir() and all(re.fullmatch(r"rank_\d+\.json", p.name) for p in path.iterdir())
    ):
        raise UsageError(f"{path} exists and is no folder of rank_<r>.json files: name another.")
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        write_kineto(trace, temporary)
        os.chmod(temporary, 0o777 & ~_umask())
        if path.exists():
            shutil.rmtree(path)
        os.replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
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


def load(*paths: str | Path, **options: Any) -> Trace:
    """Reads a trace of any format (importers/sources.py). Raises UsageError where there is no such file,
    DecodeError for bytes that are no trace, UnsupportedError for formats that are only written."""
    from .importers.sources import load_job

    return load_job(paths, **options)


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
