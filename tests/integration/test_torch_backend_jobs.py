"""How a torch job begins and ends over the backend: launchers and stores, failures with names, deadlines, nothing left behind."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from ..ports import free_port
from .torch_ranks import clean_environment

HEAD = """
import datetime, os, signal, sys, threading, time
import torch, torch.distributed as dist
import ccl_lab as ccl, ccl_lab.torch_backend
torch.set_num_threads(1)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
"""
INIT = HEAD + """
dist.init_process_group("ccl_lab", timeout=datetime.timedelta(seconds=30))
"""


def launch(body: str, n: int = 2, head: str = INIT, **extra: str) -> list[tuple[int, str]]:
    """Runs `body` on n ranks as torchrun would start them; (exit status, output) of each."""
    program = head + textwrap.dedent(body)
    shared = {"WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", program],
            env=clean_environment() | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} | extra,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(n)
    ]
    return [(process.returncode, output) for process in started for output in [process.communicate(timeout=120)[0]]]


def fine(results: list[tuple[int, str]]) -> None:
    for status, output in results:
        assert status == 0 and "fine" in output, output


SUM = """
x = torch.ones(1000); dist.all_reduce(x); assert (x == dist.get_world_size()).all()
"""


def test_under_torchrun(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(INIT + SUM + "dist.barrier(); dist.destroy_process_group(); print('fine', flush=True)\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", str(script)]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.count("fine") == 2, done.stdout + done.stderr


@pytest.mark.parametrize("store", ["tcp", "file", "given"])
def test_over_any_store(store, tmp_path):
    make = {
        "tcp": "dist.init_process_group('ccl_lab', init_method=f'tcp://127.0.0.1:{port}', rank=rank, world_size=size)",
        "file": f"dist.init_process_group('ccl_lab', init_method='file://{tmp_path}/store', rank=rank, world_size=size)",
        "given": "dist.init_process_group('ccl_lab', store=dist.TCPStore('127.0.0.1', port, size, rank == 0), rank=rank, world_size=size)",
    }[store]
    body = f"port = int(os.environ['MASTER_PORT'])\n{make}\n{SUM}\ndist.destroy_process_group()\nprint('fine')"
    fine(launch(body, head=HEAD))


def test_over_sockets_with_a_secret_of_ones_own():
    body = SUM + """
work = dist.all_reduce(y := torch.ones(200_000), async_op=True)
dist.all_gather_single(z := torch.zeros(6), torch.full((3,), float(rank)))
work.wait(); assert (y == 2).all() and z.tolist() == [0, 0, 0, 1, 1, 1]
dist.all_to_all_single(z, torch.arange(6.) + 10 * rank, [1, 5] if rank else [5, 1], [5, 1] if rank == 0 else [1, 5])
dist.send(z, 1) if rank == 0 else dist.recv(z, 0)
dist.destroy_process_group(); print("fine")
"""
    fine(launch(body, CCL_LAB_TRANSPORT="tcp", CCL_LAB_SECRET="of my own"))


def test_nothing_is_left_behind(tmp_path):
    fine(
        launch("""
        def held():
            names = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")]
            mapped = sum("ccl_lab" in line for line in open("/proc/self/maps"))
            return sum(name.startswith("socket:") for name in names), mapped, threading.active_count()
        dist.barrier()
        dist.destroy_process_group()
        before = held()
        for again in range(3):
            dist.init_process_group("ccl_lab", store=dist.FileStore(f"{os.environ['FOLDER']}/{again}", 2), rank=rank, world_size=2)
            group = dist.new_group([0, 1])
            work = dist.all_reduce(torch.ones(100_000), group=group, async_op=True)
            work.get_future().wait()
            dist.isend(torch.ones(3), 1 - rank).wait(); dist.recv(torch.ones(3), 1 - rank)
            dist.barrier()
            dist.destroy_process_group()
        del work, group
        import gc
        deadline = time.monotonic() + 20
        while any(now > then for now, then in zip(held(), before)) and time.monotonic() < deadline:  # threads that end see it late
            gc.collect(); time.sleep(0.1)
        assert all(now <= then for now, then in zip(held(), before)), (before, held())
        print("fine")
    """, FOLDER=str(tmp_path))  # fmt: skip
    )


def test_a_process_that_forgets_to_leave_ends_all_the_same():
    fine(launch(SUM + "dist.all_reduce(x, async_op=True).get_future()\nprint('fine')"))


def test_a_late_rank_is_a_timeout_that_names_it():
    results = launch(
        """
        hasty = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=1))
        dist.barrier(group=hasty)
        if rank == 1: time.sleep(3)
        try:
            dist.all_reduce(torch.ones(3), group=hasty)
        except RuntimeError as error:
            print(type(error).__name__, error, "fine" if isinstance(error, TimeoutError) else "")
        os._exit(0)
    """
    )
    assert results[0][0] == 0 and "rank 1" in results[0][1] and "fine" in results[0][1], results


def test_a_lost_rank_ends_works_messages_and_futures_of_the_others():
    results = launch(
        """
        dist.barrier()
        if rank == 1:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        begin = time.monotonic()
        work, message = dist.all_reduce(torch.ones(100), async_op=True), dist.irecv(torch.ones(3), 1)
        future = work.get_future()
        for what in (work.wait, message.wait, future.wait, lambda: dist.all_reduce(torch.ones(2)), lambda: dist.send(torch.ones(2), 1)):
            try:
                what()
                print("no error")
            except RuntimeError as error:
                print(type(error).__name__, error)
        assert time.monotonic() - begin < 20 and not work.is_success() and work.exception() is not None
        print("fine")
    """
    )
    assert results[0][0] == 0 and "fine" in results[0][1] and "no error" not in results[0][1], results[0][1]
    assert "rank 1" in results[0][1] and "PeerLostError" in results[0][1]


def test_abort_ends_what_runs_on_every_rank():
    fine(
        launch("""
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(2), group=group)
        if rank == 0:
            threading.Timer(0.5, group.abort).start()
        if rank == 1:
            time.sleep(1)
        try:
            dist.all_reduce(torch.ones(2), group=group, async_op=True).wait()
            raise SystemExit("ended without an error")
        except RuntimeError as error:
            assert "abort" in str(error), error
        x = torch.ones(2); dist.all_reduce(x); assert (x == 2).all()  # other groups go on
        dist.barrier()
        dist.destroy_process_group(); print("fine")
    """)
    )


def test_different_calls_and_sizes_are_errors_that_show_both():
    results = launch("""
        try:
            dist.all_reduce(torch.ones(2)) if rank else dist.all_gather_single(torch.ones(4), torch.ones(2))
        except Exception as error:
            print(type(error).__name__, error)
        os._exit(0)
    """)
    assert all("all_reduce" in output and "all_gather" in output for _, output in results), results


def test_after_destroy_calls_say_so():
    fine(
        launch("""
        group = dist.new_group([0, 1])
        dist.destroy_process_group(group)
        for call in (lambda: group.barrier().wait(), lambda: group.send([torch.ones(1)], 1 - rank, 0)):
            try:
                call(); raise SystemExit("no error")
            except RuntimeError as error:
                assert "destroyed" in str(error), error
        dist.destroy_process_group(); print("fine")
    """)
    )
