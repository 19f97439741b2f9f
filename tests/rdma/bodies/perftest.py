"""`ib_write_bw` from machine 1 to machine 0 on rails 1..NICS at once: `perftest BYTES ITERATIONS [QUEUE_PAIRS]`.

Machine 1 prints {"seconds": from the first client's start to the last one's end, "sent": RDMA packets per NIC}. perftest itself prints
rates of 0 here, because the machine has no clock frequency in /proc/cpuinfo; the seconds include its start and its exchange of addresses.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from ccl_lab import rdma

from .control import ME, NICS, Meeting

FIRST_PORT, LISTENS = 18_515, "0A"


def _start(rail: int, peer: str | None) -> subprocess.Popen[str]:
    nbytes, iterations, queue_pairs = sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "1"
    port = rdma.port(f"rxe{rail}")
    assert port.gid
    command = ["ib_write_bw", "-F", "-d", port.device, "-x", str(port.gid.index), "-p", str(FIRST_PORT + rail),
               "-s", nbytes, "-n", iterations, "-q", queue_pairs]  # fmt: skip
    words = command + ([peer] if peer else [])
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


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
        printed, _ = program.communicate(timeout=300)
        assert program.returncode == 0, printed


def main() -> None:
    meeting, rails = Meeting(), range(1, NICS + 1)
    if ME == 0:
        servers = [_start(rail, None) for rail in rails]
        while not {FIRST_PORT + rail for rail in rails} <= _listening():
            assert all(server.poll() is None for server in servers), "a server ended before a client came"
            time.sleep(0.01)
        meeting.exchange()
        _end(servers)
        return
    ports = [rdma.port(f"rxe{rail}") for rail in rails]
    meeting.exchange()
    before, begin = rdma.read(of=ports), time.monotonic()
    _end([_start(rail, f"10.77.{rail}.1") for rail in rails])
    seconds = time.monotonic() - begin
    sent = [now.tx_packets - old.tx_packets for old, now in zip(before, rdma.read(of=ports), strict=True)]
    print(json.dumps({"seconds": seconds, "sent": sent}))


main()
