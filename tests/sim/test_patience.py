"""How much work an evaluation may be: what is refused for being too much says so, and is done where somebody is more patient."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from ccl_lab import cli, simulation
from ccl_lab.errors import Inapplicable, UsageError
from ccl_lab.simulation import simulate
from ccl_lab.simulator import flow, loops, outlined, pairs, partners, rails
from ccl_lab.simulator.patience import allowed, check_work, patience
from ccl_lab.sweeping import sweep

GONE = "nic:node=3,nic=1"

# (module, limit, what is simulated): a small case, which is over the limit where that is 10.
CASES: list[tuple[Any, str, dict[str, Any]]] = [
    (partners, "_MOST_PUTS", {"what": "all_to_all", "topology": "h100:nodes=3", "algorithm": "paired", "faults": ["nic:node=1,nic=2"]}),
    (partners, "_MOST_SIDE_BY_SIDE", {"what": "all_to_all", "topology": "h100:nodes=6", "algorithm": "paired"}),
    (pairs, "_MOST_PUTS", {"what": "all_to_all", "topology": "h100:nodes=6", "algorithm": "direct", "late": {3: "1us"}}),
    (pairs, "_MOST_CUT", {"what": "all_to_all", "topology": "h100:nodes=8", "algorithm": "direct", "faults": [GONE]}),
    (rails, "_MOST_PUTS", {"what": "all_to_all", "topology": "h100:nodes=6", "algorithm": "hierarchical", "late": {3: "1us"}}),
    (flow, "MOST_ORDERED", {"what": "all_reduce", "topology": "h100:nodes=6", "algorithm": "halving_doubling", "faults": [GONE]}),
    (loops, "_MOST_BOTH_WAYS_SWEPT", {"what": "all_reduce", "topology": "h100:nodes=6", "nbytes": 4004, "algorithm": "bidirectional_ring"}),
    (loops, "_MOST_MEETING", {"what": "all_reduce", "topology": "h100:nodes=6", "nbytes": 2**26, "algorithm": "bidirectional_ring"}),
    (outlined, "_MOST_FLOW", {"what": "all_gather", "topology": "h100:nodes=6", "algorithm": "bruck"}),
]  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_else_times_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an evaluation refuses is neither told op by op nor unrolled, as if there were 131,072 ranks."""
    monkeypatch.setattr(outlined, "_MOST_TOLD", 10)
    monkeypatch.setattr(simulation, "MOST_SPANS", 10)
    monkeypatch.setattr(simulation, "MOST_ROWS", 10)


@pytest.mark.parametrize(("module", "limit", "given"), CASES, ids=[f"{m.__name__.rpartition('.')[2]}.{n}" for m, n, _ in CASES])
def test_more_patience_does_what_is_refused(module: Any, limit: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"nbytes": "1MiB", "result": "summary", **given}
    whole = simulate(**given).finish_ps
    monkeypatch.setattr(module, limit, 10)
    with pytest.raises(Inapplicable, match=r"would take some .* \(patience=\d+ allows it\)"):
        simulate(**given)
    np.testing.assert_array_equal(simulate(**given, patience=1e6).finish_ps, whole)


def test_what_is_said() -> None:
    with pytest.raises(Inapplicable, match=r"^17,000,000,000 puts would take some 7 minutes \(patience=4 allows it\)$"):
        check_work(17_000_000_000, 5_000_000_000, "puts", 25e-9)
    with patience(4):
        check_work(17_000_000_000, 5_000_000_000, "puts", 25e-9)
        with patience(0.5):
            assert allowed(10) == 5
        assert allowed(10) == 40
    assert allowed(10) == 10


@pytest.mark.parametrize("factor", [0, -1, float("nan"), float("inf"), 1e7, "3", True])
def test_bad_factors(factor: Any) -> None:
    with pytest.raises(UsageError, match="patience .* expected a number above 0"):
        simulate("all_reduce", "h100:nodes=2", "1MiB", patience=factor)


def test_rings_are_told_their_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    rings = loops._core.simulate_rings
    monkeypatch.setattr(loops._core, "simulate_rings", lambda columns: seen.append(columns) or rings(columns))
    simulate("all_reduce", "h100:nodes=4", "1MiB", algorithm="ring", result="summary", patience=2)
    limits = ("most_rounds", "most_both_ways", "most_own_time")
    assert {tuple(each[name] for name in limits) for each in seen} == {(60_000_000, 1_200_000_000, 4_000_000_000)}


def test_on_the_command_line_and_in_grids(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(pairs, "_MOST_CUT", 10)
    words = ["simulate", "all_to_all", "--topology", "h100:nodes=8", "--algorithm", "direct", "--bytes", "1MiB", "--fault", GONE, "--json"]
    assert cli.main(words) != 0
    assert "allows it" in capsys.readouterr().err
    assert cli.main([*words, "--patience", "1000000"]) == 0
    took = json.loads(capsys.readouterr().out)["time_us"]
    with ThreadPoolExecutor(1) as executor:
        found = sweep({"what": "all_to_all", "topology": "h100:nodes=8", "nbytes": "1MiB", "algorithm": "direct", "faults": [[GONE]],
                       "patience": [1, 1_000_000]}, executor=executor)  # fmt: skip
    assert "allows it" in found.rows[0]["error"] and found.rows[1]["time_us"] == took


def test_patience_is_not_offered_where_it_is_no_help() -> None:
    with pytest.raises(Inapplicable, match="rings in both directions meet in a NIC") as refused:
        simulate("all_reduce", "h100:nodes=5", 2**26 + 4, algorithm="bidirectional_ring", result="summary")
    assert "patience" not in str(refused.value)
