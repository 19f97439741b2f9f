"""Arrays of a GPU that NICs read and write themselves (GPUDirect), where a collective between nodes only moves bytes.

Is: whether a call can go in this way on this rank, which copies its GPU makes before, and its memory as the engine takes it. Is not:
the registration of memory (native/src/device/direct.hpp), nor the stream (held.py). Invariants: whether NICs can do it at all is
agreed by all ranks; a call that cannot, on a rank, goes through pinned memory there, which its peers need not know: where bytes are is
said by each rank in every collective; what goes another way is found out before anything is started.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import _core
from ..errors import UnsupportedError
from ..ir import Buffer, Kind, Schedule
from ..ir.layout import Layout
from .device_arrays import DeviceArray

if TYPE_CHECKING:
    from .member import Member

MAX_SCHEDULES = 256
MOVES = (Kind.put, Kind.get, Kind.signal, Kind.wait, Kind.flush, Kind.copy)


class Moves(NamedTuple):
    """What one rank does in a schedule."""

    why: str  # NICs alone cannot do it; empty: they can
    copies: np.ndarray  # rows of the op table: blocks that the rank keeps
    forwards: bool  # NICs read what NICs have written


class Way(NamedTuple):
    """A call as NICs do it."""

    views: list[Any]  # x and out as Engine.start takes them
    kept: list[tuple[int, int, int, str]]  # copies on the GPU before: to, from, bytes, what


def moves_of(schedule: Schedule, rank: int) -> Moves:
    """Whether what `rank` does is left to NICs once its GPU has copied the blocks that it keeps. Cost: a few passes over the op table."""
    ops = schedule.ops
    mine = ops.rank == rank
    copies = np.flatnonzero(mine & (ops.kind == Kind.copy))
    first = ops.src_begin[copies]

    def refused(why: str) -> Moves:
        return Moves(why, copies, False)

    if not np.isin(ops.kind[mine], MOVES).all():
        return refused("the processor sums")
    if schedule.in_place or (mine & (ops.kind == Kind.put) & (ops.peer == rank)).any():
        return refused("the processor copies in the middle of it")
    own = (ops.src_count[copies] == 1) & (ops.src_rank[first] == rank)
    if not (own & (ops.src_buf[first] == Buffer.input) & (ops.dst_buf[copies] == Buffer.output)).all():
        return refused("the processor copies in the middle of it")
    written = np.zeros(int(ops.dst_chunk.max(initial=0)) + int(ops.n_chunks.max(initial=0)) + 1, bool)
    for begin, count in zip(ops.dst_chunk[copies], ops.n_chunks[copies], strict=True):
        written[begin : begin + count] = True
    arrives = (ops.kind == Kind.put) & (ops.peer == rank) | mine & (ops.kind == Kind.get)
    for at in np.flatnonzero(arrives):
        if ops.dst_buf[at] == Buffer.input:
            return refused("it changes its input")
        if ops.dst_buf[at] == Buffer.output and written[ops.dst_chunk[at] : ops.dst_chunk[at] + ops.n_chunks[at]].any():
            return refused("what arrives and what is kept go to the same place")
    puts = np.flatnonzero(mine & (ops.kind == Kind.put))
    return Moves("", copies, bool((ops.src_buf[ops.src_begin[puts]] == Buffer.output).any()))


def overlap(source: DeviceArray | None, target: DeviceArray | None) -> bool:
    """True where x and out share bytes."""
    if source is None or target is None or not (source.nbytes and target.nbytes):
        return False
    return source.address < target.address + target.nbytes and target.address < source.address + source.nbytes


class Direct:
    """Of one rank. `library`: the CUDA driver's name; empty: libcuda.so.1."""

    def __init__(self, member: Member, library: Callable[[], str]) -> None:
        self._member, self._library = member, library
        self._memory: Any = None
        self._refused = ""  # by this GPU, for good
        self._last = ""  # why the last call that could have gone this way did not
        self._moves: dict[str, Moves] = {}

    def why_not(self) -> str:
        """Why nothing goes this way; empty where calls may."""
        return self._member.not_direct or self._refused

    def why_last(self) -> str:
        """Why the last call that only moves bytes went through pinned memory all the same; empty if none did."""
        return self._last

    def way(
        self, schedule: Schedule, layout: Layout, source: DeviceArray | None, target: DeviceArray | None, ordinal: int, quiet: bool
    ) -> Way | None:
        """None: it goes through pinned memory. quiet: no run is under way. Raises RegistrationError, UsageError or BoundsError for what
        is no memory of this GPU."""
        if self.why_not():
            return None
        moves = self._moves_of(schedule)
        if moves.why:
            return None
        if schedule.collective in ("all_to_all", "all_to_allv") and overlap(source, target):
            self._last = f"x and out of {schedule.collective} are the same memory"
            return None
        memory = self._open(ordinal)
        if memory is None:
            return None
        if moves.forwards and not memory.forwards:
            self._last = f"{schedule.algorithm} sends on what it received, and GPU {ordinal} does not say when a NIC may read it"
            return None
        rank = self._member.rank
        named = [(array, f"{name} of rank {rank}") for name, array in (("x", source), ("out", target))]
        try:
            views = [None if array is None else memory.find(array.address, array.nbytes, what, quiet) for array, what in named]
        except UnsupportedError as error:
            self._last = str(error)
            return None
        return Way(views, [] if source is None or target is None else self._kept(schedule, layout, moves, source, target))

    def _moves_of(self, schedule: Schedule) -> Moves:
        found = self._moves.get(schedule.digest)
        if found is None:
            if len(self._moves) >= MAX_SCHEDULES:
                self._moves.clear()
            found = self._moves[schedule.digest] = moves_of(schedule, self._member.rank)
        return found

    def _kept(
        self, schedule: Schedule, layout: Layout, moves: Moves, source: DeviceArray, target: DeviceArray
    ) -> list[tuple[int, int, int, str]]:
        ops, rank, rows = schedule.ops, self._member.rank, moves.copies
        first = ops.src_begin[rows]
        begins = layout.offset(ops.src_buf[first], rank, ops.src_chunk[first]) * layout.itemsize
        places = layout.offset(ops.dst_buf[rows], rank, ops.dst_chunk[rows]) * layout.itemsize
        sizes = layout.op_bytes()[rows]
        what = f"x of rank {rank}"
        return [
            (target.address + int(to), source.address + int(begin), int(nbytes), what)
            for to, begin, nbytes in zip(places, begins, sizes, strict=True)
            if nbytes
        ]

    def _open(self, ordinal: int) -> Any:
        if self._memory is None:
            try:
                self._memory = _core.DirectMemory(self._member.engine, ordinal, self._library())
            except UnsupportedError as error:
                self._refused = str(error)
        return self._memory

    def explain(self) -> str:
        """Which calls go this way, or why none does."""
        if why := self.why_not():
            return f"not by NICs alone: {why}"
        last = f"; not the last one: {self._last}" if self._last else ""
        return f"NICs read and write them where a call only moves bytes{last}"

    def memory(self) -> dict[str, int]:
        """How many allocations are registered with the NICs."""
        return {} if self._memory is None else {"direct_regions": int(self._memory.n_regions)}

    def close(self) -> None:
        """Deregisters everything; the next call begins anew."""
        memory, self._memory = self._memory, None
        self._refused = self._last = ""
        if memory is not None:
            memory.close()
