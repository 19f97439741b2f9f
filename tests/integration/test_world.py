"""Real rank processes: results, waiting, cancelling, errors, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import ccl_lab as ccl
from ccl_lab.errors import AbortedError, OpTimeout, PeerLostError, ShapeError, UsageError
from ccl_lab.trace.columns import SpanKind

from .leftovers import alive, children_of, leftovers


def wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


@pytest.mark.parametrize("algorithm", ["ring", "hierarchical", "direct"])
def test_all_reduce_is_bitwise_right(world, algorithm):
    run = world.start(ccl.plan("all_reduce", world.topology, "256KiB", algorithm=algorithm))
    trace = run.wait(20)
    run.check()
    assert trace.meta["source"] == "measured" and trace.meta["time_us"] > 0 and trace.meta["drops"] == 0
    assert set(trace.columns["rank"]) == set(range(4))


def test_given_inputs_come_out_reduced(world):
    inputs = [np.full(1001, 2.0**rank, np.float32) for rank in range(4)]
    run = world.start(ccl.plan("all_reduce", world.topology, 4004), inputs=inputs)
    run.wait(20)
    assert all((out == 15).all() for out in run.outputs)


def test_every_span_names_an_op_of_the_schedule(world):
    schedule = ccl.plan("all_gather", world.topology, "64KiB", algorithm="ring")
    trace = world.run(schedule)
    ops = trace.columns["op_id"]
    assert set(ops[ops >= 0]) == set(range(len(schedule)))
    known = ops >= 0
    assert (trace.columns["step"][known] == schedule.ops.step[ops[known]]).all()


def test_ranks_of_one_node_tell_each_collective_once_with_its_tasks_inside():
    with ccl.World(ccl.Topology.cluster(nodes=1, gpus_per_node=2, nics_per_node=1), timeout="20s") as world:
        for nbytes in (8, 64 << 10, 1 << 20):
            schedule = ccl.plan("all_reduce", world.topology, nbytes=nbytes)
            columns = world.run(schedule, repeat=5).columns
            whole = columns["kind"] == SpanKind.collective
            assert int(whole.sum()) == 2 * 5 and (columns["nbytes"][whole] == nbytes).all(), nbytes
            called = list(zip(columns["rank"].tolist(), columns["coll_id"].tolist(), strict=True))
            assert len({called[row] for row in np.flatnonzero(whole)}) == 2 * 5
            entered = {called[row]: (columns["begin_ns"][row], columns["end_ns"][row]) for row in np.flatnonzero(whole)}
            for row in np.flatnonzero(~whole):
                begin, end = columns["begin_ns"][row], columns["end_ns"][row]
                assert entered[called[row]][0] <= begin <= end <= entered[called[row]][1]
                assert 0 <= columns["op_id"][row] < len(schedule.ops)
            # Whoever ran them: each rank's output is written once.
            assert nbytes == 8 or columns["nbytes"][~whole].sum() == 5 * 2 * nbytes


def test_nic_spans_carry_every_byte_between_nodes(world):
    schedule = ccl.plan("all_to_all", world.topology, "1MiB", algorithm="direct")
    trace = world.run(schedule)
    crossing = (
        world.topology.node_of[schedule.ops.rank] != world.topology.node_of[np.maximum(schedule.ops.peer, 0)]
    )
    planned = schedule.layout().op_bytes()[crossing & (schedule.ops.kind == ccl.Kind.put)].sum()
    segments = trace.columns["kind"] == 8
    for track in (1, 2):
        mine = segments & (trace.columns["track"] == track) & (trace.columns["op_id"] >= 0)
        assert trace.columns["nbytes"][mine].sum() == planned


def test_await_and_cancel_while_awaited(cluster):
    slow = ccl.Topology.cluster(nodes=2, gpus_per_node=1, nics_per_node=1, nic_gbits_per_s=0.01)

    async def go(world):
        run = world.start(ccl.plan("all_reduce", slow, "16MiB", algorithm="ring"))
        for _ in range(1000):
            await asyncio.sleep(0.01)
            if len(run.trace) > 0:
                break
        assert not run.done() and len(run.trace) > 0
        run.cancel("seen enough")
        with pytest.raises(AbortedError, match="seen enough"):
            await run
        return await world.start(ccl.plan("all_reduce", slow, "4KiB"))

    with ccl.World(slow) as world:
        begin = time.monotonic()
        trace = asyncio.run(go(world))
        assert trace.meta["time_us"] and time.monotonic() - begin < 30


def test_wait_times_out_and_the_run_goes_on():
    slow = ccl.Topology.cluster(nodes=2, gpus_per_node=1, nics_per_node=1, nic_gbits_per_s=0.05)
    with ccl.World(slow) as world:
        run = world.start(ccl.plan("all_reduce", slow, "2MiB", algorithm="ring"))
        with pytest.raises(OpTimeout, match="still"):
            run.wait(0.01)
        run.wait(20)
        run.check()


def test_deadline_names_what_is_blocked(cluster):
    with ccl.World(cluster) as world:
        world.set_nic(0, 0, 0, up=True)
        stopped = next(iter(world.status()["pids"].values()))
        os.kill(stopped, signal.SIGSTOP)
        try:
            run = world.start(ccl.plan("all_reduce", cluster, "64KiB", algorithm="ring"), timeout=0.5)
            time.sleep(0.1)
        finally:
            time.sleep(1.0)
            os.kill(stopped, signal.SIGCONT)
        try:
            run.wait(30)
        except (OpTimeout, AbortedError) as error:
            assert "rank" in str(error)
        world.run(ccl.plan("all_reduce", cluster, "64KiB"))


@pytest.mark.parametrize("timeout", [3.0, 0.6])
def test_a_timeout_names_who_is_stopped_and_not_whom_a_rank_waited_for(timeout: float):
    """In a ring of four, rank 0 waits for rank 3, that for rank 2 and that for rank 1, which is stopped: all time out."""
    ring = ccl.Topology.cluster(nodes=4, gpus_per_node=1, nics_per_node=1, nic_gbits_per_s=0.1)
    schedule = ccl.plan("all_reduce", ring, "4MiB", algorithm="ring")
    with ccl.World(ring) as world:
        world.all_reduce("64KiB", algorithm="ring")
        culprit = world.status()["pids"][1]
        run = world.start(schedule, timeout=timeout)
        while run.state == "preparing":
            time.sleep(0.001)
        os.kill(culprit, signal.SIGSTOP)
        back = threading.Timer(6, os.kill, (culprit, signal.SIGCONT))  # the World waits for it before it can go on
        back.start()
        try:
            with pytest.raises(OpTimeout, match="rank 1 does not answer: it said nothing for") as caught:
                run.wait(60)
        finally:
            back.cancel()
            os.kill(culprit, signal.SIGCONT)
        assert caught.value.rank == 1
        assert "What the others saw: " in str(caught.value) and "did not end within" in str(caught.value)
        world.all_reduce("64KiB", algorithm="ring")
        assert not world._ranks._replies  # nothing is kept of the run that failed


def test_runs_repeat_and_queue(world):
    schedule = ccl.plan("reduce_scatter", world.topology, "64KiB", dtype="int32")
    runs = [world.start(schedule, repeat=3) for _ in range(4)]
    traces = [run.wait(30) for run in runs]
    assert [len(trace.meta["times_us"]) for trace in traces] == [3] * 4
    runs[-1].check()


@pytest.mark.parametrize(
    "call, error, match",
    [
        (lambda w: w.start(ccl.plan("all_reduce", 3, "1KiB")), ShapeError, "3 ranks on a world of 4"),
        (lambda w: w.start(ccl.plan("all_reduce", w.topology, "1KiB"), "-5"), UsageError, "cannot be read"),
        (lambda w: w.start(ccl.plan("all_reduce", w.topology, "1KiB"), -5), UsageError, "negative"),
        (lambda w: w.start(ccl.plan("all_reduce", w.topology, "1KiB"), repeat=0), UsageError, "repeat"),
        (
            lambda w: w.start(ccl.plan("all_reduce", w.topology, "1KiB"), redop="suum"),
            UsageError,
            "Did you mean",
        ),
        (
            lambda w: w.start(
                ccl.plan("all_reduce", w.topology, "1KiB"), inputs=[np.zeros(4, np.float32)] * 3
            ),
            ShapeError,
            "one per rank",
        ),
        (
            lambda w: w.start(
                ccl.plan("all_reduce", w.topology, "1KiB"),
                inputs=[np.zeros(4 + (r == 2), np.float32) for r in range(4)],
            ),
            ShapeError,
            "rank 2",
        ),
        (
            lambda w: w.start(ccl.plan("all_reduce", w.topology, "1KiB"), inputs=[np.zeros(4, complex)] * 4),
            TypeError,
            "not supported",
        ),
        (lambda w: w.start("ring"), UsageError, "schedule .ring. is a str: expected a Schedule"),
        (lambda w: w.all_reduce("1KiB", algorithm="rign"), UsageError, "Did you mean 'ring'"),
        (lambda w: w.set_nic(9, 0, 1), UsageError, "node 9: expected a whole number, 0 to"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(world, call, error, match):
    with pytest.raises(error, match=match):
        call(world)
    world.run(ccl.plan("barrier", world.topology, 0))


def test_unproved_schedule_is_not_run(world):
    r = np.arange(4)
    b = ccl.Builder("all_gather", 4, algorithm="broken")
    b.copy(rank=r, src=b.input[0], dst=b.output[r])
    with pytest.raises(ccl.ContributionError):
        world.start(b.build(nbytes=1024))


def test_killed_rank_is_named_and_world_says_so(cluster):
    before = leftovers()
    world = ccl.World(cluster, timeout="20s")
    slow = ccl.plan("all_reduce", cluster, "64MiB", algorithm="ring")
    for node in range(2):
        for nic in range(2):
            world.set_nic(node, nic, 0.1)
    run = world.start(slow)
    wait_for(lambda: len(run.trace) > 0)
    os.kill(world.status()["pids"][2], signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(
        PeerLostError, match=r"rank 2 \(pid \d+, node 1\) was killed by SIGKILL during all_reduce"
    ):
        run.wait(20)
    assert time.monotonic() - begin < 5
    assert set(run.errors) == {0, 1, 3}
    assert all(isinstance(error, PeerLostError) and "rank 2" in str(error) for error in run.errors.values())
    with pytest.raises(PeerLostError, match="start a new one"):
        world.start(slow)
    world.close()
    run = world = None  # their views keep a mapping alive
    assert leftovers() == before


def test_closed_world_leaves_nothing(cluster):
    with ccl.World(cluster):
        pass
    before, others = leftovers(), children_of(os.getpid())
    world = ccl.World(cluster)
    world.all_reduce("1MiB")
    pids = children_of(os.getpid()) - others
    assert len(pids) == 5
    world.close()
    world.close()
    assert leftovers() == before and not alive(pids)
    with pytest.raises(UsageError, match="closed"):
        world.all_reduce("1KiB")


def test_closing_during_a_run_ends_it(cluster):
    slow = ccl.Topology.cluster(nodes=2, gpus_per_node=1, nics_per_node=1, nic_gbits_per_s=0.01)
    with ccl.World(slow) as world:
        run = world.start(ccl.plan("all_reduce", slow, "16MiB", algorithm="ring"))
        time.sleep(0.2)
    with pytest.raises((AbortedError, PeerLostError)):
        run.wait(5)


SCRIPT = """
    import sys, time
    import ccl_lab as ccl
    slow = ccl.Topology.cluster(nodes=2, gpus_per_node=2, nics_per_node=2, nic_gbits_per_s=0.01)
    world = ccl.World(slow)
    run = world.start(ccl.plan("all_reduce", slow, "64MiB", algorithm="ring"))
    time.sleep(0.3)
    print("going", flush=True)
    run.wait()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_ranks_die_with_the_notebook_process(how):
    script = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert script.stdout.readline() == b"going\n"
    pids = children_of(script.pid)
    assert len(pids) == 5
    script.send_signal(how)
    script.wait(20)
    script.stdout.close()
    deadline = time.monotonic() + 10
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(pids)


def test_stopped_rank_dies_with_the_notebook_process_too():
    script = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert script.stdout.readline() == b"going\n"
    pids = children_of(script.pid)
    os.kill(max(pids), signal.SIGSTOP)
    script.kill()
    script.wait(20)
    script.stdout.close()
    deadline = time.monotonic() + 10
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(pids)


def test_forgotten_world_is_cleaned_up(cluster):
    before, others = leftovers(), children_of(os.getpid())
    world = ccl.World(cluster)
    pids = children_of(os.getpid()) - others
    assert pids
    del world
    deadline = time.monotonic() + 10
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pids) and leftovers()["shared memory"] == before["shared memory"]


def test_progress_is_told_while_it_runs():
    slow = ccl.Topology.cluster(nodes=2, gpus_per_node=1, nics_per_node=1, nic_gbits_per_s=0.1)
    with ccl.World(slow) as world:
        assert world.status()["state"] == "idle"
        run = world.start(ccl.plan("all_reduce", slow, "8MiB", algorithm="ring", channels=1))
        seen = []
        while not run.done():
            status = world.status()
            if status["state"] == "running":
                seen.append(status["progress"])
            time.sleep(0.01)
        assert seen == sorted(seen) and seen[0] < 1 and max(seen) > 0
        assert world.status()["progress"] == 1
