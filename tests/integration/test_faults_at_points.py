"""NICs that are cut at every point of the recovery protocol, in every collective, over sockets: each cut hits, the result is right.

Is: the live counterpart of the fault simulation (native/tests/test_faults.cpp), which plays many more histories. Is not: a
test of figures: nothing of time is asserted but that things end. A World has NICs enough for several cuts, one after the
other, since a NIC that was lost often is kept waiting before it comes back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

import ccl_lab as ccl
from ccl_lab.errors import PeerLostError, UnsupportedError
from ccl_lab.faults import POINTS

NICS, GBITS, SIZE = 7, 0.4, "6MiB"
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv"]
ONE_WAY = ("broadcast", "send_recv")
NOT_LIVE = {"at_start", "at_close"}

# What is passed while all is well: the cut is the first fault. Three cuts of a World.
HEALTHY = [("before_post", "posted", "arrived"), ("told", "data_before_signal", "confirmed")]
# What is passed when another NIC was lost before.
REPAIR = [("retiring", "retired", "backup_post"), ("hint_sent", "hint_heard", "parked"), ("request_sent", "request_heard", "ack_sent"),
          ("ack_heard", "probe_sent", "probe_heard"), ("reply_sent", "reply_heard")]  # fmt: skip
# Steps of one exchange that takes its time: all are cut in one.
SILENCE = ("ping_sent", "ping_heard", "pong_sent", "pong_heard")
WAY_BACK = ("wanted", "one_end_back", "back")
# Whether it comes to these is a matter of who is first, of what overtakes what, and of puts larger than a segment; where one
# rank sends and the other one hears, it does.
BY_CHANCE = {"hint_sent", "hint_heard", "parked", "data_before_signal"}


def make_world() -> ccl.World:
    topology = ccl.Topology.cluster(nodes=2, gpus_per_node=1, nics_per_node=NICS, nic_gbits_per_s=GBITS)
    return ccl.World(topology, timeout="20s")


def plan(world: ccl.World, collective: str, nbytes: str = SIZE) -> ccl.Schedule:
    return ccl.plan(collective, world.topology, nbytes, channels=NICS)


def cuts(nic: int, point: str) -> list[str]:
    """Of the same NIC of both nodes: whichever passes the point first, one way between the nodes is gone."""
    return [f"nic_down node={node} nic={nic} at_point={point}" for node in (0, 1)]


def first_fault(collective: str, point: str, nic: int) -> str:
    """What is lost before: at the sender, which asks for an answer, or at a receiver that has nothing to send, which hints."""
    if point in ("hint_sent", "hint_heard"):
        return f"nic_down node=1 nic={nic} at_point=told:2"
    return f"nic_down node={0 if collective in ONE_WAY else 1} nic={nic} at_point=posted"


def hits(world: ccl.World, faults: list[Any]) -> int:
    """How often any of `faults` hit; one that was just done is given the time to."""
    if any(fault.state == "active" for fault in faults):
        wait_for(lambda: sum(fault.fired for fault in faults) > 0)
    return sum(fault.fired for fault in faults)


def wait_for(condition: Any, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.002)


def run_with(world: ccl.World, schedule: ccl.Schedule, lines: list[str]) -> list[Any]:
    run = world.start(schedule, faults=lines)
    run.wait(20)
    run.check()
    return run.faults


def run_until(world: ccl.World, schedule: ccl.Schedule, condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, world.faults.script
        run_with(world, schedule, [])


def test_every_live_point_is_cut_here() -> None:
    found = [point for group in [*HEALTHY, *REPAIR, SILENCE, WAY_BACK] for point in group]
    assert sorted(found) == sorted(set(POINTS) - NOT_LIVE)


@pytest.mark.parametrize("points", [*HEALTHY, *REPAIR], ids="-".join)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_nic_is_cut_at_a_point(collective: str, points: tuple[str, ...]) -> None:
    with make_world() as world:
        schedule = plan(world, collective)
        for k, point in enumerate(points):
            before = [first_fault(collective, point, 2 * k)] if points in REPAIR else []
            faults = run_with(world, schedule, before + cuts(2 * k + 1, point))
            by_chance = point == "parked" or (point in BY_CHANCE and collective not in ONE_WAY)
            hit = hits(world, faults[len(before) :]) > 0 or by_chance
            if not hit and point.startswith(("probe", "reply")):  # the run was over before; a NIC that answers again is probed for sure
                faults[0].undo()
                again = world.faults.play(cuts(2 * k + 1, point))
                run_until(world, schedule, lambda again=again: sum(fault.fired for fault in again) > 0)
                hit = True
            assert hit, f"{point} was not passed, or the cut did not hit"
        world.faults.heal()
        assert world.faults.state() == {}
        run_with(world, schedule, [])


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_nics_are_cut_while_a_silence_is_asked_about(collective: str) -> None:
    with make_world() as world:
        lines = [line for nic, point in enumerate(SILENCE, 1) for line in cuts(nic, point)]
        silent, *faults = run_with(world, plan(world, collective), ["black_hole node=0 nic=0 at_point=posted", *lines])
        assert silent.fired > 0
        for i, point in enumerate(SILENCE):
            assert hits(world, faults[2 * i : 2 * i + 2]) > 0, point


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_nics_are_cut_while_another_comes_back(collective: str) -> None:
    with make_world() as world:
        schedule = plan(world, collective, "1536KiB")
        faults = world.faults.play([line for nic, point in enumerate(WAY_BACK, 1) for line in cuts(nic, point)])
        (lost,) = run_with(world, schedule, ["nic_down node=1 nic=0 at_point=posted for=10ms" if collective not in ONE_WAY else
                                             "nic_down node=0 nic=0 at_point=posted for=10ms"])  # fmt: skip
        assert lost.fired > 0
        run_until(world, schedule, lambda: all(sum(fault.fired for fault in faults[i : i + 2]) for i in (0, 2, 4)))
        world.faults.heal()
        run_with(world, schedule, [])


KINDS = {
    "cable node=1 nic=1 at_point=told": "unplugged",
    "black_hole node=1 nic=1 direction=tx at_point=posted:2": "silent",
    "flap node=1 nic=1 period=50ms at_point=arrived": "flapping",
    "sever node=1 nic=1 at_point=told": "",
    "corrupt node=1 nic=1 at_point=before_post": "",
    "cap node=1 nic=1 fraction=0.5 at_point=posted": "capped",
    "delay node=1 nic=1 latency=1ms at_point=posted": "delayed",
    "nic_down node=1 nic=1 rank=0 at_point=posted": "down",
}


@pytest.mark.parametrize("line", KINDS, ids=lambda line: line.replace(" ", ","))
def test_every_kind_of_fault_at_a_point(line: str) -> None:
    with make_world() as world:
        (fault,) = run_with(world, plan(world, "all_reduce", "12MiB"), [line])
        wait_for(lambda: fault.fired > 0)
        wait_for(lambda: fault.state == ("ended" if KINDS[line] == "" else "active"))
        assert world.faults.state() == ({(1, 1): KINDS[line]} if KINDS[line] else {}) and fault.time_ns > 0
        if KINDS[line]:
            fault.undo()
        assert world.faults.state() == {} and not world.faults.armed


def test_a_rank_that_stops_or_ends_itself_at_a_point() -> None:
    with make_world() as world:
        schedule = plan(world, "all_reduce")
        (stopped,) = run_with(world, schedule, ["pause rank=1 at_point=arrived:3 for=50ms"])
        assert (stopped.state, stopped.fired) == ("undone", 1)
        run = world.start(schedule, faults=["kill rank=1 at_point=told:2"])
        with pytest.raises(PeerLostError, match="rank 1 .*killed by SIGKILL"):
            run.wait(20)
        assert run.faults[0].fired == 1 and world.faults.ranks() == {1: "killed"}


def test_the_nth_time_and_never() -> None:
    with make_world() as world:
        schedule = plan(world, "all_reduce")
        lines = ["nic_down node=0 nic=2 at_point=posted:2", "nic_down node=1 nic=1 at_point=posted:1000000"]
        early, late = run_with(world, schedule, lines)
        assert early.fired > 0 and (late.state, late.fired) == ("missed", 0) and world.faults.state() == {(0, 2): "down"}
        waiting = world.faults.nic_down(node=1, nic=1, at_point="told")
        waiting.undo()
        run_with(world, schedule, [])
        assert waiting.state == "cancelled" and world.faults.state() == {(0, 2): "down"}
        for point in sorted(NOT_LIVE):
            with pytest.raises(UnsupportedError, match=f"{point} is a point of the deterministic simulation only. Live, .*run"):
                world.faults.nic_down(node=0, nic=0, at_point=point)
