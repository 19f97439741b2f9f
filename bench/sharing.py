"""What the shared-link tier of the simulator costs, beside the exact tier on the same schedules in the same process.

Is: wall time and peak memory of one core, with the times that both tiers predict. Is not: a test (nothing is asserted), nor a
comparison of the predictions: where links are shared the tiers answer different questions.

    python -m bench sharing
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ccl_lab as ccl
from ccl_lab.cli.memory import peak_rss_bytes
from ccl_lab.ir import Schedule
from ccl_lab.simulator import Job, exact_times, shared_times
from ccl_lab.topo import Topology

TURNS = 3


def cases() -> dict[str, tuple[Topology, Schedule]]:
    """Name: where and what."""
    flat, rails = Topology.preset("h100", nodes=32), Topology.preset("rail_leaf_spine", nodes=64)
    llama = Topology.preset("llama3_24k", nodes=512)
    return {
        "ring all_reduce, 256 GPUs, non-blocking": (flat, ccl.plan("all_reduce", flat, nbytes="64MiB", algorithm="ring")),
        "direct all_to_all, 512 GPUs, rails and spine, ECMP": (rails, ccl.plan("all_to_all", rails, nbytes="64MiB", algorithm="direct")),
        "halving_doubling all_reduce, 4,096 GPUs, 1:7": (llama, ccl.plan("all_reduce", llama, nbytes="1GiB", algorithm="halving_doubling")),
    }


def _fastest(call: Callable[[], Any]) -> tuple[float, Any]:
    took, result = [], None
    for _ in range(TURNS):
        begin = time.perf_counter()
        result = call()
        took.append(time.perf_counter() - begin)
    return min(took), result


def run() -> dict[str, Any]:
    """Runs all cases; the smaller of a few turns of each tier."""
    rows = []
    for name, (topology, schedule) in cases().items():
        exact_s, exact = _fastest(lambda t=topology, s=schedule: exact_times(s, t))
        shared_s, (shared,) = _fastest(lambda t=topology, s=schedule: shared_times([Job(s)], t))
        rows.append({"case": name, "ops": len(schedule.ops), "shared_s": shared_s, "exact_s": exact_s, "ratio": shared_s / exact_s,
                     "shared_us": shared.time_ps / 1e6, "exact_us": exact.time_ps / 1e6})  # fmt: skip
    peak = peak_rss_bytes()
    summary = "; ".join(f"{row['case']}: {row['ops']:,} ops {row['shared_s']:.2f} s, {row['ratio']:.1f} x exact" for row in rows)
    return {"cases": rows, "peak_rss_bytes": peak, "summary": summary}
