"""Collectives of 2, 4 and 8 processes on one GPU, and its reduction kernels, beside what the GPU can do at all, timed by its events.

Is: ratios to the copy limit that the same run measured, results checked. Is not: a figure of NVLink (one GPU), and not of several GPUs.
Invariants: medians over rounds of several calls, so that the processor's part hides behind the GPU's; the time of a round is that of the
slowest rank; random data; ranks side by side on the GPU where MPS is installed, else in turns (the record says which).

    python -m bench cuda       says so where there is no GPU
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import ccl_lab as ccl
from bench.ranks import answer_of, side_by_side
from ccl_lab import _core
from ccl_lab.engine import devices
from ccl_lab.errors import UnsupportedError
from ccl_lab.ir import DType, RedOp
from tests.integration.device_cases import LIBRARY, Array, Gpu

RANKS = (2, 4, 8)
ROUNDS, WARM, CALLS = 15, 3, 5
MESSAGE_BYTES, LARGE_BYTES, SMALL_BYTES, KERNEL_BYTES = 256 << 20, 1 << 30, 8 << 10, 256 << 20
REPLAYS = 100


def missing() -> str | None:
    """Why it cannot run here."""
    try:
        found = devices.driver(LIBRARY)
    except UnsupportedError as error:
        return str(error)
    if not found["gpus"]:
        return "the driver shows no GPU"
    return None if devices.kernels() else "the module was built without nvcc, so it has no reduction kernels"


def gpus() -> list[str]:
    """Those of this machine, as a record names them."""
    return [f"{gpu['name']} (sm_{gpu['capability']})" for gpu in devices.driver(LIBRARY)["gpus"]]


class Clock:
    """Seconds that the GPU took for what is enqueued between two events."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.events = gpu, (ctypes.c_void_p(), ctypes.c_void_p())
        for event in self.events:
            gpu.here("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0))

    def seconds(self, enqueue: Callable[[], Any]) -> float:
        stream, ms = ctypes.c_void_p(self.gpu.stream), ctypes.c_float()
        self.gpu.here("cuEventRecord", self.events[0], stream)
        enqueue()
        self.gpu.here("cuEventRecord", self.events[1], stream)
        self.gpu.synchronize()
        self.gpu.here("cuEventElapsedTime", ctypes.byref(ms), *self.events)
        return ms.value * 1e-3


def median_s(comm: Any, clock: Clock, call: Callable[[], Any], calls: int = CALLS) -> float:
    """Of a call, over rounds of `calls`, of the slowest rank."""
    taken = []
    for _ in range(WARM + ROUNDS):
        comm.barrier()
        taken.append(clock.seconds(lambda: [call() for _ in range(calls)]) / calls)
    slowest = comm.all_reduce(np.array(taken[WARM:]), "max")
    return float(statistics.median(slowest.tolist()))


def values_of(rank: int, shape: tuple[int, ...]) -> np.ndarray:
    """Whole numbers, so that sums are exact in any order; every rank can make those of all."""
    return np.random.default_rng(rank).integers(-1000, 1000, shape, np.int16).astype(np.float32)


def random(gpu: Gpu, shape: tuple[int, ...], rank: int) -> Array:
    return gpu.array(values_of(rank, shape))


def copy_limit(comm: Any, gpu: Gpu, clock: Clock, nbytes: int) -> float:
    """Bytes per second that a copy within the GPU moves, one process at a time: the best of the ranks."""
    source, target = random(gpu, (nbytes // 4,), comm.rank), gpu.array(shape=(nbytes // 4,), dtype="float32")
    best = np.zeros(comm.size)
    for rank in range(comm.size):
        comm.barrier()
        if rank == comm.rank:
            taken = [clock.seconds(lambda: [gpu.copy(target, source) for _ in range(CALLS)]) for _ in range(WARM + ROUNDS)]
            best[rank] = nbytes * CALLS / statistics.median(taken)
    return float(comm.all_reduce(best, "max").max())


def small_s(comm: Any, gpu: Gpu, clock: Clock) -> tuple[float, float]:
    """Seconds of a small all_reduce replayed from a graph, and of a graph of one kernel that adds as much."""
    x, out = random(gpu, (SMALL_BYTES // 4,), comm.rank), gpu.array(shape=(SMALL_BYTES // 4,), dtype="float32")
    comm.all_reduce(x, out=out)
    gpu.synchronize()
    replay = gpu.captured(lambda: comm.all_reduce(x, out=out))
    all_s = median_s(comm, clock, replay, REPLAYS)
    np.testing.assert_array_equal(out.read(), sum(values_of(rank, x.shape) for rank in range(comm.size)))
    reducer = _core.DeviceReducer(LIBRARY, gpu.ordinal)
    addresses = [int(x.address.value)] * comm.size
    kernel = gpu.captured(
        lambda: reducer.run(int(DType["float32"]), int(RedOp["sum"]), int(out.address.value), addresses, x.shape[0], gpu.stream)
    )
    return all_s, median_s(comm, clock, kernel, REPLAYS)


def rank_main(message_bytes: int, large_bytes: int) -> dict[str, Any]:
    """What rank 0 prints: GB/s of each, and its part of the limit."""
    gpu = Gpu()
    clock = Clock(gpu)
    with ccl.init() as comm:
        n, r = comm.size, comm.rank
        limit = copy_limit(comm, gpu, clock, message_bytes)
        count = message_bytes // 4 // n
        mine, rows = random(gpu, (count,), r), gpu.array(shape=(n, count), dtype="float32")
        whole, swapped = random(gpu, (n, count), r), gpu.array(shape=(n, count), dtype="float32")
        moved = n * message_bytes  # every rank's output is written once
        gather_s = median_s(comm, clock, lambda: comm.all_gather(mine, out=rows))
        exchange_s = median_s(comm, clock, lambda: comm.all_to_all(whole, out=swapped))
        np.testing.assert_array_equal(rows.read(), [values_of(rank, (count,)) for rank in range(n)])
        np.testing.assert_array_equal(swapped.read(), [values_of(rank, (n, count))[r] for rank in range(n)])
        large = large_bytes // 4
        x, total = random(gpu, (large,), r), gpu.array(shape=(large,), dtype="float32")
        reduce_s = median_s(comm, clock, lambda: comm.all_reduce(x, out=total))
        np.testing.assert_array_equal(total.read(), sum(values_of(rank, (large,)) for rank in range(n)))
        replay_s, kernel_s = small_s(comm, gpu, clock)
    return {
        "ranks": n,
        "copy_limit_gbytes_per_s": limit / 1e9,
        "all_gather_gbytes_per_s": moved / gather_s / 1e9,
        "all_gather_of_limit": moved / gather_s / limit,
        "all_to_all_gbytes_per_s": moved / exchange_s / 1e9,
        "all_to_all_of_limit": moved / exchange_s / limit,
        # Every input is read once and every output written once, which a copy of n messages does as well.
        "all_reduce_of_bound": n * large_bytes / limit / reduce_s,
        "all_reduce_ms": reduce_s * 1e3,
        "replayed_8KiB_all_reduce_us": replay_s * 1e6,
        "replayed_kernel_us": kernel_s * 1e6,
    }


def kernels_main(nbytes: int) -> list[dict[str, Any]]:
    """What the process that measures the kernels prints."""
    from bench import cuda_kernels

    gpu = Gpu()
    return cuda_kernels.rows(nbytes, Clock(gpu), gpu)


def run(
    message_bytes: int = MESSAGE_BYTES, large_bytes: int = LARGE_BYTES, ranks: tuple[int, ...] = RANKS, kernel_bytes: int = KERNEL_BYTES
) -> dict[str, Any]:
    """A row for each number of ranks, and one for each kernel; without a GPU only the reason."""
    if why := missing():
        return {"rows": [], "skipped": why, "summary": f"not run: {why}"}
    sizes = {"BENCH_CUDA_BYTES": f"{message_bytes},{large_bytes}", "DEVICE_LIBRARY": LIBRARY}
    with side_by_side() as mps:
        rows = [answer_of("bench.cuda", n, timeout_s=600, **sizes) for n in ranks]
    kernels = answer_of("bench.cuda", 1, timeout_s=600, **sizes, BENCH_CUDA_KERNEL_BYTES=str(kernel_bytes))
    words = "; ".join(
        f"{row['ranks']} ranks: all_gather {row['all_gather_of_limit']:.0%}, all_to_all {row['all_to_all_of_limit']:.0%} of the copy "
        f"limit, all_reduce {row['all_reduce_of_bound']:.0%} of the bound, 8 KiB replayed "
        f"{row['replayed_8KiB_all_reduce_us']:.1f} us, a kernel {row['replayed_kernel_us']:.1f} us"
        for row in rows
    )
    least = min(kernels, key=lambda row: row["of_bandwidth"])
    words += (
        f"; kernels of 2 to 8 sources: all right, at least {least['of_bandwidth']:.0%} of the copy's bandwidth "
        f"({least['dtype']}, {least['sources']} sources)"
    )
    sizes_said = {"message_bytes": message_bytes, "large_bytes": large_bytes, "kernel_bytes": kernel_bytes}
    return {"gpus": gpus(), "mps": mps, **sizes_said, "rows": rows, "kernels": kernels, "summary": words}


if __name__ == "__main__" and sys.argv[1:] == ["rank"]:
    given = [int(size) for size in os.environ["BENCH_CUDA_BYTES"].split(",")]
    alone = os.environ.get("BENCH_CUDA_KERNEL_BYTES")
    answer: Any = rank_main(*given) if alone is None else kernels_main(int(alone))
    print(json.dumps(answer), flush=True)
