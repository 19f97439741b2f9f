"""One file that opens with the network off, stays interactive, and holds nothing that can break out."""

from __future__ import annotations

from pathlib import Path

import fake
import pytest

from ccl_lab import widgets
from ccl_lab.errors import UsageError


def test_a_file_opens_offline_and_is_interactive(browser, tmp_path: Path) -> None:
    trace, topology = fake.ring(), fake.topology()
    records = [
        {"algorithm": "ring", "nbytes": 2**k, "algbw_gbytes_per_s": 1.0, "busbw_gbytes_per_s": 1.75}
        for k in range(10, 20)
    ]
    views = [widgets.timeline(trace), widgets.heatmap(trace, topology), widgets.topology(topology, trace=trace),
             widgets.schedule(fake.schedule()),
             widgets.trace_diff(trace, fake.ring(slow_nic=3)), "A paragraph with <b>.",
             widgets.bandwidth(records, backend="native")]  # fmt: skip
    path = widgets.export_html(tmp_path / "all.html", views, "All <views>", text="made by a test")
    assert path.stat().st_size < 400_000
    context = browser.new_context(offline=True, viewport={"width": 1200, "height": 900})
    page = context.new_page()
    problems: list[str] = []
    requests: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_function("() => document.querySelectorAll('.ccl-view').length === 8")
    page.wait_for_function("() => document.querySelector('.ccl-view').cclTimeline.store.spans > 1000")
    page.wait_for_timeout(300)
    page.locator(".tl-scroll").first.focus()
    page.keyboard.press("w")
    page.locator("button", has_text="Table").first.click()
    assert page.locator(".ccl-table.on tr").count() > 30
    assert page.title() == "All <views>"
    assert [url for url in requests if not url.startswith(("file:", "blob:", "data:"))] == []
    assert problems == []
    context.close()


def test_text_of_a_value_cannot_become_part_of_the_page(browser, tmp_path: Path) -> None:
    trace = fake.ring()
    evil = "</script><script>window.broken=1</script><img src=x onerror='window.broken=2'>"
    trace.meta["algorithm"] = evil
    topology = fake.topology()
    topology.name = topology.device = evil
    schedule = fake.schedule()
    schedule.algorithm, schedule.reasons = evil, (evil,)
    path = widgets.export_html(
        tmp_path / "evil.html",
        [widgets.timeline(trace), widgets.topology(topology), widgets.schedule(schedule), evil],
        evil,
    )
    page = browser.new_page()
    page.goto(path.as_uri())
    page.wait_for_function("() => document.querySelectorAll('.ccl-view').length === 3")
    page.wait_for_timeout(300)
    assert page.evaluate("() => window.broken") is None
    assert page.locator("img").count() == 0
    page.close()


def test_a_large_trace_is_inlined_whole(browser, tmp_path: Path) -> None:
    path = widgets.timeline(fake.million(100_032)).save_html(tmp_path / "large.html")
    page = browser.new_page()
    page.goto(path.as_uri())
    page.wait_for_function("() => document.querySelector('.ccl-view')?.cclTimeline.store.spans === 100032")
    page.close()


def test_what_cannot_be_exported_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="backend='native'"):
        widgets.export_html(
            tmp_path / "x.html",
            [
                widgets.bandwidth(
                    [{"algorithm": "ring", "nbytes": 8, "algbw_gbytes_per_s": 1, "busbw_gbytes_per_s": 1}]
                )
            ],
        )
    with pytest.raises(UsageError, match="int"):
        widgets.export_html(tmp_path / "x.html", [3])


def test_the_same_views_give_the_same_data() -> None:
    from ccl_lab.widgets.export import packed

    one, two = ({**widgets.timeline(fake.ring()).document(), "uid": ""} for _ in range(2))
    one["spec"]["link"] = two["spec"]["link"] = ""
    assert packed([one]) == packed([two])
