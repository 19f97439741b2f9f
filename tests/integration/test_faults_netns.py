"""Nodes as network namespaces: interfaces that really go down, and nothing left of them. Needs root and veth."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ccl_lab as ccl
from ccl_lab.engine.netns import Namespaces
from ccl_lab.errors import UnsupportedError, UsageError

from .leftovers import leftovers

TOPOLOGY = ccl.Topology.cluster(nodes=2, gpus_per_node=2, nics_per_node=2, nic_gbits_per_s=0.2)


@pytest.fixture(scope="module", autouse=True)
def possible() -> None:
    try:
        Namespaces(TOPOLOGY).close()
    except UnsupportedError as error:
        pytest.skip(str(error))


@pytest.fixture
def world() -> Iterator[ccl.World]:
    with ccl.World(TOPOLOGY, timeout="20s", fabric="netns") as made:
        yield made


def namespaces() -> set[str]:
    """Network namespaces that some process is in."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(os.readlink(link))
        except OSError:
            continue
    return found


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def run(world: ccl.World, faults: str | None = None, nbytes: str = "6MiB") -> ccl.Run:
    found = world.start(ccl.plan("all_reduce", TOPOLOGY, nbytes, algorithm="ring", channels=2), faults=faults)
    found.wait(30)
    found.check()
    return found


def test_ranks_of_a_node_share_a_namespace_and_no_other(world: ccl.World) -> None:
    inside = [os.readlink(f"/proc/{pid}/ns/net") for _, pid in sorted(world.status()["pids"].items())]
    assert inside[0] == inside[1] != inside[2] == inside[3]
    assert os.readlink("/proc/self/ns/net") not in inside
    run(world)


@pytest.mark.parametrize("line, word, flags", [
    ("nic_down node=1 nic=1 after=20ms", "down", {"UP": False, "LOWER_UP": False}),
    ("cable node=0 nic=1 after=20ms", "unplugged", {"UP": True, "NO-CARRIER": True}),
])  # fmt: skip
def test_an_interface_goes_down_in_a_run_and_comes_back(line: str, word: str, flags: dict[str, bool], world: ccl.World) -> None:
    run(world)
    (fault,) = run(world, line).faults
    nic = fault.node, fault.nic
    seen = world._netns.flags(*nic)
    assert {name: name in seen for name in flags} == flags
    assert fault.fired == 1 and world.faults.state() == {nic: word}
    assert {"lost", "resumed"} <= {event["kind"] for event in world.faults.events}
    before = world.nic_bytes()[nic]
    run(world)
    assert world.nic_bytes()[nic] == before, "nothing passes an interface that is down"
    fault.undo()
    assert {"UP"} <= world._netns.flags(*nic)

    def passes() -> bool:
        held = sum(world.nic_bytes()[nic])
        run(world, nbytes="512KiB")
        return sum(world.nic_bytes()[nic]) - held > 100_000

    wait_for(passes, 40)


def test_what_is_done_above_the_interface(world: ccl.World) -> None:
    faults = run(world, "cap node=0 nic=0 fraction=0.5\ndelay node=1 nic=1 latency=1ms\nheal at=end").faults
    assert faults[0].fired > 0 and faults[1].fired > 0 and world.faults.state() == {}


def test_nothing_is_left_of_a_closed_world() -> None:
    links = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True).stdout
    before = leftovers()
    descriptors = len(os.listdir("/proc/self/fd"))
    with ccl.World(TOPOLOGY, fabric="netns") as world:
        world.faults.nic_down(node=0, nic=0)
        inside = {os.readlink(f"/proc/{pid}/ns/net") for pid in world.status()["pids"].values()}
        assert len(inside) == 2 and inside <= namespaces()
    assert leftovers() == before
    wait_for(lambda: not inside & namespaces())
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert subprocess.run(["ip", "-br", "link"], capture_output=True, text=True).stdout == links


def test_nothing_is_left_when_the_owner_is_killed() -> None:
    held = namespaces()
    code = (
        "import ccl_lab as ccl, time\n"
        "w = ccl.World(ccl.Topology.cluster(nodes=2, gpus_per_node=1, nics_per_node=2, nic_gbits_per_s=1), fabric='netns')\n"
        "print(*w.status()['pids'].values(), flush=True)\n"
        "time.sleep(60)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        inside = {os.readlink(f"/proc/{pid}/ns/net") for pid in pids}
        assert len(inside) == 2 and not inside & held
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
    wait_for(lambda: not inside & namespaces())


def test_what_it_cannot_be_made_of_is_said() -> None:
    with pytest.raises(UsageError, match="fabric 'ether' is unknown: expected 'emulated' or 'netns'"):
        ccl.World(TOPOLOGY, fabric="ether")
    with pytest.raises(UnsupportedError, match="elastic world"):
        ccl.World(TOPOLOGY, fabric="netns", elastic=True)
    with pytest.raises(UsageError, match="251 NICs: expected an emulated topology"):
        Namespaces(ccl.Topology.cluster(nodes=1, gpus_per_node=1, nics_per_node=251))
