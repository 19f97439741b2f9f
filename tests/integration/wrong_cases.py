"""Calls with wrong arguments, as each rank of a job makes them (test_node_calls.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ccl_lab as ccl


def wrong_types(comm: ccl.Communicator) -> None:
    """Arguments that are none are errors of ccl_lab, on all ranks alike, and the next call works."""
    x = np.ones(2 * comm.size, np.float32)
    calls: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
        "all_reduce": (comm.all_reduce, {"x": x, "op": "sum", "out": x}), "broadcast": (comm.broadcast, {"x": x, "root": 0}),
        "reduce": (comm.reduce, {"x": x, "root": 0, "op": "sum"}), "gather": (comm.gather, {"x": x, "root": 0}),
        "all_to_all": (comm.all_to_all, {"x": x}), "all_to_allv": (comm.all_to_allv, {"x": x, "counts": [2] * comm.size}),
        "send": (comm.send, {"x": x, "peer": (comm.rank + 1) % comm.size}),
    }  # fmt: skip
    for name, (method, right) in calls.items():
        for key in right:
            for wrong in (5.5, "x", [None], [[1], [1, 2]], {"a": 1}, {1, 2}, 1 + 2j, float("nan"), np.array(["x"]), object(), 10**30):
                try:
                    method(**{**right, key: wrong})
                except ccl.CclError as error:
                    assert str(error), f"{name}({key}={wrong!r})"
                else:
                    raise AssertionError(f"{name}({key}={wrong!r}) was not refused")
    assert (comm.all_reduce(np.ones(4, np.float32)) == comm.size).all()
