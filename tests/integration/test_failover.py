"""NICs lost and found in the middle of real runs: the sums stay right, and what cannot be survived is said."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

import ccl_lab as ccl


@pytest.fixture(scope="module")
def world() -> Iterator[ccl.World]:
    topology = ccl.Topology.cluster(nodes=2, gpus_per_node=2, nics_per_node=3, nic_gbits_per_s=0.4)
    with ccl.World(topology, timeout="30s") as world:
        yield world


def until(true: Callable[[], object], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.002)


def bytes_of(world: ccl.World, node: int, nic: int) -> int:
    """What this NIC has carried so far, both ways."""
    found = world.nic_bytes()[(node, nic)]
    return found[0] + found[1]


def restore(world: ccl.World, *nics: tuple[int, int]) -> None:
    for node, nic in nics:
        world.set_nic(node, nic, 0.4, up=True)
    time.sleep(0.8)  # hold-off, alive messages, new connections


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv"])
def test_a_nic_is_lost_in_the_middle(world: ccl.World, collective: str) -> None:
    options = {"peer": 3} if collective == "send_recv" else {}
    schedule = ccl.plan(collective, world.topology, "6MiB", mapped=False, **options)
    run = world.start(schedule)
    before = [bytes_of(world, 1, nic) for nic in range(3)]
    until(lambda: sum(bytes_of(world, 1, nic) for nic in range(3)) > sum(before) + (1 << 20))
    used = max(range(3), key=lambda nic: bytes_of(world, 1, nic) - before[nic])
    world.set_nic(1, used, 0.4, up=False)
    try:
        run.wait(20)
        run.check()
        dead = bytes_of(world, 1, used)
        again = world.start(schedule)
        again.wait(20)
        again.check()
        assert bytes_of(world, 1, used) == dead, "no bytes on a dead NIC"
    finally:
        restore(world, (1, used))


def test_one_after_the_other_down_to_the_last(world: ccl.World) -> None:
    schedule = ccl.plan("all_reduce", world.topology, "6MiB", algorithm="ring")
    run = world.start(schedule)
    try:
        for nic in (0, 1):
            begin = sum(bytes_of(world, 0, nic) for nic in range(3))
            until(lambda begin=begin: sum(bytes_of(world, 0, nic) for nic in range(3)) > begin + (1 << 19))
            world.set_nic(0, nic, 0.4, up=False)
        run.wait(20)
        run.check()
    finally:
        restore(world, (0, 0), (0, 1))


def test_a_nic_that_comes_back_is_used_again(world: ccl.World) -> None:
    schedule = ccl.plan("all_reduce", world.topology, "3MiB", algorithm="ring")
    world.run(schedule)
    world.set_nic(1, 0, 0.4, up=False)
    world.run(schedule)
    dead = bytes_of(world, 1, 0)
    restore(world, (1, 0))

    def used_again() -> bool:
        world.run(schedule)
        return bytes_of(world, 1, 0) > dead

    until(used_again)


def test_a_node_without_any_nic_is_said_on_every_rank(world: ccl.World) -> None:
    schedule = ccl.plan("all_reduce", world.topology, "48MiB", algorithm="ring")
    run = world.start(schedule)
    until(lambda: len(run.trace) > 0)
    begin = time.monotonic()
    for nic in range(3):
        world.set_nic(0, nic, 0.4, up=False)
    try:
        with pytest.raises(ccl.PeerLostError, match=r"no path to it is left.*NIC \d"):
            run.wait(20)
        assert time.monotonic() - begin < 15
        assert set(run.errors) == set(range(4)), "every rank says why"
    finally:
        restore(world, (0, 0), (0, 1), (0, 2))
    assert world.lost_nics == (), "the paths are new after a run that failed"
    again = world.start(schedule)
    again.wait(20)
    again.check()


def test_a_plan_around_unequal_losses_among_several_ranks_a_node() -> None:
    topology = ccl.Topology.cluster(nodes=3, gpus_per_node=2, nics_per_node=8, nic_gbits_per_s=0.4)
    gone = [(0, 1), (0, 2), (1, 3)]
    schedule = ccl.plan("all_reduce", topology.without(*gone), "256KiB", algorithm="recursive")
    assert schedule.n_channels > 64, "many channels, each with a counter"
    with ccl.World(topology, timeout="60s") as world:
        for node, nic in gone:
            world.set_nic(node, nic, 0.4, up=False)
        world.run(ccl.plan("all_reduce", topology, "1MiB", algorithm="ring"))
        before = [bytes_of(world, node, nic) for node, nic in gone]
        run = world.start(schedule, without=gone)
        run.wait(60)
        run.check()
        assert [bytes_of(world, node, nic) for node, nic in gone] == before
