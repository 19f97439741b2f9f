"""Traces as a folder of Kineto files, one a rank, for tools that read torch.profiler's jobs (HTA, Perfetto, TensorBoard).

Is: what kept each rank busy, as kernels and copies on streams with the arguments of collectives; importers/kineto.py reads it back.
Is not: our own JSON (chrome.py), which keeps every column.
Invariants: absolute ns = baseTimeNanoseconds + ts · 1000, three decimals; a stream is a track of the trace; the partition of
what is written is that of the trace, up to time in which a rank was in a collective and did nothing.

HTA knows communication by names that fit ^nccl.*Kernel and nothing else, so communication with another name is written as
"ncclKernel_" and that name. HTA rounds times of ns to µs, inwards, unless HTA_DISABLE_NS_ROUNDING=1 is set; it counts memsets as
neither computation nor communication.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..columns import SpanKind, Track
from ..exposed import Occupation, occupations
from ..model import span_names
from ..stragglers import op_of

if TYPE_CHECKING:
    from ..model import Trace

NCCL = re.compile(r"^nccl.*Kernel")
_PREFIX = "ncclKernel_"
# streams of our own traces: a thousand for each track; foreign traces keep their streams
_STREAMS = 1000
# what HTA and Kineto call our collectives
_NAMES = {"all_reduce": "allreduce", "all_gather": "allgather", "reduce_scatter": "reduce_scatter", "all_to_all": "all_to_all",
          "all_to_allv": "all_to_allv"}  # fmt: skip


def write_kineto(trace: Trace, folder: Path) -> None:
    """Writes `folder`/rank_<r>.json for every rank that did something. Cost: about 5 µs per span."""
    busy = Busy(trace)
    for rank in busy.ranks:
        with open(folder / f"rank_{rank}.json", "w", encoding="utf-8", newline="\n") as file:
            file.writelines(_pieces(busy, rank))


class Busy:
    """The spans that keep ranks busy, with what the writers say of them."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        what = occupations(trace)
        rows = np.flatnonzero(what != Occupation.nothing)
        rows = rows[np.argsort(trace["begin_ns"][rows], kind="stable")]
        self.rows, self.what = rows, what[rows]
        self.rank_of = trace["rank"][rows]
        self.ranks: list[int] = np.unique(self.rank_of).tolist()
        self.names = span_names(trace[rows])
        self.imported = trace.meta.get("source") == "imported"
        stream = trace["index"][rows].astype(np.int64)
        self.stream = stream if self.imported else stream + trace["track"][rows].astype(np.int64) * _STREAMS
        self.origin = trace.begin_ns if trace.begin_ns >= 0 else 0

    def of(self, rank: int) -> Iterator[tuple[int, int, int, str, int]]:
        """(row of the trace, occupation, stream, name, number in order) of each span of a rank."""
        mine = np.flatnonzero(self.rank_of == rank).tolist()
        for number, at in enumerate(mine):
            yield int(self.rows[at]), int(self.what[at]), int(self.stream[at]), self.names[at], number


def _pieces(busy: Busy, rank: int) -> Iterator[str]:
    trace = busy.trace
    info = {
        "backend": str(trace.meta.get("backend") or "ccl_lab trace"),
        "rank": rank,
        "world_size": trace.n_ranks,
    }
    head = {
        "schemaVersion": 1,
        "distributedInfo": info,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": busy.origin,
    }
    # the rank has to stand on a line where a regular expression finds it
    yield json.dumps(head)[:-1] + ',\n"traceEvents": [\n'
    first = {
        "ph": "M",
        "name": "process_name",
        "pid": rank,
        "tid": 0,
        "ts": 0,
        "args": {"name": f"rank {rank}"},
    }
    yield json.dumps(first)
    begin, end = trace["begin_ns"], trace["end_ns"]
    for row, what, stream, name, number in busy.of(rank):
        start, stop = int(begin[row]) - busy.origin, int(end[row]) - busy.origin
        cat = "gpu_memcpy" if what == Occupation.memcpy else "kernel"
        args: dict[str, Any] = {
            "device": 0,
            "stream": stream,
            "correlation": number + 1,
            "External id": number + 1,
        }
        if what == Occupation.comm:
            args |= _collective(trace, row)
            name = name if NCCL.match(name) else _PREFIX + name
        elif what == Occupation.memcpy and not name.startswith("Memcpy"):
            name = f"Memcpy {name}"
        yield (
            f',\n{{"ph": "X", "cat": "{cat}", "name": {json.dumps(name)}, "pid": 0, "tid": {stream}, "ts": {_us(start)}, '
            f'"dur": {_us(max(0, stop - start))}, "args": {json.dumps(args)}}}'
        )
    yield f'\n],\n"traceName": "rank_{rank}.json"}}\n'


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _collective(trace: Trace, row: int) -> dict[str, Any]:
    """The arguments Kineto puts on a collective's kernel."""
    kind, peer, nbytes = int(trace["kind"][row]), int(trace["peer"][row]), int(trace["nbytes"][row])
    coll, track = int(trace["coll_id"][row]), int(trace["track"][row])
    if track != Track.channel or kind not in (SpanKind.collective, SpanKind.put, SpanKind.wait):
        return {}
    op = {SpanKind.put: "send", SpanKind.wait: "recv"}.get(SpanKind(kind), op_of(trace, coll))
    if not op or (op in ("send", "recv") and peer < 0):
        return {}
    found = {
        "Collective name": _NAMES.get(op, op),
        "In msg nelems": nbytes,
        "Out msg nelems": nbytes,
        "dtype": "Byte",
    }
    sizes = trace.meta.get("coll_ranks")
    size = sizes[coll] if isinstance(sizes, list) and coll < len(sizes) else 0
    found |= {"Group size": size or trace.n_ranks, "Process Group Name": "0"}
    if op in ("send", "recv"):
        return found | {"Dst Rank" if op == "send" else "Src Rank": peer}
    return found | {"Seq": coll}
