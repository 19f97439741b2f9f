"""Ports for tests that must name one before anybody listens on it.

Is: a port below the range from which the kernel takes those of outgoing connections. Port 0 takes one of that range, and
between its closing and its use by the test another process's connection may be given it.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

_FROM, _TO = 10_000, 30_000
_dice = random.SystemRandom()  # not `random`: tests seed it, and processes that run beside each other must not agree


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing holds. Raises OSError after 100 ports that are taken."""
    kernel = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first_of_kernel = int(kernel.read_text().split()[0]) if kernel.exists() else _TO
    for _ in range(100):
        port = _dice.randrange(_FROM, max(min(first_of_kernel, _TO), _FROM + 1))
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port found in {_FROM}..{_TO}")
