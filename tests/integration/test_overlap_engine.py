"""Computation of a World: emulated devices and real matmuls in rank processes, beside transfers over shaped NICs.

Is: results, traces, refusals, cancel, failover in the middle. Is not: the schedules of `ccl_lab.overlap`, nor a benchmark: bounds on
time are generous.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np
import pytest

import ccl_lab as ccl
from ccl_lab.errors import AbortedError, PeerLostError, ShapeError, UnsupportedError, UsageError
from ccl_lab.trace.columns import SpanStatus, Track

from .overlap_plans import all_gather_matmul, matmul_reduce_scatter


def computed(trace):
    """Rows of the compute lanes."""
    mine = trace.columns["track"] == Track.compute
    return {name: column[mine] for name, column in trace.columns.items()}


@pytest.fixture(scope="module")
def pair():
    """2 nodes of one rank; a block of 1 MiB takes 2.1 ms."""
    return ccl.Topology.cluster(nodes=2, gpus_per_node=1, nics_per_node=1, nic_gbits_per_s=4)


@pytest.fixture(scope="module")
def pair_world(pair):
    with ccl.World(pair, timeout="20s", transport="tcp") as made:
        yield made


def test_an_emulated_device_hides_what_the_closed_form_says(pair, pair_world):
    # Block d in 4 partitions of 5 ms: each is away before the next is made, so nothing is exposed: 8 partitions of 5 ms.
    schedule = matmul_reduce_scatter(2, 4)
    ccl.verify(schedule, topology=pair)
    run = pair_world.start(schedule, "2MiB", compute=ccl.Emulated("5ms"), repeat=5)
    trace = run.wait(20)
    run.check()
    assert trace.meta["device"] == "emulated" and trace.meta["time_us"] >= 40_000
    assert min(trace.meta["times_us"]) < 100_000
    rows = computed(trace)
    assert len(rows["op_id"]) == 16 * 5 and (rows["end_ns"] - rows["begin_ns"] == 5_000_000).all()
    assert set(rows["op_id"]) == set(np.flatnonzero(schedule.ops.kind == ccl.Kind.compute))
    assert (schedule.ops.rank[rows["op_id"]] == rows["rank"]).all() and (rows["index"] == 0).all()
    for rank in range(2):
        begins, ends = (np.sort(rows[name][rows["rank"] == rank]) for name in ("begin_ns", "end_ns"))
        assert (begins[1:] >= ends[:-1]).all()  # one stream


def test_what_is_made_leaves_when_it_is_made(pair_world):
    schedule = matmul_reduce_scatter(2, 4)
    trace = pair_world.run(schedule, "64KiB", compute=ccl.Emulated("2ms"))
    ops, columns = schedule.ops, trace.columns
    rows = computed(trace)
    made = zip(ops.rank[rows["op_id"]], ops.arg[rows["op_id"]], strict=True)
    ends = dict(zip(made, rows["end_ns"].tolist(), strict=True))
    puts = (columns["track"] == Track.nic_tx) & (columns["op_id"] >= 0)
    puts[puts] = ops.kind[columns["op_id"][puts]] == ccl.Kind.put
    late = [
        int(begin) - ends[ops.rank[op], ops.src_chunk[ops.src_begin[op]]]
        for op, begin in zip(columns["op_id"][puts], columns["begin_ns"][puts], strict=True)
    ]
    assert len(late) == 8 and min(late) >= 0
    assert np.median(late) < 100_000_000  # some 10 µs where nobody else wants the core; a sleep that nobody ends is 250 ms


@pytest.mark.parametrize("durations", ["1ms", 1_000_000_000, ["1ms", "2ms", "500us"], [["1ms", "1ms", "1ms"], [0, 0, "3ms"], [1, 2, 3]]])
def test_durations_are_of_all_of_partitions_or_of_ranks(durations):
    topology = ccl.Topology.cluster(nodes=1, gpus_per_node=3, nics_per_node=1)
    schedule = matmul_reduce_scatter(3)
    table = ccl.Emulated(durations).table(schedule)
    assert table.shape == (3, 3) and table.dtype == np.int64
    with ccl.World(topology, timeout="20s") as world:
        run = world.start(schedule, "12KiB", compute=ccl.Emulated(durations))
        rows = computed(run.wait(20))
        run.check()
    arg, rank = schedule.ops.arg[rows["op_id"]], rows["rank"]
    assert (rows["end_ns"] - rows["begin_ns"] == table[rank, arg]).all()


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("dtype", ["int32", "bfloat16", "float64"])
def test_results_are_those_of_the_definition(cluster, transport, dtype):
    n = cluster.n_ranks
    schedule = matmul_reduce_scatter(n, 3)
    kind = ccl.ir.collectives.numpy_dtype(dtype)
    inputs = [(np.arange(n * 1001) % 97 * (rank + 1) / 8).astype(kind) for rank in range(n)]
    want = ccl.interpret(schedule, inputs)
    with ccl.World(cluster, timeout="20s", transport=transport) as world:
        run = world.start(schedule, inputs=inputs, compute=ccl.Emulated([f"{50 * k}us" for k in range(3 * n)]))
        run.wait(20)
        for out, expected in zip(run.outputs, want, strict=True):
            assert (out.view(np.uint8) == expected.view(np.uint8)).all()
        run.check()
        run = world.start(all_gather_matmul(n), "64KiB", compute=ccl.Emulated("100us"), repeat=3)
        run.wait(20)
        run.check()


def test_real_matmuls_run_in_the_ranks(pair_world):
    schedule = matmul_reduce_scatter(2, 2)
    run = pair_world.start(schedule, "256KiB", compute=ccl.Matmul(128, 256, 64, "bfloat16"), repeat=3)
    trace = run.wait(60)
    run.check()
    assert trace.meta["device"] == "torch"
    rows = computed(trace)
    assert len(rows["op_id"]) == 8 * 3 and (rows["end_ns"] > rows["begin_ns"]).all()


def test_without_torch_numpy_does_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    device, function = ccl.Matmul(4, 5, 6).function()
    assert device == "numpy" and function(0, None, ()) is None
    with pytest.raises(UnsupportedError, match=r'pip install "ccl-lab\[torch\]"'):
        ccl.Matmul(4, 5, 6, "bfloat16").function()


def test_what_does_not_fit_is_refused_before_it_runs(pair_world, cluster):
    schedule = matmul_reduce_scatter(2)
    cases = [
        (None, UsageError, "has 4 compute ops: say who does them, compute=Emulated"),
        (lambda *_: None, UsageError, "the ranks of a World are other processes"),
        (ccl.Emulated([1]), ShapeError, "durations of 1 partitions: the schedule has 2"),
        (ccl.Emulated([[1, 2]]), ShapeError, "durations of 1 ranks: expected one row for each of 2 ranks"),
        (ccl.Emulated(-1), UsageError, "expected whole picoseconds or text"),
        (ccl.Emulated(0.5), UsageError, "expected whole picoseconds or text"),
        (ccl.Emulated([1, [2]]), UsageError, "expected whole picoseconds or text"),
        (ccl.Emulated("5 apples"), UsageError, "5 apples"),
    ]
    for compute, kind, words in cases:
        with pytest.raises(kind, match=words):
            pair_world.start(schedule, "1KiB", compute=compute)
    for sizes in ((0, 1, 1), (1, True, 1)):
        with pytest.raises(UsageError, match="1 or more"):
            ccl.Matmul(*sizes)
    with pytest.raises(UsageError, match="int8"):
        ccl.Matmul(1, 1, 1, "int8")
    # A schedule without compute ops takes the argument and ignores it.
    run = pair_world.start(ccl.plan("all_reduce", pair_world.topology, 4096), compute=ccl.Emulated("1s"))
    run.wait(20)
    run.check()


def test_an_elastic_world_refuses_computation():
    with (
        ccl.World(ccl.Topology.cluster(nodes=1, gpus_per_node=2, nics_per_node=1), elastic=True) as world,
        pytest.raises(UnsupportedError, match="elastic"),
    ):
        world.start(matmul_reduce_scatter(2), "1KiB", compute=ccl.Emulated("1ms"))


def test_a_run_is_cancelled_while_the_device_computes(pair_world):
    schedule = matmul_reduce_scatter(2)
    run = pair_world.start(schedule, "1MiB", compute=ccl.Emulated("60s"), timeout="120s")
    while run.state != "running":
        time.sleep(0.01)
    time.sleep(0.1)
    begin = time.monotonic()
    run.cancel("seen enough")
    with pytest.raises(AbortedError, match="seen enough"):
        run.wait(20)
    assert time.monotonic() - begin < 10
    rows = computed(run.trace)
    assert len(rows["op_id"]) == 2 and (rows["status"] == SpanStatus.aborted).all()
    run = pair_world.start(schedule, "1MiB", compute=ccl.Emulated("1ms"))
    run.wait(20)
    run.check()


def test_a_rank_that_dies_while_it_computes_is_named(pair):
    with ccl.World(pair, timeout="60s", transport="tcp") as world:
        run = world.start(matmul_reduce_scatter(2), "64KiB", compute=ccl.Emulated("30s"))
        while run.state != "running":
            time.sleep(0.01)
        os.kill(world.status()["pids"][1], signal.SIGKILL)
        with pytest.raises(PeerLostError, match="rank 1 .*SIGKILL"):
            run.wait(20)


@pytest.mark.parametrize("compute", [ccl.Emulated("3ms"), ccl.Matmul(64, 64, 64)], ids=["emulated", "matmul"])
def test_a_lost_nic_in_the_middle_is_survived(compute):
    topology = ccl.Topology.cluster(nodes=2, gpus_per_node=1, nics_per_node=2, nic_gbits_per_s=0.4)
    schedule = matmul_reduce_scatter(2, 8)
    nic = int(topology.nic_of(np.array([0]), np.array([1]))[0])  # of channel 1, which moves the bytes
    with ccl.World(topology, timeout="30s", transport="tcp") as world:
        run = world.start(schedule, "16MiB", compute=compute, faults=ccl.FaultScript(f"nic_down node=0 nic={nic} at_bytes=700000"))
        trace = run.wait(60)
        run.check()
        assert (trace.columns["track"] == Track.compute).sum() == 32
        tx = trace.columns["index"][(trace.columns["track"] == Track.nic_tx) & (trace.columns["rank"] == 0)]
        assert set(tx) == {0, 1}  # what was left went over the other NIC
