"""Every schedule that the planner writes: equal to the oracle, and within the bounds of its collective."""

from __future__ import annotations

import numpy as np
import pytest

from ccl_lab.errors import UsageError
from ccl_lab.ir import Kind, Schedule
from ccl_lab.planner import ALGORITHMS, estimate, plan
from ccl_lab.planner.choose import IN_PLACE
from ccl_lab.simulator import exact_times, simulate
from ccl_lab.topo import LinkKind, Topology, duration_ps

from .cases import random_topology
from .test_exact import assert_equal_to_oracle

NAMES = [(collective, algorithm) for collective, known in ALGORITHMS.items() for algorithm in known]
SHARED = [(collective, algorithm) for collective, algorithm in NAMES if algorithm in IN_PLACE and collective != "barrier"]


def topologies(seed: int) -> list[Topology]:
    rng = np.random.default_rng(seed)
    small = [Topology.cluster(nodes=1, gpus_per_node=2), Topology.cluster(nodes=3, gpus_per_node=2, nics_per_node=3)]
    uneven = random_topology(rng, int(rng.integers(2, 14)))
    return [*small, Topology.cluster().slow(2.5, nic=(1, 2)), uneven, one_node(rng, int(rng.integers(3, 12)))]


def one_node(rng: np.random.Generator, n: int) -> Topology:
    """Ranks of one node, each with rates and latency of its own."""
    return Topology("node", np.zeros(n, int), 1, 10**9, 10**6, rng.integers(10**6, 10**12, n), rng.integers(0, 2_000_001, n),
                    rng.integers(10**6, 10**12, n))  # fmt: skip


@pytest.mark.parametrize(("collective", "algorithm"), NAMES)
def test_planned_schedules_equal_the_oracle(collective: str, algorithm: str) -> None:
    done = 0
    for topology in topologies(len(collective) + len(algorithm)):
        for nbytes in (4, 1000003):
            try:
                schedule = plan(collective, topology, nbytes, algorithm=algorithm)
            except UsageError:  # this algorithm does not fit this topology
                continue
            late = np.random.default_rng(done).integers(0, 10**7, topology.n_ranks) * (done % 2)
            assert_equal_to_oracle(schedule, topology, late, np.zeros((topology.n_ranks, 1), np.int64))
            done += 1
    assert done


def test_ring_all_reduce_has_its_closed_form() -> None:
    n, nbytes = 8, 64 << 20
    topology = Topology.cluster(nodes=n, gpus_per_node=1, nics_per_node=1, nic_latency="5us", local_gbytes_per_s=1e9)
    time_ps = simulate(plan("all_reduce", topology, nbytes, algorithm="ring", channels=1, in_place=True), topology).meta["time_ps"]
    ideal = 2 * (n - 1) * (nbytes // n * 1000 + 5_000_000)
    assert ideal <= time_ps <= ideal * 1.05


@pytest.mark.parametrize("algorithm", ["ring"])
def test_simulated_busbw_stays_below_the_line(algorithm: str) -> None:
    topology = Topology.cluster(nodes=2, gpus_per_node=4, nics_per_node=4, nic_gbits_per_s=8, fabric_gbytes_per_s=100,
                                local_gbytes_per_s=1000)  # fmt: skip
    for collective in ("all_reduce", "all_gather", "reduce_scatter"):
        trace = simulate(plan(collective, topology, "256MiB", algorithm=algorithm), topology)
        # A rank of a ring gets at most what four NICs of 1 GB/s carry for its node.
        assert 0.8 * 4 <= trace.busbw_gbytes_per_s <= 4.0, collective


def test_an_element_more_in_some_chunks_changes_no_order() -> None:
    # Were chunks an element apart served one lane after the other, what nodes hand round at the end would stand in lines.
    topology = Topology.cluster(4, 8, 8, nic_gbits_per_s=400, fabric_gbytes_per_s=400, local_gbytes_per_s=2000).without((0, 0))
    schedule = plan("all_reduce", topology, "64MiB", algorithm="balance")
    even, more = (exact_times(schedule, topology, 4 * (schedule.parts * 10_000 + rest)) for rest in (0, schedule.parts // 2))
    assert len(np.unique(more.nbytes[more.nbytes > 0])) > len(np.unique(even.nbytes[even.nbytes > 0]))
    assert np.array_equal(even.level, more.level)
    assert more.time_ps == pytest.approx(even.time_ps, rel=1e-3)


def test_a_slower_nic_never_helps_a_plan() -> None:
    topology = Topology.cluster()
    for collective, algorithm in NAMES:
        try:
            schedule = plan(collective, topology, "1MiB", algorithm=algorithm)
        except UsageError:
            continue
        times = [exact_times(schedule, topology.slow(factor, nic=(0, 1))).time_ps for factor in (1, 1.5, 4)]
        assert times == sorted(times), (collective, algorithm)


def memory_bound_ps(schedule: Schedule, topology: Topology) -> int:
    """What the busiest memory engine or port of a node needs for its bytes alone: a reduction reads every source, near or far."""
    ops, links, nbytes = schedule.ops, topology.links, schedule.layout().op_bytes()
    work, bound = nbytes * np.maximum(ops.src_count, 1), 0
    reads, puts = np.isin(ops.kind, (Kind.copy, Kind.reduce)), ops.kind == Kind.put
    sides = ((LinkKind.local, reads, ops.rank), (LinkKind.fabric_tx, puts, ops.rank), (LinkKind.fabric_rx, puts, ops.peer))
    for kind, rows, owner in sides:
        rates = links.bytes_per_s[links.kind == kind]
        for rank in range(schedule.n_ranks):
            bound = max(bound, duration_ps(int(work[rows & (owner == rank)].sum()), int(rates[rank])))
    return bound


@pytest.mark.parametrize(("collective", "algorithm"), SHARED)
@pytest.mark.parametrize("in_place", [False, True])
def test_memory_in_place_is_never_faster_than_its_bytes(collective: str, algorithm: str, in_place: bool) -> None:
    for n in (2, 5, 9):
        rng = np.random.default_rng(n)
        for topology in (one_node(rng, n), Topology.cluster(1, n, 0)):
            for nbytes in (4 * n, 1_000_003, 16 << 20):
                schedule = plan(collective, topology, nbytes, algorithm=algorithm, in_place=in_place, root=n // 2)
                assert exact_times(schedule, topology).time_ps >= memory_bound_ps(schedule, topology) > 0


@pytest.mark.parametrize(("collective", "algorithm"), SHARED)
@pytest.mark.parametrize("in_place", [False, True])
def test_estimates_on_shared_memory_are_what_is_simulated(collective: str, algorithm: str, in_place: bool) -> None:
    for n in (2, 3, 4, 8):
        for fabric in (4, 8):
            topology = Topology.cluster(1, n, 0, fabric_gbytes_per_s=fabric)
            for nbytes in (16 << 20, 64 << 20):
                options = {"algorithm": algorithm, "in_place": in_place}
                simulated = simulate(plan(collective, topology, nbytes, **options), topology).time_us * 1e-6
                assert simulated == pytest.approx(estimate(collective, topology, nbytes, **options).seconds, rel=0.1), (n, fabric, nbytes)


def test_reading_the_memory_of_a_late_peer_waits_for_it() -> None:
    topology = Topology.cluster(1, 4, 0)
    for collective, algorithm in SHARED:
        schedule = plan(collective, topology, "1MiB", algorithm=algorithm, in_place=collective == "all_to_all", root=2)
        on_time, late = (exact_times(schedule, topology, late=late) for late in (None, {2: "1ms"}))
        assert late.time_ps >= on_time.time_ps and late.time_ps >= 10**9, (collective, algorithm)
        readers = np.repeat(np.arange(len(schedule.ops)), schedule.ops.src_count)[schedule.ops.src_rank == 2]
        assert (late.start_ps[readers] >= 10**9).all()
