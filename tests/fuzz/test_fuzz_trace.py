"""The readers of traces meet damaged input: `--inputs N` of it in all (a million by `make fuzz`)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from fuzz_trace import READERS, SHARES, fuzz  # noqa: E402


@pytest.mark.parametrize("reader", READERS)
def test_damaged_files_are_refused_or_read(reader: str, request: pytest.FixtureRequest) -> None:
    wanted = round(request.config.getoption("--inputs") * SHARES[reader])
    count, accepted = fuzz(reader, request.config.getoption("--seed"), wanted)
    assert count == wanted and 0 < accepted < count
