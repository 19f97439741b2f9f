"""Overlap live: exposed communication of every schedule beside its closed form, on shaped NICs, with p/c from 0.3 to 1.5.

Is: R = 2 with real torch matmuls, R = 4 and 8 on the emulated device (a timer that uses no core; labelled), one NIC a node, one rank a
node, everything over TCP. Is not: the operators' own time (tests) nor the simulator. Invariants: all of one (R, operator) run in one
World, round after round with the schedules of a cell next to each other, in both orders; alpha, beta and c are measured in that
World; a time is the median over rounds; exposed is time minus computation, which for real matmuls is what they took in that run.

    python -m bench overlap_live
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ccl_lab as ccl
from ccl_lab import overlap
from ccl_lab.engine.compute import Emulated, Matmul
from ccl_lab.trace.exposed import partition

RATIOS = (0.3, 0.5, 0.8, 1.0, 1.25, 1.5)
ROUNDS = {2: 15, 4: 5, 8: 5}  # real computation varies more, and its cells are short
GBITS = 0.25  # of the NICs around the emulated device
BLOCK_NBYTES = {2: 256 << 10, 4: 384 << 10, 8: 512 << 10}
PIECES = 8  # of a slice, to see what cutting costs a link
# Schedules by name, k, m; `auto` comes beside them.
SCHEDULES = (
    ("sequential", 1, 1), ("k_slice", 2, 1), ("k_slice", 4, 1), ("k_slice", 8, 1),
    ("ring", 1, 1), ("direct", 1, 1), ("ring", 1, 2), ("ring", 1, 4), ("direct", 1, 2),
)  # fmt: skip
OPERATORS = ("matmul_reduce_scatter", "all_gather_matmul")
# A slice of about 1 GFLOP whose moved side is BLOCK_NBYTES[2]: rows, inner, columns.
MATMULS = {"matmul_reduce_scatter": (512, 8192, 128), "all_gather_matmul": (64, 1024, 8192)}


@dataclass
class Ground:
    """A World and what was measured in it: seconds of a hop (alpha, beta), of an add of a slice, of a partition beyond its work."""

    world: ccl.World
    n: int
    operator: str
    alpha: float = 0.0
    beta: float = 0.0
    add: float = 0.0
    launch: float = 0.0

    @property
    def nbytes(self) -> int:
        return self.n * BLOCK_NBYTES[self.n]

    def plan(self, schedule: str, k: int = 1, m: int = 1, adds: str | None = None) -> ccl.Schedule:
        return overlap.plan(self.operator, schedule, self.n, slices=k, sub_slices=m, adds=adds, nbytes=self.nbytes)

    def hop_s(self, m: int) -> float:
        """A hop of a slice in m pieces, of a ring without computation."""
        schedule = overlap.plan("all_gather_matmul", "ring", self.n, sub_slices=m, nbytes=self.nbytes)
        runs = [self.world.run(schedule, compute=Emulated(0)).time_us for _ in range(6)][1:]
        return statistics.median(runs) / 1e6 / (self.n - 1)

    def measure(self) -> None:
        """alpha is what a piece more costs a link, not the latency of a message: pieces are under way together."""
        whole, cut = self.hop_s(1), self.hop_s(PIECES)
        self.alpha = max(cut - whole, 0.0) / (PIECES - 1)
        self.beta = whole - self.alpha
        if self.operator == "matmul_reduce_scatter":
            a, b = (np.zeros(BLOCK_NBYTES[self.n] // 4, np.float32) for _ in range(2))
            began = time.perf_counter()
            for _ in range(20):
                np.add(a, b, out=a)
            self.add = (time.perf_counter() - began) / 20


@dataclass
class Entry:
    """One schedule in one cell, and its runs: (time, computation) in seconds."""

    name: str
    k: int
    m: int
    schedule: ccl.Schedule
    device: Any
    predicted: float
    runs: list[tuple[float, float]]

    def once(self, ground: Ground) -> None:
        trace = ground.world.run(self.schedule, compute=self.device)
        self.runs.append((trace.time_us / 1e6, 0.0) if isinstance(self.device, Emulated) else _times_s(trace))


def _times_s(trace: ccl.Trace) -> tuple[float, float]:
    """(from first to last span, computation) of a rank, the mean over ranks: what one enters later, another waits."""
    rows = partition(trace)
    return tuple(statistics.fmean(row[name] for row in rows) / 1e6 for name in ("total_us", "compute_us"))  # type: ignore[return-value]


def _emulated(schedule: ccl.Schedule, c: float) -> Emulated:
    return Emulated(overlap.durations(schedule, round(c * 1e12)).tolist())


def _matmul(schedule: ccl.Schedule, operator: str) -> Matmul:
    """A partition of the schedule: all of one schedule are alike."""
    (share,) = {each.share for rank in overlap.partitions(schedule) for each in rank}
    rows, inner, columns = MATMULS[operator]
    exact = rows * schedule.n_ranks * share
    assert exact.denominator == 1, f"{rows} rows of a slice are not cut in {share} of {schedule.n_ranks} slices"
    return Matmul(int(exact), inner, columns)


def _n_partitions(schedule: ccl.Schedule) -> int:
    return len(overlap.partitions(schedule)[0])


def entries(ground: Ground, c: float) -> list[Entry]:
    """All schedules of a cell, and what `choose` makes of the measured times."""
    best = overlap.choose(c, ground.alpha, ground.beta, ground.n, operator=ground.operator, add=ground.add, launch=ground.launch,
                          divides=MATMULS[ground.operator][0] if ground.n == 2 else None)  # fmt: skip
    found = []
    for name, k, m, adds in [*((*each, None) for each in SCHEDULES), ("auto", best.k, best.m, best.adds)]:
        by = best.schedule if name == "auto" else name
        schedule = ground.plan(by, k, m, adds)
        device = _matmul(schedule, ground.operator) if ground.n == 2 else _emulated(schedule, c)
        how = adds or ("early" if by == "direct" else "separate")
        launch = ground.launch * _n_partitions(schedule)  # is computation here, as it is in the measurement
        predicted = overlap.closed_form(by, ground.n, c, ground.alpha, ground.beta, k=k, m=m, add=ground.add, adds=how,
                                        launch=ground.launch)  # fmt: skip
        found.append(Entry(name, k, m, schedule, device, float(predicted) - launch, []))
    return found


def cell(ground: Ground, ratio: float, c: float) -> dict[str, Any]:
    """Runs all schedules of a cell in turns."""
    turns = entries(ground, c)
    for each in turns:
        each.once(ground)
        each.runs.clear()  # the first of a program is slower
    for round_ in range(ROUNDS[ground.n]):
        for each in turns[:: 1 if round_ % 2 == 0 else -1]:
            each.once(ground)
    whole = ground.n * c
    rows = []
    for each in turns:
        total = statistics.median(run[0] for run in each.runs)
        computed = whole if ground.n > 2 else statistics.median(run[1] for run in each.runs)
        exposed = statistics.median(run[0] - (whole if ground.n > 2 else run[1]) for run in each.runs)
        rows.append({
            "schedule": each.name, "is": each.schedule.algorithm, "k": each.k, "m": each.m, "time_ms": total * 1e3,
            "exposed_ms": exposed * 1e3, "predicted_ms": each.predicted * 1e3, "off_of_total": abs(exposed - each.predicted) / total,
            "exposed_of_compute": exposed / computed, "compute_slower": computed / whole - 1,
            "runs_ms": [round(run[0] * 1e3, 3) for run in each.runs],
        })  # fmt: skip
    return {"ranks": ground.n, "operator": ground.operator, "device": "torch" if ground.n == 2 else "emulated",
            "ratio": ratio, "c_ms": c * 1e3, "alpha_ms": ground.alpha * 1e3, "beta_ms": ground.beta * 1e3,
            "add_ms": ground.add * 1e3, "launch_ms": ground.launch * 1e3, "rows": rows}  # fmt: skip


def cells(n: int, operator: str) -> Iterator[dict[str, Any]]:
    """All ratios of one (R, operator), in one World."""
    topology = ccl.Topology.cluster(nodes=n, gpus_per_node=1, nics_per_node=1, nic_gbits_per_s=GBITS)
    with ccl.World(topology, transport="tcp", timeout="30s") as world:
        ground = Ground(world, n, operator)
        if n > 2:
            ground.measure()
        for ratio in RATIOS:
            if n > 2:
                c = (ground.alpha + ground.beta) / ratio
            else:  # the computation is what it is: the NICs are shaped to it
                c, ground.launch = _slice_s(ground)
                for node in range(n):
                    world.set_nic(node, 0, BLOCK_NBYTES[n] * 8 / (ratio * c) / 1e9)
                ground.measure()
            yield cell(ground, ratio, c)


def _slice_s(ground: Ground) -> tuple[float, float]:
    """A slice's matmul while nothing is communicated, and what one that is cut costs more for each piece: it reads its weights again."""

    def computed(schedule: ccl.Schedule) -> float:
        device = _matmul(schedule, ground.operator)
        return statistics.median([_times_s(ground.world.run(schedule, compute=device))[1] for _ in range(5)][1:])

    whole, cut = ground.plan("sequential"), ground.plan("k_slice", PIECES)
    at_once = computed(whole)
    launch = max(computed(cut) - at_once, 0.0) / (_n_partitions(cut) - _n_partitions(whole))
    return (at_once - launch * _n_partitions(whole)) / ground.n, launch


def verdict(cell_: dict[str, Any]) -> dict[str, Any]:
    """What must hold of a cell, in numbers."""
    rows = {(row["schedule"], row["k"], row["m"]): row for row in cell_["rows"] if row["schedule"] != "auto"}
    auto = next(row for row in cell_["rows"] if row["schedule"] == "auto")
    best = min(row["time_ms"] for row in cell_["rows"])
    rivals = min(row["time_ms"] for key, row in rows.items() if key[0] in ("sequential", "k_slice"))
    decomposed = min(row["exposed_of_compute"] for key, row in rows.items() if key[0] in ("ring", "direct"))
    p = cell_["alpha_ms"] + cell_["beta_ms"]
    return {
        "worst_off_of_total": max(row["off_of_total"] for row in cell_["rows"]),
        "best_over_rivals": best / rivals, "auto_over_best": auto["time_ms"] / best,
        "decomposed_exposed_of_compute": decomposed, "p_over_c": p / cell_["c_ms"],
    }  # fmt: skip


def plot(found: list[dict[str, Any]]) -> Any:
    """Exposed time over p/c: measured (marks) and closed form (lines), a panel per (R, operator)."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    panels = sorted({(c["ranks"], c["operator"], c["device"]) for c in found})
    figure = make_subplots(
        rows=len(panels), cols=1, subplot_titles=[f"R = {n}, {operator}, {device} device" for n, operator, device in panels]
    )
    colours = ("#000000", "#E69F00", "#D55E00", "#CC79A7", "#0072B2", "#009E73", "#56B4E9", "#5D3A9B", "#F0E442", "#999999")
    for at, (n, operator, _) in enumerate(panels, 1):
        mine = [c for c in found if c["ranks"] == n and c["operator"] == operator]
        for i, first in enumerate(mine[0]["rows"]):
            name = first["schedule"]
            label = f"{name} k={first['k']}" if name == "k_slice" else f"{name} m={first['m']}" if name in ("ring", "direct") else name
            rows = [c["rows"][i] for c in mine]
            common = {"x": [c["ratio"] for c in mine], "legendgroup": label, "name": label}
            figure.add_scatter(y=[r["exposed_ms"] for r in rows], mode="markers", marker_color=colours[i], showlegend=at == 1,
                               row=at, col=1, **common)  # fmt: skip
            figure.add_scatter(y=[r["predicted_ms"] for r in rows], mode="lines", line_color=colours[i], showlegend=False,
                               row=at, col=1, **common)  # fmt: skip
        figure.update_xaxes(title_text="p / c", row=at, col=1)
        figure.update_yaxes(title_text="exposed, ms", row=at, col=1)
    figure.update_layout(height=320 * len(panels), title="Exposed communication: measured (marks), closed form (lines)")
    assert isinstance(figure, go.Figure)
    return figure


def run() -> dict[str, Any]:
    """The facts of a record; the plot lies beside it (read it with plotly.io.read_json)."""
    began, found = time.time(), []
    for n in (2, 4, 8):
        for operator in OPERATORS:
            for each in cells(n, operator):
                each["verdict"] = verdict(each)
                found.append(each)
                said = each["verdict"]
                print(f"overlap_live: R={n} {operator} p/c={said['p_over_c']:.2f} ({each['device']}): off {said['worst_off_of_total']:.1%} "
                      f"of the total, decomposed exposes {said['decomposed_exposed_of_compute']:.2%} of compute, best/rivals "
                      f"{said['best_over_rivals']:.3f}, auto/best {said['auto_over_best']:.3f}", flush=True)  # fmt: skip
    figure = json.loads(plot(found).to_json())
    (Path(__file__).parent / "records" / "overlap_live.plotly.json").write_text(json.dumps(figure) + "\n")
    verdicts = [each["verdict"] for each in found]
    low = [each["decomposed_exposed_of_compute"] for each in verdicts if each["p_over_c"] <= 0.85]
    summary = (
        f"{len(found)} cells: exposed off the closed form by at most {max(v['worst_off_of_total'] for v in verdicts):.1%} of the total; "
        f"p <= 0.8 c decomposed exposes at most {max(low):.2%} of compute; best over rivals at most "
        f"{max(v['best_over_rivals'] for v in verdicts):.3f}; auto within {max(v['auto_over_best'] for v in verdicts) - 1:.1%} of the best"
    )
    return {"summary": summary, "rounds": list(ROUNDS.values()), "gbits_per_s": GBITS, "took_s": time.time() - began,
            "load": os.getloadavg(), "cells": found}  # fmt: skip
