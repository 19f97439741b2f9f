"""A NIC pulled in the middle of an all_reduce, at fractions of its time: how much longer it takes, and how soon it goes on.

T/T0 is compared with two laws: 2 − f, where one backup takes the whole load of the lost NIC (R²CCL, arXiv 2512.25059), and
1 + (1 − f) · X / (1 − X), where the load of the lost NIC is spread over the others of the node (X: the fraction lost). NICs are shaped.
T0 is the healthy run just before. Other work on the machine lengthens it, and so flatters the ratio: `of_limit` is therefore T over the
second law with the T0 that the NICs' rates allow, which nothing lengthens.

Pulled is one way: the sockets say so. The other is silence: from one moment on nothing passes, either way, and no socket says so. The
sender then waits for a deadline, half a second and four times what is under way at the NIC's rate; each loss says its own. What
counts is how much longer than that it takes from the cut until both ends of each path send what it carried over other paths.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ccl_lab import Topology, World, plan
from ccl_lab.planner.bounds import lower_bound

from .record import percentiles

FRACTIONS = (0.1, 0.3, 0.5, 0.7, 0.9)
SHAPES = ((2, 4, 0.5), (2, 8, 0.25), (4, 4, 0.25), (4, 8, 0.125))  # nodes, NICs of each, Gb/s of each
NBYTES = "256MiB"
ROUNDS = 3
SILENT_FRACTIONS = (0.1, 0.5, 0.8)
PATIENCE_S = 30


def cut_run(
    world: World, schedule: Any, fraction: float, seconds: float, cut: Callable[[], Any]
) -> tuple[float, int, list[dict[str, Any]]]:
    """One all_reduce with `cut` called after `fraction` of `seconds`: its seconds, ns of the cut, and what the ranks said."""
    seen = len(world.faults.events)
    run = world.start(schedule)
    while run.state != "running":
        time.sleep(0.0002)
    time.sleep(max(run.begin_s + fraction * seconds - time.monotonic(), 0))
    cut_ns = time.monotonic_ns()
    cut()
    trace = run.wait(120)
    run.check()
    time.sleep(0.1)
    return trace.time_us / 1e6, cut_ns, world.faults.events[seen:]


def until_back(world: World, lost: list[dict[str, Any]]) -> None:
    """Waits until all that was lost is in use again; a NIC that is lost again and again is held off longer each time."""
    begin = time.monotonic()
    for event in lost:
        while not any(
            each["kind"] == "back" and each["path"] == event["path"] and each["time_ns"] > event["time_ns"]
            for each in reversed(world.faults.events)
        ):
            if time.monotonic() - begin > PATIENCE_S:
                raise RuntimeError(f"path {event['path']} is not back after {PATIENCE_S} s")
            time.sleep(0.05)


def pulled(world: World, schedule: Any, fraction: float, seconds: float, node: int, nic: int, rate: float) -> dict[str, float]:
    """One all_reduce in which a NIC is pulled after `fraction` of `seconds`."""
    time_s, cut_ns, events = cut_run(world, schedule, fraction, seconds, lambda: world.set_nic(node, nic, rate, up=False))
    lost = [event["time_ns"] for event in events if event["kind"] == "lost"]
    resumed = [event["time_ns"] for event in events if event["kind"] == "resumed"]
    world.set_nic(node, nic, rate, up=True)
    until_back(world, [event for event in events if event["kind"] == "lost"])
    if not lost or not resumed:
        raise RuntimeError(f"NIC {nic} of node {node} was pulled at {fraction} of a run: {len(lost)} paths lost, {len(resumed)} resumed")
    return {
        "time_s": time_s,
        "detected_ms": (min(lost) - cut_ns) / 1e6,
        "resumed_ms": (max(resumed) - min(lost)) / 1e6,
        "paths_lost": len(lost),
    }


def silent_paths(events: list[dict[str, Any]], cut_ns: int) -> list[dict[str, float]]:
    """By path that was lost in silence: its deadline, and from the cut to the loss and to its last end that sends again; ms."""
    found: dict[frozenset[tuple[int, int]], dict[str, float]] = {}
    for event in events:
        ends = frozenset([(event["rank"], event["nic"]), (event["peer"], event["peer_nic"])])
        after_ms = (event["time_ns"] - cut_ns) / 1e6
        said = re.search(r"nothing was confirmed for (\d+) ms", event["text"])
        if event["kind"] == "lost" and said and ends not in found:
            found[ends] = {"deadline_ms": float(said[1]), "lost_ms": after_ms, "resumed_ms": float("nan")}
        if event["kind"] == "resumed" and ends in found:
            found[ends]["resumed_ms"] = after_ms
    return list(found.values())


def silenced(world: World, schedule: Any, fraction: float, seconds: float, node: int, nic: int) -> dict[str, Any]:
    """One all_reduce in which a NIC goes silent after `fraction` of `seconds`."""
    faults: list[Any] = []
    time_s, cut_ns, events = cut_run(
        world, schedule, fraction, seconds, lambda: faults.append(world.faults.black_hole(node, nic))
    )
    held = faults[0].fired
    faults[0].undo()
    until_back(world, [event for event in events if event["kind"] == "lost"])
    paths = silent_paths(events, cut_ns)
    if not held or not paths:
        raise RuntimeError(f"NIC {nic} of node {node} fell silent at {fraction} of a run: {held} sends held, {len(paths)} paths lost")
    return {"time_s": time_s, "held": held, "paths": paths}


def measure(nodes: int, nics: int, rate: float, nbytes: str = NBYTES, rounds: int = ROUNDS) -> dict[str, Any]:
    """Every fraction, on one shape, pulled; then some of them, silent."""
    topology = Topology.cluster(nodes=nodes, gpus_per_node=1, nics_per_node=nics, nic_gbits_per_s=rate)
    schedule = plan("all_reduce", topology, nbytes=nbytes, algorithm="ring")
    rows, silent, lost = [], [], 1 / nics
    least_s = lower_bound(topology, "all_reduce", schedule.nbytes)
    with World(topology, timeout="300s") as world:
        world.run(schedule)
        for fraction in FRACTIONS:
            found = []
            for _ in range(rounds):
                healthy = world.run(schedule).time_us / 1e6
                found.append(pulled(world, schedule, fraction, healthy, nodes - 1, nics // 2, rate) | {"healthy_s": healthy})
            ratio = float(np.median([each["time_s"] / each["healthy_s"] for each in found]))
            spread = 1 + (1 - fraction) * lost / (1 - lost)
            rows.append({
                "fraction": fraction, "ratio": ratio, "one_backup": 2 - fraction, "spread": spread,
                "of_limit": float(np.median([each["time_s"] for each in found])) / least_s / spread,
                "detected_ms": percentiles([each["detected_ms"] for each in found]),
                "resumed_ms": percentiles([each["resumed_ms"] for each in found]), "runs": found,
            })  # fmt: skip
        for fraction in SILENT_FRACTIONS:
            runs = []
            for _ in range(rounds):
                healthy = world.run(schedule).time_us / 1e6
                runs.append(silenced(world, schedule, fraction, healthy, nodes - 1, nics // 2) | {"healthy_s": healthy})
            paths = [path for each in runs for path in each["paths"]]
            over = [path["resumed_ms"] - path["deadline_ms"] for path in paths]
            silent.append({"fraction": fraction, "deadline_ms": percentiles([path["deadline_ms"] for path in paths]),
                           "over_deadline_ms": percentiles(over), "runs": runs})
    return {"nodes": nodes, "nics": nics, "gbits_per_s": rate, "bytes": nbytes, "rows": rows, "silent": silent}


def run() -> dict[str, Any]:
    """All shapes."""
    return facts([measure(*shape) for shape in SHAPES])


def facts(shapes: list[dict[str, Any]]) -> dict[str, Any]:
    """The record of what was measured."""
    rows = [row for shape in shapes for row in shape["rows"]]
    over = max(row["ratio"] / row["spread"] for row in rows)
    of_limit = max(row["of_limit"] for row in rows)
    slowest = max(row["resumed_ms"]["p50"] for row in rows)
    late = max(row["over_deadline_ms"]["max"] for shape in shapes for row in shape["silent"])
    return {
        "summary": f"T/T0 at most {over:.3f} of 1 + (1 - f) X / (1 - X), {of_limit:.3f} with the T0 of the NICs' rates; sending again "
        f"{slowest:.1f} ms after the loss was seen, and where no socket says so at most {late:.1f} ms after the deadline",
        "shapes": shapes,
    }
