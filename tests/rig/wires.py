"""The wires between machines: one per rail, made of socket pairs that carry Ethernet frames.

Is: ends to hand to machines, a switch on every rail of three machines and more, and a drain for what ends nowhere. Is not: a shaper;
machines lose, delay and cap with tc inside. Invariants: nobody waits long on a full wire (a frame that cannot be sent in time is lost,
as on a real one), and a wire whose far end died is emptied, because a kernel that meets a full socket would spin.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Iterator

SEND_BUFFER_BYTES = 4 << 20
SEND_TIMEOUT_US = 200_000
MAX_FRAME_BYTES = 65_536
LOOK_S = 0.05  # how often a thread looks whether it shall end


def _pair() -> tuple[socket.socket, socket.socket]:
    # SEQPACKET keeps frames apart and in order.
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", 0, SEND_TIMEOUT_US))
    return ends


def _waiting(end: socket.socket) -> Iterator[bytes]:
    """Frames that are there now, at most 64."""
    for _ in range(64):
        try:
            frame = end.recv(MAX_FRAME_BYTES, socket.MSG_DONTWAIT)
        except OSError:
            return
        if not frame:
            return
        yield frame


class Wires:
    """`rails` wires among `machines`; `ends(n)` are the sockets of machine n, rail by rail. A context manager."""

    def __init__(self, machines: int, rails: int) -> None:
        self._stop = threading.Event()
        self._unread: list[socket.socket] = []  # ends that no machine reads
        self._ends: list[list[socket.socket]] = [[] for _ in range(machines)]
        self._ports: list[list[socket.socket]] = []  # our side of each rail that has a switch
        for _ in range(rails):
            self._make_rail(machines)
        work = [(self._drain, ())] + [(self._switch, (ports,)) for ports in self._ports]
        self._threads = [threading.Thread(target=run, args=given, name="rig-wire", daemon=True) for run, given in work]
        for thread in self._threads:
            thread.start()

    def _make_rail(self, machines: int) -> None:
        if machines <= 2:  # one crossing wire, no thread between
            for n, end in enumerate(_pair()):
                (self._ends[n] if n < machines else self._unread).append(end)
            return
        pairs = [_pair() for _ in range(machines)]
        for held, (theirs, _) in zip(self._ends, pairs, strict=True):
            held.append(theirs)
        self._ports.append([ours for _, ours in pairs])

    def ends(self, machine: int) -> list[socket.socket]:
        """The sockets of a machine, rail 0 first."""
        return self._ends[machine]

    def machine_ended(self, machine: int) -> None:
        """From now on what is sent to that machine is thrown away."""
        self._unread.extend(self._ends[machine])

    def _drain(self) -> None:
        while not self._stop.wait(0 if self._unread else LOOK_S):
            for end in select.select(list(self._unread), [], [], LOOK_S)[0]:
                for _ in _waiting(end):
                    pass

    def _switch(self, ports: list[socket.socket]) -> None:
        """Learns behind which port an address is; frames for addresses it does not know go to all others."""
        behind: dict[bytes, socket.socket] = {}
        while not self._stop.is_set():
            for port in select.select(ports, [], [], LOOK_S)[0]:
                for frame in _waiting(port):
                    behind[frame[6:12]] = port
                    known = None if frame[0] & 1 else behind.get(frame[:6])
                    for to in ports if known is None else [known]:
                        if to is not port:
                            _send(to, frame)

    def __enter__(self) -> Wires:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for end in [*sum(self._ends, []), *sum(self._ports, []), *self._unread]:
            end.close()


def _send(to: socket.socket, frame: bytes) -> None:
    try:
        to.send(frame)
    except OSError:  # full for too long, or its machine is gone: the frame is lost
        pass
