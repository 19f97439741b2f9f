"""Tests on real verbs: each starts machines of the rig for its body. Marked `rdma`; skipped, with the reason, where there can be no rig."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ccl_lab import rdma
from ccl_lab.errors import UnsupportedError

from .. import rig

HERE = Path(__file__).parent
TIMEOUT_S = 120.0  # of machines; a test's own limit is above it
Run = Callable[..., list[rig.Outcome]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.rdma)


@pytest.fixture(scope="session")
def no_rig() -> str | None:
    """Why there are no machines here. A kernel that could be built and is not skips too, but no line of expected_skips.txt allows it."""
    reason = rig.obstacle()
    return reason if reason or rig.cached() else "the kernel of the rig is not built: make rig"


@pytest.fixture(scope="session")
def pyverbs() -> None:
    """Skips where pyverbs is not installed, with what says so."""
    try:
        rdma.pyverbs()
    except UnsupportedError as error:
        pytest.skip(str(error))


@pytest.fixture
def machines(no_rig: str | None) -> Run:
    """`rig.run` with a timeout of its own; every machine must end with 0 unless `check=False`."""
    if no_rig:
        pytest.skip(no_rig)

    def run(*command: str, check: bool = True, **options: object) -> list[rig.Outcome]:
        outcomes = rig.run(command, **{"timeout_s": TIMEOUT_S, "machines": 2, "nics": 1, **options})  # type: ignore[arg-type]
        if check and rig.status_of(outcomes):
            pytest.fail("\n".join(map(str, outcomes)), pytrace=False)
        return outcomes

    return run


@pytest.fixture
def body(machines: Run) -> Callable[..., list[rig.Outcome]]:
    """Runs `tests/rdma/bodies/NAME.py` on every machine, with this interpreter."""

    def run(name: str, *words: str, **options: object) -> list[rig.Outcome]:
        command: Sequence[str] = [sys.executable, "-m", f"tests.rdma.bodies.{name}", *words]
        return machines(*command, **options)

    return run
