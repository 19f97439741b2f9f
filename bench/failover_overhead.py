"""What being able to lose a NIC costs while none is lost: the same collectives with failover on and off, in turn.

Worlds of the same two ranks on two nodes take turns, once with NICs as fast as the machine and once with NICs held to a rate, as the lab
has them; the order of a turn alternates, so that drift of the machine falls on all. Where the system happened to put processes and memory
stays with a World, and so may the order in which they were made: each round has new ones, made in another order. A second World without
failover says how far two that are the same differ (`null`). A round's ratio is the median over its turns of on / off; the ratio is the
median over rounds, its interval of 95 % by a bootstrap over rounds.
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
from ccl_lab.units import parse_size

from .record import percentiles

SIZES = {"8": 200, "1KiB": 200, "64KiB": 80, "1MiB": 20, "16MiB": 3, "64MiB": 1}
PAIRS, ROUNDS, RESAMPLES = 12, 12, 10_000
NICS, GBITS_PER_S = 4, (0, 1)  # 0: not held to a rate
MOST_SHAPED = "16MiB"  # larger ones take as long as their bytes
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


def world(word: str, topology: Topology, gbits_per_s: float = 0) -> World:
    """Its NICs have that rate, or are as fast as the machine."""
    with failover(word):
        made = World(topology)
    for node in range(topology.n_nodes):
        for nic in range(topology.nics_per_node):
            made.set_nic(node, nic, gbits_per_s)
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


def rows_at(gbits_per_s: float, sizes: dict[str, int], pairs: int, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """The rows of one rate of all NICs."""
    topology = Topology.cluster(nodes=2, gpus_per_node=1, nics_per_node=NICS, nic_gbits_per_s=gbits_per_s or 8)
    schedules = {size: plan("all_reduce", topology, nbytes=size, algorithm="ring") for size in sizes}
    found: dict[str, list[dict[str, np.ndarray]]] = {size: [] for size in schedules}
    begin = time.monotonic()
    names = list(itertools.permutations(WORDS))
    for i in range(rounds):
        if time.monotonic() - begin > seconds:
            break
        with ExitStack() as stack:
            worlds = {name: stack.enter_context(world(WORDS[name], topology, gbits_per_s)) for name in names[i % len(names)]}
            for size, schedule in schedules.items():
                found[size].append(turns(worlds, schedule, sizes[size], pairs))
    rows = []
    for size, times in found.items():
        row = {"gbits_per_s": gbits_per_s, "bytes": schedules[size].nbytes, "repeat": sizes[size], "turns": pairs}
        for name in ("on", "null"):
            row["ratio" if name == "on" else name] = interval([float(np.median(each[name] / each["off"])) for each in times])
        row |= {f"{name}_us": percentiles(np.concatenate([each[name] for each in times]).tolist()) for name in WORDS}
        rows.append(row)
    return rows


def run(
    sizes: dict[str, int] | None = None, pairs: int = PAIRS, rounds: int = ROUNDS, seconds: float = 85,
    gbits_per_s: tuple[float, ...] = GBITS_PER_S,
) -> dict[str, Any]:
    """Ratios of an all_reduce with failover on to one with it off, by rate and size; of a rate no round begins after `seconds`."""
    sizes = sizes or SIZES
    rows = []
    for rate in gbits_per_s:
        some = {size: n for size, n in sizes.items() if not rate or parse_size(size) <= parse_size(MOST_SHAPED)}
        rows += rows_at(rate, some, pairs, rounds, seconds)
    worst = max(rows, key=lambda row: row["ratio"]["median"])
    medians = "; ".join(
        f"{f'NICs of {rate:g} Gb/s' if rate else 'NICs as fast as the machine'}: "
        + ", ".join(f"{row['ratio']['median']:.3f}" for row in rows if row["gbits_per_s"] == rate)
        for rate in gbits_per_s
    )
    return {
        "summary": f"failover on / off by size, {medians}; worst {worst['ratio']['median']:.3f} ({worst['ratio']['low']:.3f} to "
        f"{worst['ratio']['high']:.3f}) at {worst['bytes']:,} bytes",
        "topology": {"nodes": 2, "gpus_per_node": 1, "nics_per_node": NICS},
        "algorithm": "ring",
        "rows": rows,
    }


if __name__ == "__main__":
    for row in run({size: SIZES[size] for size in sys.argv[1:]} or None)["rows"]:
        each = (f"{name} {row[name]['median']:.3f} ({row[name]['low']:.3f} to {row[name]['high']:.3f})" for name in ("ratio", "null"))
        print(row["gbits_per_s"], row["bytes"], *each, f"off {row['off_us']['p50']:.1f} us", flush=True)
