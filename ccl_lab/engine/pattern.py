"""The data of a run for which the user gave none: small integers that every reduction handles exactly.

Is: a function of (rank, element) that any process can compute again. Is not: random. Invariant: sums over up to 64 ranks
are exact in every dtype but the 16-bit floats and 8-bit integers, which wrap or round as the reference does.
"""

from __future__ import annotations

import numpy as np

from ..ir import collectives

PERIOD = 4093  # prime: no power-of-two chunk repeats


def fill(target: np.ndarray, rank: int) -> None:
    """Fills a 1-D array with the pattern of `rank`."""
    base = ((np.arange(PERIOD) * 7 + rank * 13) % 31 - (0 if target.dtype == np.uint8 else 15)).astype(
        target.dtype
    )
    whole = len(target) // PERIOD * PERIOD
    target[:whole].reshape(-1, PERIOD)[:] = base
    target[whole:] = base[: len(target) - whole]


def make(count: int, dtype: str, rank: int) -> np.ndarray:
    """A new array of `count` elements of the pattern."""
    array = np.empty(count, collectives.numpy_dtype(dtype))
    fill(array, rank)
    return array
