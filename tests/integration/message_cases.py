"""Queues of messages, which overlap: what test_messages.py launches on every rank, and the rig over verbs.

Is: one function a property, run by all ranks with the same seeds. Is not: a launcher.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

MIB = 1 << 20


def values(rank: int, number: int, nbytes: int) -> np.ndarray:
    """Bytes that say whose they are, and of which message."""
    return np.random.default_rng(1000 * number + rank).integers(0, 256, nbytes, np.uint8)


def stream(comm: Any, count: int, nbytes: int, places: int, meanwhile: Callable[[int], None] = lambda _: None) -> None:
    """`count` messages from rank 0 to the last, all started at once, from `count` places into `places`; the last of each place stays."""
    last = comm.size - 1
    memory = [comm.empty(nbytes, "uint8") for _ in range(count if comm.rank == 0 else places)]
    if comm.rank == 0:
        for number, each in enumerate(memory):
            each[:] = values(0, number, nbytes)
    else:
        for each in memory:
            each[:] = 0
    comm.barrier()
    works = []
    for number in range(count):
        if comm.rank == 0:
            works.append(comm.send(memory[number], last, async_op=True))
        elif comm.rank == last:
            works.append(comm.recv(memory[number % places], 0, async_op=True))
    meanwhile(comm.rank)
    for work in works:
        work.wait("60s")
    if comm.rank == last:
        for number in range(count - places, count):
            assert (memory[number % places] == values(0, number, nbytes)).all(), number


def queues(comm: Any) -> None:
    """Into one place, each after the one before; into several, ahead; sizes that are copied, and that are cut."""
    for nbytes in (40, 9000, MIB, 5 * MIB):
        for places in (1, 2, 6):
            stream(comm, 12, nbytes, places)


def both_ways(comm: Any) -> None:
    """Messages around a ring, with sums between them that read what has come: nothing is written before it was read."""
    n, me, count, size = comm.size, comm.rank, 8, 50_000
    right, left = (me + 1) % n, (me - 1) % n
    sent = [comm.empty(size, "int32") for _ in range(count)]
    got = [comm.empty(size, "int32") for _ in range(2)]
    sums = [comm.empty(size, "int32") for _ in range(count)]
    for number, each in enumerate(sent):
        each[:] = 10 * number + me
    comm.barrier()
    works = []
    for number in range(count):
        ways = [lambda at=number: comm.send(sent[at], right, async_op=True), lambda at=number: comm.recv(got[at % 2], left, async_op=True)]
        works += [way() for way in (ways[::-1] if me % 2 else ways)]  # one at a time: somebody has to receive first
        works.append(comm.all_reduce(got[number % 2], out=sums[number], async_op=True))
    for work in works:
        work.wait("60s")
    for number, each in enumerate(sums):
        assert (each == 10 * number * n + n * (n - 1) // 2).all(), (number, each[:3])


def nic_lost(comm: Any, nics: int, gbits: float) -> None:
    """A NIC goes down while messages wait for one another: each is whole, none was written over by one before it."""
    engine, rate, hits = comm._member.engine, int(gbits * 125e6), 0
    for turn in range(40):  # on a busy machine all may be over before the NIC is down
        lost = engine.rails()["lost"]

        def pull(rank: int, turn: int = turn) -> None:
            if rank == 0:
                time.sleep(0.02)
                engine.set_nic(turn % nics, rate, up=False)

        stream(comm, 10, 2 * MIB, 4, pull)
        if comm.rank == 0:
            engine.set_nic(turn % nics, rate, up=True)
            hits += engine.rails()["lost"] > lost
        _until_up(engine)
        if comm.broadcast(np.array([hits]))[0] >= 2:
            return
    raise AssertionError("no NIC was pulled in the middle of the messages")


def _until_up(engine: Any) -> None:
    deadline = time.monotonic() + 60
    while not all(path["state"] == "up" for path in engine.rails()["paths"]):
        assert time.monotonic() < deadline, engine.rails()
        time.sleep(0.02)
