"""Reads one rank of a torch.profiler (Kineto) job, of any age, on CUDA, ROCm or another device.

Is: from events to a Part: kernels, copies and sets on their streams, collectives with their arguments. Is not: the file layer
(events.py), the table of classes (classes.py), several ranks (job.py).
Invariants: absolute ns = baseTimeNanoseconds + ts · 1000, exactly; any bytes give a Part or a DecodeError.

Old files write "Kernel", "Memcpy", "Memset" for today's "kernel", "gpu_memcpy", "gpu_memset", whole absolute microseconds, and no
collective arguments; new ones put these on the kernels, those between on `record_param_comms` with the same External id. A
job without a device (Gloo, or our own backend) has host operations only, and these count then.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from ...errors import DecodeError
from .classes import Classifier, SpanClass
from .events import EventFile, arguments, nanoseconds
from .job import MAX_RANKS, Comm, Doing, Part, item_bytes, op_word, rank_in_name

_DEVICE = {
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "Kernel",
    "Memcpy",
    "Memset",
    "concurrent_kernel",
    "mtia_ccp_events",
    "hpu_kernel",
}
_COPIES = {
    "gpu_memcpy": SpanClass.memcpy,
    "Memcpy": SpanClass.memcpy,
    "gpu_memset": SpanClass.memset,
    "Memset": SpanClass.memset,
}
_HOST = {"cpu_op", "user_annotation", "Operator", "cpu_instant_event"}
_DOING = {SpanClass.compute: Doing.compute, SpanClass.memset: Doing.compute, SpanClass.memcpy: Doing.memcpy,
          SpanClass.communication: Doing.communication}  # fmt: skip
_PARAM_COMMS = "record_param_comms"
_FACTS = ("backend", "nccl_version")


def read_kineto(
    open_file: Callable[[], BinaryIO], where: str, classifier: Classifier, recover: bool = False
) -> Part:
    """The rank in a Kineto file; `open_file` opens its (unpacked) bytes, once or, for jobs without a device, twice."""
    reader = _Reader(where, classifier, recover, host=False)
    with open_file() as stream:
        part = reader.read(stream)
    if len(part.begin_ns) or not reader.n_host:
        return part
    reader = _Reader(where, classifier, recover, host=True)
    with open_file() as stream:
        part = reader.read(stream)
    part.notes.append("no device in it: what the host did is shown")
    return part


class _Reader:
    def __init__(self, where: str, classifier: Classifier, recover: bool, host: bool) -> None:
        self.where, self.classifier, self.recover, self.host = where, classifier, recover, host
        self.cats = _HOST if host else _DEVICE
        self.names: dict[tuple[str, str], int] = {}
        self.classes: list[int] = []
        self.n_host = 0
        self.batches: list[tuple[np.ndarray, ...]] = []
        self.lanes: dict[Any, int] = {}
        self.comms: dict[int, dict[str, Any]] = {}
        self.params: dict[int, dict[str, Any]] = {}
        self.n = 0

    def read(self, stream: BinaryIO) -> Part:
        file = EventFile(stream, self.where, self.recover)
        for batch in file:
            self._batch(batch)
        return self._part(file)

    def _batch(self, events: list[Any]) -> None:
        cats = self.cats
        mine = [e for e in events if e.cat in cats and e.ph == "X"]
        for e in events:
            if e.name == _PARAM_COMMS and e.cat in _HOST:
                args = arguments(e)
                if type(args.get("External id")) is int and "Collective name" in args:
                    self.params[args["External id"]] = args
        self.n_host += sum(1 for e in events if e.cat in _HOST)
        names = self.names
        which = [names.setdefault((e.name, e.cat if e.cat in _COPIES else ""), len(names)) for e in mine]
        for name, cat in list(names)[len(self.classes) :]:
            self.classes.append(self._class(name, cat))
        classes = np.array(self.classes, np.uint8)[which] if which else np.zeros(0, np.uint8)
        keep = np.flatnonzero(classes != SpanClass.ignore)
        if len(keep) < len(mine):
            mine = [mine[i] for i in keep.tolist()]
            which = [which[i] for i in keep.tolist()]
            classes = classes[keep]
        self._columns(mine, which, classes)

    def _class(self, name: str, cat: str) -> int:
        rule = self.classifier.rule(name)
        if self.host:
            return int(rule.span_class if rule.library == "host" else SpanClass.ignore)
        if rule.library == "host":
            return int(SpanClass.compute)
        if cat and rule.span_class == SpanClass.compute:
            # the profiler itself says that it is a copy, whatever it is called
            return int(_COPIES[cat])
        return int(rule.span_class)

    def _columns(self, mine: list[Any], which: list[int], classes: np.ndarray) -> None:
        begin = nanoseconds([e.ts for e in mine], self.where, "ts")
        length = nanoseconds([0.0 if e.dur is None else e.dur for e in mine], self.where, "dur")
        if (length < 0).any():
            at = int(np.flatnonzero(length < 0)[0])
            raise DecodeError(
                f"{self.where}: {mine[at].name[:60]!r} lasts {length[at]} ns: expected 0 or more."
            )
        lanes = self.lanes
        lane = [
            e.tid
            if type(e.tid) is int and 0 <= e.tid < 65536
            else lanes.setdefault(str(e.tid), 65535 - len(lanes))
            for e in mine
        ]
        for row in np.flatnonzero(classes == SpanClass.communication).tolist():
            self.comms[self.n + row] = _kept(arguments(mine[row]))
        self.batches.append((np.array(which, np.int64), classes, begin, length, np.array(lane, np.int64)))
        self.n += len(mine)

    def _part(self, file: EventFile) -> Part:
        which, classes, begin, length, lane = (
            np.concatenate(column) for column in zip(*self.batches, strict=True)
        )
        begin = begin + _base(file.head, self.where)
        names = [name for name, _ in self.names]
        self.classifier.account(names, which, length)
        info = file.head.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        rank, n_ranks = _count(info.get("rank"), MAX_RANKS), _count(info.get("world_size"), MAX_RANKS)
        doing = np.array([_DOING.get(SpanClass(c), 0) for c in range(4)], np.uint8)[classes]
        comms = {row: self._comm(args, names[which[row]]) for row, args in self.comms.items()}
        return Part(
            self.where, "kineto", rank if rank >= 0 else rank_in_name(self.where), max(n_ranks, 0), doing, begin, begin + length,
            lane, which, names, comms, notes=file.notes, meta={k: info[k] for k in _FACTS if isinstance(info.get(k), str)},
        )  # fmt: skip

    def _comm(self, args: dict[str, Any], name: str) -> Comm:
        if "Collective name" not in args:
            args = self.params.get(args.get("External id", -1), args)
        said = args.get("Collective name")
        if not isinstance(said, str) or not said:
            return Comm(op_word(name))
        sizes = [_count(args.get(key)) for key in ("In msg nelems", "Out msg nelems")]
        group = str(args.get("Process Group Name", "")) + ranks_text(args.get("Process Group Ranks"))
        op = _p2p(said) or op_word(said)
        peer = (
            _count(args.get("Dst Rank" if op == "send" else "Src Rank"), MAX_RANKS)
            if op in ("send", "recv")
            else -1
        )
        return Comm(op, group, _count(args.get("Seq")), max(0, *sizes) * item_bytes(args.get("dtype")), peer,
                    max(0, _count(args.get("Group size"), MAX_RANKS)), str(args.get("dtype", "")))  # fmt: skip


_KEPT = ("External id", "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "Process Group Name",
         "Process Group Ranks", "Src Rank", "Dst Rank", "Seq")  # fmt: skip


def _kept(args: dict[str, Any]) -> dict[str, Any]:
    return {key: args[key] for key in _KEPT if key in args and not isinstance(args[key], dict)}


def _p2p(word: str) -> str:
    return word if word in ("send", "recv") else ""


def _count(value: Any, limit: int = 2**48) -> int:
    """A whole number below the limit; −1 where it is none."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 12:
        value = int(value)
    return value if type(value) is int and 0 <= value < limit else -1


def ranks_text(ranks: Any) -> str:
    """The ranks of a group as one text, from a list, a quoted list or a shortened one; "" where there are none."""
    if isinstance(ranks, str):
        try:
            ranks = json.loads(ranks)
        except (ValueError, RecursionError):
            # "[0, 1, 2, ..., 62, 63]" as long lists are written
            return f" {ranks[:200]}"
    return f" {ranks[:2000]}" if isinstance(ranks, list) and ranks else ""


def _base(head: dict[str, Any], where: str) -> int:
    base = head.get("baseTimeNanoseconds", 0)
    if isinstance(base, str) and base.isascii() and base.isdigit():
        base = int(base)
    if type(base) is not int or not 0 <= base < 2**62:
        raise DecodeError(f"{where}: baseTimeNanoseconds is {str(base)[:40]}: expected ns of 62 bits.")
    return base
