"""Who is silent while something is awaited: counted in rounds, told once, taken back once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

import ccl_lab as ccl
from ccl_lab.engine.suspicion import MAX_ASKED, Suspicion
from ccl_lab.widgets.faults import FaultBoard, marks_of


class Peers:
    """Ranks that answer at once, unless they are silent."""

    def __init__(self) -> None:
        self.silent: set[int] = set()
        self.asked: list[int] = []
        self.told: list[tuple[int, float]] = []
        self.suspicion = Suspicion(self._ask, lambda rank, seconds: self.told.append((rank, seconds)))

    def _ask(self, rank: int) -> None:
        self.asked.append(rank)
        if rank not in self.silent:
            self.suspicion.heard(rank)

    def rounds(self, n: int) -> None:
        for _ in range(n):
            self.suspicion.round()


@pytest.fixture
def peers() -> Peers:
    return Peers()


def test_who_answers_is_not_suspected(peers: Peers) -> None:
    peers.suspicion.begin(range(3))
    peers.rounds(50)
    assert not peers.told and not peers.suspicion.silent


def test_silence_is_told_once_after_a_second_and_its_end_too(peers: Peers) -> None:
    peers.suspicion.begin(range(3))
    peers.silent = {1}
    peers.rounds(4)
    assert not peers.told  # the first round only asks
    peers.rounds(1)
    assert peers.told == [(1, 1.0)] and peers.suspicion.silent == {1: 1.0}
    peers.rounds(4)
    assert peers.told == [(1, 1.0)] and peers.suspicion.silent == {1: 2.0}
    peers.suspicion.heard(1)
    assert peers.told == [(1, 1.0), (1, 0.0)] and not peers.suspicion.silent
    peers.silent = set()
    peers.rounds(20)
    assert len(peers.told) == 2


def test_one_answer_in_time_starts_the_count_again(peers: Peers) -> None:
    peers.suspicion.begin([0])
    peers.silent = {0}
    for _ in range(10):
        peers.rounds(4)
        peers.suspicion.heard(0)
    assert not peers.told


def test_a_process_that_stood_still_itself_blames_nobody(peers: Peers) -> None:
    peers.suspicion.begin(range(2))
    peers.silent = {0, 1}
    peers.rounds(1)
    time.sleep(0.05)  # however long: one round is one round
    peers.rounds(1)
    assert not peers.told


def test_questions_to_one_that_is_silent_are_bounded(peers: Peers) -> None:
    peers.suspicion.begin([0])
    peers.silent = {0}
    peers.rounds(1000)
    assert len(peers.asked) == MAX_ASKED and peers.told == [(0, 1.0)]


def test_the_next_wait_goes_on_with_who_is_suspected_and_forgives_the_others(peers: Peers) -> None:
    peers.suspicion.begin(range(3))
    peers.silent = {1, 2}
    peers.rounds(5)
    peers.suspicion.heard(2)
    peers.rounds(3)
    peers.suspicion.begin(range(3))
    peers.rounds(3)
    assert set(peers.suspicion.silent) == {1} and peers.suspicion.silent[1] == 2.5


def test_one_that_is_lost_is_no_longer_suspected(peers: Peers) -> None:
    peers.suspicion.begin(range(2))
    peers.silent = {0}
    peers.rounds(5)
    peers.suspicion.forget(0)
    peers.suspicion.forget(1)
    peers.rounds(10)
    assert peers.told == [(0, 1.0), (0, -1.0)] and not peers.suspicion.silent


# -- of a World


@pytest.fixture
def world() -> Iterator[ccl.World]:
    with ccl.World(3, timeout="60s") as made:
        yield made


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def test_a_stopped_rank_is_told_long_before_the_timeout_and_is_back(world: ccl.World) -> None:
    schedule = ccl.plan("all_reduce", world.topology, "64KiB")
    board = FaultBoard(world.faults, world.topology)
    world.run(schedule)
    pause = world.faults.pause(rank=1)
    run = world.start(schedule)
    wait_for(lambda: 1 in world.faults.silent)
    assert not run.done() and world.faults.silent[1] >= 1.0
    told = [event for event in world.faults.events if event["kind"] == "silent" and event["rank"] == 1]
    assert "rank 1 has said nothing for 1 s" in told[0]["text"] and "all_reduce (run 2)" in told[0]["text"]
    assert {"rank": 1, "state": "paused", "icon": "‖"} in board.collect()["ranks"]
    marks = [mark for mark in board.collect()["marks"] if mark["word"] == "rank silent" and mark["where"] == "rank 1"]
    assert marks and marks[0]["look"] == "verdict"
    pause.undo()
    run.wait()
    wait_for(lambda: 1 not in world.faults.silent)
    assert any(event["kind"] == "answers" and event["rank"] == 1 for event in world.faults.events)


def test_a_rank_stopped_from_outside_is_silent_in_the_panel(world: ccl.World) -> None:
    schedule = ccl.plan("all_reduce", world.topology, "64KiB")
    world.run(schedule)
    pid = world.status()["pids"][2]
    os.kill(pid, signal.SIGSTOP)
    try:
        run = world.start(schedule)
        wait_for(lambda: 2 in world.faults.silent)
        row = {"rank": 2, "state": "silent", "icon": "◌"}
        assert row in FaultBoard(world.faults, world.topology).collect()["ranks"]
    finally:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(ccl.PeerLostError, match="rank 2"):
        run.wait(60)
    wait_for(lambda: 2 not in world.faults.silent)


def test_silence_of_two_ranks_is_two_marks() -> None:
    events = [
        {"kind": "silent", "time_ns": 1_000, "rank": rank, "node": 0, "nic": -1, "peer": -1, "peer_nic": -1, "text": f"rank {rank} …"}
        for rank in (0, 2)
    ]
    assert [mark["where"] for mark in marks_of(events, [0, 0, 0])] == ["rank 0", "rank 2"]
