"""Chunks of a node that are added where they come by (decision 21): the exact tier beside fair sharing, and how slices are cut."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ccl_lab as ccl
from ccl_lab.planner import all_reduce_hierarchical, cost, outline, plan
from ccl_lab.planner.problem import Problem
from ccl_lab.topo import Topology


def both(algorithm: str, topology: Topology | str, nbytes: str, *faults: str) -> tuple[float, float]:
    """µs of the exact and the shared tier."""
    exact, shared = (ccl.simulate("all_reduce", topology, nbytes, algorithm=algorithm, faults=faults, tier=tier).time_us
                     for tier in ("exact", "shared"))  # fmt: skip
    return exact, shared


@pytest.mark.parametrize("nbytes", ["1MiB", "16MiB", "256MiB", "1GiB"])
@pytest.mark.parametrize("topology", ["h100:nodes=8", "a100:nodes=4"])
def test_no_sum_stands_before_a_ring(topology: str, nbytes: str) -> None:
    """Sums before the rings took up to 1.35 times as long in the static order, and around a lost NIC 1.7 times."""
    exact, shared = both("hierarchical", topology, nbytes)
    assert exact == pytest.approx(shared, rel=0.1)
    exact, shared = both("balance", topology, nbytes, "nic:node=1,nic=2")
    assert exact == pytest.approx(shared, rel=0.01)


def test_balance_is_better_than_a_ring_around_a_lost_nic() -> None:
    for nbytes in ("64MiB", "256MiB", "1GiB"):
        lanes, ring = (both(name, "h100:nodes=8", nbytes, "nic:node=1,nic=2")[0] for name in ("balance", "ring"))
        assert lanes < 0.7 * ring


def test_rounds_are_as_many_as_pay() -> None:
    """One where latency decides, several where slices hide what happens inside nodes; two lanes where one leaves the NIC idle."""
    def cut(nodes: int, nbytes: str, **options: int) -> tuple[int, int]:
        loops = outline("all_reduce", Topology.preset("h100", nodes), nbytes, algorithm="hierarchical", **options).loops
        assert loops is not None
        return int(loops.slice_of.max()) + 1, len(np.unique(loops.channel))

    assert cut(16384, "1GiB") == (1, 1) and cut(8, "1MiB") == (1, 1)
    assert cut(8, "1GiB") == (16, 2) and cut(8, "4GiB") == (32, 2)
    assert cut(8, "1GiB", channels=1)[1] == cut(8, "1GiB", channels=2)[1] == 1
    slices, lanes = cut(8, "1GiB", channels=4)
    assert lanes == 3 and slices % 3 == 0


def test_a_cut_is_near_the_best() -> None:
    """Of all numbers of rounds, by the simulator and with what a round costs a rank, at sizes from latency to bandwidth."""
    for nodes, nbytes in ((2, "16MiB"), (8, "1MiB"), (8, "64MiB"), (8, "1GiB"), (64, "256MiB"), (64, "4GiB")):
        topology, times, chosen = Topology.preset("h100", nodes), {}, []
        choose = all_reduce_hierarchical.hierarchical_cut

        def watched(problem: Problem, choose: Callable[[Problem], cost.Cut] = choose, chosen: list[cost.Cut] = chosen) -> cost.Cut:
            chosen.append(choose(problem))
            return chosen[-1]

        cuts = [cost.Cut(rounds * lanes, lanes) for rounds in (1, 2, 4, 8, 16) for lanes in (1, 2)]
        with pytest.MonkeyPatch.context() as patch:
            for cut in (None, *cuts):
                patch.setattr(all_reduce_hierarchical, "hierarchical_cut", (lambda _, cut=cut: cut) if cut else watched)
                us = ccl.simulate("all_reduce", topology, nbytes, algorithm="hierarchical", result="summary").time_us
                of = cut or chosen[-1]
                times[cut] = us + of.slices * 8 * cost.CHUNK_SECONDS * 1e6
        assert times.pop(None) < 1.25 * min(times.values()), (nodes, nbytes, chosen[-1], times)


@pytest.mark.parametrize("algorithm", ["hierarchical", "balance"])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_rank_adds_what_its_node_has(algorithm: str, in_place: bool) -> None:
    """g arrays of the chunk that it sends first, g + 1 of those that come by, and nothing else: g + 1 a chunk, but for one in K."""
    nodes, group = 4, 3
    topology = Topology.cluster(nodes=nodes, gpus_per_node=group, nics_per_node=group, nic_gbits_per_s=100)
    topology = topology.without((1, 2)) if algorithm == "balance" else topology
    schedule = plan("all_reduce", topology, "4MiB", algorithm=algorithm, in_place=in_place)
    sums = schedule.ops.src_count[schedule.ops.kind == ccl.Kind.reduce]
    assert set(sums.tolist()) == {group, group + 1}
    ccl.verify(schedule)


def test_nodes_of_several_sizes() -> None:
    """Lanes around a lost NIC, of nodes of three ranks, of two, and of one, which adds its own input alone."""
    topology = Topology.cluster(nodes=4, gpus_per_node=[3, 2, 1, 3], nics_per_node=3, nic_gbits_per_s=100).without((0, 1))
    schedule = plan("all_reduce", topology, "1MiB", algorithm="balance")
    sums = schedule.ops.src_count[schedule.ops.kind == ccl.Kind.reduce]
    assert set(sums.tolist()) == {2, 3, 4}
    ccl.verify(schedule)
