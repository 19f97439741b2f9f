"""Who does not know the secret of a world cannot change or stop anything."""

from __future__ import annotations

import os
import socket

import ccl_lab as ccl
from ccl_lab.engine.world import nic_addresses


def listening(world) -> list[tuple[str, int]]:
    """(address, port) of every socket the ranks of this world listen on, from the kernel's table."""
    inodes = set()
    for pid in world.status()["pids"].values():
        inodes |= {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table) as rows:
            for row in [line.split() for line in rows][1:]:
                if row[3] == "0A" and f"socket:[{row[9]}]" in inodes:
                    address, port = row[1].split(":")
                    found.append(
                        (".".join(str(byte) for byte in reversed(bytes.fromhex(address))), int(port, 16))
                    )
    return found


def test_strangers_on_every_port_change_nothing(world):
    schedule = ccl.plan("all_reduce", world.topology, "1MiB", algorithm="ring")
    world.run(schedule)
    ports = listening(world)
    nics = {address for node in range(2) for address in nic_addresses(world.topology, node)}
    assert len(ports) == 8 and {address for address, _ in ports} == nics, (
        "every rank listens on its node's NICs, nowhere else"
    )
    held = []
    for address in ports:
        for junk in (b"", b"GET / HTTP/1.0\r\n\r\n", os.urandom(4096)):
            stranger = socket.create_connection(address)
            if junk:
                stranger.sendall(junk)
            held.append(stranger)
    run = world.start(schedule, repeat=3)
    run.wait(20)
    run.check()
    for stranger in held:
        stranger.close()
