"""How close the simulator is to the engine on shaped NICs: every algorithm of every collective, 64 KiB to 256 MiB.

Is: the same schedule simulated and run by 8 ranks on 2 nodes of 4 NICs, and at one size on 8 nodes of one rank and NIC and on 4 of two.
What the machine adds is measured once, at 250 Mb/s, by `ccl_lab.calibration` (three numbers, from blocks of 1 KiB), and used for all cases
of all sizes and rates, also to plan them; each run is compared with the simulation of its own entry times, since a rank that the system
lets in late is no communication. Is not: a test (a busy machine changes it), nor a fit: nothing depends on a size or an algorithm.
Invariant: results of every case were compared with the reference. Long cases are run once, and twice more where they are off by more than
the bar: the median counts, as in the others.

The NICs are what limits a collective: they are held to 250 Mb/s from 4 MiB on, and below to rates at which a message takes as long as
4 MiB do there (3.9 Mb/s for 64 KiB). `host_bound` has the small sizes at 250 Mb/s too: there 8 ranks that share the machine's cores
take about as long as the wires, which no link models.

`python -m bench.simulated_against_measured FILE SECONDS` measures the next cases for about so long and keeps them in FILE. Once it has
all of them, or if SECONDS is 0, it writes the record, which names what was not measured: a machine need not be idle for half an hour
in a row.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ccl_lab import World, demo, plan
from ccl_lab.calibration import Calibration, calibrate, entries, measured_us, simulated_us
from ccl_lab.errors import UsageError
from ccl_lab.planner import ALGORITHMS
from ccl_lab.topo import Topology

from .record import percentiles, save

SIZES = [65536 << (2 * i) for i in range(7)]
FAST, FULL_BYTES = 0.25, 4 << 20  # Gb/s, from so many bytes on
BARS = {"median": 0.05, "max": 0.15}
# Longer cases are left out, and named: all ranks sending the whole message to all others.
LONGEST_S = 60.0
# Of one collective: longer than the longest case, and so is a machine that has other things to do.
TIMEOUT = "5min"


class Part(NamedTuple):
    """Cases of one world: rate of the NICs in Gb/s, sizes, and how 8 ranks are spread."""

    gbits_per_s: float
    sizes: list[int]
    nodes: int = 2


def parts(quick: bool) -> dict[str, Part]:
    """All that is measured, by name."""
    found = {str(size): Part(min(FAST, FAST * size / FULL_BYTES), [size]) for size in (SIZES[:4:3] if quick else SIZES)}
    if quick:
        return found
    return {**found, **{f"{nodes} nodes": Part(FAST, [FULL_BYTES], nodes) for nodes in (4, 8)},
            "host_bound": Part(FAST, [size for size in SIZES if size < FULL_BYTES])}  # fmt: skip


def shaped(gbits_per_s: float, nodes: int = 2) -> Topology:
    """The topology of the demonstration, or its ranks on more nodes, with NICs of that rate."""
    topology = demo.topology()
    if nodes != topology.n_nodes:
        each = topology.n_ranks // nodes
        topology = Topology.cluster(nodes=nodes, gpus_per_node=each, nics_per_node=each)
    return topology.replace(nic_bytes_per_s=np.full_like(topology.nic_bytes_per_s, round(gbits_per_s * 1e9 / 8)))


def _case(world: World, machine: Calibration, collective: str, algorithm: str, nbytes: int) -> dict[str, Any] | None:
    """One row; None where the algorithm does not fit the topology."""
    try:
        other = {"peer": world.n_ranks // 2} if collective == "send_recv" else {}  # of the other node
        schedule = plan(collective, machine.modelled, nbytes, algorithm=algorithm, **other)
    except UsageError:
        return None
    expected_s = simulated_us(schedule, machine.modelled, {}, machine.alpha_us) / 1e6
    row: dict[str, Any] = {"op": collective, "algorithm": algorithm, "bytes": nbytes, "nodes": machine.topology.n_nodes}
    if expected_s > LONGEST_S:
        return {**row, "left_out": f"would take {expected_s:.0f} s"}
    running = world.start(schedule)  # the first run also touches its memory for the first time, which counts where a run is short
    traces = [running.wait()]
    running.check()
    if expected_s < 3:
        traces = [world.run(schedule) for _ in range(5 if expected_s < 0.5 else 3 if expected_s < 1 else 1)]

    def both() -> tuple[list[float], list[float]]:
        return ([measured_us(trace, schedule) for trace in traces],
                [simulated_us(schedule, machine.modelled, entries(trace), machine.alpha_us) for trace in traces])  # fmt: skip

    times, modelled = both()
    if len(traces) == 1 and abs(times[0] / modelled[0] - 1) > BARS["max"]:  # one run is not told from a machine with other work
        traces += [world.run(schedule) for _ in range(2)]
        times, modelled = both()
    return {**row, "simulated_us": float(np.median(modelled)), "time_us": percentiles(times),
            "ratio": float(np.median(np.array(times) / np.array(modelled)))}  # fmt: skip


def _cases(part: list[int], quick: bool) -> Iterator[tuple[str, str, int]]:
    for nbytes in part:
        for collective, known in ALGORITHMS.items():
            if collective in ("all_to_allv", "barrier") or (quick and collective not in ("all_reduce", "all_to_all")):
                continue
            for algorithm in known:
                yield collective, algorithm, nbytes


def _measure(known: dict[str, Any], quick: bool, seconds: float = float("inf")) -> bool:
    """Adds rows to known["parts"] for so many seconds; whether there are all of them."""
    until = time.monotonic() + seconds
    if "machine" not in known:
        with World(shaped(FAST), timeout=TIMEOUT) as world:
            known["machine"] = calibrate(world).to_dict()
    for name, (gbits_per_s, sizes, nodes) in parts(quick).items():
        part = known["parts"].setdefault(name, {"nic_gbits_per_s": gbits_per_s, "nodes": nodes, "rows": [], "unfit": []})
        done = {(row["op"], row["algorithm"], row["bytes"]) for row in part["rows"]}
        cases = [case for case in _cases(sizes, quick) if case not in done and list(case) not in part["unfit"]]
        if cases and not _measure_part(known["machine"], part, cases, until):
            return False
    return True


def _measure_part(machine: dict[str, float], part: dict[str, Any], cases: list[tuple[str, str, int]], until: float) -> bool:
    calibration = Calibration(shaped(part["nic_gbits_per_s"], part["nodes"]), **machine)
    with World(calibration.topology, timeout=TIMEOUT) as world:
        for case in cases:
            if time.monotonic() > until:
                return False
            row = _case(world, calibration, *case)
            if row is None:
                part["unfit"].append(list(case))
                continue
            part["rows"].append(row)
            said = f"{row['ratio']:.3f}" if "ratio" in row else row["left_out"]
            print(f"{case[0]:15} {case[1]:20} {case[2]:>10} {part['nic_gbits_per_s']:>9.4f} Gb/s {part['nodes']} nodes {said}", flush=True)
    return True


def _part(path: Path, seconds: float) -> None:
    known = json.loads(path.read_text()) if path.exists() else _nothing()
    whole = False
    try:
        whole = _measure(known, quick=False, seconds=seconds)
    finally:
        path.write_text(json.dumps(known))
    print(f"{sum(len(part['rows']) for part in known['parts'].values())} rows{', all there are' * whole}")
    if whole or seconds == 0:
        print(save("simulated_against_measured", _facts(known, quick=False), Path(__file__).parent / "records"))


def run(quick: bool = False) -> dict[str, Any]:
    """Measured / simulated time of every case; quick: two sizes, all_reduce and all_to_all."""
    known = _nothing()
    _measure(known, quick)
    return _facts(known, quick)


def _nothing() -> dict[str, Any]:
    return {"parts": {}}


@dataclasses.dataclass(frozen=True)
class _Off:
    """|ratio - 1| of the rows of some parts."""

    n: int
    median: float
    max: float
    above: list[dict[str, Any]]
    worst: dict[str, Any]


def _off(rows: list[dict[str, Any]]) -> _Off:
    rows = [row for row in rows if "ratio" in row]
    off = np.abs(np.array([row["ratio"] for row in rows]) - 1)
    above = [row for row, by in zip(rows, off, strict=True) if by > BARS["max"]]
    return _Off(len(rows), float(np.median(off)), float(off.max()), above, rows[int(off.argmax())])


def _has(part: dict[str, Any] | None, op: str, algorithm: str, nbytes: int) -> bool:
    return part is not None and ([op, algorithm, nbytes] in part["unfit"] or any(
        (op, algorithm, nbytes) == (row["op"], row["algorithm"], row["bytes"]) for row in part["rows"]))


def _facts(known: dict[str, Any], quick: bool) -> dict[str, Any]:
    measured = known["parts"]
    all_off = _off([row for name, part in measured.items() if name != "host_bound" for row in part["rows"]])
    named = [f"{row['algorithm']} {row['op']}, {row['bytes']} bytes, {row['nodes']} nodes: {row['ratio']:.2f}"
             for row in all_off.above]  # fmt: skip
    by_size = {}
    for part in measured.values():
        for nbytes in sorted({row["bytes"] for row in part["rows"]}):
            off = _off([row for row in part["rows"] if row["bytes"] == nbytes])
            where = f"{nbytes} bytes, {part['nic_gbits_per_s']:.4f} Gb/s, {part['nodes']} nodes"
            by_size[where] = {"cases": off.n, "median": off.median, "max": off.max}
    missing = [f"{algorithm} {op}, {nbytes} bytes, part {name}" for name, part in parts(quick).items()
               for op, algorithm, nbytes in _cases(part.sizes, quick)
               if not _has(measured.get(name), op, algorithm, nbytes)]  # fmt: skip
    return {
        "summary": f"{all_off.n} cases limited by NICs: measured and simulated differ by {100 * all_off.median:.1f} % (median), "
                   f"{100 * all_off.max:.1f} % (max: {all_off.worst['algorithm']} {all_off.worst['op']}, {all_off.worst['bytes']} "
                   f"bytes); {len(named)} by more than 15 %",
        "median": all_off.median, "max": all_off.max, "bars": BARS, "above_the_bar": named, "by_size": by_size,
        "not_measured": missing, "quick": quick,
        "machine_adds": known["machine"], "topology": shaped(FAST).to_dict(), "parts": measured,
    }  # fmt: skip


if __name__ == "__main__":
    _part(Path(sys.argv[1]), float(sys.argv[2]))
