"""Arguments of a wrong type: every public call accepts them or raises an error of ccl_lab, never one of Python or numpy.

An error of Python says what a line inside the package could not do; one of ccl_lab says which argument it was and what was expected.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import ccl_lab as ccl
from ccl_lab import FaultScript, Topology, Trace, World, overlap
from ccl_lab.errors import CclError, UsageError
from ccl_lab.planner import estimate
from ccl_lab.simulator import Job, link_bytes, models, simulate_jobs
from ccl_lab.topo import Level

HERE = Topology.cluster(2, 2, 2)
SCHEDULE = ccl.plan("all_reduce", HERE, "1KiB")
TRACE = ccl.simulate(SCHEDULE, HERE)
SCRIPT = FaultScript("nic_down node=0 nic=1 after=1ms")
WRONG = [None, 5, -1, 1.5, float("nan"), float("inf"), 10**30, True, 1 + 2j, "x", "", "\0", "1e400", b"x", [], {}, (1, 2), ((),),
         [None], ["x"], [10**30], [[1], [1, 2]], {1, 2}, range(3), {"a": 1}, {None: None}, object(), np.zeros(3), np.zeros((2, 2)),
         np.array([]), np.float32]  # fmt: skip
NUMBERS = [Decimal("1"), np.array(5), np.int8(3)]  # of other kinds than Python's: taken, or refused

MODEL = {"late": None, "compute_ps": None, "alpha": 0, "interference": 1.0, "faults": ()}
SIZE = {"nbytes": "1KiB", "dtype": "float32", "counts": None}
PLAN = {"algorithm": "ring", "redop": "sum", "in_place": False, "channels": 1}
CLUSTER = {"nodes": 2, "gpus_per_node": 2, "nics_per_node": 2, "nic_gbits_per_s": 8, "nic_latency": "5us", "fabric_gbytes_per_s": 4,
           "fabric_latency": "1us", "rails": True, "local_gbytes_per_s": 8, "sources": None}  # fmt: skip
MODEL_OF = models.Transformer(layers=2, hidden=64, feed_forward=128)
SWEEP = {"grid": {"what": "all_reduce", "topology": "h100:nodes=2", "nbytes": ["1KiB"]}, "executor": None, "file": None, "progress": False}
SWEPT = ccl.Sweep(({"what": "all_reduce", "time_us": 1.0},))

def op(call: str) -> Callable[..., Any]:
    """A schedule of one op, written by hand."""

    def build(**given: Any) -> ccl.Schedule:
        b = ccl.Builder("all_reduce", 4, algorithm="mine", scratch_blocks=1)
        getattr(b, call)(**given)
        return b.build(nbytes=64)

    return build


SOME = ccl.Builder("all_reduce", 4, algorithm="mine", scratch_blocks=1)
CHUNKS = {"src": SOME.input[0], "dst": SOME.scratch[0]}

# Name: the call, and arguments that are right.
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "plan": (ccl.plan, {"collective": "all_reduce", "topology": HERE, **SIZE, **PLAN}),
    "plan a broadcast": (ccl.plan, {"collective": "broadcast", "topology": 4, "root": 0}),
    "plan a send_recv": (ccl.plan, {"collective": "send_recv", "topology": 4, "root": 0, "peer": 1}),
    "simulate": (ccl.simulate, {"what": "all_reduce", "topology": HERE, **SIZE, **MODEL, "result": "auto", "tier": "exact", "jobs": (),
                                "rows": (), "patience": None, "algorithm": "ring", "channels": 1}),
    "simulate a schedule": (ccl.simulate, {"what": SCHEDULE, "topology": HERE, **SIZE, **MODEL, "nbytes": None}),
    "simulate shared": (ccl.simulate, {"what": "all_reduce", "topology": HERE, "late": None, "alpha": 0, "tier": "shared", "jobs": ()}),
    "verify": (ccl.verify, {"schedule": SCHEDULE, "topology": HERE}),
    "interpret": (ccl.interpret, {"schedule": SCHEDULE, "inputs": [np.zeros(8, np.float32)] * 4, "redop": None, "counts": None}),
    "sweep": (ccl.sweep, SWEEP),
    "Sweep.column": (SWEPT.column, {"name": "time_us"}),
    "Job": (lambda **given: simulate_jobs([Job(**given)], HERE), {"schedule": SCHEDULE, "ranks": None, "start": 0}),
    "link_bytes": (lambda jobs: link_bytes(jobs, HERE), {"jobs": Job(SCHEDULE)}),
    "estimate": (estimate, {"collective": "all_reduce", "topology": HERE, "nbytes": "1KiB", "algorithm": "ring"}),
    "Builder": (ccl.Builder, {"collective": "all_reduce", "n_ranks": 2, "algorithm": "mine", "channels": 1, "parts": 1, "in_place": False,
                              "root": 0, "peer": -1, "scratch_blocks": 0}),
    "Builder.put": (op("put"), {"rank": 0, "peer": 1, **CHUNKS, "channel": 0}),
    "Builder.get": (op("get"), {"rank": 0, "peer": 1, **CHUNKS}),
    "Builder.copy": (op("copy"), {"rank": 0, **CHUNKS}),
    "Builder.reduce": (op("reduce"), {"rank": 0, "dst": CHUNKS["dst"], "srcs": [CHUNKS["src"]]}),
    "Builder.wait": (op("wait"), {"rank": 0, "peer": 1, "count": 1}),
    "Builder.input": (lambda chunk: SOME.input[chunk], {"chunk": 0}),
    "Builder.build": (SOME.build, {"nbytes": 0, "dtype": "float32", "redop": "sum", "reasons": ()}),
    "Schedule.layout": (SCHEDULE.layout, {"count": None, "nbytes": None, "dtype": None, "counts": None}),
    "Schedule.load": (ccl.Schedule.load, {"path": "none.ccl"}),
    "Schedule.save": (SCHEDULE.save, {"path": "out.ccl"}),
    "Topology.cluster": (Topology.cluster, CLUSTER),
    "Topology.preset": (Topology.preset, {"name": "h100", "nodes": 2}),
    "Topology.from_dict": (Topology.from_dict, {"data": HERE.to_dict()}),
    "Topology.load": (Topology.load, {"path": "none.json"}),
    "Topology.discover": (Topology.discover, {"root": "/nowhere", "ranks": 2}),
    "Topology.slow": (HERE.slow, {"factor": 2.0, "nic": (0, 1), "rank": None}),
    "Topology.without": (lambda nic: HERE.without(nic), {"nic": (0, 1)}),
    "Topology.replace": (HERE.replace, {"path_limits": {}, "nic_bytes_per_s": HERE.nic_bytes_per_s, "name": "x"}),
    "Topology.slow a rank": (HERE.slow, {"factor": 2, "rank": 0}),
    "Topology.subset": (HERE.subset, {"ranks": [0, 1]}),
    "Topology.ranks_of": (HERE.ranks_of, {"node": 0}),
    "Topology.nic_of": (HERE.nic_of, {"rank": 0, "channel": 0}),
    "Topology.path": (HERE.path, {"src": 0, "dst": 1, "channel": 0}),
    "Topology.latency_ps": (HERE.latency_ps, {"src": 0, "dst": 1, "channel": 0}),
    "Topology.with_network": (lambda level, **more: HERE.with_network(level, **more),
                              {"level": Level("leaf"), "routing": "ecmp", "seed": 0}),
    "FaultScript": (lambda fault: FaultScript(fault), {"fault": "nic_down node=0 nic=1 after=1ms"}),
    "FaultScript.of": (FaultScript.of, {"faults": SCRIPT}),
    "FaultScript.parse": (FaultScript.parse, {"text": SCRIPT.text()}),
    "FaultScript.from_dict": (FaultScript.from_dict, {"data": SCRIPT.to_dict()}),
    "FaultScript.load": (FaultScript.load, {"path": "none.json"}),
    "FaultScript.check": (SCRIPT.check, {"topology": HERE}),
    "FaultScript.shifted": (SCRIPT.shifted, {"by": "1ms"}),
    "FaultScript.final_heal": (SCRIPT.final_heal, {"after": None}),
    "Trace": (Trace, {"columns": None, "meta": None}),
    "Trace.between": (TRACE.between, {"begin_ns": 0, "end_ns": 1}),
    "Trace.concat": (Trace.concat, {"traces": [TRACE]}),
    "Trace.diff": (TRACE.diff, {"other": TRACE}),
    "Trace.load": (lambda path: Trace.load(path), {"path": "none.json"}),
    "Trace.join": (TRACE.join, {"schedule": SCHEDULE}),
    "Trace.where": (TRACE.where, {"rank": 1, "channel": 0, "kind": "put"}),
    "Trace.save": (TRACE.save, {"path": "out.json"}),
    "Trace.sorted": (lambda by: TRACE.sorted(by), {"by": "rank"}),
    "overlap.plan": (overlap.plan, {"operator": "matmul_reduce_scatter", "schedule": "k_slice", "n_ranks": 4, "slices": 2, "sub_slices": 1,
                                    "dtype": "float32", "nbytes": 0}),
    "overlap.choose": (overlap.choose, {"c": 1.0, "alpha": 0.1, "beta": 0.1, "n_ranks": 4, "operator": "matmul_reduce_scatter", "add": 0,
                                        "slow_link": 1, "launch": 0, "divides": None}),
    "overlap.durations": (overlap.durations, {"schedule": overlap.plan("matmul_reduce_scatter", "k_slice", 4, slices=2), "c_ps": 1000,
                                              "launch_ps": 0}),
    "models.predict": (models.predict, {"op": "all_reduce", "platform": "h100", "nbytes": "1MiB", "algorithm": None, "protocol": None,
                                        "library": None, "nodes": 2, "gpus": None}),
    "models.predict with CTran": (models.predict, {"op": "all_gather", "platform": "gb200_ctran", "nbytes": "1MiB", "algorithm": None,
                                                   "library": "ctran", "gpus": 8}),
    "models.start_up": (models.start_up, {"ranks": 8192, "library": "ncclx"}),
    "models.memory": (models.memory, {"ranks": 8192, "library": "ncclx"}),
    "models.buffering": (models.buffering, {"senders": 8, "nbytes": "1MiB", "window": None, "gbytes_per_s": 50.0, "round_trip_us": 20.0}),
    "models.window_bytes": (models.window_bytes, {"qps": 1, "segment": "1KiB", "inflight": 1}),
    "models.all_to_allv_us": (models.all_to_allv_us, {"ranks": 8, "nbytes": 1e6, "gbytes_per_s": 48.5, "control": "handshake"}),
    "models.training_step": (models.training_step, {"model": MODEL_OF, "parallel": models.Parallel(), "platform": "h100", "sequence": 128,
                                                    "batch": 8, "device": "h100"}),
    "models.decode_step": (models.decode_step, {"model": MODEL_OF, "ranks": 8, "batch": 1, "context": 128, "device": "h100",
                                                "control": "handshake"}),
    "models.replay": (models.replay, {"path": "none.et", "platform": "h100", "nodes": 1, "gpus": 8, "compute": 1.0}),
    "Matmul": (ccl.Matmul, {"rows": 8, "inner": 8, "columns": 8, "dtype": "float32"}),
    "Emulated": (ccl.Emulated, {"durations": [1e-6]}),
    "export_html": (ccl.export_html, {"path": "out.html", "views": [TRACE.timeline()], "title": "t", "text": ""}),
}  # fmt: skip


def outcome(call: Callable[..., Any], given: dict[str, Any]) -> str:
    """Empty where the call accepts what is given, or refuses it as it should."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", "overflow encountered")  # numbers of a few bits, as a column of them has
        try:
            call(**given)
        except CclError as error:
            return "" if str(error) else "an error without words"
        except OSError as error:  # a file that cannot be opened, which it names
            return "" if error.filename else f"{type(error).__name__}: {error}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return ""


def check(name: str, call: Callable[..., Any], right: dict[str, Any]) -> None:
    for key in right:
        for wrong in (*WRONG, *NUMBERS):
            found = outcome(call, {**right, key: wrong})
            assert not found, f"{name}({key}={wrong!r}): {found}"


@pytest.mark.parametrize("name", CALLS)
def test_wrong_types_are_errors_of_ccl_lab(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check(name, *CALLS[name])


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(2) as world:
        yield world


def test_a_world_survives_runs_with_wrong_types(world: World) -> None:
    """Ranks are processes: what they cannot read would end them, and with them the world."""
    schedule = ccl.plan("all_reduce", 2, "1KiB")
    check("World.run", world.run, {"schedule": schedule, "nbytes": None, "counts": None, "dtype": None, "redop": None, "inputs": None,
                                   "timeout": None, "faults": None, "without": (), "compute": None})
    for wrong in (each for each in WRONG if each is not None and str(each) != "5"):
        for key in ("count", "repeat"):
            with pytest.raises(UsageError, match=f"^{key} "):
                world.run(schedule, **{key: wrong})
    check("World.set_nic", world.set_nic, {"node": 0, "nic": 0, "gbits_per_s": 0, "up": True})
    check("World.set_tracing", world.set_tracing, {"on": True})
    world.set_nic(0, 0, 0)
    assert world.run(schedule).meta["n_ranks"] == 2


def test_inputs_may_be_rows_of_one_array(world: World) -> None:
    schedule, rows = ccl.plan("all_reduce", 2, "1KiB"), np.arange(16, dtype=np.float32).reshape(2, 8)
    run = world.start(schedule, inputs=rows)
    run.wait()
    for out in (*run.outputs, *ccl.interpret(schedule, rows)):
        assert (out == rows.sum(axis=0)).all()


@pytest.mark.parametrize("key", ["topology", "transport", "timeout", "trace_spans", "start_timeout", "groups", "patience", "fabric"])
def test_a_world_of_wrong_types_does_not_start(key: str) -> None:
    for wrong in WRONG:
        if wrong is None if key != "topology" else isinstance(wrong, int) and wrong == 5:
            continue  # which is right
        if isinstance(wrong, (int, float)) and key in ("timeout", "trace_spans", "start_timeout"):
            continue  # seconds, or spans, mostly
        with pytest.raises(UsageError):
            World(**{"topology": 2, key: wrong})


def test_a_whole_number_is_not_cut_to_one() -> None:
    put = {"rank": 0, "peer": 1, **CHUNKS}
    for call in (lambda: SCHEDULE.layout(1.5), lambda: HERE.nic_of(1.5), lambda: HERE.subset([1.5, 1.0]),
                 lambda: op("put")(**{**put, "peer": 1.5}), lambda: op("put")(**{**put, "src": SOME.input[1.5]})):  # fmt: skip
        with pytest.raises(UsageError, match="1.5.*expected"):
            call()
