"""What a rank of test_device_calls.py does where the host runs collectives on memory of GPUs, and where the driver or a GPU fails.

Is: a module that rank processes import, beside device_cases.py, whose arrays it uses. Is not: tests.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np
from device_cases import Gpu, check, refused, stream_order  # type: ignore[import-not-found]

import ccl_lab as ccl


def staged_works(comm: Any) -> None:
    """Where the host runs the collective: works, explain, memory, order of streams, calls of the host between, another epoch."""
    gpu, n = Gpu(), comm.size
    x = gpu.array(np.full(1 << 16, 1.0, np.float32))
    assert "through pinned memory" in comm.explain(), comm.explain()
    work = comm.all_reduce(x, async_op=True)
    np.testing.assert_array_equal(comm.all_reduce(np.ones(8, np.float32)), np.full(8, n, np.float32))  # behind it
    check(work.wait("60s"), np.full(1 << 16, float(n), np.float32))
    assert work.done() and "done" in repr(work)
    assert comm.memory()["pinned_bytes"] >= 2 * x.nbytes
    stream_order(comm)
    gpu.captured(lambda: refused(comm, ccl.UnsupportedError, "cannot be captured in a graph", lambda: comm.all_reduce(x, out=x)))
    comm.reset()
    check(comm.all_reduce(gpu.array(np.ones(64, np.float32))), np.full(64, n, np.float32))


def held_until_the_stream_comes(comm: Any) -> None:
    """Calls return though their stream has not come to them; what is behind on the host waits for them."""
    gpu, n, r = Gpu(), comm.size, comm.rank
    x = gpu.array(np.full(1000, float(r), np.float32))
    gate = Gate(gpu)
    if r == 0:
        gate.shut()
    works = [comm.all_reduce(x, async_op=True), comm.all_gather(x, async_op=True)]
    if r == 0:
        assert not works[0].done()
        time.sleep(0.2)
        assert not works[0].done() and not works[1].done()
        gate.open()
    check(works[0].wait("60s"), np.full(1000, n * (n - 1) / 2, np.float32))
    check(works[1].wait("60s"), np.repeat(np.arange(n, dtype=np.float32), 1000).reshape(n, 1000))


class Gate:
    """Keeps a stream from going on until it is opened."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.pages = gpu, np.zeros(2048, np.uint64)
        self.word = self.pages[-(self.pages.ctypes.data // 8) % 512 :][:512]
        address = ctypes.c_uint64()
        host = ctypes.c_void_p(self.word.ctypes.data)
        gpu.here("cuMemHostRegister_v2", host, ctypes.c_size_t(4096), ctypes.c_uint(3))
        gpu.here("cuMemHostGetDevicePointer_v2", ctypes.byref(address), host, ctypes.c_uint(0))
        self.address = address

    def shut(self) -> None:
        """From here on; the stream has gone through it before."""
        self.word[0] = 0
        self.gpu.here("cuStreamWaitValue64_v2", ctypes.c_void_p(self.gpu.stream), self.address, ctypes.c_uint64(1), ctypes.c_uint(0))

    def open(self) -> None:
        """For good, until it is shut again."""
        self.word[0] = 1


def dynamic(comm: Any) -> None:
    """all_to_allv_dynamic with everything on the GPU, beside the host's own; counts are written on the stream behind the call's posting."""
    from exchange_cases import routing, sizes  # type: ignore[import-not-found]

    gpu, n, r = Gpu(), comm.size, comm.rank
    gate = Gate(gpu)
    for seed in range(6):
        rng = np.random.default_rng(seed)
        route = routing(rng, n, ("any", "runs", "nobody")[seed % 3])
        capacity = sizes(route) + 2
        lengths, ids, blocks = (np.asarray(route[name][r], np.int64) for name in ("lengths", "ids", "blocks"))
        x = np.random.default_rng(1000 * seed + r).integers(-99, 99, (int(lengths.sum()) + 1, 3)).astype(np.float32)
        wanted = comm.all_to_allv_dynamic(x, lengths, ids, blocks, capacity=capacity)
        place = gpu.array(shape=lengths.shape, dtype=np.int64)
        place.write(np.full(lengths.shape, -1))  # nothing that could be sent
        gate.shut()
        gpu.copy(place, gpu.array(lengths))
        out = gpu.array(np.full((n, capacity, 3), 7, x.dtype)) if seed % 2 else None
        on_gpu = ids if seed == 3 else gpu.array(ids)  # counts of the host are taken beside them
        work = comm.all_to_allv_dynamic(gpu.array(x), place, on_gpu, gpu.array(blocks), capacity=capacity, out=out, async_op=True)
        gate.open()
        found = work.wait("60s")
        assert out is None or found.buffers is out
        np.testing.assert_array_equal(found.rows.read(), wanted.rows)
        np.testing.assert_array_equal(found.lengths.read(), wanted.lengths)
        buffers = found.buffers.read()
        for source, rows in enumerate(wanted.rows):
            assert buffers[source, :rows].tobytes() == wanted.buffers[source, :rows].tobytes()
            assert out is None or (buffers[source, rows:] == 7).all()


def bad_counts(comm: Any) -> None:
    """Counts that cannot be, found when the stream has come to them: an error of a name on every rank."""
    gpu, n = Gpu(), comm.size
    x = gpu.array(np.ones((8, 2), np.float32))
    lengths = gpu.array(np.array([4, 5 if comm.rank == 0 else 4], np.int64))
    ids, blocks = gpu.array(np.zeros(n, np.int64)), gpu.array(np.ones(n, np.int64))
    refused(comm, ccl.UsageError, "host", lambda: comm.all_to_allv_dynamic(np.ones((8, 2), np.float32).tolist(), lengths, ids, blocks))
    refused(comm, ccl.ShapeError, "", lambda: comm.all_to_allv_dynamic(x, lengths, ids, blocks, async_op=True).wait("60s"))
    comm.reset()
    fine = gpu.array(np.array([4, 4], np.int64))
    comm.all_to_allv_dynamic(x, fine, ids, blocks, async_op=True).wait("60s")


def driver_fails(comm: Any, call: str) -> None:
    """Each call of the driver that `call` makes fails once on rank 0: a CclError on every rank, nothing left, and the job goes on."""
    gpu, n = Gpu(), comm.size
    kinds = [b"registration", b"stream", b"event", b"ipc", b"mapping", b"handle", b"reservation"]
    x = gpu.array(np.ones((n, 64), np.float32))
    lengths, ids, blocks = (gpu.array(np.array(v, np.int64)) for v in ([1] * n, range(n), [1] * n))
    calls = {
        "all_reduce": lambda: comm.all_reduce(x, async_op=True).wait("60s"),
        "all_to_allv_dynamic": lambda: comm.all_to_allv_dynamic(x, lengths, ids, blocks, async_op=True).wait("60s"),
    }
    before = [gpu.library.mock_alive(kind) for kind in kinds]
    for name in (
        "cuMemcpyAsync", "cuStreamWriteValue64_v2", "cuStreamWaitValue64_v2", "cuEventRecord", "cuStreamWaitEvent", "cuMemHostRegister_v2",
        "cuStreamCreateWithPriority", "cuEventCreate", "cuPointerGetAttribute", "cuMemGetAddressRange_v2", "cuDevicePrimaryCtxRetain",
        "cuStreamIsCapturing",
    ):  # fmt: skip
        if comm.rank == 0:
            gpu.library.mock_fail(name.encode(), ctypes.c_ulonglong(1), 2)
        try:
            calls[call]()
        except ccl.CclError as error:
            assert len(str(error)) > 30, (name, error)
        else:
            raise AssertionError(f"{name} failed unheard")
        gpu.library.mock_fail(b"", ctypes.c_ulonglong(0), 0)
        comm.reset()
        left = [gpu.library.mock_alive(kind) for kind in kinds]
        assert left == before, (name, left, before)
    calls[call]()


def gpu_goes(comm: Any) -> None:
    """The GPU of rank 0 is gone in the middle of a call: every rank hears of it, though rank 1 waits for nothing but its stream."""
    gpu = Gpu()
    x = gpu.array(np.ones(1 << 12, np.float32))
    check(comm.all_reduce(x), np.full(1 << 12, comm.size, np.float32))
    if comm.rank == 0:
        gate = Gate(gpu)
        gate.shut()
        comm.all_reduce(x, async_op=True)
        gpu.library.mock_lose(46)
    for turn in range(600):
        try:
            comm.all_reduce(x if comm.rank == 1 and turn == 0 else np.ones(4, np.float32), async_op=True)
        except ccl.CclError as error:
            assert "GPU 0 of rank 0" in str(error), error
            return
        time.sleep(0.1)
    raise AssertionError("nobody said that the GPU is gone")
