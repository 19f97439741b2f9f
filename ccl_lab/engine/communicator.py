"""The collectives of one rank in a job: what `ccl_lab.init()` returns.

Is: torch-named collectives on arrays, planned and proved once per shape, run by the native engine. Is not: a launcher.
Invariants: ranks call the same collectives in the same order; an error on one rank ends the call on all of them; results
land in `out` (a new array unless given), inputs are only changed where `out` is the input.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import units
from ..errors import AbortedError, CclError, OpTimeout, ShapeError, UsageError
from ..ir import Schedule, collectives
from ..ir.layout import Layout
from ..planner import plan
from ..trace import Trace
from ..verifier import verify
from .buffers import Staging, as_array, as_bytes
from .hub import cancelled
from .join import Job

MAX_PLANS = 256
REASON_S = 2.0  # how long a failed rank waits to hear whose error was first


class Work:
    """A collective in progress on this rank."""

    def __init__(
        self, native: Any, finish: Callable[[], Any], failed: Callable[[CclError], CclError], what: str
    ) -> None:
        self._native, self._finish, self._failed, self._what = native, finish, failed, what
        self._result: Any = None
        self._ended = False

    def done(self) -> bool:
        """True once it has ended on this rank, well or not."""
        return bool(self._native.done())

    def wait(self, timeout: units.Duration | None = None) -> Any:
        """The output array. Raises the collective's error, or OpTimeout if it is still going after `timeout` (it goes on)."""
        if self._ended:
            return self._result
        seconds = -1.0 if timeout is None else units.parse_duration(timeout)
        try:
            ended = self._native.wait(seconds)
        except CclError as error:
            first = self._failed(error)
            if type(first) is type(error):
                raise
            raise first from error
        if not ended:
            raise OpTimeout(
                f"{self._what} is still going after {seconds:g} s; it goes on until its deadline. Wait again, or cancel()."
            )
        self._result, self._ended = self._finish(), True
        return self._result

    result = wait

    def cancel(self, reason: str = "work.cancel()") -> None:
        """Ends it on every rank with AbortedError."""
        if not self.done():
            self._failed(cancelled(reason, self._what))

    def __repr__(self) -> str:
        return f"<Work {self._what}: {'done' if self.done() else 'running'}>"


class Communicator:
    """Rank `rank` of `size`. Made by `ccl_lab.init()`; close it, or use it as a context manager."""

    def __init__(self, job: Job) -> None:
        self._job, member = job, job.member
        self._member = member
        self.rank, self.size, self.topology = member.rank, member.topology.n_ranks, member.topology
        self._staging = Staging(member)
        self._plans: OrderedDict[tuple[Any, ...], Schedule] = OrderedDict()
        self._coll_id, self._epoch, self._closed = 0, 0, False

    # -- collectives

    def all_reduce(self, x: Any, op: str = "sum", *, out: Any = None, **options: Any) -> Any:
        """Reduces `x` over all ranks; every rank gets the result, of x's shape. `out=x` reduces in place.

        Options of every collective: algorithm="auto", timeout=None, async_op=False (True returns a Work).
        """
        array = as_array(x, "x")
        return self._call("all_reduce", array, self._out(out, array.shape, array.dtype), redop=op, **options)

    def all_gather(self, x: Any, *, out: Any = None, **options: Any) -> Any:
        """Every rank gets all x, stacked by rank: shape [size, *x.shape]."""
        array = as_array(x, "x")
        return self._call(
            "all_gather", array, self._out(out, (self.size, *array.shape), array.dtype), **options
        )

    def reduce_scatter(self, x: Any, op: str = "sum", *, out: Any = None, **options: Any) -> Any:
        """Rank r gets the reduction of x[r]; x has shape [size, ...]."""
        array = self._blocked(as_array(x, "x"))
        return self._call(
            "reduce_scatter", array, self._out(out, array.shape[1:], array.dtype), redop=op, **options
        )

    def broadcast(self, x: Any, root: int = 0, *, out: Any = None, **options: Any) -> Any:
        """Every rank gets the root's x; on other ranks x gives shape and dtype and is overwritten unless `out` is given."""
        array = as_array(x, "x", writable=out is None and self.rank != root)
        target = self._out(out, array.shape, array.dtype) if out is not None else array
        return self._call("broadcast", array if self.rank == root else None, target, root=root, **options)

    def reduce(self, x: Any, root: int = 0, op: str = "sum", *, out: Any = None, **options: Any) -> Any:
        """The root gets the reduction of all x; other ranks get None."""
        array = as_array(x, "x")
        target = self._out(out, array.shape, array.dtype) if self.rank == root else None
        return self._call("reduce", array, target, redop=op, root=root, **options)

    def gather(self, x: Any, root: int = 0, *, out: Any = None, **options: Any) -> Any:
        """The root gets all x, stacked by rank: shape [size, *x.shape]; other ranks get None."""
        array = as_array(x, "x")
        target = self._out(out, (self.size, *array.shape), array.dtype) if self.rank == root else None
        return self._call("gather", array, target, root=root, **options)

    def scatter(self, x: Any, root: int = 0, *, out: Any, **options: Any) -> Any:
        """Rank r gets x[r] of the root in `out`; x is ignored on other ranks (pass None)."""
        target = as_array(out, "out", writable=True)
        source = self._blocked(as_array(x, "x")) if self.rank == root else None
        return self._call("scatter", source, target, root=root, **options)

    def all_to_all(self, x: Any, *, out: Any = None, **options: Any) -> Any:
        """Rank r gets x[r] of every rank, by rank; x and the result have shape [size, ...]."""
        array = self._blocked(as_array(x, "x"))
        return self._call("all_to_all", array, self._out(out, array.shape, array.dtype), **options)

    def all_to_allv(self, x: Any, counts: Any, *, out: Any = None, **options: Any) -> Any:
        """counts[d] elements of the flat x go to rank d; returns what came, by rank, flat. Ranks exchange their counts first."""
        array = as_array(x, "x").reshape(-1)
        mine = np.ascontiguousarray(counts, np.int64)
        if mine.shape != (self.size,) or (mine < 0).any() or mine.sum() != array.size:
            raise ShapeError(
                f"counts of all_to_allv on rank {self.rank}: expected {self.size} non-negative numbers that add up to "
                f"{array.size}, found {mine.tolist() if mine.size < 64 else mine.shape}.",
                rank=self.rank,
            )
        matrix = self.all_gather(mine)
        target = self._out(out, (int(matrix[:, self.rank].sum()),), array.dtype)
        return self._call("all_to_allv", array, target, counts=matrix, **options)

    def send(self, x: Any, peer: int, **options: Any) -> Any:
        """Sends x to `peer`, which calls recv."""
        self._call("send_recv", as_array(x, "x"), None, root=self.rank, peer=self._other(peer), **options)

    def recv(self, out: Any, peer: int, **options: Any) -> Any:
        """Receives into `out` what `peer` sends."""
        return self._call(
            "send_recv",
            None,
            as_array(out, "out", writable=True),
            root=self._other(peer),
            peer=self.rank,
            **options,
        )

    def barrier(self, **options: Any) -> Any:
        """No rank returns before all have entered."""
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
    ) -> Any:
        """Runs a schedule of your own, proved first: `x` is this rank's INPUT, `out` its OUTPUT, flat arrays (None: none)."""
        source = None if x is None else as_array(x, "x").reshape(-1)
        target = None if out is None else as_array(out, "out", writable=True)
        layout = self._layout(schedule, source, target, counts)
        return self._start(schedule, layout, redop or schedule.redop, source, target, timeout, async_op)

    # -- how

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
        if not 0 <= root < self.size:
            raise UsageError(
                f"root {root} of {collective}: expected a rank from 0 to {self.size - 1}.", rank=self.rank
            )
        some = source if source is not None else target
        dtype = collectives.dtype_name(some.dtype) if some is not None else "uint8"
        in_place = source is not None and target is not None and _same_memory(source, target)
        nbytes = self._message_nbytes(collective, source, target, dtype, root, peer, counts)
        sizes = None if counts is None else counts.tobytes()
        key = (collective, algorithm, nbytes, dtype, redop, in_place, root, peer, sizes)
        schedule = self._plans.get(key)
        if schedule is None:
            if collective in ("broadcast", "reduce", "gather", "scatter"):
                in_place = False  # in place at the root only would be another schedule there than elsewhere
            schedule = plan(
                collective,
                self.topology,
                nbytes,
                algorithm=algorithm,
                dtype=dtype,
                redop=redop,
                in_place=in_place,
                root=root,
                peer=peer,
                counts=counts,
            )
            verify(schedule)
            self._plans[key] = schedule
            if len(self._plans) > MAX_PLANS:
                self._plans.popitem(last=False)
        layout = self._layout(schedule, source, target, counts)
        return self._start(schedule, layout, redop, source, target, timeout, async_op)

    def _message_nbytes(
        self,
        collective: str,
        source: np.ndarray | None,
        target: np.ndarray | None,
        dtype: str,
        root: int,
        peer: int,
        counts: np.ndarray | None,
    ) -> int:
        """The size of the message as all ranks see it, though some hold only a block of it: they must plan the same."""
        if counts is not None:
            return int(counts.sum()) * collectives.itemsize(dtype) // self.size
        shape = collectives.blocks(collective, self.size, root, peer)[self.rank]
        block = self._block(shape, source, target)
        return block * collectives.itemsize(dtype) * collectives.message_blocks(collective, self.size)

    def _block(self, shape: np.ndarray, source: np.ndarray | None, target: np.ndarray | None) -> int:
        """Elements per block that this rank's arrays say; `shape`: its blocks of INPUT and OUTPUT."""
        pairs = ((source, int(shape[0])), (target, int(shape[1])))
        return next((array.size // blocks for array, blocks in pairs if array is not None and blocks), 0)

    def _layout(
        self, schedule: Schedule, source: np.ndarray | None, target: np.ndarray | None, counts: Any
    ) -> Layout:
        shape = collectives.blocks(schedule.collective, self.size, schedule.root, schedule.peer)[self.rank]
        some = source if source is not None else target
        count = 0 if counts is not None else self._block(shape, source, target)
        layout = Layout(
            schedule, count, collectives.dtype_name(some.dtype) if some is not None else "uint8", counts
        )
        for name, buf, array in (("x", 0, source), ("out", 1, target)):
            want, found = layout.elements(buf, self.rank), 0 if array is None else array.size
            if want != found:
                raise ShapeError(
                    f"{name} of {schedule.collective} on rank {self.rank}: expected {want} elements, found {found}.",
                    rank=self.rank,
                )
        if source is not None and target is not None and source.dtype != target.dtype:
            raise ShapeError(
                f"out of {schedule.collective} on rank {self.rank}: expected {source.dtype} as x, found {target.dtype}.",
                rank=self.rank,
            )
        return layout

    def _start(
        self,
        schedule: Schedule,
        layout: Layout,
        redop: str,
        source: np.ndarray | None,
        target: np.ndarray | None,
        timeout: Any,
        async_op: bool,
    ) -> Any:
        if self._closed:
            raise UsageError(f"this communicator (rank {self.rank}) is closed; call ccl_lab.init() again.")
        what = f"{schedule.collective} #{self._coll_id + 1} on rank {self.rank}"
        program = self._member.program(schedule, layout, redop)
        own_in, stage_in = (None, None) if schedule.in_place else self._stage(source, fill=True)
        own_out, stage_out = self._stage(target, fill=schedule.in_place)
        self._coll_id += 1
        seconds = self._member.options.timeout_s if timeout is None else units.parse_duration(timeout)
        try:
            native = self._member.start(program, stage_in, stage_out, self._coll_id, seconds)
        except AbortedError as error:  # an earlier collective failed, here or elsewhere
            raise self._member.spoke.first_reason(REASON_S) or error from error

        def finish() -> Any:
            if own_out is not None and target is not None:
                as_bytes(target)[:] = own_out[: target.nbytes]
            for buffer in (own_in, own_out):
                if buffer is not None:
                    self._staging.give(buffer)
            return target

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
        self._member.spoke.abort(error)
        return self._member.spoke.first_reason(REASON_S) or error

    def _out(self, out: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        if out is None:
            return np.empty(shape, dtype)
        array = as_array(out, "out", writable=True)
        if array.size != int(np.prod(shape)) or array.dtype != dtype:
            raise ShapeError(
                f"out on rank {self.rank}: expected {dtype} of shape {shape}, found {array.dtype} of shape {array.shape}.",
                rank=self.rank,
            )
        return array

    def _blocked(self, array: np.ndarray) -> np.ndarray:
        if array.ndim == 0 or array.shape[0] != self.size:
            raise ShapeError(
                f"x on rank {self.rank}: expected shape [{self.size}, ...], one block per rank, found {array.shape}.",
                rank=self.rank,
            )
        return array

    def _other(self, peer: int) -> int:
        if not 0 <= peer < self.size or peer == self.rank:
            raise UsageError(
                f"peer {peer} of rank {self.rank}: expected another rank from 0 to {self.size - 1}.",
                rank=self.rank,
            )
        return peer

    # -- memory, traces, end

    def empty(self, shape: int | tuple[int, ...], dtype: str = "float32") -> np.ndarray:
        """An uninitialised array in registered memory: collectives move it without staging."""
        kind = collectives.numpy_dtype(dtype)
        nbytes = int(np.prod(shape)) * kind.itemsize
        return self._member.empty(max(nbytes, 1))[1][:nbytes].view(kind).reshape(shape)

    def trace(self) -> Trace:
        """This rank's spans since the last call."""
        meta = {
            "source": "measured",
            "n_ranks": self.size,
            "topology": self.topology.to_dict(),
            "labels": {"rank": self.rank},
        }
        records = self._member.engine.drain_spans()
        return Trace.from_records(records, self.rank, int(self.topology.node_of[self.rank]), meta)

    def memory(self) -> dict[str, int]:
        """Bytes this rank holds, by what for."""
        return dict(self._member.engine.memory())

    def reset(self) -> None:
        """After an error: all ranks call it, and the communicator works again."""
        self._epoch += 1
        spoke, seconds = self._member.spoke, self._member.options.start_timeout_s
        spoke.gather(f"stopped-{self._epoch}", True, seconds, despite_abort=True)
        self._job.new_epoch()  # nobody of the old epoch is left to abort
        self._member.reset(self._epoch)
        spoke.gather(f"reset-{self._epoch}", True, seconds, despite_abort=True)

    def close(self) -> None:
        """Leaves the job; idempotent. Collectives of other ranks with this one end in PeerLostError only if it died."""
        if self._closed:
            return
        self._closed = True
        self._job.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Communicator rank {self.rank} of {self.size}{', closed' if self._closed else ''}>"


def _same_memory(a: np.ndarray, b: np.ndarray) -> bool:
    return a.nbytes > 0 and a.ctypes.data == b.ctypes.data and a.nbytes == b.nbytes


__all__ = ["Communicator", "Work"]
