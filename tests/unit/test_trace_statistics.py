"""Numbers of a trace, against hand-made cases and slow obvious code."""

from __future__ import annotations

import json

import numpy as np
import pytest
from trace_cases import random_trace, ring_trace

from ccl_lab.errors import UsageError
from ccl_lab.topo import Topology
from ccl_lab.trace import SpanKind, Trace, Track
from ccl_lab.trace.diff import op_times, pair
from ccl_lab.trace.intervals import covered, covered_without, union
from ccl_lab.trace.rates import line_rates, rate_bins
from ccl_lab.trace.statistics import bandwidths, bus_factor

US = 1000


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("all_reduce", 14 / 8),
        ("all_gather", 7 / 8),
        ("reduce_scatter", 7 / 8),
        ("all_to_all", 7 / 8),
        ("all_to_allv", 7 / 8),
        ("gather", 7 / 8),
        ("scatter", 7 / 8),
        ("broadcast", 1),
        ("reduce", 1),
        ("send_recv", 1),
        ("barrier", 0),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(collective, factor):
    assert bus_factor(collective, 8) == factor
    # 1 GB in 1 s
    assert bandwidths(collective, 8, 10**9, 1e6) == (1.0, factor)


def test_bandwidth_of_nothing_is_zero():
    assert bandwidths("all_reduce", 1, 100, 1.0)[1] == 0
    assert bandwidths("all_reduce", 4, 100, 0.0) == (0.0, 0.0)
    with pytest.raises(UsageError, match="all_reduce"):
        bus_factor("allreduce", 4)


@pytest.mark.parametrize("far", [0, 2**61])
@pytest.mark.parametrize("seed", range(20))
def test_unions_agree_with_counting(seed, far):
    rng = np.random.default_rng(seed)
    n, groups = int(rng.integers(0, 40)), 3
    begin = rng.integers(0, 50, n)
    end, group = begin + rng.integers(-2, 12, n), rng.integers(0, groups, n)
    wanted = rng.integers(0, 2, n).astype(bool)

    def ns(mask, g):
        return {
            t
            for b, e, k in zip(begin[mask], end[mask], group[mask], strict=True)
            if k == g
            for t in range(b, e)
        }

    every = np.ones(n, bool)
    # far apart in time, so that the groups cannot be laid side by side in 64 bits
    shift = np.where(group == 1, far, 0)
    lengths = covered(begin + shift, end + shift, group, groups)
    assert lengths.tolist() == [len(ns(every, g)) for g in range(groups)]
    alone = covered_without(begin + shift, end + shift, group, wanted, groups)
    assert alone.tolist() == [len(ns(wanted, g) - ns(~wanted, g)) for g in range(groups)]
    first, last, which = union(begin, end, group)
    assert all(np.diff(first[which == g]).min(initial=1) > 0 for g in range(groups)) and (last > first).all()


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("bin_ns", [1, 7, 1000, 10**6])
def test_rates_conserve_bytes_and_agree_with_slow_code(seed, bin_ns):
    trace = random_trace(seed, n=60)
    spans = trace.where(track=["nic_tx", "nic_rx"])
    bins = rate_bins(trace, bin_ns)
    assert bins.nbytes.sum() == pytest.approx(spans["nbytes"].sum(), rel=1e-9)
    slow = np.zeros_like(bins.nbytes)
    rows = {key: row for row, key in enumerate(zip(bins.node, bins.index, bins.track, strict=True))}
    for span in spans:
        row = rows[span["node"], span["index"], Track[span["track"]]]
        begin, end = span["begin_ns"] - bins.begin_ns, span["end_ns"] - bins.begin_ns
        for k in range(begin // bin_ns, max(begin, end - 1) // bin_ns + 1):
            inside = min(end, (k + 1) * bin_ns) - max(begin, k * bin_ns)
            slow[row, k] += span["nbytes"] * (inside / (end - begin) if end > begin else 1)
    assert np.allclose(bins.nbytes, slow, rtol=1e-6, atol=1)


def test_rates_of_a_part_of_the_time():
    trace = Trace({"track": [Track.nic_tx], "nbytes": [1000], "begin_ns": [0], "end_ns": [1000]})
    bins = rate_bins(trace, 100, begin_ns=250, end_ns=650)
    assert bins.nbytes.tolist() == [[100.0, 100.0, 100.0, 100.0]] and bins.edges_ns.tolist() == [
        250,
        350,
        450,
        550,
        650,
    ]
    assert bins.gbits_per_s[0, 0] == 8.0 and bins.labels == ["node -1 nic 0 tx"]
    assert rate_bins(Trace(), 100).nbytes.shape == (0, 0)
    for bad in (0, -1):
        with pytest.raises(UsageError, match="bin_ns"):
            rate_bins(trace, bad)
    with pytest.raises(UsageError, match="widen"):
        rate_bins(trace, 1, begin_ns=0, end_ns=2**40)


def test_a_ring_of_known_times():
    stats = ring_trace(repeats=3).stats()
    # entry at 0, 100, 200, 300 ns; 3 steps of 125 µs from 400 ns on; 1 MB at each rank
    assert stats.time_us == pytest.approx(375.4) and stats.nbytes == 1_000_000
    assert stats.algbw_gbytes_per_s == pytest.approx(1e6 / 375.4e-6 / 1e9)
    assert stats.busbw_gbytes_per_s == pytest.approx(stats.algbw_gbytes_per_s * 3 / 4)
    rows = stats.collectives.rows()
    assert [row["coll_id"] for row in rows] == [0, 1, 2] and {row["ranks"] for row in rows} == {4}
    assert {row["last_rank"] for row in rows} == {3}
    assert rows[0]["latency_us"] == pytest.approx(375.1) and rows[0]["begin_skew_us"] == pytest.approx(0.3)
    assert rows[0]["end_skew_us"] == 0
    ranks = stats.ranks
    assert ranks["came_last"].tolist() == [0, 0, 0, 3]
    assert ranks["early_us"].tolist() == pytest.approx([0.9, 0.6, 0.3, 0.0])
    assert ranks["copying_us"].tolist() == pytest.approx([0.15] * 4)
    assert ranks["sent_nbytes"].tolist() == [3 * 3 * 2 * 125_000] * 4
    nics = stats.nics
    assert len(nics) == 16 and nics["busy_us"].tolist() == pytest.approx([3 * 375.0] * 16)
    assert nics["busy_gbits_per_s"].tolist() == pytest.approx([8.0] * 16)
    assert nics["utilisation"].tolist() == pytest.approx([375 / 375.4] * 16, rel=1e-3)
    assert stats.time_percentiles_us["p99"] == pytest.approx(375.4)


def test_the_time_of_meta_counts_first():
    assert ring_trace().with_meta(time_us=1000.0).time_us == 1000.0
    assert ring_trace().with_meta(time_us=1000.0).algbw_gbytes_per_s == pytest.approx(1.0)


def test_without_entry_spans_the_ops_tell():
    trace = ring_trace()
    stats = trace[trace["kind"] != SpanKind.collective].stats()
    assert stats.collectives["ranks"].tolist() == [4] and stats.time_us == pytest.approx(438, rel=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_statistics_of_anything_are_plain_and_printable(seed):
    for trace in (random_trace(seed), random_trace(seed, n=1), Trace()):
        stats = trace.stats()
        json.dumps(stats.to_dict(), allow_nan=False)
        assert repr(stats) and stats._repr_html_().startswith("<p>")


def test_line_rates_come_from_the_topology():
    nodes, indices = np.array([0, 1, 1]), np.array([1, 0, 1])
    topology = Topology.cluster(nodes=2, gpus_per_node=2, nics_per_node=2, nic_gbits_per_s=8).to_dict()
    assert line_rates({"topology": topology}, nodes, indices).tolist() == [8, 8, 8]
    by_nic = {"nic_gbits_per_s": [1, 2, 3, 4], "nics_per_node": 2}
    assert line_rates({"topology": by_nic}, nodes, indices).tolist() == [2, 3, 4]
    assert line_rates({"topology": {"nic_gbits_per_s": [5, 6]}}, nodes, indices).tolist() == [6, 5, 6]
    for unknown in (
        {},
        {"topology": {"nodes": 2}},
        {"topology": {"nic_gbits_per_s": "fast"}},
        {"topology": by_nic},
    ):
        assert line_rates(unknown, nodes + 5, indices) is None


def test_diff_finds_what_changed():
    a = ring_trace(repeats=3)
    assert a.diff(a).ops["duration_delta_ns"].any() == np.False_ and a.diff(a).only_a == 0
    slow = (a["rank"] == 2) & (a["kind"] == SpanKind.wait) & (a["step"] == 1)
    b = a.replace(end_ns=a["end_ns"] + np.where(slow, 7_000, 0))
    change = a.diff(b)
    top = change.top(2).rows()
    assert [(row["rank"], row["kind"], row["step"], row["duration_delta_ns"]) for row in top] == [
        (2, "wait", 1, 7000)
    ] * 2
    assert "wait op" in change.summary() and "of rank 2 took 7 µs longer" in change.summary()
    assert change.per_rank()["waiting_delta_ns"].tolist() == [0, 0, 14_000, 0]
    json.dumps(change.to_dict())
    assert "longer_us" in repr(change) and max(map(len, repr(change).splitlines())) <= 100, "fits a cell of a notebook"
    assert "<table>" in change._repr_html_()


def test_diff_joins_by_op_rank_and_track_over_repeats_and_clocks():
    measured, simulated = ring_trace(repeats=3), ring_trace()
    later = measured.replace(begin_ns=measured["begin_ns"] + 10**15, end_ns=measured["end_ns"] + 10**15)
    change = simulated.diff(later.where(rank=[0, 1]))
    assert not change.ops["duration_delta_ns"].any() and not change.ops["begin_delta_ns"].any()
    assert change.only_b == 0 and set(change.ops["rank"].tolist()) == {0, 1}
    assert change.only_a == len(op_times(simulated).rank) - len(change.ops)
    table = pair(simulated, later, tracks=[Track.channel])
    assert set(table["track"].tolist()) == {int(Track.channel)} and len(table) == 4 * 2 * 6
    empty = simulated.diff(Trace())
    assert len(empty.ops) == 0 and repr(empty)
