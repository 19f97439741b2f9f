"""Exports that others read: what HTA makes of them, and that our importers read them back."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
from foreign_cases import LATE, flight, job_tar, kineto
from trace_cases import random_trace, ring_trace

import ccl_lab as ccl
from ccl_lab.errors import UsageError
from ccl_lab.trace import SpanKind, Trace
from ccl_lab.trace.importers.protobuf import fields, numbers, varint
from ccl_lab.trace.importers.sources import read_bytes

JOB = read_bytes(job_tar(), "job.tar.gz")


def simulated():
    topology = ccl.Topology.cluster(nodes=2, gpus_per_node=2, nics_per_node=2, nic_gbits_per_s=8)
    return ccl.simulate(ccl.plan("all_reduce", topology, nbytes="1MiB", algorithm="ring"), topology)


def overlap_by_hta(folder, monkeypatch):
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    logging.disable(logging.WARNING)
    from hta.trace_analysis import TraceAnalysis

    try:
        found = TraceAnalysis(trace_dir=str(folder)).get_comm_comp_overlap(visualize=False)
    finally:
        logging.disable(logging.NOTSET)
    return dict(zip(found["rank"].tolist(), found["comp_comm_overlap_pctg"].tolist(), strict=True))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_hta_reads_the_kineto_export_and_agrees(tmp_path, monkeypatch):
    plain = JOB[[not name.startswith("Memset") for name in JOB.names]]
    wanted = {row["rank"]: round(row["overlap_pct"], 2) for row in plain.partition()}
    assert overlap_by_hta(plain.save(tmp_path / "a.kineto"), monkeypatch) == wanted and wanted[
        0
    ] == pytest.approx(60.0)
    # a trace of our own, in which computation hides half of the communication
    ours = Trace({"rank": [0, 0, 1, 1], "track": [3, 0, 3, 0], "kind": [7, 0, 7, 0], "peer": [-1, 1, -1, 0], "op_id": [0, 1, 2, 3],
                  "begin_ns": [0, 4000, 0, 6000], "end_ns": [8000, 12000, 8000, 10000]})  # fmt: skip
    assert overlap_by_hta(ours.save(tmp_path / "b.kineto"), monkeypatch) == {0: 50.0, 1: 50.0}


@pytest.mark.parametrize("suffix", [".kineto", ".et"])
def test_an_imported_job_comes_back_the_same(suffix, tmp_path):
    path = JOB.save(tmp_path / f"x{suffix}")
    again = Trace.load(*(sorted(tmp_path.glob("x.*.et")) if suffix == ".et" else [path]))
    for name in ("rank", "track", "kind", "begin_ns", "end_ns", "coll_id", "index"):
        assert np.array_equal(
            again.sorted("begin_ns", "rank", "end_ns")[name], JOB.sorted("begin_ns", "rank", "end_ns")[name]
        ), name
    assert again.partition() == JOB.partition() and again.stragglers().late_rank == LATE
    assert again.meta["coll_ops"] == JOB.meta["coll_ops"] and again.n_ranks == 4
    assert (
        again.where(kind="collective")["nbytes"].tolist() == JOB.where(kind="collective")["nbytes"].tolist()
    )


def test_a_flight_recorder_dump_comes_back_the_same(tmp_path):
    JOB.save(tmp_path / "x.flight.json")
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == [f"x.{rank}.flight.json" for rank in range(4)]
    again = Trace.load(tmp_path)
    assert again.meta["format"] == "flight recorder" and again.stragglers().rows() == JOB.stragglers().rows()
    entry = json.loads(files[1].read_text())["entries"][0]
    assert set(entry) == set(flight()["entries"][0]), "the keys of torch's own dumps"
    assert entry["profiling_name"] == "ccl_lab:all_reduce" and entry["state"] == "completed"
    both = Trace.concat(
        [read_bytes(json.dumps(flight(rank)).encode(), f"rank{rank}.json") for rank in range(2)]
    )
    both.save(tmp_path / "y.flight.json")
    hung = Trace.load(tmp_path / "y.0.flight.json", tmp_path / "y.1.flight.json")
    assert int((hung["status"] == 3).sum()) == 2 and set(hung["kind"].tolist()) == {
        SpanKind.collective,
        SpanKind.put,
        SpanKind.wait,
    }


def test_our_own_traces_come_back_with_their_partition(tmp_path):
    trace = simulated()
    again = Trace.load(trace.save(tmp_path / "x.kineto"))
    assert [{k: v for k, v in row.items() if k != "idle_us"} for row in again.partition()] == [
        {k: v for k, v in row.items() if k != "idle_us"} for row in trace.partition()
    ]
    trace.save(tmp_path / "x.et")
    graph = Trace.load(*sorted(tmp_path.glob("x.*.et")))
    sends = graph.where(kind="put")
    puts = trace.where(kind="put", track="channel")
    assert len(sends) == len(puts) and sorted(sends["nbytes"].tolist()) == sorted(puts["nbytes"].tolist())
    assert sorted(graph.where(kind="wait")["peer"].tolist()) == sorted(
        trace.where(kind="wait", track="channel")["peer"].tolist()
    )


def test_a_chakra_file_is_what_its_readers_expect(tmp_path):
    data = JOB[JOB["rank"] == 0].save(tmp_path / "x.et").read_bytes()
    at, messages = 0, []
    while at < len(data):
        size, at = varint(data, at)
        messages.append(list(fields(data[at : at + size])))
        at += size
    head, nodes = messages[0], messages[1:]
    assert dict(head)[1] == b"0.0.4" and len(nodes) == len(JOB[JOB["rank"] == 0])
    ids = [dict(node)[1] for node in nodes]
    assert ids == list(range(1, len(nodes) + 1))
    for node in nodes:
        assert all(dep < dict(node)[1] for number, value in node if number == 5 for dep in numbers(value))
        attributes = [dict(fields(value))[1] for number, value in node if number == 10]
        assert b"is_cpu_op" in attributes and (dict(node)[3] != 7 or b"comm_type" in attributes)


def test_the_kineto_folder_replaces_only_its_own_kind(tmp_path):
    path = tmp_path / "x.kineto"
    ring_trace().save(path)
    assert sorted(p.name for p in JOB.save(path).iterdir()) == [f"rank_{rank}.json" for rank in range(4)]
    (path / "mine.txt").write_text("keep")
    with pytest.raises(UsageError, match="no folder of rank_"):
        JOB.save(path)
    assert (path / "mine.txt").exists() and [p.name for p in tmp_path.iterdir()] == ["x.kineto"]
    with pytest.raises(UsageError, match="no rank does anything"):
        Trace().save(tmp_path / "x.et")
    assert list(Trace().save(tmp_path / "empty.kineto").iterdir()) == []


@pytest.mark.parametrize("seed", range(5))
def test_any_trace_can_be_written(seed, tmp_path):
    trace = random_trace(seed)
    for suffix in (".kineto", ".et", ".flight.json"):
        trace.save(tmp_path / f"x{suffix}")
    assert Trace.load(tmp_path / "x.kineto").partition() is not None


@pytest.mark.parametrize("suffix", [".arrow", ".parquet", ".json"])
def test_files_of_version_1_are_still_read(suffix, tmp_path, monkeypatch):
    """They lack the column `name`."""
    from ccl_lab.trace import columns, form
    from ccl_lab.trace.export import arrow, chrome

    trace = ring_trace()
    short = {name: dtype for name, dtype in columns.COLUMNS.items() if name != "name"}
    with monkeypatch.context() as patch:
        for module in (form, arrow):
            patch.setattr(module, "COLUMNS", short)
        for module in (arrow, chrome):
            patch.setattr(module, "TRACE_VERSION", 1)
        path = trace.save(tmp_path / f"x{suffix}")
    assert Trace.load(path) == trace


def test_names_survive_our_own_files(tmp_path):
    for suffix in (".arrow", ".json.gz"):
        again = Trace.load(JOB.save(tmp_path / f"x{suffix}"))
        assert again == JOB and again.names == JOB.names and again.partition() == JOB.partition()


def test_the_lab_job_is_what_its_script_makes():
    import importlib.util
    from pathlib import Path

    root = Path(__file__).resolve().parents[2]
    spec = importlib.util.spec_from_file_location("make_lab_job", root / "tools" / "make_lab_job.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    stored = Trace.load(root / "labs" / "data" / "job.tar.gz")
    made = read_bytes(module.build(), str(root / "labs" / "data" / "job.tar.gz"))
    assert made == stored and stored.stragglers().late_rank == module.LATE
    assert kineto()["traceEvents"]
