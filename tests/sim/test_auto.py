"""`auto` at scale: it ends in a Summary, of the cheapest algorithm that can be timed, or in one error that says why none can."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ccl_lab import simulation
from ccl_lab.errors import Inapplicable
from ccl_lab.planner import choose, outline
from ccl_lab.planner.problem import make_problem
from ccl_lab.simulation import simulate
from ccl_lab.simulator import flow
from ccl_lab.topo import Topology

GONE = "nic:node=7,nic=2"
TOLD_IN_SECONDS = 30_000_000  # ops that are put in order


def test_what_cannot_be_timed_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """98,304 ranks are no power of two: where a NIC is lost ops of halving-doubling are put in order, if they are few enough."""
    monkeypatch.setattr(flow, "MOST_ORDERED", 1_000_000)
    found = simulate("all_reduce", "h100:nodes=12288", "1MiB", faults=[GONE])
    first, *others = found.meta["reasons"]
    assert first.startswith(f"{found.meta['algorithm']}: ") and first.endswith("chosen")
    passed = [line for line in others if "passed over: " in line]
    assert [line.partition(":")[0] for line in passed][0] == "halving_doubling" and "ops put in order" in passed[0]
    with pytest.raises(Inapplicable, match="ops put in order .* allows it"):
        simulate("all_reduce", "h100:nodes=12288", "1MiB", faults=[GONE], algorithm="halving_doubling")


def test_rows_are_of_the_algorithm_that_was_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = simulation.summarize

    def but_not_the_first(what: Any, *more: Any) -> Any:
        if what.algorithm == first:
            raise Inapplicable("too long a reason", why="it is the first")
        return timed(what, *more)

    first = simulate("all_reduce", "h100:nodes=1024", "1GiB").meta["algorithm"]
    monkeypatch.setattr(simulation, "summarize", but_not_the_first)
    found = simulate("all_reduce", "h100:nodes=1024", "1GiB", rows=["nics"])
    second = found.meta["algorithm"]
    assert second != first and any(line.endswith("passed over: it is the first") for line in found.meta["reasons"])
    alone = simulate("all_reduce", "h100:nodes=1024", "1GiB", algorithm=second, rows=["nics"])
    assert found.meta["rows"] == alone.meta["rows"] and found.time_ps == alone.time_ps


def test_one_error_where_none_can(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def refuse(what: Any, *_: Any) -> Any:
        tried.append(what.algorithm)
        raise Inapplicable("…", why=f"reason {len(tried)}")

    monkeypatch.setattr(simulation, "summarize", refuse)
    with pytest.raises(Inapplicable, match="no algorithm of all_reduce is timed in seconds") as error:
        simulate("all_reduce", "h100:nodes=16384", "1GiB")
    assert len(tried) == len(set(tried)) >= 4
    assert all(f"{name}: reason {i + 1}" in str(error.value) for i, name in enumerate(tried))


def test_lanes_around_lost_nics_are_compared() -> None:
    """32,768 ranks, for whose 64 GiB balance is the cheapest; and 131,072 ranks."""
    found = simulate("all_reduce", "h100:nodes=4096", "64GiB", faults=[GONE])
    assert found.meta["algorithm"] == "balance" and found.meta["evaluated"]["as"] == "rings between nodes"
    assert found.time_ps == simulate("all_reduce", "h100:nodes=4096", "64GiB", faults=[GONE], algorithm="balance").time_ps
    for nodes, nbytes, lost in ((4096, "64GiB", [GONE]), (16384, "256GiB", [GONE + ",factor=2", "nic:node=9,nic=3"])):
        planned = outline("all_reduce", simulation.degrade(Topology.preset("h100", nodes), lost)[0], nbytes)
        assert planned.algorithm == "balance" and planned.reasons[0].endswith("chosen")
        for name in ("resilient", "recursive", "optcc", "mix"):
            assert sum(line.startswith(f"{name}: ") and "estimated" in line for line in planned.reasons) >= 1
        assert [line.partition(":")[0] for line in planned.reasons if line.startswith(("degraded", "lower bound"))] == [
            "degraded", "lower bound"]  # fmt: skip


def test_where_nothing_is_lost_what_was_made_for_losses_is_not_taken() -> None:
    whole = outline("all_reduce", Topology.preset("h100", 16384), "1GiB")
    assert whole.algorithm not in choose.DEGRADED and not any(line.startswith("degraded") for line in whole.reasons)


@pytest.mark.parametrize(("odd", "left_out"), [(choose.MOST_UNLIKE, False), (choose.MOST_UNLIKE + 1, True)])
def test_lanes_around_too_many_nodes_are_not(odd: int, left_out: bool) -> None:
    topology = Topology.preset("h100", 256).without(*((3 * node, 2) for node in range(odd)))
    reasons = outline("all_reduce", topology, "64MiB").reasons
    assert [line for line in reasons if "not compared" in line] == [
        f"balance, resilient, recursive, optcc, mix: not compared: {odd} of 256 nodes have lost NICs or slower ones, each in its own way: "
        "above 1,024 ranks lanes are planned around 64 of them"] * left_out  # fmt: skip
    assert any(line.startswith("balance: ") for line in reasons) != left_out
    few = Topology.preset("h100", 128).without(*((node, 2) for node in range(100)))
    assert not any("not compared" in line for line in outline("all_reduce", few, "64MiB").reasons)  # 1,024 ranks


def test_around_one_node_that_is_faster_all_others_have_lost() -> None:
    faster = Topology.cluster(nodes=256, gpus_per_node=8, nics_per_node=8)
    rates = faster.nic_bytes_per_s.copy()
    rates[8] *= 2
    assert choose.left_out(make_problem("all_reduce", faster.replace(nic_bytes_per_s=rates), "1MiB", dtype="int8", redop="sum",
                                        in_place=False, root=0, peer=1, channels=None, counts=None)).startswith("255 of 256")  # fmt: skip


def random_rates(nodes: int, group: int, seed: int) -> Topology:
    rates = np.random.default_rng(seed).integers(10**9, 5 * 10**10, nodes * group)
    return Topology.cluster(nodes=nodes, gpus_per_node=group, nics_per_node=group).replace(nic_bytes_per_s=rates)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "broadcast", "reduce"])
def test_ops_of_lanes_of_any_rates_are_counted(collective: str) -> None:
    """Many more lanes than NICs."""
    outlined = outline(collective, random_rates(8, 4, 1), "16MiB", algorithm="balance")
    assert len(outlined.unroll().ops) / 2 < outlined.ops_about < 2 * len(outlined.unroll().ops)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter",
                                        "all_to_all", "send_recv"])  # fmt: skip
def test_balance_ends_whatever_the_rates_of_512_nics(collective: str) -> None:
    topology = random_rates(64, 8, 0)
    try:
        found = simulate(collective, topology, "64MiB", algorithm="balance", result="summary")
        assert found.meta["evaluated"].get("ops", 0) <= TOLD_IN_SECONDS and found.time_us > 0
    except Inapplicable as why:
        assert "wait for others" in str(why) or "put in order" in str(why)


def test_direct_around_a_lost_nic_where_it_has_a_timetable_or_its_turns_are_dealt_in_seconds() -> None:
    found = simulate("all_to_all", "h100:nodes=4096", "1GiB", faults=[GONE])
    assert found.meta["algorithm"] == "direct" and found.meta["evaluated"]["kinds"] == 2
    two_nics = Topology.cluster(nodes=16384, gpus_per_node=4, nics_per_node=8).without((7, 2))  # copies of two channels, in no timetable
    other = outline("all_to_all", two_nics, "1GiB", in_place=True)
    assert other.algorithm != "direct" and any(line.startswith("direct: ") and line.endswith("name it") for line in other.reasons)


@pytest.mark.parametrize(("nodes", "tried"), [(16384, True), (14592, False)])
def test_exchanges_in_step_are_tried_where_switches_add_latencies(nodes: int, tried: bool) -> None:
    """Among a power of two of ranks; others are timed in seconds, too, but not if a NIC is lost."""
    topology = Topology.preset("ncclx_100k", nodes)
    problem = make_problem("all_to_all", topology, "1GiB", dtype="float32", redop="sum", in_place=False, root=0, peer=1, channels=None,
                           counts=None)  # fmt: skip
    ranked = choose.candidates(problem)
    others = {each.name: "" for each in ranked if each.name != "paired"}
    assert choose.pick(problem, ranked, outlined=True, passed_over=others) == ("paired" if tried else "")
