"""All_reduce and balance after a loss of NICs, simulated: T/T0 against formulas and bound, and steps of 1,024 GPUs with ten failures.

Is: simulated only. Is not: measured on live NICs, nor the paper's ratios: those below are assumptions, set when T/T0 was known, and
the overheads are proportional to them; T/T0 is the finding. A training step whose healthy communication takes
COMM_TO_COMPUTE of its computation, in BUCKETS, WINDOW of the computation (the backward pass) to hide behind; a decode step of which
EXPOSED is communication between nodes.
"""

from __future__ import annotations

from typing import Any

from ccl_lab import Topology, plan
from ccl_lab.planner import formulas_degraded
from ccl_lab.planner.bounds import lower_bound
from ccl_lab.simulator import exact_times

NBYTES, NAMES = ("1GiB", "16GiB"), ("balance", "resilient", "recursive", "mix")
COMM_TO_COMPUTE, WINDOW, BUCKETS, EXPOSED = 0.3, 2 / 3, 16, 0.1


def simulated_s(topology: Topology, nbytes: str, algorithm: str, collective: str = "all_reduce") -> float:
    """Seconds of one collective in the simulator."""
    return exact_times(plan(collective, topology, nbytes, algorithm=algorithm), topology).time_ps * 1e-12


def step_s(compute_s: float, comm_s: float, window: float = WINDOW, buckets: int = BUCKETS) -> float:
    """A data-parallel step: all but the last of `buckets` of communication may run behind `window` of the computation."""
    return compute_s + max(comm_s / buckets, comm_s - window * compute_s)


def training_overhead(healthy_s: float, degraded_s: float, ratio: float = COMM_TO_COMPUTE) -> float:
    """Share by which a training step gets longer whose healthy communication takes `ratio` of its computation."""
    compute = healthy_s / ratio
    return step_s(compute, degraded_s) / step_s(compute, healthy_s) - 1


def decode_overhead(healthy_s: float, degraded_s: float, exposed: float = EXPOSED) -> float:
    """Share by which a decode step gets longer of which healthy communication between nodes is `exposed`, nothing hidden."""
    return (degraded_s / healthy_s - 1) * exposed


def small(nbytes: str) -> list[dict[str, Any]]:
    """4 nodes of 8 NICs, one rank each, 1 to 4 NICs lost."""
    whole = Topology.cluster(4, 1, 8, nic_gbits_per_s=400, local_gbytes_per_s=2000, fabric_gbytes_per_s=2000)
    t0, rows = simulated_s(whole, nbytes, "balance"), []
    for nics in (1, 2, 3, 4):
        topology, x = whole.without(*[(0, i) for i in range(nics)]), nics / 8
        ratios = {name: simulated_s(topology, nbytes, name) / t0 for name in NAMES}
        bound = lower_bound(topology, "all_reduce", nbytes) / lower_bound(whole, "all_reduce", nbytes)
        rows.append({"bytes": nbytes, "x": x, "bound": bound, "formula_balance": formulas_degraded.balance(x),
                     "formula_mix": formulas_degraded.mix(4, x), "simulated": ratios})
    return rows


def large(failures: tuple[int, ...] = (1, 3, 10), nodes: int = 128, nbytes: str = "1GiB") -> list[dict[str, Any]]:
    """1,024 GPUs: overhead of a training step and of a decode step with up to ten NICs lost on as many nodes."""
    whole = Topology.preset("h100", nodes)
    healthy, rows = simulated_s(whole, nbytes, "hierarchical"), []
    for lost in failures:
        topology = whole.without(*[((i * 11) % nodes, i % 8) for i in range(lost)])
        times = {name: simulated_s(topology, nbytes, name) for name in ("hierarchical", "balance")}
        best = min(times, key=times.__getitem__)
        rows.append({"failures": lost, "algorithm": best, "ratio": times[best] / healthy,
                     "training_overhead": training_overhead(healthy, times[best]),
                     "decode_overhead": decode_overhead(healthy, times[best])})
    return rows


def run() -> dict[str, Any]:
    """The tables; a record under bench/records/."""
    few, many = [row for nbytes in NBYTES for row in small(nbytes)], large()
    worst = max(row["training_overhead"] for row in many)
    above = max(row["simulated"]["mix"] / row["bound"] - 1 for row in few if row["bytes"] == NBYTES[-1])
    return {
        "summary": f"simulated; mix of {NBYTES[-1]} at most {100 * above:.1f} % above the bound; "
                   f"1,024 GPUs: a training step at most {100 * worst:.2f} % longer",
        "bytes": NBYTES, "comm_to_compute": COMM_TO_COMPUTE, "window": WINDOW, "buckets": BUCKETS, "decode_exposed": EXPOSED,
        "four_nodes": few, "gpus_1024": many,
    }
