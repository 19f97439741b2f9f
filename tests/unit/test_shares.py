"""The share of random cases that tests draw."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from .. import shares


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    share = shares._share
    yield
    shares.draw(share)


@pytest.mark.parametrize(("text", "share"), [("all", 1), ("1", 1), ("0.25", 0.25), ("1e-9", 1e-9)])
def test_what_can_be_said(text: str, share: float) -> None:
    assert shares.share_of(text) == share


@pytest.mark.parametrize("text", ["", "some", "0", "-1", "1.01", "nan", "inf", "25%"])
def test_what_cannot(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="no share of the random cases: expected all"):
        shares.share_of(text)


@pytest.mark.parametrize(("share", "drawn", "fewer", "few"), [(1, 200, 40, 4), (0.25, 50, 30, 4), (0.001, 6, 30, 4)])
def test_the_first_ones_are_drawn(share: float, drawn: int, fewer: int, few: int) -> None:
    """A handful at least, more where a test says so, and never more than there are."""
    shares.draw(share)
    assert shares.first_of(range(1000, 1200)) == range(1000, 1000 + drawn)
    assert shares.first_of(range(40), fewest=30) == range(fewer)
    assert shares.first_of(range(4)) == range(few)


def test_what_a_share_shows() -> None:
    """All of it, half of its share, and each kind once; less than the default may show nothing of it."""
    found = []
    for share in (1, 0.5, 0.25, 0.1):
        shares.draw(share)
        found.append((shares.expected(200), shares.expected(5)))
    assert found == [(200, 5), (50, 1), (25, 1), (10, 0)]
