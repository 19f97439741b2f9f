"""`auto` at scale: it ends in a Summary, of the cheapest algorithm that can be timed, or in one error that says why none can."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ccl_lab import simulation
from ccl_lab.errors import Inapplicable
from ccl_lab.planner import outline
from ccl_lab.simulation import simulate
from ccl_lab.topo import Topology

GONE = "nic:node=7,nic=2"
TOLD_IN_SECONDS = 30_000_000  # ops that are put in order


def test_what_cannot_be_timed_is_passed_over() -> None:
    """98,304 ranks are no power of two: ranks beyond it make too many ops of halving-doubling wait where a NIC is lost."""
    found = simulate("all_reduce", "h100:nodes=12288", "1GiB", faults=[GONE])
    first, *others = found.meta["reasons"]
    assert first.startswith(f"{found.meta['algorithm']}: ") and first.endswith("chosen")
    passed = [line for line in others if "passed over: " in line]
    assert [line.partition(":")[0] for line in passed][0] == "halving_doubling" and "6 million ops wait" in passed[0]
    with pytest.raises(Inapplicable, match="6 million ops wait"):
        simulate("all_reduce", "h100:nodes=12288", "1GiB", faults=[GONE], algorithm="halving_doubling")


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
