"""One NIC of eight lost: how much longer a training step and a decode step take, on live rails beside an emulated device.

Two nodes of eight shaped NICs. The device computes on a timer and uses no core, as a GPU would not. A training step: a backward pass that
hands out a bucket of gradients at a time, whose all_reduce runs behind it; the step ends when the last bucket is reduced. A decode
step: layers, each of them some computation and then an all_reduce that nothing hides. The ratios below are assumptions and are in the
record: R²CCL (arXiv 2512.25059) gives its results (< 1 % and < 3 %), not these ratios.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ccl_lab import Topology, World, plan

from .record import percentiles

NODES, NICS, GBITS = 2, 8, 0.1
BUCKETS, BUCKET, BACKWARD_S, FORWARD_S = 8, "8MiB", 2.6, 1.4
LAYERS, PAYLOAD, LAYER_S = 12, "64KiB", 0.1
STEPS = 6


def training(world: World, bucket: Any) -> float:
    """Seconds of one step: forward, then backward with a bucket ready after each of its parts."""
    begin = time.perf_counter()
    time.sleep(FORWARD_S)
    runs = []
    for _ in range(BUCKETS):
        time.sleep(BACKWARD_S / BUCKETS)
        runs.append(world.start(bucket))
    for run in runs:
        run.wait(60)
    return time.perf_counter() - begin


def decode(world: World, payload: Any) -> float:
    """Seconds of one token: every layer computes, then waits for its all_reduce."""
    begin = time.perf_counter()
    for _ in range(LAYERS):
        time.sleep(LAYER_S)
        world.run(payload)
    return time.perf_counter() - begin


def run() -> dict[str, Any]:
    """Median step with all NICs and with one lost, in turn in one world."""
    topology = Topology.cluster(nodes=NODES, gpus_per_node=1, nics_per_node=NICS, nic_gbits_per_s=GBITS)
    bucket = plan("all_reduce", topology, nbytes=BUCKET, algorithm="ring")
    payload = plan("all_reduce", topology, nbytes=PAYLOAD, algorithm="ring")
    times: dict[str, dict[str, list[float]]] = {kind: {"healthy": [], "lost": []} for kind in ("training", "decode")}
    with World(topology, timeout="60s") as world:
        for schedule in (bucket, payload):
            world.run(schedule)
        comm = {"training": world.run(bucket).time_us / 1e6 * BUCKETS, "decode": world.run(payload).time_us / 1e6 * LAYERS}
        for _ in range(STEPS // 2):
            for state in ("healthy", "lost"):
                fault = world.faults.nic_down(node=1, nic=5) if state == "lost" else None
                for schedule in (bucket, payload):
                    world.run(schedule)
                for _ in range(2):
                    times["training"][state].append(training(world, bucket))
                    times["decode"][state].append(decode(world, payload))
                if fault:
                    fault.undo()
                    time.sleep(1.5)
    longer = {kind: float(np.median(each["lost"]) / np.median(each["healthy"]) - 1) for kind, each in times.items()}
    return {
        "summary": f"one NIC of {NICS} lost: training step {100 * longer['training']:+.2f} %, decode step {100 * longer['decode']:+.2f} %",
        "topology": topology.to_dict(),
        "assumptions": {
            "training": {"forward_s": FORWARD_S, "backward_s": BACKWARD_S, "buckets": BUCKETS, "bucket": BUCKET,
                         "communication_of_computation": comm["training"] / (FORWARD_S + BACKWARD_S)},
            "decode": {"layers": LAYERS, "payload": PAYLOAD, "layer_s": LAYER_S,
                       "communication_of_step": comm["decode"] / (comm["decode"] + LAYERS * LAYER_S)},
            "device": "emulated: a timer that uses no core",
        },
        "seconds": {kind: {state: percentiles(found) for state, found in each.items()} for kind, each in times.items()},
        "longer": longer,
    }  # fmt: skip
