"""What a rank of test_node_calls.py does: collectives on every kind of memory, compared bit by bit with the interpreter.

Is: a module that rank processes import. Is not: tests. Invariant: every rank makes the inputs of all ranks from the same
numbers, so each knows what all must get.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import ccl_lab as ccl
from ccl_lab.ir import collectives
from ccl_lab.trace.columns import SpanKind

DTYPES = tuple(ccl.DType.__members__)
COLLECTIVES = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "all_to_all"
)  # fmt: skip
PAGE = 4096


class Memory:
    """Arrays of one kind; `odd` ones begin and end within pages. Everything registered stays so until `close`."""

    def __init__(self, comm: ccl.Communicator) -> None:
        self.comm, self.bases = comm, []

    def make(self, kind: str, count: int, dtype: str) -> np.ndarray:
        kinds = ("plain", "empty", "registered", "odd", "few_pages")
        if kind == "mixed":  # another kind on every rank
            kind = kinds[self.comm.rank % len(kinds)]
        if kind == "mixed_later":  # and another one for outputs
            kind = kinds[(self.comm.rank + 2) % len(kinds)]
        kind_of = collectives.numpy_dtype(dtype)
        if kind == "plain":
            return np.empty(count, kind_of)
        if kind == "empty":
            return self.comm.empty(count, dtype)
        lead = {"registered": 0, "odd": 7, "few_pages": PAGE // kind_of.itemsize - 5}[kind]
        base = np.empty(count + lead + 9, kind_of)
        self.comm.register(base)
        self.bases.append(base)
        return base[lead : lead + count]

    def close(self) -> None:
        for base in self.bases:
            self.comm.unregister(base)
        self.bases.clear()


def values(count: int, dtype: str, seed: int) -> np.ndarray:
    """Numbers whose sums round, and whose products stay finite."""
    rng = np.random.default_rng(seed)
    kind = collectives.numpy_dtype(dtype)
    if dtype in collectives.FLOATS:
        return (rng.standard_normal(count) * 3).astype(kind)
    bounds = np.iinfo(kind)
    return rng.integers(bounds.min, bounds.max, count, kind, endpoint=True)


def redops(dtype: str) -> list[str]:
    return [op for op in ccl.RedOp.__members__ if op not in collectives.BITWISE or dtype not in collectives.FLOATS]


def call(comm: ccl.Communicator, collective: str, x: Any, out: Any, root: int, **options: Any) -> Any:
    method: Callable[..., Any] = getattr(comm, collective)
    if collective in collectives.ROOTED:
        options["root"] = root
    return method(x, out=out, **options)


def check(
    comm: ccl.Communicator,
    memory: Memory,
    collective: str,
    count: int,
    dtype: str = "float32",
    op: str = "sum",
    kinds: tuple[str, str] = ("plain", "plain"),
    algorithm: str = "one_pass",
    repeat: int = 2,
    in_place: bool = False,
    **options: Any,
) -> None:
    """One collective of `count` elements a block, `repeat` times on changing inputs: the first call plans, the next go directly."""
    n, rank, root = comm.size, comm.rank, (count + 1) % comm.size
    shape = collectives.blocks(collective, n, root)
    item = collectives.itemsize(dtype)
    nbytes = count * item * collectives.message_blocks(collective, n)
    reduction = {"redop": op} if collective in collectives.REDUCING else {}
    schedule = ccl.plan(
        collective, n, max(nbytes, 1), algorithm=algorithm, dtype=dtype, root=root, in_place=in_place, **reduction
    )
    x = out = memory.make(kinds[0], int(shape[rank, 0]) * count, dtype) if shape[rank, 0] else None
    if not in_place:
        out = memory.make(kinds[1], int(shape[rank, 1]) * count, dtype) if shape[rank, 1] else None
    for turn in range(repeat):
        inputs = [values(int(shape[r, 0]) * count, dtype, 1000 * turn + r) for r in range(n)]
        if x is not None:
            x[:] = inputs[rank]
        if out is not None and not in_place:
            out[:] = 0
        blocked = collective in ("reduce_scatter", "scatter", "all_to_all")
        given = x if x is None or not blocked else x.reshape(n, count)
        if collective == "broadcast" and x is None:
            given = np.empty(count, collectives.numpy_dtype(dtype))
        if reduction:
            options["op"] = op
        call(comm, collective, given, out, root, **options)
        if out is None:
            continue
        want = ccl.interpret(schedule, [part.copy() for part in inputs])[rank]
        where = f"{collective} {count} {dtype} {op} {kinds} in_place={in_place}, rank {rank}, turn {turn}"
        if want.tobytes() != out.tobytes():
            wrong = np.flatnonzero(want.view(np.uint8) != out.view(np.uint8))
            raise AssertionError(f"{where}: {wrong.size} bytes differ, from {wrong[0]} to {wrong[-1]} of {want.nbytes}")
        if x is not None and not in_place and collective != "broadcast":
            assert x.tobytes() == inputs[rank].tobytes(), f"{where}: the input was changed"


def all_types_and_reductions(comm: ccl.Communicator) -> None:
    """Every element type by every reduction, in a line, in a slot, in one pass and through the stages."""
    memory = Memory(comm)
    for dtype in DTYPES:
        for op in redops(dtype):
            for count, kinds in ((3, ("plain", "plain")), (1003, ("plain", "empty")), (40_003, ("empty", "empty"))):
                check(comm, memory, "all_reduce", count, dtype, op, kinds, repeat=1)
            check(comm, memory, "reduce_scatter", 20_001, dtype, op, ("odd", "mixed"), repeat=1)
            check(comm, memory, "reduce", 20_001, dtype, op, ("mixed", "plain"), repeat=1)
        for collective in ("all_gather", "all_to_all", "scatter"):
            check(comm, memory, collective, 10_001, dtype, kinds=("odd", "odd"), repeat=1)
        memory.close()


def all_kinds_of_memory(comm: ccl.Communicator, collective: str) -> None:
    """Every pair of kinds, from no element to several pages, in and out of place."""
    memory = Memory(comm)
    names = ("plain", "empty", "registered", "odd", "few_pages")
    pairs = [(a, b) for a in names for b in names] + [("mixed", "mixed_later"), ("mixed_later", "mixed")]
    for count in (0, 1, 14, 1021, 3 * 1024 + 1, 33_333):
        for kinds in pairs if count >= 1021 else pairs[-2:]:
            check(comm, memory, collective, count, kinds=kinds)
        if collective in ("all_reduce", "all_to_all"):
            for kind in (*names, "mixed"):
                check(comm, memory, collective, count, kinds=(kind, kind), in_place=True)
        memory.close()


def refuse_process_vm_readv() -> None:
    """From here on the kernel answers EPERM to this thread and those it starts, as many containers do."""

    class Instruction(ctypes.Structure):
        _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("k", ctypes.c_uint32))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_uint16), ("first", ctypes.POINTER(Instruction)))

    number = {"x86_64": 310, "aarch64": 270}[platform.machine()]
    filters = (Instruction * 4)(
        (0x20, 0, 0, 0),  # the number of the call
        (0x15, 0, 1, number),
        (0x06, 0, 0, 0x00050001),  # fails with EPERM
        (0x06, 0, 0, 0x7FFF0000),  # goes on
    )
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS"
    assert libc.prctl(22, 2, ctypes.byref(Program(4, filters)), 0, 0) == 0, "PR_SET_SECCOMP"


def plain_memory(comm: ccl.Communicator) -> None:
    """Large ordinary arrays, of sizes that no chunk divides: out of place, in place, and between ranks that registered theirs."""
    memory = Memory(comm)
    for collective in COLLECTIVES:
        for count in (8_209, 100_003):
            for kinds in (("plain", "plain"), ("mixed", "mixed_later")):
                check(comm, memory, collective, count, kinds=kinds, repeat=1)
            if collective in ("all_reduce", "all_to_all"):
                for kind in ("plain", "empty", "mixed"):
                    check(comm, memory, collective, count, kinds=(kind, kind), in_place=True, repeat=1)
            memory.close()
    for dtype in DTYPES:
        check(comm, memory, "all_reduce", 70_001, dtype, repeat=1)
        check(comm, memory, "reduce_scatter", 50_003, dtype, repeat=1)


def plain_bytes(comm: ccl.Communicator, ways: int) -> None:
    """How often the bytes of plain arrays are read: once by the kernel, and once more on the way through a stage."""
    x, out = np.ones(100_000, np.float32), np.empty((comm.size, 100_000), np.float32)
    for _ in range(2):
        before = comm.memory()["node_read_bytes"]
        comm.all_gather(x, out=out)
        assert (out == 1).all()
        read = comm.memory()["node_read_bytes"] - before
        assert read == (comm.size + ways - 1) * x.nbytes, (read, x.nbytes)


def moved_once(comm: ccl.Communicator) -> None:
    """On mapped memory no byte is read or written more often than the collective needs: every unit once, by whoever runs it."""
    memory, n, count = Memory(comm), comm.size, 50_001
    for collective in COLLECTIVES:
        check(comm, memory, collective, count, kinds=("empty", "empty"), repeat=1)
        before = comm.memory()
        check(comm, memory, collective, count, kinds=("empty", "empty"), repeat=1)
        after = comm.memory()
        names = ("node_read_bytes", "node_written_bytes")
        mine = np.array([after[name] - before[name] for name in names], np.int64)
        read, written = comm.all_gather(mine).sum(0)
        block = count * 4
        shape = collectives.blocks(collective, n, (count + 1) % n)
        outputs = int(shape[:, 1].sum()) * block
        needs = {"broadcast": block, "all_gather": n * block, "gather": n * block, "scatter": n * block}
        inputs = needs.get(collective, int(shape[:, 0].sum()) * block)
        assert (read, written) == (inputs, outputs), (collective, read, inputs, written, outputs)


def registration(comm: ccl.Communicator) -> None:
    """Contents and addresses stay, a range counts as often as it was given, and what is wrong is named."""
    x = values(100_003, "float32", comm.rank)
    kept, address = x.copy(), x.ctypes.data
    held = comm.memory()["registered_bytes"]
    assert comm.register(x) is x and x.ctypes.data == address and (x == kept).all()
    assert comm.memory()["registered_bytes"] == held + x.nbytes
    comm.register(x)
    comm.unregister(x)
    assert comm.memory()["registered_bytes"] == held + x.nbytes, "registered twice, given back once"
    for wrong in (x[10:], x[:-10]):
        try:
            comm.register(wrong)
            raise AssertionError("a part of a registered array was registered")
        except ccl.RegistrationError as error:
            assert "overlap" in str(error)
    comm.unregister(x)
    assert comm.memory()["registered_bytes"] == held and x.ctypes.data == address and (x == kept).all()
    try:
        comm.unregister(x)
        raise AssertionError("unregistered twice")
    except ccl.RegistrationError as error:
        assert "is not registered" in str(error)
    with comm.registered(x, y := np.zeros(100_003, np.float32)):
        comm.all_reduce(x, out=y)
        assert comm.memory()["registered_bytes"] == held + 2 * x.nbytes
    assert comm.memory()["registered_bytes"] == held and (x == kept).all()
    everyone = [values(100_003, "float32", rank) for rank in range(comm.size)]
    assert y.tobytes() == collectives.accumulate(everyone, "sum").tobytes()
    small = np.ones(3, np.float32)  # no whole page: accepted, and moved as before
    comm.register(small)
    assert (comm.all_reduce(small) == comm.size).all()
    comm.unregister(small)
    comm.register(mine := ccl.empty(5000, "int32"))
    comm.unregister(mine)


def many_arrays_come_and_go(comm: ccl.Communicator) -> None:
    """Memory that was registered and freed is plain when the system hands it out again."""
    for turn in range(60):
        size = 40_000 + 1021 * (turn % 7)
        x, out = np.full(size, comm.rank + turn, np.float32), np.empty(size, np.float32)
        if turn % 3 == 0:
            comm.register(x)
        if turn % 4 == 1:
            comm.register(out)
        comm.all_reduce(x, out=out)
        assert (out == sum(range(comm.size)) + comm.size * turn).all(), turn
        if turn % 3 == 0:
            comm.unregister(x)
        if turn % 4 == 1:
            comm.unregister(out)
        del x, out


def plain_arrays_that_come_again(comm: ccl.Communicator) -> None:
    """They are registered by themselves, and what lies at their addresses later is told apart: exact sums all the time."""
    rng, n = np.random.default_rng(5), comm.size
    kept: list[np.ndarray] = []
    registered = 0
    for turn in range(250):
        what = rng.integers(6)
        if what < 3 or not kept:  # sizes in the heap and in mappings of their own, larger and smaller than what was there before
            count = int(rng.choice([5_000, 20_011, 40_000, 150_000, 400_003]))
            x = np.empty(count, np.float32)
            times = int(rng.choice([1, 2, 3, 12]))
            if what > 0:
                kept.append(x)
        else:
            at = int(rng.integers(len(kept)))
            x, times = kept[at], int(rng.choice([1, 4]))
            if what == 5:
                del kept[at]
        for _ in range(times):
            x[:] = comm.rank + turn
            if turn % 5 == 4:
                comm.all_reduce(x, out=x, async_op=True).wait()
            else:
                comm.all_reduce(x, out=x)
            assert (x == sum(range(n)) + n * turn).all(), (turn, x.size, what)
        registered = max(registered, comm.memory()["registered_bytes"])
        if len(kept) > 6:
            del kept[int(rng.integers(len(kept)))]
        del x
    assert registered > 1_000_000, registered


def forks(comm: ccl.Communicator) -> None:
    """A child has what its parent had at the fork, and changes nothing of it, though the array was registered by itself."""
    x, out = np.full(300_000, comm.rank, np.float32), np.empty(300_000, np.float32)
    for turn in range(3):
        for _ in range(70):
            comm.all_reduce(x, out=out)
        if turn == 0:
            assert comm.memory()["registered_bytes"] >= x.nbytes + out.nbytes
        want, (ready, go) = out.copy(), os.pipe()
        child = os.fork()
        if child == 0:
            os.read(ready, 1)
            fine = (x == comm.rank).all() and (out == want).all()
            x[:], out[:] = -1, -1
            os._exit(0 if fine else 1)
        out[:] = 7
        x += 0.5
        comm.all_reduce(x, out=out)
        os.write(go, b"g")
        assert os.waitpid(child, 0)[1] == 0, f"turn {turn}"
        x -= 0.5
        assert (x == comm.rank).all() and (out == sum(range(comm.size)) + comm.size / 2).all()
        os.close(ready), os.close(go)
    comm.barrier()


def queued_and_direct(comm: ccl.Communicator) -> None:
    """Works in the queue, then calls that could go directly: on all ranks in the order of the program, however fast each is."""
    rng, pause = np.random.default_rng(7), np.random.default_rng(comm.rank)
    n = comm.size
    for _ in range(12):
        works, wants = [], []
        for size in rng.permutation([1, 14, 1000, 5000, 70_000, 300_000])[:4]:
            x = np.full(size, comm.rank + size % 13, np.float32)
            works.append(comm.all_reduce(x, async_op=True))
            wants.append(sum(range(n)) + n * (size % 13))
        if pause.random() < 0.5:
            time.sleep(pause.random() / 100)
        if rng.random() < 0.5:  # on all ranks alike; some of those works are dropped unseen
            del works[1:3], wants[1:3]
        for size in rng.permutation([2, 3000, 80_000]):
            x = np.full(size, comm.rank, np.float32)
            assert (comm.all_reduce(x, out=x) == sum(range(n))).all(), size
            # the same arrays by the long way, after an asynchronous call of that kind
            x[:] = 1
            comm.all_reduce(x, out=x, async_op=True).wait()
            comm.all_reduce(x, out=x, timeout="10s")
            assert (x == n * n).all(), size
        for work, want in zip(works, wants, strict=True):
            assert (work.wait() == want).all()
    comm.barrier()


def sends_under_way(comm: ccl.Communicator) -> None:
    """Several sends at once, each a Work at both ends, arrive in the order of their start."""
    sent = [np.full(size, size, np.int32) for size in (1, 3000, 70_000)]
    received = [np.zeros_like(x) for x in sent]
    if comm.rank == 0:
        works = [comm.send(x, 1, async_op=True) for x in sent]
        assert [work.wait() for work in works] == [None] * len(works)
    elif comm.rank == 1:
        for work, x, out in zip([comm.recv(out, 0, async_op=True) for out in received], sent, received, strict=True):
            assert work.wait() is out and (out == x).all()
    comm.barrier()


def buffers_around_freed_ones(comm: ccl.Communicator) -> None:
    """New arrays lie where smaller ones were that had come often: an input in place in one is read where it is now."""
    n, mine, rng = comm.size, comm.rank, np.random.default_rng(7)
    numbers = (np.arange(64 * 1024) % 199).astype(np.float32)
    for turn in range(60):
        count = int(rng.choice([8, 16, 24, 48, 64])) * 1024
        whole = np.empty((n, count), np.float32)
        collective = ("all_gather", "reduce_scatter")[turn // 2 % 2]
        for repeat in range(12):  # often enough that the next one there is worth registering, too
            where = f"{collective} of {count}, turn {turn}, call {repeat}, rank {mine}"
            whole[:] = -1 if collective == "all_gather" else numbers[:count]
            whole[mine] = numbers[:count] + mine
            if collective == "all_gather":
                comm.all_gather(whole[mine], out=whole)
                assert all(np.array_equal(whole[r], numbers[:count] + r) for r in range(n)), where
            else:
                comm.reduce_scatter(whole, out=whole[mine])
                assert np.array_equal(whole[mine], n * numbers[:count] + mine), where
        del whole


def own_block_in_place(comm: ccl.Communicator) -> None:
    """The rank's own block of the larger buffer may be the smaller one; any other overlap is refused, large or small."""
    n, rank = comm.size, comm.rank
    for count in (5, 700, 30_001):
        for make in (comm.empty, np.empty):
            for _ in range(2):
                whole = make((n, count), "float32")
                whole[rank] = rank
                comm.all_gather(whole[rank], out=whole)
                assert (whole == np.arange(n)[:, None]).all()
                whole[:] = rank + 1
                comm.reduce_scatter(whole, out=whole[rank])
                assert (whole[rank] == n * (n + 1) / 2).all() and (np.delete(whole, rank, 0) == rank + 1).all()
            one, more, other = make(count + 1, "float32"), make((n + 1, count), "float32"), (rank + 1) % n
            for method, x, out in (
                (comm.all_reduce, one[1:], one[:-1]),
                (comm.all_gather, whole[other], whole),
                (comm.reduce_scatter, whole, whole[other]),
                (comm.all_to_all, more[1:], more[:-1]),
            ):
                try:
                    method(x, out=out)
                    raise AssertionError("an overlap went through")
                except ccl.ShapeError as error:
                    assert "overlap" in str(error)
    comm.barrier()


def read_only_inputs(comm: ccl.Communicator, path: str) -> None:
    """Memory that cannot be written is an input like any other."""
    for count in (10, 1000, 300_000):
        x = np.memmap(f"{path}-{comm.rank}-{count}", np.float32, "w+", shape=(count,))
        x[:] = comm.rank + 1
        x.flush()
        seen = np.memmap(f"{path}-{comm.rank}-{count}", np.float32, "r", shape=(count,))
        for _ in range(2):
            out = np.zeros(count, np.float32)
            comm.all_reduce(seen, out=out)
            assert (out == comm.size * (comm.size + 1) / 2).all()
            got = comm.broadcast(seen if comm.rank == 1 else out, root=1)
            assert (got == 2).all()


def flush_to_zero(comm: ccl.Communicator) -> None:
    """A caller that flushes tiny numbers to zero still gets their sums, and keeps its setting."""
    def control(word: bytes) -> Callable[[Any], None]:
        code = mmap.mmap(-1, PAGE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        code[: len(word)] = word
        address = ctypes.addressof(ctypes.c_char.from_buffer(code))
        call_it = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
        return lambda value, keep=code: call_it(ctypes.addressof(value))

    load, store = control(b"\x0f\xae\x17\xc3"), control(b"\x0f\xae\x1f\xc3")  # ldmxcsr [rdi]; stmxcsr [rdi]
    before, now = ctypes.c_uint32(), ctypes.c_uint32()
    store(before)
    tiny = np.float32(1e-41)
    for count in (3, 1000, 50_000):
        x, out = np.full(count, tiny), np.zeros(count, np.float32)
        comm.all_reduce(x, out=out)  # plans, under the usual setting
        out[:] = 0
        load(ctypes.c_uint32(before.value | 0x8040))
        try:
            comm.all_reduce(x, out=out)
            store(now)
        finally:
            load(before)
        assert now.value & 0x8040 == 0x8040, hex(now.value)
        want = collectives.accumulate([x] * comm.size, "sum")
        assert want[0] > 0 and out.tobytes() == want.tobytes(), count


def spans(comm: ccl.Communicator) -> None:
    """Direct calls leave a span each, and the tasks that ran here theirs."""
    x, out = comm.empty(100_000, "float32"), comm.empty(100_000, "float32")
    x[:] = 1
    for _ in range(3):
        comm.all_reduce(x, out=out)
    comm.trace()
    for _ in range(5):
        comm.all_reduce(x, out=out)
        comm.barrier()
    columns = comm.trace().columns
    whole = columns["kind"] == SpanKind.collective
    assert int(whole.sum()) == 10 and int((columns["nbytes"][whole] == x.nbytes).sum()) == 5
    tasks = columns["kind"] == SpanKind.reduce
    total = comm.all_reduce(np.array([columns["nbytes"][tasks].sum()], np.int64))
    assert total[0] == 5 * comm.size * out.nbytes, (int(total[0]), comm.size * out.nbytes)
    assert (columns["end_ns"] >= columns["begin_ns"]).all()
