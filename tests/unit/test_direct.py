"""The rounds of direct algorithms: everybody once, and no two ranks of a round to the same one, nor those of a node by way of one NIC."""

from __future__ import annotations

import numpy as np
import pytest

from ccl_lab import Topology, plan
from ccl_lab.ir import Kind
from ccl_lab.planner.direct import rounds
from ccl_lab.planner.problem import make_problem


def problem_on(topology: Topology):  # type: ignore[no-untyped-def]
    return make_problem("all_to_all", topology, 4096 * topology.n_ranks, dtype="float32", redop="sum", in_place=False, root=0, peer=-1,
                        channels=None, counts=None)  # fmt: skip


@pytest.mark.parametrize(("nodes", "group"), [(1, 8), (2, 4), (3, 2), (4, 1), (5, 3)])
def test_rounds_are_permutations_that_reach_everybody_once(nodes: int, group: int) -> None:
    topology = Topology.cluster(nodes=nodes, gpus_per_node=group, nics_per_node=group, nic_gbits_per_s=10)
    rank, met = np.arange(topology.n_ranks), np.zeros((topology.n_ranks, topology.n_ranks), int)
    for to, source in rounds(problem_on(topology), rank):
        assert sorted(to) == sorted(source) == rank.tolist()
        assert (source[to] == rank).all()  # whom I send to hears of me in this round
        met[rank, to] += 1
    assert (met == 1 - np.eye(topology.n_ranks, dtype=int)).all()


@pytest.mark.parametrize("collective", ["all_to_all", "all_gather", "reduce_scatter", "all_reduce"])
def test_first_puts_between_nodes_meet_nowhere(collective: str) -> None:
    topology = Topology.cluster(nodes=3, gpus_per_node=4, nics_per_node=4, nic_gbits_per_s=10)
    ops = plan(collective, topology, 1 << 20, algorithm="direct").ops
    far = np.flatnonzero((ops.kind == Kind.put) & (topology.node_of[ops.rank] != topology.node_of[np.clip(ops.peer, 0, None)]))
    _, first = np.unique(ops.rank[far], return_index=True)
    assert len(set(ops.peer[far][first].tolist())) == topology.n_ranks


def test_nodes_of_different_sizes_go_by_distance() -> None:
    even = Topology.cluster(nodes=2, gpus_per_node=3, nics_per_node=3, nic_gbits_per_s=10)
    topology = even.replace(node_of=np.array([0, 0, 0, 0, 1, 1], np.int32), local_of=np.array([0, 1, 2, 3, 0, 1], np.int32))
    found = [to[0] for to, _ in rounds(problem_on(topology), np.arange(6))]
    assert found == [1, 2, 3, 4, 5]
