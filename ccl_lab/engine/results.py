"""Turns drained spans and times into the Trace of a run.

Is: the meta data of a measured trace. Is not: statistics (trace). Invariant: `time_us` is the median over repeats of
(last rank out - last rank in), so that a late start of one process is not counted as communication.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..topo import Topology
from ..trace import Trace
from ..trace.columns import COLUMNS

if TYPE_CHECKING:
    from .run import Run


def durations_us(times: dict[int, list[list[int]]]) -> list[float]:
    """µs of each repeat, from [begin_ns, end_ns] per rank and repeat."""
    if not times:
        return []
    whole = np.array([times[rank] for rank in sorted(times)], np.int64)  # [ranks, repeats, 2]
    return ((whole[:, :, 1].max(axis=0) - whole[:, :, 0].max(axis=0)) / 1e3).tolist()


def trace_of(
    run: Run,
    topology: Topology,
    spans: np.ndarray,
    drops: int,
    times: dict[int, list[list[int]]],
    transport: str,
) -> Trace:
    """The trace of `run` so far."""
    columns = {name: spans[name] for name in COLUMNS} if spans.dtype.names else {}
    each = durations_us(times)
    schedule = run.schedule
    meta: dict[str, Any] = {
        "source": "measured",
        "collective": schedule.collective,
        "algorithm": schedule.algorithm,
        "n_ranks": schedule.n_ranks,
        "nbytes": run.layout.message_nbytes(),
        "dtype": run.layout.dtype,
        "redop": run.redop,
        "in_place": schedule.in_place,
        "time_us": float(np.median(each)) if each else None,
        "times_us": each,
        "topology": topology.to_dict(),
        "emulated": topology.emulated,
        "transport": transport,
        "schedule_digest": schedule.digest,
        "drops": int(drops),
        "run": run.number,
    }
    if run.device:
        meta["device"] = run.device
    return Trace(columns, meta)
