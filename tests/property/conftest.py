"""`--seed`, `--cases`, `--mutants` of the property tests, and the seed they print so that a failure can be replayed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of the run; replay with `--seed N`."""
    value = request.config.getoption("--seed")
    print(f"replay with --seed {value}")
    return value
