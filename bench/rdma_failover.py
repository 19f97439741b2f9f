"""A NIC that is pulled in the middle of an all_reduce over verbs, inside two machines of the rig: how soon sending goes on.

Words: rounds, bytes, faults of `link` (the interface of the NIC is switched off, by one system call) and `qp` (a queue pair of it goes to
the error state). Machine 1 cuts its NIC 0 a fraction of an all_reduce's time after its begin; both machines look at what their repair
says and compare the sums. Each prints a JSON line for each round. Clocks of the machines differ, so times from the cut are those of
machine 1. A round in which neither machine had to send a segment again was not hit in mid-transfer, and its times do not count.

    python -m bench.rdma failover     runs it
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import ccl_lab as ccl
from ccl_lab._core import Segment
from tests.rdma.bodies.jobs import MACHINES, ME, NICS, join, numbers, paths, sh, summed

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
FRACTIONS = (0.2, 0.35, 0.5, 0.65, 0.8)
BACK_S, TIMEOUT = 40, "60s"


def interface_down(name: str) -> int:
    """Switches an interface off; the time at which it was asked for."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        asked = struct.pack("16sh14x", name.encode(), 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(sock, SIOCGIFFLAGS, asked))[1]
        begin_ns = time.monotonic_ns()
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh14x", name.encode(), flags & ~IFF_UP))
    return begin_ns


def queue_pair_to_error(comm: Any) -> int:
    """One queue pair of NIC 0; the time at which it was asked for."""
    segment = Segment.open(os.getpid(), comm._member.engine.segment_fd)
    begin_ns = time.monotonic_ns()
    segment.set_fault(0, "sever", 1)
    return begin_ns


def healthy(comm: Any, x: np.ndarray) -> float:
    """Seconds of an all_reduce, the same on both machines."""
    comm.barrier()
    begin = time.monotonic()
    comm.all_reduce(x, out=x, timeout=TIMEOUT)
    return float(comm.all_reduce(np.array([time.monotonic() - begin]), "max")[0])


def hit(comm: Any, x: np.ndarray, cut: Callable[[], int], after_s: float, heard: list[dict[str, Any]], seed: int) -> dict[str, Any]:
    """One all_reduce in which machine 1 cuts its NIC."""
    x[:] = numbers(ME, x.shape, seed)
    comm.barrier()
    heard.clear()
    begin = time.monotonic()
    work = comm.all_reduce(x, out=x, async_op=True, timeout=TIMEOUT)
    cut_ns = 0
    if ME == 1:
        time.sleep(max(begin + after_s - time.monotonic(), 0))
        cut_ns = cut()
    work.wait()
    seconds = time.monotonic() - begin
    exact = bool(np.array_equal(x, summed(x.shape, seed)))
    comm.barrier()
    time.sleep(0.2)  # what the repair says comes by a thread of its own
    said = [each for each in list(heard) if each["nic"] == 0]
    lost = [each["at_ns"] for each in said if each["kind"] == "lost"]
    resumed = [each for each in said if each["kind"] == "resumed"]
    found: dict[str, Any] = {
        "machine": ME, "exact": exact, "seconds": seconds, "lost": len(lost), "sent_again": sum(each["segments"] for each in resumed),
        "why": next((each["text"] for each in said if each["kind"] == "lost"), ""),
    }  # fmt: skip
    if lost and resumed:
        found["lost_to_resumed_ms"] = (resumed[0]["at_ns"] - lost[0]) / 1e6
        if ME == 1:
            found |= {"cut_to_lost_ms": (lost[0] - cut_ns) / 1e6, "cut_to_resumed_ms": (resumed[0]["at_ns"] - cut_ns) / 1e6}
    return found


def come_back(comm: Any, x: np.ndarray) -> bool:
    """All paths are up again on both machines."""
    deadline = time.monotonic() + BACK_S
    while True:
        comm.all_reduce(x, out=x, timeout=TIMEOUT)
        up, late = comm.all_reduce(np.array([set(paths(comm)["states"]) == {"up"}, ME == 0 and time.monotonic() > deadline], np.int32))
        if up == MACHINES or late:
            return bool(up == MACHINES)
        time.sleep(0.05)


def main() -> None:
    """Every fault, at every fraction in turn."""
    rounds, nbytes = int(sys.argv[1]), int(sys.argv[2])
    with join(rdma="qps=4", timeout=TIMEOUT) as comm:
        heard: list[dict[str, Any]] = []
        comm._member._repair._tell = heard.extend
        x, small = ccl.empty(nbytes // 4, "int32"), ccl.empty(1 << 12, "int32")
        x[:] = 0
        small[:] = 0
        comm.all_reduce(x, out=x)
        for fault in sys.argv[3:]:
            cut = (lambda: interface_down("eth1")) if fault == "link" else (lambda: queue_pair_to_error(comm))
            for round_ in range(rounds):
                x[:] = 0
                expected_s, fraction = healthy(comm, x), FRACTIONS[round_ % len(FRACTIONS)]
                found = hit(comm, x, cut, fraction * expected_s, heard, 1 + round_)
                if ME == 1 and fault == "link":
                    sh(f"ip link set eth1 up && ip addr replace 10.77.1.{ME + 1}/24 dev eth1")
                found |= {"fault": fault, "round": round_, "fraction": fraction, "healthy_s": expected_s, "nics": NICS}
                print(json.dumps(found | {"back": come_back(comm, small)}), flush=True)


if __name__ == "__main__":
    main()
