"""Messages and proof of identity on the control sockets of a job.

Is: length-checked frames (JSON header, optional bytes) and the challenge that opens every connection, control or data.
Is not: the data path (native transports). Invariant: nothing a stranger sends is decoded before the challenge is passed.

    frame      u32 header_bytes | u32 blob_bytes | header (JSON object) | blob
    challenge  acceptor → dialer   nonce_a (32 bytes)
               dialer → acceptor   hello (36 bytes) | nonce_d (32) | HMAC-SHA256(secret, "dial" nonce_a nonce_d hello)
               acceptor → dialer   HMAC-SHA256(secret, "accept" nonce_d nonce_a hello)
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from ..errors import ConnectError

FRAME = struct.Struct("<II")
MAX_HEADER, MAX_BLOB = 64 << 20, 1 << 30
HELLO = struct.Struct("<8sIiiiIHHI")  # magic, version, rank, nic, peer_nic, epoch, purpose, index, generation
MAGIC, VERSION = b"CCLLABv1", 3
NONCE, MAC = 32, 32
CONTROL, DATA = 0, 1
REPLY = HELLO.size + NONCE + MAC
assert HELLO.size == 36


class Hello(NamedTuple):
    """Who dials: its rank and NIC, the acceptor's NIC it wants, the epoch, what for (CONTROL or DATA), and which of the
    connections between these NICs it will be, in which generation of that path (native/src/fault)."""

    rank: int
    nic: int
    peer_nic: int
    epoch: int
    purpose: int
    index: int = 0
    generation: int = 0

    def pack(self) -> bytes:
        """36 bytes."""
        return HELLO.pack(
            MAGIC, VERSION, self.rank, self.nic, self.peer_nic, self.epoch, self.purpose, self.index, self.generation
        )

    @staticmethod
    def unpack(data: bytes) -> Hello:
        """ConnectError if this is not a hello of this version."""
        magic, version, *rest = HELLO.unpack(data)
        if magic != MAGIC or version != VERSION:
            raise ConnectError(
                f"greeting {magic!r} version {version}: expected {MAGIC!r} version {VERSION}; "
                "all ranks must run the same ccl_lab."
            )
        return Hello(*rest)


def receive_exactly(sock: socket.socket, nbytes: int) -> bytes:
    """`nbytes` bytes; ConnectError if the other side closes before."""
    data = bytearray(nbytes)
    view, at = memoryview(data), 0
    while at < nbytes:
        got = sock.recv_into(view[at:])
        if got == 0:
            raise ConnectError(f"connection closed after {at} of {nbytes} bytes.")
        at += got
    return bytes(data)


def send(sock: socket.socket, header: dict[str, Any], blob: bytes = b"") -> None:
    """One frame, blocking."""
    text = json.dumps(header, separators=(",", ":")).encode()
    sock.sendall(FRAME.pack(len(text), len(blob)) + text + blob)


def receive(sock: socket.socket) -> tuple[dict[str, Any], bytes]:
    """One frame, blocking; ConnectError on end of file or a frame out of bounds."""
    header_bytes, blob_bytes = FRAME.unpack(receive_exactly(sock, FRAME.size))
    if header_bytes > MAX_HEADER or blob_bytes > MAX_BLOB:
        raise ConnectError(
            f"frame of {header_bytes} + {blob_bytes} bytes: at most {MAX_HEADER} + {MAX_BLOB} expected."
        )
    try:
        header = json.loads(receive_exactly(sock, header_bytes))
    except ValueError as error:
        raise ConnectError(f"frame header is not JSON ({error}).") from None
    if not isinstance(header, dict):
        raise ConnectError(f"frame header is a {type(header).__name__}: expected an object.")
    return header, receive_exactly(sock, blob_bytes)


def new_secret() -> bytes:
    """256 random bits."""
    return secrets.token_bytes(32)


def nonce() -> bytes:
    """A fresh nonce of one connection."""
    return secrets.token_bytes(NONCE)


def proof(secret: bytes, role: bytes, first: bytes, second: bytes, hello: bytes) -> bytes:
    """What only someone who knows the secret can compute for these nonces."""
    return hmac.digest(secret, role + first + second + hello, "sha256")


def check_reply(secret: bytes, nonce_a: bytes, reply: bytes) -> tuple[Hello, bytes]:
    """The acceptor's check of a dialer's reply: (who it is, our proof to send back); ConnectError if it is false."""
    hello, nonce_d, mac = reply[: HELLO.size], reply[HELLO.size : HELLO.size + NONCE], reply[-MAC:]
    if not hmac.compare_digest(mac, proof(secret, b"dial", nonce_a, nonce_d, hello)):
        raise ConnectError("a stranger dialled: its proof of the job's secret is wrong.")
    return Hello.unpack(hello), proof(secret, b"accept", nonce_d, nonce_a, hello)


def dial(
    address: tuple[str, int],
    source: str,
    hello: Hello,
    secret: bytes,
    timeout_s: float,
    hold: Callable[[socket.socket], None] | None = None,
) -> socket.socket:
    """A connected, mutually authenticated socket; ConnectError naming both ends otherwise.

    `source`: local address to bind to (the NIC's), "" for any. `hold` gets the socket before the greeting, so that its owner
    can shut it down from another thread.
    """
    try:
        sock = socket.create_connection(
            address, timeout=timeout_s, source_address=(source, 0) if source else None
        )
    except OSError as error:
        raise ConnectError(
            f"rank {hello.rank} cannot reach {address[0]}:{address[1]} from {source or 'any address'}: {error}.",
            rank=hello.rank,
            nic=hello.nic,
        ) from None
    try:
        if hold:
            hold(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        nonce_a, nonce_d, packed = receive_exactly(sock, NONCE), nonce(), hello.pack()
        sock.sendall(packed + nonce_d + proof(secret, b"dial", nonce_a, nonce_d, packed))
        answer = receive_exactly(sock, MAC)
        if not hmac.compare_digest(answer, proof(secret, b"accept", nonce_d, nonce_a, packed)):
            raise ConnectError(f"{address[0]}:{address[1]} does not know this job's secret.")
        sock.settimeout(None)
        return sock
    except (ConnectError, OSError) as error:
        sock.close()
        raise ConnectError(
            f"rank {hello.rank} reached {address[0]}:{address[1]} but was not let in: {error} "
            "Is another job on this port, or the secret different?",
            rank=hello.rank,
            nic=hello.nic,
        ) from None
