"""What `bench.rdma` times, inside two machines of the rig: perftest's ib_write_bw and whoever is compared with it, in turns.

A side is a function (meeting, rails, bytes, transfers) that both machines call: machine 1 moves that many transfers of so many bytes to
machine 0 on each rail, all rails at once, and gives the seconds from its first write to its last completion, with memory registered and
connections up; on machine 0 the number is ignored. Every round asks each side once, in turns, and in the opposite order every other time.
Another transport is compared by adding its side to SIDES.

    python -m bench rdma     runs it; machine 1 prints a JSON row per case
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ccl_lab as ccl
from bench.peers.programs import cache
from ccl_lab import rdma
from tests.rdma.bodies.control import ME, Meeting
from tests.rdma.bodies.jobs import join
from tests.rdma.bodies.link import DEPTH, Link
from tests.rdma.bodies.perftest import write_bw

Side = Callable[[Meeting, Sequence[int], int, int], float]
PROGRAM, BY_HAND = cache() / "bin/ccl_lab_bench_verbs", cache() / "bin/ccl_lab_bench_sums_by_hand"
LIMIT_S = 120
CLOCK = Path(__file__).resolve().parent.parent / "build/bench/perftest_clock.so"
FEWEST = 5  # perftest takes no fewer
IN_FLIGHT = DEPTH // 2
QUEUE_PAIRS = 1  # of every side, for each pair of NICs: perftest's default
PIECE = 512 << 10  # of a write by hand: a segment of the engine
IN_TURN = 4  # buffers of a stream of messages: while one arrives, those after it have a place
TIMEOUT, RETRIES = 18, 6  # nothing is to fail here, however busy the host


def pyverbs(meeting: Meeting, rails: Sequence[int], nbytes: int, transfers: int) -> float:
    """Writes with immediate data by hand, at most IN_FLIGHT per NIC, the core given up between looks."""
    links = [Link(meeting, rail, nbytes, TIMEOUT, RETRIES) for rail in rails]
    left, flying = dict.fromkeys(range(len(links)), transfers), dict.fromkeys(range(len(links)), 0)
    for link in links if ME == 0 else ():
        link.receive(min(transfers, DEPTH))
    posted = dict.fromkeys(range(len(links)), min(transfers, DEPTH))
    meeting.exchange()
    begin = time.monotonic()
    while any(left.values()):
        for number, link in enumerate(links):
            while ME == 1 and flying[number] < min(IN_FLIGHT, left[number]):
                link.write(0, nbytes)
                flying[number] += 1
            for done in link.cq.poll(DEPTH)[1]:
                assert done.status == 0, rdma.status_name(done.status)
                left[number] -= 1
                flying[number] -= 1
                if ME == 0 and posted[number] < transfers:
                    link.receive()
                    posted[number] += 1
        os.sched_yield()
    seconds = time.monotonic() - begin
    meeting.exchange()
    return seconds


def perftest(meeting: Meeting, rails: Sequence[int], nbytes: int, transfers: int) -> float:
    """perftest as it comes, a program for each NIC; its library says the times (perftest_clock.c)."""
    return write_bw(meeting, rails, nbytes, transfers, clock=str(CLOCK))


def yielding(meeting: Meeting, rails: Sequence[int], nbytes: int, transfers: int) -> float:
    """perftest at its best here: a poll that finds nothing gives the core up."""
    return write_bw(meeting, rails, nbytes, transfers, clock=str(CLOCK), yields=True)


def both_ways(meeting: Meeting, rails: Sequence[int], nbytes: int, transfers: int) -> float:
    """The same while machine 0 writes as much: what the one core of a machine sends and receives at once."""
    return write_bw(meeting, rails, nbytes, transfers, clock=str(CLOCK), yields=True, both_ways=True)


def transport(meeting: Meeting, rails: Sequence[int], nbytes: int, transfers: int) -> float:
    """The verbs transport alone: puts with a signal each (native/bench/verbs.cpp)."""
    words = [str(PROGRAM), str(ME), str(nbytes), str(transfers), "1", *(f"10.77.{rail}.1" for rail in rails)]
    found = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
    assert found.returncode == 0, found.stderr
    return float(found.stdout) if ME == 1 else 0.0


def settings_of(rails: Sequence[int]) -> dict[str, str]:
    """Of a job whose NICs have one queue pair for each pair."""
    return {"nics": ",".join(f"eth{rail}" for rail in rails), "rdma": f"qps={QUEUE_PAIRS}", "trace_spans": "0", "timeout": "300s"}


def all_at_once(comm: Any, start: Callable[[int], Any], transfers: int) -> float:
    """Seconds from a barrier until all that `start` made of their numbers have ended."""
    comm.barrier()
    begin = time.monotonic()
    for work in [start(i) for i in range(transfers)]:
        work.wait()
    seconds = time.monotonic() - begin
    comm.barrier()
    return seconds


def engine(meeting: Meeting, rails: Sequence[int], nbytes: int, transfers: int) -> float:
    """Sends through `ccl_lab.init()` over verbs, all started at once, of `nbytes` for each NIC, to and from IN_TURN buffers in turn."""
    gc.collect()  # a communicator keeps its 64 GiB of addresses until it is collected, and a machine of the rig has 512
    with join(**settings_of(rails)) as comm:
        memory = [ccl.empty(len(rails) * nbytes, "uint8") for _ in range(IN_TURN)]
        move = comm.recv if ME == 0 else comm.send
        for each in memory:
            move(each, 1 - ME)  # makes the connections, registers the memory
        return all_at_once(comm, lambda i: move(memory[i % IN_TURN], 1 - ME, async_op=True), transfers)


def all_reduce(meeting: Meeting, rails: Sequence[int], nbytes: int, transfers: int) -> float:
    """Sums of `nbytes` for each NIC, which a machine sends once and receives once, all started at once, in IN_TURN buffers in turn."""
    return sums(rails, nbytes, transfers, IN_TURN)


def all_reduce_in_place(meeting: Meeting, rails: Sequence[int], nbytes: int, transfers: int) -> float:
    """The same in one buffer: each begins when the one before it has ended."""
    return sums(rails, nbytes, transfers, 1)


def by_hand(meeting: Meeting, rails: Sequence[int], nbytes: int, transfers: int) -> float:
    """What all_reduce does, without an engine, in as many buffers: the core limit (native/bench/sums_by_hand.cpp)."""
    return bare(rails, nbytes, transfers, IN_TURN)


def by_hand_in_place(meeting: Meeting, rails: Sequence[int], nbytes: int, transfers: int) -> float:
    """The same of all_reduce_in_place."""
    return bare(rails, nbytes, transfers, 1)


def bare(rails: Sequence[int], nbytes: int, transfers: int, n_buffers: int) -> float:
    """Seconds of the later of both machines."""
    words = [BY_HAND, ME, nbytes, transfers, n_buffers, PIECE, 1, *(f"10.77.{rail}.1" for rail in rails)]
    found = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=LIMIT_S)
    assert found.returncode == 0, found.stderr
    return float(found.stdout.split()[0])


def sums(rails: Sequence[int], nbytes: int, transfers: int, n_buffers: int) -> float:
    """Seconds of so many sums in so many buffers in turn."""
    gc.collect()
    with join(**settings_of(rails)) as comm:
        memory = [ccl.empty(len(rails) * nbytes // 4, "int32") for _ in range(n_buffers)]
        for each in memory:
            each[:] = 0
            comm.all_reduce(each, out=each)
        return all_at_once(comm, lambda i: comm.all_reduce(memory[i % n_buffers], out=memory[i % n_buffers], async_op=True), transfers)


def one_sided(meeting: Meeting, rails: Sequence[int], nbytes: int, transfers: int) -> float:
    """Puts into a window of machine 0, all started at once, of `nbytes` for each NIC; machine 0 calls nothing until all are there."""
    gc.collect()
    with join(**settings_of(rails)) as comm:
        memory = ccl.empty(len(rails) * nbytes, "uint8")
        with comm.window(memory) as window:
            if ME == 1:
                window.put(0, memory)
            comm.barrier()
            begin = time.monotonic()
            for _ in range(transfers if ME == 1 else 0):
                window.put(0, memory, async_op=True)
            window.flush()
            seconds = time.monotonic() - begin
    return seconds


SIDES: dict[str, Side] = {
    "ib_write_bw": perftest, "ib_write_bw_yielding": yielding, "pyverbs": pyverbs, "transport": transport, "ccl_lab": engine,
    "one_sided": one_sided, "ib_write_bw_both_ways": both_ways, "all_reduce": all_reduce,
    "all_reduce_in_place": all_reduce_in_place, "by_hand": by_hand, "by_hand_in_place": by_hand_in_place,
}  # fmt: skip


def timed(side: Side, meeting: Meeting, rails: Sequence[int], nbytes: int, transfers: int) -> float:
    """Both machines leave together: what one side has open is closed before another begins."""
    seconds = side(meeting, rails, nbytes, transfers)
    meeting.exchange()
    return seconds


def main() -> None:
    """Arguments: bytes a side moves over each NIC, then cases ROUND:NICS:BYTES, then names of sides (all)."""
    moved = int(sys.argv[1])
    meeting = Meeting()
    cases, named = [word for word in sys.argv[2:] if ":" in word], [word for word in sys.argv[2:] if ":" not in word]
    sides = [name for name in SIDES if name in named or not named]
    for word in cases:
        round_, nics, nbytes = map(int, word.split(":"))
        transfers = max(moved // nbytes, FEWEST)
        found = {}
        for name in sides[:: 1 if round_ % 2 == 0 else -1]:
            seconds = timed(SIDES[name], meeting, range(1, nics + 1), nbytes, transfers)
            found[name] = {"seconds": seconds, "s_per_transfer": seconds / transfers}
        if ME == 1:
            print(json.dumps({"nics": nics, "bytes": nbytes, "round": round_, "transfers": transfers, "sides": found}), flush=True)


if __name__ == "__main__":
    main()
