"""Accepts connections on the addresses of a rank's NICs and lets in only who knows the job's secret.

Is: one thread with non-blocking sockets; a socket that passed the challenge is handed to `admit(hello, socket)`.
Is not: the data path. Invariants: a stranger, a wrong secret, random bytes or a half-open connection costs one bounded
slot for at most HANDSHAKE_S and changes nothing; strangers are logged once per acceptor.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence

from ..errors import CclError, ConnectError
from . import wire

HANDSHAKE_S = 5.0
MAX_PENDING = 512
log = logging.getLogger("ccl_lab.engine")


class _Pending:
    """A connection that has not proved itself yet."""

    def __init__(self, sock: socket.socket, nic: int) -> None:
        self.sock, self.nic, self.nonce, self.data = sock, nic, wire.nonce(), bytearray()
        self.deadline = time.monotonic() + HANDSHAKE_S


class Acceptor:
    """Listens on `addresses` (one per NIC, port 0 picks one); `admit` runs on the acceptor's thread.

    Raises ConnectError naming the address if it cannot be bound.
    """

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        secret: bytes,
        admit: Callable[[int, wire.Hello, socket.socket], None],
    ) -> None:
        self._secret, self._admit, self._closed, self._warned = secret, admit, False, False
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = socket.socketpair()
        self._listeners = [self._listen(address, nic) for nic, address in enumerate(addresses)]
        self.addresses = [listener.getsockname()[:2] for listener in self._listeners]
        self.refused = 0
        self._selector.register(self._wake_r, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._serve, name="ccl_lab-acceptor", daemon=True)
        self._thread.start()

    def _listen(self, address: tuple[str, int], nic: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            if address[1]:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(256)
        except OSError as error:
            listener.close()
            raise ConnectError(
                f"cannot listen on {address[0]}:{address[1]}: {error}. Is the port taken, or the address of another machine? "
                "Set CCL_LAB_RENDEZVOUS or CCL_LAB_NICS.",
                nic=nic,
            ) from None
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, nic)
        return listener

    def _serve(self) -> None:
        while not self._closed:
            try:
                ready = self._selector.select(timeout=1.0)
            except OSError:
                return
            for key, _ in ready:
                if isinstance(key.data, int):
                    self._accept(key.fileobj, key.data)  # type: ignore[arg-type]
                elif isinstance(key.data, _Pending):
                    self._advance(key.data)
            self._expire()

    def _accept(self, listener: socket.socket, nic: int) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        if len(self._selector.get_map()) > MAX_PENDING:
            sock.close()
            return
        sock.setblocking(False)
        pending = _Pending(sock, nic)
        try:
            sock.send(pending.nonce)
            self._selector.register(sock, selectors.EVENT_READ, pending)
        except OSError:
            sock.close()

    def _advance(self, pending: _Pending) -> None:
        try:
            got = pending.sock.recv(wire.REPLY - len(pending.data))
            if not got:
                raise ConnectError("it closed the connection before it proved itself.")
            pending.data += got
            if len(pending.data) < wire.REPLY:
                return
            hello, answer = wire.check_reply(self._secret, pending.nonce, bytes(pending.data))
            pending.sock.send(answer)
        except BlockingIOError:
            return
        except (CclError, OSError) as error:
            self._refuse(pending, str(error))
            return
        self._selector.unregister(pending.sock)
        pending.sock.setblocking(True)
        try:
            self._admit(pending.nic, hello, pending.sock)
        except CclError as error:
            self._refuse(pending, str(error), registered=False)

    def _refuse(self, pending: _Pending, why: str, *, registered: bool = True) -> None:
        self.refused += 1
        if registered:
            self._selector.unregister(pending.sock)
        pending.sock.close()
        if not self._warned:
            log.warning(
                "refused a connection on NIC %d: %s Further ones are refused silently.", pending.nic, why
            )
        self._warned = True

    def _expire(self) -> None:
        now = time.monotonic()
        late = [
            key.data
            for key in list(self._selector.get_map().values())
            if isinstance(key.data, _Pending) and key.data.deadline < now
        ]
        for pending in late:
            self._refuse(pending, f"it did not prove itself within {HANDSHAKE_S:.0f} s.")

    def close(self) -> None:
        """Stops listening; connections already handed over stay."""
        if self._closed:
            return
        self._closed = True
        self._wake_w.send(b"x")
        self._thread.join(timeout=5)
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        self._wake_w.close()
