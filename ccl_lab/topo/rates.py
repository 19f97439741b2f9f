"""Rates, latencies and numbers as people give them, to the whole numbers a topology keeps.

Is: `8` (Gb/s) or `"400Gb/s"` or `"46 GB/s"` -> bytes per second; `"5us"` -> picoseconds. Is not: formatting (units.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Union

import numpy as np
import numpy.typing as npt

from ..arguments import is_one, number, whole
from ..errors import UsageError
from ..units import Duration, parse_duration

Rate = Union[int, float, str]

GBIT, GBYTE = 1.25e8, 1e9  # bytes per second
MOST_RANKS = 2**24  # a column of them is 128 MB
INSTANT = 2**62  # bytes per second of a link that takes no time

_RATE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?)\s*([kMGT]?)(b|bit|B)(?:/s|ps)\s*")
_PREFIX = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse_rate(rate: Rate, unit_bytes_per_s: float, what: str) -> int:
    """Whole bytes per second of `rate`: a number in the unit given, or text with its own ("8Gb/s", "46 GB/s").

    `unit_bytes_per_s` is 1.25e8 where a bare number means Gb/s and 1e9 where it means GB/s; `what` names the argument
    in errors. Raises UsageError if it is negative, not finite or cannot be read.
    """
    if isinstance(rate, str):
        match = _RATE.fullmatch(rate)
        if not match:
            raise UsageError(f"{what} {rate!r} cannot be read: expected a number, or text such as '8Gb/s' or '46GB/s'.")
        amount, unit = float(match[1]), _PREFIX[match[2]] * (1.0 if match[3] == "B" else 0.125)
    else:
        amount, unit = number(rate, what, "a number or text such as '8Gb/s'"), unit_bytes_per_s
    if not math.isfinite(amount) or amount < 0 or amount * unit >= 2**62:
        raise UsageError(f"{what} {rate!r}: expected a finite rate, 0 or more and below 4e18 bytes per second.")
    return round(amount * unit)


def parse_latency(latency: Duration, what: str) -> int:
    """Whole picoseconds of `latency`: seconds, or text such as "5us". Raises UsageError as `parse_duration` does."""
    try:
        picoseconds = round(parse_duration(latency) * 1e12)
    except UsageError as error:
        raise UsageError(f"{what}: {error}") from None
    if picoseconds >= 2**62:
        raise UsageError(f"{what} {latency!r}: expected less than 4e6 s.")
    return picoseconds


def whole_list(sizes: Union[int, Sequence[int]], nodes: int) -> list[int]:
    """Ranks of each node."""
    nodes = whole(nodes, "nodes", 1, MOST_RANKS)
    if is_one(sizes) or not hasattr(sizes, "__len__"):
        size = whole(sizes, "gpus_per_node", 1, MOST_RANKS)
        whole(nodes * size, "nodes * gpus_per_node", 1, MOST_RANKS)
        return [size] * nodes
    if len(sizes) != nodes:
        raise UsageError(f"gpus_per_node lists {len(sizes)} nodes: expected {nodes}, one number per node.")
    found = [whole(size, "gpus_per_node", 1, MOST_RANKS) for size in sizes]
    whole(sum(found), "ranks of all nodes", 1, MOST_RANKS)
    return found


def scaled(rates: npt.NDArray[np.int64], row: int, factor: float) -> npt.NDArray[np.int64]:
    """A copy in which the rate of a row is `factor` times slower, 1 or more; 0 stays 0. Raises UsageError."""
    rate = int(rates[row]) / float(factor)
    if rate > INSTANT:
        raise UsageError(f"slow(factor={factor}): expected rates below 4e18 bytes per second, found {rate:.3g}.")
    changed = np.array(rates)
    changed[row] = max(1, int(rate)) if changed[row] else 0
    return changed
