"""Registered memory without naming a communicator: `ccl_lab.empty`, of the one that this process made last.

Is: the list of communicators of this process. Is not: an owner; it keeps none of them alive.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from ..errors import UsageError

MADE: list[weakref.ref[Any]] = []  # in the order they were made


def empty(shape: int | tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    """`Communicator.empty` of the communicator that this process made last and has not closed. Raises UsageError without one."""
    while MADE:
        last = MADE[-1]()
        if last is not None and not last._closed:
            return last.empty(shape, dtype)
        MADE.pop()
    raise UsageError(
        "ccl_lab.empty() found no open communicator in this process, and registered memory belongs to one: call "
        "ccl_lab.init() first. A World fills and holds its ranks' memory itself."
    )
