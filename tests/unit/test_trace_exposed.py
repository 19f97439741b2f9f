"""The partition of a rank's time: known answers, exact sums, agreement with counting every ns, all kinds of traces."""

from __future__ import annotations

import numpy as np
import pytest
from trace_cases import random_trace, ring_trace

import ccl_lab as ccl
from ccl_lab.trace import SpanKind, Trace, Track
from ccl_lab.trace.exposed import Occupation, exposure, occupations, partition
from ccl_lab.trace.intervals import coverage_within, union
from ccl_lab.trace.stragglers import stragglers

KEYS = [
    "rank",
    "total_us",
    "compute_us",
    "comm_us",
    "exposed_comm_us",
    "exposed_memcpy_us",
    "idle_us",
    "overlap_pct",
]
COMPUTE, COMM, COPY = (
    (Track.compute, SpanKind.compute),
    (Track.channel, SpanKind.collective),
    (Track.copy, SpanKind.copy),
)


def trace_of(*spans, **meta):
    """Spans as (rank, (track, kind), begin, end[, coll_id])."""
    rows = [(r, t, k, b, e, (more or [0])[0]) for r, (t, k), b, e, *more in spans]
    names = ("rank", "track", "kind", "begin_ns", "end_ns", "coll_id")
    return Trace(dict(zip(names, np.array(rows, np.int64).reshape(-1, 6).T, strict=True)), meta)


def test_a_rank_by_hand():
    trace = trace_of(
        (0, COMPUTE, 0, 100),
        (0, COMM, 50, 180),
        (0, COPY, 170, 200),
        (0, COPY, 210, 220),
        (0, COMPUTE, 230, 240),
    )
    (row,) = partition(trace)
    assert list(row) == KEYS
    assert row == {
        "rank": 0,
        "total_us": 0.24,
        "compute_us": 0.11,
        "comm_us": 0.13,
        "exposed_comm_us": 0.08,
        "exposed_memcpy_us": 0.03,
        "idle_us": 0.02,
        "overlap_pct": pytest.approx(100 * 50 / 130),
    }
    assert trace.partition() == [row]


def brute(trace, what, rank):
    """Every ns of a rank, one by one."""
    rows = np.flatnonzero((what != Occupation.nothing) & (trace["rank"] == rank))
    entered = np.flatnonzero((trace["kind"] == SpanKind.collective) & (trace["rank"] == rank))
    both = np.union1d(rows, entered)
    first = int(trace["begin_ns"][both].min())
    total = int(max(trace["end_ns"][both].max(), trace["begin_ns"][both].max())) - first
    busy = np.zeros((4, total), bool)
    for row in rows.tolist():
        busy[what[row], trace["begin_ns"][row] - first : trace["end_ns"][row] - first] = True
    compute, comm, copy = busy[1], busy[2], busy[3]
    return [
        total,
        compute.sum(),
        comm.sum(),
        (comm & ~compute).sum(),
        (copy & ~compute & ~comm).sum(),
        (~(compute | comm | copy)).sum(),
    ]


@pytest.mark.parametrize("seed", range(30))
def test_it_counts_as_one_does_by_hand_and_adds_up_to_the_ns(seed):
    trace = random_trace(seed, n=60)
    found = exposure(trace)
    what = occupations(trace)
    names = ("total_ns", "compute_ns", "comm_ns", "exposed_comm_ns", "exposed_memcpy_ns", "idle_ns")
    for row in found.ranks.rows():
        assert [row[name] for name in names] == brute(trace, what, row["rank"])
        assert (
            row["total_ns"]
            == row["compute_ns"] + row["exposed_comm_ns"] + row["exposed_memcpy_ns"] + row["idle_ns"]
        )
        assert row["overlapped_ns"] == row["comm_ns"] - row["exposed_comm_ns"]


@pytest.mark.parametrize("seed", range(10))
def test_exposed_time_of_a_collective_is_what_no_computation_covers(seed):
    rng = np.random.default_rng(seed)
    begin = rng.integers(0, 500, 40)
    end, group = begin + rng.integers(0, 60, 40), rng.integers(0, 3, 40)
    under = union(begin[:20], end[:20], group[:20])
    found = coverage_within(begin[20:], end[20:], group[20:], under)
    for at, value in enumerate(found, 20):
        line = np.zeros(600, bool)
        for b, e, g in zip(*under, strict=True):
            line[b:e] |= g == group[at]
        assert value == line[begin[at] : end[at]].sum()


def test_the_worst_collective_is_named():
    trace = trace_of(
        (0, COMPUTE, 0, 100),
        (0, COMM, 0, 90, 0),
        (0, COMM, 95, 120, 1),
        (1, COMM, 0, 10, 0),
        (1, COMM, 100, 170, 1),
        coll_ops=["all_reduce", "all_gather"],
    )
    found = exposure(trace)
    assert found.worst == {"coll_id": 1, "rank": 1, "name": "all_gather", "exposed_us": 0.07, "busy_us": 0.07}
    assert "Rank 1" in found.words() and "all_gather (collective 1)" in found.words()


def test_effective_communication_time_and_efficiency():
    plain = trace_of((0, COMPUTE, 0, 100), (0, COMM, 100, 200))
    hidden = trace_of((0, COMPUTE, 0, 100), (0, COMM, 20, 110))
    worse = trace_of((0, COMPUTE, 0, 130), (0, COMM, 130, 250))
    assert exposure(plain).ect_ns() == 100 and exposure(hidden).ect_ns(100) == 10
    assert exposure(hidden).efficiency(plain) == pytest.approx(0.9)
    assert exposure(worse).efficiency(plain) == pytest.approx(-0.5), "an overlap may lose"
    assert exposure(plain).efficiency(trace_of((0, COMPUTE, 0, 100))) is None


def test_waiting_for_oneself_is_no_communication():
    trace = Trace(
        {
            "rank": [0, 0, 0],
            "peer": [0, 1, 0],
            "kind": [SpanKind.wait, SpanKind.wait, SpanKind.signal],
            "end_ns": [50, 10, 3],
        }
    )
    assert occupations(trace).tolist() == [Occupation.nothing, Occupation.comm, Occupation.nothing]


def test_entry_to_end_counts_only_where_nothing_else_is_said():
    control = (Track.control, SpanKind.collective)
    bare = trace_of((0, control, 0, 100))
    assert partition(bare)[0]["comm_us"] == 0.1
    said = trace_of((0, control, 0, 100), (0, (Track.channel, SpanKind.put), 20, 50))
    (row,) = partition(said)
    assert (row["total_us"], row["comm_us"], row["idle_us"]) == (0.1, 0.03, 0.07)


def test_measured_and_simulated_traces_add_up():
    topology = ccl.Topology.cluster(nodes=2, gpus_per_node=2, nics_per_node=2, nic_gbits_per_s=8)
    simulated = ccl.simulate(ccl.plan("all_reduce", topology, nbytes="1MiB", algorithm="ring"), topology)
    for trace in (simulated, ring_trace(repeats=3)):
        found = exposure(trace).ranks
        parts = found["compute_ns"] + found["exposed_comm_ns"] + found["exposed_memcpy_ns"] + found["idle_ns"]
        assert np.array_equal(parts, found["total_ns"]) and len(found) == 4
    assert all(
        row["exposed_comm_us"] == row["comm_us"] and row["overlap_pct"] == 0 for row in partition(simulated)
    )


def test_it_says_what_it_found(capsys):
    empty = exposure(Trace())
    assert (
        partition(Trace()) == []
        and empty.worst is None
        and "No rank" in empty.words()
        and empty.efficiency(Trace()) is None
    )
    alone = exposure(trace_of((0, COMPUTE, 0, 100), (0, COMPUTE, 150, 200)))
    assert (
        "Nothing communicates; rank 0 computes 75.0 %" in alone.words()
        and alone.partition()[0]["overlap_pct"] is None
    )
    full = exposure(trace_of((0, COMPUTE, 0, 100), (0, COMM, 10, 90)))
    assert "nothing is exposed" in full.words() and full.overlap_pct == 100
    assert "<table" in full._repr_html_() and "total_us" in repr(full)
    assert set(full.to_dict()) == {"ranks", "overlap_pct", "worst", "words"}


def test_stragglers_by_hand():
    trace = trace_of(
        (0, COMM, 0, 100, 0),
        (1, COMM, 80, 102, 0),
        (2, COMM, 10, 101, 0),
        (0, COMM, 200, 230, 1),
        (1, COMM, 200, 230, 1),
        (2, COMM, 200, 230, 1),
        coll_ops=["all_reduce", "barrier"],
    )
    found = stragglers(trace)
    assert found.late_rank == 1 and "Rank 1 is late: it came last in 1 of 2 collectives" in found.words()
    first, second = found.rows()
    assert (
        first["latency_us"] == 0.022
        and first["time_us"] == 0.1
        and first["begin_skew_us"] == 0.08
        and first["end_skew_us"] == 0.002
    )
    assert first["wait_us"] == {0: 0.08, 1: 0.0, 2: 0.07} and (first["last_rank"], second["last_rank"]) == (
        1,
        -1,
    )
    assert (first["op"], second["op"]) == ("all_reduce", "barrier") and second["wait_us"] == {
        0: 0,
        1: 0,
        2: 0,
    }
    assert stragglers(trace[3:]).late_rank is None and stragglers(trace[3:]).words() == "No rank is late."
    assert "alone" in stragglers(trace[:1]).words() and stragglers(Trace()).rows() == []
    assert (
        "charged_us" in repr(found) and "<table" in found._repr_html_() and found.to_dict()["late_rank"] == 1
    )
