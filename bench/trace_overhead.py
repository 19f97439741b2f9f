"""What recording a trace costs: the same collective in one world, with recording switched on and off in turn.

Pairs alternate in order, so that drift of the machine falls on both; the ratio is the median over pairs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ccl_lab import Topology, World, plan

from .record import percentiles

NBYTES, RANKS, PAIRS, REPEAT = 1 << 20, 2, 60, 200


def run() -> dict[str, Any]:
    """Median time of a 1 MiB all_reduce with and without recording, and their ratio."""
    topology = Topology.cluster(nodes=1, gpus_per_node=RANKS, nics_per_node=1)
    schedule = plan("all_reduce", topology, nbytes=NBYTES)
    times: dict[bool, list[float]] = {True: [], False: []}
    with World(topology) as world:
        for pair in range(-3, PAIRS):
            for recording in (False, True) if pair % 2 else (True, False):
                world.set_tracing(recording)
                trace = world.run(schedule, repeat=REPEAT)
                if pair >= 0:
                    times[recording].append(trace.time_us)
    ratios = np.array(times[True]) / np.array(times[False])
    return {
        "summary": f"recording costs {100 * (np.median(ratios) - 1):+.2f} % of a 1 MiB all_reduce among {RANKS} ranks",
        "topology": topology.to_dict(),
        "bytes": NBYTES,
        "ranks": RANKS,
        "algorithm": schedule.algorithm,
        "iterations": PAIRS * REPEAT,
        "time_us": {"recording": percentiles(times[True]), "silent": percentiles(times[False])},
        "ratio": percentiles(ratios),
    }
