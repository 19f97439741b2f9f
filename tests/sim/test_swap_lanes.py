"""Partners that swap many blocks where nodes are not alike: as the unrolled schedule and the oracle, up to 131,072 ranks."""

from __future__ import annotations

import numpy as np
import pytest

from ccl_lab.errors import Inapplicable, UsageError
from ccl_lab.planner import outline
from ccl_lab.simulation import simulate
from ccl_lab.simulator import exact_times, finish_times
from ccl_lab.simulator.swap_lanes import swap_lane_finish
from ccl_lab.topo import Topology

from ..shares import expected, first_of
from .cases import random_network, with_own_rates
from .draws import Drawn, drawn, some_bytes
from .peaks import printed
from .test_swaps import NAMES, alike


def unlike(rng: np.random.Generator, most: int = 5) -> Topology:
    """Any number of nodes and ranks, with any number of NICs, of which some are gone; rates, latencies and switches of their own."""
    if rng.random() < 0.4:
        topology = alike(rng, most)
    else:
        group = int(rng.integers(1, 5))
        nodes = int(rng.integers(2, max(2**most // group, 2) + 1))
        topology = Topology.cluster(nodes=nodes, gpus_per_node=group, nics_per_node=int(rng.integers(1, 3 * group + 1)),
                                    nic_gbits_per_s=float(rng.integers(1, 400)), fabric_gbytes_per_s=int(rng.integers(1, 300)),
                                    local_gbytes_per_s=int(rng.integers(1, 1000)))  # fmt: skip
        topology = with_own_rates(rng, topology) if rng.random() < 0.5 else topology
        topology = topology.replace(network=random_network(rng, nodes)) if rng.random() < 0.2 else topology
    for _ in range(int(rng.integers(0, 4))):
        nic = int(rng.integers(topology.n_nodes)), int(rng.integers(topology.nics_per_node))
        up = np.count_nonzero(topology.nic_bytes_per_s.reshape(topology.n_nodes, -1)[nic[0]])
        topology = topology.without(nic) if up > 1 else topology
    return topology


def draw(seed: int, name: tuple[str, str], most: int = 5) -> Drawn | None:
    rng = np.random.default_rng([seed, 23, *name[0].encode()])
    topology = unlike(rng, most)
    nbytes = some_bytes(rng, topology.n_ranks * 4 * 10**5)
    return drawn(rng, name, topology, nbytes, (0.4, 0.3), channels=rng.random() < 0.8)


@pytest.mark.parametrize("name", NAMES)
def test_swaps_are_timed_as_their_ops(name: tuple[str, str]) -> None:
    """Lost NICs, rates that change in time, any number of ranks, several channels, shared NICs, switches, late ranks, in place."""
    compared = refused = channels = changed = lost = odd = 0
    for seed in first_of(range(250)):
        case = draw(seed, name)
        if case is None:
            continue
        want, changes = case.wanted(change=True)
        try:
            times, _ = case.found(swap_lane_finish, case.outlined, changes)
        except Inapplicable:  # sums that are put one by one over links that others use meanwhile, as some do if blocks have no bytes
            refused += 1
            continue
        assert times == want, seed
        n = case.topology.n_ranks
        compared, changed, odd = compared + 1, changed + bool(changes), odd + bool(n & (n - 1))
        channels += int(case.schedule.ops.channel.max()) > 0
        lost += not case.topology.nic_bytes_per_s.all()
    assert compared >= expected(200) and refused <= (25 if name[0] == "reduce_scatter" else 0)
    assert channels >= expected(50) and changed >= expected(40) and lost >= expected(80) and odd >= expected(80)


def test_swaps_are_timed_as_by_the_oracle() -> None:
    compared = 0
    for seed in first_of(range(80)):
        case = draw(1000 + seed, NAMES[seed % 2], 4)
        if case is None or len(case.schedule.ops) > 5_000:
            continue
        try:
            times, _ = case.found(swap_lane_finish, case.outlined)
        except Inapplicable:
            continue
        assert times == case.by_the_oracle(), seed
        compared += 1
    assert compared >= expected(50)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("nodes", "gpus", "nics", "channels"),
                         [(256, 1, 4, 4), (32, 8, 16, 2), (24, 8, 4, None), (24, 8, 16, 2), (48, 6, 3, 1)])
def test_some_hundred_ranks_as_their_ops(name: tuple[str, str], nodes: int, gpus: int, nics: int, channels: int | None) -> None:
    whole = Topology.cluster(nodes=nodes, gpus_per_node=gpus, nics_per_node=nics, nic_gbits_per_s=400)
    late = {3: "20us", 180: "1ms"}
    for topology in (whole, whole.without((7, 1)), whole.without((7, 1), (9, 0), (10, 2)).slow(1.5, rank=100)):
        outlined = outline(name[0], topology, "63MB", algorithm=name[1], channels=channels)
        for who in (None, late):
            times, how = finish_times(outlined, topology, late=who)
            assert how["as"] == "swaps" and times.tolist() == exact_times(outlined.unroll(), topology, late=who).finish_ps.tolist()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("nodes", "gpus", "nics", "channels"), [(131072, 1, 4, 4), (16384, 8, 16, 2), (16384, 8, 4, 1), (12288, 8, 16, 2)])
def test_131072_ranks(name: tuple[str, str], nodes: int, gpus: int, nics: int, channels: int) -> None:
    """Several channels and shared NICs: around a lost NIC nothing ends earlier, nor where one is slower for a while."""
    whole = Topology.cluster(nodes=nodes, gpus_per_node=gpus, nics_per_node=nics, nic_gbits_per_s=400, fabric_gbytes_per_s=2000,
                             local_gbytes_per_s=9000)  # fmt: skip
    gone = whole.without((7, 1))
    before, after = (finish_times(outline(name[0], each, "16GiB", algorithm=name[1], channels=channels), each) for each in (whole, gone))
    assert after[1]["by_lane"] and (after[0] >= before[0]).all() and 1.2 < after[0].max() / before[0].max() < 2.1


PEAK = """
import sys
from ccl_lab.planner import outline
from ccl_lab.simulator import finish_times
from ccl_lab.topo import Topology
gone = Topology.cluster(nodes=65536, gpus_per_node=1, nics_per_node=4, nic_gbits_per_s=400).without((7, 1))
assert finish_times(outline(sys.argv[1], gone, "16GiB", algorithm=sys.argv[2], channels=4), gone)[1]["by_lane"]
print(peak())
"""


@pytest.mark.parametrize("name", NAMES)
def test_memory_is_for_lanes_and_links(name: tuple[str, str]) -> None:
    """MB of the process, of half as many ranks as are timed: what they do at each step takes none."""
    assert printed(PEAK, *name) <= 240


@pytest.mark.parametrize(("name", "late", "early"), [(NAMES[0], "50ms", "1ms"), (NAMES[1], "34s", "20s")])
def test_a_nic_that_changes(name: tuple[str, str], late: str, early: str) -> None:
    """131,072 ranks on two NICs each, of which one is four times slower from some moment on: the later, the less that costs."""
    whole = Topology.cluster(nodes=16384, gpus_per_node=8, nics_per_node=16)
    ends = [simulate(name[0], whole, "64GiB", algorithm=name[1], faults=faults).meta["time_ps"]
            for faults in ([], [f"nic:node=7,nic=2,factor=4,at={late}"], [f"nic:node=7,nic=2,factor=4,at={early}"])]
    assert ends == sorted(set(ends)) and len(ends) == 3


def test_what_takes_weeks_is_told() -> None:
    days = Topology.cluster(nodes=6, gpus_per_node=1, nics_per_node=2, nic_gbits_per_s=1e-6)
    with pytest.raises(UsageError, match="13 days"):
        finish_times(outline("all_gather", days, "1TiB", algorithm="recursive_doubling"), days)
