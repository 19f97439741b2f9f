"""Direct algorithms and hierarchical all_to_all where switches between nodes add latencies: as the unrolled schedule and the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from ccl_lab import _core
from ccl_lab.errors import Inapplicable
from ccl_lab.planner import outline
from ccl_lab.simulation import simulate
from ccl_lab.simulator import exact_times
from ccl_lab.simulator.pairs import pair_finish
from ccl_lab.simulator.rails import rail_finish
from ccl_lab.topo import Level, Topology

from ..shares import expected, first_of
from .draws import Drawn, drawn, equal_to_the_oracle, some_bytes, with_tiers
from .draws import found as found_by
from .test_pair_cuts import in_some_ways
from .test_pair_turns import with_lost_nics
from .test_pairs import NAMES, times, with_odd_nodes
from .test_rails import NAME as RAILS
from .test_rails import many_nodes, with_many_nics
from .test_scale import even_topology


def draw(seed: int, name: tuple[str, str], most_nodes: int = 90) -> Drawn | None:
    rng = np.random.default_rng([seed, 61, *name[0].encode(), *name[1].encode()])
    few = most_nodes if rng.random() < 0.3 else min(most_nodes, 12)
    made = int(rng.integers(4 if most_nodes > 64 else 3))
    topology = (even_topology, with_lost_nics, in_some_ways)[made](rng, few) if made < 3 else with_odd_nodes(rng)
    if topology.n_nodes == 1:
        return None
    return drawn(rng, name, with_tiers(rng, topology), some_bytes(rng), (0.3, 0.1), lambda found: found.pairs is not None, most_ops=40_000)


def equal_to_the_table(cases: Iterable[Drawn | None], finish: Callable[..., Any], part: str, refused: tuple[str, ...]) -> tuple[int, int]:
    """How many cases, and of more than 64 nodes, an evaluation of a part of an outline times as their ops; refused: why not others."""
    compared = many = 0
    for number, case in enumerate(cases):
        if case is None:
            continue
        want, changes = case.wanted(change=True)
        try:
            ends, how = case.found(finish, getattr(case.outlined, part), changes)
        except Inapplicable as why:
            assert any(each in str(why) for each in refused), (number, why)
            continue
        assert ends == want, number
        compared, many = compared + 1, many + (how["units"] > 64)
    return compared, many


@pytest.mark.parametrize("name", NAMES)
def test_tiers_are_passed_as_in_the_table_of_ops(name: tuple[str, str]) -> None:
    """Any rates, late ranks, lost NICs, several channels, rates that change, in place and not; nodes that are alike but for a few."""
    cases = (draw(seed, name) for seed in first_of(range(120), fewest=40))
    compared, many = equal_to_the_table(cases, pair_finish, "pairs", ("ways, whose puts", "rates inside nodes change", "their places"))
    assert compared >= expected(30) and (many >= expected(3) or name[0] == "all_reduce"), (compared, many)


def test_tiers_are_passed_as_by_the_oracle() -> None:
    cases = (draw(1000 + seed, NAMES[seed % 5], most_nodes=5) for seed in first_of(range(80)))
    assert equal_to_the_oracle(cases, pair_finish, "pairs", 3_000, may_refuse=True) >= expected(15)


def draw_rails(seed: int) -> Drawn | None:
    rng = np.random.default_rng([seed, 62])
    made = int(rng.integers(3))
    topology = even_topology(rng, 12) if made == 0 else many_nodes(rng) if made == 1 else with_many_nics(rng)
    if topology.n_nodes == 1:
        return None
    late = (0.4, 0.01 if topology.n_nodes >= 64 else 0.3)
    topology = with_tiers(rng, topology)
    return drawn(rng, RAILS, topology, some_bytes(rng), late, lambda found: found.rails is not None, channels=rng.random() < 0.2)


def test_rails_pass_tiers_as_in_the_table_of_ops() -> None:
    cases = (draw_rails(seed) for seed in first_of(range(150), fewest=60))
    compared, many = equal_to_the_table(cases, rail_finish, "rails", ("rates inside nodes change", "batches later"))
    assert compared >= expected(80) and many >= expected(20), (compared, many)


@pytest.mark.parametrize("target", _core.vector_targets())
def test_tiers_on_every_kind_of_vectors(target: int) -> None:
    """Nodes that are alike but for two, and nodes that are all different, in place too."""
    rng = np.random.default_rng(7)
    alike = Topology.cluster(nodes=90, gpus_per_node=2, nics_per_node=2, nic_gbits_per_s=100)
    different = alike.replace(nic_bytes_per_s=rng.integers(10**8, 10**10, 180))
    levels = Level("leaf", nodes=7, latency="300ns", per_rail=True), Level("pod", nodes=21, latency="2us"), Level("top", latency="30us")
    for topology in (each.with_network(*levels) for each in (alike, alike.slow(2, nic=(40, 1)), different)):
        for in_place in (False, True):
            outlined = outline("all_to_all", topology, "16MiB", algorithm="direct", in_place=in_place)
            want = exact_times(outlined.unroll(), topology).finish_ps.tolist()
            assert times(outlined, topology, target=target)[0] == want
        crossed = outline(*RAILS[:1], topology, "16MiB", algorithm=RAILS[1])
        found, _ = found_by(rail_finish, crossed.rails, crossed, topology, target=target)
        assert found == exact_times(crossed.unroll(), topology).finish_ps.tolist()


@pytest.mark.parametrize("algorithm", ["hierarchical", "direct"])
def test_116736_ranks_on_the_network_of_ncclx(algorithm: str) -> None:
    """Whole, and a NIC lost: later than without switches, by at most what the highest one adds."""
    network = Topology.preset("ncclx_100k")
    flat = Topology.preset("h100", network.n_nodes)
    assert network.network is not None
    highest = max(tier.latency_ps for tier in network.network.tiers)
    for faults in ([], ["nic:node=7,nic=2"]):
        nbytes = network.n_ranks * 16384
        through, without = (simulate("all_to_all", each, nbytes, algorithm=algorithm, faults=faults).finish_ps for each in (network, flat))
        later = np.asarray(through) - np.asarray(without)
        assert (later >= 0).all() and 0 < later.max() <= highest
