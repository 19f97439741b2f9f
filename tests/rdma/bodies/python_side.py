"""What ccl_lab.rdma says of the NICs of two machines while machine 1 writes to machine 0 over NIC 1."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from ccl_lab import rdma
from ccl_lab.trace.rates import rate_bins

from .control import ME, Meeting
from .link import Link

BYTES, WRITES = 1 << 20, 8


def name_of_error(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:  # what it is, is what is asked
        return type(error).__name__
    return "none"


def errors(link: Link) -> dict[str, str]:
    peer = rdma.address(link.qp, link.port)
    found = {
        "device": name_of_error(lambda: rdma.open_device("rxe9")),
        "gid": name_of_error(lambda: rdma.address(link.qp, link.port, 99)),
        "retries": name_of_error(lambda: rdma.connect(link.qp, link.port, peer, retries=7)),
        "late": name_of_error(lambda: rdma.wait(link.cq, 1, 0.05)),
    }
    rdma.to_error(link.qp)
    # Ready-to-send cannot be reached from the state "error".
    return found | {"closed": name_of_error(lambda: rdma.connect(link.qp, link.port, peer))}


def batch(link: Link, meeting: Meeting) -> None:
    if ME == 0:
        link.receive(WRITES)
    meeting.exchange()
    if ME == 1:
        for number in range(WRITES):
            link.write(number, BYTES)
    assert link.statuses(WRITES) == ["IBV_WC_SUCCESS"] * WRITES


def main() -> None:
    meeting = Meeting()
    link = Link(meeting, 1, BYTES, timeout=16, retries=6)
    ports = rdma.ports()
    before = rdma.read(of=ports)
    recorded: list[Any] = []
    recorder = threading.Thread(target=lambda: recorded.append(rdma.record(1.0, 0.1)))
    recorder.start()
    batches = 0
    while any((mine := recorder.is_alive(), meeting.exchange(mine))):
        batch(link, meeting)
        batches += 1
    time.sleep(2 * before[1].others["lifespan"] / 1000)  # what the recorder has read counts as new until then
    after = rdma.read(of=ports)
    meeting.exchange()
    (trace,) = recorded
    bins = rate_bins(trace, 100_000_000)
    gid = link.port.gid
    assert gid
    print(json.dumps({
        "nbytes": BYTES * WRITES * batches, "gid": {"kind": gid.kind, "ip": gid.ip}, "attributes": rdma.attributes("rxe1"),
        "sent": [new.tx_packets - old.tx_packets for old, new in zip(before, after, strict=True)],
        "received": [new.rx_packets - old.rx_packets for old, new in zip(before, after, strict=True)],
        "carried_bytes": [int(trace.where(track=1, index=nic)["nbytes"].sum()) for nic in (0, 1)],
        "peak_gbits_per_s": {"tx": float(bins.gbits_per_s.max())},
        "errors": errors(link),
    }))  # fmt: skip


main()
