"""A NIC pulled in the middle of an all_reduce, at fractions of its time: how much longer it takes, and how soon it goes on.

T/T0 is compared with two laws: 2 − f, where one backup takes the whole load of the lost NIC (R²CCL, arXiv 2512.25059), and
1 + (1 − f) · X / (1 − X), where the load of the lost NIC is spread over the others of the node (X: the fraction lost). NICs are shaped.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ccl_lab import Topology, World, plan

from .record import percentiles

FRACTIONS = (0.1, 0.3, 0.5, 0.7, 0.9)
SHAPES = ((2, 4, 0.5), (2, 8, 0.25), (4, 4, 0.25), (4, 8, 0.125))  # nodes, NICs of each, Gb/s of each
NBYTES = "256MiB"
ROUNDS = 3


def hit(world: World, schedule: Any, fraction: float, seconds: float, node: int, nic: int, rate: float) -> dict[str, float]:
    """One all_reduce in which a NIC is pulled after `fraction` of `seconds`."""
    seen = len(world.faults.events)
    run = world.start(schedule)
    while run.state != "running":
        time.sleep(0.0002)
    time.sleep(max(run.begin_s + fraction * seconds - time.monotonic(), 0))
    pulled_ns = time.monotonic_ns()
    world.set_nic(node, nic, rate, up=False)
    trace = run.wait(120)
    run.check()
    time.sleep(0.1)
    events = world.faults.events[seen:]
    lost = [event["time_ns"] for event in events if event["kind"] == "lost"]
    resumed = [event["time_ns"] for event in events if event["kind"] == "resumed"]
    world.set_nic(node, nic, rate, up=True)
    return {
        "time_s": trace.time_us / 1e6,
        "detected_ms": (min(lost) - pulled_ns) / 1e6 if lost else float("nan"),
        "resumed_ms": (max(resumed) - min(lost)) / 1e6 if lost and resumed else float("nan"),
        "paths_lost": len(lost),
    }


def measure(nodes: int, nics: int, rate: float, nbytes: str = NBYTES, rounds: int = ROUNDS) -> dict[str, Any]:
    """Every fraction, on one shape."""
    topology = Topology.cluster(nodes=nodes, gpus_per_node=1, nics_per_node=nics, nic_gbits_per_s=rate)
    schedule = plan("all_reduce", topology, nbytes=nbytes, algorithm="ring")
    rows, lost = [], 1 / nics
    with World(topology, timeout="300s") as world:
        world.run(schedule)
        for fraction in FRACTIONS:
            found = []
            for _ in range(rounds):
                healthy = world.run(schedule).time_us / 1e6
                found.append(hit(world, schedule, fraction, healthy, nodes - 1, nics // 2, rate) | {"healthy_s": healthy})
                time.sleep(1.5)  # the NIC comes back
            ratio = float(np.median([each["time_s"] / each["healthy_s"] for each in found]))
            rows.append({
                "fraction": fraction, "ratio": ratio, "one_backup": 2 - fraction,
                "spread": 1 + (1 - fraction) * lost / (1 - lost),
                "detected_ms": percentiles([each["detected_ms"] for each in found]),
                "resumed_ms": percentiles([each["resumed_ms"] for each in found]), "runs": found,
            })  # fmt: skip
    return {"nodes": nodes, "nics": nics, "gbits_per_s": rate, "bytes": nbytes, "rows": rows}


def run() -> dict[str, Any]:
    """All shapes."""
    shapes = [measure(*shape) for shape in SHAPES]
    rows = [row for shape in shapes for row in shape["rows"]]
    over = max(row["ratio"] / row["spread"] for row in rows)
    slowest = max(row["resumed_ms"]["p50"] for row in rows)
    return {
        "summary": f"T/T0 at most {over:.3f} of 1 + (1 - f) X / (1 - X); sending again {slowest:.1f} ms after the loss was seen",
        "shapes": shapes,
    }
