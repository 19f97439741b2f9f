"""Computation of a job: Communicator.run(compute=fn), whose partitions run on the calling thread while bytes move.

Is: results to the bit, zero copies, exceptions and interrupts on every rank. Is not: the operators of `ccl_lab.overlap`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .test_init import launch

HERE = Path(__file__).resolve().parents[2]
SETUP = """
    sys.path.insert(0, os.environ["PLANS"])
    from tests.integration.overlap_plans import matmul_reduce_scatter, all_gather_matmul
    from ccl_lab.errors import *
    from ccl_lab.trace.columns import Track
    comm = ccl.init()
    n, r = comm.size, comm.rank
    def made(rank, block, count, dtype):  # small integers: sums are exact in every type, in any order
        return (np.arange(count) % 5 + rank + block % 3).astype(dtype)
"""


def run(body: str, n: int = 3, **extra: str) -> list[str]:
    """The outputs of n ranks that run SETUP and `body`; all must end well."""
    extra.setdefault("CCL_LAB_TIMEOUT", "20s")
    results = launch(SETUP + body, n=n, PLANS=str(HERE), **extra)
    for status, output in results:
        assert status == 0, output
    return [output for _, output in results]


REDUCE_SCATTER = """
    import ml_dtypes
    for dtype, parts, count in ((np.float32, 1, 1000), (np.int32, 4, 4 * 777), (ml_dtypes.bfloat16, 2, 4096), (np.float64, 3, 10)):
        schedule = matmul_reduce_scatter(n, parts)
        ccl.verify(schedule)
        name = np.dtype(dtype).name
        x, out = comm.empty((n, count), name), comm.empty(count, name)
        assert x.dtype == dtype
        for repeat in range(3):
            x[:] = 0
            order = []
            cut = [p * count // parts for p in range(parts + 1)]
            def fn(partition, target, sources):
                block, part = divmod(partition, parts)
                order.append(partition)
                where = slice(cut[part], cut[part + 1])
                assert target.dtype == dtype and target.shape == (cut[part + 1] - cut[part],)
                own = block == r
                assert np.shares_memory(target, out if own else x) and len(sources) == (n - 1 if own else 0)
                target[:] = made(r, block, count, dtype)[where]
                for source in sources:
                    target += source
            assert comm.run(schedule, x, out=out, compute=fn) is out
            want = [(r + s) % n * parts + p for s in [*range(1, n), 0] for p in range(parts)]
            assert order == want, (order, want)
            assert (out == sum(made(q, r, count, np.float64) for q in range(n)).astype(dtype)).all()
        again = ccl.interpret(schedule, [np.concatenate([made(q, b, count, dtype) for b in range(n)]) for q in range(n)])[r]
        assert (out.view(np.uint8) == again.view(np.uint8)).all()
"""


@pytest.mark.parametrize("transport", ["shm", "tcp", "auto"])
def test_reduce_scatter_of_partitions_is_exact(transport):
    run(REDUCE_SCATTER, CCL_LAB_TRANSPORT=transport)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_all_gather_is_worked_on_as_it_comes(transport):
    run(
        """
    x, out = comm.empty(5000), comm.empty((n, 5000))
    x[:] = made(r, 0, 5000, np.float32)
    weights = np.arange(50, dtype=np.float32)
    results, order = np.zeros((n, 100), np.float32), []
    def fn(partition, target, sources):
        assert target is None and len(sources) == 1 and np.shares_memory(sources[0], out)
        order.append(partition)
        results[partition] = sources[0].reshape(100, 50) @ weights
    schedule = all_gather_matmul(n)
    ccl.verify(schedule)
    for repeat in range(5):
        comm.run(schedule, x, out=out, compute=fn)
        for q in range(n):
            assert (out[q] == made(q, 0, 5000, np.float32)).all()
            assert (results[q] == made(q, 0, 5000, np.float32).reshape(100, 50) @ weights).all()
    assert order == [(r - s) % n for s in range(n)] * 5
    """,
        CCL_LAB_TRANSPORT=transport,
    )


PLANNED = """
    from ccl_lab import overlap
    import zlib
    forms = [("sequential", {}), ("k_slice", {"slices": 3}), ("ring", {}), ("direct", {}), ("direct", {"sub_slices": 2}),
             ("ring", {"adds": "fused"}), ("direct", {"adds": "fused"}), ("direct", {"adds": "separate", "sub_slices": 3})]
    done = 0
    for operator in ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_to_all", "all_to_all_matmul", "attention_projection"):
        for name, options in forms:
            try: schedule = overlap.plan(operator, name, n, **options)
            except UsageError: continue  # no ring of an all_to_all, no adds of a gather
            layout = schedule.layout(173, dtype="float32")
            sizes = [[layout.elements(buf, q) for buf in (0, 1)] for q in range(n)]
            inputs = [np.random.default_rng(q).standard_normal(sizes[q][0]).astype(np.float32) for q in range(n)]
            seen = {}
            def fn(rank, partition, target, sources):
                if target is None:
                    seen[rank, partition] = [zlib.crc32(source.tobytes()) for source in sources]
                    return
                target[:] = np.random.default_rng((rank, partition)).standard_normal(target.size)
                for source in sources: target += source
            want = ccl.interpret(schedule, inputs, compute=fn)
            expected, seen = seen, {}
            shared = schedule.in_place
            whole = comm.empty(max(sizes[r]))
            if shared:
                lo, size = (r * sizes[r][0], sizes[r][0]) if sizes[r][0] < sizes[r][1] else (r * sizes[r][1], sizes[r][1])
                part = whole[lo : lo + size]
                x, out = (part, whole) if sizes[r][0] < sizes[r][1] else (whole, part)
            else:
                x, out = comm.empty(sizes[r][0]), comm.empty(sizes[r][1])
            x[:] = inputs[r]
            comm.run(schedule, x, out=out, compute=lambda p, t, s: fn(r, p, t, s))
            assert (out.view(np.uint8) == want[r].view(np.uint8)).all(), (operator, name, options)
            assert seen == {key: value for key, value in expected.items() if key[0] == r}, (operator, name, options)
            done += 1
    assert done >= 26, done
"""


@pytest.mark.parametrize(("transport", "n"), [("tcp", 2), ("tcp", 4), ("shm", 3), ("auto", 1)])
def test_planned_schedules_give_what_the_definition_gives(transport, n):
    run(PLANNED, n=n, CCL_LAB_TRANSPORT=transport)


def test_memory_is_used_as_it_is_and_errors_say_what_to_give():
    run("""
    schedule = matmul_reduce_scatter(n)
    x, out = comm.empty((n, 64)), comm.empty(64)
    def fn(partition, target, sources): target[:] = 1 + sum(sources)
    def refused(kind, words, *args, **options):
        try: comm.run(*args, **options)
        except kind as error: assert words in str(error), error
        else: raise AssertionError(words)
    refused(UsageError, "has 9 compute ops: say who does them, compute=fn(partition, target, sources)", schedule, x, out=out)
    refused(UsageError, "x of reduce_scatter with compute= on rank", schedule, np.zeros((n, 64), np.float32), out=out, compute=fn)
    refused(UsageError, "out of reduce_scatter with compute= on rank", schedule, x, out=np.zeros(64, np.float32), compute=fn)
    refused(UnsupportedError, "async_op=True with a function", schedule, x, out=out, compute=fn, async_op=True)
    refused(UsageError, "compute=3: expected a function", schedule, x, out=out, compute=3)
    refused(UsageError, "is for a World", schedule, x, out=out, compute=ccl.Matmul(2, 2, 2))
    refused(ShapeError, "durations of 2 partitions: the schedule has 3", schedule, x, out=out, compute=ccl.Emulated([1, 2]))
    before = comm.memory()["arena_used_bytes"]
    for repeat in range(20):
        comm.run(schedule, x, out=out, compute=fn)
        assert (out == n).all()
    grown = comm.memory()["arena_used_bytes"] - before
    assert grown <= 4 * 64 * (n + 1), grown  # SCRATCH, once
    plain = ccl.plan("all_reduce", comm.topology, 64 * 4)
    a, b = comm.empty(64), comm.empty(64); a[:] = r
    comm.run(plain, a, out=b, compute=fn)  # nothing to compute: never called
    assert (b == sum(range(n))).all()
    """)


def test_traces_show_computation_beside_what_it_hides():
    run(
        """
    schedule = matmul_reduce_scatter(n, 2)
    x, out = comm.empty((n, 1 << 16)), comm.empty(1 << 16)
    def fn(partition, target, sources):
        until = time.monotonic_ns() + 2_000_000
        target[:] = 1 + sum(sources)
        while time.monotonic_ns() < until: pass
    comm.run(schedule, x, out=out, compute=fn)
    comm.trace()
    comm.run(schedule, x, out=out, compute=fn)
    trace = comm.trace(); c = trace.columns
    assert trace.meta["device"] == "caller"
    mine = c["track"] == Track.compute
    assert sorted(c["op_id"][mine]) == [i for i, op in enumerate(schedule.ops) if op.kind == 7 and op.rank == r]
    assert (c["kind"][mine] == 7).all() and (c["end_ns"] - c["begin_ns"])[mine].min() >= 2_000_000
    begins, ends = np.sort(c["begin_ns"][mine]), np.sort(c["end_ns"][mine])
    assert (begins[1:] >= ends[:-1]).all()  # one after the other
    x[:] = 1  # what a partition produces is there already
    work = comm.run(schedule, x, out=out, compute=ccl.Emulated("1ms"), async_op=True)
    assert work.wait() is out and (out == n).all()
    trace = comm.trace(); c = trace.columns
    assert trace.meta["device"] == "emulated"
    mine = c["track"] == Track.compute
    assert (np.sort((c["end_ns"] - c["begin_ns"])[mine]) == 1_000_000).all() and mine.sum() == 2 * n
    """,
        CCL_LAB_TRANSPORT="tcp",
    )


def test_an_exception_ends_the_run_on_all_ranks_and_is_first():
    run("""
    schedule = matmul_reduce_scatter(n)
    x, out = comm.empty((n, 64)), comm.empty(64)
    class Boom(Exception): pass
    def fn(partition, target, sources):  # rank 1 begins with partition 2: neither of the others can end without it
        if r == 1: raise Boom("no such weight")
        target[:] = 1 + sum(sources)
    begin = time.monotonic()
    try: comm.run(schedule, x, out=out, compute=fn)
    except Boom as error: assert r == 1 and str(error) == "no such weight" and error.__cause__ is None
    except AbortedError as error:
        assert r != 1 and "on rank 1: compute of partition 2 (op " in str(error) and "raised Boom: no such weight" in str(error), error
    else: raise AssertionError("no error")
    assert time.monotonic() - begin < 10
    comm.reset()
    def fine(partition, target, sources): target[:] = 1 + sum(sources)
    comm.run(schedule, x, out=out, compute=fine)
    assert (out == n).all()
    """)


def test_an_interrupt_gets_through_while_waiting_and_while_computing():
    run("""
    import threading
    schedule = matmul_reduce_scatter(n)
    x, out = comm.empty((n, 64)), comm.empty(64)
    def slow(partition, target, sources):
        if r != 0 or where == "computing": time.sleep(1.0)
        target[:] = 1 + sum(sources)
    for where in ("waiting", "computing"):
        if r == 0: threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        begin = time.monotonic()
        try: comm.run(schedule, x, out=out, compute=slow)
        except KeyboardInterrupt: assert r == 0
        except AbortedError as error: assert r != 0 and "was interrupted" in str(error), error
        else: raise AssertionError("no error")
        assert time.monotonic() - begin < 6
        comm.reset()
    def fine(partition, target, sources): target[:] = 1 + sum(sources)
    comm.run(schedule, x, out=out, compute=fine)
    assert (out == n).all()
    """)


def test_a_deadline_and_a_lost_rank_end_it():
    outputs = run("""
    schedule = matmul_reduce_scatter(n)
    x, out = comm.empty((n, 64)), comm.empty(64)
    def slow(partition, target, sources):
        if r == 2: time.sleep(1.5)
        target[:] = 1 + sum(sources)
    try: comm.run(schedule, x, out=out, compute=slow, timeout=0.5)
    except OpTimeout as error: assert "did not end within 0.5 s" in str(error), error
    else: raise AssertionError("no error")
    comm.reset()
    def dies(partition, target, sources):
        if r == 2:
            print("gone", flush=True); os._exit(0)
        target[:] = 1 + sum(sources)
    try: comm.run(schedule, x, out=out, compute=dies)
    except PeerLostError as error: assert error.rank == 2
    """)
    assert "gone" in outputs[2]
