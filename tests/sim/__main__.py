"""Many random cases against the oracle: `python -m tests.sim --cases 10000 --seed 1`.

Half of them are schedules of random ops, half what the planner makes, every algorithm in turn, with late ranks, uneven links, lost
NICs, and rates that change in time. Each is timed by the exact tier and by the oracle, up to 64 ranks; what is planned also without its
table of ops, where that is possible. All must agree to the picosecond. A case that fails is named by its seed. Schedules of more than
MOST_OPS ops are left out: the oracle takes some 20 us an op. With --record FILE what was found is written there; a further run of the same
commit with other seeds adds to it, so that cases can be drawn piece by piece.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from bench.record import commit, save
from ccl_lab.errors import CclError, Inapplicable
from ccl_lab.simulator import exact_times, finish_times
from ccl_lab.simulator.changes import Changes

from . import test_exact, test_scale
from .cases import links_of, random_changes
from .test_exact import assert_equal_to_oracle

MOST_OPS = 20_000


def planned(seed: int, seen: Counter[str]) -> None:
    """One schedule of the planner, both ways."""
    name = test_scale.NAMES[seed % len(test_scale.NAMES)]
    drawn = test_scale.draw(seed, name, most_nodes=4)
    if drawn is None:
        seen["the algorithm does not fit"] += 1
        return
    schedule, outlined, topology, late, _ = drawn
    if len(schedule.ops) > MOST_OPS or topology.n_ranks > 64:
        seen["too large for the oracle"] += 1
        return
    late_ps = np.array([int(late.get(rank, "0ps")[:-2]) for rank in range(topology.n_ranks)])
    rng, rates = np.random.default_rng([seed, 17]), {}
    if topology.n_nodes > 1 and rng.random() < 0.3:
        rates = random_changes(rng, topology, int(exact_times(schedule, topology, late=late).time_ps))
        seen["of those with rates that change in time"] += 1
    times = assert_equal_to_oracle(schedule, topology, late_ps, np.zeros((topology.n_ranks, 1), np.int64), rates)
    seen["planned"] += 1
    try:
        found, _ = finish_times(outlined, topology, late=late, changes=Changes.of(links_of(topology, rates)))
    except Inapplicable:
        return
    assert found.tolist() == times.finish_ps.tolist(), "without the table of ops"
    seen["of those also without a table of ops"] += 1


def record(path: Path, at: str, piece: dict[str, Any], seen: Counter[str]) -> None:
    """Adds what a run of commit `at` found to the record at `path`; pieces of other commits are replaced."""
    before = json.loads(path.read_text()) if path.exists() else {}
    pieces = [each for each in before.get("pieces", []) if before.get("commit") == at and each["seeds"] != piece["seeds"]]
    pieces = sorted([*pieces, {**piece, "seen": dict(seen)}], key=lambda each: each["seeds"])
    total = sum((Counter(each["seen"]) for each in pieces), Counter())
    cases = total["random ops"] + total["planned"]
    failures = [failure for each in pieces for failure in each["failures"]]
    save(path.stem, {
        "summary": f"{cases:,} random cases against the naive oracle, to the picosecond: {len(failures)} differ", "commit": at,
        "cases": cases, "failures": failures, "seen": dict(total), "algorithms": len(test_scale.NAMES), "most_ranks": 64,
        "pieces": pieces}, path.parent)  # fmt: skip


def case(seed: int, seen: Counter[str]) -> None:
    """One more; AssertionError where it differs."""
    if seen["random ops"] <= seen["planned"]:
        assert_equal_to_oracle(*test_exact.draw(seed))
        seen["random ops"] += 1
    else:
        planned(seed, seen)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1, help="of the first case")
    parser.add_argument("--record", type=Path, metavar="FILE", help="add what is found to this record (JSON)")
    given, at = parser.parse_args(), commit()  # what is imported is of this commit, whatever the tree becomes
    sys.setrecursionlimit(10 * MOST_OPS)  # of the oracle, where ops follow at once
    seen: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    begin = time.perf_counter()
    seed = given.seed
    while seen["random ops"] + seen["planned"] < given.cases and len(failures) < 10:
        try:
            case(seed, seen)
        except (AssertionError, CclError) as error:
            failures.append({"seed": seed, "why": str(error).splitlines()[0][:300] if str(error) else type(error).__name__})
            print(f"seed {seed}: {error}", file=sys.stderr)
            seen["random ops" if seen["random ops"] <= seen["planned"] else "planned"] += 1
        seed += 1
    print(f"seeds {given.seed} to {seed - 1} in {time.perf_counter() - begin:.0f} s:", dict(seen))
    if given.record:
        record(given.record, at, {"seeds": [given.seed, seed - 1], "failures": failures}, seen)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
