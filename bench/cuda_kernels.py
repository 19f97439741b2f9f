"""The reduction kernels of a GPU by themselves: 2 to 8 sources, every type, each result checked, beside what a copy moves in the same run.

Is: the kernels of this build on one GPU, timed by its events. Is not: a collective (bench/cuda.py has those). Invariants: a kernel of n
sources reads n messages and writes one, a copy reads one and writes one: shares compare bytes that move per second; medians; whole
numbers, so that sums are exact and every element is compared.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from ccl_lab import _core
from ccl_lab.ir import DType, RedOp, collectives
from tests.integration.device_cases import LIBRARY, Array, Gpu

SOURCES = (2, 3, 4, 5, 6, 7, 8)
TYPES = ("float32", "float16", "bfloat16", "int32")
ROUNDS, WARM = 11, 3


def _sources(gpu: Gpu, nbytes: int, kind: np.dtype[Any]) -> tuple[list[Array], list[np.ndarray]]:
    """As many arrays of random whole numbers as a kernel takes, and the sum of the first 1, 2, …, which every type holds exactly."""
    rng, total = np.random.default_rng(1), np.zeros(nbytes // kind.itemsize, np.int8)
    arrays, sums = [], []
    for _ in range(max(SOURCES)):
        values = rng.integers(-8, 8, total.size, np.int8)
        total = total + values
        arrays.append(gpu.array(values.astype(kind)))
        sums.append(total)
    return arrays, sums


def _median_s(clock: Any, call: Any) -> float:
    return float(statistics.median([clock.seconds(call) for _ in range(WARM + ROUNDS)][WARM:]))


def rows(nbytes: int, clock: Any, gpu: Gpu) -> list[dict[str, Any]]:
    """One row for each type and number of sources: GB/s, and its share of the copy's. Raises AssertionError where a sum is wrong."""
    reducer = _core.DeviceReducer(LIBRARY, gpu.ordinal)
    found = []
    for dtype in TYPES:
        kind = collectives.numpy_dtype(dtype)
        arrays, sums = _sources(gpu, nbytes, kind)
        target = gpu.array(shape=sums[0].shape, dtype=kind)
        copy_s = _median_s(clock, lambda target=target, source=arrays[0]: gpu.copy(target, source))
        for n in SOURCES:
            addresses = [int(array.address.value) for array in arrays[:n]]

            def reduce(target: Array = target, addresses: list[int] = addresses, dtype: str = dtype, count: int = sums[0].size) -> None:
                reducer.run(int(DType[dtype]), int(RedOp["sum"]), int(target.address.value), addresses, count, gpu.stream)

            reduce_s = _median_s(clock, reduce)
            wanted = sums[n - 1].astype(kind)
            assert target.read().tobytes() == wanted.tobytes(), f"{dtype}, {n} sources: a sum is wrong"
            moved, copied = (n + 1) * nbytes / reduce_s, 2 * nbytes / copy_s
            row = {"dtype": dtype, "sources": n, "gbytes_per_s": moved / 1e9, "copy_gbytes_per_s": copied / 1e9}
            found.append(row | {"of_bandwidth": moved / copied, "checked_elements": int(wanted.size)})
        for array in (*arrays, target):
            array.free()
    return found
