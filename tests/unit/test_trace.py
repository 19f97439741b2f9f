"""The Trace value: columns, selection, joins, and that it cannot be changed."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from trace_cases import random_trace, ring_trace

from ccl_lab import views
from ccl_lab.errors import ShapeError, UsageError
from ccl_lab.trace import COLUMNS, SPAN_DTYPE, SpanKind, SpanStatus, Trace, Track


def test_columns_have_the_dtypes_of_the_schema_and_defaults():
    trace = Trace({"rank": [0, 1], "end_ns": np.array([5, 7], np.uint16)})
    assert {name: array.dtype for name, array in trace.columns.items()} == COLUMNS
    assert trace["op_id"].tolist() == [-1, -1] and trace["node"].tolist() == [-1, -1]
    assert trace["nbytes"].tolist() == [0, 0] and trace["end_ns"].tolist() == [5, 7]
    assert len(Trace()) == 0 and Trace().n_ranks == 0 and Trace().time_us == 0


@pytest.mark.parametrize(
    ("columns", "error", "words"),
    [
        ({"rnak": [0]}, UsageError, "Did you mean 'rank'"),
        ({"rank": [0], "step": [0, 1]}, ShapeError, "differ in length"),
        ({"rank": [[0]]}, ShapeError, "one value per span"),
        ({"rank": [0.5]}, UsageError, "expected integers"),
        ({"rank": [2**31]}, UsageError, "outside int32"),
        ({"index": [-1]}, UsageError, "outside uint16"),
    ],
)
def test_wrong_columns_are_refused(columns, error, words):
    with pytest.raises(error, match=words):
        Trace(columns)


def test_meta_is_plain_data():
    trace = Trace({}, {"a": np.int64(3), "b": (1, np.float32(0.5)), "c": np.arange(2), "d": Track.copy})
    assert trace.meta == {"a": 3, "b": [1, 0.5], "c": [0, 1], "d": "copy"}
    for bad in (float("nan"), object(), b"bytes"):
        with pytest.raises(UsageError, match="meta"):
            Trace({}, {"x": bad})


def test_a_trace_cannot_be_changed():
    mine = np.arange(3, dtype=np.int32)
    trace = Trace({"rank": mine})
    with pytest.raises(ValueError):
        trace["rank"][0] = 9
    with pytest.raises(AttributeError):
        trace.meta = {}
    mine[0] = 7
    assert trace["rank"][0] == 7, "columns of the right dtype are not copied"
    assert trace.replace(rank=[4, 5, 6])["rank"].tolist() == [4, 5, 6]
    assert trace.with_meta(source="measured").meta == {"source": "measured"} and trace.meta == {}


def test_equality_copy_and_pickle():
    trace = random_trace(1)
    assert trace == random_trace(1) and trace != random_trace(2)
    assert trace != trace.with_meta(x=1) and trace != 3
    for same in (copy.copy(trace), copy.deepcopy(trace), pickle.loads(pickle.dumps(trace)), trace[:]):
        assert same == trace
    with pytest.raises(TypeError):
        hash(trace)


def test_where_filters_by_value_name_collection_and_range():
    trace = random_trace(3)
    c = trace.columns
    assert len(trace.where(track="nic_tx")) == int((c["track"] == Track.nic_tx).sum())
    assert len(trace.where(track=["nic_tx", Track.copy], rank=2)) == int(
        (np.isin(c["track"], [Track.nic_tx, Track.copy]) & (c["rank"] == 2)).sum()
    )
    low, high = trace.begin_ns + 2000, trace.begin_ns + 5000
    expected = (c["begin_ns"] >= low) & (c["begin_ns"] < high)
    for wanted in ((low, high), slice(low, high), range(low, high)):
        assert np.array_equal(trace.where(begin_ns=wanted)["begin_ns"], c["begin_ns"][expected])
    assert len(trace.where(nbytes=(None, None))) == len(trace)
    assert len(trace.where(rank=[])) == 0
    for wrong in ({"track": "nic"}, {"rank": "a"}, {"colour": 1}, {"begin_ns": (1, 2, 3)}, {"rank": 1.5}):
        with pytest.raises(UsageError):
            trace.where(**wrong)


def test_between_keeps_what_touches_the_time():
    trace = Trace({"begin_ns": [0, 5, 10, 10, 20], "end_ns": [5, 11, 10, 15, 30], "op_id": range(5)})
    assert trace.between(10, 20)["op_id"].tolist() == [1, 2, 3]
    assert trace.between(5, 6)["op_id"].tolist() == [1]
    assert len(trace.between(40, 50)) == 0


def test_sorted_concat_and_indexing():
    trace = random_trace(4)
    ordered = trace.sorted()
    assert (np.diff(ordered["begin_ns"]) >= 0).all() and len(ordered) == len(trace)
    assert trace.sorted("rank", "op_id")["rank"].tolist() == sorted(trace["rank"].tolist())
    both = Trace.concat([trace.with_meta(x=1), ordered.with_meta(x=2)])
    assert len(both) == 2 * len(trace) and both.meta["drops"] == 6 and "x" not in both.meta
    assert Trace.concat([]) == Trace()
    assert both[-1]["begin_ns"].tolist() == ordered[-1:]["begin_ns"].tolist()
    row = next(iter(ring_trace()))
    assert row["track"] == "control" and row["kind"] == "collective" and row["rank"] == 0


def test_native_records_become_spans():
    records = np.zeros(3, SPAN_DTYPE)
    records["begin_ns"], records["end_ns"] = [10, 20, 30], [15, 0, 40]
    records["status"], records["op_id"] = [0, SpanStatus.open, 0], [4, 5, 6]
    trace = Trace.from_records(records, rank=3, node=1, meta={"source": "measured"})
    assert trace["rank"].tolist() == [3, 3, 3] and trace["node"].tolist() == [1, 1, 1]
    assert trace["end_ns"].tolist() == [15, 20, 40], "an open span ends no earlier than it began"
    assert Trace.from_records(records, rank=np.array([0, 1, 2]))["rank"].tolist() == [0, 1, 2]
    with pytest.raises(UsageError, match="SPAN_DTYPE"):
        Trace.from_records(np.zeros(2, np.int64))


def test_join_takes_the_step_from_the_schedule():
    schedule = SimpleNamespace(ops=SimpleNamespace(step=np.array([7, 8, 9])), digest="abc")
    trace = Trace({"op_id": [2, -1, 0, 3], "step": [1, 1, 1, 1]}, {"schedule_digest": "abc"})
    assert trace.join(schedule)["step"].tolist() == [9, -1, 7, -1]
    with pytest.raises(UsageError, match="not of other"):
        trace.join(SimpleNamespace(ops=schedule.ops, digest="other"))


def test_names_say_kind_direction_and_peer():
    trace = Trace(
        {
            "kind": [SpanKind.put, SpanKind.wait, SpanKind.segment, SpanKind.copy, 99],
            "track": [Track.channel, Track.channel, Track.nic_rx, Track.copy, 0],
            "peer": [3, 2, 1, -1, -1],
        }
    )
    assert trace.names == ["put → 3", "wait ← 2", "segment ← 1", "copy", "99"]
    assert Trace().names == []


def test_it_says_what_it_is():
    trace = ring_trace()
    assert repr(trace) == "<Trace simulated all_gather ring, 108 spans, 4 ranks, 976.6 KiB, 438 µs>"
    assert "3 spans dropped" in repr(random_trace(1))
    html = Trace({"rank": [0]}, {"collective": "<script>"})._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html and html.count("<tr>") == 2


def test_it_draws_itself_through_the_views(monkeypatch):
    drawn = []
    monkeypatch.setattr(views, "draw", lambda view, value, **options: drawn.append((view, options)))
    trace = ring_trace()
    trace.timeline(width=3), trace.heatmap(), trace.diff(trace).timeline()
    assert drawn == [("timeline", {"width": 3}), ("heatmap", {}), ("trace_diff", {})]
