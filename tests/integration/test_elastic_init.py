"""Elastic jobs of a launcher: members die, are stopped, leave in groups and join; so does the one that holds the job together."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time

import pytest

from ..ports import free_port

PRELUDE = """
import faulthandler, os, signal, sys, time
import numpy as np
import ccl_lab as ccl
from ccl_lab.engine import council, elastic_job
from ccl_lab.errors import *
faulthandler.enable()
def die(how=signal.SIGKILL): os.kill(os.getpid(), how)
def bits(comm): return sum(2**m for m in comm.members)
def reduced(comm, n=3000, **options):
    x = np.full(n, 2**comm.member, np.int64)
    y = comm.all_reduce(x, **options)
    assert (y == bits(comm)).all() and (x == 2**comm.member).all(), (y[0], comm.members)
    return y
joins = bool(os.environ.get("JOINS"))
if joins: time.sleep(float(os.environ["JOINS"]))
begin = time.monotonic()
if joins and os.environ.get("DIES_JOINING"): elastic_job.Member = lambda *arguments: die()
comm = ccl.init(elastic=True, join=joins, timeout=os.environ.get("DEADLINE", "20s"), patience=os.environ.get("PATIENCE", "2s"),
                group_size=int(os.environ.get("GROUP", 1)))
me = comm.member
if joins: print(f"joined after {time.monotonic() - begin:.2f} s")
"""
EPILOGUE = """
print("members", comm.members, "epoch", comm.epoch, "took", [round(e.took_s, 3) for e in comm.events if e.epoch])
comm.close()
print("fine")
"""


class Processes:
    """The processes of a job, and what they say. Those beyond `n` join later."""

    def __init__(self, body: str, n: int, joiners: int = 0, **extra: str) -> None:
        port = free_port()
        program = PRELUDE + textwrap.dedent(body) + EPILOGUE
        strangers = ("CCL_LAB", "OMPI", "PMI", "SLURM", "RANK", "WORLD", "MASTER")
        env = {key: value for key, value in os.environ.items() if not key.startswith(strangers)} | extra
        env |= {"CCL_LAB_WORLD_SIZE": str(n), "CCL_LAB_RENDEZVOUS": f"127.0.0.1:{port}"}
        self.outputs = [tempfile.TemporaryFile("w+") for _ in range(n + joiners)]  # a pipe that nobody reads yet would stop its writer
        self.all = [
            subprocess.Popen(
                [sys.executable, "-c", program],
                env=env | {"CCL_LAB_RANK": str(min(rank, n - 1))} | ({"JOINS": "0.8"} if rank >= n else {}),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            for rank, output in enumerate(self.outputs)
        ]

    def end(self, of: set[int] | None = None, seconds: float = 60) -> dict[int, tuple[int, str]]:
        """(status, output) of each; kills what does not end in time."""
        deadline, found = time.monotonic() + seconds, {}
        for rank, process in enumerate(self.all):
            if of is not None and rank not in of:
                continue
            hangs = ""
            try:
                process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                hangs = "HANGS\n"
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGABRT)
                process.wait()
            with self.outputs[rank] as output:
                output.seek(0)
                found[rank] = process.returncode, hangs + output.read()
        return found


def run(body: str, n: int = 4, joiners: int = 0, dead: tuple[int, ...] = (), **extra: str) -> dict[int, str]:
    """Outputs of those that must end well: all but `dead`."""
    results = Processes(body, n, joiners, **extra).end()
    for rank, (status, output) in results.items():
        if rank in dead:
            assert status == -signal.SIGKILL, (rank, status, output)
        else:
            assert status == 0 and "fine" in output, (rank, status, output)
    for rank, (_, output) in results.items():
        print(*(f"{rank}: {line}" for line in output.splitlines() if "took" in line or "joined" in line), sep="\n")
    return {rank: output for rank, (_, output) in results.items() if rank not in dead}


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("dead", [(2,), (0,), (0, 1), (1, 3)], ids=["one", "the hub", "the hub and the next", "two"])
def test_survivors_finish(dead, transport):
    outputs = run(
        f"""
        for i in range(12):
            if i == 6 and me in {dead}: die()
            reduced(comm, 200_000 if i % 2 else 100)
        assert comm.members == tuple(m for m in range(5) if m not in {dead}), comm.members
        assert (comm.rank, comm.size) == (comm.members.index(me), len(comm.members))
        """,
        n=5, dead=dead, CCL_LAB_TRANSPORT=transport,
    )  # fmt: skip
    assert len(outputs) == 5 - len(dead)


EVERY = """
    def every(die_at=None, who=()):
        n, r, before = comm.size, comm.rank, comm.members
        calls = [
            lambda: comm.all_reduce(np.full(999, float(me), np.float64), "avg"),
            lambda: comm.all_gather(np.full((2, 3), me, np.int32)),
            lambda: comm.reduce_scatter(np.array([[100 * k + me] for k in before], np.int64)),
            lambda: comm.broadcast(np.full(5, me, np.int16), root=n - 1),
            lambda: comm.reduce(np.full(4, me, np.int32), root=n - 1),
            lambda: comm.gather(np.full(2, me, np.uint8), root=n - 1),
            lambda: comm.scatter(np.array([[k, k] for k in before], np.int32), n - 1, out=np.zeros(2, np.int32)),
            lambda: comm.all_to_all(np.array([[me, k] for k in before], np.int32)),
            lambda: comm.all_to_allv(np.repeat([100 * me + k for k in before], 2).astype(np.int32), np.full(n, 2)),
            lambda: comm.barrier(),
        ]
        for i, call in enumerate(calls):
            if i == die_at and me in who: die()
            got, m = call(), np.array(comm.members)
            last = before[-1] == me
            want = [
                np.full(999, m.mean()), np.broadcast_to(m[:, None, None], (len(m), 2, 3)), [len(m) * 100 * me + m.sum()],
                np.full(5, before[-1]), np.full(4, m.sum()) if last else None, np.stack([m, m], 1) if last else None, [me, me],
                np.stack([m, np.full(len(m), me)], 1), np.repeat(100 * m + me, 2), None,
            ][i]
            assert (got is None) if want is None else (np.array(got).shape == np.shape(want) and (got == want).all()), (i, got, want)
            if comm.members != before: return i
    every()
"""


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("call", range(10))
def test_every_collective_is_done_again(call, victim):
    run(
        EVERY + f"""
    assert every({call}, {{{victim}}}) == {call}
    assert comm.members == tuple(m for m in range(4) if m != {victim})
    every()
        """,
        dead=(victim,),
    )  # fmt: skip


def test_results_are_of_the_same_members_everywhere():
    """Members die at any time; whatever each call gave, it gave to all."""
    body = """
        t = time.monotonic() + {0: 0.5, 3: 0.9, 5: 0.52}.get(me, 99)
        import threading
        threading.Thread(target=lambda: (time.sleep(max(t - time.monotonic(), 0)), die()), daemon=True).start()
        i = 0
        while True:
            y = comm.all_reduce(np.full(50_000, 2**me, np.int64))
            i += 1
            assert (y == y[0]).all()
            print("call", i, y[0])
            stop = comm.all_reduce(np.array([time.monotonic() - begin > 2.0 and len(comm.members) == 3 and i >= 3], np.int64), "max")
            if stop[0]: break
    """
    results = Processes(body, 6, PATIENCE="5s").end()
    lines = {rank: re.findall(r"call \d+ \d+", out) for rank, (_, out) in results.items()}
    for rank in (1, 2, 4):
        assert results[rank][0] == 0, results[rank]
    assert lines[1] == lines[2] == lines[4] and len(lines[1]) >= 3
    for rank in (0, 3, 5):
        assert results[rank][0] == -signal.SIGKILL
        assert lines[rank] == lines[1][: len(lines[rank])], "a call gave the lost member something else"


def test_a_member_that_computes_meanwhile_stays():
    run(
        """
        if me == 1: die()
        if me == 3: time.sleep(4)
        reduced(comm)
        assert comm.members == (0, 2, 3)
        """,
        dead=(1,), PATIENCE="1s",
    )  # fmt: skip


def test_a_death_during_the_agreement():
    run(
        """
        if me == 2:
            install = council.Council.install
            def and_die(self, view): die() if view.epoch else install(self, view)
            council.Council.install = and_die
        for i in range(6):
            if i == 3 and me == 1: die()
            reduced(comm)
        assert comm.members == (0, 3, 4)
        """,
        n=5, dead=(1, 2),
    )  # fmt: skip


@pytest.mark.parametrize("told", [0, 1, 2], ids=["nobody", "one", "two"])
def test_the_coordinator_dies_while_it_tells_the_view(told):
    run(
        f"""
        if me == 0:
            send, left = elastic_job.wire.send, [{told}]
            def and_die(sock, header, blob=b""):
                if header.get("t") == "view" and header["epoch"]:
                    if not left[0]: die()
                    left[0] -= 1
                send(sock, header, blob)
            elastic_job.wire.send = and_die
        for i in range(6):
            if i == 3 and me == 1: die()
            reduced(comm)
        assert comm.members == (2, 3, 4)
        """,
        n=5, dead=(0, 1),
    )  # fmt: skip


@pytest.mark.parametrize("stopped", [2, 0], ids=["a member", "the hub"])
def test_a_stopped_process_is_left_out_and_stays_out(stopped, tmp_path):
    processes = Processes(
        f"""
        for i in range(6):
            if i == 3 and me == {stopped}:
                die(signal.SIGSTOP)
                try:
                    for _ in range(50): comm.all_reduce(np.full(3000, 2**me, np.int64))
                    print("came back as a zombie")
                except PeerLostError as error:
                    print("said:", error)
                comm.close()
                sys.exit(0)
            reduced(comm)
        assert {stopped} not in comm.members and len(comm.members) == 3
        open(f"{tmp_path}/{{me}}", "w").close()
        while not os.path.exists("{tmp_path}/over"): time.sleep(0.02)  # the stopped one goes on now
        for i in range(3): reduced(comm)
        assert comm.epoch == 1, comm.epoch
        """,
        4, DEADLINE="1500ms", PATIENCE="1s",
    )  # fmt: skip
    deadline = time.monotonic() + 40
    while len(list(tmp_path.iterdir())) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    processes.all[stopped].send_signal(signal.SIGCONT)
    results = processes.end({stopped}, 20)
    (tmp_path / "over").touch()
    results |= processes.end({0, 1, 2, 3} - {stopped})
    for rank, (status, output) in results.items():
        assert status == 0 and "zombie" not in output, (rank, output)
        assert rank == stopped or "fine" in output, (rank, output)
    assert re.search(r"said: .*(went on without|goes on without)", results[stopped][1]), results[stopped][1]


def test_a_group_leaves_together():
    results = Processes(
        """
        try:
            for i in range(6):
                if i == 3 and me == 2: die()
                reduced(comm)
            assert comm.members == (0, 1, 4, 5)
        except PeerLostError as error:
            print("said:", error)
            sys.exit(3)
        """,
        6, GROUP="2",
    ).end()  # fmt: skip
    assert [status for status, _ in results.values()] == [0, 0, -signal.SIGKILL, 3, 0, 0], results
    assert "its group" in results[3][1]


GROW = """
    step = 0
    if not joins:
        while not (new := comm.grow()):
            reduced(comm); step += 1; time.sleep(0.02)
        assert new == {new}, new
    step = int(comm.broadcast(np.array([step]))[0])
    for _ in range(5): reduced(comm); step += 1
"""


def test_new_members_join_without_a_restart():
    outputs = run(GROW.format(new=(3,)) + "    assert comm.members == (0, 1, 2, 3) and comm.epoch == 1", n=3, joiners=1)
    assert len(outputs) == 4


def test_a_new_member_joins_after_the_hub_died():
    body = """
        if me == 0 and not joins: time.sleep(0.3); die()
        if not joins:
            while len(comm.members) == 3: reduced(comm); time.sleep(0.02)
            assert comm.grow(1, timeout="20s") == (3,)
        for _ in range(5): reduced(comm)
        assert comm.members == (1, 2, 3)
    """
    run(body, n=3, joiners=1, dead=(0,))


def test_grow_says_when_nobody_comes():
    run(
        """
        try: comm.grow(1, timeout="500ms"); raise SystemExit(1)
        except OpTimeout as error: assert "0 new processes came" in str(error)
        assert comm.grow() == () and comm.epoch == 0
        reduced(comm)
        """,
        n=2,
    )  # fmt: skip


@pytest.mark.parametrize("victim", [1, 0, 3], ids=["a member", "the hub", "the new one"])
def test_a_death_while_one_joins(victim):
    body = f"""
        if me == {victim}:
            member = elastic_job.Member
            def and_die(*arguments): die()
            elastic_job.Member = and_die
        if joins and {victim} == 3: raise SystemExit("should have died")
        if not joins:
            try: new = comm.grow(1, timeout="10s")
            except OpTimeout: new = ()
            assert set(new) <= {{3}}
        for _ in range(5): reduced(comm)
        assert {victim} not in comm.members and {{0, 1, 2}} - {{{victim}}} <= set(comm.members), comm.members
    """
    if victim == 3:
        body = """
        if joins: raise SystemExit("should have died")
        new = None
        try: new = comm.grow(1, timeout="10s")
        except OpTimeout: pass
        for _ in range(5): reduced(comm)
        assert comm.members == (0, 1, 2), comm.members
        """
    processes = Processes(body, 3, 1, **({"DIES_JOINING": "1"} if victim == 3 else {}))
    results = processes.end()
    for rank, (status, output) in results.items():
        if rank == victim:
            assert status == -signal.SIGKILL, (rank, status, output)
        elif rank < 3:
            assert status == 0 and "fine" in output, (rank, status, output)


def test_an_epoch_that_ends_meanwhile_is_no_error_of_what_only_looks():
    run(
        """
        reduced(comm)
        comm._job.leave(comm.epoch)  # as another member's shrink does, at any moment
        while comm._job.current.view.epoch == 0: assert comm.memory() and len(comm.trace()) >= 0
        reduced(comm, out=None)
        """,
        n=2,
        PATIENCE="10s",
    )  # fmt: skip


def test_point_to_point_and_memory_of_an_elastic_job():
    run(
        """
        x = np.arange(5.0)
        if me == 0: comm.send(x, 1)
        if me == 1: assert (comm.recv(np.zeros(5), 0) == x).all()
        try: comm.register(np.zeros(9)); raise SystemExit(1)
        except UnsupportedError as error: assert "never mapped" in str(error)
        try: comm.window("1MiB"); raise SystemExit(1)
        except UnsupportedError as error: assert "one set of members" in str(error) and "without elastic=True" in str(error)
        try: comm.all_reduce(x, async_op=True); raise SystemExit(1)
        except UnsupportedError as error: assert "async_op" in str(error)
        assert comm.empty((2, 3)).shape == ccl.empty((2, 3)).shape == (2, 3)
        try: comm.all_gather(x, out=np.zeros(3)); raise SystemExit(1)
        except ShapeError as error: assert "out on rank" in str(error)
        reduced(comm)  # a shrink ends the messages that are still on their way
        assert comm.epoch == 0 and len(comm.trace()) >= 0 and comm.memory()
        assert comm.shrink() == (0, 1) and comm.epoch == 1
        reduced(comm, out=None)
        y = np.full(70_000, 2**me); comm.all_reduce(y, out=y); assert (y == 3).all()
        """,
        n=2,
        PATIENCE="10s",
    )  # fmt: skip


def test_a_peer_that_dies_in_point_to_point_is_an_error_there_and_no_more():
    run(
        """
        if me == 2: time.sleep(0.5); die()
        if me == 1:
            try: comm.recv(np.zeros(5), 2); raise SystemExit(1)
            except (PeerLostError, AbortedError): pass
        reduced(comm)
        assert comm.members == (0, 1)
        """,
        n=3, dead=(2,),
    )  # fmt: skip
