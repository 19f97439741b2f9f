"""How fast the timeline draws a million spans: draw time per frame and frames a second while panning and zooming.

Is: a measurement in headless Chromium with software rendering, on an exported file. Is not: a test (nothing is asserted).

    python -m bench.timeline_fps
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "browser")]

import fake  # noqa: E402

from ccl_lab import widgets  # noqa: E402

ARGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync"]  # fmt: skip

# Pans and zooms for `seconds`, one step a frame, from the whole to about 1 / 10,000 of it and back.
DRIVE = """async ([mode, seconds]) => {
  const timeline = document.querySelector('.ccl-view').cclTimeline;
  timeline.fit();
  await new Promise((r) => setTimeout(r, 200));
  if (mode === 'pan') { const c = timeline.store.end / 2, w = timeline.store.end / 20; timeline.setRange(c - w, c + w); }
  if (mode === 'pan_fine') { const c = timeline.store.end / 2, w = timeline.store.end / 400; timeline.setRange(c - w, c + w); }
  timeline.drawMs.length = 0;
  const began = performance.now();
  let frames = 0;
  await new Promise((done) => {
    const step = () => {
      const t = (performance.now() - began) / 1000;
      if (t > seconds) return done();
      frames += 1;
      if (mode === 'zoom') { timeline.zoom(t % 4 < 2 ? 1 / 1.08 : 1.08, timeline.store.end * 0.4); }
      else timeline.pan(Math.sin(t * 2) * 0.03);
      requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  });
  const elapsed = (performance.now() - began) / 1000;
  const draw = [...timeline.drawMs].sort((a, b) => a - b);
  const at = (q) => draw[Math.min(draw.length - 1, Math.floor(q * draw.length))];
  return { fps: frames / elapsed, frames, draw_p50_ms: at(0.5), draw_p95_ms: at(0.95), draw_p99_ms: at(0.99), draw_max_ms: at(1) };
}"""


def measure(spans: int, seconds: float) -> dict:
    """Runs the page once; returns the numbers of each mode."""
    from playwright.sync_api import sync_playwright

    view = widgets.timeline(fake.million(spans))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        path = view.save_html(Path(folder) / "million.html")
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=ARGS)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        began = time.perf_counter()
        page.goto(path.as_uri())
        page.wait_for_function(
            f"() => document.querySelector('.ccl-view')?.cclTimeline?.store.spans === {spans // 64 * 64}",
            timeout=120_000,
        )
        loaded = time.perf_counter() - began
        page.wait_for_timeout(500)
        modes = {mode: page.evaluate(DRIVE, [mode, seconds]) for mode in ("pan", "pan_fine", "zoom")}
        size = path.stat().st_size
        browser.close()
    return {"modes": modes, "load_s": loaded, "file_bytes": size}


def run(spans: int = 1_000_000, seconds: float = 6.0) -> dict[str, Any]:
    """The facts of a record."""
    found = measure(spans, seconds)
    worst = max(mode["draw_p95_ms"] for mode in found["modes"].values())
    slowest = min(mode["fps"] for mode in found["modes"].values())
    return {
        "summary": f"{spans:,} spans: draw p95 {worst:.1f} ms, {slowest:.0f} frames/s or more",
        "spans": spans,
        "lanes": 64,
        "viewport": [1440, 900],
        "rendering": "software (no GPU)",
        "load": os.getloadavg(),
        "bundle_bytes": (ROOT / "ccl_lab/widgets/static/ccl_lab.js").stat().st_size,
        **found,
    }


if __name__ == "__main__":
    from bench.record import save

    facts = run()
    print(facts["summary"], save("timeline_fps", facts, ROOT / "bench" / "records"))
