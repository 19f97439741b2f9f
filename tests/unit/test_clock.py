"""Clocks of several hosts: how far a rank's is from the hub's, and what a trace makes of it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import numpy as np
import pytest

from ccl_lab.engine import clock, hub
from ccl_lab.trace import SPAN_DTYPE, Trace


@pytest.fixture
def star() -> Iterator[tuple[hub.Hub, hub.Spoke]]:
    centre = hub.Hub(1)
    ours, theirs = socket.socketpair()
    spoke = hub.Spoke(theirs, on_lost=lambda: None)
    spoke.start()
    centre.add(0, ours)
    yield centre, spoke
    spoke.close()
    centre.close()


class Told:
    """A spoke whose answers are known: (sent, hub, received)."""

    def __init__(self, *answers: tuple[int, int, int] | None) -> None:
        self._answers = list(answers)

    def hub_clock(self, _: float) -> tuple[int, int, int] | None:
        return self._answers.pop(0) if self._answers else None


@pytest.mark.parametrize("ahead_ns", [-3_600_000_000_000, -7_000_000_000, 250_000_000_000])
def test_another_clock_is_found(star: tuple[hub.Hub, hub.Spoke], ahead_ns: int) -> None:
    centre, spoke = star
    centre.clock = lambda: time.monotonic_ns() - ahead_ns
    found = clock.measured(spoke)
    assert found and found.off_by_ns > 0
    assert abs(found.ns - ahead_ns) <= found.off_by_ns


def test_the_same_clock_moves_nothing(star: tuple[hub.Hub, hub.Spoke]) -> None:
    found = clock.measured(star[1])
    assert found and found.ns == 0


def test_a_hub_that_is_gone_is_not_waited_for(star: tuple[hub.Hub, hub.Spoke]) -> None:
    centre, spoke = star
    centre.close()
    assert clock.measured(spoke) is None


def test_the_quickest_answer_counts() -> None:
    late_there = (0, 9_000_900, 1000)  # 900 of 1000 ns on the way there
    even = (5000, 9_005_050, 5100)
    late_back = (8000, 9_008_100, 9900)
    assert clock.measured(Told(late_there, even, late_back)) == (-9_000_000, 50)  # type: ignore[arg-type]


def test_a_clock_that_runs_at_another_rate() -> None:
    told = clock.HubClock(Told((0, 1_000_000, 100), None, (0, 1_004_000, 100)))  # type: ignore[arg-type]
    first = told.offset()
    assert first == (50 - 1_000_000, 50)
    between = told.offset()
    assert between == (50 - 1_002_000, 50 + 2000)
    assert told.offset() == (50 - 1_004_000, 50), "no answer: as it was"
    assert clock.HubClock(Told()).offset() is None  # type: ignore[arg-type]


def test_spans_keep_their_durations_and_what_is_no_time_stays() -> None:
    records = np.zeros(3, SPAN_DTYPE)
    records["begin_ns"], records["end_ns"] = [100, 200, 300], [150, 0, 300]
    moved = clock.moved(records, clock.Offset(40, 5))
    assert moved["begin_ns"].tolist() == [60, 160, 260]
    assert moved["end_ns"].tolist() == [110, 0, 260]
    assert records["begin_ns"].tolist() == [100, 200, 300]
    assert clock.moved(records, None) is records


def test_a_job_of_many_hosts_says_what_each_was_moved_by() -> None:
    ranks = [
        Trace(meta={"n_ranks": 3} | clock.note(clock.Offset(ns, 500), rank))
        for rank, ns in enumerate([0, 5_000_000, -2000])
    ]
    assert Trace.concat(ranks).meta["clock"] == {
        "method": "exchange of times with rank 0",
        "offset_us": {"0": 0.0, "1": 5000.0, "2": -2.0},
        "off_by_us": {"0": 0.5, "1": 0.5, "2": 0.5},
    }
    assert "clock" not in Trace.concat([*ranks, Trace(meta={"n_ranks": 3})]).meta
    twice = Trace(meta=clock.note(clock.Offset(7, 1), 1))
    assert "clock" not in Trace.concat([*ranks, twice]).meta
