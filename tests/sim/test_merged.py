"""Rings between nodes whose chains share links at different paces (several lost NICs): merged by batch, equal to the exact tier."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import ccl_lab as ccl
from ccl_lab.errors import Inapplicable
from ccl_lab.planner import outline, plan
from ccl_lab.simulator import exact_times, finish_times, hierarchy, loops, summarize
from ccl_lab.simulator.changes import Changes
from ccl_lab.topo import Topology

from ..shares import expected, first_of
from .cases import links_of, random_changes
from .test_scale import draw

HIERARCHICAL = ("all_reduce", "hierarchical")


def several_lost(rng: np.random.Generator) -> tuple[Topology, int]:
    """Nodes of several NICs, one to ten of which are gone, and bytes that may divide unevenly."""
    nodes, group = int(rng.integers(2, 20)), int(rng.choice([2, 4, 8]))
    topology = Topology.cluster(
        nodes=nodes, gpus_per_node=group, nics_per_node=group, nic_gbits_per_s=float(rng.choice([400, 100, 7.3])),
        fabric_gbytes_per_s=int(rng.choice([400, 3])), local_gbytes_per_s=int(rng.choice([2, 1000])))  # fmt: skip
    gone: set[tuple[int, int]] = set()
    for _ in range(int(rng.integers(1, 11))):
        node, nic = int(rng.integers(nodes)), int(rng.integers(group))
        if sum(each == node for each, _ in gone) < group - 1:
            gone.add((node, nic))
    topology = topology.without(*sorted(gone))
    if rng.random() < 0.3:
        topology = topology.slow(float(rng.uniform(1, 5)), nic=next(
            (node, nic) for node in range(nodes) for nic in range(group) if (node, nic) not in gone))  # fmt: skip
    even = 4 * nodes * group * int(rng.choice([7, 100, 3000]))
    return topology, even * int(rng.choice([1, 8])) + (4 * int(rng.integers(1, 50)) if rng.random() < 0.3 else 0)


@pytest.mark.parametrize("block", range(3))
def test_several_lost_nics_equal_the_table_of_ops(block: int) -> None:
    merged = 0
    for seed in range(12 * block, 12 * block + 12):
        rng = np.random.default_rng([seed, 4])
        topology, nbytes = several_lost(rng)
        outlined = outline("all_reduce", topology, nbytes, algorithm="hierarchical")
        schedule = plan("all_reduce", topology, nbytes, algorithm="hierarchical")
        n = topology.n_ranks
        late = {r: f"{int(rng.integers(1, 10**7))}ps" for r in range(n) if rng.random() < 0.1} if rng.random() < 0.4 else {}
        alpha = float(rng.choice([0, 3e-6]))
        changes = Changes.of({})
        if rng.random() < 0.3:
            end = exact_times(schedule, topology, late=late, alpha=alpha).time_ps
            changes = Changes.of(links_of(topology, random_changes(rng, topology, int(end))))
        found, how = finish_times(outlined, topology, late=late, alpha=alpha, changes=changes)
        want = exact_times(schedule, topology, late=late, alpha=alpha, changes=changes).finish_ps
        assert found.tolist() == want.tolist(), seed
        merged += how.get("merged", 0) > 0
    assert merged >= 3


def test_what_goes_round_by_round_is_the_same_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    merged: list[int] = []

    def always(*args: Any, **options: Any) -> Any:
        found = loops.evaluate(*args, **{**options, "merged": True})
        merged.append(found[-1]["merged"])
        return found

    for seed in first_of(range(40)):
        drawn = draw(seed + 700, HIERARCHICAL)
        if drawn is None or drawn[1].loops is None:
            continue
        schedule, outlined, topology, late, alpha = drawn
        want = exact_times(schedule, topology, late=late, alpha=alpha).finish_ps
        with monkeypatch.context() as patched:
            patched.setattr(hierarchy, "evaluate", always)
            for merge in (False, True):
                try:
                    found, _ = finish_times(outlined, topology, late=late, alpha=alpha, merge=merge)
                except Inapplicable:
                    continue
                assert found.tolist() == want.tolist(), (seed, merge)
    assert sum(count > 0 for count in merged) >= expected(21)


def test_two_lost_nics_whose_rails_meet() -> None:
    topology = Topology.preset("h100", 100).without((9, 3), (77, 5))
    found, how = finish_times(outline("all_reduce", topology, "64MiB", algorithm="hierarchical"), topology)
    schedule = plan("all_reduce", topology, "64MiB", algorithm="hierarchical")
    assert how["merged"] and found.tolist() == exact_times(schedule, topology).finish_ps.tolist()


def test_numbering_nodes_differently_changes_nothing() -> None:
    gone, turn, nodes = ((9, 3), (37, 5), (50, 0), (50, 1), (130, 7)), 41, 160
    times = []
    for shift in (0, turn):
        topology = Topology.preset("h100", nodes).without(*(((node + shift) % nodes, nic) for node, nic in gone))
        found, how = finish_times(outline("all_reduce", topology, topology.n_ranks * 4 * 4096, algorithm="hierarchical"), topology)
        assert how["merged"]
        times.append(found.reshape(nodes, 8))
    assert np.roll(times[0], turn, axis=0).tolist() == times[1].tolist()


def test_more_ops_than_can_be_told_are_timed_all_the_same() -> None:
    run = partial(ccl.simulate, "all_reduce", "h100:nodes=520", "1GiB", algorithm="hierarchical")
    whole, one = run(), run(faults=["nic:node=9,nic=3"])
    several = run(faults=["nic:node=9,nic=3", "nic:node=77,nic=5"])
    assert several.meta["evaluated"]["merged"] and several.meta["time_ps"] >= one.meta["time_ps"] > whole.meta["time_ps"]


@pytest.mark.parametrize("block", range(2))
def test_what_is_jumped_over_is_what_would_be_evaluated(block: int) -> None:
    evaluated = jumped = 0
    for seed in range(10 * block, 10 * block + 10):
        rng = np.random.default_rng([seed, 77])
        nodes, group = int(rng.integers(30, 120)), int(rng.choice([2, 4, 8]))
        topology = Topology.cluster(
            nodes=nodes, gpus_per_node=group, nics_per_node=group, nic_gbits_per_s=float(rng.choice([400, 100, 7.3])),
            fabric_gbytes_per_s=400, local_gbytes_per_s=int(rng.choice([2, 20, 1000])))  # fmt: skip
        gone = {(int(rng.integers(nodes)), int(rng.integers(group))) for _ in range(int(rng.integers(2, 5)))}
        topology = topology.without(*sorted(gone))
        late = {int(rng.integers(topology.n_ranks)): f"{int(rng.integers(1, 10**8))}ps"} if rng.random() < 0.4 else {}
        outlined = outline("all_reduce", topology, 4 * topology.n_ranks * 2800, algorithm="hierarchical")
        found, how = finish_times(outlined, topology, late=late)
        if not how.get("merged"):
            continue
        want, _ = finish_times(outlined, topology, late=late, jumps=False)
        assert found.tolist() == want.tolist(), seed
        evaluated, jumped = evaluated + how["merged"], jumped + how["jumped"]
    assert jumped > 5000 and evaluated > 0


@pytest.mark.parametrize("nodes, gone", [
    (1024, ((7, 2), (512, 5))), (512, ((67, 0), (243, 2), (378, 7))), (400, tuple((1 + 39 * i, i % 8) for i in range(10)))])  # fmt: skip
def test_most_messages_of_many_nodes_are_jumped_over_or_passed_on(nodes: int, gone: tuple[tuple[int, int], ...]) -> None:
    topology = Topology.preset("h100", nodes).without(*gone)
    outlined = outline("all_reduce", topology, 4 * topology.n_ranks * 2800, algorithm="hierarchical")
    found, how = finish_times(outlined, topology)
    assert how["jumped"] > 10 * how["merged"] > 0
    assert found.tolist() == finish_times(outlined, topology, jumps=False)[0].tolist()


@pytest.mark.parametrize("block", range(2))
def test_what_is_passed_on_between_unlike_nodes_is_what_would_be_evaluated(block: int) -> None:
    """Slower NICs and late ranks here and there among nodes that are alike."""
    compared = 0
    for seed in range(12 * block, 12 * block + 12):
        rng = np.random.default_rng([seed, 78])
        nodes, group = int(rng.integers(60, 160)), int(rng.choice([2, 4, 8]))
        topology = Topology.cluster(
            nodes=nodes, gpus_per_node=group, nics_per_node=group, nic_gbits_per_s=float(rng.choice([400, 100, 7.3])),
            fabric_gbytes_per_s=int(rng.choice([400, 3])), local_gbytes_per_s=int(rng.choice([2, 20, 1000])))  # fmt: skip
        gone = {(int(rng.integers(nodes)), int(rng.integers(group))) for _ in range(int(rng.integers(3, 8)))}
        if max(sum(each == node for each, _ in gone) for node in range(nodes)) == group:
            continue
        topology = topology.without(*sorted(gone))
        for node in rng.choice(nodes, int(rng.integers(1, 5)), replace=False).tolist():
            whole = [nic for nic in range(group) if (node, nic) not in gone]
            if whole:
                topology = topology.slow(float(rng.choice([1.01, 1.5, 2, 3.7])), nic=(node, int(rng.choice(whole))))
        late = {r: f"{int(rng.integers(1, 10**8))}ps" for r in range(topology.n_ranks) if rng.random() < rng.choice([0, 0.005, 0.05])}
        outlined = outline("all_reduce", topology, 4 * topology.n_ranks * int(rng.choice([100, 2800])), algorithm="hierarchical")
        alpha = float(rng.choice([0, 2e-6]))
        found, how = finish_times(outlined, topology, late=late, alpha=alpha)
        if how.get("merged"):
            assert found.tolist() == finish_times(outlined, topology, late=late, alpha=alpha, jumps=False)[0].tolist(), seed
            compared += 1
    assert compared >= 4


def test_more_messages_than_are_timed_one_by_one_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = Topology.preset("h100", 16384).without((7, 2), (1000, 5))
    monkeypatch.setattr(hierarchy, "evaluate", partial(loops.evaluate, merged=True))
    with pytest.raises(Inapplicable, match="too many messages to time each"):
        finish_times(outline("all_reduce", topology, "1GiB", algorithm="hierarchical"), topology, jumps=False)


def test_three_lost_nics_whose_rails_meet_among_131_072_ranks_are_timed() -> None:
    gone = ((7, 2), (3007, 5), (6007, 0))
    topology = Topology.preset("h100", 16384).without(*gone)
    outlined = outline("all_reduce", topology, "1GiB", algorithm="hierarchical")
    summary = summarize(outlined, topology)
    assert 50 * summary.meta["evaluated"]["merged"] < summary.meta["evaluated"]["jumped"]
