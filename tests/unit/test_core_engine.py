"""Engines in processes of their own, over shared memory and over sockets, on columns written by hand.

The ranks are forked by a helper process, this file run as a script, because the process of pytest has threads.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback

import ml_dtypes
import numpy as np
import pytest

from ccl_lab import _core
from ccl_lab.errors import (
    AbortedError,
    BoundsError,
    ConfigError,
    OpTimeout,
    RegistrationError,
    ShapeError,
    UsageError,
)
from ccl_lab.ir import Collective, DType, Kind, RedOp
from ccl_lab.trace.columns import SpanKind, Track

INPUT, OUTPUT = 0, 1


def ring_all_gather(rank: int, n: int, block: int) -> dict[str, object]:
    """Columns of a ring all_gather of `block` bytes a rank."""
    before, after = (rank - 1) % n, (rank + 1) % n
    rows = [(Kind.copy, -1, -1, 0, OUTPUT, rank * block, block, INPUT, 0)]
    for step in range(n - 1):
        b = (rank - step) % n
        if step:
            rows.append((Kind.wait, before, 0, step, 0, 0, 0, None, 0))
        rows.append((Kind.put, after, 0, 0, OUTPUT, b * block, block, OUTPUT, b * block))
    rows.append((Kind.wait, before, 0, n - 1, 0, 0, 0, None, 0))
    sources = [row for row in rows if row[7] is not None]
    counts = np.array([row[7] is not None for row in rows], np.int32)

    def column(i: int, dtype: type) -> np.ndarray:
        return np.array([row[i] for row in rows], dtype)

    m = len(rows)
    return {
        "collective": int(Collective.all_gather), "dtype": int(DType.uint8), "redop": int(RedOp.sum), "plan_hash": 2**63 + 5,
        "count": block, "input_bytes": block, "output_bytes": n * block, "scratch_bytes": 0, "output_elements": n * block,
        "n_ranks_avg": 1, "alias": 0, "alias_offset": 0, "n_channels": 1,
        "op_id": np.arange(m, dtype=np.int32) + 100 * rank, "kind": column(0, np.uint8), "channel": np.zeros(m, np.int32),
        "peer": column(1, np.int32), "sig_channel": column(2, np.int32), "value": column(3, np.int64), "step": np.zeros(m, np.int32),
        "dst_buf": column(4, np.uint8), "dst_offset": column(5, np.uint64), "nbytes": column(6, np.uint64),
        "src_begin": (np.cumsum(counts) - counts).astype(np.int32), "src_count": counts,
        "nic": np.zeros(m, np.uint16), "peer_nic": np.zeros(m, np.uint16), "arg": np.full(m, -1, np.int32),
        "src_rank": np.full(len(sources), rank, np.int32), "src_buf": np.array([s[7] for s in sources], np.uint8),
        "src_offset": np.array([s[8] for s in sources], np.uint64), "ready_to": np.array([before], np.int32),
    }  # fmt: skip


def engine_of(rank: int, n: int, transport: str = "auto", **options: object) -> _core.Engine:
    return _core.Engine(rank, np.zeros(n, np.int32), n_channels=4, arena_bytes=1 << 26, trace_spans=1024, transport=transport, **options)


# -- the ranks


def run_rank(rank: int, n: int, transport: str, block: int, links: dict[int, socket.socket], control: socket.socket) -> dict[str, object]:
    engine = engine_of(rank, n, transport)
    control.sendall(json.dumps([engine.pid, engine.segment_fd]).ljust(64).encode())
    cards = json.loads(control.recv(64 * n, socket.MSG_WAITALL))
    for peer, (pid, fd) in enumerate(cards):
        if peer != rank and transport != "tcp":
            engine.attach_peer(peer, pid, fd)
        elif peer != rank:
            engine.add_connection(peer, 0, 0, 0, links[peer].detach())
            assert engine.connected(peer, 0, 0) and not engine.connected(peer, 1, 0)
    _, source = engine.empty(block)
    _, target = engine.empty(n * block)
    program = engine.compile(ring_all_gather(rank, n, block))
    for coll_id in range(20):
        source[:] = rank * 20 + coll_id
        target[:] = 255
        work = engine.start(program, source, target, coll_id=coll_id, timeout_s=20)
        assert work.wait(30) and work.done() and work.error() is None and work.end_ns >= work.begin_ns
        want = np.repeat(np.arange(n) * 20 + coll_id, block).astype(np.uint8)
        np.testing.assert_array_equal(target, want)
    spans = engine.drain_spans()
    memory = engine.memory()
    control.sendall(b"1")
    control.recv(1, socket.MSG_WAITALL)
    engine.close()
    return {"kinds": sorted({SpanKind(k).name for k in spans["kind"]}), "ops": len(spans), "coll_ids": len(set(spans["coll_id"].tolist())),
            "op_ids": sorted(set(spans["op_id"][spans["track"] == Track.channel].tolist())), "memory": memory}  # fmt: skip


def main(transport: str, n: int, block: int) -> None:
    """Forks `n` ranks, passes their cards around and prints what each one reports, as JSON."""
    links: list[dict[int, socket.socket]] = [{} for _ in range(n)]
    for a in range(n):
        for b in range(a + 1, n):
            links[a][b], links[b][a] = socket.socketpair()
    controls = []
    for rank in range(n):
        ours, theirs = socket.socketpair()
        controls.append(ours)
        if os.fork() == 0:
            ours.close()
            for other in set(range(n)) - {rank}:
                for sock in links[other].values():
                    sock.close()
            try:
                report = run_rank(rank, n, transport, block, links[rank], theirs)
            except BaseException:
                report = {"error": traceback.format_exc()}
            theirs.sendall(json.dumps(report).encode())
            os._exit(0)
        theirs.close()
    cards = [json.loads(control.recv(64, socket.MSG_WAITALL)) for control in controls]
    for control in controls:
        control.sendall(json.dumps(cards).ljust(64 * n).encode())
    for control in controls:
        control.recv(1, socket.MSG_WAITALL)
    for control in controls:
        control.sendall(b"1")
    print(json.dumps([json.loads(b"".join(iter(lambda c=control: c.recv(65536), b""))) for control in controls]))


CASES = [("auto", 2, 1000), ("auto", 4, 300_001), ("auto", 3, 0), ("tcp", 2, 1), ("tcp", 3, 200_000)]


@pytest.mark.parametrize(("transport", "n", "block"), CASES)
def test_all_gather_by_processes(transport, n, block):
    command = [sys.executable, __file__, transport, str(n), str(block)]
    out = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert out.returncode == 0, out.stderr
    for rank, report in enumerate(json.loads(out.stdout)):
        assert "error" not in report, report["error"]
        assert {"copy", "put", "wait", "collective"} <= set(report["kinds"])
        assert report["op_ids"] == list(range(100 * rank, 100 * rank + 2 * n - 1))
        assert report["coll_ids"] == 20
        assert report["memory"]["connections"] == (n - 1 if transport == "tcp" else 0)
        assert report["memory"]["arena_used_bytes"] >= block * (n + 1)


# -- one process


def test_errors_have_their_classes_and_culprits():
    engine = engine_of(0, 2)
    arrays = ring_all_gather(0, 2, 64)
    with pytest.raises(BoundsError, match=r"op 1 \(put\): peer 7") as caught:
        engine.compile(arrays | {"peer": np.array([-1, 7, 1], np.int32)})
    assert caught.value.op_id == 1 and caught.value.rank == 0
    with pytest.raises(UsageError, match="the key kind is missing"):
        engine.compile({k: v for k, v in arrays.items() if k != "kind"})
    with pytest.raises(UsageError, match="op column peer has 2 rows"):
        engine.compile(arrays | {"peer": np.zeros(2, np.int32)})
    with pytest.raises(UsageError, match="nbytes is not a contiguous one-dimensional array"):
        engine.compile(arrays | {"nbytes": "many"})
    with pytest.raises(UsageError, match="count is not an integer"):
        engine.compile(arrays | {"count": -1})
    with pytest.raises(ConfigError, match="expected auto, shm or tcp"):
        engine_of(0, 2, "pigeon")
    with pytest.raises(UsageError, match="rank is 2"):
        engine_of(2, 2)
    engine.close()
    with pytest.raises(UsageError, match="closed"):
        engine.compile(arrays)


def pair() -> list[_core.Engine]:
    engines = [engine_of(rank, 2) for rank in range(2)]
    for rank in range(2):
        engines[rank].attach_peer(1 - rank, engines[1 - rank].pid, engines[1 - rank].segment_fd)
    return engines


def test_timeout_names_the_op_and_reset_brings_it_back():
    engines = pair()
    programs = [engine.compile(ring_all_gather(rank, 2, 64)) for rank, engine in enumerate(engines)]
    buffers = [(engine.empty(64)[1], engine.empty(128)[1]) for engine in engines]
    work = engines[0].start(programs[0], *buffers[0], coll_id=1, timeout_s=0.05)
    with pytest.raises(OpTimeout, match=r"collective 1 \(all_gather\) on rank 0 .* op 1 \(put\) waits for rank 1 to enter") as caught:
        work.wait()
    assert caught.value.op_id == 1 and caught.value.rank == 1
    assert isinstance(work.error(), OpTimeout)
    with pytest.raises(AbortedError, match="reset all ranks"):
        engines[0].start(programs[0], *buffers[0], coll_id=2, timeout_s=1)
    for engine in engines:
        engine.reset(1)
    works = [engines[r].start(programs[r], *buffers[r], coll_id=3, timeout_s=20) for r in range(2)]
    assert all(work.wait(20) for work in works)
    for engine in engines:
        engine.close()


def test_wait_gives_up_and_cancel_ends():
    engines = pair()
    program = engines[0].compile(ring_all_gather(0, 2, 64))
    work = engines[0].start(program, engines[0].empty(64)[1], engines[0].empty(128)[1], coll_id=1, timeout_s=60)
    assert work.wait(0.01) is False and not work.done() and work.error() is None
    begin = time.monotonic()
    work.cancel("the test wants it")
    with pytest.raises(AbortedError, match="cancelled on rank 0: the test wants it"):
        work.wait(10)
    assert time.monotonic() - begin < 5
    work.cancel("again")
    for engine in engines:
        engine.close()


def test_run_drives_itself_and_says_where_it_cannot():
    engines = pair()
    programs = [engine.compile(ring_all_gather(rank, 2, 64)) for rank, engine in enumerate(engines)]
    buffers = [(engine.empty(64)[1], engine.empty(128)[1].view(ml_dtypes.bfloat16).reshape(2, 32)) for engine in engines]
    for rank in range(2):
        buffers[rank][0][:] = rank + 1
    before = threading.active_count()
    other = threading.Thread(target=engines[1].run, args=(programs[1], *buffers[1]), kwargs={"coll_id": 1, "timeout_s": 20})
    other.start()
    begin, end = engines[0].run(programs[0], *buffers[0], coll_id=1, timeout_s=20)
    other.join()
    assert 0 < begin <= end <= time.monotonic_ns() and threading.active_count() == before
    assert buffers[0][1].view(np.uint8).reshape(-1).tolist() == [1] * 64 + [2] * 64
    assert engines[0].run(programs[0], np.zeros(64, np.uint8), buffers[0][1], coll_id=2, timeout_s=1) is None
    assert engines[0].run(programs[0], buffers[0][0], buffers[0][0], coll_id=2, timeout_s=1, apart=True) is None
    with pytest.raises(ShapeError, match="has 63 bytes"):
        engines[0].run(programs[0], buffers[0][0][:63], buffers[0][1], coll_id=2, timeout_s=1)
    with pytest.raises(ValueError, match="contiguous"):
        engines[0].run(programs[0], buffers[0][0][::2], buffers[0][1], coll_id=2, timeout_s=1)
    for engine in engines:
        engine.close()


def test_waiting_holds_no_gil_and_lets_signals_through():
    engines = pair()
    programs = [engine.compile(ring_all_gather(rank, 2, 64)) for rank, engine in enumerate(engines)]
    buffers = [(engine.empty(64)[1], engine.empty(128)[1]) for engine in engines]

    def interrupt(*_):
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        for run in (engines[0].run, lambda *a, **k: engines[0].start(*a, **k).wait()):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            begin = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                run(programs[0], *buffers[0], coll_id=1, timeout_s=30)
            assert time.monotonic() - begin < 5
    finally:
        signal.signal(signal.SIGALRM, previous)
    # Both were started, go on without anybody, and are followed by a third, in that order.
    third = engines[0].start(programs[0], *buffers[0], coll_id=3, timeout_s=30)
    works = [engines[1].start(programs[1], *buffers[1], coll_id=i, timeout_s=30) for i in range(3)]
    assert works[2].wait(20) and third.wait(20)
    assert all(work.done() and work.error() is None for work in works)
    assert works[0].end_ns <= works[1].begin_ns <= works[2].begin_ns
    for engine in engines:
        engine.close()


def test_memory_is_registered_and_comes_back():
    engine = engine_of(0, 1)
    offset, array = engine.empty(5000)
    assert offset % 4096 == 0 and array.nbytes == 5000 and array.flags.writeable
    assert engine.arena_offset_of(array.ctypes.data, 5000) == offset
    assert engine.arena_offset_of(np.zeros(8).ctypes.data, 8) == -1
    part = array[100:200]
    del array
    gc.collect()
    assert engine.memory()["arena_used_bytes"] >= 5000  # a view keeps it
    del part
    gc.collect()
    assert engine.memory()["arena_used_bytes"] == 0
    with pytest.raises(RegistrationError, match="registered memory in one piece"):
        engine.empty(1 << 30)
    kept = engine.empty(64)[1]
    engine.close()
    kept[:] = 7  # outlives the engine
    assert kept.sum() == 7 * 64


def test_buffers_are_checked():
    engines = pair()
    program = engines[0].compile(ring_all_gather(0, 2, 64))
    target = engines[0].empty(128)[1]
    with pytest.raises(RegistrationError, match=r"input of rank 0 is not registered memory; take it from empty\(\)"):
        engines[0].start(program, np.zeros(64, np.uint8), target, coll_id=1, timeout_s=1)
    with pytest.raises(ShapeError, match="output of rank 0 has 64 bytes, the program was compiled for 128"):
        engines[0].start(program, engines[0].empty(64)[1], target[:64], coll_id=1, timeout_s=1)
    with pytest.raises(ShapeError, match="input of rank 0 has 0 bytes"):
        engines[0].start(program, None, target, coll_id=1, timeout_s=1)
    for engine in engines:
        engine.close()


def test_segment_is_seen_from_outside():
    engine = engine_of(0, 1, n_nics=3)
    segment = _core.Segment.open(engine.pid, engine.segment_fd)
    assert (segment.rank, segment.n_ranks) == (0, 1)
    assert segment.status()["state"] == "idle" and not segment.status()["aborted"]
    segment.set_nic(2, 10**9, True)
    assert segment.nic_counters().shape == (3, 2) and segment.nic_counters().sum() == 0
    with pytest.raises(UsageError, match=r"NIC 3 is outside 0\.\.2"):
        segment.set_nic(3, 1, True)
    offset, array = engine.empty(100)
    array[:] = np.arange(100)
    view = segment.view(offset, 100)
    np.testing.assert_array_equal(view, array)
    with pytest.raises(BoundsError):
        segment.view(1 << 26, 1)
    assert segment.abort(_core.status_codes()["PeerLostError"], "rank 5 is gone", 5)
    assert not segment.abort(_core.status_codes()["AbortedError"], "too late", 0)
    assert segment.status()["abort_reason"] == "rank 5 is gone" and segment.status()["culprit"] == 5
    assert len(segment.drain_spans()) == 0 and segment.dropped_spans() == 0
    engine.close()
    assert segment.status()["state"] == "closed"
    assert view[99] == 99


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
