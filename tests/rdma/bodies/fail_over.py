"""NICs of machine 1 break in the middle of all_reduces, heal, and come back; prints what happened to each.

Words: which faults, of `link` (the interface is switched off), `cable` (pulled), `silent` (packets are lost, nobody is told), `moved` (the
NIC gets another address: its GID changes), `qp` (a queue pair goes to the error state).
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import ccl_lab as ccl
from ccl_lab._core import Segment

from .jobs import MACHINES, ME, join, numbers, paths, reasons, sh, summed

NBYTES = 24 << 20
BREAK = {
    "link": "ip link set eth1 down",
    "cable": "ip -n wire link set cable1 down",
    "silent": "tc qdisc add dev eth1 root netem loss 100%",
    "moved": f"ip addr del 10.77.1.{ME + 1}/24 dev eth1",
}
HEAL = {
    "link": f"ip link set eth1 up && ip addr replace 10.77.1.{ME + 1}/24 dev eth1",
    "cable": "ip -n wire link set cable1 up",
    "silent": "tc qdisc del dev eth1 root",
    "moved": f"ip addr add 10.77.1.{ME + 1}/24 dev eth1",
    "qp": "true",
}


def reduce_exactly(comm: Any, x: np.ndarray, seed: int) -> bool:
    x[:] = numbers(ME, x.shape, seed)
    comm.all_reduce(x, out=x, timeout="40s")
    return np.array_equal(x, summed(x.shape, seed))


def hurt(fault: str) -> None:
    """On machine 1, soon: when an all_reduce is under way."""
    if ME == 1 and fault in BREAK:
        subprocess.Popen(f"sleep 0.15; {BREAK[fault]}", shell=True)


def sever(comm: Any) -> None:
    """On machine 1, in the next transfer."""
    if ME == 1:
        Segment.open(os.getpid(), comm._member.engine.segment_fd).set_fault(0, "sever", 1)


def until(comm: Any, x: np.ndarray, reached: Callable[[dict[str, Any]], bool], severing: bool = False) -> str:
    """all_reduces until the paths of every rank have come to something, or too much time has passed: "exact", or what was not so.
    Every rank leaves at the same turn. A queue pair is severed each time: one whose peer has just lost the path by itself costs
    that peer none."""
    deadline, exact = time.monotonic() + 40, True
    while True:
        if severing:
            sever(comm)
        exact = reduce_exactly(comm, x, 5) and exact
        late = ME == 0 and time.monotonic() > deadline
        there, too_late = comm.all_reduce(np.array([reached(paths(comm)), late], np.int32))
        if there == MACHINES or too_late:
            return "wrong sums" if not exact else "exact" if there == MACHINES else f"{there} of {MACHINES} ranks in 40 s: {paths(comm)}"
        time.sleep(0.05)


with join() as comm:
    why = reasons(comm)
    large = ccl.empty(NBYTES // 4, "int32")
    story: dict[str, Any] = {"healthy": reduce_exactly(comm, large, 1)}
    for turn, fault in enumerate(sys.argv[1:], 1):
        before = paths(comm)["lost"]  # a busy host may lose a path by itself
        comm.barrier()  # every rank has counted before anything breaks
        hurt(fault)
        broken = until(comm, large, lambda now, before=before: now["lost"] > before, fault == "qp")  # type: ignore[misc]
        if ME == 1:
            sh(HEAL[fault])
        back = until(comm, large[:5000], lambda now: set(now["states"]) == {"up"})
        story[fault] = {"broken": broken, "healed": back, "before": before, "after": paths(comm), "why": why[turn - 1 :]}
print(json.dumps(story))
