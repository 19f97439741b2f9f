"""All_reduces among ranks that are no power of two: the extra ones fold into others first, which come later than the rest of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ccl_lab.ir import Kind
from ccl_lab.planner import outline, plan
from ccl_lab.simulator import exact_times, finish_times
from ccl_lab.simulator.flow import flow_finish
from ccl_lab.topo import Topology
from ccl_lab.verifier import verify

from ..shares import expected, first_of
from .draws import Drawn, drawn, some_bytes, with_tiers
from .test_scale import even_topology

NAMES = ["halving_doubling", "recursive_doubling"]


def cases(name: str, seeds: range) -> Iterator[Drawn]:
    """Any number of ranks up to 400: late ones, NICs slower and lost, switches, several channels, sizes that parts do not divide."""
    for seed in seeds:
        rng = np.random.default_rng([seed, 71])
        topology = even_topology(rng, int(rng.choice([7, 30, 100])))
        if rng.random() < 0.5:
            topology = with_tiers(rng, topology)
        case = drawn(rng, ("all_reduce", name), topology, some_bytes(rng), (0.4, 0.2))
        if case is not None:
            yield case


@pytest.mark.parametrize("name", NAMES)
def test_what_is_told_in_order_is_what_the_table_says(name: str) -> None:
    written = ordered = 0
    for number, case in enumerate(cases(name, first_of(range(300)))):
        want, changes = case.wanted(change=True)
        times, how = finish_times(case.outlined, case.topology, late=case.late, alpha=case.alpha, changes=changes)
        assert times.tolist() == want, number
        ordered += "ordered" in how
        written += how["as"] == "steps" and not how.keys() & {"ordered", "in_step"}
    assert written >= expected(30) and ordered >= expected(30), (written, ordered)


@pytest.mark.parametrize("name", NAMES)
def test_the_table_is_what_the_oracle_says(name: str) -> None:
    compared = 0
    for case in cases(name, range(100)):
        if len(case.schedule.ops) < 2000:
            assert case.wanted(change=False)[0] == case.by_the_oracle()
            compared += 1
    assert compared >= 50


@pytest.mark.parametrize("ranks", range(2, 40))
def test_any_number_of_ranks(ranks: int) -> None:
    """Sums are right; on NICs of their own ops have to be put in order only where one far ahead meets one that is a little ahead."""
    topology = Topology.cluster(nodes=ranks, gpus_per_node=1, nics_per_node=1)
    verify(plan("all_reduce", topology, "1MiB", algorithm="halving_doubling"))
    outlined = outline("all_reduce", topology, "64MiB", algorithm="halving_doubling", channels=1)
    count = outlined.count_of(outlined.nbytes, outlined.dtype)
    times, how = flow_finish(outlined, topology, count, 4, np.zeros(ranks, np.int64), 0)
    want = exact_times(plan("all_reduce", topology, "64MiB", algorithm="halving_doubling", channels=1), topology)
    assert times.tolist() == want.finish_ps.tolist()
    assert "ordered" not in how or ranks in (21, 22, 26, 30, 37, 38)


def test_who_waits_for_nobody_folded_is_written_first() -> None:
    """Of 27 ranks 16 to 26 fold into 0 to 10, so that 12 to 15 swap two halves without them, and 11 waits for 10."""
    topology = Topology.cluster(nodes=27, gpus_per_node=1, nics_per_node=1)
    ops = plan("all_reduce", topology, "1MiB", algorithm="halving_doubling", channels=1).ops
    puts = np.flatnonzero(ops.kind == Kind.put)[11:]
    told = list(zip(ops.rank[puts].tolist(), ops.peer[puts].tolist(), strict=True))
    assert told[:5] == [(r, r ^ 1) for r in range(11, 16)]
    assert told[5:9] == [(r, r ^ 2) for r in range(12, 16)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lost", [(), ((7, 2),)])
def test_116736_ranks_with_switches(name: str, lost: tuple[tuple[int, int], ...]) -> None:
    """No rank earlier where a NIC is slower; switches that add nothing change nothing."""
    found = []
    for preset in ("ncclx_100k", "h100"):
        topology = Topology.preset(preset, 14592).without(*lost)
        found.append(finish_times(outline("all_reduce", topology, "1GiB", algorithm=name), topology))
        assert found[-1][1]["as"] == "steps" and ("ordered" in found[-1][1]) == bool(lost)
    assert (found[0][0] >= found[1][0]).all() and found[0][0].max() < 1.05 * found[1][0].max()


def test_98304_ranks() -> None:
    """The time that they took when all levels were told rank by rank."""
    topology = Topology.preset("h100", 12288)
    times, how = finish_times(outline("all_reduce", topology, "1GiB", algorithm="halving_doubling"), topology)
    assert how["as"] == "steps" and int(times.max()) == 55827369122
    lost = topology.without((7, 2))
    assert finish_times(outline("all_reduce", lost, "1GiB", algorithm="halving_doubling"), lost)[0].max() > times.max()
