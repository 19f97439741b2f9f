"""Every schedule that the planner writes: equal to the oracle, and within the bounds of its collective."""

from __future__ import annotations

import numpy as np
import pytest

from ccl_lab.errors import UsageError
from ccl_lab.planner import ALGORITHMS, plan
from ccl_lab.simulator import exact_times, simulate
from ccl_lab.topo import Topology

from .cases import random_topology
from .test_exact import assert_equal_to_oracle

NAMES = [(collective, algorithm) for collective, known in ALGORITHMS.items() for algorithm in known]


def topologies(seed: int) -> list[Topology]:
    rng = np.random.default_rng(seed)
    small = [Topology.cluster(nodes=1, gpus_per_node=2), Topology.cluster(nodes=3, gpus_per_node=2, nics_per_node=3)]
    return [*small, Topology.cluster().slow(2.5, nic=(1, 2)), random_topology(rng, int(rng.integers(2, 14)))]


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


def test_a_slower_nic_never_helps_a_plan() -> None:
    topology = Topology.cluster()
    for collective, algorithm in NAMES:
        try:
            schedule = plan(collective, topology, "1MiB", algorithm=algorithm)
        except UsageError:
            continue
        times = [exact_times(schedule, topology.slow(factor, nic=(0, 1))).time_ps for factor in (1, 1.5, 4)]
        assert times == sorted(times), (collective, algorithm)
