"""One trace of a job from what each rank recorded: the same collective gets one number, clocks are aligned.

Is: `Part` (one rank's spans, whatever the file format was), the match of collectives across ranks, the estimate of each rank's
clock, and the Trace. Is not: a reader of any format.
Invariants: durations never change; a rank's clock is moved as a whole; meta says what was done: `clock` (offset per rank,
residual), `classified`, `notes`, `files`.

Matching: collectives of one process group by their sequence number where the file has it, else the k-th of an operation on each
rank is the same collective. Clocks: ranks leave a synchronising collective together, so the ends of matched ones differ by
the clock alone; the offset of a rank is the median over collectives of (its end − the median end).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from ...errors import DecodeError
from ..columns import SpanKind, SpanStatus, Track
from ..form import MAX_SPANS, build
from ..model import Trace

MAX_RANKS = 2**24
_MAX_NAME = 400
_MAX_LISTED = 10_000
_SYNCHRONISE = {
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "barrier",
    "send_recv",
    "communication",
}
_ROUNDS = 20
_WORDS = (
    ("reducescatter", "reduce_scatter"), ("allreduce", "all_reduce"), ("allgather", "all_gather"), ("alltoall", "all_to_all"),
    ("sendrecv", "send_recv"), ("broadcast", "broadcast"), ("barrier", "barrier"), ("dispatch", "dispatch"), ("combine", "combine"),
    ("scatter", "scatter"), ("gather", "gather"), ("reduce", "reduce"), ("send", "send"), ("recv", "recv"),
)  # fmt: skip
# element sizes as c10d, Kineto and the flight recorder spell the types
_BYTES = {"float": 4, "float32": 4, "int": 4, "int32": 4, "uint32": 4, "double": 8, "float64": 8, "long": 8, "int64": 8, "uint64": 8,
          "half": 2, "float16": 2, "bfloat16": 2, "short": 2, "int16": 2, "uint16": 2, "char": 1, "int8": 1, "byte": 1, "uint8": 1,
          "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "complexfloat": 8,
          "complexdouble": 16, "complex64": 8, "complex128": 16}  # fmt: skip


class Doing(IntEnum):
    """What a span of a part is."""

    compute = 0
    communication = 1
    memcpy = 2


@dataclass(slots=True)
class Comm:
    """What is known of one communication span. `op`: our word for it; `seq` −1, `nbytes` 0, `peer` −1: not known."""

    op: str
    group: str = ""
    seq: int = -1
    nbytes: int = 0
    peer: int = -1
    n_ranks: int = 0
    dtype: str = ""


@dataclass
class Part:
    """The spans of one rank: `doing` u8[n], begin_ns, end_ns, lane i64[n], name i64[n] into `names`; `comms` by row."""

    where: str
    form: str
    rank: int
    n_ranks: int
    doing: np.ndarray
    begin_ns: np.ndarray
    end_ns: np.ndarray
    lane: np.ndarray
    name: np.ndarray
    names: list[str]
    comms: dict[int, Comm]
    status: np.ndarray | None = None
    nbytes: np.ndarray | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def op_word(text: str) -> str:
    """Our word for what a library calls a collective: "ncclDevKernel_AllReduce_Sum_f32_RING_LL" is an all_reduce."""
    squeezed = re.sub(r"[^a-z]", "", text[:200].lower())
    return next((ours for theirs, ours in _WORDS if theirs in squeezed), "communication")


def item_bytes(dtype: Any) -> int:
    """Bytes of an element of a type by any of its names; 0 where it is not known."""
    return _BYTES.get(str(dtype).lower().removeprefix("torch."), 0)


def rank_in_name(name: str) -> int:
    """The rank a file's name speaks of: rank-3, rank3, worker3, nccl_trace_3, x.3.et; −1: none."""
    stem = re.sub(r"\.(json|gz|pt|trace|et|pickle|pkl|tar|tgz)\b", "", name.rsplit("/", 1)[-1])
    found = re.search(
        r"(?:rank|worker|chakra|nccl_trace)[-_.]?(?:rank[-_.]?)?(\d{1,7})(?!\d)", stem
    ) or re.search(r"[._-](\d{1,7})$", stem)
    return int(found[1]) if found else -1


def assemble(parts: Iterable[Part], classified: list[dict[str, Any]], align: bool = True) -> Trace:
    """The trace of all ranks. Raises DecodeError where two files claim one rank, or none has a span."""
    parts = list(parts)
    _name_ranks(parts)
    total = sum(len(part.begin_ns) for part in parts)
    if not total:
        where = ", ".join(part.where for part in parts)
        raise DecodeError(
            f"{where}: no kernel, copy or collective in it: expected what devices did, or torch.distributed's own operations. "
            "Record with ProfilerActivity.CUDA (or the device's), during steps that run."
        )
    if total > MAX_SPANS:
        raise DecodeError(f"{parts[0].where}: {total} spans in all: expected at most {MAX_SPANS}.")
    notes = [
        note if len(parts) == 1 else f"rank {part.rank}: {note}" for part in parts for note in part.notes
    ]
    coll_of, ops = _match(parts, notes)
    sizes = [0] * len(ops)
    for part, colls in zip(parts, coll_of, strict=True):
        for row, number in colls.items():
            sizes[number] = max(sizes[number], part.comms[row].n_ranks)
    clock = _align(parts, coll_of, ops) if align else None
    return _trace(
        parts,
        coll_of,
        ops,
        {"coll_ranks": sizes, "clock": clock, "classified": classified, "notes": notes[:_MAX_LISTED]},
    )


def _name_ranks(parts: list[Part]) -> None:
    taken: dict[int, str] = {}
    for part in parts:
        if part.rank >= 0:
            if part.rank in taken:
                raise DecodeError(
                    f"{part.where}: rank {part.rank} is already in {taken[part.rank]}: expected one file a rank. "
                    "Leave one of them out."
                )
            taken[part.rank] = part.where
    free = (rank for rank in range(len(parts) + len(taken) + 1) if rank not in taken)
    for part in parts:
        if part.rank < 0:
            part.rank = next(free)
            part.notes.append(f"the file does not say its rank: taken as rank {part.rank}")
    parts.sort(key=lambda part: part.rank)


def _match(parts: list[Part], notes: list[str]) -> tuple[list[dict[int, int]], list[str]]:
    """Per part the collective number of each communication span, and per number its word. Numbers in order of begin."""
    begins: dict[tuple[Any, ...], int] = {}
    words: dict[tuple[Any, ...], str] = {}
    counts: dict[tuple[Any, ...], dict[int, int]] = {}
    keyed: list[list[tuple[int, tuple[Any, ...]]]] = []
    for part in parts:
        order = sorted(part.comms, key=lambda row: (int(part.begin_ns[row]), row))
        seen: dict[tuple[Any, ...], int] = {}
        mine = []
        for row in order:
            comm = part.comms[row]
            stem = _stem(comm, part.rank)
            number = seen[stem] = seen.get(stem, -1) + 1
            key = (*stem, number)
            mine.append((row, key))
            begin = int(part.begin_ns[row])
            if key not in begins or begin < begins[key]:
                begins[key] = begin
            words.setdefault(key, comm.op)
        keyed.append(mine)
        for stem, last in seen.items():
            if stem[1] < 0:
                counts.setdefault(stem, {})[part.rank] = last + 1
    for stem, by_rank in counts.items():
        if len(set(by_rank.values())) > 1 and len(notes) < _MAX_LISTED:
            few, many = min(by_rank, key=lambda r: by_rank[r]), max(by_rank, key=lambda r: by_rank[r])
            notes.append(
                f"rank {few} has {by_rank[few]} of {stem[2]}, rank {many} {by_rank[many]}: matched from the first on"
            )
    order = sorted(begins, key=lambda key: (begins[key], str(key)))
    number_of = {key: number for number, key in enumerate(order)}
    return [{row: number_of[key] for row, key in mine} for mine in keyed], [words[key] for key in order]


def _stem(comm: Comm, rank: int) -> tuple[Any, ...]:
    """What the k-th of is the same collective on all ranks: (group, sequence number, operation, pair)."""
    if comm.op in ("send", "recv"):
        return (
            comm.group,
            comm.seq,
            "p2p",
            min(rank, comm.peer),
            max(rank, comm.peer),
            (comm.op == "send") == (rank < comm.peer),
        )
    return (comm.group, comm.seq, comm.op)


def _align(parts: list[Part], coll_of: list[dict[int, int]], ops: list[str]) -> dict[str, Any] | None:
    """Moves the clocks together; what was found, or None where no two ranks share a synchronising collective."""
    rows = [
        (number, index, int(part.end_ns[row]))
        for index, (part, colls) in enumerate(zip(parts, coll_of, strict=True))
        for row, number in colls.items()
        if ops[number] in _SYNCHRONISE and (part.status is None or part.status[row] == SpanStatus.ok)
    ]
    if not rows:
        return None
    coll, who, end = np.array(sorted(rows), np.int64).T
    shared = np.bincount(coll, minlength=len(ops))[coll] > 1
    coll, who, end = coll[shared], who[shared], end[shared]
    if not len(coll):
        return None
    origin = int(end.min())
    offset = np.zeros(len(parts), np.int64)
    for _ in range(_ROUNDS):
        late = _deviation(coll, end - origin - offset[who])
        step = np.array(
            [int(np.median(late[who == r])) if (who == r).any() else 0 for r in range(len(parts))], np.int64
        )
        offset += step
        if not step.any():
            break
    offset -= offset[0]
    for part, move in zip(parts, offset.tolist(), strict=True):
        part.begin_ns, part.end_ns = part.begin_ns - move, part.end_ns - move
    left = np.abs(_deviation(coll, end - origin - offset[who]))
    return {
        "method": "ends of collectives",
        "collectives": int(len(np.unique(coll))),
        "offset_us": {str(part.rank): move / 1e3 for part, move in zip(parts, offset.tolist(), strict=True)},
        "residual_us": {"median": float(np.median(left)) / 1e3, "max": float(left.max()) / 1e3},
    }


def _deviation(coll: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Each end minus the median end of its collective; `coll` is sorted."""
    order = np.lexsort((end, coll))
    starts = np.flatnonzero(np.concatenate(([True], coll[1:] != coll[:-1])))
    counts = np.diff(np.append(starts, len(coll)))
    ordered = end[order]
    middle = (ordered[starts + (counts - 1) // 2] + ordered[starts + counts // 2]) // 2
    return end - np.repeat(middle, counts)


def _trace(parts: list[Part], coll_of: list[dict[int, int]], ops: list[str], meta: dict[str, Any]) -> Trace:
    names: dict[str, int] = {"": 0}
    columns: dict[str, list[np.ndarray]] = {}
    for part, colls in zip(parts, coll_of, strict=True):
        for name, values in _columns(part, colls, names).items():
            columns.setdefault(name, []).append(values)
    whole = {name: np.concatenate(values) for name, values in columns.items()}
    order = np.lexsort((whole["end_ns"], whole["begin_ns"]))
    firsts = [part.meta for part in parts]
    agreed = {k: v for k, v in firsts[0].items() if all(other.get(k) == v for other in firsts[1:])}
    known = [part.n_ranks for part in parts if part.n_ranks > 0]
    meta = {
        "source": "imported",
        "format": parts[0].form if len({part.form for part in parts}) == 1 else "mixed",
        "n_ranks": max([*known, *(part.rank + 1 for part in parts)]),
        "files": [part.where for part in parts][:_MAX_LISTED],
        "names": list(names),
        "coll_ops": ops,
        **agreed,
        **meta,
    }
    where = parts[0].where
    return build({name: values[order] for name, values in whole.items()}, meta, where)


def _columns(part: Part, colls: dict[int, int], names: dict[str, int]) -> dict[str, np.ndarray]:
    n = len(part.begin_ns)
    numbers = np.array(
        [names.setdefault(name[:_MAX_NAME], len(names)) for name in part.names] or [0], np.uint32
    )
    lanes, lane = np.unique(part.lane, return_inverse=True)
    if len(lanes) > 65536:
        raise DecodeError(f"{part.where}: {len(lanes)} streams: expected at most 65536.")
    # the device's own number of a stream where it fits, else they are counted
    index = part.lane if len(lanes) and 0 <= lanes[0] and lanes[-1] < 65536 else lane.reshape(-1)
    track = np.array([Track.compute, Track.channel, Track.copy], np.uint8)[part.doing]
    kind = np.array([SpanKind.compute, SpanKind.collective, SpanKind.copy], np.uint8)[part.doing]
    coll, peer = np.zeros(n, np.uint32), np.full(n, -1, np.int32)
    nbytes = np.zeros(n, np.int64) if part.nbytes is None else part.nbytes.astype(np.int64)
    for row, comm in part.comms.items():
        coll[row], peer[row], nbytes[row] = colls[row], comm.peer, comm.nbytes
        if comm.op in ("send", "recv") and comm.peer >= 0:
            kind[row] = SpanKind.put if comm.op == "send" else SpanKind.wait
    return {
        "rank": np.full(n, part.rank, np.int32),
        "track": track,
        "index": index.astype(np.uint16),
        "kind": kind,
        "status": np.zeros(n, np.uint8) if part.status is None else part.status.astype(np.uint8),
        "coll_id": coll,
        "peer": peer,
        "nbytes": nbytes,
        "begin_ns": part.begin_ns.astype(np.int64),
        "end_ns": part.end_ns.astype(np.int64),
        "name": numbers[part.name] if n else np.zeros(0, np.uint32),
    }
