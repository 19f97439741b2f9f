"""The importers meet damaged input: a quarter of `--inputs N` in all (a million by `make fuzz`)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from fuzz_import import READERS, SHARES, fuzz  # noqa: E402


@pytest.mark.parametrize("reader", READERS)
def test_damaged_files_are_refused_or_read(reader: str, request: pytest.FixtureRequest) -> None:
    wanted = round(request.config.getoption("--inputs") * SHARES[reader] / 4)
    count, accepted = fuzz(reader, request.config.getoption("--seed"), wanted)
    assert count == wanted and 0 < accepted < count
