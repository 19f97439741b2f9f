"""The kernel's end of the stream of spans: numbered batches, a window to send again from, a thread that sends.

    kernel  --- spans seq 0, 1, 2, _, 4 --->  browser
    browser --- ask from 3              --->  kernel      (a gap, or a page that was loaded again)
    browser --- ack 2                   --->  kernel      (2 to 4 times a second)

Is: flow, order and repair. Is not: encoding (`wire`) or a widget. Invariants: at most 30 messages a second and 1 MiB
each, whoever sends; nothing here runs on, or waits for, the kernel's main loop (an ask or ack only sets a number under a
lock). Messages can be lost without a word on the way, so what is sent stays in the window until it is too old.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from . import wire

MAX_HZ = 30.0
SILENT_S = 1.0
SLOW_HZ = 8.0
CLIENT_S = 5.0
IDLE_S = 30.0
STATUS_S = 0.25

Send = Callable[[dict[str, Any], list[bytes]], None]


class SpanStream:
    """One source of spans. `append` from any thread; `next` from the thread that sends."""

    def __init__(self, source: str, *, origin_ns: int | None = None, window_spans: int = 1_000_000) -> None:
        self.source = source
        self.lanes = wire.Lanes()
        self.origin_ns = origin_ns
        self.drops = 0
        self.resyncs = 0
        self._window_spans = window_spans
        self._lock = threading.Lock()
        self._batches: deque[tuple[dict[str, Any], bytes, bytes]] = deque()
        self._first = 0
        self._kept = 0
        self._cursor = 0
        self._acked: dict[str, tuple[int, float]] = {}
        self._headed = 0.0

    def append(self, columns: wire.Columns, drops: int = 0, *, keep_all: bool = False) -> None:
        """Adds spans (trace columns of equal length); `drops` is the running total of spans lost before."""
        n = len(columns["rank"])
        with self._lock:
            self.drops = max(self.drops, int(drops))
            if not n:
                return
            if self.origin_ns is None:
                self.origin_ns = int(columns["begin_ns"].min())
            known = len(self.lanes)
            lane = self.lanes.numbers(columns)
            for content, spans, detail in wire.encode(columns, lane, self.origin_ns):
                content |= {"type": "spans", "source": self.source, "seq": self._first + len(self._batches)}
                content |= {"drops": self.drops, "lane_from": known, "lane_to": len(self.lanes)}
                known = len(self.lanes)
                self._batches.append((content, spans, detail))
                self._kept += content["count"]
            while not keep_all and self._kept > self._window_spans and len(self._batches) > 1:
                self._kept -= self._batches.popleft()[0]["count"]
                self._first += 1

    @property
    def total(self) -> int:
        """Batches made so far, kept or not."""
        return self._first + len(self._batches)

    @property
    def acked(self) -> int:
        """The highest sequence number that every page heard of lately (or the last one heard of) has; -1: none."""
        with self._lock:
            if not self._acked:
                return -1
            latest = max(at for _, at in self._acked.values())
            return min(seq for seq, at in self._acked.values() if latest - at < CLIENT_S)

    def quiet_for(self) -> float:
        """Seconds since any page was heard of."""
        with self._lock:
            return time.monotonic() - max((at for _, at in self._acked.values()), default=-1e9)

    def ask(self, client: str, start: int) -> None:
        """A page wants batches from `start` on; all pages get them, and skip what they have."""
        with self._lock:
            if 0 < start < self._cursor:
                self.resyncs += 1
            self._cursor = min(self._cursor, max(0, int(start)))
            self._acked[client] = (int(start) - 1, time.monotonic())

    def ack(self, client: str, seq: int) -> None:
        """A page has everything up to `seq`."""
        with self._lock:
            self._acked[client] = (int(seq), time.monotonic())

    def next(self) -> tuple[dict[str, Any], list[bytes]] | None:
        """The next message to send, or None. Moves on; an `ask` moves back."""
        with self._lock:
            self._cursor = max(self._cursor, self._first)
            at = self._cursor - self._first
            if at >= len(self._batches):
                return self._head()
            content, spans, detail = self._batches[at]
            self._cursor += 1
            return self._complete(content), [spans, detail]

    def _complete(self, content: dict[str, Any]) -> dict[str, Any]:
        """With the lanes a page needs before this batch: new ones, or all where it may be the first a page gets."""
        start = 0 if content["seq"] == self._first else content["lane_from"]
        lanes = {"from": start, **self.lanes.table(start, content["lane_to"])}
        return {
            **content,
            "first": self._first,
            "lanes": lanes,
            "drops": self.drops,
            "origin": str(self.origin_ns),
        }

    def _head(self) -> tuple[dict[str, Any], list[bytes]] | None:
        """Once a second while a page has not acknowledged the last batch: a word that it exists."""
        now = time.monotonic()
        last = self.total - 1
        behind = any(seq < last and now - at < 60 for seq, at in self._acked.values())
        if not behind or now - self._headed < 1.0:
            return None
        self._headed = now
        return {"type": "head", "source": self.source, "seq": last}, []

    def inline(self) -> list[dict[str, Any]]:
        """Every kept batch as the state of a widget or file carries it."""
        with self._lock:
            return [
                {**self._complete(content), "wire": spans, "detail": detail}
                for content, spans, detail in self._batches
            ]

    @property
    def nbytes(self) -> int:
        """Bytes of the kept batches."""
        with self._lock:
            return sum(len(spans) + len(detail) for _, spans, detail in self._batches)


class Pump(threading.Thread):
    """Sends what the streams have, at most 30 messages a second; polls a feed where there is one.

    poll: () -> (structured spans with the trace columns, running total of drops); StopIteration ends the feed. status: () -> dict, sent
    at most 4 times a second, when it changed. news: () -> a message to be sent before spans, or None. Ends by `close`,
    or by itself when there is no feed and nothing left to send.
    """

    def __init__(self, streams: list[SpanStream], send: Send, *, poll: Callable[[], tuple[np.ndarray, int]] | None = None,
                 status: Callable[[], dict[str, Any]] | None = None,
                 news: Callable[[], dict[str, Any] | None] | None = None) -> None:  # fmt: skip
        super().__init__(name="ccl_lab-widget-pump", daemon=True)
        self._streams = streams
        self._send = send
        self._poll = poll
        self._status = status
        self._news = news
        self._told: dict[str, Any] | None = None
        self._told_at = 0.0
        self._wake = threading.Event()
        self._closed = False
        self.messages = 0
        self.error: Exception | None = None

    def close(self) -> None:
        """Stops after the message that is being sent."""
        self._closed = True
        self._wake.set()

    def wake(self) -> None:
        """A page asked for something: it may be new, so it is told the status too."""
        self._told = None
        self._wake.set()

    def run(self) -> None:
        """Until closed. An error of the feed ends the thread and is kept in `error`."""
        try:
            while not self._closed:
                began = time.monotonic()
                self._take()
                self._give()
                if self._poll is None and self._status is None and not self._pending():
                    if min(stream.quiet_for() for stream in self._streams) > IDLE_S:
                        return
                    self._wake.wait(1.0)
                    self._wake.clear()
                time.sleep(max(0.0, 1.0 / self._hz() - (time.monotonic() - began)))
        except Exception as error:  # noqa: BLE001 - kept for the owner, shown in the page; a thread has no caller
            self.error = error
            if not self._closed:
                self._send(
                    {
                        "type": "status",
                        "status": {"state": "feed ended", "error": f"{type(error).__name__}: {error}"},
                    },
                    [],
                )

    def _pending(self) -> bool:
        return any(stream._cursor < stream.total for stream in self._streams)

    def _hz(self) -> float:
        """Slower while no page answers: a busy kernel cannot hear acknowledgements, and queues are finite."""
        return MAX_HZ if min(s.quiet_for() for s in self._streams) < SILENT_S * 4 else SLOW_HZ

    def _take(self) -> None:
        if self._poll is None:
            return
        try:
            spans, drops = self._poll()
        except StopIteration:
            self._poll, self._told_at = None, 0.0
            self._tell()
            self._status = None
            return
        self._streams[0].append(wire.from_records(spans), drops)

    def _give(self) -> None:
        news = self._news() if self._news is not None else None
        if news is not None:
            self._send(news, [])
            self.messages += 1
            return
        if self._tell():
            return
        for stream in self._streams:
            message = stream.next()
            if message is not None:
                self._send(*message)
                self.messages += 1
                return

    def _tell(self) -> bool:
        """Sends the status where it is due and new; it goes before spans, which would starve it."""
        now = time.monotonic()
        if self._status is None or now - self._told_at < STATUS_S:
            return False
        self._told_at = now
        status = self._status()
        if status == self._told:
            return False
        self._told = status
        self._send({"type": "status", "status": status}, [])
        self.messages += 1
        return True
