"""Faults on live rails: each kind hits, sums stay right, undo brings the NIC back, scripts play again.

Is not: a test of the recovery protocol at its points (native fault simulation). No figure of time is asserted but that
things end. Every test has a World of its own: what a NIC went through makes it wait longer before it comes back.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ccl_lab as ccl
from ccl_lab.errors import PeerLostError, UsageError

from .leftovers import leftovers

NICS, GBITS, SIZE = 3, 0.2, "6MiB"


@pytest.fixture
def world() -> Iterator[ccl.World]:
    topology = ccl.Topology.cluster(nodes=2, gpus_per_node=1, nics_per_node=NICS, nic_gbits_per_s=GBITS)
    with ccl.World(topology, timeout="20s") as made:
        yield made


def plan(world: ccl.World, collective: str = "all_reduce", nbytes: str = SIZE) -> ccl.Schedule:
    options: dict[str, Any] = {"algorithm": "ring"} if collective in ("all_reduce", "all_gather", "reduce_scatter") else {}
    return ccl.plan(collective, world.topology, nbytes, channels=NICS, **options)


def wait_for(condition: Callable[[], bool], seconds: float = 20.0, what: str = "") -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def carried(world: ccl.World) -> dict[tuple[int, int], int]:
    """Bytes by (node, NIC)."""
    return {nic: sum(counts) for nic, counts in world.nic_bytes().items()}


def moved(world: ccl.World, schedule: ccl.Schedule) -> dict[tuple[int, int], int]:
    """Bytes by NIC that one right run moves."""
    before = carried(world)
    run = world.start(schedule)
    run.wait(30)
    run.check()
    return {nic: nbytes - before[nic] for nic, nbytes in carried(world).items()}


def comes_back(world: ccl.World, nics: list[tuple[int, int]]) -> None:
    """After an undo: runs until all of `nics` carry a share again."""
    small = plan(world, nbytes="768KiB")
    wait_for(lambda: min(moved(world, small)[nic] for nic in nics) > 100_000, 30, f"{nics} did not come back")


BREAKING = {
    "nic_down node=1 nic=1 after=20ms": "down",
    "cable node=1 nic=2 after=20ms": "unplugged",
    "black_hole node=0 nic=1 after=20ms": "silent",
    "black_hole node=0 nic=1 direction=tx after=20ms": "silent",
    "black_hole node=1 nic=0 direction=rx after=20ms": "silent",
    "flap node=1 nic=0 period=80ms duty=0.5 after=10ms": "flapping",
    "nic_down node=0 nic=2": "down",
}


@pytest.mark.parametrize("line", BREAKING, ids=lambda line: line.replace(" ", ","))
def test_a_nic_that_fails_in_a_run(line: str, world: ccl.World) -> None:
    schedule = plan(world)
    assert min(moved(world, schedule).values()) > 0
    run = world.start(schedule, faults=line)
    trace = run.wait(30)
    run.check()
    (fault,) = run.faults
    nic = fault.node, fault.nic
    assert fault.state == "active" and fault.fired > 0 and world.faults.state() == {nic: BREAKING[line]}
    assert world.status()["faults"] == [{"node": nic[0], "nic": nic[1], "state": BREAKING[line]}]
    kinds = {event["kind"] for event in trace.meta["faults"]}
    assert {"injected", "lost", "resumed"} <= kinds, "the trace has what was done and what the ranks said"
    told = [event for event in world.faults.events if event["kind"] == "lost"]
    assert told and all(nic in ((e["node"], e["nic"]), (e["peer_node"], e["peer_nic"])) and e["text"] for e in told)
    fault.undo()
    hits = fault.fired
    assert world.faults.state() == {} and fault.state == "undone"
    comes_back(world, [(node, nic[1]) for node in (0, 1)])
    assert fault.fired == hits, "nothing hits once it is undone"


def test_nothing_passes_a_nic_that_is_down(world: ccl.World) -> None:
    schedule = plan(world)
    run = world.start(schedule, faults="nic_down node=1 nic=1 after=20ms")
    run.wait(30)
    after = moved(world, schedule)
    assert after[1, 1] == after[0, 1] == 0 and after[1, 0] > 0 and after[1, 2] > 0


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"])
def test_every_collective_survives_a_nic(collective: str, world: ccl.World) -> None:
    schedule = plan(world, collective)
    used = max(moved(world, schedule).items(), key=lambda item: item[1])[0][1]
    run = world.start(schedule, faults=f"nic_down node=1 nic={used} at_bytes=512KiB")
    run.wait(30)
    run.check()
    assert run.faults[0].fired > 0


@pytest.mark.parametrize("line, most", [
    ("sever node=1 nic=1 connections=1 after=20ms", 1),
    ("corrupt node=0 nic=1 frames=1 after=20ms", 1),
    ("corrupt node=1 nic=2 frames=1 at_bytes=1MiB", 1),
])  # fmt: skip
def test_what_is_counted_hits_as_often_as_asked(line: str, most: int, world: ccl.World) -> None:
    run = world.start(plan(world), faults=line)
    run.wait(30)
    run.check()
    (fault,) = run.faults
    wait_for(lambda: fault.state == "ended")
    assert fault.fired == most and world.faults.state() == {}
    assert any(event["kind"] == "resumed" for event in world.faults.events)


@pytest.mark.parametrize("line", ["delay node=0 nic=1 latency=3ms jitter=1ms", "cap node=0 nic=1 fraction=0.5 after=10ms",
                                  "cap node=1 nic=2 gbits=0.1", "delay node=0 nic=0 jitter=2ms for=50ms"])  # fmt: skip
def test_what_only_slows_a_nic_loses_nothing(line: str, world: ccl.World) -> None:
    run = world.start(plan(world), faults=line)
    run.wait(30)
    run.check()
    assert run.faults[0].fired > 0 and [e for e in world.faults.events if e["kind"] == "lost"] == []
    world.faults.heal()
    assert world.faults.state() == {}


def test_a_capped_nic_has_its_rate_again(world: ccl.World) -> None:
    cap = world.faults.cap(node=0, nic=1, fraction=0.05)
    schedule = plan(world)
    slow = world.run(schedule).time_us
    cap.undo()
    assert cap.fired > 1_000_000 and world.run(schedule).time_us < slow / 2


def test_messages_that_are_doubled_and_late(world: ccl.World) -> None:
    script = ccl.FaultScript("messages rank=0 double=1 late=2ms", "messages rank=1 double=1", "nic_down node=1 nic=1 after=20ms")
    run = world.start(plan(world), faults=script.final_heal())
    run.wait(30)
    run.check()
    assert all(fault.fired > 0 for fault in run.faults[:3]) and world.faults.state() == {}


def test_a_rank_that_is_stopped_goes_on(world: ccl.World) -> None:
    run = world.start(plan(world), faults="pause rank=1 after=20ms for=150ms")
    wait_for(lambda: world.faults.ranks() == {1: "paused"})
    run.wait(30)
    run.check()
    assert run.faults[0].state == "undone" and run.faults[0].fired == 1 and world.faults.ranks() == {}


def test_a_killed_rank_is_named_and_stays_dead(world: ccl.World) -> None:
    run = world.start(plan(world), faults="kill rank=1 after=20ms")
    with pytest.raises(PeerLostError, match="rank 1 .*killed by SIGKILL"):
        run.wait(30)
    (fault,) = run.faults
    assert fault.fired == 1 and world.faults.ranks() == {1: "killed"}
    with pytest.raises(UsageError, match="cannot be brought back"):
        fault.undo()
    with pytest.raises(PeerLostError):
        world.faults.nic_down(node=0, nic=0)


def test_a_killed_member_of_an_elastic_world() -> None:
    topology = ccl.Topology.cluster(nodes=3, gpus_per_node=1, nics_per_node=2, nic_gbits_per_s=GBITS)
    with ccl.World(topology, timeout="20s", elastic=True) as world:
        slow = world.faults.cap(node=2, nic=1, fraction=0.5)
        schedule = ccl.plan("all_reduce", topology, "4MiB", algorithm="ring", channels=2)
        run = world.start(schedule, faults="kill rank=1 after=30ms")
        run.wait(30)
        run.check()
        assert run.members == world.members == (0, 2) and run.faults[0].fired == 1
        assert world.faults.state() == {(1, 1): "capped"}, "node 2 is node 1 of this epoch, and its NIC is capped still"
        world.run(ccl.plan("all_reduce", world.topology, "1MiB", algorithm="ring", channels=2))
        slow.undo()
        assert slow.fired > 0 and world.faults.state() == {}


def test_at_an_op_of_the_schedule(world: ccl.World) -> None:
    schedule = plan(world)
    puts = [op for op in range(len(schedule)) if schedule.ops.kind[op] == ccl.Kind.put and schedule.ops.rank[op] == 0]
    run = world.start(schedule, faults=f"nic_down node=0 nic=1 rank=0 at_op={puts[len(puts) // 2]}")
    run.wait(30)
    run.check()
    assert run.faults[0].fired > 0


def test_calls_act_while_a_run_goes_on(world: ccl.World) -> None:
    run = world.start(plan(world, nbytes="24MiB"))
    wait_for(lambda: run.state == "running")
    time.sleep(0.02)  # the ranks begin together, at a moment they are told ahead
    begin = time.monotonic()
    fault = world.faults.nic_down(node=1, nic=1)
    took = time.monotonic() - begin
    assert took < 0.25 and fault.time_ns > 0
    assert fault.python == "world.faults.nic_down(node=1, nic=1)"
    wait_for(lambda: fault.fired > 0)
    fault.undo()
    run.wait(30)
    run.check()
    (line,) = world.faults.script
    assert line.after_ns > 0 and line.for_ns == fault.undone_ns - fault.time_ns


SCRIPT = ccl.FaultScript(
    "cap node=0 nic=0 fraction=0.5", "nic_down node=1 nic=2 after=20ms for=30ms", "sever node=0 nic=1 at_bytes=512KiB",
    "delay node=1 nic=0 latency=1ms after=5ms",
).final_heal()  # fmt: skip


def test_a_script_is_recorded_and_played_again(world: ccl.World) -> None:
    recorded = []
    script = SCRIPT
    for _ in range(2):
        topology = world.topology
        with ccl.World(topology, timeout="20s") as fresh:
            run = fresh.start(plan(fresh), faults=script)
            run.wait(30)
            run.check()
            assert all(fault.fired > 0 for fault in run.faults[:-1]), run.faults
            assert fresh.faults.state() == {}
            recorded.append(fresh.faults.script)
            script = fresh.faults.script
    assert set(recorded[0]) == set(recorded[1]) == set(SCRIPT)


def test_faults_twice_at_once_and_healed(world: ccl.World) -> None:
    run = world.start(plan(world), faults=["nic_down node=1 nic=1 after=15ms", "nic_down node=0 nic=0 after=25ms"])
    run.wait(30)
    run.check()
    assert [fault.fired > 0 for fault in run.faults] == [True, True]
    assert world.faults.state() == {(1, 1): "down", (0, 0): "down"}
    world.faults.heal()
    comes_back(world, [(node, nic) for node in (0, 1) for nic in range(NICS)])


@pytest.mark.parametrize("moment", ["before", "while"])
def test_a_nic_that_fails_before_its_connections_are_made(moment: str, world: ccl.World) -> None:
    fault = world.faults.nic_down(node=1, nic=1) if moment == "before" else None
    run = world.start(plan(world))
    fault = fault or world.faults.nic_down(node=1, nic=1)
    run.wait(20)
    run.check()
    assert world.faults.state() == {(1, 1): "down"}
    fault.undo()
    comes_back(world, [(0, 1), (1, 1)])


def test_a_world_is_closed_with_faults_in_force() -> None:
    before = leftovers()
    topology = ccl.Topology.cluster(nodes=2, gpus_per_node=1, nics_per_node=2, nic_gbits_per_s=GBITS)
    with ccl.World(topology) as world:
        world.faults.pause(rank=1)
        flap = world.faults.flap(node=0, nic=0, period="5ms")
        world.faults.nic_down(node=1, nic=1, after="1h")
    assert flap.state == "ended"
    after = leftovers()
    assert after == before


def test_command_line() -> None:
    words = ["run", "all_reduce", "--bytes", "4MiB", "--algorithm", "ring", "--iterations", "1", "--warmup", "0", "--json"]
    topology = f"cluster:nodes=2,gpus_per_node=1,nics_per_node=2,nic_gbits_per_s={GBITS}"
    command = [sys.executable, "-m", "ccl_lab.cli", *words, "--topology", topology, "--fault", "nic_down node=1 nic=1 after=20ms"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["checked"] and found["faults"][0]["fault"] == "nic_down node=1 nic=1 after=20ms" and found["faults"][0]["fired"] > 0
    wrong = subprocess.run([*command[:-1], "nic_down node=1"], capture_output=True, text=True, timeout=120)
    assert wrong.returncode == 2 and "--fault 'nic_down node=1': nic_down lacks nic=" in wrong.stderr and not wrong.stdout
