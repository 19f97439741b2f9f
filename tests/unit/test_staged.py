"""What the host keeps while a stream of a GPU is held: pinned memory, arrays, and who is told of a failure.

Is: held.py over a stage that is played. Is not: streams (native/tests/test_device_stage.cpp), nor real calls (test_device_calls.py).
"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ccl_lab.engine import held
from ccl_lab.errors import AbortedError, PeerLostError, RegistrationError


class Stage:
    """The native stage: runs end when a test says so."""

    def __init__(self, *_: Any) -> None:
        self.pinned: list[tuple[int, int]] = []
        self.runs: list[Any] = []
        self.given_up: list[tuple[Any, ...]] = []
        self.done, self.closed, self.drained = 0, False, True
        self.error: Exception | None = None
        self.failed = threading.Event()

    def pin(self, address: int, nbytes: int) -> None:
        self.pinned.append((address, nbytes))

    def hold(self, into_host: Any, from_host: Any, stream: int, kept: Any, by_nics: bool) -> Any:
        if self.error:
            raise self.error
        self.runs.append((into_host, from_host, stream, kept, by_nics))
        return SimpleNamespace(number=len(self.runs), give_up=lambda *why: self.given_up.append(why))

    def ended(self, number: int) -> bool:
        return number <= self.done

    def await_failure(self, seconds: float) -> bool:
        return self.failed.wait(seconds)

    def check(self) -> None:
        if self.error:
            raise self.error

    def close(self) -> bool:
        self.closed = True
        return self.drained


@pytest.fixture
def opened(monkeypatch):
    monkeypatch.setattr(held._core, "DeviceStage", Stage)
    engine = SimpleNamespace()
    member = SimpleNamespace(
        engine=engine, rank=3, options=SimpleNamespace(timeout_s=1.0), empty=lambda nbytes: (0, np.zeros(nbytes, np.uint8))
    )
    told: list[Exception] = []
    heard = threading.Event()

    def failed(error: Any) -> Any:
        told.append(error)
        heard.set()
        return error

    stream = held.HeldStream(member, 0, "", failed)
    yield stream, stream.native, told, heard
    stream.close()


def array(nbytes: int) -> Any:
    return SimpleNamespace(address=4096, nbytes=nbytes)


def test_pinned_memory_is_used_again_when_its_run_has_ended(opened):
    stream, native, _, _ = opened
    first = stream.pinned(100_000)
    assert first.nbytes == 1 << 17 and native.pinned == [(first.ctypes.data, 1 << 17)]
    number = stream.run(7, [(array(100), first.ctypes.data, "x of rank 3")], [], [first], lambda hold: None, None)
    assert number == 1 and native.runs == [([(4096, first.ctypes.data, 100, "x of rank 3")], [], 7, [], False)]
    second = stream.pinned(100_000)
    assert second.ctypes.data != first.ctypes.data  # the first is in use
    native.done = 1
    assert stream.pinned(70_000).ctypes.data == first.ctypes.data
    assert stream.pinned(0).nbytes == held.LEAST_BYTES


def test_what_a_run_uses_lives_until_it_has_ended(opened):
    stream, native, _, _ = opened
    kept = SimpleNamespace()
    stream.run(0, [], [], [], lambda hold: None, kept)
    assert any(run[2][0] is kept for run in stream._running)
    native.done = 1
    stream.pinned(1)
    assert not stream._running


def test_a_work_that_could_not_be_started_lets_the_stream_go(opened):
    stream, native, _, _ = opened
    memory = stream.pinned(1)

    def start(hold: Any) -> None:
        raise PeerLostError("rank 1 died", rank=1)

    with pytest.raises(PeerLostError, match="rank 1 died"):
        stream.run(0, [], [], [memory], start, None)
    assert native.given_up[0][1:] == ("rank 1 died", 3)
    native.done = 1
    assert stream.pinned(1).ctypes.data != memory.ctypes.data  # until the stage is closed the stream may use it

    def interrupted(hold: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stream.run(0, [], [], [], interrupted, None)
    assert "KeyboardInterrupt" in native.given_up[1][1]


def test_a_refusal_of_the_stage_is_the_callers(opened):
    stream, native, _, _ = opened
    native.error = RegistrationError("x of rank 3 is not memory of a GPU")
    with pytest.raises(RegistrationError, match="x of rank 3"):
        stream.run(0, [], [], [], lambda hold: None, None)
    assert native.given_up == []
    native.error = None


def test_a_failure_is_told_though_nobody_waits(opened):
    _, native, told, heard = opened
    native.error = AbortedError("GPU 0 of rank 3 is gone")
    native.failed.set()
    assert heard.wait(60)
    assert told == [native.error]


def test_what_a_late_stream_may_use_is_kept(opened, monkeypatch):
    stream, native, _, _ = opened
    monkeypatch.setattr(held, "_KEPT", [])
    memory, kept = stream.pinned(1), SimpleNamespace()
    stream.run(0, [], [], [memory], lambda hold: None, kept)
    native.drained = False
    stream.close()
    assert held._KEPT[0][1][0] is memory and held._KEPT[0][2][0] is kept


def test_closing_ends_the_watch_and_tells_nobody(opened):
    stream, native, told, _ = opened
    stream.close()
    native.error = AbortedError("late")
    native.failed.set()
    assert native.closed and told == []
