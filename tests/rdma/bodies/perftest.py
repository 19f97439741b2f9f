"""`ib_write_bw` from machine 1 to machine 0 on rails 1..NICS at once: `perftest BYTES ITERATIONS [CLOCK]`.

Machine 1 prints {"seconds": from the first client's start to the last one's end, "sent": RDMA packets per NIC}. perftest itself prints
rates of 0 here, because the machine has no clock frequency in /proc/cpuinfo; the seconds include its start and its exchange of addresses,
which take longer than most transfers. With a `clock` (bench/perftest_clock.c) they are those of the transfers alone.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
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


def _start(command: list[str], clocked: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, env=os.environ | clocked, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _listening() -> set[int]:
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENS:
                found.add(int(words[1].rsplit(":", 1)[1], 16))
    return found


def _end(programs: list[subprocess.Popen[str]]) -> list[str]:
    """What each printed."""
    every = []
    for program in programs:
        printed, _ = program.communicate(timeout=LIMIT_S)
        assert program.returncode == 0, printed
        every.append(printed)
    return every


def clocked_seconds(printed: Sequence[str]) -> float:
    """From the first write of any of the programs to the last completion of all."""
    times = [re.search(r"^clock (\d+) (\d+)$", each, re.MULTILINE) for each in printed]
    begins, ends = zip(*((int(found[1]), int(found[2])) for found in times if found), strict=True)
    assert len(begins) == len(printed), f"{len(printed) - len(begins)} of {len(printed)} programs said no time"
    return (max(ends) - min(begins)) * 1e-9


def write_bw(
    meeting: Meeting, rails: Sequence[int], nbytes: int, iterations: int, queue_pairs: int = 1, clock: str = "", yields: bool = False,
    both_ways: bool = False,
) -> float:  # fmt: skip
    """Seconds on machine 1; machine 0 serves, and gives 0. clock: bench/perftest_clock.c as a library: from the first write, before which
    all rails wait for each other, to the last completion; without it from the start of the clients to the end of the last. yields: with
    a clock, polls that find nothing give the core up. both_ways: machine 0 writes as much at the same time."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:  # where the programs of all rails meet
        clocked = {"LD_PRELOAD": clock, "PERFTEST_MEETING": f"{file.name}:{len(rails)}", "PERFTEST_YIELDS": str(int(yields))}
        clocked = clocked if clock else {}
        commands = [_command(rail, nbytes, iterations, queue_pairs, both_ways) for rail in rails]
        if ME == 0:
            servers = [_start(command, clocked) for command in commands]
            while not {FIRST_PORT + rail for rail in rails} <= _listening():
                assert all(server.poll() is None for server in servers), "a server ended before a client came"
                time.sleep(0.01)
            meeting.exchange()
            _end(servers)
            return 0.0
        meeting.exchange()
        begin = time.monotonic()
        printed = _end([_start([*command, f"10.77.{rail}.1"], clocked) for command, rail in zip(commands, rails, strict=True)])
        return clocked_seconds(printed) if clock else time.monotonic() - begin


def main() -> None:
    meeting, ports = Meeting(), rdma.ports()
    before = rdma.read(of=ports)
    seconds = write_bw(meeting, range(1, NICS + 1), int(sys.argv[1]), int(sys.argv[2]), clock="".join(sys.argv[3:]))
    sent = [now.tx_packets - old.tx_packets for old, now in zip(before, rdma.read(of=ports), strict=True)]
    if ME == 1:
        print(json.dumps({"seconds": seconds, "sent": sent}))


if __name__ == "__main__":
    main()
