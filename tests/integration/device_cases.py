"""What a rank of test_device_calls.py and of tests/gpu does: collectives on memory of GPUs, against numpy and the interpreter.

Is: a module that rank processes import; arrays as cupy and numba show theirs, over the driver's library or a mock of it. Is not: tests.
Invariant: every rank makes the inputs of all ranks from the same numbers, so each knows what all must get.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

import ccl_lab as ccl
from ccl_lab.engine import devices
from ccl_lab.ir import collectives
from ccl_lab.ir.interpret import interpret

LIBRARY = os.environ.get("DEVICE_LIBRARY", "libcuda.so.1")


class Gpu:
    """The driver as a user's own package would call it: one context, one stream, memory."""

    def __init__(self, ordinal: int = 0) -> None:
        devices.LIBRARY = LIBRARY
        self.library, self.ordinal = ctypes.CDLL(LIBRARY), ordinal
        self.context, stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.ask("cuInit", ctypes.c_uint(0))
        self.ask("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), ctypes.c_int(ordinal))
        self.here("cuStreamCreateWithPriority", ctypes.byref(stream), ctypes.c_uint(1), ctypes.c_int(0))
        self.stream = int(stream.value or 0)

    def here(self, name: str, *arguments: Any) -> None:
        """`ask`, in the context of this GPU."""
        self.ask("cuCtxPushCurrent_v2", self.context)
        self.ask(name, *arguments)
        self.ask("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def ask(self, name: str, *arguments: Any) -> None:
        result = getattr(self.library, name)(*arguments)
        assert result == 0, (name, result)

    def synchronize(self) -> None:
        self.here("cuStreamSynchronize", ctypes.c_void_p(self.stream))

    def array(self, values: np.ndarray | None = None, shape: Any = None, dtype: Any = None) -> Array:
        made = Array(self, values.shape if values is not None else shape, values.dtype if values is not None else dtype)
        if values is not None:
            made.write(values)
        return made

    def copy(self, to: Array, source: Array) -> None:
        """On the stream."""
        self.here("cuMemcpyAsync", to.address, source.address, ctypes.c_size_t(source.nbytes), ctypes.c_void_p(self.stream))

    def captured(self, calls: Any) -> Any:
        """What `calls` puts on the stream, as a graph: call it to replay."""
        stream, graph, made = ctypes.c_void_p(self.stream), ctypes.c_void_p(), ctypes.c_void_p()
        self.here("cuStreamBeginCapture_v2", stream, ctypes.c_int(1))  # thread-local
        calls()
        self.here("cuStreamEndCapture", stream, ctypes.byref(graph))
        self.here("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, ctypes.c_ulonglong(0))
        return lambda: self.here("cuGraphLaunch", made, stream)


class Array:
    """Memory of a GPU with `__cuda_array_interface__`."""

    def __init__(self, gpu: Gpu, shape: Any, dtype: Any) -> None:
        self.gpu, self.shape, self.dtype = gpu, tuple(np.atleast_1d(shape).tolist()) if shape != () else (), np.dtype(dtype)
        self.nbytes = int(np.prod(self.shape)) * self.dtype.itemsize
        self.address, self.strides, self.read_only = ctypes.c_uint64(), None, False
        gpu.here("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(max(self.nbytes, 1)))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (int(self.address.value), self.read_only), "version": 3,
            "strides": self.strides, "stream": self.gpu.stream,
        }  # fmt: skip

    def new_empty(self, shape: Any, dtype: Any = None) -> Array:
        return Array(self.gpu, shape, dtype or self.dtype)

    def write(self, values: np.ndarray) -> None:
        """At once: nothing on the stream may use it. The driver may return when it has read `values`, before the GPU has them."""
        held = np.ascontiguousarray(values, self.dtype)
        self.gpu.here("cuMemcpyHtoD_v2", self.address, ctypes.c_void_p(held.ctypes.data), ctypes.c_size_t(self.nbytes))
        self.gpu.here("cuStreamSynchronize", ctypes.c_void_p(0))

    def read(self) -> np.ndarray:
        self.gpu.synchronize()
        held = np.empty(self.shape, self.dtype)
        self.gpu.here("cuMemcpyDtoH_v2", ctypes.c_void_p(held.ctypes.data), self.address, ctypes.c_size_t(self.nbytes))
        return held

    def free(self) -> None:
        self.gpu.here("cuMemFree_v2", self.address)


class Bfloat16(Array):
    """As torch shows it, since the interface has no name for the type."""

    is_cuda = True

    def __init__(self, gpu: Gpu, like: np.ndarray) -> None:
        super().__init__(gpu, like.shape, like.dtype)
        self.device = SimpleNamespace(index=gpu.ordinal)
        cuda = SimpleNamespace(current_stream=lambda ordinal: SimpleNamespace(cuda_stream=gpu.stream))
        sys.modules["torch"] = SimpleNamespace(cuda=cuda)  # type: ignore[assignment]

    def is_contiguous(self) -> bool:
        return True

    def data_ptr(self) -> int:
        return int(self.address.value)

    def new_empty(self, shape: Any) -> Bfloat16:
        return Bfloat16(self.gpu, np.empty(shape, self.dtype))


def values(comm: Any, rank: int, shape: Any, dtype: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(1000 * seed + rank)
    return rng.integers(-40, 40, shape).astype(dtype)


def every_collective(comm: Any, dtype: str = "float32") -> None:
    """Small, odd and large counts, twice each, beside the host's own collectives."""
    gpu, n, r = Gpu(), comm.size, comm.rank
    for seed, count in enumerate((1, 7, 1000, 1000, 100_003)):
        mine, whole = (values(comm, r, s, dtype, seed) for s in ((count,), (n, count)))
        every = [values(comm, rank, (count,), dtype, seed) for rank in range(n)]
        wholes = np.stack([values(comm, rank, (n, count), dtype, seed) for rank in range(n)])
        total = np.sum(every, axis=0, dtype=dtype)
        check(comm.all_reduce(gpu.array(mine)), total)
        check(comm.all_gather(gpu.array(mine)), np.stack(every))
        check(comm.reduce_scatter(gpu.array(whole)), wholes.sum(axis=0, dtype=dtype)[r])
        check(comm.all_to_all(gpu.array(whole)), wholes[:, r])
        check(comm.broadcast(gpu.array(mine), root=n - 1), every[n - 1])
        reduced = comm.reduce(gpu.array(mine), root=1 % n)
        assert (reduced is None) == (r != 1 % n)
        if reduced is not None:
            check(reduced, total)
        gathered = comm.gather(gpu.array(mine), root=0)
        if r == 0:
            check(gathered, np.stack(every))
        out = gpu.array(shape=(count,), dtype=dtype)
        comm.scatter(gpu.array(whole) if r == 0 else None, root=0, out=out)
        check(out, wholes[0][r])
        in_place = gpu.array(mine)
        assert comm.all_reduce(in_place, "max", out=in_place) is in_place
        check(in_place, np.max(every, axis=0))
        check(comm.all_to_allv(gpu.array(whole.reshape(-1)), [count] * n), wholes[:, r].reshape(-1))
        np.testing.assert_array_equal(comm.all_reduce(mine), total)  # the host's, in between
        ring(comm, gpu, mine, every)


def ring(comm: Any, gpu: Gpu, mine: np.ndarray, every: list[np.ndarray]) -> None:
    """Rank r sends to r + 1, in two rounds."""
    n, r = comm.size, comm.rank
    if n < 2 or n % 2:
        return
    out = gpu.array(shape=mine.shape, dtype=mine.dtype)
    for sends in (r % 2 == 0, r % 2 == 1):
        if sends:
            comm.send(gpu.array(mine), (r + 1) % n)
        else:
            comm.recv(out, (r - 1) % n)
    check(out, every[(r - 1) % n])


def check(found: Array, wanted: np.ndarray) -> None:
    np.testing.assert_array_equal(found.read(), wanted)


def every_algorithm(comm: Any) -> None:
    """Schedules of the planner, as they are, on streams; what cannot be run there says so."""
    gpu, n, r = Gpu(), comm.size, comm.rank
    count, ran = 96, 0
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        for algorithm in ccl.planner.algorithms(collective):
            blocked = collective in ("reduce_scatter", "all_to_all")
            shape = (n, count) if blocked else (count,)
            try:
                schedule = ccl.plan(collective, comm.topology, 4 * count * (1 if collective == "all_reduce" else n), algorithm=algorithm)
            except ccl.UsageError:
                continue  # needs several nodes
            inputs = [values(comm, rank, shape, "float32", 5).reshape(-1) for rank in range(n)]
            wanted = interpret(schedule, inputs)[r]
            found = getattr(comm, collective)(gpu.array(inputs[r].reshape(shape)), algorithm=algorithm)
            np.testing.assert_array_equal(found.read().reshape(-1), wanted)
            ran += 1
    assert ran > 20, ran


def replays(comm: Any) -> None:
    """Two collectives in a graph, replayed on new inputs, replays behind each other, and calls as they come between them."""
    gpu, n, r = Gpu(), comm.size, comm.rank
    x = gpu.array(shape=(5000,), dtype="float32")
    total, rows = gpu.array(shape=(5000,), dtype="float32"), gpu.array(shape=(n, 5000), dtype="float32")
    x.write(values(comm, r, (5000,), "float32", 1))
    comm.all_reduce(x, out=total)  # so that memory is mapped
    comm.all_gather(total, out=rows)

    def calls() -> None:
        comm.all_reduce(x, out=total)
        comm.all_gather(total, out=rows)

    gpu.synchronize()
    replay = gpu.captured(calls)
    for turn in range(4):
        every = [values(comm, rank, (5000,), "float32", 10 + turn) for rank in range(n)]
        x.write(every[r])
        for _ in range(turn + 1):
            replay()
        check(rows, np.broadcast_to(np.sum(every, axis=0, dtype="float32"), (n, 5000)))
        check(comm.all_reduce(x, "max"), np.max(every, axis=0))


def stream_order(comm: Any) -> None:
    """What is before a call on its stream has happened, and what is behind it sees the result, though nobody waits."""
    gpu, n, r = Gpu(), comm.size, comm.rank
    rounds = [gpu.array(np.full(1 << 16, 10 * turn + r, np.float32)) for turn in range(6)]
    x, kept = gpu.array(shape=(1 << 16,), dtype="float32"), [gpu.array(shape=(1 << 16,), dtype="float32") for _ in rounds]
    for source, target in zip(rounds, kept, strict=True):
        gpu.copy(x, source)
        comm.all_reduce(x, out=x)
        gpu.copy(target, x)
    for turn, target in enumerate(kept):
        check(target, np.full(1 << 16, 10 * turn * n + n * (n - 1) // 2, np.float32))


def types_and_reductions(comm: Any) -> None:
    """Every type and reduction, random bits of finite numbers: those of the host's collectives."""
    gpu = Gpu()
    for dtype in ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8"):
        kind = collectives.numpy_dtype(dtype)
        for op in ("sum", "prod", "min", "max", "avg") + (("band", "bor", "bxor") if kind.kind in "iu" else ()):
            rng = np.random.default_rng(comm.rank)
            mine = rng.normal(size=1001).astype(kind) if kind.kind not in "iu" else rng.integers(0, 127, 1001).astype(kind)
            x = Bfloat16(gpu, mine) if dtype == "bfloat16" else Array(gpu, mine.shape, kind)
            x.write(mine)
            wanted = comm.all_reduce(mine, op)
            found = comm.all_reduce(x, op).read()
            assert found.tobytes() == wanted.tobytes(), (dtype, op)


def works(comm: Any) -> None:
    """Asynchronous calls, memory, explain, and another epoch."""
    gpu, n = Gpu(), comm.size
    x = gpu.array(np.full(1 << 16, 1.0, np.float32))
    work = comm.all_reduce(x, async_op=True)
    check(work.wait("10s"), np.full(1 << 16, float(n), np.float32))
    assert work.done() and "done" in repr(work)
    assert comm.memory()["device_mappings"] > 0
    assert "cuda, here GPU 0" in comm.explain(), comm.explain()
    before = comm.trace()
    comm.all_reduce(x, out=x)
    gpu.synchronize()
    comm.barrier()
    spans = trace_after(comm)
    assert {"reduce", "wait"} <= spans and before is not None, spans
    comm.reset()
    check(comm.all_reduce(x, "min"), np.full(1 << 16, float(n), np.float32))


def trace_after(comm: Any) -> set[str]:
    """Kinds of spans of the last call; they come when the watching thread has seen its end."""
    from ccl_lab.trace.columns import SpanKind

    kinds: set[str] = set()
    for _ in range(100):
        table = comm.trace()
        kinds |= {SpanKind(kind).name for kind in table.columns["kind"].tolist()}
        if "reduce" in kinds:
            break
        time.sleep(0.02)
    return kinds


def refused(comm: Any, error: type[Exception], words: str, call: Any) -> None:
    try:
        call()
    except error as found:
        assert words in str(found), found
    else:
        raise AssertionError(f"nothing raised, expected {error.__name__} with {words!r}")


def wrong_arrays(comm: Any) -> None:
    """Everything that is wrong with an array before anything starts: named, on the rank that did it, and the communicator goes on."""
    gpu, r = Gpu(), comm.rank
    good = gpu.array(np.ones(8, np.float32))
    host = np.ones(8, np.float32)
    refused(comm, ccl.UsageError, "memory of the host", lambda: comm.all_reduce(good, out=host))
    refused(comm, ccl.UsageError, "memory of the host", lambda: comm.all_reduce(host, out=good))
    strided = gpu.array(np.ones((4, 4), np.float32))
    strided.strides = (32, 4)
    refused(comm, ccl.ShapeError, "contiguous", lambda: comm.all_reduce(strided))
    odd = gpu.array(np.ones(8, np.uint32))
    refused(comm, ccl.DtypeError, "uint32", lambda: comm.all_reduce(odd))
    locked = gpu.array(host)
    locked.read_only = True
    refused(comm, ccl.ShapeError, "read-only", lambda: comm.all_reduce(good, out=locked))
    refused(comm, ccl.ShapeError, "expected", lambda: comm.all_reduce(good, out=gpu.array(np.ones(9, np.float32))))
    refused(comm, ccl.DtypeError, "bitwise", lambda: comm.all_reduce(good, "bxor"))
    check(comm.all_reduce(good), np.full(8, comm.size, np.float32))
    assert r >= 0


def freed_memory(comm: Any) -> None:
    """Memory that is gone, of another GPU, or of the host in disguise: an error of a name on every rank."""
    gpu = Gpu()
    x = gpu.array(np.ones(64, np.float32))
    comm.all_reduce(x)
    gpu.synchronize()
    out = gpu.array(shape=(64,), dtype="float32")
    if comm.rank == 0:
        x.free()
    refused(comm, ccl.TransportError, "freed", lambda: comm.all_reduce(x, out=out))
    comm.reset()
    y = gpu.array(np.ones(64, np.float32))
    check(comm.all_reduce(y), np.full(64, comm.size, np.float32))
    other = Gpu(1).array(np.ones(64, np.float32)) if comm.rank == 0 else y
    refused(comm, ccl.UsageError, "GPU 1", lambda: comm.all_reduce(other, out=other))
    comm.reset()
    check(comm.all_reduce(y), np.full(64, comm.size, np.float32))


def a_rank_stays_away(comm: Any) -> None:
    """A call that a peer does not make ends at its deadline and names it; then all go on."""
    gpu = Gpu()
    x = gpu.array(np.ones(64, np.float32))
    check(comm.all_reduce(x), np.full(64, comm.size, np.float32))
    if comm.rank == 0:
        refused(comm, ccl.OpTimeout, "has not called all_reduce", lambda: comm.all_reduce(x, timeout="300ms"))
    comm.reset()
    check(comm.all_reduce(x), np.full(64, comm.size, np.float32))


def different_calls(comm: Any) -> None:
    """Ranks that call different sizes hear of both calls."""
    gpu = Gpu()
    x = gpu.array(np.ones(64 + comm.rank, np.float32))
    refused(comm, ccl.UsageError, "ranks disagree about what they run", lambda: comm.all_reduce(x))


def a_rank_dies(comm: Any) -> None:
    """In the middle of calls: the others hear of it, by name."""
    gpu = Gpu()
    x = gpu.array(np.ones(64, np.float32))
    check(comm.all_reduce(x), np.full(64, comm.size, np.float32))
    if comm.rank == 1:
        print("fine", flush=True)
        os._exit(0)
    refused(comm, ccl.PeerLostError, "rank 1", lambda: comm.all_reduce(x))


def no_stream_operations(comm: Any) -> None:
    gpu = Gpu()
    x = gpu.array(np.ones(64, np.float32))
    refused(comm, ccl.UnsupportedError, "stream memory operations", lambda: comm.all_reduce(x))


def no_driver(comm: Any) -> None:
    gpu = Gpu()
    x = gpu.array(np.ones(64, np.float32))
    devices.LIBRARY = "libcuda_that_is_not_there.so"
    refused(comm, ccl.UnsupportedError, "does not load", lambda: comm.all_reduce(x))
    assert "arrays on a GPU: no (" in comm.explain()

