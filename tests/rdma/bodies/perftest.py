"""`ib_write_bw` from machine 1 to machine 0 on rails 1..NICS at once: `perftest BYTES ITERATIONS`.

Machine 1 prints {"seconds": from the first client's start to the last one's end, "sent": RDMA packets per NIC}. perftest itself prints
rates of 0 here, because the machine has no clock frequency in /proc/cpuinfo; the seconds include its start and its exchange of addresses.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ccl_lab import rdma

from .control import ME, NICS, Meeting

FIRST_PORT, LISTENS, LIMIT_S = 18_515, "0A", 300


def _command(rail: int, nbytes: int, iterations: int, queue_pairs: int, both_ways: bool) -> list[str]:
    port = rdma.port(f"rxe{rail}")
    assert port.gid
    return ["ib_write_bw", "-F", "-d", port.device, "-x", str(port.gid.index), "-p", str(FIRST_PORT + rail),
            "-s", str(nbytes), "-n", str(iterations), "-q", str(queue_pairs), *["-b"] * both_ways]  # fmt: skip


def _start(command: list[str], preload: str) -> subprocess.Popen[str]:
    environment = dict(os.environ, LD_PRELOAD=preload) if preload else None
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _listening() -> set[int]:
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENS:
                found.add(int(words[1].rsplit(":", 1)[1], 16))
    return found


def _end(programs: list[subprocess.Popen[str]]) -> None:
    for program in programs:
        printed, _ = program.communicate(timeout=LIMIT_S)
        assert program.returncode == 0, printed


def write_bw(
    meeting: Meeting, rails: Sequence[int], nbytes: int, iterations: int, queue_pairs: int = 1, preload: str = "", both_ways: bool = False
) -> float:
    """Seconds from the start of the clients to the end of the last, on machine 1; machine 0 serves, and gives 0. preload: a library.
    both_ways: machine 0 writes as much at the same time."""
    commands = [_command(rail, nbytes, iterations, queue_pairs, both_ways) for rail in rails]
    if ME == 0:
        servers = [_start(command, preload) for command in commands]
        while not {FIRST_PORT + rail for rail in rails} <= _listening():
            assert all(server.poll() is None for server in servers), "a server ended before a client came"
            time.sleep(0.01)
        meeting.exchange()
        _end(servers)
        return 0.0
    meeting.exchange()
    begin = time.monotonic()
    _end([_start([*command, f"10.77.{rail}.1"], preload) for command, rail in zip(commands, rails, strict=True)])
    return time.monotonic() - begin


def main() -> None:
    meeting, ports = Meeting(), rdma.ports()
    before = rdma.read(of=ports)
    seconds = write_bw(meeting, range(1, NICS + 1), int(sys.argv[1]), int(sys.argv[2]))
    sent = [now.tx_packets - old.tx_packets for old, now in zip(before, rdma.read(of=ports), strict=True)]
    if ME == 1:
        print(json.dumps({"seconds": seconds, "sent": sent}))


if __name__ == "__main__":
    main()
