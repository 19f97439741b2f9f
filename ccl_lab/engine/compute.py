"""The computation of a schedule with compute ops: who does its partitions, and on which memory.

Is: devices as plain data (`Emulated`, `Matmul`), and the loop in which the calling thread computes while the engine moves
bytes. Is not: what a partition computes (`ccl_lab.overlap`) nor when (the schedule). Invariants: partitions run one after the
other, on the thread that called; they see the memory that is sent, not copies.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Union

import numpy as np

from .. import _core, units
from ..arguments import named
from ..errors import AbortedError, CclError, ShapeError, UnsupportedError, UsageError
from ..ir import Buffer, Kind, Schedule, collectives
from ..ir.layout import Layout
from .hub import same_culprit
from .work import Work

Function = Callable[[int, Union[np.ndarray, None], tuple[np.ndarray, ...]], Any]
Length = Union[int, str]
Lengths = Union[Length, Sequence[Union[Length, Sequence[Length]]]]
LONGEST_PS = 1 << 61
REASON_S = 2.0


@dataclasses.dataclass(frozen=True)
class Emulated:
    """A device that is only a clock: a partition lasts as long as `durations` says, and uses no core, as on a GPU.

    durations: whole picoseconds, or text such as "5us"; one for all, one per partition, or one per rank and partition. Each
    rank has one compute stream: its partitions run one after the other. What a partition produces is what INPUT holds; the
    engine adds its other sources and writes the sum where it goes. Traces made with it say `"device": "emulated"`.
    """

    durations: Any

    device = "emulated"

    def table(self, schedule: Schedule) -> np.ndarray:
        """Nanoseconds by rank and partition: int64[n_ranks, partitions]. Raises UsageError or ShapeError where they do not fit."""
        rows = schedule.ops.kind == Kind.compute
        n = int(schedule.ops.arg[rows].max(initial=-1)) + 1
        ps = _picoseconds(self.durations)
        if ps.ndim == 2 and ps.shape[0] != schedule.n_ranks:
            raise ShapeError(f"durations of {ps.shape[0]} ranks: expected one row for each of {schedule.n_ranks} ranks.")
        if ps.ndim and ps.shape[-1] < n:
            raise ShapeError(f"durations of {ps.shape[-1]} partitions: the schedule has {n}, numbered from 0.")
        whole = np.broadcast_to(ps if not ps.ndim else ps[..., :n], (schedule.n_ranks, n))
        return (whole + 500) // 1000

    def to_dict(self) -> dict[str, Any]:
        """For the way to the ranks."""
        return {"device": self.device, "ps": _picoseconds(self.durations).tolist()}


@dataclasses.dataclass(frozen=True)
class Matmul:
    """Real matmuls in the ranks of a World: each partition is [rows, inner] @ [inner, columns] of `dtype`.

    By torch with one thread; by numpy where torch is missing (float32 and float64 only). The operands are the rank's own: the
    product is the load, and what a partition hands on is what INPUT holds, as with Emulated. Traces name the device: "torch",
    "numpy".
    """

    rows: int
    inner: int
    columns: int
    dtype: str = "float32"

    def __post_init__(self) -> None:
        sizes = (self.rows, self.inner, self.columns)
        if any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in sizes):
            raise UsageError(f"Matmul{sizes}: expected rows, inner and columns of 1 or more.")
        named(self.dtype, "dtype of Matmul", ("float32", "float64", "float16", "bfloat16"))

    def to_dict(self) -> dict[str, Any]:
        """For the way to the ranks."""
        return {"device": "matmul", **dataclasses.asdict(self)}

    def function(self) -> tuple[str, Function]:
        """(device, what does a partition), with operands taken once and the first product made."""
        try:
            torch: Any = importlib.import_module("torch")
        except ImportError:
            return "numpy", self._by_numpy()
        torch.set_num_threads(1)
        kind = getattr(torch, self.dtype)
        a, b = torch.rand(self.rows, self.inner).to(kind), torch.rand(self.inner, self.columns).to(kind)
        product = torch.empty(self.rows, self.columns, dtype=kind)

        def run(partition: int, target: np.ndarray | None, sources: tuple[np.ndarray, ...]) -> None:
            torch.mm(a, b, out=product)

        run(0, None, ())
        return "torch", run

    def _by_numpy(self) -> Function:
        if self.dtype not in ("float32", "float64"):
            raise UnsupportedError(f'Matmul of {self.dtype} needs torch: pip install "ccl-lab[torch]", or use float32.')
        random = np.random.default_rng(0)
        a, b = (random.random(shape).astype(self.dtype) for shape in ((self.rows, self.inner), (self.inner, self.columns)))
        product = np.empty((self.rows, self.columns), self.dtype)

        def run(partition: int, target: np.ndarray | None, sources: tuple[np.ndarray, ...]) -> None:
            np.matmul(a, b, out=product)

        run(0, None, ())
        return run


Device = Union[Emulated, Matmul]


def from_dict(device: dict[str, Any]) -> Device:
    """What `to_dict` of a device gave."""
    if device["device"] == "emulated":
        return Emulated(device["ps"])
    return Matmul(**{name: value for name, value in device.items() if name != "device"})


def computes(schedule: Schedule) -> bool:
    """True where it has compute ops."""
    return bool((schedule.ops.kind == Kind.compute).any())


def check_computation(schedule: Schedule, compute: Any, expected: str) -> None:
    """UsageError unless a computation is given where the schedule has one."""
    n = int((schedule.ops.kind == Kind.compute).sum())
    if n and compute is None:
        raise UsageError(f"{schedule.collective} by {schedule.algorithm} has {n} compute ops: say who does them, compute={expected}.")


def check_device(schedule: Schedule, compute: Any) -> None:
    """UsageError unless `compute` is a device that ranks in other processes can have, and fits the schedule."""
    check_computation(schedule, compute, "Emulated(durations) or Matmul(rows, inner, columns)")
    if compute is None:
        return
    if not isinstance(compute, (Emulated, Matmul)):
        raise UsageError(
            f"compute={type(compute).__name__}: the ranks of a World are other processes; expected Emulated(durations) or "
            "Matmul(rows, inner, columns). A function computes in a job: Communicator.run(compute=function)."
        )
    if isinstance(compute, Emulated):
        compute.table(schedule)


def _picoseconds(durations: Any) -> np.ndarray:
    """int64 of no, one or two dimensions."""
    wrong = UsageError(
        f"durations {str(durations)[:80]}: expected whole picoseconds or text such as '5us'; one, one per partition, or a row of them "
        "for each rank."
    )

    def parse(one: Any) -> Any:
        if isinstance(one, str):
            return round(units.parse_duration(one) * 1e12)
        if isinstance(one, (list, tuple)):
            return [parse(each) for each in one]
        return one

    try:
        table = np.asarray(parse(durations))
    except ValueError:  # rows of different lengths
        raise wrong from None
    if not table.size:
        table = table.astype(np.int64)
    if table.dtype.kind not in "iu" or table.ndim > 2 or (table.size and (table.min() < 0 or table.max() >= LONGEST_PS)):
        raise wrong
    return table.astype(np.int64)


class Partitions:
    """The compute ops of one rank: which partition, and where it writes and reads."""

    def __init__(self, schedule: Schedule, layout: Layout, rank: int) -> None:
        self._layout, self._rank = layout, rank
        self._ops = {
            int(i): schedule.ops[int(i)] for i in np.flatnonzero((schedule.ops.kind == Kind.compute) & (schedule.ops.rank == rank))
        }
        self._places: dict[int, tuple[int, Any, list[Any]]] = {}
        self.running = ""  # what the function is at, for an error that it raises

    def _place(self, buf: int, chunk: int, n: int) -> tuple[int, slice]:
        base, first = self._layout.resolve(buf, self._rank, chunk)
        begin, end = (int(self._layout.offset(buf, self._rank, at)) for at in (chunk, chunk + n))
        return base, slice(first, first + end - begin)

    def places(self, op_id: int) -> tuple[int, Any, list[Any]]:
        """(partition, (buffer, slice) of the destination or None, those of the sources that are read)."""
        found = self._places.get(op_id)
        if found is None:
            op = self._ops[op_id]
            produces = bool(op.value) and bool(op.sources)
            target = self._place(op.dst_buf, op.dst_chunk, op.n_chunks) if produces else None
            sources = [self._place(buf, chunk, op.n_chunks) for _, buf, chunk in op.sources[int(produces) :]]
            found = self._places[op_id] = op.arg, target, sources
        return found

    def run(self, work: Any, function: Function, memory: dict[int, np.ndarray]) -> None:
        """Does every partition that `work` asks for, until it has ended. memory: flat arrays by buffer."""
        self.running = ""
        if (scratch := work.scratch) is not None:
            memory = memory | {Buffer.scratch: scratch.view(collectives.numpy_dtype(self._layout.dtype))}
        while (op_id := work.next_partition()) >= 0:
            partition, target, sources = self.places(op_id)
            views = tuple(memory[buf][where] for buf, where in sources)
            self.running = f"compute of partition {partition} (op {op_id})"
            function(partition, None if target is None else memory[target[0]][target[1]], views)
            self.running = ""


def _check_in_place(layout: Layout, rank: int, buf: int, array: np.ndarray, owner: np.ndarray | None) -> None:
    """UsageError unless `array` is the part of `owner`, the other buffer, that the schedule says it is."""
    offset = layout.resolve(buf, rank, 0)[1] * layout.itemsize
    if array.nbytes and owner is not None and array.ctypes.data != owner.ctypes.data + offset:
        name, other = ("x", "out") if buf == Buffer.input else ("out", "x")
        raise UsageError(
            f"{name} of {layout.schedule.collective} in place on rank {rank}: expected the bytes of {other} from {offset} on, found "
            "other memory. Pass that part, or plan with in_place=False.",
            rank=rank,
        )


class Call(NamedTuple):
    """One run with computation."""

    coll_id: int
    layout: Layout
    redop: str
    source: np.ndarray | None
    target: np.ndarray | None
    compute: Any
    async_op: bool
    timeout_s: float


class Computing:
    """Runs with computation of one communicator. failed: tells the other ranks an error and returns whose was first."""

    MAX_TABLES = 64

    def __init__(self, member: Any, failed: Callable[[CclError], CclError]) -> None:
        self._member, self._failed = member, failed
        self._tables: dict[tuple[Any, ...], Partitions] = {}
        self.device: str | None = None  # of the last run

    @property
    def meta(self) -> dict[str, str]:
        """For traces: what computed."""
        return {"device": self.device} if self.device else {}

    def _check(self, schedule: Schedule, compute: Any, async_op: bool) -> None:
        """UsageError or UnsupportedError where `compute` cannot do the partitions of `schedule`."""
        check_computation(schedule, compute, "fn(partition, target, sources), or Emulated(durations)")
        if isinstance(compute, Emulated):
            compute.table(schedule)
        elif isinstance(compute, Matmul):
            raise UsageError("compute=Matmul(...) is for a World; a communicator takes your own function, or Emulated(durations).")
        elif not callable(compute):
            raise UsageError(f"compute={compute!r}: expected a function(partition, target, sources), or Emulated(durations).")
        elif async_op:
            raise UnsupportedError(
                "async_op=True with a function to compute: the function runs on the thread that calls run(), which therefore "
                "waits. Call run() from a thread of yours, or compute=Emulated(...)."
            )

    def _memory(self, layout: Layout, x: np.ndarray | None, out: np.ndarray | None) -> dict[int, np.ndarray]:
        """INPUT and OUTPUT as they are, by buffer that owns memory. Raises UsageError where they are not registered."""
        rank, schedule = self._member.rank, layout.schedule
        shared = collectives.alias(schedule.collective, rank, schedule.root) if schedule.in_place else None
        found: dict[int, np.ndarray] = {}
        for name, buf, array in (("x", Buffer.input, x), ("out", Buffer.output, out)):
            if array is None:
                continue
            flat = array.reshape(-1)
            if shared and shared[0] == buf:
                _check_in_place(layout, rank, buf, flat, out if buf == Buffer.input else x)
                continue
            if flat.nbytes and self._member.engine.arena_offset_of(flat.ctypes.data, flat.nbytes) < 0:
                raise UsageError(
                    f"{name} of {schedule.collective} with compute= on rank {rank} is not registered memory: partitions are computed "
                    f"where they are sent from, without copies. Take it from comm.empty(shape, dtype) or ccl_lab.empty().",
                    rank=rank,
                )
            found[buf] = flat
        return found

    def call(self, call: Call) -> Any:
        """Runs it, proved before; returns `target`, or a Work."""
        layout, compute, rank = call.layout, call.compute, self._member.rank
        schedule = layout.schedule
        self._check(schedule, compute, call.async_op)
        memory = self._memory(layout, call.source, call.target)
        program = self._member.program(schedule, layout, call.redop, False)
        what = f"{schedule.collective} #{call.coll_id} on rank {rank}"
        self.device = "emulated" if isinstance(compute, Emulated) else str(getattr(compute, "device", "caller"))
        native = self._start(program, memory, call)
        if call.async_op:
            return Work(native, lambda: call.target, self._failed, what)
        table = self._table(layout)
        try:
            if isinstance(compute, Emulated):
                native.wait()
            else:
                table.run(native, compute, memory)
        except BaseException as error:
            first = self._tell(native, error, f"{what}: {table.running}" if table.running else what)
            if first is None:
                raise
            raise first from error
        return call.target

    def _start(self, program: Any, memory: dict[int, np.ndarray], call: Call) -> Any:
        how = native_computation(call.layout.schedule, call.compute, self._member.rank)
        views = [None if array is None else array.view(np.uint8) for array in (memory.get(0), memory.get(1))]
        try:
            return self._member.engine.start(program, *views, coll_id=call.coll_id, timeout_s=call.timeout_s, compute=how)
        except AbortedError as error:  # an earlier collective failed, here or elsewhere
            raise self._member.spoke.first_reason(REASON_S) or error from error

    def _table(self, layout: Layout) -> Partitions:
        key = (layout.schedule.digest, layout.count, layout.dtype, None if layout.counts is None else layout.counts.tobytes())
        table = self._tables.get(key)
        if table is None:
            if len(self._tables) >= self.MAX_TABLES:
                self._tables.clear()
            table = self._tables[key] = Partitions(layout.schedule, layout, self._member.rank)
        return table

    def _tell(self, native: Any, error: BaseException, what: str) -> CclError | None:
        """Tells the other ranks why this one stopped. Returns whose error was first, where that says more than this one."""
        if isinstance(error, CclError):
            first = self._failed(error)
            return None if same_culprit(first, error) else first
        how = "raised" if isinstance(error, Exception) else "was interrupted by"
        self._failed(AbortedError(f"{what} {how} {type(error).__name__}: {error}", rank=self._member.rank))
        try:
            native.wait(REASON_S)  # its memory is at rest then
        except CclError:
            pass
        return None


def native_computation(schedule: Schedule, compute: Any, rank: int, *, carries: bool = False) -> Any:
    """A `_core.Computation` for one rank."""
    if isinstance(compute, Emulated):
        return _core.Computation.emulated(np.ascontiguousarray(compute.table(schedule)[rank]))
    return _core.Computation.caller(carries=carries)


__all__ = ["Emulated", "Matmul", "Call", "Computing", "computes", "check_device", "from_dict", "native_computation"]
