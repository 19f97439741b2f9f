"""Double binary trees timed node by node: as the unrolled schedule and the oracle, merged or not, up to 131,072 ranks."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from ccl_lab.errors import Inapplicable, UsageError
from ccl_lab.ir import Outline
from ccl_lab.planner import outline
from ccl_lab.simulator import exact_times, finish_times
from ccl_lab.simulator.changes import Changes
from ccl_lab.simulator.trees import tree_finish
from ccl_lab.topo import Topology

from ..shares import expected, first_of
from .cases import links_of, random_network, random_topology
from .draws import Drawn, drawn, equal_to_the_oracle, found, some_bytes
from .test_scale import MOST_OPS, even_topology

NAME = ("all_reduce", "double_binary_tree")


def times(outlined: Outline, topology: Topology, late: Any = None, **options: Any) -> tuple[list[int], dict[str, Any]]:
    return found(tree_finish, outlined.trees, outlined, topology, late, **options)


def alike(rng: np.random.Generator) -> Topology:
    """Nodes that are alike, but for one or two NICs that are slower or lost."""
    nodes, nics = int(rng.integers(8, 48)), int(rng.integers(1, 5))
    group, gbits = int(rng.integers(1, 5)), int(rng.integers(10, 400))
    topology = Topology.cluster(nodes=nodes, gpus_per_node=group, nics_per_node=nics, nic_gbits_per_s=gbits)
    for _ in range(int(rng.integers(0, 3))):
        where = (int(rng.integers(nodes)), int(rng.integers(nics)))
        slower = rng.random() < 0.5 or nics == 1
        topology = topology.slow(float(rng.integers(11, 50)) / 10, nic=where) if slower else topology.without(where)
    return topology


def draw(seed: int, most: int = 40) -> Drawn | None:
    """Nodes of several ranks, alike or not, in any order, with fewer NICs than slices or more, some of them lost."""
    rng = np.random.default_rng([seed, 77])
    topology = [even_topology, alike, lambda rng: random_topology(rng, int(rng.integers(2, most)))][int(rng.integers(3))](rng)
    if topology.n_nodes > 1 and rng.random() < 0.2:
        topology = topology.replace(network=random_network(rng, topology.n_nodes))
    slices = None if rng.random() < 0.5 else int(rng.integers(1, 7))
    case = drawn(rng, NAME, topology, some_bytes(rng), (0.3, 0.2), fits=lambda outlined: outlined.trees is not None, channels=False)
    if case is None or slices is None:
        return case
    options: dict[str, Any] = {"algorithm": NAME[1], "in_place": case.outlined.in_place, "channels": 4 * slices}
    outlined = outline(NAME[0], topology, case.outlined.nbytes, **options)
    return None if outlined.ops_about > MOST_OPS else case._replace(outlined=outlined, schedule=outlined.unroll())


def test_trees_are_timed_as_their_ops() -> None:
    """Any rates, latencies, late ranks, lost NICs, sizes that do not divide, tiers of switches, rates that change."""
    compared = merged = 0
    for seed in first_of(range(120)):
        case = draw(seed)
        if case is None:
            continue
        want, changes = case.wanted(change=True)
        (ends, how), (plainly, every) = (case.found(tree_finish, case.outlined.trees, changes, merge=merge) for merge in (True, False))
        assert ends == want and plainly == want, seed
        compared, merged = compared + 1, merged + (how["evaluated"] < every["evaluated"])
    assert compared >= expected(80) and merged >= expected(20)


def test_trees_are_timed_as_by_the_oracle() -> None:
    assert equal_to_the_oracle((draw(1000 + seed, most=16) for seed in first_of(range(60))), tree_finish, "trees", 20_000) >= expected(20)


def faulty(nodes: int) -> list[tuple[Topology, Any]]:
    """Whole, with a slower NIC, with NICs gone, with late ranks, with nodes of their own rates."""
    whole, rng = Topology.preset("h100", nodes), np.random.default_rng(nodes)
    odd = np.array(whole.nic_bytes_per_s)
    odd[rng.integers(0, len(odd), nodes // 8)] //= 3
    return [(whole, None), (whole.slow(3, nic=(nodes // 3, 0)).slow(1.5, rank=nodes), None), (whole.without((1, 2), (nodes // 2, 5)), None),
            (whole, {3: "1ms", 5 * nodes: "7us"}), (whole.replace(nic_bytes_per_s=odd), None)]  # fmt: skip


@pytest.mark.parametrize("nbytes", ["8MiB", "3MB"])
def test_512_ranks_as_their_ops(nbytes: str) -> None:
    """Whether or not chunks are all as long; numbers of nodes that are even, odd, no power of two."""
    for nodes in (64, 51, 38):
        for topology, late in faulty(nodes):
            outlined = outline(NAME[0], topology, nbytes, algorithm=NAME[1])
            ends, how = finish_times(outlined, topology, late=late)
            assert how["as"] == "trees" and ends.tolist() == exact_times(outlined.unroll(), topology, late=late).finish_ps.tolist()


@pytest.mark.parametrize("nodes", [1024, 16384])
def test_merged_nodes_end_as_those_that_are_evaluated(nodes: int) -> None:
    """Also as they are told op by op, where that takes seconds."""
    for topology, late in faulty(nodes)[: 5 if nodes < 16384 else 3]:
        outlined = outline(NAME[0], topology, "64MiB", algorithm=NAME[1])
        ends, how = times(outlined, topology, late)
        plainly, every = times(outlined, topology, late, merge=False)
        assert ends == plainly and how["evaluated"] < every["evaluated"]
    outlined = outline(NAME[0], topology, "1MiB", algorithm=NAME[1], channels=4)
    if nodes == 1024:
        told, how = finish_times(dataclasses.replace(outlined, trees=None), topology, late=late)
        assert how["as"] == "steps" and told.tolist() == times(outlined, topology, late)[0]


def test_most_rounds_of_131072_ranks_are_taken_from_others() -> None:
    """Of 1.7 million rounds of nodes some ten thousands are evaluated; around a fault as long as it spreads."""
    for topology, most in ((faulty(16384)[0][0], 80_000), (Topology.preset("h100", 16384).without((7, 2)), 600_000)):
        outlined = outline(NAME[0], topology, "1GiB", algorithm=NAME[1])
        _, how = finish_times(outlined, topology)
        assert how["as"] == "trees" and how["evaluated"] < most


def test_a_rate_that_changes_inside_a_node_is_told() -> None:
    topology = Topology.preset("h100", 9)
    outlined = outline(NAME[0], topology, "8MiB", algorithm=NAME[1])
    changes = Changes.of({5: [(10**8, 10**9)]})
    with pytest.raises(Inapplicable, match="inside nodes change"):
        times(outlined, topology, changes=changes)
    ends, how = finish_times(outlined, topology, changes=changes)
    assert how["as"] == "steps" and ends.tolist() == exact_times(outlined.unroll(), topology, changes=changes).finish_ps.tolist()


def test_a_nic_that_is_lost_in_the_middle_for_good_is_as_told() -> None:
    """It never ends: both say so."""
    topology = Topology.preset("h100", 9)
    outlined = outline(NAME[0], topology, "8MiB", algorithm=NAME[1])
    changes = Changes.of(links_of(topology, {(3, 1): [(10**8, 0)]}))
    with pytest.raises(UsageError, match="13 days"):
        finish_times(outlined, topology, changes=changes)
