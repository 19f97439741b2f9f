"""Changing any single op of a schedule of any algorithm is caught, unless it changes neither result nor order.

The verifier gives its verdict; the adversary (tests/property/adversary.py), which shares no code with it, judges every
mutant the verifier lets pass. `--mutants 0` tries all of them; the share is printed.
"""

from __future__ import annotations

import zlib
from collections import Counter

import adversary
import mutants
import pytest

from ccl_lab import Topology, plan, verify
from ccl_lab.errors import CclError, ScheduleError
from ccl_lab.planner import ALGORITHMS

EVERY = [(collective, name) for collective, names in ALGORITHMS.items() for name in names]
JUDGED_RUNS = 16


def small_schedules(collective: str, name: str) -> list:
    """Schedules of an algorithm small enough for hundreds of runs, odd and even, flat and on nodes, in and out of place, some in slices."""
    grid = Topology.cluster(nodes=2, gpus_per_node=2, nics_per_node=2)
    found = []
    for topology, channels, nbytes in ((3, 2, "4KiB"), (grid, 1, "4KiB"), (4, 1, "4KiB"), (5, 1, "4KiB"), (3, 1, "2MiB")):
        for in_place in (False, True):
            options = {"in_place": in_place, "root": 1, "peer": 2, "channels": channels}
            try:
                schedule = plan(collective, topology, nbytes, algorithm=name, **options)
            except CclError:
                continue
            if not found or len(schedule.ops) < 150:
                found.append(schedule)
    return found


def survey(schedules: list, seed: int, limit: int | None) -> tuple[Counter, list[str], int]:
    """How mutants fared by verdict, which were missed, and how many of the caught ones the adversary broke, of 1 in 8."""
    tally: Counter = Counter()
    missed: list[str] = []
    for i, schedule in enumerate(schedules):
        share = None if limit is None else max(limit // len(schedules), 1)
        digest = schedule.digest
        for mutant in mutants.mutants(schedule, seed + i, share):
            if mutant.schedule.digest == digest:
                tally["label only"] += 1
                continue
            try:
                verify(mutant.schedule)
            except ScheduleError as error:
                tally[type(error).__name__] += 1
                assert str(error), mutant.change
                if sum(tally.values()) % 8 == 0:
                    broken = adversary.judge(mutant.schedule, seed, runs=8, suspects=mutant.suspects)
                    tally["caught, judged"] += 1
                    tally["caught, broken by the adversary"] += bool(broken)
                continue
            tally["harmless"] += 1
            broken = adversary.judge(mutant.schedule, seed, runs=JUDGED_RUNS, suspects=mutant.suspects)
            if broken:
                missed.append(f"{mutant.change}: {broken}")
    return tally, missed, len(schedules)


@pytest.mark.parametrize(("collective", "name"), EVERY, ids=[f"{c}-{a}" for c, a in EVERY])
def test_any_single_change_is_caught_or_harmless(collective: str, name: str, seed: int, request: pytest.FixtureRequest,
                                                 record_property) -> None:
    limit = request.config.getoption("--mutants")
    schedules = small_schedules(collective, name)
    assert schedules
    tally, missed, _ = survey(schedules, seed + zlib.crc32(f"{collective} {name}".encode()), limit or None)
    record_property("mutants", dict(tally))
    print(f"{collective} {name}: {len(schedules)} schedules, {dict(tally)}, {len(missed)} missed")
    assert not missed, f"seed {seed}: {len(missed)} harmful mutants were accepted:\n" + "\n".join(missed[:10])


@pytest.mark.parametrize(("collective", "name"), EVERY, ids=[f"{c}-{a}" for c, a in EVERY])
def test_adversary_breaks_no_proved_schedule(collective: str, name: str, seed: int) -> None:
    for schedule in small_schedules(collective, name)[:4]:
        verify(schedule)
        assert adversary.judge(schedule, seed, runs=6) == ""
