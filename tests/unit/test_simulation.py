"""`simulate` and `sweep` as users call them: what they take, what they return, what they refuse."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import ccl_lab as ccl
from ccl_lab.errors import DecodeError, ShapeError, UnsupportedError, UsageError
from ccl_lab.planner import estimate, outline
from ccl_lab.simulation import degrade
from ccl_lab.simulator import Job, simulate_shared
from ccl_lab.topo import Topology

SMALL = "cluster:nodes=2,gpus_per_node=2,nics_per_node=2,nic_gbits_per_s=8"


def test_a_name_and_a_schedule_give_the_same() -> None:
    topology = ccl.Topology.preset("h100", 2)
    schedule = ccl.plan("all_reduce", topology, "8MiB", algorithm="ring")
    given, named = ccl.simulate(schedule, topology), ccl.simulate("all_reduce", "h100:nodes=2", "8MiB", algorithm="ring")
    assert isinstance(given, ccl.Trace) and isinstance(named, ccl.Trace)
    assert given.meta["time_ps"] == named.meta["time_ps"] and given.meta["schedule_digest"] == named.meta["schedule_digest"]
    summary = ccl.simulate("all_reduce", topology, "8MiB", algorithm="ring", result="summary")
    assert isinstance(summary, ccl.Summary)
    assert (summary.time_ps, summary.busbw_gbytes_per_s) == (given.meta["time_ps"], given.meta["busbw_gbytes_per_s"])
    assert summary.finish_ps.tolist() == list(given.meta["finish_ps"])


def test_many_ranks_give_a_summary() -> None:
    found = ccl.simulate("all_reduce", "h100:nodes=2048", "1GiB", algorithm="hierarchical", faults=["rank:rank=5,late=3ms"])
    assert isinstance(found, ccl.Summary) and found.meta["n_ranks"] == 16384 and found.meta["late_ranks"] == 1
    assert found.slowest_ranks(3)[0]["finish_us"] == found.time_us
    assert "16384 ranks" in repr(found) and found.time_us > 3000
    with pytest.raises(UsageError, match="1 or more"):
        found.slowest_ranks(0)


def test_what_is_told_out_of_order_is_timed_where_it_is_small_and_refused_where_not() -> None:
    gone = {"faults": ["nic:node=7,nic=2"], "result": "summary"}
    for nodes, how in ((16, "in_step"), (12, "ordered")):  # those of a power of two do the same
        halving = ccl.simulate("all_reduce", f"h100:nodes={nodes}", "8MiB", algorithm="halving_doubling", **gone)
        assert halving.meta["evaluated"][how]
    with pytest.raises(UnsupportedError, match="cannot be timed without its table of about.*tier='estimate'"):
        ccl.simulate("all_to_all", "h100:nodes=16000", "64MiB", algorithm="paired", faults=["nic:node=7,nic=2"])
    with pytest.raises(UnsupportedError, match="at most 4,000,000"):
        ccl.simulate("all_reduce", "h100:nodes=4096", "64MiB", algorithm="ring", result="trace")


def test_an_estimate_says_that_it_is_one() -> None:
    found = ccl.simulate("all_reduce", "h100:nodes=4096", "64MiB", algorithm="double_binary_tree", tier="estimate")
    assert found.meta["tier"] == "estimate" and found.meta["evaluated"] == {"as": "closed form"} and "estimate" in repr(found)
    assert found.time_us == pytest.approx(1e6 * estimate("all_reduce", Topology.preset("h100", nodes=4096), "64MiB",
                                                         algorithm="double_binary_tree").seconds)  # fmt: skip
    exact = ccl.simulate("all_reduce", "h100:nodes=64", "1GiB", algorithm="hierarchical", result="summary")
    near = ccl.simulate("all_reduce", "h100:nodes=64", "1GiB", algorithm="hierarchical", tier="estimate")
    assert near.time_us == pytest.approx(exact.time_us, rel=0.3) and len(near.finish_ps) == 512
    for more in ({"late": {0: "1us"}}, {"faults": ["nic:node=1,nic=2,at=1us"]}, {"result": "trace"}):
        with pytest.raises(UsageError, match="an estimate"):
            ccl.simulate("all_reduce", "h100:nodes=4", "1MiB", algorithm="ring", tier="estimate", **more)
    with pytest.raises(UsageError, match="name of a collective"):
        ccl.simulate(ccl.plan("all_reduce", Topology.preset("h100", 1)), Topology.preset("h100", 1), tier="estimate")


def test_a_grid_of_tiers_and_of_faults_at_times() -> None:
    found = ccl.sweep({"what": "all_reduce", "topology": "h100:nodes=4", "nbytes": "1GiB", "algorithm": "hierarchical",
                       "tier": ["exact", "estimate"], "faults": [[], ["nic:node=1,nic=2,at=100us"]]},
                      executor=ThreadPoolExecutor(1), progress=False)  # fmt: skip
    whole, hurt, estimated, refused = found.rows
    assert whole["time_ps"] < hurt["time_ps"] < 1.3 * whole["time_ps"]
    assert estimated["time_us"] == pytest.approx(whole["time_us"], rel=0.3) and "an estimate knows neither" in refused["error"]


def test_the_shared_tier_takes_the_same_words() -> None:
    topology = Topology.preset("rail_leaf_spine", nodes=2)
    schedule = ccl.plan("all_reduce", topology, nbytes="1MiB", algorithm="ring")
    known = simulate_shared(schedule, topology)
    for what in (schedule, outline("all_reduce", topology, nbytes="1MiB", algorithm="ring")):
        assert ccl.simulate(what, topology, tier="shared").meta["time_ps"] == known.meta["time_ps"]
    assert ccl.simulate("all_reduce", topology, "1MiB", algorithm="ring", tier="shared").meta["time_ps"] == known.meta["time_ps"]
    summary = ccl.simulate("all_reduce", topology, "1MiB", algorithm="ring", tier="shared", result="summary")
    assert summary.meta["tier"] == "shared" and summary.time_ps == known.meta["time_ps"]
    beside = ccl.simulate(schedule, topology, tier="shared", jobs=[Job(schedule)])
    assert beside.meta["time_ps"] > known.meta["time_ps"]
    slower = ccl.simulate(schedule, topology, tier="shared", faults=["nic:node=1,nic=0,factor=4"])
    assert slower.meta["time_ps"] > known.meta["time_ps"]
    with pytest.raises(UsageError, match="tier 'share' is unknown: expected 'estimate', 'exact' or 'shared'. Did you mean 'shared'"):
        ccl.simulate(schedule, topology, tier="share")
    with pytest.raises(UsageError, match="jobs with tier='exact': only 'shared'"):
        ccl.simulate(schedule, topology, jobs=[Job(schedule)])
    with pytest.raises(UnsupportedError, match="at most 4,000,000 are unrolled"):
        ccl.simulate("all_reduce", "h100:nodes=16384", "1GiB", algorithm="ring", tier="shared")
    with pytest.raises(UsageError, match="already planned"):
        ccl.simulate(schedule, topology, tier="shared", algorithm="ring")
    with pytest.raises(UsageError, match="expected a Schedule"):
        ccl.simulate(7, topology, tier="shared")


def test_faults_change_the_topology() -> None:
    topology = ccl.Topology.cluster(nodes=2, gpus_per_node=4, nics_per_node=4)
    worse, late = degrade(topology, ["nic:node=1,nic=2", "nic:node=0,nic=1,factor=4", "rank:rank=3,factor=2,late=1ms"])
    assert worse == topology.slow(4, nic=(0, 1)).slow(2, rank=3).without((1, 2)) and late == {3: "1ms"}
    times = [ccl.simulate("all_reduce", topology, "8MiB", algorithm="ring", faults=faults).meta["time_ps"]
             for faults in ((), ["nic:node=1,nic=2,factor=2"], ["nic:node=1,nic=2,factor=9"])]
    assert times == sorted(times) and times[0] < times[2]
    assert ccl.simulate("all_reduce", topology, "1KiB", late={3: "2ms"}, faults=["rank:rank=3,late=1ms"]).meta["time_ps"] >= 2 * 10**9


@pytest.mark.parametrize(("change", "error", "text"), [
    ({"topology": "h1000:nodes=2"}, UsageError, "Did you mean 'h100'"),
    ({"topology": "h100:nodez=2"}, UsageError, "no option 'nodez'. Did you mean 'nodes'"),
    ({"topology": "cluster:nodes=2,nic_gbits_per_s=0"}, UsageError, "nic_gbits_per_s 0"),
    ({"topology": "cluster:nodes=2,nic_latency=-1us"}, UsageError, "nic_latency"),
    ({"topology": "missing.json"}, UsageError, "does not exist"),
    ({"topology": 7}, UsageError, "expected a Topology"),
    ({"what": "all_reducee"}, UsageError, "Did you mean 'all_reduce'"),
    ({"what": 5}, UsageError, "expected a Schedule, or the name"),
    ({"algorithm": "rings"}, UsageError, "Did you mean 'ring'"),
    ({"algoritm": "ring"}, UsageError, "Did you mean 'algorithm'"),
    ({"nbytes": "-1"}, UsageError, "-1"),
    ({"result": "traces"}, UsageError, "Did you mean 'trace'"),
    ({"late": {99: "1us"}}, UsageError, "rank 99"),
    ({"alpha": -1}, UsageError, "-1"),
    ({"compute_ps": 5}, UsageError, "schedules with computation"),
    ({"faults": ["nics:node=1,nic=2"]}, UsageError, "Did you mean 'nic'"),
    ({"faults": ["nic:node=1,nick=2"]}, UsageError, "Did you mean 'nic'"),
    ({"faults": ["nic:node=1"]}, UsageError, "nic= is missing"),
    ({"faults": ["nic:node=9,nic=0"]}, UsageError, "node 9"),
    ({"faults": ["nic:node=1,nic=0,factor=-1"]}, UsageError, "factor"),
    ({"faults": ["nic:node=1,nic=0", "nic:node=1,nic=1"]}, UsageError, "no NIC that is up"),
    ({"faults": ["rank:rank=1"]}, UsageError, "factor= or late="),
    ({"faults": ["rank:rank=99,late=1ms"]}, UsageError, "99"),
    ({"faults": ["rank:rank=1,late=soon"]}, UsageError, "soon"),
])  # fmt: skip
def test_bad_input_is_named_at_once(change: dict[str, object], error: type[Exception], text: str) -> None:
    arguments: dict[str, object] = {"what": "all_reduce", "topology": SMALL, "nbytes": "1MiB"}
    with pytest.raises(error, match=text):
        ccl.simulate(**{**arguments, **change})  # type: ignore[arg-type]


def test_a_schedule_for_other_ranks_and_options_that_are_planned_already() -> None:
    schedule = ccl.plan("all_reduce", 4, "1KiB")
    with pytest.raises(ShapeError, match="4 ranks"):
        ccl.simulate(schedule, "h100:nodes=1")
    with pytest.raises(UsageError, match="already planned"):
        ccl.simulate(schedule, SMALL, algorithm="ring")


# -- sweep

GRID = {"what": "all_reduce", "topology": SMALL, "nbytes": ["64KiB", "1MiB"], "algorithm": ["ring", "hierarchical"],
        "faults": [[], ["nic:node=1,nic=1,factor=3"]]}  # fmt: skip


def test_a_sweep_goes_through_the_grid_in_order_on_any_executor() -> None:
    told: list[tuple[int, int]] = []
    with ThreadPoolExecutor(2) as threads:
        found = ccl.sweep(GRID, threads, progress=lambda done, total: told.append((done, total)))
    assert len(found) == 8 and not found.errors and found.check() is found
    assert told == [(done, 8) for done in range(9)]
    assert [row["nbytes"] for row in found.rows] == ["64KiB"] * 4 + ["1MiB"] * 4
    for row in found.rows:
        arguments = {name: row[name] for name in GRID}
        assert row["time_ps"] == ccl.simulate(**arguments, result="summary").time_ps
    assert ccl.sweep(GRID, progress=False).column("time_ps") == found.column("time_ps")  # in processes


def test_values_of_a_grid_may_be_columns() -> None:
    """Of NumPy or pandas, or a range; numbers become Python's own, so a file knows them again."""
    sizes = [1024, 2048]
    for nbytes in (np.array(sizes), range(1024, 3072, 1024), pytest.importorskip("pandas").Series(sizes), [np.int32(1024), 2048]):
        grid = {"what": "all_reduce", "topology": "h100:nodes=2", "nbytes": nbytes}
        found = ccl.sweep(grid, ThreadPoolExecutor(1), progress=False).check()
        assert found.column("nbytes") == sizes and {type(each) for each in found.column("nbytes")} == {int}
    with pytest.raises(UsageError, match="no values for 'nbytes'"):
        ccl.sweep({"what": "all_reduce", "topology": "h100:nodes=2", "nbytes": np.array([])}, progress=False)


def test_a_sweep_resumes_where_it_was_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "sweep.jsonl"
    with ThreadPoolExecutor(1) as threads:
        whole = ccl.sweep(GRID, threads, file=file)
        lines = file.read_bytes().splitlines(keepends=True)
        assert len(lines) == 8
        file.write_bytes(b"".join(lines[:3]) + lines[3][:20])  # killed while it wrote the fourth row
        told: list[int] = []
        again = ccl.sweep(GRID, threads, file=file, progress=lambda done, _: told.append(done))
        assert told[0] == 3 and again.column("time_ps") == whole.column("time_ps")
        assert [json.loads(line)["key"] for line in file.read_text().splitlines()][:3] == [json.loads(line)["key"] for line in lines[:3]]
        assert len(file.read_text().splitlines()) == 8
        ccl.sweep(GRID, threads, file=file, progress=lambda done, _: told.append(done))
    assert told[-1] == 8


def test_a_row_that_fails_says_why_and_the_others_go_on() -> None:
    with ThreadPoolExecutor(1) as threads:
        grid = {"what": "all_reduce", "topology": [SMALL, ccl.Topology.cluster(nodes=3)], "algorithm": ["ring", "rong"]}
        found = ccl.sweep(grid, threads)
    assert [("error" in row) for row in found.rows] == [False, True, False, True]
    assert found.column("time_us")[1] is None and np.isfinite(found.column("time_us")[0])
    with pytest.raises(UsageError, match="2 of 4 rows failed, the first with UsageError.*'ring'"):
        found.check()


@pytest.mark.parametrize(("grid", "text"), [
    ({"what": "all_reduce"}, "'topology' is missing"),
    ({"what": "all_reduce", "topology": SMALL, "nbites": "1MiB"}, "Did you mean 'nbytes'"),
    ({"what": "all_reduce", "topology": SMALL, "nbytes": []}, "no values for 'nbytes'"),
    ({"what": "all_reduce", "topology": SMALL, "late": object()}, "cannot be told from others"),
])  # fmt: skip
def test_a_bad_grid_is_refused_before_anything_runs(grid: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        ccl.sweep(grid)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("milk\neggs\n")
    with pytest.raises(DecodeError, match="line 1: expected a row of a sweep"):
        ccl.sweep(GRID, file=file)
    assert file.read_text() == "milk\neggs\n"


def test_late_ranks_as_columns() -> None:
    """A duration for each rank, as a list, an array or a Series, whose index may name some of them."""
    pandas = pytest.importorskip("pandas")
    run = partial(ccl.simulate, "all_reduce", Topology.cluster(nodes=1, gpus_per_node=4), "1KiB", algorithm="ring")
    want = run(late={2: "1ms"}).time_us
    for late in (["0s", 0, "1ms", 0.0], np.array([0, 0, 1e-3, 0]), pandas.Series([0, 0, 1e-3, 0]), pandas.Series({2: "1ms"})):
        assert run(late=late).time_us == want
    with pytest.raises(UsageError, match="late .* expected {rank: duration}, or a duration for each rank"):
        run(late=[[1], [1, 2]])
