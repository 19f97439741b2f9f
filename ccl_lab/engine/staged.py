"""Collectives on arrays of a GPU that the host runs: where ranks share no memory, and where sizes are read on the way.

Is: device memory to pinned memory, the collective of the host over its rails, and back, in the order of the user's stream
(NCCLX, arXiv 2510.20171: host-driven collectives behind a stall flag); or the same without the copies, where NICs reach the arrays
(direct.py). Is not: the way within a node (devices.py), nor the streams (held.py). Invariants: results are bit for bit those of the
host's collectives; a call returns when it is enqueued; calls are run in the order in which they were made, among those on arrays of
the host too, which therefore wait for the streams of those before them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import units
from ..errors import CclError, DtypeError, UsageError
from ..ir import Schedule, collectives
from . import device_arrays, exchange
from .device_arrays import DeviceArray
from .direct import Direct, Way
from .held import HeldStream
from .shapes import layout_of, message_nbytes

if TYPE_CHECKING:
    from .member import Member

MAX_PLANS = 256
Start = Callable[[Any], Any]  # of a hold: the work of the engine that it holds back
NO_HANDLES = np.zeros(0, np.uint64)


class Staged:
    """One rank's staged collectives. `planned`: a proved schedule; `told`: an error as all ranks get it; `made`: of works."""

    def __init__(
        self, member: Member, planned: Callable[..., Schedule], told: Callable[[CclError], CclError],
        failed: Callable[[CclError], CclError], made: Callable[..., Any], library: Callable[[], str],
    ) -> None:  # fmt: skip
        self._member, self._planned, self._told, self._failed = member, planned, told, failed
        self._made, self._library = made, library
        self._plans: OrderedDict[tuple[Any, ...], Schedule] = OrderedDict()
        self._held: HeldStream | None = None
        self.direct = Direct(member, library)
        self._coll_id = 0

    @property
    def session(self) -> Any:
        """What knows which runs have ended."""
        if self._held is None:
            raise UsageError(f"on rank {self._member.rank} this call was made before a reset, or the end, of its communicator.")
        return self._held.native

    def call(
        self, collective: str, source: Any, target: Any, *, redop: str, root: int, peer: int, counts: Any, algorithm: str, timeout: Any,
        async_op: bool,
    ) -> Any:  # fmt: skip
        """As `Devices.call`. Cost: each message is copied twice on this rank, and pinned as often; not at all where NICs reach it."""
        member = self._member
        some = source if source is not None else target
        dtype = collectives.dtype_name(some.dtype)
        size = member.topology.n_ranks
        nbytes = message_nbytes(collective, member.rank, size, source, target, dtype=dtype, root=root, peer=peer, counts=counts)
        schedule = self._schedule(collective, nbytes, algorithm, dtype, redop, root, peer, counts)
        layout = layout_of(schedule, member.rank, source, target, counts)
        held = self._open(some)
        way = self._way(held, schedule, layout, source, target, some.ordinal or 0)
        program = member.program(schedule, layout, redop, fused=False, keeps=way is None)
        seconds = self._seconds(timeout)

        def start_on(views: Sequence[Any]) -> Start:
            return lambda hold: member.engine.start(program, *views, coll_id=self._coll_id, timeout_s=seconds, stall=hold)

        if way is None:
            number = self._through_host(held, start_on, schedule, source, target, some.stream)
        else:
            number = self._run(held, some.stream, (), (), (), start_on(way.views), (source, target), way.kept, True)
        result = None if target is None else target.owner
        return self._made(self, number, result, f"{collective} #{self._coll_id} on rank {member.rank}") if async_op else result

    def _way(self, held: HeldStream, schedule: Schedule, layout: Any, source: Any, target: Any, ordinal: int) -> Way | None:
        try:
            return self.direct.way(schedule, layout, source, target, ordinal, held.quiet())
        except CclError as error:
            raise self._told(error) from error

    def _through_host(
        self, held: HeldStream, start_on: Callable[[Sequence[Any]], Start], schedule: Schedule, source: Any, target: Any, stream: int
    ) -> int:
        into_host, from_host, pinned = [], [], []
        views: list[np.ndarray | None] = []
        for name, array in (("x", source), ("out", target)):
            if array is None or (name == "x" and schedule.in_place and target is not None):
                views.append(None)
                continue
            memory = self._pinned(array.nbytes)
            pinned.append(memory)
            views.append(memory[: array.nbytes])
            what = f"{name} of rank {self._member.rank}"
            if name == "out":
                from_host.append((array, memory.ctypes.data, what))
            if name == "x" or schedule.in_place:
                into_host.append((source if source is not None and schedule.in_place else array, memory.ctypes.data, what))

        return self._run(held, stream, into_host, from_host, pinned, start_on(views), (source, target, views))

    def _schedule(
        self, collective: str, nbytes: int, algorithm: str, dtype: str, redop: str, root: int, peer: int, counts: np.ndarray | None
    ) -> Schedule:
        key = (collective, algorithm, nbytes, dtype, redop, root, peer, None if counts is None else counts.tobytes())
        schedule = self._plans.get(key)
        if schedule is None:
            schedule = self._planned(
                collective, nbytes, algorithm, dtype=dtype, redop=redop, in_place=False, root=root, peer=peer, counts=counts
            )
            self._plans[key] = schedule
            if len(self._plans) > MAX_PLANS:
                self._plans.popitem(last=False)
        return schedule

    def exchange(
        self, comm: Any, x: Any, lengths: Any, ids: Any, blocks: Any, *, capacity: int | None, out: Any, timeout: Any, async_op: bool
    ) -> Any:
        """`all_to_allv_dynamic` with x on a GPU; lengths, ids and blocks there or on the host, read when the stream has come to it.

        What is received is on the GPU: buffers, and int64 lengths and rows, good for the stream of x.
        """
        rank, size = self._member.rank, self._member.topology.n_ranks
        array = device_arrays.find(x, "x")
        if array is None:
            raise _apart("x", "its counts are", rank)
        shape, target = self._shape(array, lengths, capacity, out, rank, size)
        native, _ = comm._shape(shape)
        held = self._open(array)
        n_splits, pinned, into_host = shape.n_splits, [], []

        def mine(nbytes: int) -> np.ndarray:
            pinned.append(self._pinned(nbytes))
            return pinned[-1][:nbytes]

        send, receive = mine(array.nbytes), mine(native.handle.output_bytes)
        scratch = mine(native.handle.scratch_bytes)
        into_host.append((array, send.ctypes.data, f"x of rank {rank}"))
        counts = []
        for name, value in (("lengths", lengths), ("ids", ids), ("blocks", blocks)):
            there = device_arrays.find(value, name)
            if there is None:
                counts.append(exchange.integers(value, name, rank))
                continue
            if there.dtype not in (np.int32, np.int64):
                raise DtypeError(f"{name} on rank {rank}: expected int32 or int64, found {there.dtype}.", rank=rank)
            memory = mine(there.nbytes)
            into_host.append((there, memory.ctypes.data, f"{name} of rank {rank}"))
            counts.append(memory.view(there.dtype))
        received = target if target is not None else array.fresh((size, shape.capacity, *shape.row))
        if target is not None:  # behind the rows that come it stays as it is
            into_host.append((target, receive.ctypes.data, f"out of rank {rank}"))
        came = array.fresh((size, n_splits), np.dtype(np.int64)), array.fresh((size,), np.dtype(np.int64))
        from_host = [(received, receive.ctypes.data, f"out of rank {rank}")]
        for place in range(size):
            at = scratch.ctypes.data + native.handle.lengths_offset(place) + 8
            from_host.append((came[0].part(place * n_splits, n_splits), at, f"received lengths of rank {rank}"))
            from_host.append((came[1].part(place, 1), at + 8 * n_splits, f"received rows of rank {rank}"))
        native.connect()

        def start(hold: Any) -> Any:
            return self._member.engine.start_exchange(
                native.handle, send, receive, scratch, *counts, NO_HANDLES, tag=0, coll_id=self._coll_id,
                timeout_s=self._seconds(timeout), caller_waits=False, stall=hold,
            )  # fmt: skip

        number = self._run(held, array.stream, into_host, from_host, pinned, start, (counts, scratch))
        result = exchange.Received(received.owner, came[0].owner, came[1].owner)
        return self._made(self, number, result, f"all_to_allv_dynamic #{self._coll_id} on rank {rank}") if async_op else result

    def _shape(
        self, array: DeviceArray, lengths: Any, capacity: int | None, out: Any, rank: int, size: int
    ) -> tuple[exchange.Shape, DeviceArray | None]:
        if array.ndim == 0:
            raise exchange.no_rows(rank)
        target = None if out is None else device_arrays.find(out, "out")
        if out is not None and target is None:
            raise _apart("out", "x is", rank)
        if target is not None:
            exchange.check_out(target, array, size, capacity, rank)
            capacity = target.shape[1]
        counted = device_arrays.find(lengths, "lengths")
        n_splits = counted.size if counted is not None else exchange.integers(lengths, "lengths", rank).size
        capacity = array.shape[0] if capacity is None else capacity
        name = collectives.dtype_name(array.dtype)
        return exchange.Shape(array.shape[1:], name, n_splits, capacity, tuple(range(size))), target

    # -- how

    def _seconds(self, timeout: Any) -> float:
        return self._member.options.timeout_s if timeout is None else units.parse_duration(timeout)

    def _pinned(self, nbytes: int) -> np.ndarray:
        assert self._held is not None
        try:
            return self._held.pinned(nbytes)
        except CclError as error:
            raise self._told(error) from error

    def _open(self, array: DeviceArray) -> HeldStream:
        """At the first call: the stage on the GPU of its array. An array that does not say which is taken to be on GPU 0."""
        if self._held is None:
            try:
                self._held = HeldStream(self._member, array.ordinal or 0, self._library(), self._failed)
            except CclError as error:
                raise self._told(error) from None
        return self._held

    def _run(self, held: HeldStream, *run: Any) -> int:
        self._coll_id += 1
        try:
            return held.run(*run)
        except CclError as error:
            raise self._told(error) from error

    def wait(self, number: int, seconds: float) -> bool:
        """True once run `number` has ended on the GPU."""
        try:
            return bool(self.session.wait(number, seconds))
        except CclError as error:
            raise self._told(error) from error

    def memory(self) -> dict[str, int]:
        """Bytes of the host that are pinned for it."""
        return {} if self._held is None else {"pinned_bytes": int(self.session.pinned_bytes), **self.direct.memory()}

    def close(self) -> None:
        """Waits for what is on the stream, and gives everything back; the next call begins anew."""
        held, self._held = self._held, None
        if held is not None:
            held.close()
        self.direct.close()


def _apart(what: str, others: str, rank: int) -> UsageError:
    return UsageError(
        f"{what} of all_to_allv_dynamic on rank {rank} is memory of the host, {others} on a GPU: pass all of it on one GPU.", rank=rank
    )
