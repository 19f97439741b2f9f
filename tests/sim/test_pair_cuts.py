"""`balance` all_to_all around lost and slower NICs, timed node by node: as the unrolled schedule and the oracle, up to 131,072 ranks."""

from __future__ import annotations

import numpy as np
import pytest

from ccl_lab import _core
from ccl_lab.errors import Inapplicable
from ccl_lab.planner import balance, outline, plan
from ccl_lab.simulation import simulate
from ccl_lab.simulator import exact_times, finish_times, summarize
from ccl_lab.simulator.pairs import pair_finish
from ccl_lab.topo import Topology

from ..shares import expected, first_of
from .draws import Drawn, drawn, equal_to_the_oracle, some_bytes
from .test_pair_turns import with_lost_nics
from .test_pairs import times

NAME = ("all_to_all", "balance")


def in_some_ways(rng: np.random.Generator, most_nodes: int) -> Topology:
    """Nodes that are alike but for some that lost NICs or have slower ones, so that ranks cut what they put, and who cuts it differs."""
    nodes, group = int(rng.integers(2, most_nodes + 1)), int(rng.integers(1, 5))
    nics = group * int(rng.integers(1, 4)) if rng.random() < 0.7 else int(rng.integers(2, 9))
    topology = Topology.cluster(nodes=nodes, gpus_per_node=group, nics_per_node=nics, nic_gbits_per_s=100)
    for _ in range(int(rng.integers(1, 5))):
        nic = int(rng.integers(nodes)), int(rng.integers(nics))
        left = topology.nic_bytes_per_s.reshape(nodes, nics)[nic[0]]
        if rng.random() < 0.6 and np.count_nonzero(left) - (left[nic[1]] > 0) > 0:
            topology = topology.without(nic)
        elif left[nic[1]] > 0:
            topology = topology.slow(float(rng.choice([1.01, 1.5, 2, 5, 1000])), nic=nic)
    return topology


def draw(seed: int, most_nodes: int = 90) -> Drawn | None:
    rng = np.random.default_rng([seed, 57])
    make = in_some_ways if rng.random() < 0.7 else with_lost_nics
    topology = make(rng, most_nodes if rng.random() < 0.5 else min(most_nodes, 8))
    return drawn(rng, NAME, topology, some_bytes(rng), (0.3, 0.1), lambda outlined: outlined.pairs is not None, most_ops=150_000)


def test_pieces_are_timed_as_in_the_table_of_ops() -> None:
    """Any rates and latencies, late ranks, rates that change, nodes that lost different amounts; 64 nodes or more, most of them alike."""
    compared = many = pieces = 0
    for seed in first_of(range(160)):
        case = draw(seed)
        if case is None or case.outlined.pairs is None or case.outlined.pairs.cuts is None:
            continue
        want, changes = case.wanted(change=True)
        try:
            ends, how = case.found(pair_finish, case.outlined.pairs, changes)
        except Inapplicable as why:
            assert "ways, and at most 64 are told apart" in str(why), seed
            continue
        assert ends == want, seed
        cuts = case.outlined.pairs.cuts
        compared, many, pieces = compared + 1, many + (how["units"] >= 64), pieces + bool(((cuts.table > 0).sum(axis=2) > 1).any())
    assert compared >= expected(60) and many >= expected(8) and pieces >= expected(25), (compared, many, pieces)


def test_pieces_are_timed_as_by_the_oracle() -> None:
    cases = (draw(1000 + seed, most_nodes=5) for seed in first_of(range(80)))
    assert equal_to_the_oracle(cases, pair_finish, "pairs", 3_000, may_refuse=True) >= expected(15)


@pytest.mark.parametrize("target", _core.vector_targets())
def test_pieces_on_every_kind_of_vectors(target: int) -> None:
    """Most nodes alike, or late and slower in their own ways: those that lost NICs are in one strip with others."""
    rng = np.random.default_rng(6)
    alike = Topology.cluster(nodes=150, gpus_per_node=2, nics_per_node=4)
    for topology in (alike.without((7, 1), (100, 0), (101, 2)), alike.without((149, 3)).slow(1.5, nic=(0, 1))):
        for late in (None, {rank: f"{int(rng.integers(1, 10**6))}ns" for rank in range(0, 300, 3)}):
            outlined = outline("all_to_all", topology, "64MiB", algorithm="balance")
            found, _ = times(outlined, topology, late, target=target)
            assert found == exact_times(outlined.unroll(), topology, late=late).finish_ps.tolist()


def test_who_lost_more_says_how_blocks_are_cut() -> None:
    """Three nodes that lost different amounts, two of them next to each other, and two that lost as much: then the sender says."""
    whole = Topology.cluster(nodes=6, gpus_per_node=4, nics_per_node=4)
    for topology in (whole.without((1, 0), (2, 1), (2, 2), (4, 3)), whole.without((0, 0), (5, 1)).slow(2, nic=(3, 3))):
        outlined = outline("all_to_all", topology, 1_000_003 * 4, algorithm="balance")
        assert times(outlined, topology)[0] == exact_times(outlined.unroll(), topology).finish_ps.tolist()


def test_512_ranks_with_paths_that_carry_little() -> None:
    whole = Topology.preset("h100", 64)
    for gone in (whole.without((7, 2)), whole.without((7, 2), (7, 3), (40, 0)).slow(2, nic=(9, 1))):
        outlined = outline("all_to_all", gone, "64MiB", algorithm="balance")
        found, how = finish_times(outlined, gone, late={3: "20us"})
        assert how["as"] == "pairs" and found.tolist() == exact_times(outlined.unroll(), gone, late={3: "20us"}).finish_ps.tolist()


def test_rounds_are_a_timetable_and_in_place_they_are_none() -> None:
    """Ahead of others by the turns that a lost NIC leaves free, puts would wait for each other: a quarter longer."""
    topology = Topology.cluster(nodes=16, gpus_per_node=8, nics_per_node=8).without((1, 2))
    schedule = plan("all_to_all", topology, "64MiB", algorithm="balance")
    assert schedule.timetable and not plan("all_to_all", topology, "64MiB", algorithm="balance", in_place=True).timetable
    whole = simulate("all_to_all", Topology.cluster(nodes=16, gpus_per_node=8, nics_per_node=8), "64MiB", algorithm="balance")
    assert 1.45 < simulate(schedule, topology).time_us / whole.time_us < 1.47


def test_131072_ranks_around_a_lost_nic() -> None:
    """One that lost NICs takes longer by what the others of its node carry for it; nobody ends earlier than if all were whole."""
    whole = Topology.cluster(nodes=16384, gpus_per_node=8, nics_per_node=8)
    before, after = (simulate("all_to_all", each, "1GiB", algorithm="balance") for each in (whole, whole.without((7, 2))))
    assert after.meta["evaluated"] == {"as": "pairs", "units": 16384, "kinds": 2}
    assert (after.finish_ps >= before.finish_ps).all() and 1.45 < after.time_ps / before.time_ps < 1.47


def test_nodes_of_one_kind_have_the_same_shares() -> None:
    whole = Topology.cluster(nodes=8, gpus_per_node=4, nics_per_node=4)
    found = balance.shares(whole.without((1, 2), (5, 2), (6, 0)))
    assert found.which.tolist() == [-1, 1, -1, -1, -1, 1, 0, -1]
    shares, kind = found.kinds(whole, np.arange(32))
    assert shares[kind].sum(axis=1).tolist() == [found.units] * 32


def test_131072_ranks_of_nodes_that_repeat() -> None:
    """A slower NIC in every node, or one lost in every eighth."""
    whole = Topology.cluster(nodes=16384, gpus_per_node=8, nics_per_node=8)
    rates = np.array(whole.nic_bytes_per_s).reshape(16384, 8)
    rates[:, 2] //= 2
    slower, lost = whole.replace(nic_bytes_per_s=rates.ravel()), whole.without(*((node, 2) for node in range(0, 16384, 8)))
    for topology, units in ((slower, 1), (lost, 8)):
        found, how = times(outline("all_to_all", topology, "1GiB", algorithm="balance"), topology)
        assert how["units"] == units and len(np.unique(np.reshape(found, (-1, 8 * units)), axis=0)) == 1


def test_nodes_that_repeat_are_timed_as_their_ops() -> None:
    for nodes, every in ((6, 1), (6, 2), (80, 2)):
        topology = Topology.cluster(nodes=nodes, gpus_per_node=2, nics_per_node=2).without(*((node, 1) for node in range(0, nodes, every)))
        outlined = outline("all_to_all", topology, "64MiB", algorithm="balance")
        found, how = times(outlined, topology)
        assert how["units"] == every and found == exact_times(outlined.unroll(), topology).finish_ps.tolist()


def test_what_pieces_cannot_say_is_refused() -> None:
    whole = Topology.cluster(nodes=16384, gpus_per_node=8, nics_per_node=8)
    many = whole.without(*((int(node), 2) for node in np.random.default_rng(0).choice(16384, 2048, replace=False)))
    with pytest.raises(Inapplicable, match="puts of 2,048 nodes that lost NICs, one by one,"):
        summarize(outline("all_to_all", many, "1GiB", algorithm="balance"), many)
