"""After the loss, live: all_reduce with X of one node's NICs gone, by each algorithm, beside the healthy ring in the same run.

Four nodes of eight shaped NICs, one rank each. Rows: T/T0 measured, the algorithm's law, the lower bound. "lanes" is the healthy schedule
itself, whose lost lanes the repair spreads.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ccl_lab import Topology, World, plan
from ccl_lab.planner import formulas_degraded as law

from .record import percentiles

NODES, NICS, GBITS, NBYTES, ROUNDS = 4, 8, 0.1, "256MiB", 3
LOST = (1, 2, 3, 4)
NAMES = ("balance", "resilient", "mix")


def laws(x: float) -> dict[str, float]:
    return {"lanes": law.balance(x), "balance": law.balance(x), "resilient": law.resilient(NODES, x, k=8),
            "mix": law.mix(NODES, x), "bound": law.bound(NODES, x)}  # fmt: skip


def run() -> dict[str, Any]:
    """Median T/T0 of every algorithm for every loss."""
    topology = Topology.cluster(nodes=NODES, gpus_per_node=1, nics_per_node=NICS, nic_gbits_per_s=GBITS)
    ring = plan("all_reduce", topology, nbytes=NBYTES, algorithm="ring")
    rows = []
    with World(topology, timeout="120s") as world:
        world.run(ring)
        healthy = float(np.median([world.run(ring).time_us for _ in range(ROUNDS)]))
        for lost in LOST:
            gone = [(0, nic) for nic in range(1, 1 + lost)]
            world.faults.nic_down(node=0, nic=lost)
            world.run(ring)
            time.sleep(0.3)
            found: dict[str, list[float]] = {"lanes": []}
            found |= {name: [] for name in NAMES}
            plans = {name: plan("all_reduce", topology.without(*gone), nbytes=NBYTES, algorithm=name) for name in NAMES}
            for name in NAMES:
                world.run(plans[name], without=gone)
            for _ in range(ROUNDS):
                found["lanes"].append(world.run(ring).time_us / healthy)
                for name in NAMES:
                    found[name].append(world.run(plans[name], without=gone).time_us / healthy)
            rows.append({"x": lost / NICS, "ratio": {name: percentiles(each) for name, each in found.items()}, "law": laws(lost / NICS)})
        world.faults.heal()
        time.sleep(1.5)
        world.run(ring)
        after = float(np.median([world.run(ring).time_us for _ in range(ROUNDS)])) / healthy
    texts = [f"X = {row['x']:.3f}: " + ", ".join(f"{name} {each['p50']:.3f}" for name, each in row["ratio"].items()) for row in rows]
    return {
        "summary": "T/T0 live: " + "; ".join(texts) + f"; healed {after:.3f}",
        "topology": topology.to_dict(), "bytes": NBYTES, "healthy_us": healthy, "healed": after, "rows": rows,
    }  # fmt: skip
