"""Rings in both directions among nodes that are not alike: equal to the table of ops, and to a visit of every node in every step.

Runs of nodes that are alike, with jumps and without, and every message of all nodes side by side, as where chunks differ by an element.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ccl_lab.errors import Inapplicable
from ccl_lab.ir import RingLoops
from ccl_lab.planner import outline, plan
from ccl_lab.simulator import exact_times, finish_times, summarize
from ccl_lab.simulator.changes import NONE, Changes
from ccl_lab.simulator.exact import late_times_ps
from ccl_lab.simulator.loops import flat_finish
from ccl_lab.topo import Topology

from ..shares import expected, first_of
from .cases import links_of, random_changes, with_own_rates
from .draws import Drawn
from .oracle import Oracle

NAME = ("all_reduce", "bidirectional_ring")


def topology_of(rng: np.random.Generator, most_nodes: int) -> Topology:
    """Nodes of several ranks with NICs of their own; some slower, some with rates of their own, a NIC gone."""
    nodes, group = int(rng.integers(3, most_nodes + 1)), int(rng.integers(2, 7))
    nics = group * int(rng.choice([1, 1, 2]))
    topology = Topology.cluster(
        nodes=nodes, gpus_per_node=group, nics_per_node=nics, nic_gbits_per_s=float(rng.choice([400, 100, 7.3])),
        fabric_gbytes_per_s=int(rng.choice([400, 1])), local_gbytes_per_s=int(rng.choice([2, 1000])))  # fmt: skip
    if rng.random() < 0.2:
        topology = with_own_rates(rng, topology)
    for _ in range(int(rng.integers(0, 3))):
        topology = topology.slow(float(rng.choice([1.001, 1.5, 40])), nic=(int(rng.integers(nodes)), int(rng.integers(nics))))
    if rng.random() < 0.3:
        topology = topology.slow(1.3, rank=int(rng.integers(nodes * group)))
    if rng.random() < 0.3:
        topology = topology.without((int(rng.integers(nodes)), int(rng.integers(nics))))
    return topology


def case_of(seed: int, most_nodes: int, more: int = 0) -> Drawn:
    """A schedule both ways; at most as many rings as do not meet in a NIC of a healthy topology. more: elements that no chunk has alike."""
    rng = np.random.default_rng([seed, 4711])
    topology = topology_of(rng, most_nodes)
    channels = int(rng.integers(1, max(2, topology.gpus_per_node) + 1))
    nbytes = topology.n_ranks * channels * 16 * int(rng.choice([1, 7, 100, 5000, 50000])) + 4 * more
    options: dict[str, Any] = {"algorithm": NAME[1], "channels": channels, "in_place": bool(rng.random() < 0.3)}
    late = {}
    if rng.random() < 0.4:
        late = {int(rng.integers(topology.n_ranks)): f"{int(rng.integers(1, 10**8))}ps" for _ in range(int(rng.integers(1, 4)))}
    return Drawn(plan(NAME[0], topology, nbytes, **options), outline(NAME[0], topology, nbytes, **options), topology, late,
                 float(rng.choice([0, 3e-6])), rng)  # fmt: skip


def loops_of(case: Drawn) -> RingLoops:
    loops = case.outlined.loops
    assert loops is not None
    return loops


def flat(case: Drawn, changes: Changes = NONE, **options: Any) -> tuple[list[int], dict[str, int]]:
    """What loops.py says, which does not go on to tell ops one by one."""
    outlined = case.outlined
    found, how = flat_finish(loops_of(case), case.topology, outlined.count_of(outlined.nbytes, "float32"), 4,
                             late_times_ps(case.late, case.topology.n_ranks), round(case.alpha * 1e12), changes, **options)
    return found.tolist(), how


@pytest.mark.parametrize("block", range(4))
def test_nodes_that_differ_equal_the_table_of_ops(block: int) -> None:
    """Runs of nodes and jumps over steps, neither, and rates that change in the middle."""
    equal = jumped = changed = 0
    for seed in first_of(range(block, 96, 4)):
        case = case_of(seed, 10 if seed % 3 else 40)
        want, changes = case.wanted(True)
        for options in ({}, {"merge": False}, {"merge": False, "jumps": False}):
            try:
                found, how = flat(case, changes, **options)
            except Inapplicable:
                continue
            assert found == want, (seed, options)
            equal += 1
            jumped += how["jumped"] > 0
            changed += bool(changes)
    assert equal >= expected(30) and jumped >= expected(4) and changed >= expected(4)


@pytest.mark.parametrize("block", range(2))
def test_every_message_equals_the_table_of_ops(block: int) -> None:
    """Of one length, and of two: nodes that differ, also in their links, every other one or a single one, and rates that change."""
    equal, chains, two, changed, deep = 0, set(), 0, 0, 0
    for seed in first_of(range(block, 100, 2)):
        case = case_of(seed, 9 if seed % 3 else 60, more=seed % 4 * 5)
        want, changes = case.wanted(True)
        try:
            found, how = flat(case, changes, every=True)
        except Inapplicable:
            continue
        assert found == want, seed
        assert how["jumped"] == 0
        equal += 1
        two += seed % 4 > 0
        changed += bool(changes)
        deep += loops_of(case).depth > 1
        chains.add(len(loops_of(case).orders))
    assert equal >= expected(40) and two >= expected(19) and changed >= expected(12) and deep >= expected(6) and len(chains) >= 2


def test_chunks_that_differ_are_timed_by_every_message() -> None:
    """Without being asked to; and where no two nodes are alike, as with latencies that differ from switch to switch."""
    whole = Topology.preset("ncclx_100k", 24)
    for topology, nbytes in ((whole, 192 * 64 + 4), (with_own_rates(np.random.default_rng(5), whole), 192 * 4 * 1000 + 12),
                             (whole.slow(3, nic=(5, 7)), 192 * 4 * 333 + 8)):
        options: dict[str, Any] = {"algorithm": NAME[1], "channels": 4}
        outlined, schedule = outline(NAME[0], topology, nbytes, **options), plan(NAME[0], topology, nbytes, **options)
        found, how = finish_times(outlined, topology, late={9: "20us"})
        loops = outlined.loops
        assert loops is not None and how["as"] == "rings" and how["rounds"] == how["units"] * loops.steps * loops.depth
        assert found.tolist() == exact_times(schedule, topology, late={9: "20us"}).finish_ps.tolist()


@pytest.mark.parametrize("nodes", [4, 6])
def test_rings_go_through_a_node_in_turns(nodes: int) -> None:
    """As many rings in both directions as ranks: each NIC has two, and what leaves it second goes through the next node second."""
    topology = Topology.preset("h100", nodes)
    for nbytes in (topology.n_ranks * 16 * 4 * 100, topology.n_ranks * 16 * 4 * 1_000_000):
        outlined, schedule = (make(NAME[0], topology, nbytes, algorithm=NAME[1], channels=16) for make in (outline, plan))
        assert outlined.loops is not None
        found, _ = flat_finish(outlined.loops, topology, nbytes // 4, 4, np.zeros(topology.n_ranks, np.int64), 0)
        assert found.tolist() == exact_times(schedule, topology).finish_ps.tolist()


def meeting_case(seed: int) -> Drawn:
    """As many rings each way as NICs, so that each NIC receives from both sides; nodes whose NICs have rates of their own."""
    rng = np.random.default_rng([seed, 99])
    nodes, group = int(rng.choice([2, 4, 6, 8, 12])), int(rng.integers(1, 9))
    topology = Topology.cluster(
        nodes=nodes, gpus_per_node=group, nics_per_node=group, nic_gbits_per_s=float(rng.choice([400, 100, 7.3])),
        fabric_gbytes_per_s=int(rng.choice([400, 10])), local_gbytes_per_s=int(rng.choice([20, 1000])))  # fmt: skip
    if rng.random() < 0.3:
        topology = with_own_rates(rng, topology)
    if rng.random() < 0.5:
        topology = topology.slow(float(rng.choice([1.001, 1.5, 40])), nic=(int(rng.integers(nodes)), int(rng.integers(group))))
    late = {int(rng.integers(topology.n_ranks)): f"{int(rng.integers(1, 10**8))}ps"} if rng.random() < 0.4 else {}
    nbytes = topology.n_ranks * 2 * group * 4 * int(rng.choice([1, 5, 30])) + 4 * int(rng.integers(1, 50)) * int(rng.integers(2))
    options: dict[str, Any] = {"algorithm": NAME[1], "channels": 2 * group, "in_place": bool(rng.random() < 0.3)}
    return Drawn(plan(NAME[0], topology, nbytes, **options), outline(NAME[0], topology, nbytes, **options), topology, late,
                 float(rng.choice([0, 3e-6])), rng)  # fmt: skip


def test_rings_that_meet_in_nics_equal_the_table_of_ops() -> None:
    met = 0
    for seed in first_of(range(60)):
        case = meeting_case(seed)
        want = exact_times(case.schedule, case.topology, late=case.late, alpha=case.alpha).finish_ps.tolist()
        for options in ({}, {"every": True}):
            found, how = flat(case, **options)
            assert found == want, (seed, options)
            met += how["units"] > 2 and how["jumped"] == 0
    assert met >= expected(40)


def test_rings_that_meet_where_nodes_have_not_the_same_links() -> None:
    """A lost NIC, whose rings go over another one; an odd number of nodes, which do not alternate; a NIC that changes: refused."""
    whole = Topology.preset("h100", 6)
    for topology, changes in ((whole.without((2, 3)), NONE), (Topology.preset("h100", 5), NONE),
                              (whole.slow(2, nic=(1, 1)), Changes.of({whole.n_ranks * 3: [(10**6, 10**9)]}))):
        outlined = outline(NAME[0], topology, topology.n_ranks * 16 * 4 * 100, algorithm=NAME[1], channels=16)
        assert outlined.loops is not None
        with pytest.raises(Inapplicable, match="meet in a NIC, which is timed without it where all nodes have the same links"):
            flat_finish(outlined.loops, topology, outlined.nbytes // 4, 4, np.zeros(topology.n_ranks, np.int64), 0, changes)


def test_no_patience_helps_where_rings_meet_in_a_lost_nic() -> None:
    """Among ranks of which there are too many to time each message, too: the refusal says why, and not how long it would take."""
    topology = Topology.preset("h100", 16384).without((7, 2))
    outlined = outline(NAME[0], topology, "4GiB", algorithm=NAME[1])
    assert outlined.loops is not None
    with pytest.raises(Inapplicable, match="meet in a NIC, which is timed without it where all nodes have the same links"):
        flat_finish(outlined.loops, topology, outlined.nbytes // 4, 4, np.zeros(topology.n_ranks, np.int64), 0)


def test_nodes_that_differ_equal_the_oracle() -> None:
    equal = 0
    for seed in first_of(range(1000, 1016)):
        case = case_of(seed, 4)
        if len(case.schedule.ops) > 20_000:
            continue
        try:
            found, _ = flat(case)
        except Inapplicable:
            continue
        late_ps = [int(case.late.get(rank, "0ps")[:-2]) for rank in range(case.topology.n_ranks)]
        oracle = Oracle(case.schedule, case.topology, case.schedule.layout(), late_ps, alpha=round(case.alpha * 1e12))
        assert found == oracle.finish, seed
        equal += 1
    assert equal >= expected(5)


@pytest.mark.parametrize("channels", [2, 4])
@pytest.mark.parametrize("nodes", [32, 33])
def test_a_wave_goes_out_both_ways(nodes: int, channels: int) -> None:
    """Of a NIC that limits; and all that is not near to it is not visited."""
    whole = Topology.preset("h100", nodes)
    nbytes = whole.n_ranks * channels * 2**17
    for topology in (whole.slow(4, nic=(7, 7)), whole.slow(3, nic=(8, 0)).slow(2, nic=(20, 0)),
                     whole.slow(9, nic=(0, 7)).slow(1.5, rank=77)):
        outlined = outline(*NAME[:1], topology, nbytes, algorithm=NAME[1], channels=channels)
        schedule = plan(*NAME[:1], topology, nbytes, algorithm=NAME[1], channels=channels)
        found, how = finish_times(outlined, topology, late={13: "300us"})
        assert how["as"] == "rings" and how["jumped"] > 0
        assert found.tolist() == exact_times(schedule, topology, late={13: "300us"}).finish_ps.tolist()


def test_rates_that_change_and_late_ranks_among_many_nodes() -> None:
    topology = Topology.preset("h100", 300).slow(2, nic=(77, 7))
    outlined = outline(NAME[0], topology, topology.n_ranks * 2**19, algorithm=NAME[1], channels=2)
    whole, _ = finish_times(outlined, topology)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        changes = Changes.of(links_of(topology, {(8, 7): [(int(whole.max()) // 3, 10**9)]} if seed == 0 else
                                      random_changes(rng, topology, int(whole.max()))))  # fmt: skip
        found, how = finish_times(outlined, topology, changes=changes, late={5: "1ms"})
        plainly, every = finish_times(outlined, topology, changes=changes, late={5: "1ms"}, merge=False, jumps=False)
        assert found.tolist() == plainly.tolist() and how["rounds"] < every["rounds"] / 2 and every["jumped"] == 0


def test_131072_ranks() -> None:
    whole, odd = Topology.preset("h100", 16384), Topology.preset("h100", 16383)
    healthy = summarize(outline(NAME[0], whole, "2GiB", algorithm=NAME[1], channels=4), whole)
    slower = whole.slow(4, nic=(7, 7))
    for topology, late in ((slower, None), (whole, {77: "3ms"}), (odd, None)):
        outlined = outline(NAME[0], topology, topology.n_ranks * 2**14, algorithm=NAME[1], channels=4)
        hurt = summarize(outlined, topology, late=late)
        assert hurt.meta["evaluated"]["jumped"] > 10**9
        if topology is not odd:
            assert hurt.meta["time_ps"] >= healthy.meta["time_ps"] + 3 * 10**9 * bool(late)


def test_many_nodes_that_differ_are_timed_by_every_message() -> None:
    """After a look at how many of them would have to be visited; refused where that would take long."""
    topology = with_own_rates(np.random.default_rng(0), Topology.preset("h100", 300))
    outlined = outline(NAME[0], topology, topology.n_ranks * 2 * 4000, algorithm=NAME[1], channels=2)
    found, how = finish_times(outlined, topology)
    loops = outlined.loops
    assert loops is not None and how["rounds"] == how["units"] * loops.steps * loops.depth and how["jumped"] == 0
    plainly, every = finish_times(outlined, topology, jumps=False)
    assert found.tolist() == plainly.tolist() and every["rounds"] == how["rounds"]
    large = Topology.preset("ncclx_100k")
    with pytest.raises(Inapplicable, match=r"218,0\d\d,\d{3},\d{3} messages of rings in both directions .*patience=2 allows it"):
        summarize(outline(NAME[0], large, "1GiB", algorithm=NAME[1], channels=8), large)
    with pytest.raises(Inapplicable, match=r"436,0\d\d,\d{3},\d{3} messages .* that meet in NICs would take some 29 minutes \(patience=9 "):
        summarize(outline(NAME[0], large, "1GiB", algorithm=NAME[1], channels=16), large)


def test_nodes_that_enter_one_after_the_other() -> None:
    """In even steps, so that they are a run from the start, and what decides falls differently at its ends."""
    for seed in first_of(range(12)):
        rng = np.random.default_rng([seed, 17])
        nodes, group = int(rng.integers(16, 40)), int(rng.choice([2, 4]))
        topology = Topology.cluster(nodes=nodes, gpus_per_node=group, nics_per_node=group, nic_gbits_per_s=100, local_gbytes_per_s=20)
        if seed % 3:
            topology = topology.slow(30, nic=(int(rng.integers(nodes)), group - 1))
        apart = int(rng.choice([1, 1000, 10**5, 10**6, 10**7, 10**8]))
        late = {rank: f"{apart * (rank // group) + int(rng.integers(2)) * (rank < group)}ps" for rank in range(topology.n_ranks)}
        nbytes = topology.n_ranks * 16 * int(rng.choice([100, 5000, 100_000]))
        options: dict[str, Any] = {"algorithm": NAME[1], "channels": 2}
        outlined, schedule = outline(NAME[0], topology, nbytes, **options), plan(NAME[0], topology, nbytes, **options)
        found, _ = flat(Drawn(schedule, outlined, topology, late, 0.0, rng))
        assert found == exact_times(schedule, topology, late=late).finish_ps.tolist(), seed
