"""How many of its random cases a test draws: a share by default, all with `--draws all` (`make test DRAWS=all`).

Invariant: they are the first ones, from the same seeds whatever the share, so that what fails with one fails with all.
"""

from __future__ import annotations

import argparse
import math

DEFAULT = 0.25
FEWEST = 6

_share = DEFAULT


def share_of(text: str) -> float:
    """What `--draws` says: all, or a number above 0 and up to 1."""
    try:
        share = 1.0 if text == "all" else float(text)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share of the random cases: expected all, or a number such as {DEFAULT}")
    return share


def draw(share: float) -> None:
    """This share, from now on."""
    global _share
    _share = share


def first_of(seeds: range, fewest: int = FEWEST) -> range:
    """The seeds that are drawn. `fewest`: of a test that comes across what it is about too seldom for the default share."""
    return seeds[: max(math.ceil(_share * len(seeds)), fewest)]


def expected(of_all: int) -> int:
    """How often to see what all draws show so often, at least: of a share half of it, as chance has it, but every kind of case once.

    A smaller share than the default may miss some kind.
    """
    return of_all if _share == 1 else max(int(_share * of_all / 2), int(_share >= DEFAULT))
