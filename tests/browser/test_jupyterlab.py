"""The widgets in a real JupyterLab: Run All of the tour, a live run with clicks while it is awaited, reload of the page."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import ROOT, Lab

from ..ports import free_port

TOUR = ROOT / "labs" / "00_tour.ipynb"

LIVE = [
    "import ccl_lab as ccl\n"
    "topology = ccl.Topology.cluster(nodes=2, gpus_per_node=2, nics_per_node=2, nic_gbits_per_s=0.4)\n"
    "world = ccl.World(topology)\npanel = world.panel()\npanel",
    "run = world.start(ccl.plan('all_reduce', topology, nbytes='256MiB', algorithm='ring'))\n"
    "try:\n    await run\nexcept ccl.errors.AbortedError as error:\n    print('cancelled by a click:', type(error).__name__)",
    "print('spans', len(panel.trace), 'selected', len(panel.selection))\nworld.close()",
]

FAULT = [
    LIVE[0],
    "import time\n"
    "run = world.start(ccl.plan('all_reduce', topology, nbytes='256MiB', algorithm='ring'))\n"
    "try:\n    await run\nexcept ccl.errors.CclError as error:\n    print('ended:', type(error).__name__)",
    "fault = world.faults.log[0]\n"
    "print('pulled', fault.python, fault.state, fault.time_ns + time.time_ns() - time.monotonic_ns(), 'end')\nworld.close()",
]

STATIC = [
    "import sys; sys.path.insert(0, {folder!r})\nimport fake\nfrom ccl_lab import widgets\n"
    "view = widgets.timeline(fake.million(100_032))\nview",
    "print('selected', len(view.selection.columns['rank']))",
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Iterator[Lab]:
    if importlib.util.find_spec("jupyterlab") is None:
        pytest.skip("jupyterlab is not installed")
    made = Lab(tmp_path_factory.mktemp("lab"), free_port())
    yield made
    made.close()


@pytest.fixture
def lab_page(browser) -> Iterator:
    made = browser.new_page(viewport={"width": 1500, "height": 1100})
    yield made
    made.close()


def test_a_page_that_is_loaded_again_brings_the_view_back(lab: Lab, lab_page) -> None:
    page = lab_page
    lab.write("static.ipynb", [text.format(folder=str(Path(__file__).parent)) for text in STATIC])
    lab.open(page, "static.ipynb")
    lab.run_all(page)
    loaded = "() => document.querySelector('.ccl-view')?.cclTimeline?.store.spans === 100032"
    page.wait_for_function(loaded, timeout=60_000)
    page.locator(".tl-gutter .lane", has_text="channel 0").first.click()
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    page.wait_for_timeout(800)
    page.goto(page.url)
    page.wait_for_function(loaded, timeout=60_000)
    page.locator(".jp-Notebook .jp-Cell").nth(1).click()
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-cell'); }")
    lab.wait_output(page, "selected 1563", 20)


def test_a_key_of_the_timeline_adds_no_cell(lab: Lab, lab_page) -> None:
    page = lab_page
    lab.write("keys.ipynb", [text.format(folder=str(Path(__file__).parent)) for text in STATIC])
    lab.open(page, "keys.ipynb")
    lab.run_all(page)
    page.wait_for_function(
        "() => document.querySelector('.ccl-view')?.cclTimeline?.store.spans === 100032", timeout=60_000
    )
    cells = page.locator(".jp-Notebook .jp-Cell").count()
    page.locator(".tl-scroll").focus()
    for key in "awsdfbm":
        page.keyboard.press(key)
    page.wait_for_timeout(300)
    assert page.locator(".jp-Notebook .jp-Cell").count() == cells


def test_a_live_run_can_be_cancelled_by_a_click_while_it_is_awaited(lab: Lab, lab_page) -> None:
    pytest.importorskip("ccl_lab._core", reason="the native engine is not built")
    page = lab_page
    lab.write("live.ipynb", LIVE)
    lab.open(page, "live.ipynb")
    lab.run_all(page)
    page.wait_for_function(
        "() => [...document.querySelectorAll('.ccl-view')].some((v) => v.cclTimeline?.store.spans > 50)",
        timeout=90_000,
    )
    page.locator("[data-key='n0.1']").first.click()
    page.locator("button", has_text="cancel run").first.click()
    text = lab.wait_output(page, "selected")
    assert "cancelled by a click: AbortedError" in text
    page.locator(".ccl-sub", has_text="closed").first.wait_for(timeout=10_000)


def test_a_click_pulls_a_nic_within_a_quarter_second_while_a_run_is_awaited(lab: Lab, lab_page) -> None:
    pytest.importorskip("ccl_lab._core", reason="the native engine is not built")
    page = lab_page
    lab.write("fault.ipynb", FAULT)
    lab.open(page, "fault.ipynb")
    lab.run_all(page)
    page.wait_for_function(
        "() => [...document.querySelectorAll('.ccl-view')].some((v) => v.cclTimeline?.store.spans > 50)",
        timeout=90_000,
    )
    cells = page.locator(".jp-Notebook .jp-Cell").count()
    page.evaluate("() => document.addEventListener('click', () => (window.clicked = Date.now()), true)")
    page.locator(".hit[data-key='n0.1']").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("b")
    page.locator(".ccl-menu [role=menuitem]", has_text="NIC down").click()
    clicked = page.evaluate("() => clicked")
    page.locator(".ccl-log li", has_text="NIC down").wait_for(timeout=10_000)
    page.wait_for_function(
        "() => [...document.querySelectorAll('.ccl-view')].some((v) => v.cclTimeline?.flags.some((f) => f.text.includes('NIC down')))",
        timeout=10_000,
    )
    page.locator("[aria-label='faults and recovery'] button", has_text="undo").click()
    page.locator(".ccl-log li", has_text="NIC down undone").wait_for(timeout=10_000)
    page.locator("button", has_text="cancel run").first.click()
    text = lab.wait_output(page, "pulled")
    found = re.search(r"pulled world\.faults\.nic_down\(node=0, nic=1\) undone (\d+) end", text)
    assert found, text[-2000:]
    assert int(found[1]) / 1e6 - clicked < 250
    assert page.locator(".jp-Notebook .jp-Cell").count() == cells, "the keys of the menu reached the notebook"


def test_run_all_of_the_tour(lab: Lab, lab_page) -> None:
    if not TOUR.exists():
        pytest.skip("labs/00_tour.ipynb is not there")
    pytest.importorskip("ccl_lab._core", reason="the native engine is not built")
    page = lab_page
    shutil.copy(TOUR, lab.folder / TOUR.name)
    lab.open(page, TOUR.name)
    lab.run_all(page)
    page.wait_for_timeout(1000)
    lab.wait_idle(page, timeout=180)
    text = lab.outputs(page)
    assert '"output_type":"error"' not in text, text[-3000:]
    assert text.count("application/vnd.jupyter.widget-view+json") >= 1
    page.wait_for_function("() => document.querySelectorAll('.ccl-view').length > 0", timeout=20_000)
