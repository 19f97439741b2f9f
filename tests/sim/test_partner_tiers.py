"""Pairwise exchanges where switches between nodes add latencies: as the unrolled schedule and the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ccl_lab import _core
from ccl_lab.planner import outline
from ccl_lab.simulator import exact_times, finish_times
from ccl_lab.simulator.paired import paired_finish
from ccl_lab.simulator.partners import partners_finish
from ccl_lab.topo import Level, Topology

from ..shares import expected, first_of
from .cases import with_own_rates
from .draws import Drawn, drawn, equal_to_the_oracle, found, some_bytes, with_tiers
from .test_paired import NAME, powers
from .test_partners import as_their_ops, both_ways, several_channels, topologies


def draw(seed: int, most: int = 48) -> Drawn | None:
    """Ranks that are in step, and such as are not."""
    rng = np.random.default_rng([seed, 71])
    topology = powers(rng, most.bit_length()) if rng.random() < 0.4 else topologies(rng, most)
    if topology.n_nodes == 1:
        return None
    return drawn(rng, NAME, with_tiers(rng, topology), some_bytes(rng), (0.4, 0.2), lambda outlined: outlined.paired is not None)


def test_exchanges_pass_tiers_as_in_the_table_of_ops() -> None:
    """Any rates, late ranks, NICs lost and shared, several channels, rates that change, in place and not."""
    compared = in_step = several = changed = in_place = 0
    for case, how, changes in as_their_ops(draw, first_of(range(500))):
        compared, in_step, changed = compared + 1, in_step + ("turns" not in how), changed + changes
        several, in_place = several + several_channels(case), in_place + case.outlined.in_place
    assert compared >= expected(300) and in_step >= expected(80) and changed >= expected(60)
    assert several >= expected(50) and in_place >= expected(60)


def test_exchanges_pass_tiers_as_by_the_oracle() -> None:
    cases = (draw(1000 + seed, 16) for seed in first_of(range(80)))
    assert equal_to_the_oracle(cases, paired_finish, "paired", may_refuse=True) >= expected(30)


THROUGH: dict[str, Any] = {"salt": 72, "through": with_tiers}


def test_several_ranks_at_a_time_pass_tiers_as_put_by_put() -> None:
    """Powers of two of ranks, NICs lost, slower, of rates of their own; other numbers, no NIC lost."""
    known = [each[0] for seed in first_of(range(600)) if (each := both_ways(seed, 256 if seed % 8 else 1024, **THROUGH)) is not None]
    assert sum(each.n_ranks & (each.n_ranks - 1) > 0 for each in known) >= expected(150)
    assert sum(each.n_ranks & (each.n_ranks - 1) == 0 for each in known) >= expected(150)


@pytest.mark.parametrize("target", _core.vector_targets())
def test_several_ranks_at_a_time_pass_tiers_on_every_kind_of_vectors(target: int) -> None:
    assert sum(both_ways(5000 + seed, 512, target, **THROUGH) is not None for seed in first_of(range(40))) >= expected(25)


LEVELS = {
    "lone": (Level("top", latency="2us"),),
    "even": (Level("leaf", nodes=16, latency="300ns"), Level("top", latency="30us")),
    "uneven": (Level("leaf", nodes=3, latency="300ns"), Level("pod", nodes=27, latency="2us"), Level("top", latency="30us")),
    "rails": (Level("leaf", nodes=32, latency="1us", per_rail=True), Level("top", latency="50us")),
}


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("in_place", [False, True])
def test_tiles_of_ranks_pass_tiers(levels: str, channels: int, in_place: bool) -> None:
    """512 ranks are four tiles, which meet each other: all alike, and all different, some late; on every kind of vectors."""
    rng = np.random.default_rng(5)
    alike = Topology.cluster(nodes=64, gpus_per_node=8, nics_per_node=8 * channels)
    late = {int(r): "3ms" for r in rng.integers(0, 512, 9)}
    for topology, who in ((alike, None), (with_own_rates(rng, alike), late)):
        through = topology.with_network(*LEVELS[levels])
        outlined = outline(NAME[0], through, "15MB", algorithm=NAME[1], in_place=in_place, channels=channels)
        want = exact_times(outlined.unroll(), through, late=who).finish_ps.tolist()
        for target in _core.vector_targets():
            times, how = found(paired_finish, outlined.paired, outlined, through, who, target=target)
            assert times == want and "turns" not in how
        assert found(paired_finish, outlined.paired, outlined, through, who, merge=False)[0] == want


@pytest.mark.parametrize(("nodes", "lost"), [(512, False), (512, True), (771, False)])
def test_thousands_of_ranks_on_the_network_of_ncclx_end_as_put_by_put(nodes: int, lost: bool) -> None:
    """Across racks and zones of 384 nodes: in step, around a lost NIC, no power of two."""
    topology = Topology.preset("ncclx_100k", nodes)
    topology = topology.without((7, 2)) if lost else topology
    outlined = outline(NAME[0], topology, "1GiB", algorithm=NAME[1])
    late = {77: "5ms"}
    want, _ = found(partners_finish, outlined.paired, outlined, topology, late, side_by_side=False)
    assert found(paired_finish, outlined.paired, outlined, topology, late)[0] == want
    assert max(want) > max(found(paired_finish, outlined.paired, outlined, topology.replace(network=None), late)[0])


def test_131072_ranks_below_switches_of_powers_of_two() -> None:
    leaf = Level("leaf", nodes=32, latency="1us", per_rail=True)
    topology = Topology.preset("h100", 16384).with_network(leaf, Level("top", latency="20us"))
    times, how = finish_times(outline(NAME[0], topology, "1GiB", algorithm=NAME[1]), topology)
    assert how == {"as": "exchanges", "puts": 131071} and len(np.unique(times)) == 1
