"""Random faults on a live world, one after the other, for minutes: every sum right, memory and descriptors flat.

Each round draws a collective, a size and up to three faults of NICs with their moments and durations; NIC 0 of each node is spared, so
that every round can end well. The seed is in the record; `python -m bench.soak 600 7` runs 600 s from seed 7.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from typing import Any

import numpy as np

import ccl_lab as ccl

SECONDS, SEED, LOOK_S = 600, 1, 20.0
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
KINDS = ("nic_down", "cable", "black_hole", "cap", "delay", "corrupt", "sever", "flap")
EXTRA = {"cap": "fraction=0.3", "delay": "latency=1ms jitter=2ms", "flap": "period=40ms duty=0.5", "corrupt": "frames=2"}


def script_of(random: np.random.Generator, nodes: int, nics: int) -> ccl.FaultScript:
    """Up to three faults of NICs that are not spared."""
    lines = []
    for _ in range(int(random.integers(1, 4))):
        kind = str(random.choice(KINDS))
        words = [kind, f"node={random.integers(nodes)}", f"nic={random.integers(1, nics)}", f"after={random.integers(0, 150)}ms"]
        words += EXTRA.get(kind, "").split()
        if kind not in ("corrupt", "sever"):
            words.append(f"for={random.integers(20, 400)}ms")
        lines.append(" ".join(words))
    return ccl.FaultScript(*lines)


def held(pids: list[int]) -> dict[str, list[int]]:
    """Resident KiB and descriptors of this process and the ranks."""
    found: dict[str, list[int]] = {"resident_kib": [], "descriptors": []}
    for pid in [os.getpid(), *pids]:
        with open(f"/proc/{pid}/statm") as statm:
            found["resident_kib"].append(int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024)
        found["descriptors"].append(len(os.listdir(f"/proc/{pid}/fd")))
    return found


def run(seconds: float = SECONDS, seed: int = SEED) -> dict[str, Any]:
    """Rounds until the time is over. The first wrong sum or error ends it, with the script that did it."""
    random, nodes, nics = np.random.default_rng(seed), 2, 4
    topology = ccl.Topology.cluster(nodes=nodes, gpus_per_node=1, nics_per_node=nics, nic_gbits_per_s=0.25)
    kinds: Counter[str] = Counter()
    hits = rounds = 0
    samples: list[dict[str, Any]] = []
    failures: list[str] = []
    begin = looked = time.monotonic()
    with ccl.World(topology, timeout="60s", trace_spans=4096) as world:
        pids = list(world.status()["pids"].values())
        while time.monotonic() - begin < seconds and not failures:
            script = script_of(random, nodes, nics)
            schedule = ccl.plan(str(random.choice(COLLECTIVES)), topology, int(random.integers(1, 9)) << 20)
            run = world.start(schedule, faults=script.final_heal())
            try:
                run.wait(90)
                run.check()
            except ccl.CclError as error:
                failures.append(f"seed {seed}, round {rounds}, {schedule.collective}: {error}\n{script.text()}")
            rounds += 1
            kinds.update(fault.kind for fault in run.faults[:-1])
            hits += sum(fault.fired for fault in run.faults[:-1])
            if time.monotonic() - looked > LOOK_S:
                looked = time.monotonic()
                samples.append({"s": looked - begin, "rounds": rounds, **held(pids)})
        lost = sum(event["kind"] == "lost" for event in world.faults.events)
    return {
        "summary": f"{rounds} collectives, {sum(kinds.values())} faults ({hits} hits) in {time.monotonic() - begin:.0f} s live: "
        f"{len(failures)} failures",
        "topology": topology.to_dict(), "seed": seed, "kinds": dict(kinds), "hits": hits, "paths_lost_lately": lost,
        "failures": failures, "samples": samples,
    }  # fmt: skip


if __name__ == "__main__":
    facts = run(*[float(word) if i == 0 else int(word) for i, word in enumerate(sys.argv[1:])])  # type: ignore[arg-type]
    print(facts["summary"], *facts["failures"], sep="\n")
    sys.exit(bool(facts["failures"]))
