"""The star that holds a job together off the data path: one hub, one spoke per rank.

Is: join, all-gather of small facts, first-reason-wins abort, and notice of lost ranks, over framed sockets. The hub lives
in the notebook process (World) or in rank 0 (init). Is not: the data path, nor a store that outlives the job.
Invariants: the first abort of an epoch is the one every rank hears; a lost rank is told to all others once; who gives up waiting
hears from the hub who is missing, and who does not hear from the hub either names the rank that holds it.

    spoke → hub   gather{name, value}  late{name, seconds}  abort{error}  pong{}  clock{sent}  leave{}   and what the owner handles
    hub → spoke   gathered{name, values | gone | late}  abort{error}  ping{}  clock{sent, hub}            and what the owner sends
"""

from __future__ import annotations

import selectors
import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from ..errors import AbortedError, CclError, ConnectError, OpTimeout, PeerLostError, from_wire
from . import wire

Message = dict[str, Any]
WAITED = (OpTimeout, ConnectError)  # what a rank says that waited in vain, maybe for one that waits itself
SEND_TIMEOUT_S = 20
ROLL_CALL_S = 2.0  # how long a rank may take to say that it runs, when another one gave up waiting
ANSWER_S = 5.0  # how long the hub may take to say who is missing


class Hub:
    """Serves `n_ranks` spokes; `handle(rank, message, blob)` gets what the hub itself does not know.

    `on_lost(rank)` returns the error the others are to raise. All callbacks run on the hub's thread. In an elastic job
    "ranks" are members, by their stable numbers, and `regroup` says which of them count.
    """

    def __init__(
        self,
        n_ranks: int,
        handle: Callable[[int, Message, bytes], None] | None = None,
        on_lost: Callable[[int], CclError] | None = None,
    ) -> None:
        self.n_ranks, self._handle, self._on_lost = n_ranks, handle, on_lost
        self.members: tuple[int, ...] = tuple(range(n_ranks))
        self.open = False  # True: also takes those who are to be members later
        self.clock = time.monotonic_ns  # that of spans
        self.asks = False  # True: before it tells that a rank gave up waiting, it looks for one that is silent
        self._telling = threading.RLock()  # who counts, and what they are told, change one at a time
        self._sockets: dict[int, socket.socket] = {}
        self._locks: dict[int, threading.Lock] = {}
        self._gathers: dict[str, dict[int, Any]] = defaultdict(dict)
        self._left: set[int] = set()
        self._answered: set[int] = set()  # the roll call
        self._asking = False
        self.lost: set[int] = set()
        self._gone = threading.Condition()
        self._abort: Message | None = None  # what was told in this epoch
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = socket.socketpair()
        self._selector.register(self._wake_r, selectors.EVENT_READ, -1)
        self._thread = threading.Thread(target=self._serve, name="ccl_lab-hub", daemon=True)
        self._thread.start()

    def add(self, rank: int, sock: socket.socket) -> None:
        """Takes over the connected (and authenticated) socket of `rank`; thread-safe."""
        if rank in self._sockets or rank < 0 or (rank >= self.n_ranks and not self.open):
            sock.close()
            raise ConnectError(f"rank {rank} joined twice, or is not one of {self.n_ranks}.", rank=rank)
        # A rank that is stopped must not stop the hub: a send that waits this long gives the rank up.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_TIMEOUT_S, 0))
        with self._telling:  # it hears every abort from now on, and the one that was told before it came
            self._locks[rank] = threading.Lock()
            self._sockets[rank] = sock
            if self._abort and rank in self.members:
                self.send(rank, self._abort)
        self._selector.register(sock, selectors.EVENT_READ, rank)
        self._wake()

    def _wake(self) -> None:
        try:
            self._wake_w.send(b"x")
        except OSError:
            pass

    def send(self, rank: int, message: Message, blob: bytes = b"") -> bool:
        """Sends to one rank; False if it is gone."""
        sock = self._sockets.get(rank)
        if sock is None or rank in self.lost:
            return False
        try:
            with self._locks[rank]:
                wire.send(sock, message, blob)
            return True
        except OSError:
            return False

    def broadcast(self, message: Message, blob: bytes = b"") -> None:
        """Sends to every rank that is there; to the lowest, in whose process the hub is, last: it may end when it has heard."""
        for rank in sorted(self._sockets, reverse=True):
            if rank in self.members:
                self.send(rank, message, blob)

    @property
    def admitted(self) -> set[int]:
        """Ranks that have come, also those that are gone again."""
        return set(self._sockets)

    def missing(self, name: str) -> list[int]:
        """Who has not taken part yet in an exchange that others wait in."""
        with self._telling:
            return sorted(set(self.members) - self._gathers.get(name, {}).keys())

    def ping(self, rank: int) -> bool:
        """Asks whether a rank still runs; not (False) while another message to it is on its way."""
        if not self._locks[rank].acquire(blocking=False):
            return False
        self._locks[rank].release()
        return self.send(rank, {"t": "ping"})

    def silent(self, timeout_s: float) -> list[int]:
        """Members that have come, are not known to be gone, and do not answer within `timeout_s`. Not on the hub's thread."""
        with self._gone:
            self._answered = set()
        asked = {rank for rank in self.members if rank in self._sockets and rank not in self.lost and self.ping(rank)}
        with self._gone:
            self._gone.wait_for(lambda: asked <= self._answered | self._left | self.lost, timeout_s)
            return sorted(asked - self._answered - self._left - self.lost)

    def regroup(self, members: tuple[int, ...], messages: dict[int, Message]) -> None:
        """From now on only `members` count, in this order; tells each its message. Others are no longer heard."""
        with self._telling:
            outside = set(self._sockets) - set(members) - self.lost
            self.members, self.n_ranks, self._abort = members, len(members), None
            self._gathers.clear()
            for member in members:
                self.send(member, messages[member])
        for member in outside:
            try:
                self._sockets[member].shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def abort(self, error: CclError) -> bool:
        """Tells every rank to stop with `error`; False if an earlier reason was told in this epoch."""
        with self._telling:
            if self._abort:
                return False
            self._abort = {"t": "abort", "error": error.to_wire()}
            self.broadcast(self._abort)
            return True

    def new_epoch(self) -> None:
        """After a reset of all ranks: the next abort counts again."""
        self._abort = None

    def wait_left(self, timeout_s: float) -> bool:
        """True when every rank has said goodbye or is gone."""
        with self._gone:
            return self._gone.wait_for(lambda: len(self._left | self.lost) >= len(self._sockets), timeout_s)

    def _serve(self) -> None:
        while not self._closed:
            try:
                ready = self._selector.select()
            except OSError:
                return
            for key, _ in ready:
                if key.data == -1:
                    self._wake_r.recv(4096)
                    continue
                self._read(key.data, key.fileobj)  # type: ignore[arg-type]

    def _read(self, rank: int, sock: socket.socket) -> None:
        try:
            message, blob = wire.receive(sock)
        except (ConnectError, OSError):
            self._selector.unregister(sock)
            self._lose(rank)
            return
        if rank not in self.members:
            return
        self._dispatch(rank, message, blob)

    def _lose(self, rank: int) -> None:
        with self._gone:
            self.lost.add(rank)
            self._gone.notify_all()
        self._sockets[rank].close()
        if self._closed or rank in self._left or rank not in self.members:
            return
        error = (
            self._on_lost(rank) if self._on_lost else PeerLostError(f"rank {rank} left or died.", rank=rank)
        )
        with self._telling:
            if rank in self.members:  # the others may have gone on without it meanwhile
                self.abort(error)
                self._give_up_gathers()

    def _give_up_gathers(self) -> None:
        """Tells the waiting of exchanges that a rank that is gone can no longer join. An elastic job regroups instead."""
        gone = (self._left | self.lost) & set(self.members)
        for name, values in list(self._gathers.items()):
            missing = gone - values.keys()
            if missing and not self.open:
                del self._gathers[name]
                self.broadcast({"t": "gathered", "name": name, "gone": min(missing)})

    def _tell_late(self, name: str, seconds: float) -> None:
        """A rank gives up an exchange: all who wait in it do, and hear who is missing. One that was just completed stays so."""
        with self._telling:
            missing = self.missing(name)
            if name not in self._gathers or not missing:
                return
            del self._gathers[name]
            come = [rank for rank in missing if rank in self.admitted]
            self.broadcast({"t": "gathered", "name": name, "late": missing, "come": come, "seconds": seconds})

    def _judge(self, error: CclError) -> None:
        """Who waited for a rank may have waited for one that waits itself: of all, the one that does not answer is to be named."""
        found = self.silent(ROLL_CALL_S)
        if found:
            rank = error.rank if error.rank in found else found[0]
            error = type(error)(f"rank {rank} does not answer: its process is stopped, or cannot run. Seen elsewhere: {error}", rank=rank)
        self.abort(error)
        self._asking = False

    def _dispatch(self, rank: int, message: Message, blob: bytes) -> None:
        kind = message.get("t")
        if kind == "pong":
            with self._gone:
                self._answered.add(rank)
                self._gone.notify_all()
        if kind == "gather":
            name = str(message["name"])
            with self._telling:
                self._gathers[name][rank] = message["value"]
                if set(self.members) <= self._gathers[name].keys():
                    values = self._gathers.pop(name)
                    self.broadcast({"t": "gathered", "name": name, "values": [values[r] for r in self.members]})
                else:
                    self._give_up_gathers()
        elif kind == "clock":
            self.send(rank, {"t": "clock", "sent": message["sent"], "hub": self.clock()})
        elif kind == "late":
            self._tell_late(str(message["name"]), float(message["seconds"]))
        elif kind == "abort":
            error = from_wire(message["error"])
            if not self.asks or self._abort or not isinstance(error, WAITED):
                self.abort(error)
            elif not self._asking:  # what the ranks answer is read on this thread
                self._asking = True
                threading.Thread(target=self._judge, args=(error,), name="ccl_lab-roll-call", daemon=True).start()
        elif kind == "leave":
            with self._gone:
                self._left.add(rank)
                self._gone.notify_all()
            with self._telling:
                self._give_up_gathers()
        elif self._handle:
            self._handle(rank, message, blob)

    def close(self) -> None:
        """Closes every socket; spokes see end of file."""
        if self._closed:
            return
        self._closed = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)
        for sock in [*self._sockets.values(), self._wake_r, self._wake_w]:
            sock.close()
        self._selector.close()


class Spoke:
    """A rank's end of the star. What hears of aborts and `handle(message, blob)` run on the spoke's thread; `on_lost()` too,
    when the hub is gone."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        on_lost: Callable[[], None],
        handle: Callable[[Message, bytes], None] | None = None,
        holder: int = -1,
    ) -> None:
        self._sock, self._on_lost, self._handle = sock, on_lost, handle
        self.holder = holder  # the rank in whose process the hub is; -1: none
        self._stop: Callable[[CclError], None] | None = None
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self.here = ""  # set: that address, though the socket has another
        self._gathered: dict[str, Message] = {}
        self._aborted: CclError | None = None
        self._turn: int | None = None
        self._times: tuple[int, int, int] | None = None
        self._closed = self.lost = False
        self._thread = threading.Thread(target=self._serve, name="ccl_lab-spoke", daemon=True)

    def start(self) -> None:
        """Begins to read."""
        self._thread.start()

    @property
    def address(self) -> str:
        """The address of this end, for what else goes past the data NICs."""
        if self.here:
            return self.here
        if self._sock.family in (socket.AF_INET, socket.AF_INET6):
            return str(self._sock.getsockname()[0])
        return "127.0.0.1"

    def send(self, message: Message, blob: bytes = b"") -> None:
        """Sends one message; silently nothing once the hub is gone (`on_lost` has been told)."""
        try:
            with self._lock:
                wire.send(self._sock, message, blob)
        except OSError:
            pass

    def abort(self, error: CclError) -> None:
        """Asks the hub to stop everybody with `error`, if it is the first reason."""
        self.send({"t": "abort", "error": error.to_wire()})

    def gather(
        self, name: str, value: Any, timeout_s: float, *, despite_abort: bool = False, turn: int | None = None
    ) -> list[Any]:
        """Everybody's `value`, by rank; all ranks must call it with the same `name`, each name once.

        `despite_abort`: an abort does not end it, for the exchanges that come after one. `turn`: the epoch it belongs to; it
        ends in AbortedError when a later one has begun.

        Raises OpTimeout if not all did in time, PeerLostError at once if one is gone, or the error that ended the job meanwhile.
        """
        self.send({"t": "gather", "name": name, "value": value})

        def over() -> bool:
            stale = turn is not None and self._turn is not None and turn != self._turn
            return name in self._gathered or bool(self._aborted and not despite_abort) or self.lost or stale

        with self._changed:
            done = self._changed.wait_for(over, timeout_s)
        if not done:
            self.send({"t": "late", "name": name, "seconds": timeout_s})
        with self._changed:
            done = self._changed.wait_for(over, ANSWER_S)
            told = self._gathered.pop(name, None)
            # First, because values that came late may be those of the next epoch's members alone.
            if turn is not None and self._turn is not None and turn != self._turn:
                raise AbortedError(f"epoch {self._turn} began while ranks exchanged {name!r}.")
            if told and "values" in told:
                return list(told["values"])
            if self._aborted and not despite_abort:
                raise self._aborted
        if told and "late" in told:
            raise _late(name, told)
        if told:
            raise PeerLostError(f"rank {told['gone']} left or died; ranks exchanged {name!r}.", rank=told["gone"])
        if done:
            raise PeerLostError(f"{self._hub} is gone while ranks exchanged {name!r}.", rank=self.holder)
        raise OpTimeout(
            f"{self._hub} does not answer: not all ranks took part in {name!r} within {timeout_s:g} s. Is its process stopped?",
            rank=self.holder,
        )

    @property
    def _hub(self) -> str:
        return "the hub of this job" if self.holder < 0 else f"rank {self.holder}, which holds the job together,"

    def tell_aborts(self, stop: Callable[[CclError], None]) -> None:
        """From now on `stop(error)` is called when the hub tells an abort; now, where it told one before there was anybody to stop."""
        with self._changed:
            self._stop, told = stop, self._aborted
        if told:
            stop(told)

    def first_reason(self, timeout_s: float) -> CclError | None:
        """The error the hub told everybody, waited for; None if none came in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._aborted or self.lost, timeout_s)
            return self._aborted

    def judged(self, error: CclError, timeout_s: float) -> CclError:
        """Asks the hub to stop everybody with `error`; returns the first reason any rank told, which all raise.

        Where the hub tells none in time, the rank that holds it is the one that does not answer.
        """
        self.abort(error)
        told = self.first_reason(timeout_s)
        if told or self.lost or self.holder < 0 or not isinstance(error, WAITED):
            return told or error
        return type(error)(
            f"{self._hub} does not answer: its process is stopped, or cannot run. Seen here: {error}", rank=self.holder
        )

    def hub_clock(self, timeout_s: float) -> tuple[int, int, int] | None:
        """(when it was asked, the hub's clock, when the answer came), ns; None if none came in time."""
        sent = time.monotonic_ns()
        self.send({"t": "clock", "sent": sent})
        with self._changed:
            self._changed.wait_for(lambda: (self._times and self._times[0] == sent) or self.lost, timeout_s)
            return self._times if self._times and self._times[0] == sent else None

    @property
    def aborted(self) -> CclError | None:
        """The error the hub told everybody, if it told one."""
        return self._aborted

    def clear_abort(self, turn: int | None = None) -> None:
        """After a reset: gathers work again. `turn`: the epoch that begins, which ends the gathers of earlier ones."""
        with self._changed:
            self._aborted = None
            if turn is not None:
                self._turn = turn
                self._gathered.clear()
            self._changed.notify_all()

    def _serve(self) -> None:
        while True:
            try:
                message, blob = wire.receive(self._sock)
            except (ConnectError, OSError):
                break
            if message.get("t") == "clock":
                times = int(message["sent"]), int(message["hub"]), time.monotonic_ns()
                with self._changed:
                    self._times = times
                    self._changed.notify_all()
            elif message.get("t") == "gathered":
                with self._changed:
                    self._gathered[message["name"]] = message
                    self._changed.notify_all()
            elif message.get("t") == "abort":
                error = from_wire(message["error"])
                with self._changed:
                    self._aborted, stop = error, self._stop
                    self._changed.notify_all()
                if stop:
                    stop(error)
            elif message.get("t") == "ping":
                self.send({"t": "pong"})
            elif self._handle:
                self._handle(message, blob)
        with self._changed:
            self.lost = True
            self._changed.notify_all()
        if not self._closed:
            self._on_lost()

    def close(self, *, leave: bool = True) -> None:
        """Says goodbye, so that the others do not take it for a death."""
        if self._closed:
            return
        self._closed = True
        if leave:
            self.send({"t": "leave"})
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._sock.close()


def same_culprit(first: CclError, error: CclError) -> bool:
    """Whether the first reason of the job says no more than this rank's own error: the same class, of the same rank."""
    return type(first) is type(error) and first.rank in (error.rank, -1)


def _late(name: str, told: Message) -> OpTimeout:
    """The error of an exchange that not everybody took part in: who, and whether it was ever there."""
    missing, come = told["late"], set(told["come"])
    some = [f"rank {rank} {'came and was not heard of since' if rank in come else 'never came'}" for rank in missing[:8]]
    more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
    return OpTimeout(
        f"not all ranks took part in {name!r} within {told['seconds']:g} s: {', '.join(some)}{more}. Did every rank start, with the "
        "same world size? Is one stopped?",
        rank=missing[0],
    )


def cancelled(reason: str, who: str) -> AbortedError:
    """The error of a deliberate cancel."""
    return AbortedError(f"cancelled: {reason} (set by {who}).")
