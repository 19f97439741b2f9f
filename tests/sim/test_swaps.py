"""Partners that swap many blocks on several channels, or over shared NICs: as the unrolled schedule and the oracle, up to 131,072 ranks."""

from __future__ import annotations

import numpy as np
import pytest

from ccl_lab.errors import Inapplicable, UsageError
from ccl_lab.planner import outline
from ccl_lab.simulation import simulate
from ccl_lab.simulator import exact_times, finish_times, summarize
from ccl_lab.simulator.swaps import swap_finish
from ccl_lab.topo import Topology

from ..shares import expected, first_of
from .cases import random_network, with_own_rates
from .draws import Drawn, drawn, some_bytes

NAMES = [("all_gather", "recursive_doubling"), ("reduce_scatter", "recursive_halving")]


def alike(rng: np.random.Generator, most: int = 5) -> Topology:
    """Powers of two of nodes and ranks, with any number of NICs, which ranks share or have several of; rates and latencies of their own."""
    power = int(rng.integers(0, 4))
    nodes, group = 2 ** int(rng.integers(1, max(most - power, 1) + 1)), 2**power
    topology = Topology.cluster(nodes=nodes, gpus_per_node=group, nics_per_node=int(rng.integers(1, 3 * group + 1)),
                                nic_gbits_per_s=float(rng.integers(1, 400)), fabric_gbytes_per_s=int(rng.integers(1, 300)),
                                local_gbytes_per_s=int(rng.integers(1, 1000)))  # fmt: skip
    if rng.random() < 0.5:
        topology = with_own_rates(rng, topology)
    elif rng.random() < 0.5:
        topology = topology.slow(float(rng.uniform(1, 5)), nic=(int(rng.integers(nodes)), int(rng.integers(topology.nics_per_node))))
    return topology.replace(network=random_network(rng, nodes)) if rng.random() < 0.2 else topology


def draw(seed: int, name: tuple[str, str], most: int = 5) -> Drawn | None:
    rng = np.random.default_rng([seed, 17, *name[0].encode()])
    topology = alike(rng, most)
    nbytes = some_bytes(rng, topology.n_ranks * 4 * 10**5)
    return drawn(rng, name, topology, nbytes, (0.4, 0.3), lambda outlined: outlined.swaps, channels=rng.random() < 0.8)


@pytest.mark.parametrize("name", NAMES)
def test_swaps_are_timed_as_their_ops(name: tuple[str, str]) -> None:
    """Any rates and latencies, late ranks, several channels, NICs that ranks share evenly or not, switches, in place."""
    compared = refused = channels = shared = both = in_place = 0
    for seed in first_of(range(200)):
        case = draw(seed, name)
        if case is None:
            continue
        want, _ = case.wanted(change=False)
        try:
            times, _ = case.found(swap_finish, case.outlined)
        except Inapplicable:  # sums of channels that come in overlapping batches
            refused += 1
            continue
        assert times == want, seed
        many = int(case.schedule.ops.channel.max()) > 0
        sharing = case.topology.nics_per_node < case.topology.gpus_per_node
        compared, channels, shared, both = compared + 1, channels + many, shared + sharing, both + (many and sharing)
        in_place += case.outlined.in_place
    assert compared >= expected(150) and refused <= 3 and channels >= expected(30)
    assert shared >= expected(30) and both >= expected(8) and in_place >= expected(30)


def test_swaps_are_timed_as_by_the_oracle() -> None:
    compared = 0
    for seed in first_of(range(60)):
        case = draw(1000 + seed, NAMES[seed % 2], 4)
        if case is None or len(case.schedule.ops) > 5_000:
            continue
        assert case.found(swap_finish, case.outlined)[0] == case.by_the_oracle(), seed
        compared += 1
    assert compared >= expected(40)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("gpus", "nics", "channels"), [(1, 4, 4), (8, 16, 2), (8, 4, None), (8, 1, None), (8, 8, 2), (8, 3, 3)])
def test_256_ranks_as_their_ops(name: tuple[str, str], gpus: int, nics: int, channels: int | None) -> None:
    whole = Topology.cluster(nodes=256 // gpus, gpus_per_node=gpus, nics_per_node=nics, nic_gbits_per_s=400)
    late = {3: "20us", 200: "1ms"}
    for topology in (whole, whole.slow(3, nic=(7, 0)), whole.slow(1.5, rank=100)):
        outlined = outline(name[0], topology, "63MB", algorithm=name[1], channels=channels)
        for who in (None, late):
            times, how = finish_times(outlined, topology, late=who)
            assert how["as"] == "swaps" and times.tolist() == exact_times(outlined.unroll(), topology, late=who).finish_ps.tolist()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("gpus", "nics", "channels"), [(1, 4, 4), (8, 16, 2), (8, 4, 1)])
def test_131072_ranks(name: tuple[str, str], gpus: int, nics: int, channels: int) -> None:
    """Several channels and shared NICs; around a slower NIC nothing ends earlier."""
    whole = Topology.cluster(nodes=131072 // gpus, gpus_per_node=gpus, nics_per_node=nics, nic_gbits_per_s=400, fabric_gbytes_per_s=2000,
                             local_gbytes_per_s=9000)  # fmt: skip
    slower = whole.slow(2, nic=(7, 0))
    before, after = (finish_times(outline(name[0], each, "16GiB", algorithm=name[1], channels=channels), each) for each in (whole, slower))
    assert before[1]["as"] == "swaps" and (after[0] >= before[0]).all() and 1.1 < after[0].max() / before[0].max() < 2


def test_all_nics_a_gpu_carry_as_many_times() -> None:
    """131,072 ranks with four NICs each, planned as they come: a slice on each NIC."""
    one, four = (Topology.cluster(nodes=131072, gpus_per_node=1, nics_per_node=m, nic_gbits_per_s=400, nic_latency="0us") for m in (1, 4))
    ends = [simulate("all_gather", each, "128GiB", algorithm="recursive_doubling").meta["time_ps"] for each in (one, four)]
    assert 3.99 < ends[0] / ends[1] < 4.01


def test_what_takes_weeks_is_told() -> None:
    days = Topology.cluster(nodes=4, gpus_per_node=1, nics_per_node=2, nic_gbits_per_s=1e-6)
    with pytest.raises(UsageError, match="13 days"):
        summarize(outline("all_gather", days, "1TiB", algorithm="recursive_doubling"), days)
