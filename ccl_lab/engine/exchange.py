"""all_to_allv whose sizes are known only when it starts, and its persistent form, as a rank calls them.

Is: `all_to_allv_dynamic` and `all_to_allv_init` of a Communicator (NCCLX, arXiv 2510.20171: AllToAllvDynamic, persistent
collectives), over any transport, on host memory. Is not: routing of tokens (moe.py), and not the reading of counts: that is
native (native/src/exec/exchange.hpp), when the collective's turn has come.

    split lengths        what splits of the send buffer hold, in rows; written by a router, perhaps after the call was posted
    ids, blocks          the first blocks[0] of `ids` name the splits that go to the first rank, in that order, and so on

Invariants: arrays that a call was given are kept until it has ended; the receive buffer keeps what it held behind the rows that
came; a persistent exchange that was freed is never used again, on any rank.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import AbortedError, CclError, DtypeError, ShapeError, UsageError
from ..ir import DType, collectives
from . import device_arrays
from .buffers import as_array, as_bytes
from .hub import cancelled, same_culprit
from .lower import nics_of
from .work import Work

if TYPE_CHECKING:
    from .member import Member
    from .moe import MoE

MAX_SHAPES = 32  # of calls that are not persistent; the one not used for longest is made again
NO_HANDLES = np.zeros(0, np.uint64)
REASON_S = 2.0


class Received(NamedTuple):
    """What came, by rank of the group: its rows lie in buffers[s, :rows[s]], in the order in which it named its splits."""

    buffers: np.ndarray  # [ranks, capacity, ...]; behind the rows that came: what was there before
    lengths: np.ndarray  # int64[ranks, splits]: the split lengths of every sender
    rows: np.ndarray  # int64[ranks]: how many rows came


class Shape(NamedTuple):
    """What all ranks of a group must agree on; how many rows each of them has is its own business."""

    row: tuple[int, ...]
    dtype: str
    n_splits: int
    capacity: int
    group: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.row) * collectives.itemsize(self.dtype)

    def agreed(self) -> int:
        """A number that differs where ranks do not agree."""
        text = f"all_to_allv_dynamic {self.row} {self.dtype} {self.n_splits} {self.capacity} {self.group}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


class Native:
    """The native exchange of one shape, and the ways it takes."""

    def __init__(self, member: Member, shape: Shape, interleaved: bool) -> None:
        group = np.array(shape.group, np.int64)
        channel = group + member.rank  # the same seen from both ends, and neighbours take different NICs
        nic, peer_nic = nics_of(member.topology, member.rank, group, channel)
        node_of = member.topology.node_of
        far = group != member.rank
        if member.options.transport != "tcp":
            far &= node_of[group] != node_of[member.rank]
        self._member = member
        self._links = list(zip(group[far].tolist(), nic[far].tolist(), peer_nic[far].tolist(), strict=True))
        self._epoch = -1
        self.shape = shape
        self.handle = member.engine.compile_exchange(
            plan_hash=shape.agreed(), dtype=int(DType[shape.dtype]), row_bytes=max(shape.row_bytes, 1),
            capacity_bytes=shape.capacity * shape.row_bytes, n_splits=shape.n_splits,
            group=list(shape.group), nic=nic.tolist(), peer_nic=peer_nic.tolist(), interleaved=interleaved,
        )  # fmt: skip

    def connect(self) -> None:
        """Every way, once in an epoch."""
        if self._epoch != self._member.epoch:
            self._member.connect(self._links)
            self._epoch = self._member.epoch

    def headers(self, memory: np.ndarray) -> np.ndarray:
        """int64[ranks, 1 + splits + 1] over `memory`, in which they lie: tag, lengths, and the rows that came."""
        n, width = len(self.shape.group), 8 * (self.shape.n_splits + 2)
        begin = self.handle.lengths_offset(0)
        stride = self.handle.lengths_offset(1) - begin
        return np.lib.stride_tricks.as_strided(memory[begin : begin + 8].view(np.int64), (n, width // 8), (stride, 8))

    def buffers(self, memory: np.ndarray) -> np.ndarray:
        """The receive buffers in `memory`: [ranks, capacity, *row]."""
        shape = self.shape
        begin, n = self.handle.data_offset(0), len(shape.group)
        if n * shape.capacity * shape.row_bytes == 0:
            return np.empty((n, shape.capacity, *shape.row), collectives.numpy_dtype(shape.dtype))
        first = memory[begin : begin + shape.capacity * shape.row_bytes].view(collectives.numpy_dtype(shape.dtype))
        one = first.reshape(shape.capacity, *shape.row)
        return np.lib.stride_tricks.as_strided(one, (n, *one.shape), (self.handle.data_offset(1) - begin, *one.strides))


class Exchanging:
    """What a Communicator has of this; its base class."""

    rank: int
    size: int
    _member: Member
    _devices: Any
    _closed: bool
    _coll_id: int
    _moving: list[Any]
    _failed: Callable[..., Any]
    _seconds: Callable[[Any], float]
    _n_exchanges = 0  # persistent ones made so far: the same on all ranks

    def all_to_allv_dynamic(
        self, x: Any, lengths: Any, ids: Any, blocks: Any, *, capacity: int | None = None, out: Any = None, timeout: Any = None,
        async_op: bool = False,
    ) -> Any:  # fmt: skip
        """Sends splits of x to whom `ids` and `blocks` say; sizes are read when the collective starts. Returns Received.

        x: [rows, ...], the splits one behind the other. lengths: int32 or int64[splits], rows of each; they may be written, as may
        ids and blocks, until everything that was posted before this call has ended. ids: integers, the split ids for rank 0, then
        for rank 1, ...; an id may come several times. blocks: integers[size], how many ids are for each rank. capacity: rows that
        a rank takes from one sender, the same on all ranks; default: that of out, else the rows of x. out: [size, capacity, ...].

        On a GPU: x, and out, and any of lengths, ids and blocks, which are read when the stream of x has come to the call; what is
        received is there too.

        Raises ShapeError where lengths exceed x, or rows for a rank its capacity; UsageError for an id that is no split;
        DtypeError for counts that are not integers. On all ranks, once one has found it. Memory of `empty` moves in place.
        Cost: a put per rank for lengths and one for each run of splits (at most 8, else they are gathered first).
        """
        if not isinstance(x, np.ndarray) and device_arrays.any_of(x, lengths, ids, blocks):
            return self._devices.staged.exchange(
                self, x, lengths, ids, blocks, capacity=capacity, out=out, timeout=timeout, async_op=async_op
            )
        array = as_array(x, "x")
        counts = _counts(lengths, ids, blocks, self.rank)
        if array.ndim == 0:
            raise no_rows(self.rank)
        if out is not None:
            out = as_array(out, "out", writable=True)
            check_out(out, array, self.size, capacity, self.rank)
            capacity = out.shape[1]
        capacity = len(array) if capacity is None else capacity
        shape = Shape(array.shape[1:], array.dtype.name, len(counts[0]), capacity, tuple(range(self.size)))
        native, scratches = self._shape(shape)
        scratch = scratches.pop() if scratches else self._member.empty(max(native.handle.scratch_bytes, 1))[1]
        receive, mine = self._receive_buffer(native, out)

        def finish() -> Received:
            found = native.headers(scratch).copy()
            scratches.append(scratch)
            came = native.buffers(receive)
            if out is not None and not mine:
                for place, rows in enumerate(found[:, -1]):
                    out[place, :rows] = came[place, :rows]
            return Received(came if out is None else out, found[:, 1:-1], found[:, -1])

        return self._exchange(native, array, receive, scratch, counts, NO_HANDLES, finish, timeout, async_op)

    def all_to_allv_init(
        self, shape: tuple[int, ...], dtype: Any, n_splits: int, *, capacity: int | None = None, group: Sequence[int] | None = None
    ) -> PersistentExchange:
        """An all_to_allv_dynamic that will be run many times; all ranks call this. Its buffers are made, and all are told where, once.

        shape, dtype: of what every `exec` will send, (rows, ...). n_splits: lengths of an exec. group: the ranks among whom it runs, in
        their order, with this one (default: all); every rank calls init, those of different groups each with its own.
        """
        members = tuple(range(self.size) if group is None else map(int, group))
        sizes = tuple(map(int, shape))
        if not sizes or min(sizes) < 0 or n_splits < 1 or (capacity is not None and capacity < 0):
            raise ShapeError(
                f"all_to_allv_init on rank {self.rank}: shape {sizes}, n_splits {n_splits}, capacity {capacity}: expected (rows, ...), "
                "at least one split, and no negative number.", rank=self.rank,
            )  # fmt: skip
        name = collectives.dtype_name(np.dtype(dtype) if dtype != "bfloat16" else collectives.numpy_dtype(dtype))
        made = Shape(sizes[1:], name, int(n_splits), sizes[0] if capacity is None else int(capacity), members)
        return PersistentExchange(self, sizes[0], made)

    def moe(self, **options: Any) -> MoE:
        """Dispatch and combine of a mixture of experts; all ranks call this with the same options, which are those of `MoE`."""
        from .moe import MoE

        return MoE(self, **options)

    # -- how

    def _shape(self, shape: Shape) -> tuple[Native, list[np.ndarray]]:
        """The exchange of a shape, and SCRATCH that is free; kept for calls to come."""
        kept: OrderedDict[Shape, tuple[Native, list[np.ndarray]]] = self.__dict__.setdefault("_exchanges", OrderedDict())
        if shape not in kept:
            kept[shape] = (Native(self._member, shape, interleaved=False), [])
            if len(kept) > MAX_SHAPES:
                kept.popitem(last=False)
        kept.move_to_end(shape)
        return kept[shape]

    def _receive_buffer(self, native: Native, out: np.ndarray | None) -> tuple[np.ndarray, bool]:
        """Registered bytes to receive into, and whether they are what the caller gets."""
        nbytes = native.handle.output_bytes
        if out is not None:
            view = as_bytes(out)
            if nbytes and self._member.engine.arena_offset_of(view.ctypes.data, nbytes) >= 0:
                return view, True
        return self._member.empty(max(nbytes, 1))[1][:nbytes], out is None

    def _let_go(self) -> None:
        """What ended works moved is not held any more."""
        self._moving = [held for held in self._moving if not held[0].done()]

    def _exchange(
        self, native: Native, x: np.ndarray, receive: np.ndarray, scratch: np.ndarray, counts: tuple[np.ndarray, ...],
        handles: np.ndarray, finish: Callable[[], Received], timeout: Any, async_op: bool, tag: int = 0,
    ) -> Any:  # fmt: skip
        if self._closed:
            raise UsageError(f"this communicator (rank {self.rank}) is closed; call ccl_lab.init() again.")
        native.connect()
        self._coll_id += 1
        try:
            started = self._member.engine.start_exchange(
                native.handle, as_bytes(x), receive, scratch[: native.handle.scratch_bytes], *counts, handles,
                tag=tag, coll_id=self._coll_id, timeout_s=self._seconds(timeout), caller_waits=not async_op,
            )  # fmt: skip
        except AbortedError as error:  # an earlier collective failed, here or elsewhere
            raise self._member.spoke.first_reason(REASON_S) or error from error
        held = (started, x, counts, receive, scratch)
        if not async_op:
            return self._wait(held, finish)
        self._let_go()
        self._moving.append(held)

        def ended() -> Received:
            self._let_go()
            return finish()

        return Work(started, ended, self._failed, f"all_to_allv_dynamic #{self._coll_id} on rank {self.rank}")

    def _wait(self, held: tuple[Any, ...], finish: Callable[[], Received]) -> Received:
        try:
            held[0].wait(-1.0)
        except CclError as error:
            first = self._failed(error)
            if same_culprit(first, error):
                raise
            raise first from error
        except KeyboardInterrupt:
            self._moving.append(held)  # it is told to end, and may not have ended yet
            self._failed(cancelled("interrupted from the keyboard", f"all_to_allv_dynamic on rank {self.rank}"))
            raise
        return finish()


class PersistentExchange:
    """An exchange among `group` whose memory every rank of it knows: made by `Communicator.all_to_allv_init`.

    send: this rank's send buffer, registered, for whoever has no other. A rank writes into the memory of the others as soon as it
    starts, and asks nobody: two sets of buffers take turns, so that what it writes in one run was last read two runs ago.
    """

    def __init__(self, comm: Any, rows: int, shape: Shape) -> None:
        self._comm, self.rows, self.shape, member = comm, rows, shape, comm._member
        if comm.rank not in shape.group:
            raise UsageError(f"group {shape.group} of all_to_allv_init: expected this rank, {comm.rank}, among them.", rank=comm.rank)
        self._native = Native(member, shape, interleaved=True)
        self.group = shape.group
        dtype = collectives.numpy_dtype(shape.dtype)
        self.send = comm.empty((rows, *shape.row), shape.dtype)
        nbytes = self._native.handle.output_bytes
        made = [member.empty(max(nbytes, 1)) for _ in range(2)]
        self._receive = [memory[:nbytes] for _, memory in made]
        self._scratch = member.empty(max(self._native.handle.scratch_bytes, 1))[1]
        self._headers = [self._native.headers(memory) for memory in self._receive]
        self._results = [
            Received(self._native.buffers(memory), headers[:, 1:-1], headers[:, -1])
            for memory, headers in zip(self._receive, self._headers, strict=True)
        ]
        self._dtype, self._runs, self._epoch, self._freed = dtype, 0, member.epoch, False
        comm._n_exchanges += 1
        self._tag = comm._n_exchanges << 40  # and the number of the run: what a rank sends in another exchange, or run, has another one
        self._handles = self._agree([offset for offset, _ in made])

    def _agree(self, offsets: list[int]) -> list[np.ndarray]:
        """Where everybody's buffers are, by turn. ShapeError where a rank of the group has made another exchange."""
        mine = np.array([self.shape.agreed(), *offsets], np.uint64).view(np.int64)
        all_of_them = self._comm.all_gather(mine).view(np.uint64)
        for rank in self.group:
            if all_of_them[rank, 0] != all_of_them[self._comm.rank, 0]:
                raise ShapeError(
                    f"all_to_allv_init: rank {rank} and rank {self._comm.rank} differ in row, dtype, splits, capacity or group; "
                    f"here {self.shape}. Pass the same on every rank of the group.",
                    rank=rank,
                )
        return [np.ascontiguousarray(all_of_them[list(self.group), 1 + turn]) for turn in range(2)]

    def exec(self, x: Any = None, *, lengths: Any, ids: Any, blocks: Any, timeout: Any = None, async_op: bool = False) -> Any:
        """Runs it: as all_to_allv_dynamic, with blocks by place in the group. x: default `send`. What it returns holds until the next
        exec is called. Raises UsageError after `free`, ShapeError or DtypeError where x is not as it was at init.
        """
        if self._freed:
            raise UsageError("this exchange was freed; make another one with all_to_allv_init.", rank=self._comm.rank)
        array = self.send if x is None else self._checked(as_array(x, "x"))
        counts = _counts(lengths, ids, blocks, self._comm.rank)
        if self._epoch != self._comm._member.epoch:  # all ranks were reset: they begin again together
            self._epoch, self._runs = self._comm._member.epoch, 0
        turn, tag = self._runs & 1, self._tag + self._runs
        self._runs += 1
        return self._comm._exchange(
            self._native, array, self._receive[turn], self._scratch, counts, self._handles[turn], lambda: self._result(turn, tag),
            timeout, async_op, tag,
        )  # fmt: skip

    def _result(self, turn: int, tag: int) -> Received:
        """What came, all of it of this very run; UsageError on all ranks else."""
        tags = self._headers[turn][:, 0]
        if (tags != tag).any():
            other = self.group[int(np.argmax(tags != tag))]
            error = UsageError(
                f"ranks disagree about what they run: rank {self._comm.rank} is in exec {tag & (1 << 40) - 1} of {self}; rank {other} "
                "was in another exchange, or another exec of it. Call the same ones in the same order on every rank.",
                rank=other,
            )
            raise self._comm._failed(error)
        return self._results[turn]

    def _checked(self, array: np.ndarray) -> np.ndarray:
        if array.dtype != self._dtype:
            raise DtypeError(f"x of exec on rank {self._comm.rank}: expected {self._dtype} as at init, found {array.dtype}.")
        want = (self.rows, *self.shape.row)
        if array.shape != want:
            raise ShapeError(f"x of exec on rank {self._comm.rank}: expected shape {want} as at init, found {array.shape}.")
        return array

    def free(self) -> None:
        """Gives its memory back, once all ranks of the communicator have called this; idempotent. Results that are still held stay."""
        if self._freed:
            return
        self._freed = True
        try:
            if not self._comm._closed:
                self._comm.barrier()  # nobody writes here any more
        finally:
            self._comm._let_go()
            self.send = self._scratch = np.empty(0)
            self._receive, self._headers, self._results, self._handles = [], [], [], []

    def __enter__(self) -> PersistentExchange:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            self.free()
        self._freed = True

    def __repr__(self) -> str:
        return f"<PersistentExchange among {self.group}, capacity {self.shape.capacity} rows{', freed' if self._freed else ''}>"


def _counts(lengths: Any, ids: Any, blocks: Any, rank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Flat arrays over the memory that will be read; lists become arrays."""
    return integers(lengths, "lengths", rank), integers(ids, "ids", rank), integers(blocks, "blocks", rank)


def integers(value: Any, name: str, rank: int) -> np.ndarray:
    """A flat array over the memory of `value`; a list becomes one. Raises DtypeError for what is not int32 or int64."""
    if isinstance(value, np.ndarray) and value.dtype == np.int64 and value.ndim == 1 and value.flags.c_contiguous:
        return value
    array = np.asarray(value, np.int64) if isinstance(value, (list, tuple)) else as_array(value, name)
    if array.dtype not in (np.int32, np.int64):
        raise DtypeError(f"{name} on rank {rank}: expected int32 or int64, found {array.dtype}.", rank=rank)
    return array.reshape(-1)


def no_rows(rank: int) -> ShapeError:
    """x has no dimension along which rows could lie."""
    return ShapeError(f"x of all_to_allv_dynamic on rank {rank}: expected rows, found a number.", rank=rank)


def check_out(out: Any, x: Any, size: int, capacity: int | None, rank: int) -> None:
    """ShapeError where `out`, on the host or a GPU like x, cannot take what comes."""
    fits = out.ndim == x.ndim + 1 and out.shape[0] == size and out.shape[2:] == x.shape[1:] and out.dtype == x.dtype
    if not fits or capacity not in (None, out.shape[1]):
        rows = "capacity" if capacity is None else capacity
        raise ShapeError(
            f"out of all_to_allv_dynamic on rank {rank}: expected {x.dtype} of shape ({size}, {rows}, *{x.shape[1:]}), found "
            f"{out.dtype} of shape {out.shape}.", rank=rank,
        )  # fmt: skip
    if out.ctypes.data < x.ctypes.data + x.nbytes and x.ctypes.data < out.ctypes.data + out.nbytes:
        raise ShapeError(f"x and out of all_to_allv_dynamic on rank {rank} overlap: pass an out of its own.", rank=rank)


