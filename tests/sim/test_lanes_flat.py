"""All_gather and reduce_scatter over lanes around lost and slower NICs: rings that come to a rank by different ways, and some of a smaller
share, to the picosecond."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ccl_lab.errors import Inapplicable
from ccl_lab.planner import all_gather_ring, outline, reduce_scatter_ring
from ccl_lab.planner.orders import Rings
from ccl_lab.planner.problem import Problem, make_problem
from ccl_lab.simulation import degrade
from ccl_lab.simulator import exact_times, finish_times, summarize
from ccl_lab.simulator.changes import Changes
from ccl_lab.simulator.loops import flat_finish
from ccl_lab.topo import Topology

from .cases import links_of, random_changes

COLLECTIVES = ("all_gather", "reduce_scatter")


def equal(topology: Topology, what: str, nbytes: int, **options: Any) -> str:
    """How the schedule is timed, once its times are those of the table of ops, however it is evaluated."""
    outlined = outline(what, topology, nbytes, algorithm="balance", in_place=options.pop("in_place", False))
    want = exact_times(outlined.unroll(), topology, **options).finish_ps.tolist()
    found, how = finish_times(outlined, topology, **options)
    assert found.tolist() == want
    for plainly in ({"merge": False}, {"merge": False, "jumps": False}):
        assert finish_times(outlined, topology, **options, **plainly)[0].tolist() == want
    return how["as"]


@pytest.mark.parametrize("what", COLLECTIVES)
@pytest.mark.parametrize("gone", [(node, nic) for node in (0, 4) for nic in range(8)])
def test_a_lost_nic(what: str, gone: tuple[int, int]) -> None:
    assert equal(Topology.preset("h100", 6).without(gone), what, 2**20) == "rings"


@pytest.mark.parametrize("what", COLLECTIVES)
@pytest.mark.parametrize("gone", [((1, 2), (5, 3)), ((0, 7), (6, 0), (7, 1)), ((2, 2), (4, 2)), ((3, 1), (3, 6)), ((1, 2), (5, 3), (5, 4))])
def test_several_lost_nics(what: str, gone: tuple[tuple[int, int], ...]) -> None:
    assert equal(Topology.preset("h100", 8).without(*gone), what, 2**21) == "rings"


@pytest.mark.parametrize("what", COLLECTIVES)
@pytest.mark.parametrize("factor", [1.1, 1.3, 1.5, 2])
@pytest.mark.parametrize("nodes", [2, 3, 6, 17])
def test_a_slower_nic(what: str, factor: float, nodes: int) -> None:
    """Its lane has a smaller share, and its messages overtake those of the others in nominal time: two for one, eight for seven."""
    for node, nic in ((0, 3), (nodes - 1, 0), (nodes // 2, 7)):
        topology = degrade(Topology.preset("h100", nodes), [f"nic:node={node},nic={nic},factor={factor}"])[0]
        for late in ({}, {1: "300us", 8 * nodes - 3: "1ms"}):
            assert equal(topology, what, 2**20, late=late) == "rings"


def test_waves_round_many_nodes() -> None:
    """Rounds and units that are gone over, in rings long enough that most are."""
    found = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        group = int(rng.choice([2, 4]))
        nodes = int(rng.integers(20, 240 // group))
        rates = {"nic_gbits_per_s": 400, "fabric_gbytes_per_s": float(rng.choice([20, 60, 400]))}
        topology = Topology.cluster(nodes=nodes, gpus_per_node=group, nics_per_node=group, nic_latency=f"{rng.integers(0, 20)}us", **rates)
        topology = slower_nics(rng, topology).slow(float(rng.choice([1, 1.001, 7])), rank=int(rng.integers(topology.n_ranks)))
        late = np.zeros(topology.n_ranks, np.int64)
        late[rng.integers(topology.n_ranks)] = rng.choice([0, int(rng.integers(10**9))])
        made = outline(str(rng.choice(COLLECTIVES)), topology, int(rng.integers(1, 2000)) * 4 * topology.n_ranks, algorithm="balance")
        asked = made.loops, topology, made.count_of(made.nbytes, "float32"), 4, late, 0
        times, counts = flat_finish(*asked)
        every, all_counts = flat_finish(*asked, merge=False, jumps=False)
        assert times.tolist() == every.tolist(), seed
        found += counts["rounds"] < all_counts["rounds"]
    assert found > 30


@pytest.mark.parametrize("what", COLLECTIVES)
@pytest.mark.parametrize("faults", [["nic:node=1,nic=3,factor=3"], ["nic:node=1,nic=3,factor=4", "nic:node=0,nic=5"],
                                    ["nic:node=1,nic=3,factor=1.2", "nic:node=2,nic=5,factor=1.2"]])
def test_shares_that_go_by_no_round(what: str, faults: list[str]) -> None:
    """Lanes of different shares that share a NIC, or are no small multiples of one another: the timetable has all of them in step."""
    for nodes, nbytes in ((4, 2**20), (4, 2**28), (11, 2**24)):
        assert equal(degrade(Topology.preset("h100", nodes), faults)[0], what, nbytes) == "rings"


def case(rng: np.random.Generator) -> tuple[Topology, dict[str, Any]]:
    """Rates that decide everywhere, lost NICs of some nodes, slower ranks, late ones, NICs that change."""
    nodes, group = int(rng.integers(2, 9)), int(rng.choice([2, 4, 8]))
    nics = group * int(rng.choice([1, 1, 2]))
    topology = Topology.cluster(nodes=nodes, gpus_per_node=group, nics_per_node=nics, nic_gbits_per_s=400,
                                nic_latency=f"{rng.integers(0, 20)}us", fabric_gbytes_per_s=float(rng.choice([20, 60, 400])),
                                fabric_latency=f"{rng.integers(0, 3)}us", local_gbytes_per_s=float(rng.choice([3, 50, 2000])))  # fmt: skip
    lost = {(int(rng.integers(nodes)), int(rng.integers(nics))) for _ in range(int(rng.integers(1, 4)))}
    lasting = [(node, nic) for node, nic in lost if sum(other == node for other, _ in lost) < nics]
    topology = topology.without(*lasting) if rng.integers(3) else topology
    if not rng.integers(3):
        topology = slower_nics(rng, topology)
    for _ in range(int(rng.integers(0, 3))):
        topology = topology.slow(float(rng.choice([1.001, 1.5, 7])), rank=int(rng.integers(topology.n_ranks)))
    options: dict[str, Any] = {"alpha": float(rng.choice([0, 1e-6])), "in_place": bool(rng.integers(2))}
    if rng.integers(2):
        options["late"] = {int(rng.integers(topology.n_ranks)): f"{rng.integers(1, 300)}us"}
    if not rng.integers(3):
        options["changes"] = Changes.of(links_of(topology, random_changes(rng, topology, 10**9)))
    return topology, options


def slower_nics(rng: np.random.Generator, topology: Topology) -> Topology:
    factors = rng.choice([1.1, 1.3, 1.5, 2, 3, 4, 7], 3).tolist()
    places = {(int(rng.integers(topology.n_nodes)), int(rng.integers(topology.nics_per_node))) for _ in range(int(rng.integers(1, 4)))}
    return degrade(topology, [f"nic:node={node},nic={nic},factor={factors.pop()}" for node, nic in places])[0]


@pytest.mark.parametrize("seed", range(90))
def test_random_clusters(seed: int) -> None:
    rng = np.random.default_rng(seed)
    topology, options = case(rng)
    for what in COLLECTIVES:
        nbytes = int(rng.integers(1, 2000)) * 4 * topology.n_ranks
        if outline(what, topology, nbytes, algorithm="balance").loops is not None:
            assert equal(topology, what, nbytes, **dict(options)) == "rings"


@pytest.mark.parametrize("what", COLLECTIVES)
def test_131072_ranks(what: str) -> None:
    """In a second or two, wherever the NIC was, whatever a second one is; no faster than the NICs that are left."""
    topology, times = Topology.preset("h100", 16384), []
    for gone in (((7, 2),), ((16000, 2),), ((7, 2), (77, 3))):
        lost = topology.without(*gone)
        found = summarize(outline(what, lost, "1GiB", algorithm="balance"), lost).meta
        assert found["evaluated"]["as"] == "rings" and found["evaluated"]["rounds"] < 40_000
        times.append(found["time_ps"])
    assert times[0] == times[1] <= times[2]
    assert times[0] * 1e-12 >= 2**30 * (1 - 1 / 131072) / (7 * 50e9) / 8


@pytest.mark.parametrize("what", COLLECTIVES)
def test_131072_ranks_around_a_slower_nic(what: str) -> None:
    """Wherever it is, and as fast as units go on alike."""
    times = []
    for place, factor in (("node=7,nic=2", 4), ("node=16000,nic=2", 4), ("node=7,nic=2", 1.1)):
        slower = degrade(Topology.preset("h100", 16384), [f"nic:{place},factor={factor}"])[0]
        found = summarize(outline(what, slower, "1GiB", algorithm="balance"), slower).meta
        assert found["evaluated"]["as"] == "rings" and found["evaluated"]["rounds"] < 40_000
        times.append(found["time_ps"])
    assert times[0] == times[1] != times[2]


def rings_at_random(rng: np.random.Generator) -> tuple[Problem, Rings]:
    """Rings that come to the ranks of a node each in an order of its own, sharing NICs and fabrics as it falls out."""
    what, group = str(rng.choice(COLLECTIVES)), int(rng.integers(2, 6))
    nodes = int(rng.choice([2, 3, 4, 5, 40 // group]))
    topology = Topology.cluster(nodes=nodes, gpus_per_node=group, nics_per_node=int(rng.integers(1, 7)), nic_gbits_per_s=400,
                                fabric_gbytes_per_s=float(rng.choice([20, 60, 400])), nic_latency=f"{rng.integers(0, 9)}us")
    alike = nodes > 5 or rng.integers(2)  # whether all nodes are passed through in one way
    chains = int(rng.integers(2, 6))
    ways = np.stack([[rng.permutation(group) for _ in range(1 if alike else nodes)] for _ in range(chains)])
    orders = np.arange(nodes)[None, :, None] * group + ways
    weight = rng.choice([[1, 1], [1, 2], [2, 3], [1, 4], [3, 4]][int(rng.integers(5))], chains)
    nbytes = int(rng.integers(1, 500)) * 4 * topology.n_ranks * int(weight.sum())
    problem = make_problem(what, topology, nbytes, dtype="float32", redop="sum",
                           in_place=bool(rng.integers(2)), root=0, peer=1, channels=None, counts=None)  # fmt: skip
    return problem, Rings.along(orders.reshape(chains, -1), weight=weight)


def test_rings_at_random() -> None:
    """Where lanes share NICs they fall apart in nominal time, and then turns of one batch may be given away late: that is noticed. By a
    timetable they never do."""
    timed = 0
    for seed in range(900):
        problem, at = rings_at_random(np.random.default_rng(seed))
        algorithm = all_gather_ring if problem.collective == "all_gather" else reduce_scatter_ring
        late = np.zeros(problem.n, np.int64)
        late[seed % problem.n] = (seed % 3 > 0) * 10**7
        who = {seed % problem.n: f"{late.max()}ps"}
        in_step, _ = flat_finish(algorithm.loops_along(problem, at, timetable=True), problem.topology, problem.count, 4, late, 0)
        schedule = algorithm.along(problem, "ring", at, timetable=True).build(nbytes=problem.nbytes, dtype="float32", redop="sum")
        assert in_step.tolist() == exact_times(schedule, problem.topology, late=who).finish_ps.tolist(), seed
        try:
            found, _ = flat_finish(algorithm.loops_along(problem, at), problem.topology, problem.count, 4, late, 0)
        except Inapplicable:
            continue
        timed += 1
        schedule = algorithm.along(problem, "ring", at).build(nbytes=problem.nbytes, dtype="float32", redop="sum")
        assert found.tolist() == exact_times(schedule, problem.topology, late=who).finish_ps.tolist(), seed
    assert 50 < timed < 500
