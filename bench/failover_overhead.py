"""What being able to lose a NIC costs while none is lost: the same collectives with failover on and off, in turn.

Two worlds of the same two ranks on two nodes, NICs not shaped, take turns, and pairs alternate in order, so that drift of the machine falls
on both. The ratio is the median over pairs of on / off.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ccl_lab import Topology, World, plan

from .record import percentiles

SIZES = {"8": 300, "1KiB": 300, "64KiB": 150, "1MiB": 60, "16MiB": 8, "64MiB": 2}
PAIRS = 40
NICS = 4


@contextmanager
def failover(word: str) -> Iterator[None]:
    before = os.environ.get("CCL_LAB_FAILOVER")
    os.environ["CCL_LAB_FAILOVER"] = word
    try:
        yield
    finally:
        if before is None:
            del os.environ["CCL_LAB_FAILOVER"]
        else:
            os.environ["CCL_LAB_FAILOVER"] = before


def world(word: str, topology: Topology) -> World:
    with failover(word):
        return World(topology)


def run(sizes: dict[str, int] | None = None, pairs: int = PAIRS) -> dict[str, Any]:
    """Median ratios of an all_reduce with failover on to one with it off, by size."""
    topology = Topology.cluster(nodes=2, gpus_per_node=1, nics_per_node=NICS, nic_gbits_per_s=8)
    rows = []
    with world("on", topology) as on, world("off", topology) as off:
        for each in (on, off):
            for node in range(2):
                for nic in range(NICS):
                    each.set_nic(node, nic, 0)
        for size, repeat in (sizes or SIZES).items():
            schedule = plan("all_reduce", topology, nbytes=size, algorithm="ring")
            times: dict[str, list[float]] = {"on": [], "off": []}
            for pair in range(-2, pairs):
                turns = (("on", on), ("off", off)) if pair % 2 else (("off", off), ("on", on))
                for word, where in turns:
                    trace = where.run(schedule, repeat=repeat)
                    if pair >= 0:
                        times[word].append(trace.time_us)
            ratios = np.array(times["on"]) / np.array(times["off"])
            rows.append({"bytes": schedule.nbytes, "repeat": repeat, "on_us": percentiles(times["on"]),
                         "off_us": percentiles(times["off"]), "ratio": percentiles(ratios)})  # fmt: skip
    worst = max(rows, key=lambda row: row["ratio"]["p50"])
    return {
        "summary": f"failover on / off: median ratio {np.median([row['ratio']['p50'] for row in rows]):.3f}, "
        f"worst {worst['ratio']['p50']:.3f} at {worst['bytes']:,} bytes",
        "topology": topology.to_dict(),
        "algorithm": "ring",
        "rows": rows,
    }
