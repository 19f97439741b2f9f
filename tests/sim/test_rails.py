"""Hierarchical all_to_all, timed node by node: as the unrolled schedule and the oracle, merged or not, up to 131,072 ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ccl_lab import _core
from ccl_lab.errors import Inapplicable, UsageError
from ccl_lab.planner import outline
from ccl_lab.simulation import simulate
from ccl_lab.simulator import exact_times, finish_times
from ccl_lab.simulator.rails import rail_finish
from ccl_lab.topo import Topology

from ..shares import expected, first_of
from .cases import with_own_rates
from .draws import Drawn, alike_by_twos, drawn, equal_to_the_oracle, found, some_bytes
from .test_scale import even_topology

NAME = ("all_to_all", "hierarchical")


def many_nodes(rng: np.random.Generator) -> Topology:
    """Many nodes that are alike, but for a few: slower NICs or fabrics, lost ones, other latencies."""
    nodes, group = int(rng.integers(64, 110)), int(rng.integers(2, 4))
    topology = Topology.cluster(nodes=nodes, gpus_per_node=group, nics_per_node=int(rng.choice([group, group, 2])), nic_gbits_per_s=100,
                                fabric_gbytes_per_s=int(rng.integers(1, 500)))  # fmt: skip
    for _ in range(int(rng.integers(0, 3))):
        topology = topology.slow(float(rng.uniform(1, 3)), nic=(int(rng.integers(nodes)), int(rng.integers(2))))
    if rng.random() < 0.3:
        topology = topology.slow(float(rng.uniform(1, 9)), rank=int(rng.integers(nodes * group)))
    for _ in range(int(rng.integers(0, 3))):
        topology = topology.without((int(rng.integers(nodes)), int(rng.integers(2))))
    if rng.random() < 0.3:
        latency = np.array(topology.nic_latency_ps)
        latency[int(rng.integers(len(latency)))] += int(rng.integers(-900_000, 10**6))
        topology = topology.replace(nic_latency_ps=latency)
    return topology


def draw(seed: int, most_nodes: int = 12) -> Drawn | None:
    rng = np.random.default_rng([seed, 11])
    try:
        topology = many_nodes(rng) if rng.random() < 0.3 and most_nodes > 6 else even_topology(rng, most_nodes)
    except UsageError:
        return None
    late = (0.4, 0.01 if topology.n_nodes >= 64 else 0.3)
    return drawn(rng, NAME, topology, some_bytes(rng), late, lambda outlined: outlined.rails is not None, channels=rng.random() < 0.2)


def test_rails_are_timed_as_their_ops() -> None:
    """Any rates and latencies, late ranks, NICs that ranks share, lost ones, in place, rates that change in the middle."""
    compared = merged = many = lost = in_place = 0
    for seed in first_of(range(300)):
        case = draw(seed)
        if case is None:
            continue
        want, changes = case.wanted(change=True)
        for merge in (True, False):
            try:
                times, how = case.found(rail_finish, case.outlined.rails, changes, merge=merge)
            except Inapplicable:
                continue
            assert times == want, (seed, merge)
            compared, merged, many = compared + 1, merged + (how["units"] < case.topology.n_nodes), many + (how["units"] >= 64)
            lost, in_place = lost + (not case.topology.nic_bytes_per_s.all()), in_place + case.outlined.in_place
    assert compared >= expected(250) and merged >= expected(10) and all(seen >= expected(60) for seen in (many, lost, in_place))


def test_rails_are_timed_as_by_the_oracle() -> None:
    cases = (draw(1000 + seed, most_nodes=4) for seed in first_of(range(60)))
    assert equal_to_the_oracle(cases, rail_finish, "rails", 5_000, may_refuse=True) >= expected(15)


def with_many_nics(rng: np.random.Generator) -> Topology:
    """Every rank has several NICs, or they share some; some have rates of their own, or are lost."""
    nodes, group = int(rng.integers(2, 10)), int(rng.integers(1, 5))
    nics = group * int(rng.integers(2, 5)) if rng.random() < 0.5 else int(rng.integers(1, 3 * group + 1))
    topology = Topology.cluster(
        nodes=nodes, gpus_per_node=group, nics_per_node=nics, nic_gbits_per_s=float(rng.integers(1, 400)),
        fabric_gbytes_per_s=int(rng.integers(1, 300)), local_gbytes_per_s=int(rng.integers(1, 1000)))  # fmt: skip
    if rng.random() < 0.5:
        topology = with_own_rates(rng, topology)
    return topology.without((int(rng.integers(nodes)), int(rng.integers(nics)))) if rng.random() < 0.5 and nics > 1 else topology


def test_rails_on_several_channels_are_timed_as_their_ops() -> None:
    """Each with NICs of its own, or shared ones, slower, late, or changing in the middle, some lost."""
    compared = refused = in_place = lost = 0
    for seed in first_of(range(400)):
        rng = np.random.default_rng([seed, 99])
        case = drawn(rng, NAME, with_many_nics(rng), some_bytes(rng), (0.4, 0.3),
                     lambda outlined: outlined.rails is not None and outlined.rails.channels > 1)  # fmt: skip
        if case is None:
            continue
        want, changes = case.wanted(change=True)
        try:
            times, _ = case.found(rail_finish, case.outlined.rails, changes)
        except Inapplicable:  # in place, some channels a few batches behind the others of their rank
            refused += 1
            continue
        assert times == want, seed
        compared, in_place, lost = compared + 1, in_place + case.outlined.in_place, lost + (not case.topology.nic_bytes_per_s.all())
    assert compared >= expected(120) and in_place >= expected(30) and lost >= expected(40), (compared, in_place, lost)
    assert refused <= 4


def test_rails_on_several_channels_are_timed_as_by_the_oracle() -> None:
    def case(seed: int) -> Drawn | None:
        rng = np.random.default_rng([seed, 98])
        return drawn(rng, NAME, with_many_nics(rng), some_bytes(rng), (0.4, 0.3),
                     lambda outlined: outlined.rails is not None and outlined.rails.channels > 1)  # fmt: skip

    assert equal_to_the_oracle((case(seed) for seed in first_of(range(120))), rail_finish, "rails", 4_000, may_refuse=True) >= expected(15)


@pytest.mark.parametrize("target", _core.vector_targets())
def test_rails_on_every_kind_of_vectors(target: int) -> None:
    """Code for older processors than this one: nodes that are alike but for a few, and nodes that are all different."""
    for seed in range(2000, 2025):
        case = draw(seed)
        if case is not None and case.topology.n_nodes >= 64:
            assert case.found(rail_finish, case.outlined.rails, target=target)[0] == case.wanted(change=False)[0], seed
    rng = np.random.default_rng(3)
    topology = Topology.cluster(nodes=90, gpus_per_node=2, nics_per_node=2).replace(nic_bytes_per_s=rng.integers(10**8, 10**10, 180))
    outlined = outline(*NAME[:1], topology, "16MiB", algorithm=NAME[1])
    want = exact_times(outlined.unroll(), topology).finish_ps.tolist()
    assert found(rail_finish, outlined.rails, outlined, topology, target=target)[0] == want


def test_512_ranks_as_their_ops() -> None:
    whole = Topology.preset("h100", 64)
    cases: list[tuple[Topology, Any]] = [
        (whole, None), (whole.slow(3, nic=(7, 2)), None), (whole.slow(1.5, rank=100), {3: "20us", 77: "1us"}),
        (whole.without((7, 2)), None), (whole.without((7, 2), (7, 3), (20, 2)), {8: "1ms"})]  # fmt: skip
    for topology, late in cases:
        outlined = outline(NAME[0], topology, "64MiB", algorithm=NAME[1])
        times, how = finish_times(outlined, topology, late=late)
        assert how["as"] == "rails" and times.tolist() == exact_times(outlined.unroll(), topology, late=late).finish_ps.tolist()


@pytest.mark.parametrize("nodes", [64, 1024])
def test_merged_nodes_end_as_those_that_are_evaluated(nodes: int) -> None:
    """All alike; every other one with slower NICs, latencies of its own, and a late rank."""
    for topology, late, units in alike_by_twos(nodes):
        outlined = outline(NAME[0], topology, "1GB", algorithm=NAME[1])
        times, how = found(rail_finish, outlined.rails, outlined, topology, late)
        assert how["units"] == units and times == found(rail_finish, outlined.rails, outlined, topology, late, merge=False)[0]


def test_131072_ranks() -> None:
    """All alike; around a lost NIC two ranks share one, and nothing ends earlier."""
    whole = Topology.preset("h100", 16384)
    gone = whole.without((7, 2))
    (before, how), (after, found_gone) = (finish_times(outline(NAME[0], each, "1GiB", algorithm=NAME[1]), each) for each in (whole, gone))
    assert how["units"] == 1 and found_gone["units"] == 16384 and (after >= before).all() and 1.9 < after.max() / before.max() < 2.1


def test_131072_ranks_on_two_channels() -> None:
    """Sixteen NICs a node: each channel of a rank has one, or, where one is lost, shares another one, and nothing ends earlier."""
    whole = Topology.cluster(nodes=16384, gpus_per_node=8, nics_per_node=16, nic_gbits_per_s=400, fabric_gbytes_per_s=2000)
    outlined = outline(NAME[0], whole, "64GiB", algorithm=NAME[1])
    times, how = finish_times(outlined, whole)
    assert outlined.rails is not None and outlined.rails.channels == 2 and how["as"] == "rails" and len(np.unique(times)) == 1
    gone = whole.without((7, 2))
    after, how = finish_times(outline(NAME[0], gone, "64GiB", algorithm=NAME[1]), gone)
    assert how["as"] == "rails" and (after >= times).all() and 1.9 < after.max() / times.max() < 2.1


@pytest.mark.parametrize(("collective", "whole", "gone"), [
    ("all_to_all", "direct", "direct"), ("all_gather", "recursive_doubling", "recursive_doubling"),
    ("reduce_scatter", "recursive_halving", "recursive_halving")])  # fmt: skip
def test_auto_takes_what_is_timed_among_131072_ranks(collective: str, whole: str, gone: str) -> None:
    """Every rank to every other one, around lost NICs by a timetable; what many blocks cross with is told once."""
    for faults, algorithm in (([], whole), (["nic:node=7,nic=2"], gone)):
        found = simulate(collective, "h100:nodes=16384", "1GiB", faults=faults)
        assert found.meta["algorithm"] == algorithm and found.meta["reasons"][0].endswith("chosen")
