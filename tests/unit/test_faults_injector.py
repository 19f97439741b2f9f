"""The injector on a World of stand-ins: what holds together, who ends first, moments, counts, scripts and hooks.

Is not: a test of what faults do to traffic (tests/integration/test_faults_live.py).
"""

from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ccl_lab as ccl
from ccl_lab.engine.faults import Faults
from ccl_lab.errors import UnsupportedError, UsageError

RATE = 1_000_000_000


class Segment:
    """The words of shared memory that faults are told, with counters a test may raise."""

    def __init__(self, nics: int = 2) -> None:
        self.shaped = dict.fromkeys(range(nics), (0, True))
        kinds = ("silent_tx", "silent_rx", "unplugged", "damage", "sever", "delay_ns", "jitter_ns", "down")
        self.nics = {nic: {"values": dict.fromkeys(kinds, 0), "hits": dict.fromkeys(kinds, 0)} for nic in range(nics)}
        words = ("loss_ppm", "double_ppm", "late_ns")
        self.mail = {"values": dict.fromkeys(words, 0), "hits": dict.fromkeys(words, 0)}
        self.bytes = np.zeros((nics, 2), np.uint64)
        self.triggers: dict[int, dict[str, Any]] = {}
        self.fired: dict[int, dict[str, Any]] = {}

    def arm_trigger(self, point: str, **order: Any) -> int:
        number = min(set(range(99)) - {*self.triggers, *self.fired})
        self.triggers[number] = {"point": point} | order
        return number

    def fired_trigger(self, number: int) -> dict[str, Any] | None:
        return self.fired.get(number)

    def release_trigger(self, number: int) -> dict[str, Any] | None:
        self.triggers.pop(number, None)
        return self.fired.pop(number, None)

    def passes(self, number: int, rank: int) -> dict[str, Any]:
        """What a rank does at the point."""
        order = self.triggers.pop(number)
        nic, asked = order.get("nic", -1), order.get("asked", {})
        hits = dict(self.nics[nic]["hits"]) if nic >= 0 else {}
        for kind, value in asked.items():
            self.nics[nic]["values"][kind] = value
            if kind == "down":
                self.shaped[nic] = self.shaped[nic][0], False
        self.fired[number] = {"rank": rank, "time_ns": time.monotonic_ns(), "did": list(asked), "hits": hits}
        return order

    def set_nic(self, nic: int, bytes_per_s: int, up: bool) -> None:
        self.shaped[nic] = bytes_per_s, up

    def set_fault(self, nic: int, kind: str, value: int) -> None:
        self.nics[nic]["values"][kind] = value

    def faults(self) -> dict[int, Any]:
        return self.nics

    def set_message_fault(self, kind: str, value: int) -> None:
        self.mail["values"][kind] = value

    def message_faults(self) -> dict[str, Any]:
        return self.mail

    def nic_counters(self) -> np.ndarray:
        return self.bytes

    def hit(self, nic: int, kind: str, times: int = 1) -> None:
        self.nics[nic]["hits"][kind] += times
        if kind in ("damage", "sever"):
            self.nics[nic]["values"][kind] -= times


class World:
    """What the injector asks of a World."""

    def __init__(self, **topology: Any) -> None:
        shape = {"nodes": 2, "gpus_per_node": 2, "nics_per_node": 2, "nic_gbits_per_s": 8} | topology
        self.topology = ccl.Topology.cluster(**shape)
        self._ranks = SimpleNamespace(segments=[Segment() for _ in range(4)], ids=(0, 1, 2, 3), pids={})
        self.faults = Faults(self)  # type: ignore[arg-type]

    def _check_open(self) -> None:
        pass

    def segment(self, node: int) -> Segment:
        return self._ranks.segments[2 * node]


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.faults.close()


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert condition()


def a_run(*faults: Any) -> Any:
    return SimpleNamespace(faults=list(faults))


FOUR = ("nic_down node=0 nic=1", "cable node=0 nic=1", "cap node=0 nic=1 fraction=0.5", "cap node=0 nic=1 gbits=2")


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
def test_what_holds_is_the_sum_of_faults_whatever_ends_first(order: tuple[int, ...], world: World) -> None:
    faults = [world.faults.inject(text) for text in FOUR]
    holds = [True] * 4
    for number in (None, *order):
        if number is not None:
            faults[number].undo()
            holds[number] = False
        rate = RATE // 4 if holds[3] else RATE // 2 if holds[2] else RATE
        assert world.segment(0).shaped[1] == (rate, not holds[0])
        assert world.segment(0).nics[1]["values"]["unplugged"] == holds[1]
        word = "down" if holds[0] else "unplugged" if holds[1] else "capped" if holds[2] or holds[3] else ""
        assert world.faults.state() == ({(0, 1): word} if word else {})
    assert world.segment(0).shaped[0] == (0, True), "the other NIC was not touched"


def test_a_rate_set_meanwhile_is_what_undo_leads_back_to(world: World) -> None:
    down = world.faults.nic_down(node=1, nic=0)
    cap = world.faults.cap(node=1, nic=0, fraction=0.5)
    world.faults.shape(1, 0, 600, True)
    assert world.segment(1).shaped[0] == (300, False)
    cap.undo()
    down.undo()
    assert world.segment(1).shaped[0] == (600, True)
    world.faults.shape(1, 0, 600, False)
    assert world.faults.state() == {(1, 0): "down"}


def test_hits_are_those_since_the_fault(world: World) -> None:
    segment = world.segment(0)
    segment.hit(0, "down", 5)
    fault = world.faults.nic_down(node=0, nic=0)
    assert fault.fired == 0
    segment.hit(0, "down", 3)
    segment.hit(1, "down", 7)
    assert fault.fired == 3
    fault.undo()
    segment.hit(0, "down", 9)
    assert fault.fired == 3 and fault.state == "undone" and fault.undone_ns >= fault.time_ns > 0
    fault.undo()  # nothing more
    hole = world.faults.black_hole(node=0, nic=0, direction="tx")
    segment.hit(0, "silent_rx")
    segment.hit(0, "silent_tx", 2)
    assert hole.fired == 2 and segment.nics[0]["values"]["silent_rx"] == 0
    cap = world.faults.cap(node=0, nic=1, gbits=1)
    segment.bytes[1] += np.uint64(21)
    assert cap.fired == 42
    mail = world.faults.messages(rank=3, loss=0.25, late="2ms")
    other = world.faults.messages(rank=3, loss=0.5)
    last = world._ranks.segments[3].mail
    assert last["values"] == {"loss_ppm": 500_000, "double_ppm": 0, "late_ns": 2_000_000}
    last["hits"]["double_ppm"] += 1
    last["hits"]["late_ns"] += 2
    assert (mail.fired, other.fired) == (2, 0)
    world.faults.heal()
    assert set(last["values"].values()) == {0} and world.faults.state() == {}


def test_what_is_counted_down_has_its_turn_one_after_the_other(world: World) -> None:
    segment = world.segment(0)
    first = world.faults.corrupt(node=0, nic=0, frames=3)
    second = world.faults.corrupt(node=0, nic=0, frames=2)
    third = world.faults.corrupt(node=0, nic=0, frames=4)
    assert segment.nics[0]["values"]["damage"] == 3
    segment.hit(0, "damage", 2)
    assert (first.fired, second.fired) == (2, 0)
    segment.hit(0, "damage")
    wait_for(lambda: segment.nics[0]["values"]["damage"] == 2)
    assert (first.state, first.fired, second.state) == ("ended", 3, "active")
    segment.hit(0, "damage")
    second.undo()
    assert (second.state, second.fired) == ("undone", 1) and segment.nics[0]["values"]["damage"] == 4
    third.undo()
    assert third.fired == 0 and segment.nics[0]["values"]["damage"] == 0 and world.faults.state() == {}


def test_after_and_for(world: World) -> None:
    begin = time.monotonic_ns()
    fault = world.faults.nic_down(node=0, nic=0, after="30ms", for_="40ms")
    assert fault.state == "armed" and world.faults.armed == [fault] and world.faults.log == []
    wait_for(lambda: fault.state == "undone")
    assert fault.time_ns - begin >= 30_000_000 and fault.undone_ns - fault.time_ns >= 40_000_000
    assert world.faults.log == [fault] and world.segment(0).shaped[0] == (RATE, True)
    wait_for(lambda: world.faults._thread is None)  # nothing to wait for: no thread


def test_moments_do_not_wait_for_the_caller(world: World) -> None:
    """The main thread computes all the while."""
    fault = world.faults.nic_down(node=0, nic=0, after="5ms")
    end = time.monotonic() + 1.0
    while time.monotonic() < end and fault.state == "armed":
        sum(range(1000))
    assert fault.state == "active"


def test_called_off_before_its_moment(world: World) -> None:
    fault = world.faults.kill(rank=1, after="10s")
    world.faults.undo(fault.number)
    assert fault.state == "cancelled" and world.faults.armed == [] and world.faults.log == [] and fault.fired == 0
    later = world.faults.nic_down(node=0, nic=0, after="10s")
    world.faults.heal()
    assert later.state == "cancelled"
    with pytest.raises(UsageError, match="there is no fault 99"):
        world.faults.undo(99)


def test_flap_goes_down_and_up_until_it_is_undone(world: World) -> None:
    fault = world.faults.flap(node=1, nic=1, period="10ms", duty=0.3)
    seen = set()
    end = time.monotonic() + 10
    while len(seen) < 2 and time.monotonic() < end:
        seen.add(world.segment(1).shaped[1][1])
    assert seen == {True, False} and world.faults.state() == {(1, 1): "flapping"}
    fault.undo()
    assert world.segment(1).shaped[1] == (RATE, True)


@pytest.mark.parametrize("line, nic", [("nic_down node=1 nic=1 at_bytes=1000", 1), ("messages rank=3 loss=1 at_bytes=1000", 0)])
def test_at_bytes_counts_from_when_it_was_armed(line: str, nic: int, world: World) -> None:
    segment = world.segment(1)
    segment.bytes[nic] += np.uint64(5000)
    fault = world.faults.inject(line)
    segment.bytes[nic, 0] += np.uint64(999)
    time.sleep(0.12)
    assert fault.state == "armed"
    segment.bytes[nic, 1] += np.uint64(1)
    wait_for(lambda: fault.state == "active")


def test_at_point_is_done_by_the_rank_and_seen_by_the_injector(world: World) -> None:
    segment = world.segment(1)
    segment.hit(1, "down", 2)
    fault = world.faults.nic_down(node=1, nic=1, at_point="posted:3")
    assert segment.triggers == {0: {"point": "posted", "passes": 3, "rank": -1, "path": (1, 1), "nic": 1, "asked": {"down": 1}}}
    assert fault.state == "armed" and fault.fired == 0 and segment.shaped[1] == (0, True)
    segment.passes(0, rank=3)
    at_ns = segment.fired[0]["time_ns"]
    segment.hit(1, "down", 4)
    wait_for(lambda: fault.state == "active")
    assert fault.fired == 4 and fault.time_ns == at_ns and segment.shaped[1] == (RATE, False) and segment.fired == {}
    assert world.faults.script[0].text() == "nic_down node=1 nic=1 at_point=posted:3"
    fault.undo()
    assert segment.shaped[1] == (RATE, True) and fault.fired == 4


@pytest.mark.parametrize("line, node, order", [
    ("cable node=0 nic=1 at_point=told rank=1", 0, {"rank": 1, "path": (0, 1), "nic": 1, "asked": {"unplugged": 1}}),
    ("black_hole node=0 nic=0 at_point=told", 0, {"path": (0, 0), "nic": 0, "asked": {"silent_tx": 1, "silent_rx": 1}}),
    ("black_hole node=0 nic=0 direction=rx at_point=told", 0, {"path": (0, 0), "nic": 0, "asked": {"silent_rx": 1}}),
    ("flap node=1 nic=0 period=1s at_point=told", 1, {"path": (1, 0), "nic": 0, "asked": {"down": 1}}),
    ("sever node=1 nic=0 connections=2 at_point=told", 1, {"path": (1, 0), "nic": 0, "asked": {"sever": 2}}),
    ("corrupt node=1 nic=0 frames=3 at_point=told", 1, {"path": (1, 0), "nic": 0, "asked": {"damage": 3}}),
    # What is of another node than the rank, or no word of a NIC, the injector does.
    ("nic_down node=0 nic=1 at_point=told rank=2", 1, {"rank": 2, "path": (0, 1)}),
    ("cap node=1 nic=0 gbits=1 at_point=told", 1, {"path": (1, 0)}),
    ("delay node=1 nic=0 latency=1ms at_point=told", 1, {"path": (1, 0)}),
    ("messages rank=3 loss=1 at_point=told", 1, {"rank": 3}),
])  # fmt: skip
def test_what_a_rank_is_told_to_do_at_a_point(line: str, node: int, order: dict[str, Any], world: World) -> None:
    fault = world.faults.inject(line)
    assert world.segment(node).triggers == {0: {"point": "told", "passes": 1, "rank": -1} | order}
    assert world.segment(1 - node).triggers == {}
    world.segment(node).passes(0, rank=2 * node)
    wait_for(lambda: fault.state == "active")
    if order.get("asked", {}).keys() & {"sever", "damage"}:
        (kind,) = order["asked"]
        world.segment(node).hit(0, kind, order["asked"][kind])
        wait_for(lambda: fault.state == "ended")
        assert fault.fired == order["asked"][kind]
    world.faults.heal()
    assert world.faults.state() == {}


def test_what_waits_for_a_point_is_called_off_or_has_happened(world: World) -> None:
    segment = world.segment(0)
    calm = world.faults.nic_down(node=0, nic=0, at_point="retired")
    calm.undo()
    assert calm.state == "cancelled" and segment.triggers == {} == segment.fired
    with world.faults._lock:  # the thread does not see it before the undo
        late = world.faults.nic_down(node=0, nic=0, at_point="retired")
        segment.passes(0, rank=0)
        late.undo()
    assert late.state == "undone" and segment.shaped[0] == (RATE, True) and segment.fired == {}
    script = ccl.FaultScript("cable node=0 nic=0 at_point=retired", "cable node=0 nic=1 at_point=wanted")
    hit, missed = world.faults.prepare(script)
    run: Any = a_run(hit, missed)
    world.faults.begin(run, time.monotonic_ns())
    with world.faults._lock:
        segment.passes(0, rank=1)
        world.faults.ended(run)
    assert (hit.state, missed.state) == ("active", "missed") and segment.triggers == {}
    world.faults.heal()
    open_ = world.faults.nic_down(node=0, nic=0, at_point="retired")
    world.faults.close()
    assert segment.triggers == {} and open_.state == "armed"


def test_a_heal_at_a_point_is_looked_for_at_every_rank(world: World) -> None:
    down = world.faults.nic_down(node=0, nic=0)
    heal = world.faults.inject("heal at_point=hint_sent")
    assert all(world.segment(node).triggers == {0: {"point": "hint_sent", "passes": 1, "rank": -1}} for node in (0, 1))
    world.segment(1).passes(0, rank=2)
    wait_for(lambda: heal.state == "ended")
    assert down.state == "undone" and world.segment(0).triggers == {}


def test_a_script_given_to_a_run_is_armed_when_it_begins(world: World) -> None:
    script = ccl.FaultScript("nic_down node=0 nic=0", "cable node=0 nic=1 after=20ms", "kill rank=1 after=10s", "heal at=end")
    now, late, missed, heal = faults = world.faults.prepare(script)
    time.sleep(0.03)
    assert {fault.state for fault in faults} == {"waiting"}
    run: Any = a_run(*faults)
    world.faults.begin(run, time.monotonic_ns())
    assert now.state == "active" and late.state == "armed"
    wait_for(lambda: late.state == "active")
    trace: Any = SimpleNamespace(meta={})
    world.faults.ended(run, trace)
    assert [fault.state for fault in faults] == ["undone", "undone", "missed", "ended"]
    assert world.faults.script == ccl.FaultScript(script[0], script[1], script[3])
    told = [(event["kind"], event["what"]) for event in trace.meta["faults"]]
    assert told[:2] == [("injected", "nic_down"), ("injected", "cable")] and sorted(told[2:]) == [
        ("injected", "heal"), ("undone", "cable"), ("undone", "nic_down"),
    ]  # fmt: skip
    world.faults.ended(run)  # nothing more
    assert heal.fired == 0 and world.faults.armed == []


def test_the_script_of_a_run_can_be_played_again(world: World) -> None:
    before = world.faults.cap(node=0, nic=0, gbits=2)
    gone = world.faults.cable(node=1, nic=1)
    gone.undo()
    run: Any = a_run()
    begin_ns = time.monotonic_ns()
    world.faults.begin(run, begin_ns)
    time.sleep(0.01)
    called = world.faults.nic_down(node=1, nic=0)
    short = world.faults.black_hole(node=1, nic=1, direction="rx")
    short.undo()
    world.segment(0).bytes[1, 0] += np.uint64(700)
    after_bytes = world.faults.sever(node=0, nic=1, at_bytes=100)
    world.segment(0).bytes[1, 0] += np.uint64(100)
    wait_for(lambda: after_bytes.state == "active")
    world.faults.ended(run)
    script = world.faults.script
    assert [each.kind for each in script] == ["cap", "nic_down", "black_hole", "sever"] and before.state == "active"
    assert script[0].text() == "cap node=0 nic=0 gbits=2"
    assert script[1].after_ns == called.time_ns - begin_ns >= 10_000_000
    assert script[2].for_ns == short.undone_ns - short.time_ns
    assert script[3].text() == "sever node=0 nic=1 at_bytes=800"
    again = World()
    try:
        faults = again.faults.prepare(script)
        repeated: Any = a_run(*faults)
        again.faults.begin(repeated, time.monotonic_ns())
        again.segment(0).bytes[1, 1] += np.uint64(800)
        wait_for(lambda: len(again.faults.log) == 4 and faults[2].state == "undone")
        again.faults.ended(repeated)
        assert {each.text() for each in again.faults.script} == {each.text() for each in script}
    finally:
        again.faults.close()


def test_play_arms_now_and_checks_all_before_it_does_any(world: World) -> None:
    with pytest.raises(UsageError, match="nic=7 is not of this world"):
        world.faults.play(["nic_down node=0 nic=0", "nic_down node=0 nic=7"])
    assert world.faults.log == world.faults.armed == []
    first, second = world.faults.play("nic_down node=0 nic=0\ncable node=0 nic=1 after=5ms")
    assert first.state == "active"
    wait_for(lambda: second.state == "active")


def test_what_cannot_be_done_is_said(world: World) -> None:
    with pytest.raises(UnsupportedError, match="at_start is a point of the deterministic simulation only.*without a moment"):
        world.faults.nic_down(node=0, nic=0, at_point="at_start")
    with pytest.raises(UnsupportedError, match="at_close is a point of the deterministic simulation only"):
        world.faults.nic_down(node=0, nic=0, at_point="at_close:2")
    with pytest.raises(UsageError, match="rank 1 has no process any more"):
        world.faults.kill(rank=1)
    assert world.faults.log == []
    world.faults.shape(0, 0, 0, True)
    with pytest.raises(UsageError, match="not shaped, a fraction of its rate is unknown: give gbits="):
        world.faults.cap(node=0, nic=0, fraction=0.5)
    real = World()
    object.__setattr__(real.topology, "emulated", False)
    real.faults = Faults(real)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="NICs of this topology are real.*Topology.cluster"):
        real.faults.nic_down(node=0, nic=0)
    real.faults.messages(rank=0, loss=1).undo()
    world.faults.close()
    with pytest.raises(UsageError, match="closed"):
        world.faults.nic_down(node=0, nic=0)


def test_events_are_told_with_nodes_paths_and_times(world: World) -> None:
    world.faults.begin(a_run(), 1_000)
    late = {"kind": "resumed", "peer": 2, "nic": 1, "peer_nic": 0, "at_ns": 3_000, "segments": 4, "text": "again"}
    early = {"kind": "verdict", "verdict": "own_nic", "peer": 1, "nic": 0, "peer_nic": 1, "at_ns": 2_000, "text": "A to C failed"}
    world.faults.heard(0, [late])
    world.faults.heard(3, [early])
    first, second = world.faults.events
    assert (first["kind"], first["rank"], first["node"], first["peer_node"]) == ("verdict", 3, 1, 0)
    assert (second["path"], second["segments"], second["time"]) == ([0, 1, 2, 0], 4, 2e-6)
    assert world.faults.status()["events"] == [first, second]


def test_other_members_get_what_holds_and_counts_go_on(world: World) -> None:
    down = world.faults.nic_down(node=1, nic=0)
    gone = world.faults.cable(node=0, nic=1)
    damage = world.faults.corrupt(node=1, nic=1, frames=5)
    mail = world.faults.messages(rank=2, loss=1)
    waiting = world.faults.inject("sever node=1 nic=0 at_bytes=100")
    pointed = world.faults.inject("cable node=1 nic=1 at_point=told rank=3")
    left = world.faults.inject("cable node=0 nic=0 at_point=told")
    old = world.segment(1)
    leaving = world.segment(0)
    old.hit(0, "down", 2)
    old.hit(1, "damage", 1)
    old.mail["hits"]["loss_ppm"] = 3
    old.bytes[0, 0] = 60
    # Node 0 left; what was node 1 is node 0 now, of members 2 and 3.
    ranks = SimpleNamespace(segments=[Segment(), Segment()], ids=(2, 3), pids={}, nodes=np.array([1]))
    world._ranks, world.topology = ranks, ccl.Topology.cluster(nodes=1, gpus_per_node=2, nics_per_node=2, nic_gbits_per_s=8)
    world.faults.regrouped()
    new = ranks.segments[0]
    order = {"point": "told", "passes": 1, "rank": 1, "path": (0, 1), "nic": 1, "asked": {"unplugged": 1}}
    assert new.triggers == {0: order} and old.triggers == leaving.triggers == {} and pointed.state == left.state == "armed"
    pointed.undo()
    assert new.shaped[0] == (RATE, False) and new.nics[1]["values"]["damage"] == 4 and new.mail["values"]["loss_ppm"] == 1_000_000
    new.hit(0, "down")
    new.hit(1, "damage", 2)
    new.mail["hits"]["loss_ppm"] = 1
    assert (down.fired, damage.fired, mail.fired, gone.fired) == (3, 3, 4, 0)
    assert world.faults.state() == {(0, 0): "down", (0, 1): "damaged"}
    new.bytes[0, 0] = 40
    wait_for(lambda: waiting.state == "active")
    world.faults.heal()
    assert world.faults.state() == {} and new.shaped[0] == (RATE, True) and gone.state == "undone"


def test_an_injector_does_not_hold_its_world() -> None:
    world = World()
    fault = world.faults.flap(node=0, nic=0, period="1s")
    gone = weakref.ref(world)
    thread = world.faults._thread
    assert isinstance(thread, threading.Thread)
    del world
    gc.collect()
    assert gone() is None
    thread.join(5)
    assert not thread.is_alive() and fault.state == "active"
