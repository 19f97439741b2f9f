"""Every view on a static page: what it draws, what a person can do, and what that leaves in Python."""

from __future__ import annotations

import time
from types import SimpleNamespace

import fake
import numpy as np
import pytest
from host import Host

from ccl_lab import widgets
from ccl_lab.trace.columns import SPAN_DTYPE, SpanKind, Track
from ccl_lab.widgets.live import Panel

GUTTER = 148


def lanes_box(page) -> dict:
    """The box of the lanes of the first timeline, without the labels."""
    box = page.locator(".tl-scroll").first.bounding_box()
    return {"x": box["x"] + GUTTER, "y": box["y"], "width": box["width"] - GUTTER, "height": box["height"]}


def settled(host: Host, spans: int) -> None:
    host.run(
        until=lambda: (
            host.js("t && t.store.spans") == spans and host.js("t.width > 100 && t.layout.height > 0")
        )
    )
    host.run(0.15)


def test_a_drag_selects_a_range_as_a_trace(page) -> None:
    trace = fake.ring()
    host = Host(page, widgets.timeline(trace))
    settled(host, len(trace.columns["rank"]))
    box = lanes_box(page)
    page.mouse.move(box["x"] + 200, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 60, steps=4)
    page.mouse.up()
    host.run(0.1)
    low, high = host.view.selected["range"]
    chosen = host.view.selection
    c, origin = trace.columns, int(trace.columns["begin_ns"].min())
    expected = (c["begin_ns"] - origin < np.ceil(high)) & (c["end_ns"] - origin > np.floor(low))
    assert 0 < len(chosen.columns["rank"]) == int(expected.sum()) < len(expected)
    code = page.locator(".ccl-code code").first.inner_text()
    assert code.startswith("trace.between(1")


def test_a_lane_and_a_span_can_be_selected(page) -> None:
    trace = fake.ring()
    host = Host(page, widgets.timeline(trace))
    settled(host, len(trace.columns["rank"]))
    page.locator(".tl-gutter .lane", has_text="channel 1").first.click()
    host.run(0.1)
    chosen = host.view.selection.columns
    assert (
        set(chosen["rank"]) == {0} and set(chosen["track"]) == {Track.channel} and set(chosen["index"]) == {1}
    )
    x, y = host.js("[t.xAt(t.store.lanes.find((l) => l.label === 'channel 0').rows[0].end[0] / 2), 0]")
    line = host.js("t.layout.lines.find((l) => l.label === 'channel 0').y")
    box = lanes_box(page)
    page.mouse.click(box["x"] + x, box["y"] + line + 6)
    host.run(0.1)
    assert host.view.selected["op_id"] == 0
    assert set(host.view.selection.columns["op_id"]) == {0}


def test_hover_tells_op_step_peer_bytes_and_rate(page) -> None:
    trace = fake.ring()
    host = Host(page, widgets.timeline(trace))
    settled(host, len(trace.columns["rank"]))
    line = host.js("t.layout.lines.find((l) => l.label === 'tx NIC 3').y")
    box = lanes_box(page)
    host.js("t.scroll.scrollTop = 0")
    page.mouse.move(box["x"] + 40, box["y"] + line + 6)
    host.run(0.1)
    text = page.locator(".ccl-tip").first.inner_text()
    for word in ("op", "step", "peer", "bytes", "MiB", "rate", "Gb/s"):
        assert word in text, text


def test_keys_work_and_do_not_reach_the_notebook(page) -> None:
    trace = fake.ring()
    host = Host(page, widgets.timeline(trace))
    settled(host, len(trace.columns["rank"]))
    page.evaluate(
        "() => { window.stolen = []; document.body.addEventListener('keydown', (e) => stolen.push(e.key)); }"
    )
    page.locator(".tl-scroll").focus()
    whole = host.js("t.t1 - t.t0")
    page.keyboard.press("w")
    assert host.js("t.t1 - t.t0") < whole
    before = host.js("t.t0")
    page.keyboard.press("d")
    assert host.js("t.t0") > before
    page.keyboard.press("f")
    assert host.js("t.t1 - t.t0") == pytest.approx(whole)
    page.keyboard.press("?")
    assert page.locator(".ccl-help.on").count() == 1
    page.keyboard.press("/")
    page.keyboard.type("reduce rank:3")
    page.keyboard.press("Enter")
    host.run(0.1)
    assert host.js("t.found.lane.rank") == 3
    assert host.js("t.found.row.kind[t.found.i]") == SpanKind.reduce
    assert page.evaluate("() => stolen") == []


def test_the_wheel_scrolls_the_page_until_the_timeline_has_focus(page) -> None:
    trace = fake.ring()
    host = Host(page, widgets.timeline(trace))
    settled(host, len(trace.columns["rank"]))
    box = lanes_box(page)
    whole = host.js("t.t1 - t.t0")
    page.mouse.move(box["x"] + 300, box["y"] + 100)
    page.mouse.wheel(0, -200)
    host.run(0.1)
    assert host.js("t.t1 - t.t0") == pytest.approx(whole)
    page.locator(".tl-scroll").focus()
    page.mouse.wheel(0, -200)
    host.run(0.1)
    assert host.js("t.t1 - t.t0") < whole


def test_words_of_spans_that_lie_on_each_other_are_not_written_on_each_other(page) -> None:
    # More puts at once than a lane has rows: the last row holds all that are left.
    base = {"track": Track.channel, "kind": SpanKind.put, "peer": 1, "end_ns": 1_000_000}
    trace = fake.FakeTrace(fake.columns_of([{**base, "op_id": i, "begin_ns": 10_000 * i} for i in range(40)]))
    host = Host(page, widgets.timeline(trace))
    settled(host, 40)
    stats = host.js("t.painter.stats")
    assert stats["rects"] == 40
    rows = host.js("t.store.lanes[0].rows.length")
    assert host.js("t.store.lanes[0].rows.at(-1).overlaps") and stats["words"] <= rows


def test_many_spans_stream_and_draw_from_the_pyramid(page) -> None:
    trace = fake.million(300_032)
    view = widgets.timeline(trace)
    lost = {3}
    host = Host(
        page, view, lose=lambda m: m["type"] == "spans" and m["seq"] in lost and not lost.discard(m["seq"])
    )
    settled(host, 300_032)
    assert host.js("[...t.session.receivers.values()][0].gaps") >= 1, "the lost batch was asked for again"
    assert max(host.sizes) <= 1 << 20
    host.run(until=lambda: view._streams["a"].acked == view._streams["a"].total - 1)
    stats = host.js("t.painter.stats")
    assert stats["pyramidRows"] == stats["pixelRows"] > 20 and stats["rects"] == 0
    host.js("t.setRange(t.store.end * 0.4, t.store.end * 0.4001)")
    host.run(0.2)
    stats = host.js("t.painter.stats")
    assert 0 < stats["rects"] <= 2500 and stats["pyramidRows"] == 0
    sums = host.js(
        "[t.store.lanes.length, t.store.lanes.reduce((n, l) => n + l.rows.reduce((m, r) => m + r.n, 0), 0)]"
    )
    assert sums == [64, 300_032]


def test_the_timeline_and_the_heatmap_share_range_and_cursor(page) -> None:
    trace, topology = fake.ring(), fake.topology()
    line, heat = widgets.timeline(trace), widgets.heatmap(trace, topology)
    assert line.spec["link"] == heat.spec["link"]
    data = {**heat.spec["data"]}
    both = widgets.View(
        [*line.spec["views"], *heat.spec["views"]],
        streams=line._streams,
        traces=line._traces,
        metas=line._metas,
        data=data,
    )
    host = Host(page, both)
    settled(host, len(trace.columns["rank"]))
    box = lanes_box(page)
    page.mouse.move(box["x"] + 200, box["y"] + 30)
    host.run(0.2)
    assert "Gb/s at " in page.locator(".ccl-sub").nth(1).inner_text()
    canvas = page.locator("[aria-label^='rate of each NIC'] canvas").bounding_box()
    page.mouse.move(canvas["x"] + 500, canvas["y"] + 60)
    host.run(0.2)
    assert host.js("t.cursor") == pytest.approx(host.js("t.timeAt(500 - 148)"), rel=0.02)


def test_heatmap_rates_are_bytes_over_time(page) -> None:
    trace, topology = fake.ring(), fake.topology()
    host = Host(page, widgets.heatmap(trace, topology))
    host.run(0.4)
    page.locator("button", has_text="Table").click()
    host.run(0.2)
    rows = {
        r[0]: r
        for r in page.evaluate(
            "() => [...document.querySelectorAll('tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
        )
    }
    assert len(rows) == 16
    c = trace.columns
    mask = (c["track"] == Track.nic_tx) & (c["node"] == 0) & (c["index"] == 3)
    span = int(c["end_ns"].max() - c["begin_ns"].min())
    expected = c["nbytes"][mask].sum() * 8 / span
    shown = float(rows["node 0 NIC 3 tx"][1].split()[0])
    assert shown == pytest.approx(expected, rel=0.02)


def test_numbers_on_the_bars_of_nics_are_cut_where_the_bars_end(page) -> None:
    """In one ink on the bar, in another one beyond it; the bar is as long as its share of the rate."""
    Host(page, widgets.topology(fake.topology(), trace=fake.ring()))
    page.wait_for_selector(".ccl-view [clip-path]", state="attached")
    page.wait_for_timeout(300)
    bars = page.evaluate("""() => [...document.querySelectorAll('.ccl-view [clip-path]')].map((over) => {
        const clip = document.querySelector(over.getAttribute('clip-path').slice(4, -1)).firstChild;
        const fill = over.previousSibling.previousSibling, text = fill.previousSibling;
        return [over.textContent, text.textContent, clip.getAttribute('width'), fill.getAttribute('width'), over.getAttribute('fill'),
                text.getAttribute('fill')];
    })""")
    assert len(bars) == 16 and any(float(width) > 0 for _, _, width, *_ in bars)
    for over, text, clip, fill, ink, plain in bars:
        assert over == text and clip == fill and ink in ("#1a1a1a", "#ffffff") and plain != "#ffffff"


def test_topology_clicks_select_act_and_say_the_state_in_words(page) -> None:
    trace, topology = fake.ring(), fake.topology()
    view = widgets.topology(topology, trace=trace, faults={(1, 2): "down"})
    heard = []
    view.on_action(lambda name, args: heard.append((name, args)))
    host = Host(page, view)
    host.run(0.3)
    down = page.locator("[data-key='n1.2']")
    assert "✕ down" in down.text_content()
    assert "down" in down.get_attribute("aria-label")
    page.locator("[data-key='n0.3']").focus()
    page.keyboard.press("Enter")
    host.run(until=lambda: heard)
    assert heard == [("nic", {"node": 0, "nic": 3})]
    chosen = view.selection.columns
    assert (
        set(chosen["node"]) == {0}
        and set(chosen["index"]) == {3}
        and set(chosen["track"]) <= {Track.nic_tx, Track.nic_rx}
    )
    assert "where(node=0" in page.locator(".ccl-code code").inner_text()


def test_a_click_follows_a_chunk_through_the_schedule(page) -> None:
    schedule = fake.schedule(4)
    view = widgets.schedule(schedule)
    host = Host(page, view)
    host.run(0.3)
    page.locator("canvas").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    host.run(0.1)
    op = view.selected["op_id"]
    assert schedule.ops.rank[op] == 1 and schedule.ops.kind[op] == SpanKind.put
    assert f"describe({op})" in page.locator(".ccl-code code").inner_text()
    said = page.locator("[aria-live]").text_content()
    # Chunk 1 leaves rank 1: 6 puts in 6 steps, 3 reduces that add to it.
    assert "passes through 9 ops" in said
    page.locator("button", has_text="play").click()
    host.run(0.2)
    page.locator("button", has_text="pause").click()


def test_the_diff_lists_the_ops_that_changed_most(page) -> None:
    before, after = fake.ring(), fake.ring(slow_nic=3)
    view = widgets.trace_diff(before, after)
    host = Host(page, view)
    host.run(0.5)
    assert page.locator(".cclTimeline, .tl-scroll").count() == 2
    rows = view.spec["data"]["changes"]["rows"]
    assert rows[0]["delta"] == max(row["delta"] for row in rows) > 0
    ranges = host.js("v.filter((x) => x.cclTimeline).map((x) => [x.cclTimeline.t0, x.cclTimeline.t1])")
    assert ranges[0] == ranges[1]
    page.locator("tbody tr").first.click()
    host.run(0.1)
    assert view.selected["op_id"] == rows[0]["op"]


def test_bandwidth_draws_a_line_per_algorithm(page) -> None:
    records = [
        {"algorithm": a, "nbytes": 2**k, "algbw_gbytes_per_s": k / 10, "busbw_gbytes_per_s": k / 5}
        for a in ("ring", "direct")
        for k in range(10, 20)
    ]
    host = Host(page, widgets.bandwidth(records, backend="native"))
    host.run(0.2)
    assert page.locator("polyline").count() == 2
    assert page.locator(".ccl-key").count() == 2
    figure = widgets.bandwidth(records)
    assert len(figure.data) == 4 and figure.layout.template.layout.paper_bgcolor == "rgba(0,0,0,0)"


def test_two_views_of_one_model_share_data_and_clean_up(page) -> None:
    trace = fake.ring()
    host = Host(page, widgets.timeline(trace), views=2)
    settled(host, len(trace.columns["rank"]))
    assert host.js(
        "v.filter((x) => x.cclTimeline).map((x) => x.cclTimeline.store).every((s, _, all) => s === all[0])"
    )
    page.evaluate("() => shown[0].controller.abort()")
    host.run(0.1)
    assert page.locator(".tl-scroll").count() == 1
    page.evaluate("() => { shown[1].controller.abort(); made.abort(); }")
    host.run(0.1)
    assert page.locator(".tl-scroll").count() == 0
    assert page.evaluate("() => model.listeners()") == 0
    heard = len(host.heard)
    host.run(0.8)
    assert len(host.heard) == heard, "nothing goes on after the model is gone"


def test_the_theme_is_read_again_when_it_changes(page) -> None:
    host = Host(page, widgets.timeline(fake.ring()))
    host.run(0.3)
    page.add_style_tag(
        content="body[data-jp-theme-light='false']{--jp-layout-color0:#111;--jp-content-font-color1:#eee}"
        "body[data-jp-theme-light='true']{--jp-layout-color0:#fff}"
    )
    pixel = (
        "[...document.querySelector('.tl-sticky canvas').getContext('2d').getImageData(700, 4, 1, 1).data]"
    )
    page.evaluate("() => document.body.setAttribute('data-jp-theme-light', 'true')")
    host.run(0.3)
    light = host.js(pixel)
    page.evaluate("() => document.body.setAttribute('data-jp-theme-light', 'false')")
    host.run(0.3)
    dark = host.js(pixel)
    assert page.locator(".ccl.ccl-dark").count() == 1
    assert sum(light[:3]) > sum(dark[:3]) + 200


def test_there_is_a_way_in_without_eyes_or_mouse(page) -> None:
    trace = fake.ring()
    host = Host(page, widgets.timeline(trace))
    settled(host, len(trace.columns["rank"]))
    assert page.locator("[role=application][tabindex='0'][aria-label]").count() == 1
    assert page.locator("[aria-live=polite]").count() == 1
    assert (
        page.locator("button:not([aria-label]):not(.node):not(.rank)").filter(has_not_text="Copy").count()
        == 0
    )
    page.locator("button", has_text="Table").click()
    assert page.locator(".ccl-table.on tbody tr").count() > 30
    node = page.locator(".tl-gutter button.node").first
    assert node.get_attribute("aria-expanded") == "true"
    node.press("Enter")
    host.run(0.2)
    assert page.locator(".tl-gutter button.node").first.get_attribute("aria-expanded") == "false"


def test_a_picture_says_what_it_is_of(page) -> None:
    trace = fake.ring(source="simulated")
    trace.meta["drops"] = 12
    host = Host(page, widgets.timeline(trace))
    host.run(0.3)
    badges = page.locator(".ccl-badge").all_inner_texts()
    assert badges == ["simulated", "12 spans dropped"]


class FakeWorld:
    """A world whose feed makes `rate` spans a second on 8 ranks."""

    def __init__(self, rate: int = 20_000) -> None:
        self.topology = fake.topology()
        self.feed = SimpleNamespace(poll=self.poll)
        self.rate, self.made, self.began, self.cancelled = rate, 0, time.monotonic(), 0
        self.stopped = False

    def poll(self) -> tuple[np.ndarray, int]:
        due = int((time.monotonic() - self.began) * self.rate)
        n = 0 if self.stopped else min(due - self.made, 30_000)
        names = [
            *[(name, SPAN_DTYPE[name]) for name in SPAN_DTYPE.names],
            ("rank", "<i4"),
            ("node", "<i4"),
            ("step", "<i4"),
        ]
        spans = np.zeros(n, names)
        i = np.arange(self.made, self.made + n)
        spans["rank"], spans["node"], spans["step"] = i % 8, i % 8 // 4, i // 8 % 14
        spans["track"] = np.where(i // 8 % 2, Track.nic_tx, Track.channel)
        spans["kind"] = np.where(i // 8 % 2, SpanKind.segment, SpanKind.put)
        spans["index"] = i % 4
        spans["begin_ns"] = 10**15 + i * (10**9 // self.rate)
        spans["end_ns"] = spans["begin_ns"] + 8 * 10**9 // self.rate
        spans["nbytes"], spans["op_id"] = 4096, i
        first, self.made = self.made == 0, self.made + n
        return spans, 5 if first else 0

    def status(self) -> dict:
        return {"state": "running", "collective": "all_reduce", "progress": 0.25}

    def cancel(self) -> None:
        self.cancelled += 1


@pytest.fixture
def panel():
    made = Panel(FakeWorld())
    yield made
    made.close()


def test_a_panel_lives_repairs_a_gap_and_survives_a_reload(page, panel) -> None:
    lost = {4, 5}
    host = Host(
        page, panel, lose=lambda m: m["type"] == "spans" and m["seq"] in lost and not lost.discard(m["seq"])
    )
    host.run(until=lambda: (host.js("t && t.store.spans") or 0) > 30_000)
    assert not lost and panel._streams["a"].resyncs >= 1
    assert host.js("[...t.session.receivers.values()][0].skipped") == 0
    assert host.js("t.follow") and page.locator(".ccl-badge", has_text="5 spans dropped").count() >= 1
    assert "running" in page.locator(".ccl-sub").first.inner_text()
    before = host.js("t.store.spans")
    host.load()
    host.run(until=lambda: (host.js("t && t.store.spans") or 0) >= before)
    ids = host.js(
        "t.store.lanes.flatMap((l) => l.rows.flatMap((r) => [...r.op.subarray(0, r.n)])).sort((a, b) => a - b)"
    )
    assert ids == list(range(len(ids))), "every span once, from the first"
    assert len(panel.trace.columns["rank"]) >= len(ids)


def test_cancel_reaches_the_world_and_a_busy_kernel_is_said(page, panel) -> None:
    host = Host(page, panel)
    host.run(until=page.locator("button", has_text="cancel run").is_enabled)
    page.locator("button", has_text="cancel run").click()
    host.run(until=lambda: panel._world.cancelled == 1)
    host.run(until=lambda: page.locator(".ccl-note", has_text="cancelled").count() == 1)
    host.deaf = True
    page.locator("button", has_text="cancel run").click()
    host.run(0.75)
    assert page.locator(".ccl-note.busy").inner_text() == "kernel busy, queued"
    queued = [content for content in host.heard if content["type"] == "action"][-1]
    panel._on_message(panel, queued, [])
    host.run(until=lambda: panel._world.cancelled == 2 and page.locator(".ccl-note.busy").count() == 0)


def test_a_view_drawn_before_it_is_in_the_page_gets_the_colours_of_the_page(page) -> None:
    page.emulate_media(color_scheme="dark")
    trace = fake.ring()
    host = Host(page, widgets.timeline(trace))
    settled(host, len(trace.columns["rank"]))
    red, green, blue, _ = host.js(
        "[...document.querySelector('.tl-sticky canvas').getContext('2d').getImageData(700, 4, 1, 1).data]"
    )
    assert max(red, green, blue) < 80 and max(red, green, blue) - min(red, green, blue) < 30
