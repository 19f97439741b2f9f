"""Pairwise exchanges, timed step by step: as the unrolled schedule and the oracle, up to 131,072 ranks."""

from __future__ import annotations

import numpy as np
import pytest

from ccl_lab import _core
from ccl_lab.errors import Inapplicable, UsageError
from ccl_lab.planner import outline
from ccl_lab.simulator import exact_times, finish_times, summarize
from ccl_lab.simulator.changes import Changes
from ccl_lab.simulator.paired import paired_finish
from ccl_lab.topo import Topology

from ..shares import expected, first_of
from .cases import links_of, random_changes, with_own_rates
from .draws import Drawn, drawn, equal_to_the_oracle, found, some_bytes

NAME = ("all_to_all", "paired")


def powers(rng: np.random.Generator, most: int) -> Topology:
    """Up to 2^most ranks, each with a NIC of its own; some have rates and latencies of their own."""
    group = int(rng.integers(0, min(most, 4)))
    nodes, ranks = 2 ** int(rng.integers(group == 0, most - group + 1)), 2**group
    topology = Topology.cluster(nodes=nodes, gpus_per_node=ranks, nics_per_node=ranks * int(rng.choice([1, 1, 2])),
                                nic_gbits_per_s=float(rng.integers(1, 400)), fabric_gbytes_per_s=int(rng.integers(1, 300)),
                                local_gbytes_per_s=int(rng.integers(1, 1000)))  # fmt: skip
    if rng.random() < 0.4:
        topology = with_own_rates(rng, topology)
    elif rng.random() < 0.5:
        topology = topology.slow(float(rng.uniform(1, 5)), nic=(int(rng.integers(nodes)), int(rng.integers(ranks))))
    return topology


def draw(seed: int, most: int = 6, channels: bool = False) -> Drawn | None:
    rng = np.random.default_rng([seed, 13])
    topology = powers(rng, most)
    return drawn(rng, NAME, topology, some_bytes(rng), (0.4, 0.2), lambda outlined: outlined.paired is not None, channels=channels)


def test_exchanges_are_timed_as_their_ops() -> None:
    """Any rates and latencies, late ranks, in place, rates that change in the middle; several channels, on NICs of their own or not."""
    compared = changed = in_place = several = refused = 0
    for seed in first_of(range(300)):
        case = draw(seed, 8 if seed % 10 == 0 else 6, channels=seed % 3 > 0)
        if case is None:
            continue
        want, changes = case.wanted(change=case.topology.n_nodes > 1)
        for merge in (True, False):
            try:
                times, _ = case.found(paired_finish, case.outlined.paired, changes, merge=merge)
            except Inapplicable:  # in place, and some NICs have more channels than others
                refused += 1
                continue
            assert times == want, (seed, merge)
        compared, changed, in_place = compared + 1, changed + bool(changes), in_place + case.outlined.in_place
        several += case.outlined.paired is not None and case.outlined.paired.channels > 1
    assert compared >= expected(200) and changed >= expected(30) and in_place >= expected(50) and several >= expected(50) and refused <= 10


def test_exchanges_are_timed_as_by_the_oracle() -> None:
    cases = (draw(1000 + seed, 4, channels=seed % 2 > 0) for seed in first_of(range(60)))
    assert equal_to_the_oracle(cases, paired_finish, "paired", may_refuse=True) >= expected(40)


@pytest.mark.parametrize("target", _core.vector_targets())
@pytest.mark.parametrize("in_place", [False, True])
def test_tiles_of_ranks_on_every_kind_of_vectors(target: int, in_place: bool) -> None:
    """512 ranks are four tiles, which meet each other: all different, some late, some rates that change."""
    rng = np.random.default_rng(5)
    topology = Topology.cluster(nodes=64, gpus_per_node=8, nics_per_node=8).replace(
        nic_bytes_per_s=rng.integers(10**8, 10**10, 512), nic_latency_ps=rng.integers(0, 9 * 10**6, 512))
    outlined = outline(NAME[0], topology, "16MiB", algorithm=NAME[1], in_place=in_place)
    late = {int(r): "3ms" for r in rng.integers(0, 512, 9)}
    want = exact_times(outlined.unroll(), topology, late=late)
    assert found(paired_finish, outlined.paired, outlined, topology, late, target=target)[0] == want.finish_ps.tolist()
    changes = Changes.of(links_of(topology, random_changes(rng, topology, want.time_ps)))
    want = exact_times(outlined.unroll(), topology, late=late, changes=changes)
    assert found(paired_finish, outlined.paired, outlined, topology, late, changes=changes, target=target)[0] == want.finish_ps.tolist()


def test_ranks_that_are_alike_end_as_those_that_are_evaluated() -> None:
    """2,048 ranks: two blocks of tiles."""
    topology = Topology.preset("h100", 256)
    for in_place in (False, True):
        outlined = outline(NAME[0], topology, "1GB", algorithm=NAME[1], in_place=in_place)
        alike, how = found(paired_finish, outlined.paired, outlined, topology)
        assert how["puts"] == 2047 and alike == found(paired_finish, outlined.paired, outlined, topology, merge=False)[0]


def test_a_late_rank_and_a_slower_nic_among_2048_ranks_as_ranks_in_another_order() -> None:
    """Renumbered by an exclusive or, which keeps who meets whom in which step, ranks end as before."""
    whole = Topology.preset("h100", 256)
    turned = np.arange(2048) ^ (8 * 173)
    ends = []
    for ranks in (np.arange(2048), turned):
        slower = np.array(whole.nic_bytes_per_s)
        slower[ranks[1111]] //= 3
        topology = whole.replace(nic_bytes_per_s=slower)
        outlined = outline(NAME[0], topology, "1GB", algorithm=NAME[1])
        times, how = finish_times(outlined, topology, late={int(ranks[77]): "5ms"})
        assert how["as"] == "exchanges"
        ends.append(times[ranks].tolist())
    assert ends[0] == ends[1] and len(set(ends[0])) > 20


def test_131072_ranks() -> None:
    topology = Topology.preset("h100", 16384)
    times, how = finish_times(outline(NAME[0], topology, "1GiB", algorithm=NAME[1]), topology)
    assert how == {"as": "exchanges", "puts": 131071} and len(np.unique(times)) == 1


@pytest.mark.parametrize(("gpus", "nics", "channels", "in_place"), [(1, 4, 4, False), (1, 4, 4, True), (8, 16, 2, True), (8, 8, 2, False)])
def test_131072_ranks_on_several_channels(gpus: int, nics: int, channels: int, in_place: bool) -> None:
    topology = Topology.cluster(nodes=131072 // gpus, gpus_per_node=gpus, nics_per_node=nics, nic_gbits_per_s=400)
    outlined = outline(NAME[0], topology, "64GiB", algorithm=NAME[1], channels=channels, in_place=in_place)
    times, how = finish_times(outlined, topology)
    assert how == {"as": "exchanges", "puts": 131071 * channels} and len(np.unique(times)) == 1


@pytest.mark.parametrize(("nics", "channels", "in_place"), [(16, 2, False), (16, 2, True), (8, 2, False), (8, 2, True), (16, 3, False)])
def test_tiles_of_ranks_on_several_channels(nics: int, channels: int, in_place: bool) -> None:
    """512 ranks, all different, some late; every channel has a NIC of its own, or two share one."""
    rng = np.random.default_rng(7)
    topology = with_own_rates(rng, Topology.cluster(nodes=64, gpus_per_node=8, nics_per_node=nics))
    outlined = outline(NAME[0], topology, "15MB", algorithm=NAME[1], in_place=in_place, channels=channels)
    late = {int(r): "3ms" for r in rng.integers(0, 512, 9)}
    want = exact_times(outlined.unroll(), topology, late=late)
    assert found(paired_finish, outlined.paired, outlined, topology, late)[0] == want.finish_ps.tolist()


def test_what_takes_many_minutes_is_refused() -> None:
    for topology, why in ((Topology.preset("h100", 16000).without((7, 2)), "minutes"),
                          (Topology.preset("ncclx_100k").without((7, 2)), "minutes"),
                          (Topology.cluster(nodes=65536, gpus_per_node=2, nics_per_node=1), "minutes"),
                          (Topology.preset("h100", 16384).without(*((node, 0) for node in range(17))), "minutes")):
        with pytest.raises(Inapplicable, match=f"paired all_to_all .* {why}"):
            summarize(outline(NAME[0], topology, "1GiB", algorithm=NAME[1]), topology)
    days = Topology.cluster(nodes=2, gpus_per_node=1, nics_per_node=1, nic_gbits_per_s=1e-6)
    with pytest.raises(UsageError, match="13 days"):
        summarize(outline(NAME[0], days, "1TiB", algorithm=NAME[1]), days)
