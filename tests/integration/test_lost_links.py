"""Without failover: a NIC that goes down, and memory that is not there, are named on every rank, and the world goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

import ccl_lab as ccl
from ccl_lab.trace.columns import Track


@pytest.fixture(scope="module")
def world() -> Iterator[ccl.World]:
    topology = ccl.Topology.cluster(nodes=2, gpus_per_node=1, nics_per_node=2, nic_gbits_per_s=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CCL_LAB_FAILOVER", "off")
        with ccl.World(topology, timeout="10s") as world:
            yield world


def test_a_message_larger_than_registered_memory(world: ccl.World) -> None:
    schedule = ccl.plan("all_reduce", world.topology, nbytes="1MiB", algorithm="ring")
    with pytest.raises(ccl.RegistrationError, match="bytes of registered memory in one piece.*are in use"):
        world.run(schedule, "200GiB")
    world.start(schedule).wait(10)


@pytest.mark.parametrize("node", [0, 1])
def test_a_nic_that_is_down_is_named(world: ccl.World, node: int) -> None:
    """By the rank whose NIC it is; the other one sees only that its peer hung up."""
    schedule = ccl.plan("all_reduce", world.topology, nbytes="1MiB", algorithm="ring")
    world.run(schedule)
    world.set_nic(node, 0, 1, up=False)
    try:
        with pytest.raises(ccl.LinkDownError, match="NIC 0 .*is down") as caught:
            world.run(schedule)
        assert (caught.value.rank, caught.value.nic) == (node, 0)
    finally:
        world.set_nic(node, 0, 1, up=True)
    run = world.start(schedule)
    run.wait(10)
    run.check()


def _sockets(pid: int) -> list[str]:
    """Descriptors of a process that are sockets."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            if os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:"):
                found.append(fd)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("connections", [1, 3])
def test_connections_of_a_pair_of_nics(connections: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CCL_LAB_CONNECTIONS", str(connections))
    monkeypatch.setenv("CCL_LAB_FAILOVER", "off")
    topology = ccl.Topology.cluster(nodes=2, gpus_per_node=1, nics_per_node=2, nic_gbits_per_s=100)
    with ccl.World(topology, timeout="20s") as world:
        before = [len(_sockets(pid)) for pid in world.status()["pids"].values()]
        for collective in ("all_reduce", "all_to_all"):
            run = world.start(ccl.plan(collective, topology, nbytes="3MiB", channels=2), repeat=3)
            run.wait(20)
            run.check()
        after = [len(_sockets(pid)) for pid in world.status()["pids"].values()]
    assert [b - a for a, b in zip(before, after, strict=True)] == [2 * connections] * 2


@pytest.mark.parametrize("wrong", ["0", "65", "many"])
def test_a_number_of_connections_that_cannot_be(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CCL_LAB_CONNECTIONS", wrong)
    with pytest.raises(ccl.ConfigError, match="CCL_LAB_CONNECTIONS"):
        ccl.World(2)


def test_a_nic_pulled_in_the_middle_ends_the_run_on_every_rank(world: ccl.World) -> None:
    schedule = ccl.plan("all_reduce", world.topology, nbytes="64MiB", algorithm="ring")
    run = world.start(schedule)
    deadline = time.monotonic() + 10
    while not (run.trace["track"] == Track.nic_tx).any() and time.monotonic() < deadline:
        time.sleep(0.005)
    world.set_nic(1, 0, 1, up=False)
    try:
        with pytest.raises(ccl.LinkDownError, match="NIC 0 .*is down"):
            run.wait(10)
    finally:
        world.set_nic(1, 0, 1, up=True)
    assert set(run.errors) == {0, 1}, "both ranks say why"
    again = world.start(schedule)
    again.wait(20)
    again.check()
