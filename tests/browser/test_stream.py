"""The stream of spans: batches, lanes, acknowledgement, repair, in Python alone."""

from __future__ import annotations

import threading
import time

import fake
import numpy as np
import pytest

from ccl_lab.trace.columns import COLUMNS, SPAN_DTYPE, WIRE_DTYPE
from ccl_lab.widgets import wire
from ccl_lab.widgets.stream import Pump, SpanStream


def decoded(stream: SpanStream, messages: list) -> dict[str, np.ndarray]:
    """Columns again, from messages."""
    out: dict[str, list] = {
        name: [] for name in ("begin_ns", "end_ns", "op_id", "kind", "nbytes", "peer", "step", "lane")
    }
    for content, (spans, detail) in messages:
        w, d = np.frombuffer(spans, WIRE_DTYPE), np.frombuffer(detail, wire.DETAIL_DTYPE)
        begin = stream.origin_ns + content["origin_ns"] + w["begin"].astype(np.int64) * content["tick_ns"]
        out["begin_ns"].append(begin)
        out["end_ns"].append(begin + w["length"].astype(np.int64) * content["tick_ns"])
        for name in ("op_id", "kind", "lane"):
            out[name].append(w[name])
        for name in ("nbytes", "peer", "step"):
            out[name].append(d[name])
    return {name: np.concatenate(parts) for name, parts in out.items()}


def take_all(stream: SpanStream) -> list:
    messages = []
    while (message := stream.next()) is not None and message[0]["type"] == "spans":
        messages.append(message)
    return messages


def test_what_arrives_is_what_was_sent_in_messages_of_a_mebibyte() -> None:
    trace = fake.million(200_000)
    stream = SpanStream("a")
    stream.append(trace.columns, keep_all=True)
    messages = take_all(stream)
    assert [m[0]["seq"] for m in messages] == list(range(stream.total))
    assert max(sum(map(len, buffers)) for _, buffers in messages) <= 1 << 20
    got = decoded(stream, messages)
    for name in ("begin_ns", "end_ns", "op_id", "kind", "nbytes", "peer", "step"):
        np.testing.assert_array_equal(got[name], trace.columns[name])
    rows = np.array(stream.lanes.rows())[got["lane"]]
    for i, name in enumerate(("node", "rank", "track", "index")):
        np.testing.assert_array_equal(rows[:, i], trace.columns[name])


def test_times_too_long_for_32_bits_get_a_coarser_tick() -> None:
    columns = fake.columns_of(
        [{"begin_ns": 5, "end_ns": 5 + 3600 * 10**9}, {"begin_ns": 10**13, "end_ns": 10**13 + 7}]
    )
    stream = SpanStream("a")
    stream.append(columns)
    [(content, _)] = messages = take_all(stream)
    assert content["tick_ns"] > 1
    got = decoded(stream, messages)
    assert abs(int(got["end_ns"][0]) - int(columns["end_ns"][0])) <= 2 * content["tick_ns"]


def test_an_ask_goes_back_and_a_window_says_where_it_begins() -> None:
    stream = SpanStream("a", window_spans=250)
    for k in range(10):
        stream.append(
            fake.columns_of(
                [{"begin_ns": k * 1000 + i, "end_ns": k * 1000 + i + 1, "rank": k} for i in range(100)]
            )
        )
    first = take_all(stream)
    assert [m[0]["seq"] for m in first] == [8, 9]
    assert all(m[0]["first"] == 8 for m in first)
    assert len(first[0][0]["lanes"]["rank"]) == 9, "the first batch a page can get names every lane so far"
    assert first[1][0]["lanes"] == {"from": 9, "node": [0], "rank": [9], "track": [0], "index": [0]}
    stream.ask("page", 9)
    assert [m[0]["seq"] for m in take_all(stream)] == [9]
    assert stream.resyncs == 1


def test_acks_are_cumulative_and_the_slowest_page_counts() -> None:
    stream = SpanStream("a")
    stream.append(fake.ring().columns)
    stream.ask("one", 0)
    stream.ask("two", 0)
    assert stream.acked == -1
    stream.ack("one", 0)
    assert stream.acked == -1
    stream.ack("two", 0)
    assert stream.acked == 0


def test_the_pump_keeps_to_thirty_messages_a_second_and_reads_the_feed_off_the_main_thread() -> None:
    threads, sent = set(), []
    spans = np.zeros(100, SPAN_DTYPE)

    def poll() -> tuple[np.ndarray, int]:
        threads.add(threading.current_thread().name)
        return spans, 3

    stream = SpanStream("a")
    stream.ask("page", 0)
    pump = Pump([stream], lambda content, buffers: sent.append((time.monotonic(), content)), poll=poll)
    pump.start()
    time.sleep(1.2)
    pump.close()
    pump.join(2)
    assert not pump.is_alive()
    assert threads == {"ccl_lab-widget-pump"}
    assert 3 <= len(sent) <= 1.3 * 30 + 2
    assert sent[-1][1]["drops"] == 3


def test_a_feed_that_fails_is_said_in_the_page() -> None:
    sent = []

    def poll() -> tuple[np.ndarray, int]:
        raise RuntimeError("world closed")

    pump = Pump([SpanStream("a")], lambda content, buffers: sent.append(content), poll=poll)
    pump.start()
    pump.join(2)
    assert sent[-1]["status"] == {"state": "feed ended", "error": "RuntimeError: world closed"}


def test_records_without_some_columns_get_them() -> None:
    columns = wire.from_records(np.zeros(2, SPAN_DTYPE))
    assert set(columns) == set(COLUMNS)
    assert columns["step"].tolist() == [-1, -1]


def test_too_many_lanes_say_what_to_do() -> None:
    n = wire.MAX_LANES + 1
    columns = {name: np.zeros(n, dtype) for name, dtype in COLUMNS.items()}
    columns["rank"] = np.arange(n, dtype=np.int32)
    with pytest.raises(OverflowError, match="select ranks"):
        wire.Lanes().numbers(columns)
