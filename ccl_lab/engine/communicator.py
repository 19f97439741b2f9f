"""The collectives of one rank in a job: what `ccl_lab.init()` returns.

Is: torch-named collectives on arrays, planned and proved once per shape, run by the native engine. Is not: a launcher.
Invariants: ranks call the same collectives in the same order; an error on one rank ends the call on all of them; results
land in `out` (a new array unless given), inputs are only changed where `out` is the input.
"""

from __future__ import annotations

import math
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from .. import units
from ..arguments import wholes
from ..errors import AbortedError, CclError, ShapeError, UsageError
from ..ir import Collective, DType, RedOp, Schedule, collectives
from ..ir.layout import Layout
from ..planner import plan
from ..trace import Trace
from ..verifier import verify
from . import verbs
from .buffers import Registered, Staging, array_of, as_bytes, same_memory
from .compute import Call, Computing, computes
from .device_arrays import on_device
from .devices import Devices
from .exchange import Exchanging
from .hub import cancelled, same_culprit
from .join import Job
from .lower import FUSED, fusible
from .made import MADE, empty
from .shapes import blocked, check_call, layout_of, message_nbytes, other
from .window import Windowing
from .work import Work

MAX_PLANS = 256
REGISTERED_FROM = 1 << 16  # bytes from which a new result array comes from registered memory
REASON_S = 4.0  # how long a failed rank waits to hear whose error was first: longer than the hub looks for who is silent

_ALL_REDUCE, _ALL_GATHER, _REDUCE_SCATTER = (int(Collective[name]) for name in ("all_reduce", "all_gather", "reduce_scatter"))
_BROADCAST, _ALL_TO_ALL, _SEND_RECV, _BARRIER = (
    int(Collective[name]) for name in ("broadcast", "all_to_all", "send_recv", "barrier")
)
# Collectives that the node layer runs, and the schedule that says what it does.
_ONE_PASS = frozenset(
    {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "all_to_all"}
)


class Communicator(Exchanging, Windowing):
    """Rank `rank` of `size`. Made by `ccl_lab.init()`; close it, or use it as a context manager."""

    def __init__(self, job: Job) -> None:
        self._job, member = job, job.member
        member.on_unreached = self._failed
        self._member = member
        self.rank, self.size, self.topology = member.rank, member.topology.n_ranks, member.topology
        self._staging = Staging(member)
        self._plans: OrderedDict[tuple[Any, ...], Schedule] = OrderedDict()
        # what calls that were made before run: (program, whether in place), connected
        self._ready: dict[tuple[Any, ...], tuple[Any, bool]] = {}
        self._coll_id, self._epoch, self._closed = 0, 0, False
        self._moving: list[tuple[Any, Any, Any]] = []
        self._registered = Registered(member.engine)
        self._computing = Computing(member, self._failed)
        self._devices = Devices(member, self._planned, self._failed)
        self._timeout_s = member.options.timeout_s
        MADE.append(weakref.ref(self))

    # -- collectives

    def all_reduce(self, x: Any, op: str = "sum", *, out: Any = None, **options: Any) -> Any:
        """Reduces `x` over all ranks; every rank gets the result, of x's shape. `out=x` reduces in place.

        Options of every collective: algorithm="auto", timeout=None, async_op=False (True returns a Work).
        """
        if out is None:
            out = self._fresh(x)
        if not options and self._directly(_ALL_REDUCE, x, out, op):
            return out
        array = array_of(x, "x")
        return self._call("all_reduce", array, self._out(out, array.shape, array), redop=op, **options)

    def all_gather(self, x: Any, *, out: Any = None, **options: Any) -> Any:
        """Every rank gets all x, stacked by rank: shape [size, *x.shape]."""
        if not options and out is not None and self._directly(_ALL_GATHER, x, out):
            return out
        array = array_of(x, "x")
        return self._call(
            "all_gather", array, self._out(out, (self.size, *array.shape), array), **options
        )

    def reduce_scatter(self, x: Any, op: str = "sum", *, out: Any = None, **options: Any) -> Any:
        """Rank r gets the reduction of x[r]; x has shape [size, ...]."""
        if not options and out is not None and self._directly(_REDUCE_SCATTER, x, out, op):
            return out
        array = blocked(array_of(x, "x"), self.rank, self.size)
        return self._call(
            "reduce_scatter", array, self._out(out, array.shape[1:], array), redop=op, **options
        )

    def broadcast(self, x: Any, root: int = 0, *, out: Any = None, **options: Any) -> Any:
        """Every rank gets the root's x; on other ranks x gives shape and dtype and is overwritten unless `out` is given."""
        if not options and self._directly(_BROADCAST, x, x if out is None else out, "sum", root):
            return x if out is None else out
        array = array_of(x, "x", writable=out is None and self.rank != root)
        in_place = out is None and array.flags.writeable  # a root may have its values in memory that cannot be written
        target = array if in_place else self._out(out, array.shape, array)
        return self._call("broadcast", array if self.rank == root else None, target, root=root, **options)

    def reduce(self, x: Any, root: int = 0, op: str = "sum", *, out: Any = None, **options: Any) -> Any:
        """The root gets the reduction of all x; other ranks get None."""
        array = array_of(x, "x")
        target = self._out(out, array.shape, array) if self.rank == root else None
        return self._call("reduce", array, target, redop=op, root=root, **options)

    def gather(self, x: Any, root: int = 0, *, out: Any = None, **options: Any) -> Any:
        """The root gets all x, stacked by rank: shape [size, *x.shape]; other ranks get None."""
        array = array_of(x, "x")
        target = self._out(out, (self.size, *array.shape), array) if self.rank == root else None
        return self._call("gather", array, target, root=root, **options)

    def scatter(self, x: Any, root: int = 0, *, out: Any, **options: Any) -> Any:
        """Rank r gets x[r] of the root in `out`; x is ignored on other ranks (pass None)."""
        target = array_of(out, "out", writable=True)
        source = blocked(array_of(x, "x"), self.rank, self.size) if self.rank == root else None
        return self._call("scatter", source, target, root=root, **options)

    def all_to_all(self, x: Any, *, out: Any = None, **options: Any) -> Any:
        """Rank r gets x[r] of every rank, by rank; x and the result have shape [size, ...]."""
        if not options and out is not None and self._directly(_ALL_TO_ALL, x, out):
            return out
        array = blocked(array_of(x, "x"), self.rank, self.size)
        return self._call("all_to_all", array, self._out(out, array.shape, array), **options)

    def all_to_allv(self, x: Any, counts: Any, *, out: Any = None, **options: Any) -> Any:
        """counts[d] elements of the flat x go to rank d; returns what came, by rank, flat. Ranks exchange their counts first."""
        array = array_of(x, "x").reshape(-1)
        mine = np.ascontiguousarray(wholes(counts, "counts of all_to_allv"))
        if mine.shape != (self.size,) or (mine < 0).any() or mine.sum() != array.size:
            raise ShapeError(
                f"counts of all_to_allv on rank {self.rank}: expected {self.size} non-negative numbers that add up to "
                f"{array.size}, found {mine.tolist() if mine.size < 64 else mine.shape}.",
                rank=self.rank,
            )
        matrix = self.all_gather(mine)
        target = self._out(out, (int(matrix[:, self.rank].sum()),), array)
        return self._call("all_to_allv", array, target, counts=matrix, **options)

    def send(self, x: Any, peer: int, **options: Any) -> Any:
        """Sends x to `peer`, which calls recv."""
        if not options and self._directly(_SEND_RECV, x, None, "sum", self.rank, peer):
            return None
        return self._call("send_recv", array_of(x, "x"), None, root=self.rank, peer=other(peer, self.rank, self.size), **options)

    def recv(self, out: Any, peer: int, **options: Any) -> Any:
        """Receives into `out` what `peer` sends."""
        if not options and self._directly(_SEND_RECV, None, out, "sum", peer, self.rank):
            return out
        return self._call(
            "send_recv",
            None,
            array_of(out, "out", writable=True),
            root=other(peer, self.rank, self.size),
            peer=self.rank,
            **options,
        )

    def barrier(self, **options: Any) -> Any:
        """No rank returns before all have entered."""
        if not options and self._directly(_BARRIER, None, None):
            return None
        return self._call("barrier", None, None, **options)

    def run(
        self,
        schedule: Schedule,
        x: Any = None,
        *,
        out: Any = None,
        redop: str | None = None,
        timeout: Any = None,
        async_op: bool = False,
        counts: np.ndarray | None = None,
        compute: Any = None,
    ) -> Any:
        """Runs a schedule of your own, proved first: `x` is this rank's INPUT, `out` its OUTPUT, flat arrays (None: none).

        compute: does its compute ops, on memory as it is: x and out come from `empty`. A function(partition, target, sources)
        runs on this thread, one partition after the other, while bytes move. `target`, where its result goes with all `sources`
        added (None: it only reads them), and sources are flat views. What it raises ends the run on all ranks. Or
        Emulated(durations).
        """
        source = None if x is None else array_of(x, "x").reshape(-1)
        target = None if out is None else array_of(out, "out", writable=True)
        layout = layout_of(schedule, self.rank, source, target, counts)
        redop = redop or schedule.redop
        if compute is None and not computes(schedule):
            return self._start(schedule, layout, redop, source, target, timeout, async_op)
        self._coll_id += 1
        call = Call(self._coll_id, layout, redop, source, target, compute, async_op, self._seconds(timeout))
        return self._computing.call(call)

    # -- how

    def _directly(
        self, kind: int, x: Any, out: Any, op: str = "sum", root: int = 0, peer: int = -1, seconds: float | None = None
    ) -> bool:
        """Runs a call whose schedule was proved before, on this thread, in one native call. False: go the long way."""
        try:
            timeout_s = self._timeout_s if seconds is None else seconds
            return self._member.engine.collective(kind, x, out, op, root, peer, timeout_s)
        except CclError as error:
            first = self._failed(error)
            if same_culprit(first, error):
                raise
            raise first from error
        except TypeError:  # the native call does not take such arguments; the long way says which one is wrong
            return False
        except KeyboardInterrupt:
            self._failed(cancelled("interrupted from the keyboard", f"a collective on rank {self.rank}"))
            raise

    def _fused(self, schedule: Schedule, algorithm: str) -> bool:
        """True where the node layer runs the whole collective: the same on all ranks."""
        alone = algorithm == "auto" and schedule.collective in ("barrier", "send_recv")
        known = alone or fusible(schedule, self.topology)
        return known and bool(self._member.engine.node_complete)

    def _call(
        self,
        collective: str,
        source: np.ndarray | None,
        target: np.ndarray | None,
        *,
        redop: str = "sum",
        root: int = 0,
        peer: int = -1,
        counts: np.ndarray | None = None,
        algorithm: str = "auto",
        timeout: Any = None,
        async_op: bool = False,
    ) -> Any:
        if type(root) is not int or type(redop) is not str or not 0 <= root < self.size:
            check_call(root, redop, self.rank, self.size)
        if on_device(source, target):
            return self._devices.call(
                collective, source, target, redop=redop, root=root, peer=peer, counts=counts, algorithm=algorithm, timeout=timeout,
                async_op=async_op,
            )
        call = (
            (collective, algorithm, redop, root, peer, source is target)
            + ((0, None) if source is None else (source.size, source.dtype))
            + ((0, None) if target is None else (target.size, target.dtype))
        )
        if not async_op and counts is None:
            ready = self._ready.get(call)
            if ready is not None and self._run(
                ready[0], None if ready[1] else source, target, timeout, source is not target
            ):
                return target
        some = source if source is not None else target
        dtype = collectives.dtype_name(some.dtype) if some is not None else "uint8"
        in_place = same = source is not None and target is not None and same_memory(source, target)
        nbytes = message_nbytes(
            collective, self.rank, self.size, source, target, dtype=dtype, root=root, peer=peer, counts=counts
        )
        sizes = None if counts is None else counts.tobytes()
        key = (collective, algorithm, nbytes, dtype, redop, in_place, root, peer, sizes)
        schedule = self._plans.get(key)
        if schedule is None:
            if collective in ("broadcast", "reduce", "gather", "scatter"):
                in_place = False  # in place at the root only would be another schedule there than elsewhere
            schedule = self._planned(
                collective, nbytes, algorithm, dtype=dtype, redop=redop, in_place=in_place, root=root, peer=peer, counts=counts
            )
            self._plans[key] = schedule
            if len(self._plans) > MAX_PLANS:
                self._plans.popitem(last=False)
        layout = layout_of(schedule, self.rank, source, target, counts)
        fused = self._fused(schedule, algorithm)
        if fused and not async_op and self._admitted(schedule, layout, redop, root, peer, source, target, timeout):
            return target
        result = self._start(schedule, layout, redop, source, target, timeout, async_op, fused)
        if counts is None and same == (source is not None and source is target):
            if len(self._ready) >= MAX_PLANS:
                self._ready.clear()
            self._ready[call] = self._member.started_program(schedule, layout, redop, fused), schedule.in_place
        return result

    def _admitted(
        self, schedule: Schedule, layout: Layout, redop: str, root: int, peer: int, source: Any, target: Any, timeout: Any
    ) -> bool:
        """The first call of its kind: its schedule is proved, so this one and all like it may go directly."""
        kind = int(Collective[schedule.collective])
        reduction = RedOp[redop if schedule.collective in collectives.REDUCING else "sum"]
        block_bytes = layout.count * layout.itemsize
        engine = self._member.engine
        engine.admit(kind, int(DType[layout.dtype]), int(reduction), root, peer, block_bytes)
        return self._directly(kind, source, target, reduction.name, root, peer, self._seconds(timeout))

    def _seconds(self, timeout: Any) -> float:
        return self._timeout_s if timeout is None else units.parse_duration(timeout)

    def _planned(self, collective: str, nbytes: int, algorithm: str, **details: Any) -> Schedule:
        """A proved schedule. Where all ranks share a node's memory, `auto` is what the node layer runs."""
        mapped = bool(self._member.engine.node_complete)
        overlaps = self._member.between_nodes.overlaps
        schedule = plan(collective, self.topology, nbytes, algorithm=algorithm, mapped=mapped, overlaps=overlaps, **details)
        if mapped and algorithm == "auto" and schedule.algorithm not in FUSED and collective in _ONE_PASS:
            schedule = plan(collective, self.topology, nbytes, algorithm="one_pass", mapped=True, **details)
        verify(schedule)
        return schedule

    def _run(self, program: Any, source: Any, target: Any, timeout: Any, apart: bool = False) -> bool:
        """Runs a program of this rank to its end; False where the arrays are not registered, or the same though `apart`."""
        self._coll_id += 1
        seconds = self._seconds(timeout)
        try:
            if self._member.engine.run(
                program, source, target, coll_id=self._coll_id, timeout_s=seconds, apart=apart
            ):
                return True
        except CclError as error:
            first = self._failed(error)
            if same_culprit(first, error):
                raise
            raise first from error
        self._coll_id -= 1
        return False

    def _start(
        self,
        schedule: Schedule,
        layout: Layout,
        redop: str,
        source: np.ndarray | None,
        target: np.ndarray | None,
        timeout: Any,
        async_op: bool,
        fused: bool = False,
    ) -> Any:
        if self._closed:
            raise UsageError(f"this communicator (rank {self.rank}) is closed; call ccl_lab.init() again.")
        what = f"{schedule.collective} #{self._coll_id + 1} on rank {self.rank}"
        program = self._member.program(schedule, layout, redop, fused)
        if fused:  # the node layer takes any memory as it is
            own_in = own_out = None
            stage_in, stage_out = (None if array is None else as_bytes(array) for array in (source, target))
        else:
            own_in, stage_in = (None, None) if schedule.in_place else self._stage(source, fill=True)
            own_out, stage_out = self._stage(target, fill=schedule.in_place)

        def finish() -> Any:
            if own_out is not None and target is not None:
                as_bytes(target)[:] = own_out[: target.nbytes]
            for buffer in (own_in, own_out):
                if buffer is not None:
                    self._staging.give(buffer)
            return target

        if not async_op and self._run(program, stage_in, stage_out, timeout):
            return finish()
        self._coll_id += 1
        try:
            native = self._member.start(program, stage_in, stage_out, self._coll_id, self._seconds(timeout))
        except AbortedError as error:  # an earlier collective failed, here or elsewhere
            raise self._member.spoke.first_reason(REASON_S) or error from error
        # A caller may drop the Work; what it moves lives until it has ended.
        self._moving = [held for held in self._moving if not held[0].done()] + [(native, stage_in, stage_out)]
        work = Work(native, finish, self._failed, what)
        return work if async_op else work.wait()

    def _stage(self, array: np.ndarray | None, *, fill: bool) -> tuple[np.ndarray | None, np.ndarray | None]:
        """(staging buffer or None, the registered u8 view to run on)."""
        if array is None:
            return None, None
        view = as_bytes(array)
        if self._staging.registered(view):
            return None, view
        buffer = self._staging.take(view.nbytes)
        if fill:
            buffer[: view.nbytes] = view
        return buffer, buffer[: view.nbytes]

    def _failed(self, error: CclError) -> CclError:
        """Tells the other ranks; returns the first reason any rank told, which all of them raise."""
        self._member.abort(error)
        return self._member.spoke.judged(error, REASON_S)

    def _fresh(self, x: Any) -> np.ndarray:
        """A new array like `x`, in registered memory where staging would cost more than taking it."""
        array = x if isinstance(x, np.ndarray) else array_of(x, "x")
        return self._out(None, array.shape, array)

    def _out(self, out: Any, shape: tuple[int, ...], like: Any) -> Any:
        dtype = like.dtype
        if out is None and on_device(like):
            return like.fresh(shape)
        if out is None:
            nbytes = math.prod(shape) * np.dtype(dtype).itemsize
            if nbytes < REGISTERED_FROM:
                return np.empty(shape, dtype)
            return self._member.empty(nbytes)[1][:nbytes].view(dtype).reshape(shape)
        array = array_of(out, "out", writable=True)
        if array.size != int(np.prod(shape)) or array.dtype != dtype:
            raise ShapeError(
                f"out on rank {self.rank}: expected {dtype} of shape {shape}, found {array.dtype} of shape {array.shape}.",
                rank=self.rank,
            )
        return array

    # -- memory, traces, end

    def empty(self, shape: int | tuple[int, ...], dtype: str = "float32") -> np.ndarray:
        """An uninitialised array in registered memory: collectives move it without staging."""
        kind = collectives.numpy_dtype(dtype)
        nbytes = int(np.prod(shape)) * kind.itemsize
        return self._member.empty(max(nbytes, 1))[1][:nbytes].view(kind).reshape(shape)

    def register(self, array: Any) -> Any:
        """Lets peers read and write `array` in place, as if it came from `empty`; returns it. `unregister` ends that.

        Its whole pages become shared memory, at their addresses and with their contents; the communicator keeps the array
        alive. No other thread may write to it during the call. A process forked later shares those pages instead of
        copying them. Cost: one copy of the array, once. Every rank decides for itself.
        """
        self._registered.add(array)
        return array

    def unregister(self, array: Any) -> None:
        """Gives a registered array its private memory back; contents stay. Raises RegistrationError if it is not one."""
        self._registered.remove(array)

    @contextmanager
    def registered(self, *arrays: Any) -> Iterator[None]:
        """Registers arrays for the length of a `with` block."""
        with ExitStack() as stack:
            for array in arrays:
                stack.callback(self.unregister, self.register(array))
            yield

    def trace(self) -> Trace:
        """This rank's spans since the last call, on the clock of the host of rank 0; how far its own is from that is in meta's
        `clock`. `Trace.concat` makes one trace of those of all ranks."""
        return self._member.trace(self._computing.meta)

    def memory(self) -> dict[str, int]:
        """Bytes this rank holds, by what for; and the bytes its collectives within the node have read and written so far."""
        engine = self._member.engine
        node = dict(zip(("node_read_bytes", "node_written_bytes"), engine.traffic, strict=True))
        return {**engine.memory(), "registered_bytes": engine.registered_bytes, **node, **self._devices.memory()}

    def explain(self) -> str:
        """Which transport carries what, and why."""
        member = self._member
        said = verbs.explain(member.options, member.between_nodes, member.topology, member.rank)
        return f"{said}\n{self._devices.explain()}"

    def reset(self) -> None:
        """After an error: all ranks call it, and the communicator works again."""
        self._epoch += 1
        self._devices.close()
        spoke, seconds = self._member.spoke, self._member.options.start_timeout_s
        spoke.gather(f"stopped-{self._epoch}", True, seconds, despite_abort=True)
        self._job.new_epoch()  # nobody of the old epoch is left to abort
        self._ready.clear()
        self._member.reset(self._epoch)
        spoke.gather(f"reset-{self._epoch}", True, seconds, despite_abort=True)

    def close(self) -> None:
        """Leaves the job; idempotent. Collectives of other ranks with this one end in PeerLostError only if it died."""
        if self._closed:
            return
        self._closed = True
        self._ready.clear()
        self._devices.close()
        self._job.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Communicator rank {self.rank} of {self.size}{', closed' if self._closed else ''}>"


__all__ = ["Communicator", "Work", "empty"]
