"""Sizes and durations, as people type them."""

from __future__ import annotations

import pytest

from ccl_lab import units
from ccl_lab.errors import UsageError


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("64MiB", 64 << 20),
        ("1GB", 10**9),
        ("512", 512),
        ("4k", 4096),
        ("1.5KiB", 1536),
        (" 2 g ", 2 << 30),
        (7, 7),
        ("0", 0),
    ],
)
def test_sizes(text: str | int, nbytes: int) -> None:
    assert units.parse_size(text) == nbytes


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (-1, "size -1 is negative"),
        ("-1", "cannot be read"),
        ("lots", "'lots' cannot be read.*'64MiB'"),
        ("1.5", "whole number of bytes"),
        (1.5, "is a float"),
        (True, "is a bool"),
        ("", "cannot be read"),
        ("nan", "cannot be read"),
    ],
)
def test_bad_sizes(size: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        units.parse_size(size)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2ms", 0.002), ("5us", 5e-6), ("1.5s", 1.5), (3, 3.0), ("2min", 120.0), ("7µs", 7e-6)],
)
def test_durations(text: str | float, seconds: float) -> None:
    assert units.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("duration", [-1, float("nan"), float("inf"), "soon", "-2ms", None, True])
def test_bad_durations(duration: object) -> None:
    with pytest.raises(UsageError, match="duration"):
        units.parse_duration(duration)  # type: ignore[arg-type]


def test_printing() -> None:
    assert units.format_size(64 << 20) == "64 MiB"
    assert units.format_size(3) == "3 B"
    assert units.format_time(0.00123) == "1.23 ms"
    assert units.format_rate(1e9) == "8 Gb/s"
