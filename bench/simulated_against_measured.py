"""How close the simulator is to the engine, for each algorithm of all_reduce on shaped NICs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ccl_lab import World, demo

from .record import percentiles

ITERATIONS, NBYTES = 3, "64MiB"


def run() -> dict[str, Any]:
    """Measured / simulated time and share of the NICs' rate, per case of the demonstration."""
    shaped, cases = demo.topology(), {}
    with World(shaped) as world:
        for case in demo.CASES:
            rows = [demo.run_case(world, shaped, case, NBYTES)[0] for _ in range(ITERATIONS)]
            cases[" ".join(case)] = {
                "simulated_us": rows[0]["simulated_us"],
                "time_us": percentiles([row["time_us"] for row in rows]),
                "ratio": percentiles([row["ratio"] for row in rows]),
                "nic_share": percentiles([row["nic_share"] for row in rows]),
            }
    worst = max(abs(np.log(case["ratio"]["p50"])) for case in cases.values())
    return {
        "summary": f"measured and simulated agree within {100 * (np.exp(worst) - 1):.1f} %",
        "topology": shaped.to_dict(),
        "bytes": NBYTES,
        "iterations": ITERATIONS,
        "cases": cases,
    }
