"""Costs that do not depend on the mood of a machine: instructions of small messages and of the simulator, bytes moved per collective."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from ..native_build import ROOT, build

pytestmark = pytest.mark.timeout(900)


def _load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("callgrind_costs", ROOT / "tools/callgrind_costs.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


costs = _load_tool()
LIMITS = costs.limits()


@pytest.fixture(scope="module")
def program() -> Path:
    return build("ccl_lab_bench_costs") / "bench/ccl_lab_bench_costs"


@pytest.fixture(scope="module")
def moved(program: Path) -> list[dict]:
    return costs.moved_bytes(str(program))


@pytest.mark.parametrize("case", sorted(LIMITS["instructions"]))
def test_instructions_of_a_small_message(program: Path, case: str) -> None:
    _instructions_are_within(program, case, LIMITS["instructions"][case])


def _instructions_are_within(program: Path, case: str, limit: float, per: int = 1, **runs: int) -> None:
    if not shutil.which("valgrind"):
        pytest.skip("valgrind is not installed (Debian: apt install valgrind)")
    found = costs.instructions(str(program), [case], **runs)[case] / per
    assert found <= limit, f"{case} takes {found:.1f} instructions, at most {limit} are allowed"
    # A limit far above what is needed guards nothing.
    assert found >= 0.6 * limit, f"{case} takes only {found:.1f} instructions: lower its limit of {limit}"


@pytest.mark.parametrize("case", sorted(LIMITS["messages"]))
def test_instructions_of_messages_between_nodes(case: str) -> None:
    program = build("ccl_lab_bench_messages") / "bench/ccl_lab_bench_messages"
    _instructions_are_within(program, case, LIMITS["messages"][case])


@pytest.mark.parametrize("case", sorted(LIMITS["puts"]))
def test_instructions_of_a_put_that_is_simulated(case: str) -> None:
    program = build("ccl_lab_bench_puts") / "bench/ccl_lab_bench_puts"
    _instructions_are_within(program, case, LIMITS["puts"][case], 256 * 255 * 8 * 8, short=1, long=3)


@pytest.mark.parametrize("memory", ["registered", "plain"])
@pytest.mark.parametrize("collective", sorted(LIMITS["bytes"]["registered"]))
def test_bytes_moved(moved: list[dict], collective: str, memory: str) -> None:
    rows = [row for row in moved if (row["collective"], row["memory"]) == (collective, memory)]
    assert {row["ranks"] for row in rows} == {2, 4, 8}
    for row in rows:
        for what in ("read", "written"):
            limit = costs.bytes_limit(row, what)
            assert row[what] <= limit, (
                f"{collective} among {row['ranks']} ranks on {memory} memory: {row[what]} bytes {what}, at most {limit}"
            )


# What must happen at least: so that a counter that stopped counting is no success.
LEAST: dict[str, Callable[[int], tuple[int, int]]] = {
    "all_reduce": lambda n: (n, n),
    "all_gather": lambda n: (1, n - 1),
    "reduce_scatter": lambda n: (n, 1),
    "all_to_all": lambda n: (n - 1, n - 1),
    "broadcast": lambda n: (1, n - 1),
    "reduce": lambda n: (n, 1),
}


def test_counters_count_at_least_what_must_be_moved(moved: list[dict]) -> None:
    assert set(LEAST) == {row["collective"] for row in moved}
    for row in moved:
        read, written = LEAST[row["collective"]](row["ranks"])
        assert row["read"] >= 0.99 * read * row["bytes"], row
        assert row["written"] >= 0.99 * written * row["bytes"], row
