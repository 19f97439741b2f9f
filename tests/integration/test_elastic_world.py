"""An elastic World: ranks are killed and stopped, the others finish with those that are left, new ones join."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest

import ccl_lab as ccl
from ccl_lab.engine import pattern
from ccl_lab.engine.elastic_ranks import ElasticRanks
from ccl_lab.errors import OpTimeout, PeerLostError, UsageError

from .leftovers import leftovers

N = 8


@pytest.fixture
def topology() -> ccl.Topology:
    """4 nodes x 2 ranks x 2 NICs, so slow that killing takes hold in the middle of a run."""
    return ccl.Topology.cluster(nodes=4, gpus_per_node=2, nics_per_node=2, nic_gbits_per_s=0.4)


@pytest.fixture
def world(topology):
    with ccl.World(topology, elastic=True, timeout="30s") as made:
        yield made


def kill(world: ccl.World, *members: int, how: signal.Signals = signal.SIGKILL) -> None:
    pids = world.status()["pids"]
    for member in members:
        os.kill(pids[member], how)


def started(world: ccl.World, collective: str, nbytes: str, timeout: str | None = None, **options) -> ccl.Run:
    """A run that is on its way: ops have ended."""
    run = world.start(ccl.plan(collective, world.topology, nbytes, **options), timeout=timeout)
    deadline = time.monotonic() + 20
    while (run.state != "running" or world.status()["progress"] < 0.05) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not run.done()
    return run


def check_pattern(run: ccl.Run) -> None:
    """Inputs are those of the members, and outputs what follows from them."""
    for array, member in zip(run.inputs, run.members, strict=True):
        assert (array == pattern.make(array.size, run.layout.dtype, member)).all()
    run.check()


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_a_killed_rank_does_not_end_the_run(world, collective):
    run = started(world, collective, "24MiB")
    begin = time.monotonic()
    kill(world, 3)
    trace = run.wait(60)
    print(f"{collective}: done {time.monotonic() - begin:.2f} s after the kill, agreed in {world.events[-1].took_s:.2f} s")
    assert run.members == world.members == (0, 1, 2, 4, 5, 6, 7) and world.epoch == 1 and world.n_ranks == 7
    assert trace.meta["members"] == list(run.members) and trace.meta["epoch"] == 1
    check_pattern(run)
    left = [event for event in world.events if event.what == "left"]
    assert [event.member for event in left] == [3]
    assert "was killed by SIGKILL" in left[0].why or "socket closed" in left[0].why
    again = world.start(ccl.plan(collective, world.topology, "1MiB"))
    again.wait(60)
    check_pattern(again)


def test_a_group_leaves_together_and_another_one_joins(topology):
    with ccl.World(topology, elastic=True, groups=4, timeout="30s") as world:
        before = dict(world.status()["pids"])
        run = started(world, "all_reduce", "24MiB")
        kill(world, 5)
        run.wait(60)
        assert run.members == (0, 1, 2, 3, 6, 7)
        check_pattern(run)
        assert "left with member 5 of its group" in next(e.why for e in world.events if e.member == 4 and e.what == "left")
        begin = time.monotonic()
        assert world.grow() == (8, 9)
        print(f"joined in {time.monotonic() - begin:.2f} s")
        assert world.members == (0, 1, 2, 3, 8, 9, 6, 7) and world.topology == topology
        pids = world.status()["pids"]
        assert all(pids[member] == before[member] for member in (0, 1, 2, 3, 6, 7)), "a survivor was restarted"
        run = world.start(ccl.plan("all_reduce", world.topology, "1MiB"))
        run.wait(60)
        check_pattern(run)
        with pytest.raises(UsageError, match=r"grow\(1\): expected 1 to 0"):
            world.grow()


def test_an_average_divides_by_the_members(world):
    inputs = {member: np.full(1 << 20, 8.0 * member, np.float32) for member in range(N)}
    schedule = ccl.plan("all_reduce", world.topology, "4MiB", redop="avg")
    run = world.start(schedule, inputs=inputs)
    time.sleep(0.1)
    kill(world, 0, 7)
    run.wait(60)
    assert not {0, 7} & set(run.members)
    assert all((out == np.float32(8 * sum(run.members) / len(run.members))).all() for out in run.outputs)
    inputs[99] = inputs[0]  # of no member: ignored
    again = world.start(ccl.plan("all_reduce", world.topology, "4MiB"), inputs=inputs)
    again.wait(60)
    assert all((out == 8 * sum(world.members)).all() for out in again.outputs)


def test_blocks_for_the_lost_are_dropped(world):
    inputs = [np.repeat(np.arange(N, dtype=np.int64) * 100 + rank, 1 << 15) for rank in range(N)]
    run = world.start(ccl.plan("reduce_scatter", world.topology, inputs[0].nbytes, dtype="int64"), inputs=inputs)
    kill(world, 2)
    run.wait(60)
    left = list(run.members)
    assert 2 not in left
    for member, out in zip(left, run.outputs, strict=True):
        assert (out == 100 * member * len(left) + sum(left)).all()


def test_in_place_inputs_are_intact_for_the_second_attempt(world):
    inputs = [np.full(1 << 20, 2**member, np.int32) for member in range(N)]
    run = world.start(ccl.plan("all_reduce", world.topology, "4MiB", dtype="int32", in_place=True), inputs=inputs)
    time.sleep(0.15)
    kill(world, 4)
    run.wait(60)
    assert all((out == sum(2**member for member in run.members)).all() for out in run.outputs)


def test_two_at_once_and_one_more_during_the_agreement(world, monkeypatch):
    made = ElasticRanks._make_epoch
    victims = [6]

    def and_a_death(self):
        if victims and self.epoch > 0:
            self._server.kill(victims.pop())
        made(self)

    monkeypatch.setattr(ElasticRanks, "_make_epoch", and_a_death)
    run = started(world, "all_reduce", "24MiB")
    kill(world, 1, 2)
    run.wait(60)
    if 6 in run.members:  # it took part in the epoch before its death was noticed: then the next run meets it
        run = world.start(ccl.plan("all_reduce", world.topology, "1MiB"))
        run.wait(60)
    assert run.members == (0, 3, 4, 5, 7)
    check_pattern(run)


@pytest.mark.parametrize("victim", [0, 8], ids=["a member", "the new one"])
def test_a_death_while_one_joins(world, monkeypatch, victim):
    kill(world, 3)
    assert world.shrink() == (0, 1, 2, 4, 5, 6, 7)
    made = ElasticRanks._make_epoch
    victims = [victim]

    def and_a_death(self):
        if victims and 8 in self.ids:
            self._hub._sockets[victims[0]].shutdown(2)
            self._server.kill(victims.pop())
        made(self)

    monkeypatch.setattr(ElasticRanks, "_make_epoch", and_a_death)
    if victim == 8:
        with pytest.raises(PeerLostError, match="new member 8 was lost while it joined"):
            world.grow()
    else:
        assert world.grow() == (8,)
    run = world.start(ccl.plan("all_reduce", world.topology, "1MiB"))
    run.wait(60)
    assert set(run.members) == {0, 1, 2, 4, 5, 6, 7, 8} - {victim}
    check_pattern(run)
    assert world.grow(1)[0] > 8


def test_a_stopped_rank_is_lost_after_its_patience_and_stays_lost(topology):
    with ccl.World(topology, elastic=True, timeout="3s", patience="1500ms") as world:
        pid = world.status()["pids"][5]
        assert world._ranks._came == set(range(N))  # nobody is taken for one that still starts, though nobody was asked yet
        run = started(world, "all_reduce", "16MiB")
        kill(world, 5, how=signal.SIGSTOP)
        run.wait(60)
        assert run.members == (0, 1, 2, 3, 4, 6, 7)
        check_pattern(run)
        assert "was silent for 1.5 s" in world.events[-1].why
        with pytest.raises(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def test_a_run_whose_root_is_lost_fails_and_the_next_one_works(world):
    run = started(world, "broadcast", "64MiB", root=3)
    kill(world, 3)
    with pytest.raises(PeerLostError, match="member 3, the root of broadcast, is lost"):
        run.wait(60)
    run = world.start(ccl.plan("broadcast", world.topology, "1MiB", root=2))
    run.wait(60)
    run.check()


def test_a_lost_rank_moves_the_root(world):
    run = started(world, "broadcast", "64MiB", root=7)
    kill(world, 3)
    run.wait(60)
    assert run.members == (0, 1, 2, 4, 5, 6, 7) and run.schedule.root == 6
    check_broadcast = [out for out in run.outputs if out.size]
    assert all((out == pattern.make(out.size, "float32", 7)).all() for out in check_broadcast)


def test_runs_in_the_queue_are_fitted_too(world):
    runs = [started(world, "all_reduce", "32MiB"), *(world.start(ccl.plan("all_reduce", world.topology, "4MiB")) for _ in range(2))]
    kill(world, 2)
    for run in runs:
        run.wait(60)
    assert runs[-1].members == (0, 1, 3, 4, 5, 6, 7)
    check_pattern(runs[-1])


def test_what_fails_without_a_loss_fails_as_ever(topology):
    with ccl.World(topology, elastic=True, timeout="300ms") as world:
        with pytest.raises(OpTimeout, match="all_reduce|deadline|timed out|after"):
            world.all_reduce("64MiB")
        assert world.members == tuple(range(N)) and world.epoch > 0
        run = world.start(ccl.plan("all_reduce", world.topology, "64KiB"), timeout="20s")
        run.wait(60)
        check_pattern(run)
        run = started(world, "all_reduce", "24MiB", timeout="20s")
        run.cancel("enough")
        with pytest.raises(ccl.AbortedError, match="enough"):
            run.wait(20)


def test_everybody_lost_is_said(world):
    run = started(world, "all_reduce", "24MiB")
    kill(world, *range(N))
    with pytest.raises(PeerLostError, match="killed by SIGKILL|no member is left"):
        run.wait(60)


def test_everybody_lost_is_said_though_the_news_are_late(world):
    """Sockets close at once; how the processes ended is only known when the fork server, here held up, has reaped them."""
    server = world._ranks._server._process.pid
    run = started(world, "all_reduce", "24MiB")
    os.kill(server, signal.SIGSTOP)
    later = threading.Timer(0.5, os.kill, (server, signal.SIGCONT))
    later.start()
    kill(world, *range(N))
    with pytest.raises(PeerLostError, match="killed by SIGKILL"):
        run.wait(60)
    later.join()


def test_nothing_is_left_behind(topology):
    before = leftovers()
    world = ccl.World(topology, elastic=True)
    run = started(world, "all_reduce", "16MiB")
    kill(world, 1, 2)
    run.wait(60)
    world.grow(2)
    world.all_reduce("1MiB")
    world.close()
    del world, run
    for _ in range(100):
        if leftovers() == before:
            break
        time.sleep(0.05)
    assert leftovers() == before
    assert not [thread for thread in threading.enumerate() if thread.name == "ccl_lab-watch"]
