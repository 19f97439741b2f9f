"""Chains over all ranks, timed node by node: as the unrolled schedule and the oracle, merged or not, up to 131,072 ranks."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from ccl_lab.errors import Inapplicable
from ccl_lab.ir import Chains, Outline
from ccl_lab.planner import outline
from ccl_lab.simulator import exact_times, finish_times
from ccl_lab.simulator.chains import chain_finish
from ccl_lab.topo import Topology

from ..shares import expected, first_of
from .cases import random_network, random_topology
from .draws import Drawn, drawn, equal_to_the_oracle, found, some_bytes
from .test_scale import even_topology

NAMES = [("broadcast", "pipelined_ring"), ("broadcast", "balance"), ("reduce", "ring"), ("reduce", "balance")]


def times(outlined: Outline, topology: Topology, late: Any = None, **options: Any) -> tuple[list[int], dict[str, Any]]:
    return found(chain_finish, outlined.chains, outlined, topology, late, **options)


def draw(seed: int, name: tuple[str, str], most: int = 40) -> Drawn | None:
    rng = np.random.default_rng([seed, 5, *name[0].encode(), *name[1].encode()])
    topology = even_topology(rng, 9) if rng.random() < 0.6 else random_topology(rng, int(rng.integers(2, most)))
    if topology.n_nodes > 1 and rng.random() < 0.2:
        topology = topology.replace(network=random_network(rng, topology.n_nodes))
    return drawn(rng, name, topology, some_bytes(rng), (0.3, 0.3), root=int(rng.integers(topology.n_ranks)))


@pytest.mark.parametrize("name", NAMES)
def test_chains_are_timed_as_their_ops(name: tuple[str, str]) -> None:
    """Any rates, latencies, roots, late ranks, lost NICs, and rates that change in the middle."""
    compared = merged = 0
    for seed in first_of(range(70)):
        case = draw(seed, name)
        if case is None:
            continue
        want, changes = case.wanted(change=case.topology.nics_per_node > 0 and case.topology.n_nodes > 1)
        for merge in (True, False):
            try:
                ends, how = case.found(chain_finish, case.outlined.chains, changes, merge=merge)
            except Inapplicable:
                continue
            assert ends == want, (seed, merge)
            assert merge or how["evaluated"] == how["orders"] == how["units"]
            compared, merged = compared + 1, merged + (how["evaluated"] < how["units"])
    assert compared >= expected(120) and merged >= expected(3)


def test_chains_are_timed_as_by_the_oracle() -> None:
    cases = (draw(1000 + seed, NAMES[seed % 4], most=12) for seed in first_of(range(40)))
    equal_to_the_oracle(cases, chain_finish, "chains", 20_000)


def faulty(nodes: int) -> list[tuple[Topology, Any]]:
    """Whole, with a slower NIC, with NICs gone, with late ranks, with one in every node from the ninth on."""
    whole = Topology.preset("h100", nodes)
    return [(whole, None), (whole.slow(3, nic=(nodes // 3, 0)).slow(1.5, rank=nodes), None), (whole.without((1, 2), (nodes // 2, 5)), None),
            (whole, {3: "1ms", 5 * nodes: "7us"}), (whole, dict.fromkeys(range(8 * 8 + 3, 8 * nodes, 8), "1ms"))]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_1024_ranks_as_their_ops(name: tuple[str, str]) -> None:
    for topology, late in faulty(128):
        options: dict[str, Any] = {"algorithm": name[1], "root": 517, "channels": 3}
        outlined = outline(name[0], topology, "3MB", **options)
        found, how = finish_times(outlined, topology, late=late)
        assert how["as"] == "chains" and found.tolist() == exact_times(outlined.unroll(), topology, late=late).finish_ps.tolist()


@pytest.mark.parametrize("name", NAMES[::3])
def test_a_late_rank_in_every_node_delays_a_single_chunk_once(name: tuple[str, str]) -> None:
    """The first late rank holds up the chunk; at nodes behind it, whose costs are the same, it comes when all have entered."""
    topology, late = faulty(32)[4]
    outlined = outline(name[0], topology, "64B", algorithm=name[1])
    assert outlined.chains is not None and outlined.chains.depth == 1
    want = exact_times(outlined.unroll(), topology, late=late).finish_ps.tolist()
    assert times(outlined, topology, late)[0] == want


@pytest.mark.parametrize("nodes", [64, 1024, 16384])
@pytest.mark.parametrize("name", NAMES[::3])
def test_merged_nodes_end_as_those_that_are_evaluated(nodes: int, name: tuple[str, str]) -> None:
    for topology, late in faulty(nodes)[: 3 if nodes > 1024 else 5]:
        outlined = outline(name[0], topology, "64MiB", algorithm=name[1], root=5, channels=8 if nodes < 16384 else 2)
        assert outlined.chains is not None
        if nodes == 16384:
            outlined = thinned(outlined)
        found, how = times(outlined, topology, late)
        whole, plainly = times(outlined, topology, late, merge=False)
        # Chunks of different lengths meet in another order at every node.
        assert found == whole and (how["orders"] < 40 or len(set(outlined.chains.weight.tolist())) > 1)
        assert plainly["evaluated"] == plainly["orders"] == plainly["units"] in (nodes, nodes + 1)


def thinned(outlined: Outline) -> Outline:
    """With 4 chunks a chain: what finds the order of every node anew takes its time."""
    chains = outlined.chains
    assert chains is not None
    return dataclasses.replace(outlined, chains=dataclasses.replace(chains, depth=4, parts=chains.parts // chains.depth * 4))


def test_131072_ranks_with_rates_of_their_own() -> None:
    """Nothing is alike but the order of service, which no rate changes."""
    rng = np.random.default_rng(1)
    whole = Topology.preset("h100", 16384)
    topology = whole.replace(
        nic_bytes_per_s=rng.integers(10**9, 10**11, 8 * 16384), nic_latency_ps=rng.integers(0, 9 * 10**6, 8 * 16384),
        fabric_bytes_per_s=rng.integers(10**10, 10**12, 131072))  # fmt: skip
    found, how = times(outline("broadcast", topology, "64GiB", algorithm="pipelined_ring", channels=8), topology)
    assert how["evaluated"] == how["units"] == 16385 and how["orders"] < 10
    slower, _ = times(outline("broadcast", topology, "64GiB", algorithm="pipelined_ring", channels=8), topology.slow(2, nic=(77, 3)))
    assert all(a <= b for a, b in zip(found, slower, strict=True)) and slower != found


def test_chains_that_come_to_nodes_in_different_orders_are_refused() -> None:
    topology = Topology.preset("h100", 4)
    orders = np.stack([np.arange(32), np.r_[0:8, 16:24, 8:16, 24:32]])
    chains = Chains(orders, np.arange(2), np.ones(2, np.int64), 8, 4, adds=False)
    with pytest.raises(Inapplicable, match="one order"):
        chain_finish(chains, topology, 1000, 4, np.zeros(32, np.int64), 0)
