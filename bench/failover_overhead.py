"""What being able to lose a NIC costs while none is lost: the same collectives with failover on and off, in turn.

Worlds of the same two ranks on two nodes, NICs not shaped, take turns, and the order of a turn alternates, so that drift of the machine
falls on all. Where the system happened to put processes and memory stays with a World, and so may the order in which they were made: each
round has new ones, made in another order. A second World without failover says how far two that are the same differ (`null`). A round's
ratio is the median over its turns of on / off; the ratio is the median over rounds, its interval of 95 % by a bootstrap over rounds.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from ccl_lab import Schedule, Topology, World, plan

from .record import percentiles

SIZES = {"8": 200, "1KiB": 200, "64KiB": 80, "1MiB": 20, "16MiB": 3, "64MiB": 1}
PAIRS, ROUNDS, RESAMPLES = 12, 12, 10_000
NICS = 4
WORDS = {"on": "on", "off": "off", "null": "off"}


@contextmanager
def failover(word: str) -> Iterator[None]:
    before = os.environ.get("CCL_LAB_FAILOVER")
    os.environ["CCL_LAB_FAILOVER"] = word
    try:
        yield
    finally:
        if before is None:
            del os.environ["CCL_LAB_FAILOVER"]
        else:
            os.environ["CCL_LAB_FAILOVER"] = before


def world(word: str, topology: Topology) -> World:
    """Its NICs are as fast as the machine."""
    with failover(word):
        made = World(topology)
    for node in range(topology.n_nodes):
        for nic in range(topology.nics_per_node):
            made.set_nic(node, nic, 0)
    return made


def turns(worlds: dict[str, World], schedule: Schedule, repeat: int, pairs: int) -> dict[str, np.ndarray]:
    """µs of one all_reduce in each World, by turn."""
    times: dict[str, list[float]] = {word: [] for word in worlds}
    names = list(worlds)
    for turn in range(-2, pairs):
        order = names[turn % 3 :] + names[: turn % 3]
        for word in order if turn % 2 else reversed(order):
            time_us = worlds[word].run(schedule, repeat=repeat).time_us
            if turn >= 0:
                times[word].append(time_us)
    return {word: np.array(found) for word, found in times.items()}


def interval(ratios: list[float]) -> dict[str, Any]:
    """Median and its 95 % interval, by a bootstrap over rounds."""
    rounds = np.array(ratios)
    again = np.random.default_rng(1).choice(rounds, (RESAMPLES, len(rounds)))
    low, high = np.percentile(np.median(again, axis=1), (2.5, 97.5))
    return {"median": float(np.median(rounds)), "low": float(low), "high": float(high), "rounds": rounds.tolist()}


def run(sizes: dict[str, int] | None = None, pairs: int = PAIRS, rounds: int = ROUNDS, seconds: float = 85) -> dict[str, Any]:
    """Ratios of an all_reduce with failover on to one with it off, by size; no round begins after `seconds`."""
    topology = Topology.cluster(nodes=2, gpus_per_node=1, nics_per_node=NICS, nic_gbits_per_s=8)
    schedules = {size: plan("all_reduce", topology, nbytes=size, algorithm="ring") for size in sizes or SIZES}
    found: dict[str, list[dict[str, np.ndarray]]] = {size: [] for size in schedules}
    begin = time.monotonic()
    names = list(itertools.permutations(WORDS))
    for i in range(rounds):
        if time.monotonic() - begin > seconds:
            break
        with ExitStack() as stack:
            worlds = {name: stack.enter_context(world(WORDS[name], topology)) for name in names[i % len(names)]}
            for size, schedule in schedules.items():
                found[size].append(turns(worlds, schedule, (sizes or SIZES)[size], pairs))
    rows = []
    for size, times in found.items():
        row = {"bytes": schedules[size].nbytes, "repeat": (sizes or SIZES)[size], "turns": pairs}
        for name in ("on", "null"):
            row["ratio" if name == "on" else name] = interval([float(np.median(each[name] / each["off"])) for each in times])
        row |= {f"{name}_us": percentiles(np.concatenate([each[name] for each in times]).tolist()) for name in WORDS}
        rows.append(row)
    worst = max(rows, key=lambda row: row["ratio"]["median"])
    return {
        "summary": f"failover on / off: median ratio {np.median([row['ratio']['median'] for row in rows]):.3f}, worst "
        f"{worst['ratio']['median']:.3f} ({worst['ratio']['low']:.3f} to {worst['ratio']['high']:.3f}) at {worst['bytes']:,} bytes",
        "topology": topology.to_dict(),
        "algorithm": "ring",
        "rows": rows,
    }


if __name__ == "__main__":
    for row in run({size: SIZES[size] for size in sys.argv[1:]} or None)["rows"]:
        each = (f"{name} {row[name]['median']:.3f} ({row[name]['low']:.3f} to {row[name]['high']:.3f})" for name in ("ratio", "null"))
        print(row["bytes"], *each, f"off {row['off_us']['p50']:.1f} us", flush=True)
