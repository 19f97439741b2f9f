"""Machine 1 breaks its NIC while writes are on their way to machine 0, and prints what it was told; machine 0 prints what it saw.

The first argument says how: cable, cable_back, interface, loss, queue_pair.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from ccl_lab import rdma

from .control import ME, Meeting, shell
from .link import Link

HOW, BYTES, WRITES = sys.argv[1], 1 << 20, 8
BREAK = {
    "cable": "ip -n wire link set cable1 down",
    "cable_back": "ip -n wire link set cable1 down",
    "interface": "ip link set eth1 down",
    "loss": "tc qdisc add dev eth1 root netem loss 100%",
}
MEND = {
    "cable": "ip -n wire link set cable1 up",
    "interface": "ip link set eth1 up",
    "loss": "tc qdisc del dev eth1 root",
}
# Long where something must be seen before the retries run out, or nothing waits for them, on however busy a host; else as short as
# the first write, which must arrive, lets it be.
TIMEOUT, RETRIES = {"cable": (16, 2), "loss": (15, 2)}.get(HOW, (18, 6))


def sender(link: Link, meeting: Meeting) -> dict[str, Any]:
    link.write(0, BYTES)
    found: dict[str, Any] = {"healthy": link.statuses(1)}
    began = time.monotonic()
    if HOW == "queue_pair":
        for number in range(1, WRITES + 1):
            link.write(number, BYTES)
        rdma.to_error(link.qp)
    else:
        shell(BREAK[HOW])
        for number in range(1, WRITES + 1):
            link.write(number, BYTES)
    found["event"] = link.event(1.0 if HOW in ("loss", "queue_pair") else 10.0)
    found["state_at_event"] = link.state()
    if HOW == "cable_back":
        shell("ip -n wire link set cable1 up")
        found["back"] = link.event(10.0)
    found["statuses"] = link.statuses(WRITES)
    found["seconds"], found["state"] = time.monotonic() - began, link.state()
    meeting.exchange()
    if HOW in MEND:
        shell(MEND[HOW])
        found["mended"] = link.event(10.0) if HOW != "loss" else None
    return found


def receiver(link: Link, meeting: Meeting) -> dict[str, Any]:
    link.receive(WRITES + 1)
    found: dict[str, Any] = {"healthy": link.statuses(1)}
    meeting.exchange()
    arrived = WRITES if HOW == "cable_back" else 0
    found |= {"arrived": link.statuses(arrived), "event": link.event(0.2), "state": link.state()}
    found["more"] = [rdma.status_name(one.status) for one in link.cq.poll(WRITES)[1]]
    return found


def main() -> None:
    meeting = Meeting()
    link = Link(meeting, 1, BYTES, TIMEOUT, RETRIES)
    found = (receiver if ME == 0 else sender)(link, meeting)
    meeting.exchange()
    if HOW != "cable_back":
        # Whatever was broken: a new queue pair on the mended NIC carries bytes again.
        link.again(meeting)
        if ME == 0:
            link.receive()
        meeting.exchange()
        if ME == 1:
            link.memory.write(b"again", 5)
            link.write(77, BYTES)
        found["again"] = link.statuses(1)
        found["bytes"] = link.memory.read(5, 0).decode(errors="replace")
        meeting.exchange()
    print(json.dumps(found))


main()
