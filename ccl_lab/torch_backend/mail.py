"""Point-to-point messages with tags between the ranks of a group.

Is: sends that never wait for the receiver's call, receives by source and tag or from any source, each in the order of its
sends. Is not: ordered with the group's collectives, which the engine's queue is, and so could not be used for this: two ranks
that both send first must not wait for each other. Invariants: every connection is authenticated as the job's others are; it
carries messages one way, dialled by the sender when it first sends; a message that nobody has asked for yet is kept, in
arrival order; a posted receive is written where it shall lie, without another copy.

    message   u32 magic | i32 tag | u32 element size | u32 0 | u64 bytes | payload
"""

from __future__ import annotations

import queue
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ..engine import wire
from ..engine.acceptor import Acceptor
from ..errors import AbortedError, CclError, ConnectError, OpTimeout, PeerLostError, ShapeError
from .tensors import as_torch, seconds_of

HEAD = struct.Struct("<IiIIQ")
MAGIC = 0x4C4D4343
AT_ONCE = 1 << 16  # bytes up to which the caller tries to send itself, without another thread
MAX_BYTES = 1 << 40
ANY = -1


class Message(dist.Work):
    """A send or a receive in progress."""

    def __init__(self, tensors: list[torch.Tensor], what: str, timeout_s: float, finish: Callable[[], None] | None) -> None:
        super().__init__()
        self._tensors, self._what, self._finish = tensors, what, finish
        self._deadline = time.monotonic() + timeout_s
        self._changed = threading.Condition()
        self._ended, self._error = False, None
        self._future: torch.futures.Future | None = None
        self.source = -1
        self.cancel: Callable[[], None] | None = None

    def end(self, error: BaseException | None = None) -> None:
        """Once, by whoever moved it."""
        if error is None and self._finish:
            self._finish()
        with self._changed:
            if self._ended:
                return
            self._error = as_torch(error) if error is not None else None
            self._ended, self._finish = True, None
            self._changed.notify_all()
            future = self._future
        if future is not None:
            self._settle(future)

    def wait(self, timeout: Any = None) -> bool:
        """True once it has ended; raises its error, or BackendTimeout after `timeout`, or after the group's own."""
        seconds = seconds_of(timeout)
        if not self._ended:
            left = self._deadline - time.monotonic()
            own = seconds is None or left < seconds
            with self._changed:
                ended = self._changed.wait_for(lambda: self._ended, max(left if own else seconds, 0.0))  # type: ignore[type-var]
            if not ended:
                late = OpTimeout(f"{self._what} did not end within its time: did the peer make the call that belongs to it?")
                if own and self.cancel:
                    self.cancel()
                    self.end(late)
                raise as_torch(late)
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """True once it has ended, well or not."""
        return self._ended

    def is_success(self) -> bool:
        """True once it has ended well."""
        return self._ended and self._error is None

    def exception(self) -> BaseException | None:
        """The error it ended in, or None."""
        return self._error

    def synchronize(self) -> None:
        """As wait."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """The tensors; waits for them."""
        self.wait()
        return self._tensors

    def _source_rank(self) -> int:
        return self.source

    def source_rank(self) -> int:
        """The rank of the group that sent it, once it has ended."""
        return self.source

    def get_future(self) -> torch.futures.Future:
        """Completed with the tensors when it has ended."""
        with self._changed:
            new = self._future is None
            if new:
                self._future = torch.futures.Future()
            future, ended = self._future, self._ended
        if new and ended:
            self._settle(future)
        return future

    def _settle(self, future: torch.futures.Future) -> None:
        if self._error is None:
            future.set_result(self._tensors)
        else:
            future.set_exception(self._error)  # type: ignore[arg-type]


class _Kept:
    """A message nobody has asked for yet."""

    def __init__(self, source: int, tag: int, itemsize: int, payload: np.ndarray) -> None:
        self.source, self.tag, self.itemsize, self.payload = source, tag, itemsize, payload


class _Wanted:
    """A posted receive."""

    def __init__(self, source: int, tag: int, itemsize: int, memory: np.ndarray, message: Message) -> None:
        self.source, self.tag, self.itemsize, self.memory, self.message = source, tag, itemsize, memory, message

    def takes(self, source: int, tag: int) -> bool:
        return self.tag == tag and self.source in (ANY, source)

    def misfit(self, source: int, itemsize: int, nbytes: int) -> ShapeError | None:
        if nbytes == self.memory.nbytes and itemsize == self.itemsize:
            return None
        return ShapeError(
            f"recv of tag {self.tag}: expected {self.memory.nbytes} bytes in elements of {self.itemsize}, rank {source} sent {nbytes} "
            f"in elements of {itemsize}.",
            rank=source,
        )


class Mail:
    """The post office of one rank. `share(name, value)` gives everybody's value, by rank; used once, by all ranks."""

    def __init__(self, rank: int, size: int, address: str, secret: bytes, share: Callable[[str, Any], list[Any]]) -> None:
        self._rank, self._size, self._secret = rank, size, secret
        self._lock = threading.Lock()
        self._kept: list[_Kept] = []
        self._wanted: list[_Wanted] = []
        self._lines: dict[int, _Line] = {}
        self._incoming: dict[socket.socket, tuple[int, threading.Thread]] = {}
        self._gone: dict[int, CclError] = {}
        self._stopped: CclError | None = None
        self._acceptor = Acceptor([(address, 0)], secret, self._admit)
        self._addresses = share("mail", list(self._acceptor.addresses[0]))

    # -- sending

    def send(self, memory: np.ndarray, peer: int, tag: int, message: Message) -> Message:
        """Sends these bytes; the message ends when the memory may be changed again."""
        itemsize = memory.itemsize
        with self._lock:
            if self._stopped is not None:
                raise as_torch(self._stopped)
            line = self._lines.get(peer)
            if line is None and peer != self._rank:
                line = self._lines[peer] = _Line(self._rank, peer, tuple(self._addresses[peer]), self._secret)  # type: ignore[arg-type]
        flat = memory.view(np.uint8)
        if line is None:
            self._arrived(self._rank, tag, itemsize, flat.copy())
            message.end()
        else:
            line.post(HEAD.pack(MAGIC, tag, itemsize, 0, flat.nbytes), flat, message)
        return message

    # -- receiving

    def receive(self, memory: np.ndarray, source: int, tag: int, message: Message) -> Message:
        """The next message with this tag of this source (ANY: of anyone) lands in `memory`."""
        wanted = _Wanted(source, tag, memory.itemsize, memory.view(np.uint8), message)
        with self._lock:
            found = next((kept for kept in self._kept if wanted.takes(kept.source, kept.tag)), None)
            if found is None:
                error = self._stopped or self._gone.get(source)
                if error is not None:
                    raise as_torch(error)
                self._wanted.append(wanted)
                message.cancel = lambda: self._forget(wanted)
                return message
            self._kept.remove(found)
        self._hand_over(wanted, found)
        return message

    def _forget(self, wanted: _Wanted) -> None:
        with self._lock:
            if wanted in self._wanted:
                self._wanted.remove(wanted)

    def _hand_over(self, wanted: _Wanted, kept: _Kept) -> None:
        wanted.message.source = kept.source
        error = wanted.misfit(kept.source, kept.itemsize, kept.payload.nbytes)
        if error is None:
            wanted.memory[:] = kept.payload
        wanted.message.end(error)

    def _claim(self, source: int, tag: int) -> _Wanted | None:
        """Takes the first receive that this message is for out of the list; needs the lock."""
        for wanted in self._wanted:
            if wanted.takes(source, tag):
                self._wanted.remove(wanted)
                return wanted
        return None

    def _arrived(self, source: int, tag: int, itemsize: int, payload: np.ndarray) -> None:
        kept = _Kept(source, tag, itemsize, payload)
        with self._lock:
            wanted = self._claim(source, tag)
            if wanted is None:
                self._kept.append(kept)
        if wanted is not None:
            self._hand_over(wanted, kept)

    def _admit(self, _: int, hello: wire.Hello, sock: socket.socket) -> None:
        if not 0 <= hello.rank < self._size:
            raise ConnectError(f"rank {hello.rank} dialled for messages: expected a rank from 0 to {self._size - 1}.")
        thread = threading.Thread(target=self._read, args=(hello.rank, sock), name=f"ccl_lab-mail-{hello.rank}", daemon=True)
        with self._lock:
            self._incoming[sock] = hello.rank, thread
        thread.start()

    def _read(self, source: int, sock: socket.socket) -> None:
        """One connection to its end."""
        try:
            while self._read_one(source, sock):
                pass
            error: CclError = PeerLostError(f"rank {source} left the group, or ended, before it sent this.", rank=source)
        except (OSError, CclError) as caught:
            broke = PeerLostError(f"the connection to rank {source} broke: {caught}.", rank=source)
            error = caught if isinstance(caught, CclError) else broke
        sock.close()
        with self._lock:
            self._incoming.pop(sock, None)
            self._gone[source] = error
            ended = [wanted for wanted in self._wanted if wanted.source == source]
            self._wanted = [wanted for wanted in self._wanted if wanted.source != source]
        for wanted in ended:
            wanted.message.end(error)

    def _read_one(self, source: int, sock: socket.socket) -> bool:
        head = bytearray(HEAD.size)
        if not _fill(sock, memoryview(head)):
            return False
        magic, tag, itemsize, _, nbytes = HEAD.unpack(head)
        if magic != MAGIC or nbytes > MAX_BYTES:
            raise ConnectError(f"rank {source} sent what is no message of this protocol.", rank=source)
        with self._lock:
            wanted = self._claim(source, tag)
        if wanted is None:
            payload = np.empty(nbytes, np.uint8)
            self._whole(sock, payload, source)
            self._arrived(source, tag, itemsize, payload)
            return True
        wanted.message.source = source
        error: CclError | None = wanted.misfit(source, itemsize, nbytes)
        try:
            self._whole(sock, wanted.memory if error is None else np.empty(nbytes, np.uint8), source)
        except (OSError, CclError) as broken:
            wanted.message.end(broken if isinstance(broken, CclError) else PeerLostError(str(broken), rank=source))
            raise
        wanted.message.end(error)
        return True

    @staticmethod
    def _whole(sock: socket.socket, payload: np.ndarray, source: int) -> None:
        if payload.nbytes and not _fill(sock, memoryview(payload)):
            raise PeerLostError(f"rank {source} ended in the middle of a message.", rank=source)

    # -- end

    def stop(self, error: CclError) -> None:
        """What is not received by now ends with the error, as does every later call."""
        with self._lock:
            self._stopped = self._stopped or error
            wanted, self._wanted = self._wanted, []
            lines = list(self._lines.values())
        for one in wanted:
            one.message.end(error)
        for line in lines:
            line.stop(error)

    def close(self, seconds: float = 5.0) -> None:
        """What was sent goes out first; then every connection is closed."""
        self._acceptor.close()
        deadline = time.monotonic() + seconds
        for line in list(self._lines.values()):
            line.close(max(deadline - time.monotonic(), 0.0))
        self.stop(AbortedError("the process group was destroyed."))
        with self._lock:
            incoming = list(self._incoming.items())
        for sock, (_, thread) in incoming:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            thread.join(timeout=1.0)


def _fill(sock: socket.socket, view: memoryview) -> bool:
    """Reads exactly; False at the end of the stream before the first byte."""
    at = 0
    while at < len(view):
        got = sock.recv_into(view[at:])
        if got == 0:
            if at == 0:
                return False
            raise ConnectError(f"connection closed after {at} of {len(view)} bytes.")
        at += got
    return True


class _Line:
    """What goes to one peer: a queue, and a thread that dials and sends once something is too much to send at once."""

    def __init__(self, rank: int, peer: int, address: tuple[str, int], secret: bytes) -> None:
        self._rank, self._peer, self._address, self._secret = rank, peer, address, secret
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._waiting = 0
        self._sock: socket.socket | None = None
        self._error: CclError | None = None
        self._thread: threading.Thread | None = None

    def post(self, head: bytes, payload: np.ndarray, message: Message) -> None:
        """Sends, or has it sent."""
        rest: list[Any] = [memoryview(head), memoryview(payload)]
        with self._lock:
            if self._error is not None:
                raise as_torch(self._error)
            if self._sock is not None and not self._waiting and payload.nbytes <= AT_ONCE:
                try:
                    rest = _after(rest, self._sock.sendmsg(rest, [], socket.MSG_DONTWAIT))
                except BlockingIOError:
                    pass
                except OSError as error:
                    raise as_torch(self._lost(error)) from None
            if rest:
                self._waiting += 1
                if self._thread is None:
                    self._thread = threading.Thread(target=self._serve, name=f"ccl_lab-line-{self._peer}", daemon=True)
                    self._thread.start()
                self._queue.put((rest, message))
        if not rest:
            message.end()

    def _serve(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            rest, message = item
            error = self._error
            try:
                if error is None:
                    self._send(rest)
            except (OSError, CclError) as caught:
                error = self._lost(caught)
            with self._lock:
                self._waiting -= 1
            message.end(error)
            del item, rest, message

    def _send(self, rest: list[Any]) -> None:
        if self._sock is None:
            hello = wire.Hello(self._rank, 0, 0, 0, wire.DATA)
            self._sock = wire.dial(self._address, "", hello, self._secret, 10.0)
        for piece in rest:
            if len(piece):
                self._sock.sendall(piece)

    def _lost(self, error: Exception) -> CclError:
        gone = PeerLostError(f"rank {self._peer} takes no messages any more: {error}.", rank=self._peer)
        self._error = self._error or (error if isinstance(error, CclError) else gone)
        return self._error

    def stop(self, error: CclError) -> None:
        """Nothing is sent any more."""
        self._error = self._error or error
        if self._sock is not None:
            try:
                self._sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self, seconds: float) -> None:
        """What was posted is sent, if it can be in this time."""
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(timeout=seconds)
        if self._sock is not None:
            try:
                self._sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            self._sock.close()


def _after(pieces: list[Any], sent: int) -> list[Any]:
    """What is left of the pieces."""
    left = []
    for piece in pieces:
        skipped = min(sent, len(piece))
        sent -= skipped
        if skipped < len(piece):
            left.append(piece[skipped:])
    return left
