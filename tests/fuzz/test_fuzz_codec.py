"""The readers of schedules meet damaged input: `--inputs N` of it (1,000,000 by hand: tests/fuzz/fuzz_codec.py)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


@pytest.mark.parametrize(("reader", "share"), [("binary", 1), ("text", 4)])
def test_damaged_schedules_are_refused_and_nothing_else(reader: str, share: int, request: pytest.FixtureRequest) -> None:
    spec = importlib.util.spec_from_file_location("fuzz_codec", Path(__file__).with_name("fuzz_codec.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    seed, wanted = request.config.getoption("--seed"), request.config.getoption("--inputs") // share
    count, accepted = module.fuzz(reader, seed, wanted)
    assert count == wanted and 0 < accepted < count
