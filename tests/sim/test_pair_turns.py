"""Direct algorithms around lost NICs, and where NICs are shared unevenly, whose ranks add up on several channels: as the unrolled
schedule and the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ccl_lab import _core
from ccl_lab.planner import outline, plan
from ccl_lab.simulator import exact_times, finish_times, pairs
from ccl_lab.simulator.pairs import _summed as summed
from ccl_lab.simulator.pairs import pair_finish
from ccl_lab.topo import Topology

from ..shares import expected, first_of
from .draws import Drawn, equal_to_the_oracle, some_bytes
from .test_pairs import times

SUMS = ["all_reduce", "reduce_scatter"]
FEW = (0, 1, 3, 16, 300)  # free NICs: never pairs of them, soon, at once


def with_lost_nics(rng: np.random.Generator, most_nodes: int) -> Topology:
    """Nodes that lost some of their NICs, or share them unevenly; some with rates and latencies of their own."""
    nodes, nics = int(rng.integers(2, most_nodes + 1)), int(rng.integers(1, 5))
    group = int(rng.integers(1, 5 if nodes < 20 else 3))
    topology = Topology.cluster(nodes=nodes, gpus_per_node=group, nics_per_node=nics, nic_gbits_per_s=100,
                                fabric_gbytes_per_s=int(rng.integers(10, 500)))  # fmt: skip
    if rng.random() < 0.3:
        topology = topology.replace(nic_bytes_per_s=rng.integers(10**8, 10**10, nodes * nics))
    if rng.random() < 0.4:
        topology = topology.slow(float(rng.uniform(1, 4)), nic=(int(rng.integers(nodes)), int(rng.integers(nics))))
    if rng.random() < 0.2:
        latency = np.array(topology.nic_latency_ps)
        latency[int(rng.integers(len(latency)))] += int(rng.integers(0, 10**6))
        topology = topology.replace(nic_latency_ps=latency)
    lost = {(int(rng.integers(nodes)), int(rng.integers(nics))) for _ in range(int(rng.integers(0, 4)))}
    left = [[nic for nic in range(nics) if (node, nic) not in lost] for node in range(nodes)]
    return topology.without(*sorted(lost)) if lost and all(left) else topology


def sums_in_one_memory(seed: int) -> Drawn | None:
    """Ranks with several channels, lost NICs, and memories as slow as NICs or slower, so that the order of sums tells."""
    rng = np.random.default_rng([seed, 56])
    topology = with_lost_nics(rng, int(rng.choice([6, 6, 6, 30, 90])))
    if rng.random() < 0.8:
        topology = topology.replace(local_bytes_per_s=rng.integers(10**8, 10**12, topology.n_ranks))
    name, nbytes = SUMS[seed % 2], some_bytes(rng)
    options = {"algorithm": "direct", "in_place": bool(rng.random() < 0.5), "channels": int(rng.integers(2, 6))}
    outlined = outline(name, topology, nbytes, **options)
    if outlined.ops_about > 30_000:
        return None
    late = {rank: f"{int(rng.integers(1, 10**8))}ps" for rank in range(topology.n_ranks) if rng.random() < 0.1}
    return Drawn(plan(name, topology, nbytes, **options), outlined, topology, late, float(rng.choice([0, 3e-6])), rng)


def test_channels_of_a_rank_add_up_in_the_order_of_nominal_time() -> None:
    """Any rates, late ranks, rates that change; rounds gone through to the end, or pairs of free NICs. Other orders of sums end at other
    times, often enough: they are not by chance the same."""
    dealt = otherwise = many = 0
    for seed in first_of(range(110)):
        case = sums_in_one_memory(seed)
        if case is None:
            continue
        want, changes = case.wanted(change=True)
        ends, how = case.found(pair_finish, case.outlined.pairs, changes, few=FEW[seed % len(FEW)], merge=seed % 3 > 0)
        assert ends == want, seed
        dealt, many = dealt + ("turns" in how), many + ("turns" in how and case.topology.n_nodes > 64)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(pairs, "_summed", in_the_order_of_channels)
            otherwise += case.found(pair_finish, case.outlined.pairs, changes)[0] != want
    assert dealt >= expected(40) and many >= expected(2) and otherwise >= expected(12), (dealt, many, otherwise)


def in_the_order_of_channels(*given: Any) -> Any:
    return summed(*given[:-1], np.broadcast_to(np.arange(len(given[-1]))[:, None, None], given[-1].shape))


def test_channels_of_a_rank_add_up_as_by_the_oracle() -> None:
    cases = (sums_in_one_memory(1000 + seed) for seed in first_of(range(30)))
    assert equal_to_the_oracle(cases, pair_finish, "pairs", 1_500) >= expected(8)


def rows_with_lost_nics() -> list[Topology]:
    """Rows of more than 64 nodes, of which two lost a NIC: the others alike, most of them alike, or all of them different."""
    alike = Topology.cluster(nodes=150, gpus_per_node=2, nics_per_node=2)
    different = alike.replace(nic_bytes_per_s=np.random.default_rng(4).integers(10**8, 10**10, 300))
    return [topology.without((7, 1), (100, 0)) for topology in (alike, alike.slow(3, nic=(70, 1)), different)]


@pytest.mark.parametrize("target", _core.vector_targets())
def test_lost_nics_on_every_kind_of_vectors(target: int) -> None:
    for gone in rows_with_lost_nics():
        outlined = outline("reduce_scatter", gone, "64MiB", algorithm="direct", channels=2)
        found, how = times(outlined, gone, target=target)
        assert how["turns"] > 298 and found == exact_times(outlined.unroll(), gone).finish_ps.tolist()


@pytest.mark.parametrize("name", SUMS)
def test_512_ranks_around_lost_nics_as_their_ops(name: str) -> None:
    topology = Topology.preset("h100", 64)
    several = topology.without((7, 2), (7, 3), (40, 0)).slow(2, nic=(9, 1))
    for gone, late in ((topology.without((7, 2)), None), (several, {3: "20us"})):
        outlined = outline(name, gone, "64MiB", algorithm="direct", channels=2)
        found, how = finish_times(outlined, gone, late=late)
        assert how["as"] == "pairs" and how["turns"] > 504
        assert found.tolist() == exact_times(outlined.unroll(), gone, late=late).finish_ps.tolist()


def test_3000_ranks_that_share_nics_unevenly() -> None:
    """Five ranks on two NICs: one of them carries for three ranks."""
    uneven = Topology.cluster(nodes=600, gpus_per_node=5, nics_per_node=2)
    found, how = times(outline("reduce_scatter", uneven, "1GiB", algorithm="direct", channels=2), uneven)
    assert how["units"] == 1 and how["turns"] >= 6 * 5 * 599 and len(np.unique(np.reshape(found, (-1, 5)), axis=0)) == 1


@pytest.mark.parametrize("name", SUMS)
def test_2048_ranks_with_two_channels_around_a_lost_nic(name: str) -> None:
    """Two NICs a rank, one of them gone: its channel goes over the other one, and nobody ends earlier for it."""
    whole = Topology.cluster(nodes=512, gpus_per_node=4, nics_per_node=8, nic_gbits_per_s=200)
    gone = whole.without((7, 2))
    (before, _), (after, how) = (finish_times(outline(name, each, "1GiB", algorithm="direct"), each) for each in (whole, gone))
    assert how == {"as": "pairs", "units": 512, "puts": 511 * 512 * 32, "turns": 4088}
    assert (after >= before).all() and after.max() > before.max()
