"""Collectives within a node as a job calls them: real processes, every kind of memory, and every way in which they end badly.

Is: `ccl_lab.init()` in ranks of this machine, compared bit by bit with the interpreter (node_cases.py). Is not: a World's
schedules (test_shared_memory_schedules.py), nor the launchers (test_init.py).
"""

from __future__ import annotations

import platform
import time
from pathlib import Path

import pytest

import ccl_lab as ccl

from .node_cases import COLLECTIVES
from .test_init import launch

HERE = str(Path(__file__).resolve().parent)


def run_case(call: str, n: int = 3, cases: str = "node_cases", **extra: str) -> None:
    """`call` of the module `cases` on n ranks; all must get through."""
    body = f"""
        sys.path.insert(0, {HERE!r})
        import {cases}
        with ccl.init(timeout="20s") as comm:
            {cases}.{call}
        print("fine")
    """
    for status, output in launch(body, n=n, **extra):
        assert status == 0 and "fine" in output, output


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_kind_of_memory_is_bitwise_what_the_interpreter_says(collective):
    run_case(f"all_kinds_of_memory(comm, {collective!r})")


@pytest.mark.parametrize("collective", ["all_reduce", "all_to_all", "scatter"])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_numbers_of_ranks(collective, n):
    run_case(f"all_kinds_of_memory(comm, {collective!r})", n=n)


def test_every_type_and_reduction():
    run_case("all_types_and_reductions(comm)")


@pytest.mark.parametrize(
    "case",
    [
        "moved_once",
        "registration",
        "many_arrays_come_and_go",
        "plain_arrays_that_come_again",
        "forks",
        "queued_and_direct",
        "sends_under_way",
        "own_block_in_place",
        "spans",
    ],
)
def test_case(case):
    run_case(f"{case}(comm)")


def test_a_new_buffer_around_a_freed_one():
    run_case("buffers_around_freed_ones(comm)", MALLOC_MMAP_THRESHOLD_="65536")  # each array is a mapping, where the last one was


def test_read_only_inputs(tmp_path):
    run_case(f"read_only_inputs(comm, {str(tmp_path / 'x')!r})")


def test_a_caller_that_flushes_to_zero():
    if platform.machine() in ("x86_64", "AMD64"):  # the control word is that of x86
        run_case("flush_to_zero(comm)")


@pytest.mark.parametrize("register", ["auto", "explicit"])
@pytest.mark.parametrize("n", [2, 4])
def test_large_plain_memory(n, register):
    run_case("plain_memory(comm)", n=n, CCL_LAB_REGISTER=register)


@pytest.mark.parametrize("refusing", ["True", "rank == 1"])
def test_a_system_that_refuses_copies_across_processes(refusing):
    if platform.machine() not in ("x86_64", "aarch64"):
        return  # the number of the system call is not known here
    body = f"""
        sys.path.insert(0, {HERE!r})
        import node_cases
        rank = int(os.environ["CCL_LAB_RANK"])
        if {refusing}:
            node_cases.refuse_process_vm_readv()
        with ccl.init(timeout="20s") as comm:
            node_cases.plain_bytes(comm, 2)
            node_cases.plain_memory(comm)
        print("fine")
    """
    for status, output in launch(body, n=3, CCL_LAB_REGISTER="explicit"):
        assert status == 0 and "fine" in output, output


def test_registered_memory_outlives_the_communicator():
    results = launch("""
        comm = ccl.init()
        x = np.arange(50_000, dtype=np.float32); y = ccl.empty(50_000)
        comm.register(x); comm.all_reduce(x, out=y); want = y.copy()
        comm.close()
        x += 1; y += 1
        assert (x == np.arange(50_000) + 1).all() and (y == want + 1).all()
        try:
            ccl.empty(3)
        except ccl.UsageError as error:
            assert "no open communicator" in str(error)
            print("fine")
    """)
    for status, output in results:
        assert status == 0 and "fine" in output, output


@pytest.mark.parametrize("closing", ["comm.close()", "pass"])
def test_garbage_may_free_registered_memory_before_its_communicator(closing):
    body = f"""
        import gc
        for i in range(10 if {closing != "pass"} else 1):  # which is freed first is a matter of addresses
            comm = ccl.init()
            x = np.zeros(1 << 20, np.float32)  # a mapping of its own, gone when it is freed
            comm.register(x); comm.all_reduce(x, out=x)
            {closing}
            comm.itself = comm
            del comm, x
            gc.collect()
        print("fine")
    """
    for status, output in launch(body, n=1):
        assert status == 0 and "fine" in output, output


# What all ranks do once, so that the call under test goes directly.
WARM = """
        comm = ccl.init(timeout="3s")
        x, out = {make}({size}, "float32"), {make}({size}, "float32")
        x[:] = 1
        for _ in range(2): comm.all_reduce(x, out=out, timeout="20s")
        for _ in range(2): comm.all_reduce(x, out=out)
"""
AGAIN = """
        comm.reset()
        for _ in range(3):
            comm.all_reduce(x, out=out)
            assert (out == comm.size).all()
        comm.close()
        print("works again")
"""


@pytest.mark.parametrize("make, size", [("np.empty", 2), ("np.empty", 200_000), ("comm.empty", 200_000)])
def test_a_rank_that_is_killed_ends_the_others_in_seconds(make, size):
    begin = time.monotonic()
    results = launch(
        WARM.format(make=make, size=size).replace('timeout="3s"', 'timeout="50s"')
        + """
        if comm.rank == 1:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        begin = time.monotonic()
        try:
            for _ in range(100_000): comm.all_reduce(x, out=out)
        except ccl.CclError as error:
            print(type(error).__name__, error.rank, "after", time.monotonic() - begin < 8)
    """
    )
    assert time.monotonic() - begin < 40
    for rank in (0, 2):
        assert "PeerLostError 1 after True" in results[rank][1], results[rank][1]


@pytest.mark.parametrize("size", [2, 200_000])
def test_interrupt_of_one_rank_ends_the_call_on_all(size):
    results = launch(
        WARM.format(make="comm.empty", size=size).replace('timeout="3s"', 'timeout="30s"')
        + """
        import threading
        begin = time.monotonic()
        if comm.rank == 0:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        if comm.rank == 2:
            time.sleep(1)
        try:
            comm.all_reduce(x, out=out)
            print("ended without error")
        except KeyboardInterrupt:
            print("KeyboardInterrupt", time.monotonic() - begin < 5)
        except ccl.CclError as error:
            print(type(error).__name__, "interrupted" in str(error), "rank 0" in str(error), time.monotonic() - begin < 5)
"""
        + AGAIN
    )
    assert "KeyboardInterrupt True" in results[0][1], results[0][1]
    for rank in (1, 2):
        assert "AbortedError True True True" in results[rank][1], results[rank][1]
    assert all("works again" in output for _, output in results), results


@pytest.mark.parametrize("size", [2, 3000, 200_000])
def test_a_deadline_names_the_late_rank(size):
    results = launch(
        WARM.format(make="np.empty", size=size).replace('timeout="3s"', 'timeout="1s"')
        + """
        if comm.rank == 1:
            time.sleep(2.5)
        try:
            comm.all_reduce(x, out=out)
            print("ended without error")
        except ccl.CclError as error:
            print(type(error).__name__, error.rank, error)
"""
        + AGAIN
    )
    for rank in (0, 2):
        assert "OpTimeout 1 " in results[rank][1] and "not entered by rank 1" in results[rank][1], results[rank][1]
    assert "ended without error" not in results[1][1]
    assert all("works again" in output for _, output in results), results


@pytest.mark.parametrize("size", [2, 3000, 200_000])
@pytest.mark.parametrize(
    "call, name, words",
    [
        ("comm.all_reduce(more if comm.rank == 2 else x)", "ShapeError", "bytes a block"),
        ("comm.all_reduce(x, 'max' if comm.rank == 2 else 'sum')", "UsageError", "float32, max"),
        ("comm.all_gather(x) if comm.rank == 2 else comm.all_reduce(x)", "UsageError", "all_gather"),
        ("comm.all_reduce(other if comm.rank == 2 else x)", "DtypeError", "int32"),
        ("comm.broadcast(x, root=comm.rank % 2)", "UsageError", "root 1"),
    ],
)
def test_ranks_that_disagree_are_told_who_called_what(size, call, name, words):
    if "root" in call and size < 200_000:
        return  # the root of a small message waits for nobody, so it cannot see that another rank is one too
    results = launch(
        WARM.format(make="np.empty", size=size)
        + f"""
        more, other = np.ones({size} + 1, np.float32), np.ones({size}, np.int32)
        for a in (more, other): comm.all_reduce(a); comm.all_reduce(a)
        comm.all_reduce(x, "max"); comm.all_gather(x); comm.broadcast(x, root=0); comm.broadcast(x, root=1)
        x[:] = 1
        try:
            {call}
            time.sleep(0.5); comm.barrier()
            print("ended without error")
        except ccl.CclError as error:
            print(type(error).__name__, error)
        x[:] = 1
"""
        + AGAIN
    )
    for rank, (_, output) in enumerate(results):
        assert f"{name} " in output and words in output and "ended without error" not in output, (rank, output)
        assert "works again" in output, (rank, output)


def test_spans_of_a_world_name_ops_of_the_schedule():
    schedule = ccl.plan("all_reduce", 4, "1MiB", algorithm="one_pass")
    with ccl.World(4, transport="shm") as world:
        columns = world.run(schedule).columns
    moves = columns["nbytes"] > 0
    named = columns["op_id"][moves & (columns["op_id"] >= 0)]
    assert len(named) and named.max() < len(schedule.ops)
    assert set(schedule.ops.rank[named].tolist()) == {0, 1, 2, 3}, "every rank's share of the work was traced"


def test_arguments_of_a_wrong_type_are_named_and_the_next_call_works():
    run_case("wrong_types(comm)", n=2, cases="wrong_cases")
