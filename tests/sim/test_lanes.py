"""All_reduce over the lanes around a lost NIC, and chunks that differ by an element, without a row for every op: to the picosecond."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ccl_lab.errors import Inapplicable
from ccl_lab.ir import RingLoops
from ccl_lab.planner import outline
from ccl_lab.planner.bounds import of_problem
from ccl_lab.planner.problem import make_problem
from ccl_lab.simulator import exact_times, finish_times, summarize
from ccl_lab.simulator.changes import Changes
from ccl_lab.topo import Topology

from .cases import links_of, random_changes

BALANCE, HIERARCHICAL = "balance", "hierarchical"


def equal(topology: Topology, algorithm: str, planned: int, nbytes: int | None = None, **options: Any) -> dict[str, Any]:
    """How the schedule is timed, once its times are those of the table of ops, however it is evaluated."""
    outlined = outline("all_reduce", topology, planned, algorithm=algorithm, channels=options.pop("channels", None))
    found, how = finish_times(outlined, topology, nbytes, **options)
    want = exact_times(outlined.unroll(), topology, nbytes, **options).finish_ps.tolist()
    assert found.tolist() == want
    for plainly in ({"merge": False}, {"merge": False, "jumps": False}):
        assert finish_times(outlined, topology, nbytes, **options, **plainly)[0].tolist() == want
    return how


def shared_ranks(loops: RingLoops) -> bool:
    """Whether some rank has several lanes."""
    table = np.sort(loops.orders, axis=0)
    return bool((table[1:] == table[:-1]).any())


@pytest.mark.parametrize("gone", [(node, nic) for node in (0, 5) for nic in range(8)])
def test_a_lost_nic(gone: tuple[int, int]) -> None:
    """Of every index, at the beginning of the ring and inside it."""
    assert equal(Topology.preset("h100", 8).without(gone), BALANCE, 2**20)["as"] == "rings between nodes"


@pytest.mark.parametrize("nodes", [2, 3, 5, 16, 64])
@pytest.mark.parametrize("more", [0, 13, -1000])
def test_elements_that_lanes_and_nodes_do_not_divide(nodes: int, more: int) -> None:
    topology = Topology.preset("h100", nodes).without((nodes - 1, 5))
    how = equal(topology, BALANCE, 2**20, 2**20 + 4 * more)
    assert how["as"] == "rings between nodes" and how["rounds"] <= min(7 * nodes * (2 * nodes - 2), 200)


@pytest.mark.parametrize("nics", [2, 4, 8])
def test_other_clusters(nics: int) -> None:
    """Fewer NICs than ranks; slow memory, for which a node's sums wait; a slow fabric, in which slices end far apart; alpha; late ranks."""
    found = 0
    for local, fabric, alpha, late in ((1000, 400, 0, {}), (3, 400, 0, {}), (1000, 2, 3e-6, {}), (20, 20, 1e-6, {11: "70us", 30: "1us"})):
        topology = Topology.cluster(nodes=5, gpus_per_node=8, nics_per_node=nics, nic_gbits_per_s=400, fabric_gbytes_per_s=fabric,
                                    local_gbytes_per_s=local).without((2, 1))  # fmt: skip
        for nbytes in (7 * 5 * 4 * 100, 2**20 + 4, 2**23):
            if outline("all_reduce", topology, nbytes, algorithm=BALANCE).loops is not None:
                found += equal(topology, BALANCE, nbytes, alpha=alpha, late=late)["as"] == "rings between nodes"
    assert found >= 3


def test_passes_one_after_the_other() -> None:
    """Slices of a lane follow one another, as those of a hierarchical schedule do."""
    topology = Topology.cluster(nodes=2, gpus_per_node=8, nics_per_node=8, nic_gbits_per_s=400, fabric_gbytes_per_s=1,
                                local_gbytes_per_s=1000).without((1, 3))  # fmt: skip
    found = 0
    for nbytes in (2**19, 2**20, 2**21):
        made = outline("all_reduce", topology, nbytes, algorithm=BALANCE).loops
        if made is not None and made.slice_of.shape[1] > 1:
            found += equal(topology, BALANCE, nbytes)["as"] == "rings between nodes"
    assert found


def test_nodes_of_one_rank() -> None:
    """Flat rings, which meet in the rank's memory."""
    topology = Topology.cluster(nodes=9, gpus_per_node=1, nics_per_node=8, nic_gbits_per_s=400).without((4, 2))
    assert equal(topology, BALANCE, 2**20)["as"] == "rings"


def test_slower_nics_and_rates_that_change() -> None:
    """Units that are not alike: every message of two sizes is evaluated."""
    topology = Topology.preset("h100", 6).without((3, 2)).slow(1.001, rank=11)
    assert equal(topology, BALANCE, 2**20, late={17: "3us"})["as"] == "rings between nodes"
    topology = Topology.preset("h100", 6).without((3, 2))
    for seed in range(4):
        changes = Changes.of(links_of(topology, random_changes(np.random.default_rng(seed), topology, 10**8)))
        equal(topology, BALANCE, 2**20, changes=changes)


@pytest.mark.parametrize("algorithm", [BALANCE, HIERARCHICAL])
def test_messages_that_wait_for_longer_ones(algorithm: str) -> None:
    """From some latency on what an element more takes is hidden, step by step."""
    base = Topology.preset("h100", 16)
    base = base.without((3, 2)) if algorithm == BALANCE else base
    nbytes, whole, rounds = 2**16 + 40, 16 * 7 * 8 * 4 * 16, []
    for latency in (0, 100, 400, 900, 1000, 1100, 1200, 1300, 1400, 1500, 1600, 2000, 5000, 10**6):
        topology = base.replace(nic_latency_ps=np.full_like(base.nic_latency_ps, latency))
        rounds.append(equal(topology, algorithm, whole, nbytes, channels=2)["rounds"])
    assert rounds[0] > rounds[-1] == min(rounds)


@pytest.mark.parametrize("name", ["balance", "resilient", "recursive", "optcc", "mix"])
def test_what_falls_back_to_balance_is_timed_as_balance(name: str) -> None:
    """Of two nodes only one is healthy, so none of them has another form."""
    topology = Topology.preset("h100", 2).without((1, 6))
    assert equal(topology, name, 2**20)["as"] == "rings between nodes"


def test_what_has_another_form_is_not_timed_as_balance() -> None:
    """Meetings with the node that lost a NIC are no rings: as such, or told where there are few ops, else refused by name."""
    topology = Topology.preset("h100", 8).without((3, 2))
    ways = (("recursive", 2**20, "steps"), ("optcc", 2**20, "meetings"), ("mix", 2**20, "steps"), ("mix", 2**26, "steps"))
    for name, nbytes, way in ways:
        outlined = outline("all_reduce", topology, nbytes, algorithm=name)
        assert outlined.loops is None and outlined.node_phase is None
        found, how = finish_times(outlined, topology)
        assert how["as"] == way and found.tolist() == exact_times(outlined.unroll(), topology).finish_ps.tolist()
    large = Topology.preset("h100", 16384).without((7, 2), (9, 2), (9, 3))
    with pytest.raises(Inapplicable, match="recursive all_reduce on .* several levels"):
        summarize(outline("all_reduce", large, "1GiB", algorithm="recursive"), large)


SEVERAL = [((1, 2), (5, 3)), ((0, 7), (6, 0), (7, 1)), ((2, 2), (4, 2)), ((3, 1), (3, 6)), ((1, 2), (5, 3), (5, 4))]


@pytest.mark.parametrize("gone", SEVERAL)
@pytest.mark.parametrize("nbytes", [2**20, 2**22 + 4, 2**24])
def test_several_lost_nics(gone: tuple[tuple[int, int], ...], nbytes: int) -> None:
    """Of several indices, so that lanes cross at other ranks on some nodes, which begin at another time."""
    topology = Topology.preset("h100", 8).without(*gone)
    if outline("all_reduce", topology, nbytes, algorithm=BALANCE).loops is not None:
        assert equal(topology, BALANCE, nbytes)["as"] == "rings between nodes"
    slow = topology.replace(fabric_bytes_per_s=topology.fabric_bytes_per_s // 50)
    outlined = outline("all_reduce", slow, nbytes, algorithm=BALANCE)
    if outlined.loops is not None:
        equal(slow, BALANCE, nbytes, alpha=1e-6)


@pytest.mark.parametrize("factor", [1.2, 1.5, 2, 3, 4])
@pytest.mark.parametrize("nodes", [3, 8])
def test_lanes_of_unequal_shares(factor: float, nodes: int) -> None:
    """A slower NIC: its lane carries as much less; each lane has chunks of its own length, also in nominal time."""
    topology = Topology.preset("h100", nodes).slow(factor, nic=(nodes - 1, 4))
    loops = outline("all_reduce", topology, 2**20, algorithm=BALANCE).loops
    assert loops is not None and len(np.unique(loops.span)) == 2
    for nbytes, options in ((2**20, {}), (2**20 + 52, {"late": {13: "3us"}}), (2**24 + 4, {"alpha": 1e-6})):
        assert equal(topology, BALANCE, 2**20, nbytes, **options)["as"] == "rings between nodes"


def in_twos(rng: np.random.Generator) -> Topology:
    """Lost NICs or a slower one, and NICs so slow that two chunks of a lane are under way, and more in nodes of one rank."""
    nodes, group = int(rng.integers(3, 9)), int(rng.integers(1, 5))
    nics = max(2, group * int(rng.integers(1, 3)))
    topology = Topology.cluster(nodes=nodes, gpus_per_node=group, nics_per_node=nics, nic_gbits_per_s=float(rng.integers(1, 100)),
                                fabric_gbytes_per_s=int(rng.integers(10, 300)), local_gbytes_per_s=int(rng.integers(10, 1000)))
    lost = {(int(rng.integers(nodes)), int(rng.integers(nics))) for _ in range(int(rng.integers(1, 3)))}
    topology = topology.without(*lost) if rng.random() < 0.7 else topology.slow(float(rng.choice([1.5, 2, 3])), nic=lost.pop())
    return topology if topology.nic_bytes_per_s.reshape(nodes, -1).any(axis=1).all() else in_twos(rng)


@pytest.mark.parametrize("block", range(10))
def test_chunks_that_come_in_twos(block: int) -> None:
    """As many as a step has, each round of them an addition and a put."""
    ways = []
    for seed in range(10 * block, 10 * (block + 1)):
        rng = np.random.default_rng(seed)
        topology, nbytes = in_twos(rng), 16 * int(rng.integers(2**12, 2**22))
        made = outline("all_reduce", topology, nbytes, algorithm=BALANCE)
        if made.loops is None or made.loops.depth == 1 or made.ops_about > 100_000:
            continue
        late = {int(rng.integers(topology.n_ranks)): "30us"} if rng.random() < 0.3 else {}
        sizes = (nbytes, nbytes + 4 * int(rng.integers(-99, 99)), made.loops.parts * 4 * int(rng.integers(1, 30)))
        ways += [equal(topology, BALANCE, nbytes, size, late=late, alpha=float(rng.choice([0, 1e-6])))["as"] for size in sizes]
    assert sum(way.startswith("rings") for way in ways) >= 6


@pytest.mark.parametrize("nics", [4, 8])
def test_lanes_of_unequal_shares_that_meet(nics: int) -> None:
    """In the one rank of a node: in step, each with messages of its own length."""
    topology = Topology.cluster(nodes=9, gpus_per_node=1, nics_per_node=nics, nic_gbits_per_s=400, local_gbytes_per_s=20)
    topology = topology.slow(3, nic=(4, 2))
    for nbytes in (2**18, 2**20 + 52):
        assert equal(topology, BALANCE, 2**20, nbytes)["as"] == "rings"


@pytest.mark.parametrize("seed", range(40))
def test_slower_and_lost_nics(seed: int) -> None:
    """Whatever lanes these make: rings, or told."""
    rng = np.random.default_rng(seed)
    nodes, group = int(rng.integers(2, 7)), int(rng.choice([2, 4, 8]))
    topology = Topology.cluster(nodes=nodes, gpus_per_node=group, nics_per_node=group * int(rng.choice([1, 1, 2])), nic_gbits_per_s=400,
                                fabric_gbytes_per_s=float(rng.choice([20, 400])), local_gbytes_per_s=float(rng.choice([20, 1000])))
    for _ in range(int(rng.integers(1, 4))):
        nic = (int(rng.integers(nodes)), int(rng.integers(group)))
        topology = topology.slow(float(rng.choice([1.1, 2, 5])), nic=nic) if rng.integers(3) else topology.without(nic)
    if topology.nic_bytes_per_s.reshape(nodes, -1).any(axis=1).all():
        equal(topology, BALANCE, int(rng.choice([2**16, 2**20])), 4 * int(rng.integers(10**4, 10**6)), alpha=float(rng.choice([0, 1e-6])))


def test_131072_ranks_around_two_slower_nics() -> None:
    """Two of nine lanes have one rank in every node; chunks of 1 GiB differ by an element, and every message of these is timed."""
    topology = Topology.preset("h100", 16384).slow(4, nic=(7, 2)).slow(3, nic=(9, 3))
    outlined = outline("all_reduce", topology, "1GiB", algorithm=BALANCE)
    assert outlined.loops is not None and shared_ranks(outlined.loops)
    found = summarize(outlined, topology).meta
    assert found["evaluated"]["as"] == "rings between nodes" and found["evaluated"]["rounds"] > 10**9
    whole = outlined.loops.parts * 4
    even, how = finish_times(outlined, topology, 2**30 // whole * whole)
    assert how["rounds"] < 10**6 and abs(int(even.max()) / found["time_ps"] - 1) < 0.01


def test_131072_ranks_around_a_slower_nic() -> None:
    """As fast as what is left allows, but for what crosses nodes takes; in a second or two."""
    topology = Topology.preset("h100", 16384)
    times = {}
    for factor in (1, 2, 4):
        slow = topology.slow(factor, nic=(7, 2)) if factor > 1 else topology.without((7, 2))
        found = summarize(outline("all_reduce", slow, "1GiB", algorithm=BALANCE), slow).meta
        assert found["evaluated"]["as"] == "rings between nodes"
        times[factor] = found["time_ps"]
    assert times[2] < times[4] < times[1]  # 7.5, 7.25 and 7 NICs' worth


def test_many_nodes() -> None:
    """As if every message was timed: 1,024 nodes, as many as can be here."""
    topology = Topology.preset("h100", 1024).without((7, 2))
    outlined = outline("all_reduce", topology, "1GiB", algorithm=BALANCE)
    found, how = finish_times(outlined, topology)
    whole, plainly = finish_times(outlined, topology, merge=False, jumps=False)
    assert found.tolist() == whole.tolist() and how["rounds"] * 500 < plainly["rounds"]


@pytest.mark.parametrize("name", ["balance", "resilient"])
def test_131072_ranks_around_a_lost_nic(name: str) -> None:
    """Few messages do what no other one does; no faster than it can be, wherever the NIC was: as many chunks are longer."""
    topology, times = Topology.preset("h100", 16384), []
    for gone in ((7, 2), (16000, 2)):
        lost = topology.without(gone)
        found = summarize(outline("all_reduce", lost, "1GiB", algorithm=name), lost).meta
        assert found["evaluated"]["as"] == "rings between nodes" and found["evaluated"]["rounds"] < 1000
        problem = make_problem("all_reduce", lost, "1GiB", dtype="float32", redop="sum", in_place=False, root=0, peer=1, channels=None,
                               counts=None)  # fmt: skip
        assert found["time_ps"] * 1e-12 >= of_problem(problem)
        times.append(found["finish_ps"])
    assert times[0].max() == times[1].max() and sorted(times[0].tolist()) == sorted(times[1].tolist())


def test_ten_lost_nics_among_131072_ranks() -> None:
    topology = Topology.preset("h100", 16384).without((7, 2), (9, 3), (77, 0), (500, 7), (501, 1), (4000, 5), (8191, 6), (9000, 2),
                                                      (12345, 4), (16383, 0))  # fmt: skip
    found = summarize(outline("all_reduce", topology, "1GiB", algorithm=BALANCE), topology).meta
    assert found["evaluated"]["as"] == "rings between nodes" and found["evaluated"]["rounds"] < 1000


def test_elements_that_do_not_divide_where_lanes_share_a_nic() -> None:
    """The messages of one lane wait for those of the other: few of them do what no other one does, and are followed round the ring."""
    topology = Topology.preset("h100", 512)
    outlined = outline("all_reduce", topology, "1GB", algorithm=HIERARCHICAL)
    found, how = finish_times(outlined, topology)
    assert found.tolist() == finish_times(outlined, topology, merge=False, jumps=False)[0].tolist()
    assert how["rounds"] < 1000 < how["jumped"]  # of 512 · 8 · 2 · 1022
