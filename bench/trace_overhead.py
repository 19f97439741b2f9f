"""What recording a trace costs: the same collective in two worlds, one that records and one that does not, in turn.

Pairs alternate in order, so that drift of the machine falls on both; the ratio is the median over pairs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ccl_lab import Topology, World, plan

from .record import percentiles

NBYTES, RANKS, PAIRS, REPEAT = 1 << 20, 2, 200, 10


def run() -> dict[str, Any]:
    """Median time of a 1 MiB all_reduce with and without recording, and their ratio."""
    topology = Topology.cluster(nodes=1, gpus_per_node=RANKS, nics_per_node=1)
    schedule = plan("all_reduce", topology, nbytes=NBYTES)
    times: dict[str, list[float]] = {"recording": [], "silent": []}
    with World(topology) as recording, World(topology, trace_spans=0) as silent:
        worlds = {"recording": recording, "silent": silent}
        for pair in range(-3, PAIRS):
            for name in sorted(worlds, reverse=bool(pair % 2)):
                trace = worlds[name].run(schedule, repeat=REPEAT)
                if pair >= 0:
                    times[name].append(trace.time_us)
    ratios = np.array(times["recording"]) / np.array(times["silent"])
    return {
        "summary": f"recording costs {100 * (np.median(ratios) - 1):+.2f} % of a 1 MiB all_reduce among {RANKS} ranks",
        "topology": topology.to_dict(),
        "bytes": NBYTES,
        "ranks": RANKS,
        "algorithm": schedule.algorithm,
        "iterations": PAIRS * REPEAT,
        "time_us": {name: percentiles(found) for name, found in times.items()},
        "ratio": percentiles(ratios),
    }
