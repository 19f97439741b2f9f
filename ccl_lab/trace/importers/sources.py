"""Opens what people have: files of any known trace format, packed or not, several ranks in a tar or a folder.

Is: the look at the first bytes that says what a file is, and the way from paths to a Trace. Is not: any one format.
Invariants: the content decides, then the suffix; nothing is unpacked to disk; members of an archive are read in place and their
names only tell ranks; any bytes give a Trace or a DecodeError naming file, place, what was expected and found.
"""

from __future__ import annotations

import io
import json
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ...arguments import file_path
from ...errors import DecodeError, UnsupportedError, UsageError
from ..form import MAX_FILE_BYTES
from .chakra import read_chakra
from .classes import Classifier, Rule
from .flight import is_flight, read_flight
from .gunzip import Gunzip
from .job import Part, assemble
from .kineto import read_kineto
from .unpickle import MAX_BYTES, read_plain

if TYPE_CHECKING:
    from ..model import Trace

Open = Callable[[], BinaryIO]
_HEAD = 2**20
_MAX_JSON_BYTES = 2 * 2**30
_MAX_MEMBERS = 100_000
_OURS = {b"ARROW1": ".arrow", b"PAR1": ".parquet"}
_IN_FOLDERS = (".json", ".json.gz", ".et", ".pickle", ".pkl", ".tar.gz", ".tgz", ".tar", ".gz")
KNOWN = (
    "Kineto or Chrome JSON (.json, .json.gz), our own (.arrow, .parquet, .json), flight recorder (JSON or pickle), Chakra (.et), "
    "or a tar of these, one a rank"
)


def load_job(
    paths: Sequence[str | Path],
    classes: str | Path | Iterable[Rule] | None = None,
    align: bool = True,
    recover: bool = False,
) -> Trace:
    """The trace of one job from one file a rank, an archive of such, or a folder. See Trace.load."""
    from ..model import Trace

    if not paths:
        raise UsageError("no file named: expected one or more traces.")
    classifier = Classifier(classes)
    whole: list[Trace] = []
    parts: list[Part] = []
    for path in _files([file_path(each) for each in paths]):
        for found in _read(path, classifier, recover):
            if isinstance(found, Trace):
                whole.append(found)
            else:
                parts.append(found)
    if parts:
        whole.append(assemble(parts, classifier.report(), align))
    return whole[0] if len(whole) == 1 else Trace.concat(whole)


def _files(paths: Sequence[str | Path]) -> Iterator[Path]:
    for path in map(Path, paths):
        if not path.is_dir():
            yield path
            continue
        inside = sorted(
            p
            for p in path.iterdir()
            if p.is_file() and not p.name.startswith(".") and p.name.lower().endswith(_IN_FOLDERS)
        )
        if not inside:
            raise UsageError(f"{path} is not a file, and no trace is in that folder: expected {KNOWN}.")
        yield from inside


def _read(path: Path, classifier: Classifier, recover: bool) -> Iterator[Trace | Part]:
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise UsageError(f"{path} is not a file.")
        if size > MAX_FILE_BYTES:
            raise DecodeError(f"{path}: {size} bytes: expected at most {MAX_FILE_BYTES}.")
        yield from _parts(lambda: open(path, "rb"), str(path), classifier, recover)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from None


def read_bytes(
    data: bytes, where: str, classes: Any = None, align: bool = True, recover: bool = False
) -> Trace:
    """The trace in bytes of any format; `where` is its name. Never raises anything but DecodeError."""
    from ..model import Trace

    classifier = Classifier(classes)
    found = list(_parts(lambda: io.BytesIO(data), where, classifier, recover))
    whole = [trace for trace in found if isinstance(trace, Trace)]
    parts = [part for part in found if isinstance(part, Part)]
    if parts:
        whole.append(assemble(parts, classifier.report(), align))
    return whole[0] if len(whole) == 1 else Trace.concat(whole)


def _parts(
    open_file: Open, where: str, classifier: Classifier, recover: bool, depth: int = 0
) -> Iterator[Trace | Part]:
    with open_file() as stream:
        head = _some(stream, _HEAD)
    if not head:
        raise DecodeError(
            f"{where}: byte 0: the file is empty (0 bytes): expected {KNOWN}. Was the job stopped before it wrote?"
        )
    if head[:2] == b"\x1f\x8b":
        if depth > 2:
            raise DecodeError(f"{where}: byte 0: packed more than three times.")
        yield from _parts(lambda: Gunzip(open_file(), where, recover), where, classifier, recover, depth + 1)
    elif head[257:262] == b"ustar":
        if depth > 2:
            raise DecodeError(f"{where}: byte 0: an archive in an archive.")
        yield from _members(open_file, where, classifier, recover, depth + 1)
    else:
        yield _one(open_file, head, where, classifier, recover)


def _some(stream: BinaryIO, n: int) -> bytes:
    """Up to n bytes."""
    found = b""
    while len(found) < n and (piece := stream.read(n - len(found))):
        found += piece
    return found


def _one(open_file: Open, head: bytes, where: str, classifier: Classifier, recover: bool) -> Trace | Part:
    from ..files import decode

    name = where.lower()
    for magic, suffix in _OURS.items():
        if head.startswith(magic) or name.endswith(suffix):
            return decode(_all(open_file, where, MAX_FILE_BYTES), suffix, where)
    if name.endswith(".pftrace"):
        raise UnsupportedError(
            f"{where}: Perfetto files are only written. Load the .arrow, .parquet or .json of the run; open this one "
            "in https://ui.perfetto.dev."
        )
    if head[0] == 0x80 and head[1:2] and 2 <= head[1] <= 5:
        return read_flight(read_plain(_all(open_file, where, MAX_BYTES), where), where)
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:1] in (b"{", b"["):
        return _json(open_file, head, where, classifier, recover)
    if name.endswith(".et"):
        return read_chakra(_all(open_file, where, _MAX_JSON_BYTES), where, classifier)
    if head[:2] == b"PK":
        raise DecodeError(f"{where}: byte 0: a zip archive: unpack it first; expected {KNOWN}.")
    raise DecodeError(
        f"{where}: byte 0: no JSON object and no other known format; it begins {head[:12]!r}: expected {KNOWN}."
    )


def _json(open_file: Open, head: bytes, where: str, classifier: Classifier, recover: bool) -> Trace | Part:
    from ..files import decode

    events = head.find(b'"traceEvents"')
    if (
        b'"ccl_lab"' in (head[:events] if events >= 0 else head)
        and b'"distributedInfo": {"backend": "ccl_lab"' in head
    ):
        return decode(_all(open_file, where, _MAX_JSON_BYTES), ".json", where)
    entries = head.find(b'"entries"')
    if events < 0 and (entries >= 0 or len(head) < _HEAD):
        data = _all(open_file, where, _MAX_JSON_BYTES)
        try:
            value = json.loads(data.decode("utf-8", "replace"))
        except (ValueError, RecursionError) as error:
            if data.lstrip()[:1] != b"[":
                raise DecodeError(
                    f"{where}: byte {len(data)}: no whole JSON: {str(error)[:120]}: expected {KNOWN}."
                ) from None
            value = None
        if is_flight(value):
            return read_flight(value, where)
        if isinstance(value, dict):
            keys = ", ".join(map(str, list(value)[:6]))[:120]
            raise DecodeError(
                f'{where}: byte 0: a JSON object of {{{keys}}}: expected "traceEvents" (Kineto) or "entries" (flight recorder).'
            )
        if isinstance(value, list) and not any(isinstance(e, dict) and "ph" in e for e in value[:100]):
            raise DecodeError(
                f'{where}: byte 0: a JSON list without events: expected objects with "ph" and "ts".'
            )
    return read_kineto(open_file, where, classifier, recover)


def _all(open_file: Open, where: str, limit: int) -> bytes:
    with open_file() as stream:
        out = io.BytesIO()
        while piece := stream.read(2**20):
            out.write(piece)
            if out.tell() > limit:
                raise DecodeError(f"{where}: more than {limit} bytes: expected at most that.")
    return out.getvalue()


def _members(
    open_file: Open, where: str, classifier: Classifier, recover: bool, depth: int
) -> Iterator[Trace | Part]:
    found = 0
    try:
        with open_file() as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for number, member in enumerate(archive):
                if number >= _MAX_MEMBERS:
                    raise DecodeError(f"{where}: more than {_MAX_MEMBERS} members.")
                base = member.name.rsplit("/", 1)[-1]
                if not member.isreg() or base.startswith(".") or not base.lower().endswith(_IN_FOLDERS):
                    continue
                inside = archive.extractfile(member)
                data = inside.read() if inside and member.size <= _MAX_JSON_BYTES else None
                if data is None or len(data) < member.size:
                    raise DecodeError(
                        f"{where}: member {member.name!r} of {member.size} bytes is cut off or too large."
                    )
                found += 1
                yield from _parts(
                    lambda data=data: io.BytesIO(data), f"{where}:{member.name}", classifier, recover, depth
                )
    except (tarfile.TarError, EOFError, zlib.error, ValueError, OverflowError) as error:
        if isinstance(error, DecodeError):
            raise
        raise DecodeError(
            f"{where}: no whole tar archive: {str(error)[:160]}: expected one of {KNOWN}."
        ) from None
    if not found:
        raise DecodeError(
            f"{where}: no trace in this archive: expected members ending in {', '.join(_IN_FOLDERS)}."
        )
