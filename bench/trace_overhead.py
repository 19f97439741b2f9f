"""What recording a trace costs: the same collective in one world, with recording switched on and off in turn.

Pairs alternate in order, so that drift of the machine falls on both; the ratio is the median over pairs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ccl_lab import Topology, World, plan
from ccl_lab.units import format_size

from .record import percentiles

RANKS, PAIRS = 2, 60
REPEATS = {64 << 10: 1000, 256 << 10: 400, 1 << 20: 200, 16 << 20: 10}  # by bytes of the message


def run() -> dict[str, Any]:
    """Median times of all_reduce with and without recording, and their ratio, by size."""
    topology = Topology.cluster(nodes=1, gpus_per_node=RANKS, nics_per_node=1)
    with World(topology) as world:
        cases = [_case(world, nbytes, repeat) for nbytes, repeat in REPEATS.items()]
    told = ", ".join(f"{format_size(one['bytes'])} {100 * (one['ratio']['p50'] - 1):+.1f} %" for one in cases)
    return {"summary": f"recording costs of an all_reduce among {RANKS} ranks: {told}", "topology": topology.to_dict(), "ranks": RANKS,
            "cases": cases}  # fmt: skip


def _case(world: World, nbytes: int, repeat: int) -> dict[str, Any]:
    schedule = plan("all_reduce", world.topology, nbytes=nbytes)
    times: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(-3, PAIRS):
        for recording in (False, True) if pair % 2 else (True, False):
            world.set_tracing(recording)
            trace = world.run(schedule, repeat=repeat)
            if pair >= 0:
                times[recording].append(trace.time_us)
    ratios = np.array(times[True]) / np.array(times[False])
    return {
        "bytes": nbytes, "algorithm": schedule.algorithm, "iterations": PAIRS * repeat,
        "time_us": {"recording": percentiles(times[True]), "silent": percentiles(times[False])}, "ratio": percentiles(ratios),
    }  # fmt: skip
