"""Windows: memory that every rank of a communicator shows to all others, who write and read it without its help.

Is: `Communicator.window` and the Window it returns (NCCLX, arXiv 2510.20171: window RMA), over any transport, on host memory. Is not:
the way of the bytes (native/src/comm/windows.hpp).

    rank 0                                          rank 1
    window.put(1, x, offset=4096, signal=True)      window.wait(0)        x is in window.array from here on
    window.get(1, 0, out=y)                         (nothing)

What is ordered, and what is not:
- A signal is seen only when everything that this rank has put to that peer before it, with or without a signal, is visible there,
  whatever NICs carried it. Signals of one rank are seen in the order in which it sent them; those of several ranks in any.
- Two puts to the same bytes, or a put and a get, are ordered by a flush or a signal and its answer between them, and by nothing else.
- A put that has returned, or whose Work has ended, does not read its data any more. After a flush the data is at the peer.
- Calls of several threads of a rank have no order.

Invariants: windows are made and closed by all ranks in the same order; arrays that an op was given are kept until it has ended; a
wait that fails takes no signal.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import units
from ..errors import AbortedError, BoundsError, CclError, OpTimeout, RegistrationError, UsageError
from .buffers import as_array, as_bytes
from .work import Work

if TYPE_CHECKING:
    from .member import Member

REASON_S = 2.0
LEAST_BYTES = 64  # that a rank which shows nothing takes
_OWN_MISTAKES = (UsageError, BoundsError, OpTimeout)  # of this rank, and no reason for the others to stop


class _Ended:
    """The native side of an op that has ended when it returned."""

    def done(self) -> bool:
        return True

    def wait(self, timeout_s: float) -> bool:
        return True


class Windowing:
    """What a Communicator has of this; a base class of it."""

    rank: int
    size: int
    _member: Member
    _closed: bool
    _failed: Callable[[CclError], CclError]
    _seconds: Callable[[Any], float]
    all_gather: Callable[..., Any]
    _n_windows = 0  # made so far: the same on all ranks
    _places: tuple[int, int] = (0, 0)  # epoch, and a bit for each place that is taken

    def window(self, memory: Any, *, timeout: Any = None) -> Window:
        """Shows `memory` of this rank to all others; all ranks call this, and sizes may differ.

        memory: bytes to take, as a number or "64MiB"; or an array of registered memory (`empty`, or whole pages after `register`),
        which its window keeps alive. At most 16 windows are open at a time. Raises RegistrationError for memory that peers do not
        reach, UsageError on the other ranks then, or where all places are taken. Cost: an all_gather of 32 bytes a rank, and, once
        in an epoch, a connection for each pair of equal NICs to ranks of other nodes.
        """
        if self._closed:
            raise UsageError(f"this communicator (rank {self.rank}) is closed; call ccl_lab.init() again.")
        engine = self._member.engine
        self._n_windows += 1
        array, wrong = None, None
        try:
            array = self._shown(memory)
        except CclError as error:  # the others are waiting, and have to hear of it
            wrong = error
        taken = self._places[1] if self._places[0] == self._member.epoch else 0
        raised = engine.window_signals()
        mine = np.array([array is not None, 0, 0, taken], np.int64)
        if array is not None:
            mine[1:3] = engine.shown_offset(array.ctypes.data, array.nbytes), array.nbytes
        everybody = self.all_gather(mine, timeout=timeout)
        if wrong is not None:
            raise wrong
        if not everybody[:, 0].all():
            rank = int(np.argmin(everybody[:, 0]))
            raise UsageError(f"window {self._n_windows} on rank {self.rank}: rank {rank} has shown nothing; it says why.", rank=rank)
        taken = int(np.bitwise_or.reduce(everybody[:, 3]))
        place = next((i for i in range(engine.window_places) if not taken >> i & 1), None)
        if place is None:
            raise UsageError(f"window {self._n_windows} on rank {self.rank}: {engine.window_places} are open already; close one.")
        assert array is not None
        lanes = self._lanes()
        self._member.connect([(peer, *pair) for peer, pairs in enumerate(lanes) for pair in pairs])
        self._places = self._member.epoch, taken | 1 << place
        begin = place * self.size
        native = engine.make_window(
            self._n_windows, place, as_bytes(array), everybody[:, 1:3].tolist(), lanes, raised[begin : begin + self.size]
        )
        return Window(self, native, place, array, everybody[:, 2].tolist())

    def _shown(self, memory: Any) -> np.ndarray:
        """The array of a window."""
        if isinstance(memory, (int, np.integer, str)):
            nbytes = units.parse_size(memory) if isinstance(memory, str) else int(memory)
            if nbytes < 0:
                raise UsageError(f"a window of {nbytes} bytes on rank {self.rank}: expected 0 or more.", rank=self.rank)
            return self._member.empty(max(nbytes, LEAST_BYTES))[1][:nbytes]
        array = as_array(memory, "memory", writable=True)
        if self._member.engine.shown_offset(array.ctypes.data, array.nbytes) < 0:
            raise RegistrationError(
                f"memory of a window on rank {self.rank}: {array.nbytes} bytes that peers do not reach. Take it from empty(); or register "
                "memory that begins and ends with a page of 4096 bytes.",
                rank=self.rank,
            )
        return array

    def _lanes(self) -> list[list[tuple[int, int]]]:
        """By rank, the pairs of NICs that join it to this one, home first; none where its memory is mapped."""
        topology, mapped = self._member.topology, self._member.options.transport != "tcp"
        n, node_of = topology.nics_per_node, topology.node_of
        lanes: list[list[tuple[int, int]]] = []
        for peer in range(self.size):
            near = peer == self.rank or (mapped and node_of[peer] == node_of[self.rank])
            homes = [] if near else [(self.rank + peer + i) % n for i in range(n)]
            lanes.append([(nic, nic) for nic in homes])
        return lanes


class Window:
    """Memory of every rank, as one of them reaches it; made by `Communicator.window`. A context manager, which closes it.

    array: what this rank shows. sizes: bytes that each rank shows. Offsets are in bytes.
    """

    def __init__(self, comm: Any, native: Any, place: int, array: np.ndarray, sizes: list[int]) -> None:
        self._comm, self._native, self._place, self.array, self.sizes = comm, native, place, array, sizes
        self._number, self._epoch, self._closed = comm._n_windows, comm._member.epoch, False
        self._moving: list[tuple[Any, np.ndarray]] = []  # ops in progress and what they move; of ops that failed: until the end

    def put(
        self, rank: int, data: Any, offset: int = 0, *, signal: bool = False, timeout: Any = None, async_op: bool = False
    ) -> Work | None:
        """Writes `data`, a contiguous array or buffer, at `offset` of the window of `rank`; with `signal` that rank then sees one more.

        Returns when data may be changed, at once up to 8 KiB; async_op=True returns a Work that ends then. From 256 KiB on it goes over
        all NICs of the node, with one signal when all is there. Raises BoundsError, PeerLostError, OpTimeout (it goes on).
        """
        array = as_bytes(as_array(data, "data"))
        begin = self._offset("put", rank, offset, array.nbytes)
        what = f"put to rank {rank}"
        op = self._start(lambda: self._native.put(rank, array, begin, signal, not async_op))
        return self._ended(op, array, what, None, timeout, async_op)

    def get(self, rank: int, offset: int = 0, out: Any = None, *, timeout: Any = None, async_op: bool = False) -> Any:
        """Reads what lies at `offset` of the window of `rank` into `out` (default: a new array of all bytes from there on); returns it.

        async_op=True returns a Work, which gives it. Raises as `put` does.
        """
        if out is None:
            rest = self.sizes[rank] - operator.index(offset) if 0 <= rank < len(self.sizes) else 0
            out = np.empty(max(rest, 0), np.uint8)
        target = as_array(out, "out", writable=True)
        array = as_bytes(target)
        begin = self._offset("get", rank, offset, array.nbytes)
        op = self._start(lambda: self._native.get(rank, array, begin))
        return self._ended(op, array, f"get from rank {rank}", target, timeout, async_op)

    def signal(self, rank: int) -> None:
        """Rank `rank` sees one more signal of this one, after all that was put to it before. Does not wait."""
        op = self._start(lambda: self._native.signal(rank))
        if op is not None:
            self._keep(op, np.zeros(0, np.uint8))

    def wait(self, rank: int | None = None, count: int = 1, *, timeout: Any = None) -> list[int]:
        """Takes `count` signals of `rank` (None: of any), once so many are there: the rank of each.

        What their senders had put here before is visible then. Raises OpTimeout, which says who has not signalled; PeerLostError
        where a rank that is waited for is lost, AbortedError where the job stops; none of the signals is taken then.
        """
        if count < 1:
            raise UsageError(f"wait of window {self._number} on rank {self._comm.rank}: count is {count}, expected 1 or more.")
        seconds = self._comm._seconds(timeout)
        return self._start(lambda: self._native.wait(self._peer(rank, "wait"), count, seconds))

    def count(self, rank: int | None = None) -> int:
        """Signals of `rank` (None: of all) that are here and were not taken by a wait."""
        return int(self._native.count(self._peer(rank, "count")))

    def flush(self, rank: int | None = None, *, timeout: Any = None) -> None:
        """Returns when all puts and signals of this rank to `rank` (None: to all) are there, and its gets are done."""
        op = self._start(lambda: self._native.flush(self._peer(rank, "flush")))
        self._ended(op, np.zeros(0, np.uint8), "flush", None, timeout, False)

    def close(self) -> None:
        """All ranks call it: what is under way arrives first, then nobody reaches the memory any more. Idempotent."""
        if self._closed:
            return
        comm = self._comm
        usable = not comm._closed and comm._member.epoch == self._epoch
        try:
            if usable:
                self.flush()
                comm.barrier()
                comm._places = self._epoch, comm._places[1] & ~(1 << self._place)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """Without the others: its place stays taken, as they may still write here."""
        self._closed = True
        self._native.close()

    # -- how

    def _peer(self, rank: int | None, what: str) -> int:
        if rank is None:
            return -1
        if not 0 <= rank < self._comm.size:
            comm = self._comm
            raise UsageError(
                f"{what} of window {self._number} on rank {comm.rank}: rank {rank} does not exist, expected 0 to {comm.size - 1}."
            )
        return rank

    def _offset(self, what: str, rank: int, offset: Any, nbytes: int) -> int:
        begin = operator.index(offset)
        if begin < 0:
            raise BoundsError(
                f"{what} by rank {self._comm.rank}, window {self._number} of rank {rank}: {nbytes} bytes at offset {begin}, "
                "expected 0 or more.",
                rank=rank,
            )
        self._peer(rank, what)
        return begin

    def _start(self, begin: Callable[[], Any]) -> Any:
        """Errors that all ranks must hear of are told them, and the first of all is raised."""
        if self._comm._closed:
            raise UsageError(f"window {self._number}: its communicator (rank {self._comm.rank}) is closed.")
        try:
            return begin()
        except _OWN_MISTAKES:
            raise
        except AbortedError as error:
            raise self._comm._member.spoke.first_reason(REASON_S) or error from error
        except CclError as error:
            raise self._told(error) from error

    def _told(self, error: CclError) -> CclError:
        return self._comm._failed(error)

    def _keep(self, op: Any, array: np.ndarray) -> None:
        self._moving = [held for held in self._moving if not held[0].done() or held[0].failed()]
        self._moving.append((op, array))

    def _ended(self, op: Any, array: np.ndarray, what: str, result: Any, timeout: Any, async_op: bool) -> Any:
        """Of an op that began: its result, or a Work."""
        name = f"{what}, window {self._number}, on rank {self._comm.rank}"
        if op is not None:
            self._keep(op, array)
        if async_op:
            return Work(op or _Ended(), lambda: result, self._told, name)
        seconds = self._comm._seconds(timeout)
        if op is not None and not self._start(lambda: op.wait(seconds)):
            raise OpTimeout(f"{name} is not done after {seconds:g} s; it goes on, and its memory has to stay as it is.")
        return result

    def __enter__(self) -> Window:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            self.close()
        elif not self._closed:
            self._let_go()

    def __repr__(self) -> str:
        closed = ", closed" if self._closed else ""
        return f"<Window {self._number} of rank {self._comm.rank}, {self.array.nbytes} bytes{closed}>"
