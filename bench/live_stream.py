"""A minute of live spans in a page: 30 messages a second, a gap injected, nothing lost, frames meanwhile.

Is: a measurement of the widget's stream on a static page in headless Chromium (the bridge to the page stands for the
notebook server). Is not: a test, nor the path through a kernel.

    python -m bench.live_stream
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "browser")]

from conftest import ARGS, CHROMIUM  # noqa: E402
from host import Host  # noqa: E402
from test_views import FakeWorld  # noqa: E402

from ccl_lab.widgets.live import Panel  # noqa: E402

COUNT_FRAMES = """() => { window.frames_seen = 0; window.frames_from = performance.now();
  const tick = () => { window.frames_seen += 1; requestAnimationFrame(tick); }; requestAnimationFrame(tick); }"""


def measure(seconds: float, rate: int) -> dict[str, Any]:
    """Streams `rate` spans a second for `seconds`; loses every 300th message once."""
    from playwright.sync_api import sync_playwright

    panel = Panel(FakeWorld(rate), window_spans=4_000_000)
    lost: set[int] = set()

    def lose(content: dict[str, Any]) -> bool:
        seq = content.get("seq", -1)
        if content["type"] != "spans" or seq % 300 != 299 or seq in lost:
            return False
        lost.add(seq)
        return True

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(CHROMIUM), args=ARGS)
        host = Host(browser.new_page(viewport={"width": 1440, "height": 1000}), panel, lose=lose)
        host.page.evaluate(COUNT_FRAMES)
        host.run(seconds)
        frames = host.page.evaluate("() => frames_seen / (performance.now() - frames_from) * 1000")
        panel._world.stopped = True
        host.run(until=lambda: panel._streams["a"].acked == panel._streams["a"].total - 1, timeout=60)
        draws = sorted(host.js("t.drawMs"))
        ids = host.js("(() => { const seen = new Set(); let n = 0; for (const l of t.store.lanes) for (const r of l.rows)"
                      " for (let i = 0; i < r.n; i++) { seen.add(r.op[i]); n += 1; } return [seen.size, n]; })()")  # fmt: skip
        skipped = host.js("[...t.session.receivers.values()][0].skipped")
        browser.close()
    panel.close()
    return {
        "made_spans": panel._world.made,
        "seen_spans": ids[1],
        "distinct_spans": ids[0],
        "skipped_batches": skipped,
        "injected_losses": len(lost),
        "resyncs": panel._streams["a"].resyncs,
        "messages": len(host.messages),
        "messages_per_s": len(host.messages) / seconds,
        "largest_message_bytes": max(host.sizes),
        "frames_per_s": frames,
        "draw_p95_ms": draws[int(0.95 * (len(draws) - 1))],
    }


def run(seconds: float = 60.0, rate: int = 20_000) -> dict[str, Any]:
    """The facts of a record."""
    began = time.time()
    found = measure(seconds, rate)
    whole = (
        found["made_spans"] == found["seen_spans"] == found["distinct_spans"]
        and found["skipped_batches"] == 0
    )
    words = "none missing, none twice" if whole else "NOT WHOLE"
    return {
        "summary": f"{seconds:.0f} s at {rate:,} spans/s: {found['seen_spans']:,} spans, {words}, {found['resyncs']} resyncs",
        "seconds": seconds,
        "rate_spans_per_s": rate,
        "took_s": time.time() - began,
        "load": os.getloadavg(),
        "cpus": os.cpu_count(),
        **found,
    }


if __name__ == "__main__":
    from bench.record import save

    facts = run()
    print(facts["summary"], save("live_stream", facts, ROOT / "bench" / "records"))
