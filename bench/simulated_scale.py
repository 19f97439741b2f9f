"""What a simulation of 131,072 GPUs costs: time and memory of a cold call on one core, beside what other simulators take.

Is not: a test of the times simulated (tests/sim holds them to the picosecond). Each case is a process of its own, from its start on; a
redraw is the second simulation of a process, with another NIC at fault. `algorithms` has every algorithm of the planner that fits nodes
of 8 ranks, once each: what it takes among 131,072 ranks, or why it is not timed there; `on_switches` the same among 116,736 ranks, no power
of two, on the network of NCCLX, whose switches add latencies.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from ccl_lab.planner import ALGORITHMS
from ccl_lab.planner.mapped import unshared

from .record import percentiles

ITERATIONS = 5
TIMES = ("call_s", "call_cpu_s", "process_cpu_s")

# Measured with 2 cores on a machine of the same kind as the records of this repository; all_reduce of 1 GiB. Not measured in this run.
PEERS = {
    "ASTRA-sim (analytical back end), flat ring, 512 ranks": {"cpu_s": [1.5, 2.5]},
    "ASTRA-sim (analytical back end), flat ring, 4,096 ranks": {"cpu_s": [180, 354], "memory_bytes": 5.6e9},
    "ASTRA-sim (analytical back end), flat ring, 131,072 ranks": {"cpu_s": None, "why": "does not start"},
    "LogGOPSim, recursive doubling, 131,072 ranks": {"wall_s": 3.7, "prepare_s": 10.3, "input_bytes": 745e6},
    "SimAI-Analytical": {"wall_s": 0.05, "why": "no schedule and no latency term"},
}

_H100, _NCCLX = "h100:nodes=16384", "ncclx_100k"
_TEN = [f"nic:node={node},nic={nic}" for node, nic in ((7, 2), (9, 3), (77, 0), (500, 7), (501, 1), (4000, 5), (8191, 6), (9000, 2),
                                                          (12345, 4), (16383, 0))]  # fmt: skip
_FLAT = "cluster:nodes={n},gpus_per_node=1,nics_per_node=1,nic_gbits_per_s=400"
CASES: dict[str, dict[str, Any]] = {
    "hierarchical, 131,072 ranks": {"topology": _H100, "algorithm": "hierarchical"},
    "hierarchical, 131,072 ranks, a NIC gone": {"topology": _H100, "algorithm": "hierarchical", "faults": ["nic:node=7,nic=2"]},
    "hierarchical, 131,072 ranks, ten NICs gone": {"topology": _H100, "algorithm": "hierarchical", "faults": _TEN},
    "hierarchical, 131,072 ranks, 1 GB, ten NICs gone": {"topology": _H100, "algorithm": "hierarchical", "nbytes": "1GB", "faults": _TEN},
    "balance, 131,072 ranks, a NIC gone": {"topology": _H100, "algorithm": "balance", "faults": ["nic:node=7,nic=2"]},
    "balance, 131,072 ranks, ten NICs gone": {"topology": _H100, "algorithm": "balance", "faults": _TEN},
    "balance, 131,072 ranks, a NIC half as fast": {"topology": _H100, "algorithm": "balance", "faults": ["nic:node=7,nic=2,factor=2"]},
    "balance, 131,072 ranks, a NIC gone, a rank late": {
        "topology": _H100, "algorithm": "balance", "faults": ["nic:node=7,nic=2", "rank:rank=800,late=1ms"]},
    "balance all_gather, 131,072 ranks, a NIC gone": {
        "what": "all_gather", "topology": _H100, "algorithm": "balance", "faults": ["nic:node=7,nic=2"]},
    "balance, 131,072 ranks, 64 GiB, a NIC gone": {
        "topology": _H100, "algorithm": "balance", "nbytes": "64GiB", "faults": ["nic:node=7,nic=2"]},
    "auto, 131,072 ranks, a NIC gone": {"topology": _H100, "algorithm": "auto", "faults": ["nic:node=7,nic=2"]},
    "auto, 32,768 ranks, 16 GiB, a NIC gone": {
        "topology": "h100:nodes=4096", "algorithm": "auto", "nbytes": "16GiB", "faults": ["nic:node=7,nic=2"]},
    "recursive doubling, 131,072 ranks": {"topology": _H100, "algorithm": "recursive_doubling"},
    "halving-doubling, 131,072 ranks": {"topology": _H100, "algorithm": "halving_doubling"},
    "hierarchical, 131,072 ranks, a NIC lost after 100 ms": {
        "topology": _H100, "algorithm": "hierarchical", "faults": ["nic:node=7,nic=2,at=100ms"]},
    "halving-doubling, 131,072 ranks, a NIC gone": {"topology": _H100, "algorithm": "halving_doubling", "faults": _TEN[:1]},
    "recursive doubling, 131,072 ranks, ten NICs gone": {"topology": _H100, "algorithm": "recursive_doubling", "faults": _TEN},
    "halving-doubling, 131,072 ranks, ten NICs gone": {"topology": _H100, "algorithm": "halving_doubling", "faults": _TEN},
    "double binary tree, 1,024 ranks, a NIC gone": {
        "topology": "h100:nodes=128", "algorithm": "double_binary_tree", "faults": _TEN[:1], "result": "summary"},
    "double binary tree, 131,072 ranks": {"topology": _H100, "algorithm": "double_binary_tree", "result": "summary"},
    "double binary tree, 131,072 ranks, a NIC gone": {
        "topology": _H100, "algorithm": "double_binary_tree", "faults": _TEN[:1], "result": "summary"},
    "flat rings in both directions, 131,072 ranks": {"topology": _H100, "algorithm": "bidirectional_ring"},
    "flat ring, 131,072 ranks, a NIC 4 times slower": {"topology": _H100, "algorithm": "ring", "faults": ["nic:node=7,nic=0,factor=4"]},
    "flat ring, 131,072 nodes of one rank, a NIC 4 times slower": {
        "topology": _FLAT.format(n=131072), "algorithm": "ring", "faults": ["nic:node=7,nic=0,factor=4"]},
    "flat ring, 4,096 nodes of one rank": {"topology": _FLAT.format(n=4096), "algorithm": "ring"},
    "second call: flat ring, 4,096 nodes of one rank": {"topology": _FLAT.format(n=4096), "algorithm": "ring", "before": []},
    "flat ring, 512 nodes of one rank": {"topology": _FLAT.format(n=512), "algorithm": "ring"},
    "redraw: hierarchical, 131,072 ranks, another NIC gone": {
        "topology": _H100, "algorithm": "hierarchical", "faults": ["nic:node=9,nic=3"], "before": ["nic:node=7,nic=2"]},
    "redraw: balance, 131,072 ranks, another NIC gone": {
        "topology": _H100, "algorithm": "balance", "faults": ["nic:node=9,nic=3"], "before": ["nic:node=7,nic=2"]},
    "redraw: flat ring, 131,072 ranks, another NIC gone": {
        "topology": _H100, "algorithm": "ring", "faults": ["nic:node=9,nic=3"], "before": ["nic:node=7,nic=2"]},
    "redraw: hierarchical, 131,072 ranks, another NIC slower": {
        "topology": _H100, "algorithm": "hierarchical", "faults": ["nic:node=9,nic=3,factor=2"], "before": ["nic:node=7,nic=2"]},
    "redraw: hierarchical, 131,072 ranks, a second NIC gone": {
        "topology": _H100, "algorithm": "hierarchical", "faults": ["nic:node=7,nic=2", "nic:node=77,nic=5"],
        "before": ["nic:node=7,nic=2"]},
    "redraw: hierarchical, 131,072 ranks, the NIC back": {
        "topology": _H100, "algorithm": "hierarchical", "faults": [], "before": ["nic:node=7,nic=2"]},
}  # fmt: skip

_CHILD = """
import json, resource, sys, time
case = json.loads(sys.argv[1])
import ccl_lab as ccl
from ccl_lab.cli.memory import peak_rss_bytes
from ccl_lab.errors import Inapplicable
from ccl_lab.topo import topology_from_text
what, nbytes = case.pop("what", "all_reduce"), case.pop("nbytes", "1GiB")
before = case.pop("before", None)
if before is not None:
    case["topology"] = topology_from_text(case["topology"])
    ccl.simulate(what, nbytes=nbytes, **{**case, "faults": before})
wall, cpu = time.perf_counter(), time.process_time()
try:
    found = ccl.simulate(what, nbytes=nbytes, **case)
    result = {"time_us": found.time_us, "evaluated": found.meta.get("evaluated", {}).get("as", "")}
except Inapplicable as why:
    result = {"refused": str(why)}
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"call_s": time.perf_counter() - wall, "call_cpu_s": time.process_time() - cpu,
                  "process_cpu_s": used.ru_utime + used.ru_stime, "peak_rss_bytes": peak_rss_bytes(), **result}))
"""


def _one(case: dict[str, Any]) -> dict[str, float]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", _CHILD, json.dumps(case)], check=True, capture_output=True, text=True, env=environment)
    return json.loads(done.stdout)


def every_algorithm(topology: str) -> dict[str, dict[str, Any]]:
    """Every algorithm that fits, whole and with a NIC gone: CPU seconds of one call, peak memory, and what was found, or why not."""
    found: dict[str, dict[str, Any]] = {}
    for collective, known in ALGORITHMS.items():
        for name, algorithm in known.items():
            if collective == "all_to_allv" or algorithm.misfit is unshared:
                continue
            for faults in ([], _TEN[:1]):
                case = {"what": collective, "topology": topology, "algorithm": name, "faults": faults, "result": "summary"}
                row = _one({**case, "nbytes": "1GiB"})
                found[f"{collective}, {name}{', a NIC gone' if faults else ''}, 1GiB"] = {
                    key: row[key] for key in ("call_cpu_s", "peak_rss_bytes", "evaluated", "time_us", "refused") if key in row}
    return found


def run() -> dict[str, Any]:
    """Wall and CPU seconds of the call, CPU seconds of the process from its start, peak memory, per case; and the peers' figures."""
    cases = {}
    for name, case in CASES.items():
        rows = [_one(case) for _ in range(ITERATIONS)]
        cases[name] = {"arguments": case, "time_us": rows[0]["time_us"],
                       "peak_rss_bytes": max(row["peak_rss_bytes"] for row in rows),
                       **{what: percentiles([row[what] for row in rows]) for what in TIMES}}  # fmt: skip
    flat = cases["second call: flat ring, 4,096 nodes of one rank"]["call_cpu_s"]["p50"]
    large = cases["hierarchical, 131,072 ranks"]
    return {
        "summary": f"hierarchical on 131,072 ranks: {large['call_cpu_s']['p50']:.2f} CPU-s, {large['peak_rss_bytes'] / 1e6:.0f} MB; "
                   f"flat ring on 4,096, imports done: {180 / flat:,.0f} times less CPU than 180 s",
        "bytes": "1GiB", "iterations": ITERATIONS, "cases": cases,
        "algorithms": every_algorithm(_H100), "on_switches": every_algorithm(_NCCLX), "peers": PEERS,
        "peers_source": "runs of those simulators with 2 cores on a machine of the same kind, not in this run",
    }  # fmt: skip
