"""Pairwise exchanges of ranks that are not in step, put by put: as the unrolled schedule and the oracle."""

from __future__ import annotations

import dataclasses

import numpy as np

from ccl_lab.errors import Inapplicable
from ccl_lab.planner import outline
from ccl_lab.simulator import finish_times
from ccl_lab.simulator.paired import paired_finish
from ccl_lab.simulator.partners import partners_finish
from ccl_lab.topo import Topology

from ..shares import expected, first_of
from .cases import with_own_rates
from .draws import Drawn, drawn, equal_to_the_oracle, some_bytes
from .test_paired import draw as draw_in_step

NAME = ("all_to_all", "paired")


def topologies(rng: np.random.Generator, most: int) -> Topology:
    """Up to `most` ranks, any number of nodes of any size, with fewer NICs than ranks or more; some lost, some slower."""
    ranks = int(rng.choice([1, 2, 2, 3, 4, 4, 5, 8, 8]))
    nodes = int(rng.choice([2 ** int(rng.integers(1, 7)), int(rng.integers(2, 40))]))
    nodes = max(2, min(nodes, most // ranks))
    nics = int(rng.choice([ranks, ranks, max(1, ranks // 2), max(1, ranks - 1), 2 * ranks, 1]))
    topology = Topology.cluster(nodes=nodes, gpus_per_node=ranks, nics_per_node=nics, nic_gbits_per_s=float(rng.integers(1, 400)),
                                fabric_gbytes_per_s=int(rng.integers(1, 300)), local_gbytes_per_s=int(rng.integers(1, 1000)))
    if rng.random() < 0.3:
        topology = with_own_rates(rng, topology)
    for _ in range(int(rng.choice([0, 1, 1, 1, 2, 5]))):
        where = (int(rng.integers(nodes)), int(rng.integers(nics)))
        up = topology.nic_bytes_per_s.reshape(nodes, nics)[where[0]] > 0
        if up[where[1]]:
            lost = up.sum() > 1 and rng.random() < 0.8
            topology = topology.without(where) if lost else topology.slow(float(rng.choice([1.001, 3, 50, 1e5])), nic=where)
    return topology


def draw(seed: int, most: int) -> Drawn | None:
    rng = np.random.default_rng([seed, 29])
    return drawn(rng, NAME, topologies(rng, most), some_bytes(rng), (0.4, 0.2), lambda outlined: outlined.paired is not None)


def test_exchanges_out_of_step_are_timed_as_their_ops() -> None:
    """Any rates, late ranks, in place, rates that change in the middle; several channels, NICs shared or lost, any number of ranks."""
    compared = changed = in_place = several = turns = 0
    for seed in first_of(range(600)):
        case = draw(seed, 200 if seed % 10 == 0 else 48)
        if case is None:
            continue
        want, changes = case.wanted(change=True)
        try:
            times, how = case.found(paired_finish, case.outlined.paired, changes)
        except Inapplicable:  # in place on several channels, of no bytes, or one node that is no power of two
            continue
        assert times == want, seed
        compared, changed, in_place = compared + 1, changed + bool(changes), in_place + case.outlined.in_place
        several += case.outlined.paired is not None and case.outlined.paired.channels > 1
        turns += how.get("turns", 0) > 0
    assert compared >= expected(350) and changed >= expected(80) and in_place >= expected(80)
    assert several >= expected(70) and turns >= expected(300)


def test_exchanges_in_step_end_the_same_put_by_put() -> None:
    """Ranks that are in step, with the evaluation that is for others."""
    compared = 0
    for seed in first_of(range(60)):
        case = draw_in_step(seed, 8, channels=seed % 3 > 0)
        if case is None or case.topology.n_nodes == 1:
            continue
        try:
            want, _ = case.found(paired_finish, case.outlined.paired)
            times, how = case.found(partners_finish, case.outlined.paired)
        except Inapplicable:
            continue
        assert times == want and "turns" in how, seed
        compared += 1
    assert compared >= expected(30)


def test_1024_ranks_around_a_lost_nic_as_ops_that_are_told_one_by_one() -> None:
    topology = Topology.preset("h100", 128).without((7, 2))
    outlined = outline(NAME[0], topology, "256MiB", algorithm=NAME[1])
    times, how = finish_times(outlined, topology, late={77: "5ms"})
    told, flow = finish_times(dataclasses.replace(outlined, paired=None), topology, late={77: "5ms"})
    assert how["as"] == "exchanges" and how["turns"] > 0 and flow["as"] == "steps" and times.tolist() == told.tolist()


def test_exchanges_out_of_step_are_timed_as_by_the_oracle() -> None:
    cases = (draw(1000 + seed, 16) for seed in first_of(range(100)))
    assert equal_to_the_oracle(cases, paired_finish, "paired", may_refuse=True) >= expected(40)
