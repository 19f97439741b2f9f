"""Direct algorithms around lost NICs, and where NICs are shared unevenly, timed node by node as a timetable says: as the unrolled
schedule and the oracle, up to 131,072 ranks."""

from __future__ import annotations

import numpy as np
import pytest

from ccl_lab import _core
from ccl_lab.errors import Inapplicable
from ccl_lab.planner import outline, plan
from ccl_lab.simulation import simulate
from ccl_lab.simulator import exact_times, finish_times, summarize
from ccl_lab.simulator.pairs import pair_finish
from ccl_lab.topo import Topology

from ..shares import expected, first_of
from .draws import Drawn, drawn, equal_to_the_oracle, some_bytes
from .test_pair_cuts import in_some_ways
from .test_pair_turns import rows_with_lost_nics, with_lost_nics
from .test_pairs import NAMES, times

DIRECT = [name for name in NAMES if name[1] == "direct"]


def more_than_64(rng: np.random.Generator, _: int) -> Topology:
    """Nodes of one rank or two, most of them alike; some lost a NIC, or have a slower one."""
    nodes, group = int(rng.integers(65, 100)), int(rng.integers(1, 3))
    nics = group if group > 1 and rng.random() < 0.5 else int(rng.integers(2, 5))
    topology = Topology.cluster(nodes=nodes, gpus_per_node=group, nics_per_node=nics, nic_gbits_per_s=100)
    for node in rng.choice(nodes, int(rng.choice([1, 1, 2, 5, 12])), replace=False).tolist():
        nic = node, int(rng.integers(nics))
        topology = topology.without(nic) if rng.random() < 0.7 else topology.slow(1.5, nic=nic)
    return topology


def draw(seed: int, name: tuple[str, str], most_nodes: int = 90) -> Drawn | None:
    """Nodes that lost NICs, in some ways, or share them unevenly; memories as slow as NICs, or slower."""
    rng = np.random.default_rng([seed, 58, *name[0].encode()])
    make = (in_some_ways, with_lost_nics, with_lost_nics, more_than_64)[int(rng.integers(4 if most_nodes > 64 else 3))]
    topology = make(rng, most_nodes if rng.random() < 0.5 else min(most_nodes, 12))
    if rng.random() < 0.5:
        topology = topology.replace(local_bytes_per_s=rng.integers(10**8, 10**12, topology.n_ranks))
    most_ops = 4_000 if name[0] == "all_reduce" else 40_000
    return drawn(rng, name, topology, some_bytes(rng), (0.3, 0.1), lambda found: bool(found.pairs and found.pairs.cuts), most_ops=most_ops)


@pytest.mark.parametrize("name", DIRECT)
def test_steps_are_timed_as_in_the_table_of_ops(name: tuple[str, str]) -> None:
    """Any rates, late ranks, several channels, rates that change, sums and copies in place; nodes that repeat, or all of them."""
    compared = many = 0
    for seed in first_of(range(120), fewest=36):
        case = draw(seed, name)
        if case is None:
            continue
        assert case.schedule.timetable
        want, changes = case.wanted(change=True)
        for merge in (True, False):
            ends, how = case.found(pair_finish, case.outlined.pairs, changes, merge=merge)
            assert ends == want, (seed, merge)
        compared, many = compared + 1, many + (how["units"] > 64)
    assert compared >= expected(20) and (many >= expected(2) or name[0] == "all_reduce"), (compared, many)


def test_steps_are_timed_as_by_the_oracle() -> None:
    cases = (draw(1000 + seed, DIRECT[seed % 4], most_nodes=5) for seed in first_of(range(120)))
    assert equal_to_the_oracle(cases, pair_finish, "pairs", 3_000) >= expected(15)


@pytest.mark.parametrize("target", _core.vector_targets())
def test_steps_on_every_kind_of_vectors(target: int) -> None:
    for gone in rows_with_lost_nics():
        for in_place in (False, True):
            outlined = outline("all_to_all", gone, "64MiB", algorithm="direct", in_place=in_place)
            found, how = times(outlined, gone, target=target)
            assert how == {"units": 150, "kinds": 3} and found == exact_times(outlined.unroll(), gone).finish_ps.tolist()


@pytest.mark.parametrize("name", DIRECT)
def test_512_ranks_around_lost_nics_as_their_ops(name: tuple[str, str]) -> None:
    topology = Topology.preset("h100", 64)
    several = topology.without((7, 2), (7, 3), (40, 0)).slow(2, nic=(9, 1))
    for gone, late in ((topology.without((7, 2)), None), (several, {3: "20us"})):
        outlined = outline(name[0], gone, "64MiB", algorithm="direct")
        found, how = finish_times(outlined, gone, late=late)
        assert how["as"] == "pairs" and "kinds" in how
        assert found.tolist() == exact_times(outlined.unroll(), gone, late=late).finish_ps.tolist()


def test_step_by_step_takes_no_longer_than_all_at_once() -> None:
    """Ranks that share three NICs, or use seven of eight: what one carries for more of them is what all wait for, and nothing else."""
    for group, nics, lost in ((8, 8, ((1, 2), (4, 0), (4, 1))), (8, 4, ((1, 0),)), (4, 4, ((0, 1), (2, 2), (3, 3)))):
        topology = Topology.cluster(nodes=6, gpus_per_node=group, nics_per_node=nics).without(*lost)
        for name, _ in DIRECT:
            schedule = plan(name, topology, "16MiB", algorithm="direct")
            assert schedule.timetable
            at_once = exact_times(schedule.replace(timetable=False), topology).time_ps
            assert exact_times(schedule, topology).time_ps <= 1.001 * at_once


def test_where_ranks_share_nics_evenly_there_is_no_timetable() -> None:
    """All puts are at once, and so they are where ranks add or copy what came on several channels, whose order would have to be timed."""
    even, lost = (Topology.cluster(nodes=4, gpus_per_node=4, nics_per_node=nics) for nics in (2, 8))
    lost = lost.without((1, 2))
    for name, _ in DIRECT:
        assert not plan(name, even, "1MiB", algorithm="direct").timetable
        assert plan(name, lost, "1MiB", algorithm="direct", channels=1).timetable
        assert plan(name, lost, "1MiB", algorithm="direct", channels=2).timetable == (name in ("all_to_all", "all_gather"))
    assert not plan("all_to_all", lost, "1MiB", algorithm="direct", channels=2, in_place=True).timetable


@pytest.mark.parametrize("name", ["all_to_all", "reduce_scatter"])
def test_131072_ranks_around_a_lost_nic(name: str) -> None:
    """Two ranks share what one NIC carries, and nobody ends earlier for it."""
    whole, gone = (simulate(name, "h100:nodes=16384", "1GiB", algorithm="direct", faults=faults)
                   for faults in ((), ("nic:node=7,nic=2",)))  # fmt: skip
    assert gone.meta["evaluated"] == {"as": "pairs", "units": 16384, "kinds": 2}
    assert (gone.finish_ps >= whole.finish_ps).all() and 1.95 < gone.time_ps / whole.time_ps < 2.01


def test_3000_ranks_that_share_nics_unevenly() -> None:
    """Five ranks on two NICs: one of them carries for three ranks. All nodes are alike, and one of them is timed."""
    uneven = Topology.cluster(nodes=600, gpus_per_node=5, nics_per_node=2)
    found, how = times(outline("all_gather", uneven, "1GiB", algorithm="direct"), uneven)
    assert how == {"units": 1, "kinds": 1} and len(np.unique(np.reshape(found, (-1, 5)), axis=0)) == 1


def test_lost_nics_at_thousands_of_nodes_are_refused() -> None:
    whole = Topology.preset("h100", 16384)
    many = whole.without(*((int(node), 2) for node in np.random.default_rng(0).choice(16384, 2048, replace=False)))
    with pytest.raises(Inapplicable, match="puts of 2,048 nodes that lost NICs, one by one,"):
        summarize(outline("all_gather", many, "1GiB", algorithm="direct"), many)
