"""Direct algorithms, timed node by node: as the unrolled schedule and the oracle, merged or not, up to 131,072 ranks."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from ccl_lab import _core
from ccl_lab.errors import Inapplicable
from ccl_lab.ir import Outline
from ccl_lab.planner import outline
from ccl_lab.simulator import exact_times, finish_times, summarize
from ccl_lab.simulator.pairs import pair_finish
from ccl_lab.topo import Topology

from ..shares import expected, first_of
from .draws import Drawn, alike_by_twos, drawn, equal_to_the_oracle, found, some_bytes
from .test_scale import even_topology

NAMES = [("all_to_all", "direct"), ("all_to_all", "balance"), ("all_gather", "direct"), ("reduce_scatter", "direct"),
         ("all_reduce", "direct")]  # fmt: skip


def times(outlined: Outline, topology: Topology, late: Any = None, **options: Any) -> tuple[list[int], dict[str, Any]]:
    return found(pair_finish, outlined.pairs, outlined, topology, late, **options)


def with_odd_nodes(rng: np.random.Generator) -> Topology:
    """Many nodes that are alike, but for a few: slower NICs, other latencies."""
    nodes, group = int(rng.integers(64, 140)), int(rng.integers(1, 3))
    topology = Topology.cluster(nodes=nodes, gpus_per_node=group, nics_per_node=2, nic_gbits_per_s=100,
                                fabric_gbytes_per_s=int(rng.integers(10, 500)))  # fmt: skip
    for _ in range(int(rng.integers(0, 3))):
        topology = topology.slow(float(rng.uniform(1, 3)), nic=(int(rng.integers(nodes)), int(rng.integers(2))))
    if rng.random() < 0.3:
        latency = np.array(topology.nic_latency_ps)
        latency[int(rng.integers(len(latency)))] += int(rng.integers(-900_000, 10**6))
        topology = topology.replace(nic_latency_ps=latency)
    return topology


def draw(seed: int, name: tuple[str, str], most_nodes: int = 12) -> Drawn | None:
    rng = np.random.default_rng([seed, 5, *name[0].encode(), *name[1].encode()])
    topology = with_odd_nodes(rng) if rng.random() < 0.3 and most_nodes > 6 else even_topology(rng, most_nodes)
    late = (0.4, 0.01 if topology.n_nodes >= 64 else 0.3)
    return drawn(rng, name, topology, some_bytes(rng), late, lambda outlined: outlined.pairs is not None)


@pytest.mark.parametrize("name", NAMES)
def test_pairs_are_timed_as_their_ops(name: tuple[str, str]) -> None:
    """Any rates and latencies, late ranks, NICs that ranks share, several channels, rates that change in the middle."""
    compared = merged = many = 0
    for seed in first_of(range(80), fewest=40):
        case = draw(seed, name)
        if case is None:
            continue
        want, changes = case.wanted(change=case.topology.n_nodes > 1)
        for merge in (True, False):
            try:
                ends, how = case.found(pair_finish, case.outlined.pairs, changes, merge=merge)
            except Inapplicable:
                continue
            assert ends == want, (seed, merge)
            assert merge or how["units"] == case.topology.n_nodes
            compared, merged, many = compared + 1, merged + (how["units"] < case.topology.n_nodes), many + (how["units"] >= 64)
    assert compared >= expected(30) and merged >= expected(4) and many >= expected(10)


def test_pairs_are_timed_as_by_the_oracle() -> None:
    cases = (draw(1000 + seed, NAMES[seed % 5], most_nodes=4) for seed in first_of(range(60)))
    assert equal_to_the_oracle(cases, pair_finish, "pairs", 5_000, may_refuse=True) >= expected(10)


@pytest.mark.parametrize("target", _core.vector_targets())
def test_pairs_on_every_kind_of_vectors(target: int) -> None:
    """Code for older processors than this one: nodes that are alike but for a few, and nodes that are all different."""
    rng = np.random.default_rng(3)
    different = Topology.cluster(nodes=90, gpus_per_node=2, nics_per_node=2).replace(nic_bytes_per_s=rng.integers(10**8, 10**10, 180))
    for topology in (different, *(with_odd_nodes(rng) for _ in range(6))):
        outlined = outline("all_gather", topology, "16MiB", algorithm="direct")
        want = exact_times(outlined.unroll(), topology).finish_ps.tolist()
        try:
            assert times(outlined, topology, merge=False, target=target)[0] == want
        except Inapplicable:
            assert topology is not different


@pytest.mark.parametrize("name", NAMES)
def test_512_ranks_as_their_ops(name: tuple[str, str]) -> None:
    whole = Topology.preset("h100", 64)
    for topology, late in ((whole, None), (whole.slow(3, nic=(7, 2)), None), (whole.slow(1.5, rank=100), {3: "20us", 77: "1us"})):
        outlined = outline(name[0], topology, "64MiB", algorithm=name[1])
        if outlined.pairs is None:
            continue  # balance where a NIC is slower
        found, how = finish_times(outlined, topology, late=late)
        assert how["as"] == "pairs" and found.tolist() == exact_times(outlined.unroll(), topology, late=late).finish_ps.tolist()


@pytest.mark.parametrize("more", [-700_000, 700_000])
@pytest.mark.parametrize("name", NAMES[:4:2])
def test_one_node_with_another_latency_among_many(name: tuple[str, str], more: int) -> None:
    """The last put to the node before it is its own, and arrives by its own latency; to others the last one is a plain one."""
    topology = Topology.cluster(nodes=80, gpus_per_node=2, nics_per_node=2, nic_gbits_per_s=100, fabric_gbytes_per_s=400)
    latency = np.array(topology.nic_latency_ps)
    latency[2 * 33 : 2 * 34] += more
    topology = topology.replace(nic_latency_ps=latency)
    outlined = outline(name[0], topology, "16MiB", algorithm=name[1])
    found, how = times(outlined, topology)
    assert how["units"] == 80 and found == exact_times(outlined.unroll(), topology).finish_ps.tolist()


@pytest.mark.parametrize("nodes", [8, 64, 512, 2048])
@pytest.mark.parametrize("name", NAMES)
def test_merged_nodes_end_as_those_that_are_evaluated(nodes: int, name: tuple[str, str]) -> None:
    """All alike; every other one with slower NICs, latencies of its own, and a late rank."""
    for topology, late, units in alike_by_twos(nodes):
        outlined = outline(name[0], topology, "1GB", algorithm=name[1])
        if outlined.pairs is None or (units == 2 and nodes > 512):
            continue
        found, how = times(outlined, topology, late)
        assert how["units"] == units and found == times(outlined, topology, late, merge=False)[0]


def test_131072_ranks() -> None:
    topology = Topology.preset("h100", 16384)
    for name in NAMES:
        outlined = outline(name[0], topology, "1GiB", algorithm=name[1])
        found, how = finish_times(outlined, topology)
        assert how["as"] == "pairs" and how["units"] == 1 and len(np.unique(found)) == 1
    whole, how = finish_times(outline("all_to_all", topology, "1GiB", algorithm="direct"), topology, merge=False)
    assert how["units"] == 16384 and whole.tolist() == finish_times(outline("all_to_all", topology, "1GiB", algorithm="direct"),
                                                                    topology)[0].tolist()  # fmt: skip


def test_a_slower_nic_among_131072_ranks() -> None:
    """Nothing ends earlier, and what a NIC 4 times slower carries takes it 4 times as long."""
    topology = Topology.preset("h100", 16384)
    slower = topology.slow(4, nic=(7, 2))
    before, after = (finish_times(outline("all_gather", each, "1GiB", algorithm="direct"), each)[0] for each in (topology, slower))
    assert (after >= before).all() and 3.99 < after.max() / before.max() < 4.01


def test_what_pairs_cannot_say_is_refused() -> None:
    topology = Topology.preset("h100", 4096)
    whole = outline("all_gather", topology, "1GiB", algorithm="direct")
    assert whole.pairs is not None
    turned = dataclasses.replace(whole, pairs=dataclasses.replace(whole.pairs, grid=whole.pairs.grid[:, ::-1]))
    with pytest.raises(Inapplicable, match="order of their places"):
        times(turned, topology)
    many = topology.without(*((node, 2) for node in range(0, 4096, 2)))
    with pytest.raises(Inapplicable, match="direct reduce_scatter .* puts of 2,048 nodes that lost NICs, which follow no pattern"):
        summarize(outline("reduce_scatter", many, "1GiB", algorithm="direct", channels=2), many)
