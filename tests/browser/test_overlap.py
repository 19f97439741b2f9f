"""What is exposed, on the page: hatching, the sentence, folded rows, the worst op, a selected range, two schedules, files."""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import SimpleNamespace

import computing
import fake
import numpy as np
import pytest
from host import Host
from test_views import FakeWorld, lanes_box, settled

from ccl_lab import widgets
from ccl_lab.errors import UsageError
from ccl_lab.trace import SpanKind, Track
from ccl_lab.trace.exposed import exposure
from ccl_lab.widgets import exposed
from ccl_lab.widgets.live import Panel

BLUE, ORANGE = (0, 114, 178), (230, 159, 0)


@pytest.fixture(scope="module")
def sequential():
    return computing.trace(False)


@pytest.fixture(scope="module")
def decomposed():
    return computing.trace(True, slower=1.19)


CANVAS = (
    "const l = t.layout.lines.find((x) => x.key === '{key}');"
    "const c = document.querySelector('.tl-sticky canvas').getContext('2d');"
)


def measured(host: Host, ranks: int) -> None:
    """Waits until what is exposed is measured for all spans there are, and drawn."""
    host.run(until=lambda: host.js("t.store.exposure.ranks.size") == ranks and host.js("t.store.exposure.timer") is None)
    host.run(0.2)


def pixels(host: Host, key: str, t: float) -> list[list[int]]:
    """The column of pixels of line `key` at time t."""
    read = f"return [...Array(Math.floor(l.h)).keys()].map((k) => [...c.getImageData(t.xAt({t}), l.y + k, 1, 1).data]);"
    return host.js("(() => {" + CANVAS.format(key=key) + read + "})()")


def band(host: Host, key: str, low: float, high: float) -> set[tuple[int, ...]]:
    """Colours in the middle of line `key` between two times."""
    read = (
        f"const x0 = t.xAt({low}); const d = c.getImageData(x0, l.y + l.h / 2, t.xAt({high}) - x0, 1).data;"
        "return [...Array(d.length / 4).keys()].map((k) => [...d.subarray(4 * k, 4 * k + 3)]);"
    )
    return {tuple(each) for each in host.js("(() => {" + CANVAS.format(key=key) + read + "})()")}


@pytest.mark.parametrize("which", ["sequential", "decomposed", "random"])
def test_the_browser_and_python_agree_on_the_partition(page, request, which) -> None:
    trace = computing.many(40_000) if which == "random" else request.getfixturevalue(which)
    host = Host(page, widgets.timeline(trace))
    settled(host, len(trace))
    measured(host, len(exposure(trace).ranks))
    expected = exposure(trace).ranks
    for row, told in zip(host.js("t.store.exposure.parts()"), expected.rows(), strict=True):
        assert row == told


def test_exposed_communication_is_hatched(page, sequential) -> None:
    host = Host(page, widgets.timeline(sequential, folded=True))
    settled(host, len(sequential))
    us = {name: int(exposure(sequential).ranks[f"{name}_ns"][0]) for name in ("total", "compute")}
    assert band(host, "r0", us["compute"] * 0.1, us["compute"] * 0.9) == {ORANGE}
    hatched = band(host, "r0", us["compute"] * 1.05, us["total"] * 0.95)
    assert BLUE in hatched and len(hatched) == 2, "blue and its stripes"
    (stripe,) = hatched - {BLUE}
    assert sum(stripe) < sum(BLUE) / 2, "dark stripes on a light page"
    page.locator(".tl-scroll").focus()
    page.keyboard.press("r")
    host.run(0.2)
    assert host.js("t.layout.allFolded") is False
    lane = host.js("t.layout.lines.find((l) => l.label === 'tx NIC 0').key")
    sent = sequential.where(rank=0, track="nic_tx")
    low, high = (int(sent[name][-1]) for name in ("begin_ns", "end_ns"))
    assert len(band(host, lane, low + (high - low) * 0.7, high - 9000)) > 1, "what is sent after computing is hatched"


def test_hidden_communication_is_not_hatched(page, decomposed) -> None:
    host = Host(page, widgets.timeline(decomposed))
    settled(host, len(decomposed))
    sent = decomposed.where(rank=0, track="nic_tx")
    low, high = (int(sent[name][0]) for name in ("begin_ns", "end_ns"))
    lane = host.js("t.layout.lines.find((l) => l.label === 'tx NIC 0').key")
    assert band(host, lane, low + (high - low) * 0.8, high - 9000) == {BLUE}, "what is sent under computation is not"


def test_a_pixel_of_a_folded_rank_is_stacked_by_shares(page) -> None:
    trace = computing.many(80_000)
    host = Host(page, widgets.timeline(trace, folded=True))
    settled(host, len(trace))
    measured(host, 8)
    found = exposure(trace).ranks
    column = pixels(host, "r0", int(found["total_ns"][0]) // 2)
    compute = sum(tuple(each[:3]) == ORANGE for each in column) / len(column)
    blue = sum(each[2] > each[0] + 20 for each in column) / len(column)
    share = {name: found[f"{name}_ns"][0] / found["total_ns"][0] for name in ("compute", "exposed_comm")}
    assert compute == pytest.approx(share["compute"], abs=0.2) and blue == pytest.approx(share["exposed_comm"], abs=0.2)
    assert tuple(column[-3][:3]) == ORANGE, "computation stands at the bottom"


def test_the_sentence_is_said_and_follows_the_selected_range(page, sequential) -> None:
    host = Host(page, widgets.timeline(sequential))
    settled(host, len(sequential))
    text = page.locator(".ccl-words p")
    assert text.inner_text() == exposure(sequential).words()
    assert page.locator(".ccl-view").first.get_attribute("aria-describedby") == text.get_attribute("id")
    box = lanes_box(page)
    x = host.js("t.xAt(t.store.exposure.ranks.get(0).exposed.begin[0])")
    page.mouse.move(box["x"] + x + 40, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + x + 140, box["y"] + 200, steps=4)
    page.mouse.up()
    host.run(0.1)
    said = text.inner_text()
    assert re.match(r"In the selected [\d.]+ µs: Rank 0 spends [\d.]+ µs of [\d.]+ µs \(100.0 %\) on communication", said), said
    assert said in page.locator("[aria-live]").first.text_content()
    page.locator(".tl-scroll").focus()
    page.keyboard.press("Escape")
    host.run(0.1)
    assert text.inner_text() == exposure(sequential).words()


def test_the_worst_op_is_one_click_away(page, sequential) -> None:
    view = widgets.timeline(sequential)
    host = Host(page, view)
    settled(host, len(sequential))
    worst = view.spec["data"]["exposure"]["a"]["worst"]
    button = page.locator(".ccl-words button")
    assert f"rank {worst['rank']}" in button.inner_text() and "exposed" in button.inner_text()
    button.focus()
    page.keyboard.press("Enter")
    host.run(0.1)
    assert host.js("[t.found.row.op[t.found.i], t.found.lane.rank]") == [worst["op"], worst["rank"]]
    chosen = view.selection
    assert set(chosen["op_id"]) == {worst["op"]} and worst["rank"] in chosen["rank"]
    assert page.locator(".ccl-code code").inner_text() == f"trace.where(op_id={worst['op']}, coll_id={worst['coll_id']})"
    assert len(sequential.where(op_id=worst["op"], coll_id=worst["coll_id"])) == len(chosen)
    assert "are exposed" in page.locator("[aria-live]").first.text_content()


def test_the_table_and_the_tooltips_have_the_same_facts(page, sequential) -> None:
    host = Host(page, widgets.timeline(sequential))
    settled(host, len(sequential))
    page.locator("button", has_text="Table").click()
    head = page.locator(".ccl-table table").first.locator("th").all_inner_texts()
    assert head == ["rank", "total", "compute", "exposed comm", "exposed copies", "idle", "comm", "overlap"]
    assert page.locator(".ccl-table table").count() == 2
    box = lanes_box(page)
    line = host.js("t.layout.lines.find((l) => l.kind === 'stack').y")
    page.mouse.move(box["x"] + host.js("t.xAt(t.store.exposure.ranks.get(0).exposed.begin[0]) + 30"), box["y"] + line + 7)
    host.run(0.1)
    assert page.locator(".ccl-tip").first.inner_text().startswith("exposed communication")
    page.mouse.move(box["x"] + 30, box["y"] + line + 7)
    host.run(0.1)
    assert "computation" in page.locator(".ccl-tip").first.inner_text()
    lane = host.js("t.layout.lines.find((l) => l.label === 'tx NIC 0').y")
    page.mouse.move(box["x"] + host.js("t.xAt(t.store.exposure.ranks.get(0).exposed.begin[0]) + 30"), box["y"] + lane + 6)
    host.run(0.1)
    assert "(100.0 %)" in page.locator(".ccl-tip").first.inner_text()


def test_a_trace_without_computation_is_as_it_was(page) -> None:
    trace = fake.ring()
    host = Host(page, widgets.timeline(trace))
    settled(host, len(trace.columns["rank"]))
    assert not page.locator(".ccl-words").is_visible()
    assert host.js("t.store.exposure.ranks.size") == 0 and page.locator(".ccl-hatch").count() == 0
    assert host.js("t.layout.lines.filter((l) => l.kind === 'stack').length") == 0
    with pytest.raises(UsageError, match="no computation that could hide"):
        widgets.overlap(trace)


def test_an_emulated_device_is_called_so(page, decomposed) -> None:
    host = Host(page, widgets.timeline(decomposed.with_meta(source="measured", device="emulated")))
    settled(host, len(decomposed))
    assert page.locator(".ccl-badge", has_text="emulated device").count() == 1
    assert page.locator(".tl-gutter .lane", has_text="emulated device").count() >= 1


def test_two_schedules_side_by_side_say_the_difference(page, sequential, decomposed) -> None:
    view = widgets.trace_diff(sequential, decomposed)
    host = Host(page, view)
    host.run(0.5)
    assert page.locator(".tl-scroll").count() == 2
    ranges = host.js("v.filter((x) => x.cclTimeline).map((x) => [x.cclTimeline.t0, x.cclTimeline.t1])")
    assert ranges[0] == ranges[1]
    said = page.locator(".ccl-words p").nth(2).inner_text()
    assert said.startswith("decomposed exposes ") and " less than sequential on the worst rank" in said
    assert "times as long" in said, "what overlap cost the computation is said"
    assert page.locator(".ccl-hatch").count() == 3
    bars = page.locator(".ccl-bar")
    assert bars.count() == 8
    found = exposure(sequential).ranks
    width = bars.first.locator(".comm").bounding_box()["width"] / bars.first.bounding_box()["width"]
    assert width == pytest.approx(found["exposed_comm_ns"][0] / max(found["total_ns"]), abs=0.01)
    assert "exposed communication" in bars.first.get_attribute("aria-label")
    assert "changes" not in view.spec["data"], "ops of two schedules have nothing to do with each other"
    page.locator(".ccl-chips button").last.click()
    host.run(0.1)
    assert view.selected["source"] == "b" and len(view.selection) > 0
    again = widgets.trace_diff(sequential, computing.trace(False, slower=1.2))
    assert "changes" in again.spec["data"] and "difference" in again.spec["data"]["exposure"]


def test_bars_alone_need_no_spans(page, decomposed) -> None:
    view = decomposed.overlap()
    assert view.spec["sources"] == {}
    host = Host(page, view)
    host.run(0.3)
    assert page.locator(".ccl-bar").count() == 4
    assert page.locator(".ccl-words p").inner_text() == exposure(decomposed).words()
    page.locator("button", has_text="Table").click()
    assert page.locator(".ccl-table tbody tr").count() == 4
    page.locator(".ccl-chips button").click()
    host.run(0.1)
    worst = exposed.worst_op(exposure(decomposed), 0)
    assert set(view.selection["op_id"]) == {worst["op"]}


def test_files_hold_it_all(browser, sequential, decomposed, tmp_path: Path) -> None:
    path = widgets.export_html(tmp_path / "overlap.html", [widgets.trace_diff(sequential, decomposed), decomposed.overlap()])
    context = browser.new_context(offline=True, color_scheme="dark", viewport={"width": 520, "height": 900})
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_function("() => document.querySelectorAll('.ccl-view').length === 4")
    page.wait_for_function("() => document.querySelector('.ccl-view').cclTimeline.store.exposure.ranks.size === 4")
    page.wait_for_timeout(200)
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out of a narrow page"
    assert problems == []
    context.close()


def test_a_million_spans_stay_fluent_with_hatching(page) -> None:
    trace = computing.many()
    host = Host(page, widgets.timeline(trace))
    settled(host, len(trace))
    measured(host, 8)
    # The same picture without hatching, by turns, since other work on this machine slows both.
    pan = """async (on) => {
      const t = [...document.querySelectorAll('.ccl-view')].map((x) => x.cclTimeline).find(Boolean);
      t.store.computes = on;
      t.drawMs.length = 0;
      for (let i = 0; i < 60; i++) { t.zoom(i < 30 ? 0.8 : 1 / 0.8); await new Promise((r) => requestAnimationFrame(r)); }
      const ms = [...t.drawMs].sort((a, b) => a - b);
      return ms[Math.floor(ms.length / 2)];
    }"""
    pairs = [(page.evaluate(pan, True), page.evaluate(pan, False)) for _ in range(4)]
    assert min(a / b for a, b in pairs) < 3, f"a frame with and without hatching takes {pairs} ms"
    assert min(a for a, _ in pairs) < 40


class ComputingWorld(FakeWorld):
    """A world whose even spans are computation, on an emulated device."""

    def poll(self) -> tuple[np.ndarray, int]:
        spans, drops = super().poll()
        compute = spans["track"] == Track.channel
        spans["track"][compute], spans["kind"][compute], spans["index"][compute] = Track.compute, SpanKind.compute, 0
        spans["peer"] = np.where(compute, -1, (spans["rank"] + 1) % 8)
        return spans, drops

    def status(self) -> dict:
        return {**super().status(), "device": "emulated"}


def test_a_live_world_tells_what_is_exposed_while_it_runs(page) -> None:
    panel = Panel(ComputingWorld())
    try:
        host = Host(page, panel)
        host.run(until=lambda: (host.js("t && t.store.spans") or 0) > 20_000)
        words = page.locator(".ccl-words p").first
        host.run(until=lambda: re.match(r"Rank \d spends [\d.]+ m?s of ", words.inner_text()))
        assert page.locator(".tl-gutter .lane", has_text="emulated device").count() >= 1
        first = words.inner_text()
        host.run(until=lambda: words.inner_text() != first)
        spent = "const e = t.store.exposure; e.due = -1; const a = performance.now(); e.refresh(); return performance.now() - a;"
        assert min(host.js("(() => {" + spent + "})()") for _ in range(3)) < 200
    finally:
        panel.close()


def test_numbers_of_foreign_traces_name_their_worst_collective() -> None:
    """Spans without ops: the worst is a collective of a rank, and `.selection` finds it."""
    compute = {"track": Track.compute, "kind": SpanKind.compute, "begin_ns": 0, "end_ns": 500}
    rows = [{**compute, "rank": rank} for rank in range(2)]
    for rank in range(2):
        for k in range(2):
            begin = 300 + 300 * k
            kernel = {"track": Track.channel, "kind": SpanKind.collective, "coll_id": k, "rank": rank}
            rows.append({**kernel, "begin_ns": begin, "end_ns": begin + 250 + 40 * rank})
    trace = fake.FakeTrace(fake.columns_of(rows), {"collective": "all_reduce"})
    view = widgets.timeline(trace)
    worst = view.spec["data"]["exposure"]["a"]["worst"]
    assert (worst["rank"], worst["op"], worst["coll_id"], worst["exposed_ns"]) == (1, -1, 1, 290)
    assert worst["name"] == "all_reduce 1"
    view.selected = {"source": "a", "coll_id": 1, "rank": 1}
    assert len(view._mask(trace.columns, "a", view.selected).nonzero()[0]) == 1


def test_making_the_numbers_of_a_million_spans_is_quick() -> None:
    trace = computing.many()
    began = time.perf_counter()
    exposed.exposure_spec(exposed.exposure_of(trace), 0)
    assert time.perf_counter() - began < 10


def test_two_traces_are_held_against_one_computation() -> None:
    """A run whose computation was disturbed loses that time too, though as much of its communication is hidden."""
    plain = computing.trace(True)
    columns = {name: column.copy() for name, column in plain.columns.items()}
    last = columns["kind"] == SpanKind.compute
    last &= columns["end_ns"] == columns["end_ns"][last].max()
    longer = 700
    columns["end_ns"][last] += longer
    disturbed = fake.FakeTrace(columns, plain.meta)
    found = [exposed.exposure_of(each) for each in (plain, disturbed)]
    told = widgets.overlap(plain, disturbed).spec["data"]["exposure"]
    best = min(each.time_ns - each.ect_ns() for each in found)
    assert [told[key]["ect_ns"] for key in "ab"] == [each.ect_ns(best) for each in found]
    assert told["b"]["ect_ns"] > found[1].ect_ns(), "its own computation would hide what it lost"


def test_a_difference_that_is_none_is_said() -> None:
    found = exposure(computing.trace(True))
    assert exposed.difference(found, found, ("a", "b")).startswith("Both expose ")
    named = [SimpleNamespace(meta={"algorithm": f"matmul_all_to_all_{name}"}) for name in ("sequential", "direct")]
    assert widgets._labels(*named) == ("sequential", "direct")
    assert widgets._labels(named[0], named[0]) == ("before", "after")
    both = [SimpleNamespace(meta={"algorithm": "ring", "source": source}) for source in ("simulated", "measured")]
    assert widgets._labels(*both) == ("simulated", "measured")
    assert exposed.same_schedule(SimpleNamespace(meta={}), SimpleNamespace(meta={"algorithm": "ring"}))
