"""Windows, as every rank of a job uses them: what test_windows.py launches, and the rig over verbs.

Is: one function a property, run by all ranks with the same seeds. Is not: a launcher.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np

import ccl_lab as ccl
from ccl_lab.trace.columns import Track

LARGE = 1 << 20


def raises(error: type[Exception], text: str, call: Any) -> Exception:
    """The error that `call` must raise, with these words in it."""
    try:
        call()
    except error as caught:
        assert text in str(caught), (text, str(caught))
        return caught
    raise AssertionError(f"no {error.__name__} with {text!r}")


def values(rank: int, nbytes: int, seed: int = 0) -> np.ndarray:
    """Bytes that say whose they are."""
    return np.random.default_rng(1000 * seed + rank).integers(0, 256, nbytes, np.uint8)


def simple(comm: Any) -> None:
    """Sizes differ by rank; small and large puts to everybody, with and without signals, into memory of every kind."""
    n, me = comm.size, comm.rank
    nbytes = LARGE * n + 4096 * me
    for memory in (nbytes, comm.empty(nbytes, "uint8"), f"{nbytes}B"):
        with comm.window(memory) as window:
            assert window.sizes == [LARGE * n + 4096 * rank for rank in range(n)]
            assert window.array.nbytes == nbytes
            for size in (5, 9000, LARGE):
                mine = values(me, size, size)
                for peer in range(n):
                    window.put(peer, mine, LARGE * me, signal=True)
                for peer in range(n):
                    assert window.wait(peer) == [peer]
                    assert (window.array[LARGE * peer : LARGE * peer + size] == values(peer, size, size)).all()
                    out = np.empty(size, np.uint8)
                    window.flush(peer)
                    assert window.get(peer, LARGE * me, out) is out and (out == mine).all()
                comm.barrier()
            assert window.count() == 0
    floats = comm.empty((2, 3), "float32")
    with comm.window(floats) as window:
        window.put((me + 1) % n, np.full(3, me, np.float32), 12, signal=True)
        window.wait((me - 1) % n)
        assert window.array is floats and (floats[1] == (me - 1) % n).all()
        window.flush()
        comm.barrier()
        assert (window.get((me + 1) % n, 12).view(np.float32) == me).all()


def posted(comm: Any) -> None:
    """Ops that are not waited for: a Work each, and a flush for all; a signal after puts is seen after them."""
    n, me = comm.size, comm.rank
    with comm.window(2 * LARGE * n) as window:
        for turn in range(4):
            mine = values(me, 2 * LARGE, turn)
            parts = np.split(mine, 8)
            works = [
                window.put(peer, part, 2 * LARGE * me + i * part.nbytes, async_op=True)
                for i, part in enumerate(parts)
                for peer in range(n)
            ]
            for peer in range(n):
                window.signal(peer)
            window.wait(None, n)
            for peer in range(n):
                assert (window.array[2 * LARGE * peer :][: 2 * LARGE] == values(peer, 2 * LARGE, turn)).all()
            window.flush()
            assert all(work.done() for work in works)
            assert all(work.wait() is None for work in works)
            outs = [window.get(peer, 2 * LARGE * me, np.empty(2 * LARGE, np.uint8), async_op=True) for peer in range(n)]
            assert all((out.wait() == mine).all() for out in outs)
            comm.barrier()


def random_programs(comm: Any, seeds: int = 6, rounds: int = 8) -> None:
    """Random puts, gets and signals, bit by bit as the sequential model of all ranks says.

    In a round every rank writes into its own places of all windows, in order, and signals now and then; the model plays the ranks one
    after the other.
    """
    n, me = comm.size, comm.rank
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        part = int(rng.choice([300, 70_000, 400_000]))
        model = [np.zeros(part * n, np.uint8) for _ in range(n)]
        with comm.window(part * n) as window:
            window.array[:] = 0
            comm.barrier()
            for _ in range(rounds):
                expected = _play(rng, window, model, part, n, me)
                window.wait(None, int(expected[me]))
                assert (window.array == model[me]).all(), seed
                _look_at_others(rng, window, model, n, me)
                window.flush()
                comm.barrier()
            assert window.count() == 0


def _play(rng: np.random.Generator, window: Any, model: list[np.ndarray], part: int, n: int, me: int) -> np.ndarray:
    """A round of puts: every rank's in the model, this one's for real. How many signals each rank gets."""
    signals = np.zeros(n, np.int64)
    moving = []
    for rank in range(n):
        for _ in range(int(rng.integers(1, 7))):
            peer, nbytes = int(rng.integers(0, n)), int(rng.integers(0, part + 1))
            at = part * rank + int(rng.integers(0, part - nbytes + 1))
            data = rng.integers(0, 256, nbytes, np.uint8)
            told, later = bool(rng.integers(0, 2)), bool(rng.integers(0, 2))
            model[peer][at : at + nbytes] = data
            signals[peer] += told
            if rank != me:
                continue
            work = window.put(peer, data, at, signal=told, async_op=later)
            moving.append(work)
            window.flush(peer)  # the next one may write the same bytes
        signals += 1
        if rank == me:
            for peer in range(n):
                window.signal(peer)
    return signals


def _look_at_others(rng: np.random.Generator, window: Any, model: list[np.ndarray], n: int, me: int) -> None:
    window._comm.barrier()
    for rank in range(n):
        peer, size = int(rng.integers(0, n)), len(model[0])
        nbytes = int(rng.integers(0, size + 1))
        at = int(rng.integers(0, size - nbytes + 1))
        if rank == me:
            out = window.get(peer, at, np.empty(nbytes, np.uint8))
            assert (out == model[peer][at : at + nbytes]).all()


def all_nics_one_notice(comm: Any, nics: int) -> None:
    """A large put leaves over every NIC of the node, and its peer sees one signal, with all of it."""
    nbytes, last = 4 * LARGE, comm.size - 1
    with comm.window(nbytes) as window:
        comm.barrier()
        comm.trace()
        for turn in range(5):
            if comm.rank == 0:
                window.put(last, values(0, nbytes, turn), signal=True)
                window.wait(last)
            elif comm.rank == last:
                window.wait(0)
                assert (window.array == values(0, nbytes, turn)).all() and window.count() == 0
                window.signal(0)
        spans = comm.trace()
        if comm.rank == 0:
            sent = np.array([int(spans["nbytes"][(spans["track"] == Track.nic_tx) & (spans["index"] == nic)].sum()) for nic in range(nics)])
            assert sent.sum() >= 5 * nbytes and (sent >= nbytes // nics).all(), sent
            puts = (spans["track"] == Track.channel) & (spans["nbytes"] == nbytes)
            assert puts.sum() == 5


def bad_calls(comm: Any) -> None:
    """Named on the rank that made them; the window goes on."""
    n, me = comm.size, comm.rank
    window = comm.window(64 + me)
    peer = n - 1
    said = f"of rank {peer}: 33 bytes at offset {32 + peer} lie outside its {64 + peer} bytes"
    error = raises(ccl.BoundsError, said, lambda: window.put(peer, np.zeros(33, np.uint8), 32 + peer))
    assert error.rank == peer
    raises(ccl.BoundsError, "at offset -1", lambda: window.put(peer, b"x", -1))
    raises(ccl.BoundsError, f"{64 + peer} bytes", lambda: window.get(peer, 60, np.zeros(99, np.uint8)))
    raises(ccl.UsageError, f"rank {n} does not exist", lambda: window.put(n, b"x"))
    raises(ccl.UsageError, "expected 1 or more", lambda: window.wait(0, 0))
    raises(ccl.ShapeError, "contiguous", lambda: window.put(peer, np.zeros((4, 4), np.uint8)[:, ::2]))
    raises(ccl.ShapeError, "read-only", lambda: window.get(peer, 0, np.frombuffer(b"12345678", np.uint8)))
    raises(ccl.DtypeError, "", lambda: window.put(peer, "text"))
    raises(ccl.OpTimeout, f"window {window._number}, did not end within 0.05 s: expected 2 signals of rank {peer}, seen 0",
           lambda: window.wait(peer, 2, timeout=0.05))  # fmt: skip
    comm.barrier()
    window.signal(peer)
    if me == peer:
        window.wait(None, n)
    window.close()
    window.close()
    raises(ccl.UsageError, "is closed", lambda: window.put(peer, b"x"))
    raises(ccl.UsageError, "is closed", lambda: window.wait(peer))
    if n > 1:
        shown = np.zeros(4096, np.uint8)[1:] if me == 0 else 4096
        kind, said = (ccl.UsageError, "rank 0 has shown nothing") if me else (ccl.RegistrationError, "peers do not reach")
        error = raises(kind, said, lambda: comm.window(shown))
        assert error.rank == 0
    opened = [comm.window(64) for _ in range(16)]
    raises(ccl.UsageError, "16 are open already", lambda: comm.window(64))
    for each in opened:
        each.close()
    with comm.window(0) as nothing:
        raises(ccl.BoundsError, "its 0 bytes", lambda: nothing.put(me, b"x"))
    with comm.window(8) as last:
        last.put(me, b"12345678", signal=True)
        last.wait(me)
        assert bytes(last.array) == b"12345678"


def registered_pages(comm: Any) -> None:
    """An ordinary array may be shown where it is whole pages and registered."""
    import mmap

    pages = np.frombuffer(mmap.mmap(-1, 1 << 16), np.uint8)
    with comm.registered(pages), comm.window(pages) as window:
        window.put((comm.rank + 1) % comm.size, values(comm.rank, 1 << 16), signal=True)
        window.wait()
        assert (pages == values((comm.rank - 1) % comm.size, 1 << 16)).all()
    assert (pages == values((comm.rank - 1) % comm.size, 1 << 16)).all()


def interrupted(comm: Any) -> None:
    """Ctrl-C ends a wait, which takes nothing."""
    with comm.window(64) as window:
        comm.barrier()
        if comm.rank == 0:
            def strike(*_: Any) -> None:
                raise KeyboardInterrupt

            signal.signal(signal.SIGALRM, strike)
            signal.setitimer(signal.ITIMER_REAL, 1.0)
            raises(KeyboardInterrupt, "", lambda: window.wait(None, 1000))
            window.signal(comm.size - 1)
        if comm.rank == comm.size - 1:
            assert window.wait(0) == [0]


def closed_in_flight(comm: Any) -> None:
    """Closing lets what is under way arrive, also what was only posted."""
    n, me = comm.size, comm.rank
    for turn in range(5):
        memory = comm.empty(LARGE * n, "uint8")
        window = comm.window(memory)
        for peer in range(n):
            window.put(peer, values(me, LARGE, turn), LARGE * me, async_op=True)
        window.close()
        for peer in range(n):
            assert (memory[LARGE * peer :][:LARGE] == values(peer, LARGE, turn)).all()


def after_a_reset(comm: Any) -> None:
    """Windows of before a reset are refused, new ones work."""
    old = comm.window(64)
    comm.barrier()
    comm.reset()
    raises(ccl.UsageError, "before the communicator was reset", lambda: old.put(0, b"x"))
    old.close()
    simple(comm)


def nic_pulled(comm: Any, nics: int, gbits: float) -> None:
    """A NIC goes down in the middle of a put: all bytes arrive, once, before the one notice; and it comes back for the next."""
    nbytes, rate, engine, last = 16 * LARGE, int(gbits * 125e6), comm._member.engine, comm.size - 1
    hits = 0
    with comm.window(nbytes) as window:
        for turn in range(40):  # on a busy machine a put may be over before its NIC is down
            data = values(0, nbytes, turn)
            comm.barrier()
            if comm.rank == 0:
                lost = engine.rails()["lost"]
                work = window.put(last, data, signal=True, async_op=True)
                time.sleep(0.02)
                engine.set_nic(turn % nics, rate, up=False)
                work.wait("60s")
                window.wait(last)
                assert (window.get(last, 0, np.empty(nbytes, np.uint8)) == data).all()
                engine.set_nic(turn % nics, rate, up=True)
                hits += engine.rails()["lost"] > lost
                _until(lambda: all(path["state"] == "up" for path in engine.rails()["paths"]), engine.rails)
            elif comm.rank == last:
                window.wait(0)
                assert (window.array == data).all() and window.count() == 0
                window.signal(0)
            if comm.broadcast(np.array([hits]))[0] >= 2:
                return
    raise AssertionError("no NIC was pulled in the middle of a put")


def _until(true: Any, say: Any) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, say()
        time.sleep(0.02)


def killed(comm: Any) -> None:
    """A rank dies while others wait for it: they are told who it was, and so is whoever uses the window afterwards."""
    window, last = comm.window(64), comm.size - 1
    if comm.rank == last:
        for peer in range(last):
            window.wait(peer)  # it has its window: what comes next is the wait that is to fail
        os.kill(os.getpid(), signal.SIGKILL)
    window.signal(last)
    error = raises(ccl.PeerLostError, f"rank {comm.size - 1}", lambda: window.wait(comm.size - 1))
    assert error.rank == comm.size - 1
    error = raises(ccl.PeerLostError, f"rank {comm.size - 1}", lambda: window.put(comm.size - 1, b"x"))
    window._let_go()  # nobody is left to close it with


def of_one(comm: Any) -> None:
    """A communicator of one rank: its own window."""
    assert comm.size == 1
    simple(comm)
    bad_calls(comm)
    raises(ccl.OpTimeout, "seen 0", lambda: comm.window(8).wait(timeout=0.01))
