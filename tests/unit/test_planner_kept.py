"""What planners keep of topologies: as much as is asked for again, and no more than four of 131,072 ranks."""

from __future__ import annotations

import dataclasses

from ccl_lab.planner import kept
from ccl_lab.planner.kept import kept_by_topology, kept_with_problem
from ccl_lab.planner.problem import Problem
from ccl_lab.topo import Topology


def test_the_last_arguments_are_kept() -> None:
    made = []

    @kept_by_topology(2)
    def of(topology: Topology, number: int) -> int:
        made.append(number)
        return topology.n_ranks + number

    small = Topology.cluster(nodes=2)
    assert [of(small, number) for number in (1, 2, 1, 3, 1, 2)] == [9, 10, 9, 11, 9, 10]
    assert made == [1, 2, 3, 2]  # 2 was the one asked for longest ago
    assert of(Topology.cluster(nodes=2), 2) == 10 and made == [1, 2, 3, 2]  # equal topologies are one


def test_large_topologies_push_out_others(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    made = []

    @kept_by_topology(64)
    def of(topology: Topology) -> int:
        made.append(topology.n_ranks)
        return topology.n_ranks

    monkeypatch.setattr(kept, "MOST_RANKS", 40)
    sizes = [Topology.cluster(nodes=nodes, gpus_per_node=1) for nodes in (8, 16, 16, 24)]
    assert [of(each) for each in sizes] == [8, 16, 16, 24] and made == [8, 16, 24]  # 48 ranks: the 8 go
    assert of(sizes[3]) == 24 and of(sizes[1]) == 16 and made == [8, 16, 24]
    assert of(sizes[0]) == 8 and made == [8, 16, 24, 8]  # and now the 24
    large = Topology.cluster(nodes=41, gpus_per_node=1)
    assert of(large) == of(large) == 41 and made == [8, 16, 24, 8, 41]  # the last one stays, whatever its size


def test_a_problem_keeps_what_was_found_of_it() -> None:
    made = []

    @kept_with_problem
    def once(problem: Problem) -> int:
        made.append(problem.nbytes)
        return problem.nbytes

    @kept_with_problem
    def other(problem: Problem) -> int:
        return -problem.nbytes

    one, two = (Problem("all_reduce", Topology.cluster(nodes=2), nbytes) for nbytes in (4, 8))
    assert [once(one), once(two), other(one), once(one), other(one)] == [4, 8, -4, 4, -4] and made == [4, 8]
    assert once(dataclasses.replace(one, nbytes=12)) == 12 and made == [4, 8, 12]
