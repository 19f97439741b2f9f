"""Ranks started by a launcher: the environment of torchrun, mpirun, srun; errors on every rank."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from ..ports import free_port

N = 3


def started(body: str, style: str = "ccl", n: int = N, **extra: str) -> list[subprocess.Popen[str]]:
    """`body` on n ranks started as `style` would."""
    port = free_port()
    program = "import numpy as np, ccl_lab as ccl, sys, time, os, signal\n" + textwrap.dedent(body)
    processes = []
    for rank in range(n):
        env = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("CCL_LAB", "OMPI", "PMI", "SLURM", "RANK", "WORLD", "MASTER"))
        }
        env |= {
            "ccl": {
                "CCL_LAB_RANK": str(rank),
                "CCL_LAB_WORLD_SIZE": str(n),
                "CCL_LAB_RENDEZVOUS": f"127.0.0.1:{port}",
            },
            "torchrun": {
                "RANK": str(rank),
                "WORLD_SIZE": str(n),
                "LOCAL_RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port - 1),
            },
            "mpirun": {
                "OMPI_COMM_WORLD_RANK": str(rank),
                "OMPI_COMM_WORLD_SIZE": str(n),
                "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
            },
            "srun": {"SLURM_PROCID": str(rank), "SLURM_NTASKS": str(n), "SLURM_LOCALID": str(rank)},
        }[style] | extra
        processes.append(
            subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-c", program],
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return processes


def ended(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """(exit status, output) of each, waited for."""
    deadline = time.monotonic() + 120
    results = []
    for process in processes:
        try:
            output, _ = process.communicate(timeout=max(deadline - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # with faulthandler: where each of its threads is
            output = "still ran after two minutes\n" + process.communicate()[0]
        results.append((process.returncode, output))
    return results


def launch(body: str, style: str = "ccl", n: int = N, **extra: str) -> list[tuple[int, str]]:
    """Runs `body` on n ranks started as `style` would; (exit status, output) of each."""
    return ended(started(body, style, n, **extra))


GOOD = """
    with ccl.init() as comm:
        n, r = comm.size, comm.rank
        x = np.arange(1000, dtype=np.int64) + r
        assert (comm.all_reduce(x) == np.arange(1000) * n + sum(range(n))).all()
        assert (comm.all_reduce(x, "max") == np.arange(1000) + n - 1).all()
        y = x.copy(); assert comm.all_reduce(y, out=y) is not None and (y == np.arange(1000) * n + sum(range(n))).all()
        assert (comm.all_gather(np.full((2, 3), r, np.int8)) == np.arange(n)[:, None, None]).all()
        assert (comm.reduce_scatter(np.ones((n, 5), np.float32)) == n).all()
        z = np.full(7, r, np.float64); comm.broadcast(z, root=1); assert (z == 1).all()
        top = comm.reduce(np.ones(3, np.float32), root=2); assert (top is None) == (r != 2) and (r != 2 or (top == n).all())
        got = comm.gather(np.full(2, r, np.uint8), root=0); assert r or (got == np.arange(n)[:, None]).all()
        part, whole = np.zeros(4, np.int32), np.repeat(np.arange(n, dtype=np.int32), 4).reshape(n, 4)
        comm.scatter(whole if r == 1 else None, 1, out=part)
        assert (part == r).all()
        a = comm.all_to_all(np.arange(n * 2, dtype=np.int16).reshape(n, 2) + 100 * r)
        assert (a == 100 * np.arange(n)[:, None] + 2 * r + np.arange(2)).all()
        big = np.arange(1 << 20, dtype=np.int32)
        comm.scatter(np.tile(big, (n, 1)) if r == 0 else None, 0, out=(mine := np.zeros_like(big)))
        assert (mine == big).all()
        got = comm.gather(big + r, root=1); assert r != 1 or (got[2] == big + 2).all()
        assert (comm.all_gather(big)[1] == big).all() and (comm.broadcast(big.copy(), root=2) == big).all()
        v = comm.all_to_allv(np.repeat(np.arange(n, dtype=np.int32), r + 1), np.full(n, r + 1))
        assert (v == r).all() and len(v) == sum(range(1, n + 1))
        if r == 0: comm.send(np.arange(10, dtype=np.float32), 2)
        if r == 2:
            got = np.zeros(10, np.float32); comm.recv(got, 0); assert (got == np.arange(10)).all()
        work = comm.all_reduce(np.ones(10, np.float32), async_op=True)
        assert (work.wait("5s") == n).all()
        reg = comm.empty(100, "bfloat16"); reg[:] = 1; assert (comm.all_reduce(reg) == n).all()
        assert comm.all_reduce(np.zeros(0, np.float32)).size == 0
        comm.barrier()
        assert len(comm.trace()) > 0 and comm.memory()
    print("fine")
"""


SKEWED = """
    import time
    from ccl_lab.engine import hub
    ahead = 3_000_000_000 * (int(os.environ["CCL_LAB_RANK"]) == 1)
    class Clock:
        monotonic_ns = staticmethod(lambda: time.monotonic_ns() + ahead)
    hub.time = Clock
    with ccl.init() as comm:
        comm.all_reduce(np.ones(1000, np.float32))
        begun = comm.trace()
        comm.all_reduce(np.ones(100_000, np.float32))
        trace = comm.trace()
        clock = trace.meta["clock"]
        assert abs(clock["offset_us"][str(comm.rank)] - ahead / 1e3) <= clock["off_by_us"][str(comm.rank)], clock
        print("began", int(trace.columns["begin_ns"].min()) + ahead, len(begun) > 0)
        comm.barrier()
"""


def test_traces_of_hosts_with_other_clocks_are_on_one() -> None:
    """Rank 1 is told that its clock is 3 s ahead of the hub's: its spans, of one and the same clock in truth, are moved by that."""
    began = []
    for status, output in launch(SKEWED, n=2):
        assert status == 0, output
        _, at, some = output.split()
        assert some == "True"
        began.append(int(at))
    assert abs(began[0] - began[1]) < 1_500_000_000


@pytest.mark.parametrize("style", ["ccl", "torchrun", "mpirun", "srun"])
def test_every_collective_under_every_launcher(style):
    for status, output in launch(GOOD, style):
        assert status == 0 and "fine" in output, output


def test_over_tcp():
    for status, output in launch(GOOD, CCL_LAB_TRANSPORT="tcp"):
        assert status == 0 and "fine" in output, output


@pytest.mark.parametrize(
    "body, expected",
    [
        ("comm.all_reduce(np.ones(100 + comm.rank, np.float32))", "ShapeError"),
        ("comm.all_reduce(np.ones(100, np.float32 if comm.rank else np.int32))", "Error"),
        (
            "comm.all_reduce(np.ones(64, np.float32)) if comm.rank else comm.all_gather(np.ones(64, np.float32))",
            "Error",
        ),
        ("comm.barrier() if comm.rank else time.sleep(3)", "OpTimeout"),
        (
            "comm.all_reduce(np.ones(100, np.float32)) if comm.rank != 1 else os.kill(os.getpid(), signal.SIGKILL)",
            "PeerLostError",
        ),
        (
            "comm.all_reduce(np.ones(100, np.float32)) if comm.rank != 1 else 1 / 0",
            "PeerLostError|ZeroDivisionError|AbortedError",
        ),
    ],
)
def test_disagreement_ends_on_every_rank_with_a_named_error(body, expected):
    begin = time.monotonic()
    results = launch(f"""
        comm = ccl.init(timeout="1s")
        comm.barrier(timeout="20s")
        try:
            {body}
            print("ended without error")
        except ccl.CclError as error:
            print(type(error).__name__, error)
    """)
    assert time.monotonic() - begin < 40
    for rank, (status, output) in enumerate(results):
        if status == 0 and "ended without error" not in output:
            assert any(name in output for name in expected.split("|")), (rank, output)
        else:
            assert "ended without error" not in output or "sleep" in body, (rank, output)


def test_reset_makes_it_work_again():
    results = launch("""
        comm = ccl.init(timeout="1s")
        try:
            comm.all_reduce(np.ones(100 + comm.rank, np.float32))
        except ccl.CclError as error:
            comm.reset()
        assert (comm.all_reduce(np.ones(100, np.float32)) == comm.size).all()
        comm.close()
        print("fine")
    """)
    for status, output in results:
        assert status == 0 and "fine" in output, output


@pytest.mark.parametrize("end", ["os._exit(0)", "comm.close(); sys.exit(0)"])
def test_reset_ends_at_once_when_a_rank_died_or_left(end: str):
    results = launch(f"""
        comm = ccl.init(timeout="1s")
        try:
            comm.all_reduce(np.ones(100 + comm.rank, np.float32))
        except ccl.CclError:
            if comm.rank == 2: {end}
            begin = time.monotonic()
            try:
                comm.reset()
            except ccl.PeerLostError as error:
                print(error.rank, "left" if time.monotonic() - begin < 20 else "late")
    """)
    for _, output in results[:2]:
        assert "2 left" in output, output


@pytest.mark.parametrize("late", [0, 2])
def test_a_rank_that_fails_first_is_heard_by_one_that_still_starts(late: int):
    results = launch(f"""
        from ccl_lab.engine.member import Member
        made = Member.__init__
        def slow(self, *args, **options):  # the others' part of it is done before this one's
            made(self, *args, **options)
            time.sleep(1)
        if int(os.environ["CCL_LAB_RANK"]) == {late}: Member.__init__ = slow
        comm = ccl.init(timeout="30s")
        if comm.rank == 1: comm._failed(ccl.ShapeError("no such shape"))
        begin = time.monotonic()
        try:
            comm.all_reduce(np.ones(100, np.float32))
        except ccl.CclError as error:
            print(error, "at once" if time.monotonic() - begin < 15 else "late")
    """)
    for _, output in results:
        assert "no such shape" in output and "at once" in output, output


def test_rank_that_never_starts_is_an_error_within_the_deadline():
    begin = time.monotonic()
    results = launch(
        """
        if os.environ["CCL_LAB_RANK"] == "1": sys.exit(0)
        try:
            ccl.init()
        except ccl.CclError as error:
            print(type(error).__name__, error)
    """,
        CCL_LAB_START_TIMEOUT="1s",
    )
    assert time.monotonic() - begin < 30
    assert "OpTimeout" in results[0][1] and "within" in results[0][1]
    assert "OpTimeout" in results[2][1] or "PeerLost" in results[2][1]


LOSE = """
    from ccl_lab.engine.member import Member
    me, victim = int(os.environ["CCL_LAB_RANK"]), int(os.environ["VICTIM"])
    where, how, meeting = os.environ["WHERE"], os.environ["HOW"], os.environ["MEETING"]
    def end(*_, **__):
        os.kill(os.getpid(), signal.SIGSTOP if how == "stopped" else signal.SIGKILL)
        time.sleep(600)
    if me == victim and where == "join": Member._join = end
    if me == victim and where == "connect": Member._connect = end
    open(f"{meeting}/{me}", "w").close()  # deadlines begin when all have got so far
    while len(os.listdir(meeting)) < 3: time.sleep(0.01)
    try:
        comm = ccl.init(timeout="4s", topology=ccl.Topology.cluster(nodes=3, gpus_per_node=1, nics_per_node=2))
        if where == "call":
            comm.barrier(timeout="30s")
            if me == victim: end()
        comm.all_reduce(np.ones(1 << 16, np.float32))
        print("ended without error")
    except ccl.CclError as error:
        print("named" if error.rank == victim else f"blamed {error.rank}:", type(error).__name__, error)
"""


@pytest.mark.parametrize("victim", range(3), ids=["rank 0, which holds the job together", "the middle", "the last"])
@pytest.mark.parametrize("where", ["join", "connect", "call"])
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_lost_rank_is_named_by_all_others(how: str, where: str, victim: int, tmp_path) -> None:
    settings = {"VICTIM": str(victim), "HOW": how, "WHERE": where, "MEETING": str(tmp_path)}
    processes = started(LOSE, CCL_LAB_START_TIMEOUT="8s", **settings)
    try:
        results = ended(processes[:victim] + processes[victim + 1 :])
    finally:
        processes[victim].kill()
        processes[victim].communicate()
    for status, output in results:
        assert status == 0 and "named " in output, output


def test_outside_a_launcher_says_what_to_do():
    env = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("CCL_LAB", "OMPI", "PMI", "SLURM", "RANK", "WORLD"))
    }
    done = subprocess.run(
        [sys.executable, "-c", "import ccl_lab; ccl_lab.init()"], env=env, capture_output=True, text=True
    )
    assert "found no launcher" in done.stderr and "World" in done.stderr


def test_taken_port_is_named_with_a_remedy():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        env = {"CCL_LAB_RANK": "0", "CCL_LAB_WORLD_SIZE": "2", "CCL_LAB_RENDEZVOUS": address}
        done = subprocess.run(
            [sys.executable, "-c", "import ccl_lab; ccl_lab.init()"],
            env=os.environ | env,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert f"ConnectError: cannot listen on {address}" in done.stderr and "CCL_LAB_RENDEZVOUS" in done.stderr
