"""Chakra execution traces replayed with predicted collectives: the same graph on another machine.

Is: the durations; the walk along dependencies is the reader's (ccl_lab.trace.importers.chakra). Is not: several ranks at once: one
rank's file stands for all, as every rank of a collective is taken to come when this one does. Invariant: a collective without a
size in the file keeps the file's duration, and the trace's notes count them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Union

from ...arguments import amount, file_path
from ...errors import DecodeError
from ...trace import Trace
from ...trace.importers.chakra import COMPUTE, replay_chakra
from ...trace.importers.classes import Classifier
from ...trace.importers.job import Comm, assemble
from .nccl import FACTORS
from .platforms import Platform
from .predict import predict

_AS = {"send": "send_recv", "recv": "send_recv", "gather": "all_gather", "scatter": "broadcast"}
"""Ops of the format that the models have under another name: a gather costs at most an all_gather, a scatter at most a broadcast."""

Groups = Mapping[str, tuple[int, int]]


def replay(
    path: Union[str, Path],
    platform: Union[str, Platform],
    *,
    nodes: int,
    gpus: int,
    groups: Groups | None = None,
    compute: float = 1.0,
) -> Trace:
    """One rank's .et file as it would run on `platform`: computation as recorded, collectives as predicted.

    path: a Chakra .et file. platform: as in `predict`, but with rates of NCCL. nodes, gpus: of a process group that `groups` does not name.
    groups: {pg_name: (nodes, gpus)}. compute: factor on computation (0.5: twice as fast).

    Returns a Trace (label "model" in meta, notes say what was kept); its time is the last span's end. Raises DecodeError for a file
    that is none, UsageError for a group that does not fit. Cost: some us a node.
    """
    path = file_path(path)
    compute = amount(compute, "compute")
    kept: dict[str, int] = {}
    known: dict[tuple[Any, ...], int] = {}

    def duration_ns(node: dict[str, Any], comm: Comm | None) -> int | None:
        if comm is None:
            return round(node["duration"] * 1000 * compute) if node["type"] == COMPUTE else None
        op = _AS.get(comm.op, comm.op)
        if op not in FACTORS or not comm.nbytes:
            kept[comm.op] = kept.get(comm.op, 0) + 1
            return None
        at = (2 if nodes > 1 else 1, 2) if op == "send_recv" else (groups or {}).get(comm.group, (nodes, gpus))
        key = (op, comm.nbytes, at)
        if key not in known:
            known[key] = round(predict(op, platform, comm.nbytes, nodes=at[0], gpus=at[1]).time_us * 1000)
        return known[key]

    try:
        data = path.read_bytes()
    except OSError as error:
        raise DecodeError(f"{path}: cannot be read ({error}).") from None
    part = replay_chakra(data, path.name, classifier := Classifier(), duration_ns)
    part.rank = max(part.rank, 0)
    part.notes += [f"{count} {op} kept the file's duration: no size, or no model" for op, count in sorted(kept.items())]
    trace = assemble([part], classifier.report(), align=False)
    trace.meta["label"] = "model"
    return trace
