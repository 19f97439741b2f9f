"""Pairwise exchanges of ranks that are not in step, put by put: as the unrolled schedule and the oracle."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest

from ccl_lab import _core
from ccl_lab.errors import Inapplicable, UsageError
from ccl_lab.ir import Outline
from ccl_lab.planner import outline
from ccl_lab.simulator import finish_times
from ccl_lab.simulator.changes import NONE, Changes
from ccl_lab.simulator.paired import paired_finish
from ccl_lab.simulator.partners import partners_finish
from ccl_lab.topo import Topology

from ..shares import expected, first_of
from .cases import links_of, random_changes, with_own_rates
from .draws import Drawn, drawn, equal_to_the_oracle, found, some_bytes
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
    return with_faults(rng, topology, int(rng.choice([0, 1, 1, 1, 2, 5])))


def with_faults(rng: np.random.Generator, topology: Topology, faults: int) -> Topology:
    """So many NICs at most are lost, or slower."""
    nodes, nics = topology.n_nodes, topology.nics_per_node
    for _ in range(faults):
        where = (int(rng.integers(nodes)), int(rng.integers(nics)))
        up = topology.nic_bytes_per_s.reshape(nodes, nics)[where[0]] > 0
        if up[where[1]]:
            lost = up.sum() > 1 and rng.random() < 0.8
            topology = topology.without(where) if lost else topology.slow(float(rng.choice([1.001, 3, 50, 1e5])), nic=where)
    return topology


def draw(seed: int, most: int) -> Drawn | None:
    rng = np.random.default_rng([seed, 29])
    return drawn(rng, NAME, topologies(rng, most), some_bytes(rng), (0.4, 0.2), lambda outlined: outlined.paired is not None)


def as_their_ops(draw: Callable[[int, int], Drawn | None], seeds: Iterable[int]) -> Iterator[tuple[Drawn, dict[str, int], bool]]:
    """Cases, timed as their ops, how that was found, and whether rates changed; one in ten is large. Refused ones are left out."""
    for seed in seeds:
        case = draw(seed, 200 if seed % 10 == 0 else 48)
        if case is None:
            continue
        want, changes = case.wanted(change=True)
        try:
            times, how = case.found(paired_finish, case.outlined.paired, changes)
        except Inapplicable:  # in place on several channels, of no bytes, or one node that is no power of two
            continue
        assert times == want, seed
        yield case, how, bool(changes)


def several_channels(case: Drawn) -> bool:
    return case.outlined.paired is not None and case.outlined.paired.channels > 1


def test_exchanges_out_of_step_are_timed_as_their_ops() -> None:
    """Any rates, late ranks, in place, rates that change in the middle; several channels, NICs shared or lost, any number of ranks."""
    compared = changed = in_place = several = turns = 0
    for case, how, changes in as_their_ops(draw, first_of(range(600))):
        compared, changed, in_place = compared + 1, changed + changes, in_place + case.outlined.in_place
        several += several_channels(case)
        turns += how.get("turns", 0) > 0
    assert compared >= expected(350) and changed >= expected(80) and in_place >= expected(80)
    assert several >= expected(70) and turns >= expected(300)


def side_by_side(rng: np.random.Generator, most: int) -> Topology:
    """Ranks that are evaluated several at a time: a power of two, NICs lost or slower; or any number, NICs slower."""
    ranks, power = int(rng.choice([2, 4, 8, 8, 8, 16])), rng.random() < 0.6
    nodes = max(2, 2 ** int(rng.integers(7, most.bit_length())) // ranks)
    if not power:
        ranks = int(rng.choice([1, 2, 3, 5, 7, 8, 8, 12]))
        nodes = int(rng.integers(2, most // ranks))
    topology = Topology.cluster(nodes=nodes, gpus_per_node=ranks, nics_per_node=ranks, nic_gbits_per_s=float(rng.integers(1, 400)),
                                fabric_gbytes_per_s=int(rng.integers(1, 300)), local_gbytes_per_s=int(rng.integers(1, 1000)))
    if rng.random() < 0.3:
        topology = with_own_rates(rng, topology)
    if not power:
        return topology.slow(float(rng.choice([1.001, 3, 1e5])), nic=(nodes // 2, 0)) if rng.random() < 0.5 else topology
    return with_faults(rng, topology, int(rng.choice([0, 1, 1, 1, 2, 5, 12])))


def both_ways(seed: int, most: int, target: int = 0, salt: int = 41,
              through: Callable[[np.random.Generator, Topology], Topology] = lambda _, topology: topology) -> tuple[Topology, bool] | None:
    """Where exchanges ended the same several ranks at a time and put by put, with as many turns; whether rates changed; None: refused.

    through: adds a network to the topology that was drawn."""
    rng = np.random.default_rng([seed, salt])
    topology = through(rng, side_by_side(rng, most))
    outlined, changes = outline(NAME[0], topology, max(topology.n_ranks * 4, some_bytes(rng)), algorithm=NAME[1], channels=1), NONE
    late = {r: f"{int(rng.integers(1, 10**8))}ps" for r in range(topology.n_ranks) if rng.random() < rng.choice([0, 0.01, 0.3])}
    alpha = float(rng.choice([0, 0, 3e-6]))

    def times(outlined: Outline, **options: int) -> tuple[list[int], dict[str, int]]:
        return found(partners_finish, outlined.paired, outlined, topology, late, alpha, changes, **options)

    try:
        want = times(outlined, side_by_side=False)
        if rng.random() < 0.3:
            changes = Changes.of(links_of(topology, random_changes(rng, topology, max(want[0]))))
            want = times(outlined, side_by_side=False)
        ends = times(outlined, target=target)
    except (Inapplicable, UsageError):
        return None
    assert ends == want, seed
    return topology, bool(changes)


def test_exchanges_of_several_ranks_at_a_time_end_as_put_by_put() -> None:
    """Powers of two of ranks: NICs lost, slower, of rates of their own, and such as change; late ranks. Other numbers: no NIC lost."""
    known = [each for seed in first_of(range(1200)) if (each := both_ways(seed, 256 if seed % 8 else 1024)) is not None]
    assert sum(topology.n_ranks & (topology.n_ranks - 1) > 0 for topology, _ in known) >= expected(300)
    assert sum(topology.n_ranks & (topology.n_ranks - 1) == 0 for topology, _ in known) >= expected(300)
    assert sum(changed for _, changed in known) >= expected(200)


@pytest.mark.parametrize("target", _core.vector_targets())
def test_exchanges_of_several_ranks_at_a_time_on_every_kind_of_vectors(target: int) -> None:
    assert sum(both_ways(5000 + seed, 512, target) is not None for seed in first_of(range(40))) >= expected(30)


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
