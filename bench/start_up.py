"""How long a World takes to be ready, and to be gone."""

from __future__ import annotations

import time
from typing import Any

from ccl_lab import Topology, World

from .record import percentiles

SIZES, ITERATIONS = (2, 8, 64), 5


def run() -> dict[str, Any]:
    """Seconds from World(...) to ready and for close(), per number of ranks."""
    found = {}
    for ranks in SIZES:
        topology = Topology.cluster(nodes=2, gpus_per_node=ranks // 2, nics_per_node=min(4, ranks // 2))
        ready, closed = [], []
        for _ in range(ITERATIONS):
            begin = time.perf_counter()
            world = World(topology)
            ready.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            world.close()
            closed.append(time.perf_counter() - begin)
        found[str(ranks)] = {"ready_s": percentiles(ready), "closed_s": percentiles(closed)}
    summary = ", ".join(f"{ranks} ranks {row['ready_s']['p50']:.2f} s" for ranks, row in found.items())
    return {"summary": f"ready in: {summary}", "iterations": ITERATIONS, "ranks": found}
