"""Holds the skips of a run against `tests/expected_skips.txt`, and prints each with its reason.

Is: the `--expected-skips FILE` option, and the sizes of random tests. Is not: fixtures of any one part (they live beside its tests).
Invariant: with the option, a run fails when a test is skipped that the file does not name for this machine, or when
a skip the file names did not happen while its folder ran.
"""

from __future__ import annotations

import fnmatch
import importlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from . import notebooks, rig, shares


class ExpectedSkip(NamedTuple):
    """One line of the file: `pattern | condition | reason`."""

    pattern: str
    condition: str
    reason: str


def _missing_module(name: str) -> bool:
    return importlib.util.find_spec(name) is None


def _missing_pyverbs() -> bool:
    from ccl_lab import rdma
    from ccl_lab.errors import UnsupportedError

    try:
        rdma.pyverbs()
    except UnsupportedError:
        return True
    return False


def _toolkit(name: str) -> bool:
    return bool(shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin:/opt/cuda/bin"))


def _can_make_namespaces() -> bool:
    command = "ip link add type veth && ip link add type bridge"
    words = ["unshare", "--net", "sh", "-c", command]
    return os.geteuid() == 0 and bool(shutil.which("unshare")) and subprocess.run(words, capture_output=True).returncode == 0


CONDITIONS = {
    "always": lambda: True,
    "no-chromium": lambda: not (shutil.which("chromium") or shutil.which("google-chrome")),
    "no-node": lambda: shutil.which("node") is None,
    "no-node-modules": lambda: not Path("widgets/node_modules").is_dir(),
    "no-valgrind": lambda: shutil.which("valgrind") is None,
    "no-mpirun": lambda: shutil.which("mpirun") is None,
    "no-torch": lambda: _missing_module("torch"),
    "no-gpu": lambda: not Path("/dev/nvidiactl").exists(),
    "no-cuda-torch": lambda: importlib.util.find_spec("torch") is None or not importlib.import_module("torch").backends.cuda.is_built(),
    "no-nvcc": lambda: not _toolkit("nvcc"),
    "no-nvdisasm": lambda: not _toolkit("nvdisasm"),
    "no-rdma": lambda: not Path("/sys/class/infiniband").is_dir(),
    "no-rig": lambda: rig.obstacle() is not None,
    "no-pyverbs": _missing_pyverbs,
    "no-perftest": lambda: not (shutil.which("ib_write_bw") and shutil.which("ibv_rc_pingpong")),
    "no-verbs-program": lambda: not Path("build/tests/tests/test_verbs_rig").is_file(),
    "no-netns": lambda: not _can_make_namespaces(),
    "not-root": lambda: os.geteuid() != 0,
    "no-shared-traces": lambda: not Path("..", "shared", "traces").is_dir(),
    "no-numa": lambda: not Path("/sys/devices/system/node/node1").is_dir(),
}


def pytest_configure(config: pytest.Config) -> None:
    # A shell's background job ignores the interrupt, and its children with it: tests that send one need it to arrive.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    shares.draw(config.getoption("--draws"))
    notebooks.look_often()


def read_expected(path: Path) -> list[ExpectedSkip]:
    rows = []
    for line in path.read_text().splitlines():
        line = line.split("#", 1)[0].strip()
        if line:
            pattern, condition, reason = (part.strip() for part in line.split("|"))
            rows.append(ExpectedSkip(pattern, condition, reason))
    return rows


def holds(condition: str) -> bool:
    """True where every word of `condition` (joined by `or`) that is known holds."""
    return any(CONDITIONS[word.strip()]() for word in condition.split(" or "))


def compare(skips: dict[str, str], expected: list[ExpectedSkip], ran: set[str]) -> list[str]:
    """What differs, in words. `skips`: test id -> reason; `ran`: every test id of the run."""
    active = [row for row in expected if holds(row.condition)]
    wrong = [
        f"unexpected skip: {test} ({reason})"
        for test, reason in skips.items()
        if not any(fnmatch.fnmatch(test, row.pattern) for row in active)
    ]
    for row in active:
        reached = [test for test in ran if fnmatch.fnmatch(test, row.pattern)]
        if reached and not any(test in skips for test in reached):
            wrong.append(f"expected skip did not happen: {row.pattern} ({row.condition}: {row.reason})")
    return wrong


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--expected-skips", metavar="FILE", help="fail when the skips differ from those FILE lists")
    parser.addoption("--seed", type=int, default=20260101, help="seed of the property tests and fuzzers")
    parser.addoption("--draws", type=shares.share_of, default=shares.DEFAULT, help="share of the random cases of tests/sim, or all of them")
    parser.addoption("--cases", type=int, default=1000, help="random cases of the property tests")
    parser.addoption("--case", type=int, help="run only this random case")
    parser.addoption("--mutants", type=int, default=120, help="mutants per algorithm (0: all)")
    parser.addoption("--inputs", type=int, default=20000, help="mutated inputs per fuzzer")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    path = session.config.getoption("--expected-skips")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not path or hasattr(session.config, "workerinput") or reporter is None:
        return
    skips = {r.nodeid: _reason(r) for r in reporter.stats.get("skipped", []) if not hasattr(r, "wasxfail")}
    ran = {r.nodeid for kind in ("passed", "failed", "skipped") for r in reporter.stats.get(kind, [])}
    session.config._ccl_lab_skips = skips, compare(skips, read_expected(Path(path)), ran)
    if session.config._ccl_lab_skips[1] and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skips, wrong = getattr(terminalreporter.config, "_ccl_lab_skips", ({}, []))
    for test, reason in skips.items():
        terminalreporter.write_line(f"skipped {test}: {reason}")
    for line in wrong:
        terminalreporter.write_line(line, red=True)
    if wrong:
        terminalreporter.write_line(
            f"the skips differ from the expected list (Python {sys.version.split()[0]})", red=True
        )
