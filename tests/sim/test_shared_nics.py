"""Rings of which several leave a node by one NIC, or come into it by one: their timetable has all of them in step.

Is: around lost NICs, in both directions, and more rings than NICs. Invariant: what is evaluated unit by unit equals the table of ops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ccl_lab.planner import outline, plan
from ccl_lab.simulator import exact_times, finish_times
from ccl_lab.simulator.loops import flat_finish
from ccl_lab.simulator.sharing import Job, shared_times
from ccl_lab.topo import Topology

from ..shares import expected, first_of
from .draws import Drawn, gone_over, in_step_and_nominal

RINGS = [("all_reduce", "ring"), ("all_gather", "ring"), ("reduce_scatter", "ring"), ("all_reduce", "bidirectional_ring")]
LOST = Topology.preset("h100", 4).without((1, 2))


def topology_of(rng: np.random.Generator, most_nodes: int) -> Topology:
    """Nodes whose ranks have a NIC each, or share them; up to three lost, at times a slower one."""
    nodes, group = int(rng.integers(2, most_nodes + 1)), int(rng.integers(2, 9))
    nics = int(rng.choice([group, group, group, max(1, group // 2)]))
    topology = Topology.cluster(
        nodes=nodes, gpus_per_node=group, nics_per_node=nics, nic_gbits_per_s=float(rng.choice([400, 100, 8])),
        fabric_gbytes_per_s=int(rng.choice([450, 20, 5])), local_gbytes_per_s=int(rng.choice([3000, 20])))  # fmt: skip
    for _ in range(int(rng.integers(0, 4))):
        nic = (int(rng.integers(nodes)), int(rng.integers(nics)))
        if np.count_nonzero(topology.nic_gbits.reshape(nodes, nics)[nic[0]]) > 1:
            topology = topology.without(nic)
    return topology.slow(1.5, nic=(int(rng.integers(nodes)), int(rng.integers(nics)))) if rng.random() < 0.2 else topology


def case_of(seed: int, most_nodes: int, names: list[tuple[str, str]] = RINGS) -> Drawn:
    rng = np.random.default_rng([seed, 77])
    topology, (op, name) = topology_of(rng, most_nodes), names[int(rng.integers(len(names)))]
    channels = None if rng.random() < 0.5 else int(rng.integers(1, 2 * topology.nics_per_node + 1))
    nbytes = topology.n_ranks * 4 * (channels or topology.nics_per_node) * int(rng.choice([4, 64, 4096, 65536]))
    nbytes += 4 * int(rng.choice([0, 0, 3]))
    nbytes += -nbytes % (4 * topology.n_ranks) * (op != "all_reduce")
    options: dict[str, Any] = {"algorithm": name, "channels": channels, "in_place": bool(rng.random() < 0.3)}
    late = {int(rng.integers(topology.n_ranks)): f"{int(rng.integers(1, 10**8))}ps"} if rng.random() < 0.4 else {}
    return Drawn(plan(op, topology, nbytes, **options), outline(op, topology, nbytes, **options), topology, late,
                 float(rng.choice([0, 3e-6])), rng)  # fmt: skip


@pytest.mark.parametrize("block", range(2))
def test_rings_in_step_equal_the_table_of_ops(block: int) -> None:
    """Also at the times of all ranks; few of them are evaluated op by op."""
    in_step = by_rings = changed = 0
    for seed in first_of(range(block, 160, 2)):
        case = case_of(seed, 6)
        want, changes = case.wanted(True)
        if not case.schedule.timetable:
            continue
        ends, how = finish_times(case.outlined, case.topology, late=case.late, alpha=case.alpha, changes=changes)
        assert ends.tolist() == want, seed
        in_step, by_rings, changed = in_step + 1, by_rings + (how["as"] == "rings"), changed + bool(changes)
    assert in_step >= expected(40) and by_rings >= expected(24) and changed >= expected(8), (in_step, by_rings, changed)


def test_many_nodes() -> None:
    """What is gone over, and who stands for others, changes nothing."""
    cases = [case_of(seed, 90, RINGS[:3]) for seed in first_of(range(40), fewest=12)]
    compared, jumped = gone_over(case for case in cases if case.schedule.timetable and case.topology.n_nodes >= 8)
    assert compared >= expected(18) and jumped >= expected(6), (compared, jumped)


def test_a_timetable_is_for_rings_that_share_a_nic() -> None:
    whole, spare = Topology.preset("h100", 4), {"algorithm": "ring", "channels": 4}
    for op, name in RINGS[:3]:
        assert not plan(op, whole, "1MiB", algorithm=name).timetable
        assert plan(op, LOST, "1MiB", algorithm=name).timetable
        assert not plan(op, LOST, "1MiB", **spare).timetable  # the one that is displaced crosses on a NIC that nobody else uses
        assert plan(op, whole, "1MiB", algorithm=name, channels=9).timetable
    assert plan("all_reduce", whole, "1MiB", algorithm="bidirectional_ring").timetable
    assert not plan("all_reduce", whole, "1MiB", algorithm="bidirectional_ring", channels=8).timetable
    assert not plan("all_reduce", Topology.cluster(nodes=1, gpus_per_node=8), "1MiB", algorithm="bidirectional_ring").timetable


@pytest.mark.parametrize("name", RINGS)
@pytest.mark.parametrize("nodes", [2, 4])
def test_where_nics_decide_links_that_serve_in_step_share_fairly(name: tuple[str, str], nodes: int) -> None:
    """In nominal time rings that shared no NIC ran ahead, and then waited: a lost NIC cost up to twice what it does."""
    topology = Topology.preset("h100", nodes).without((1, 2))
    schedule = plan(name[0], topology, "1GiB", algorithm=name[1])
    fair = shared_times([Job(schedule)], topology)[0].time_ps
    in_step, first_come = in_step_and_nominal(schedule, topology)
    assert in_step == pytest.approx(fair, rel=0.001) and in_step <= first_come
    assert name[0] == "all_gather" or first_come > 1.03 * fair


def test_rings_in_step_take_no_longer() -> None:
    """Than in nominal time, but for what the order of sums costs: 150 draws took 0.26 to 1.02 times as long, 0.70 on average."""
    ratios = []
    for seed in first_of(range(1000, 1060), fewest=12):
        case = case_of(seed, 8)
        if case.schedule.timetable:
            times = in_step_and_nominal(case.schedule, case.topology)
            ratios.append(times[0] / times[1])
    assert max(ratios) < 1.05 and np.mean(ratios) < 0.9, ratios


@pytest.mark.parametrize("size", ["4GiB", "16GiB", "4GB"])
def test_131072_ranks_around_lost_nics(size: str) -> None:
    """As many rings as NICs: two share one, and all others keep step. 4 GB: four rings, one of them entering at another rank."""
    whole = Topology.preset("h100", 16384)
    for gone in ([(7, 2)], [(97, 1)], [(97 * i, i % 8) for i in range(1, 11)]):
        topology = whole.without(*gone)
        made = outline("all_reduce", topology, size, algorithm="ring")
        ends, how = finish_times(made, topology)
        assert how["as"] == "rings" and how["rounds"] * 20 < how["jumped"], gone
        assert made.loops is not None
        message = made.nbytes / topology.n_ranks / len(made.loops.orders)
        assert ends.max() * 1e-12 > made.loops.steps * message * (1 + made.loops.timetable) / 50e9


def test_own_time_begins_as_links_serve() -> None:
    """A ring that enters a node at another rank sends its first messages in other turns; chunks of two lengths."""
    compared = 0
    for seed in first_of(range(30), fewest=10):
        rng = np.random.default_rng([seed, 78])
        group, nodes = int(rng.integers(4, 9)), int(rng.integers(3, 12))
        topology = Topology.cluster(nodes=nodes, gpus_per_node=group, nics_per_node=group, nic_gbits_per_s=400)
        topology = topology.without((int(rng.integers(nodes)), int(rng.integers(group))))
        options: dict[str, Any] = {"algorithm": "ring", "channels": int(rng.integers(2, group + 1))}
        nbytes = 4 * topology.n_ranks * int(rng.choice([100, 10_000, 1_000_000])) + 4 * int(rng.integers(1, topology.n_ranks))
        made = outline("all_reduce", topology, nbytes, **options)
        assert made.loops is not None
        found, _ = flat_finish(made.loops, topology, nbytes // 4, 4, np.zeros(topology.n_ranks, np.int64), 0)
        assert found.tolist() == exact_times(plan("all_reduce", topology, nbytes, **options), topology).finish_ps.tolist(), seed
        compared += 1
    assert compared >= expected(30)
