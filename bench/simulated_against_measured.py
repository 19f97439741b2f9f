"""How close the simulator is to the engine on shaped NICs: every algorithm of every collective, 64 KiB to 256 MiB.

Is: the same schedule simulated and run by 8 ranks on 2 nodes whose NICs are shaped to 0.25 Gb/s. One number of the machine is measured
once, by a ring of 4-byte blocks, and used for all cases: what a hop costs while all ranks share the cores. Is not: a test (a busy machine
changes it), nor a fit: nothing depends on a size or an algorithm. Invariant: results of every case were compared with the reference.

`python -m bench.simulated_against_measured FILE SECONDS` measures the next cases for about so long and keeps them in FILE. Once it has
all of them, it writes the record: a machine need not be idle for half an hour in a row.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ccl_lab import World, demo, plan, simulate
from ccl_lab.errors import UsageError
from ccl_lab.planner import ALGORITHMS
from ccl_lab.topo import Topology

from .record import percentiles, save

SIZES = [65536 << (2 * i) for i in range(7)]
QUICK_SIZES = (SIZES[0], SIZES[3])
# Longer cases are left out, and named: all ranks sending the whole message to all others.
LONGEST_S = 60.0
CALIBRATION_RUNS = 21


def hop_us(world: World, shaped: Topology) -> float:
    """What a hop costs beside its bytes while all ranks work: of a ring all_reduce of 4 bytes a block, by its number of steps."""
    schedule = plan("all_reduce", shaped, 4 * shaped.n_ranks, algorithm="ring", channels=1)
    world.run(schedule)
    times = [world.run(schedule).time_us for _ in range(CALIBRATION_RUNS)]
    return max(0.0, float(np.median(times)) - simulate(schedule, shaped).time_us) / (2 * (shaped.n_ranks - 1))


def modelled(shaped: Topology, hop: float) -> Topology:
    """The topology with that latency of all links."""
    more = round(1e6 * hop)
    return shaped.replace(nic_latency_ps=shaped.nic_latency_ps + more, fabric_latency_ps=shaped.fabric_latency_ps + more)


def _case(world: World, shaped: Topology, model: Topology, collective: str, algorithm: str, nbytes: int) -> dict[str, Any] | None:
    """One row; None where the algorithm does not fit the topology."""
    try:
        schedule = plan(collective, shaped, nbytes, algorithm=algorithm)
    except UsageError:
        return None
    row: dict[str, Any] = {"op": collective, "algorithm": algorithm, "bytes": nbytes, "simulated_us": simulate(schedule, model).time_us}
    seconds = row["simulated_us"] / 1e6
    if seconds > LONGEST_S:
        return {**row, "left_out": f"would take {seconds:.0f} s"}
    running = world.start(schedule)  # the first run also touches its memory for the first time
    running.wait()
    running.check()
    times = [world.run(schedule).time_us for _ in range(5 if seconds < 0.5 else 3 if seconds < 1 else 1)]
    return {**row, "time_us": percentiles(times), "ratio": float(np.median(times)) / row["simulated_us"]}


def _cases(quick: bool) -> Iterator[tuple[str, str, int]]:
    for nbytes in QUICK_SIZES if quick else SIZES:
        for collective, known in ALGORITHMS.items():
            if collective in ("all_to_allv", "barrier") or (quick and collective not in ("all_reduce", "all_to_all")):
                continue
            for algorithm in known:
                yield collective, algorithm, nbytes


def _measure(known: dict[str, Any], quick: bool, seconds: float = float("inf")) -> bool:
    """Adds rows to known["rows"] for so many seconds; whether there are all of them."""
    shaped, until = demo.topology(), time.monotonic() + seconds
    done = {(row["op"], row["algorithm"], row["bytes"]) for row in known["rows"]}
    with World(shaped) as world:
        if "hop_us" not in known:
            known["hop_us"] = hop_us(world, shaped)
        model = modelled(shaped, known["hop_us"])
        for case in _cases(quick):
            if case in done:
                continue
            if time.monotonic() > until:
                return False
            row = _case(world, shaped, model, *case)
            if row is None:
                continue
            known["rows"].append(row)
            said = f"{row['ratio']:.3f}" if "ratio" in row else row["left_out"]
            print(f"{case[0]:15} {case[1]:20} {case[2]:>10} {said}", flush=True)
    return True


def _part(path: Path, seconds: float) -> None:
    known = json.loads(path.read_text()) if path.exists() else {"rows": []}
    whole = _measure(known, quick=False, seconds=seconds)
    path.write_text(json.dumps(known))
    print(f"{len(known['rows'])} rows{', all there are' * whole}")
    if whole:
        print(save("simulated_against_measured", _facts(known, quick=False), Path(__file__).parent / "records"))


def run(quick: bool = False) -> dict[str, Any]:
    """Measured / simulated time of every case; quick: two sizes, all_reduce and all_to_all."""
    known: dict[str, Any] = {"rows": []}
    _measure(known, quick)
    return _facts(known, quick)


def _facts(known: dict[str, Any], quick: bool) -> dict[str, Any]:
    rows = known["rows"]
    off = np.abs(np.array([row["ratio"] for row in rows if "ratio" in row]) - 1)
    worst = max((row for row in rows if "ratio" in row), key=lambda row: abs(row["ratio"] - 1))
    return {
        "summary": f"{len(off)} cases: measured and simulated differ by {100 * np.median(off):.1f} % (median), {100 * off.max():.1f} % "
                   f"(max: {worst['algorithm']} {worst['op']}, {worst['bytes']} bytes)",
        "median": float(np.median(off)), "max": float(off.max()), "bars": {"median": 0.05, "max": 0.15}, "quick": quick,
        "hop_us": known["hop_us"], "topology": demo.topology().to_dict(), "rows": rows,
    }  # fmt: skip


if __name__ == "__main__":
    _part(Path(sys.argv[1]), float(sys.argv[2]))
