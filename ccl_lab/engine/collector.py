"""Drains the trace rings of all ranks while they run, from their shared memory, without asking them.

Is: one thread that turns native records into trace columns, keeps those of the runs in progress and hands new ones to
feeds. Is not: part of the ranks; a slow collector loses spans (counted), never time. Invariant: every span is drained
once; each feed sees every span drained since it was made.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..trace.columns import COLUMNS, SpanKind, Track

FEED_DTYPE = np.dtype([(name, dtype) for name, dtype in COLUMNS.items()])
PERIOD_S = 1 / 60
MAX_FEED_SPANS = 4_000_000


class Feed:
    """New spans since the last `poll`, for a live view. Thread-safe. Holds at most MAX_FEED_SPANS; older ones count as drops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: deque[np.ndarray] = deque()
        self._spans, self._drops = 0, 0

    def push(self, spans: np.ndarray, drops: int) -> None:
        """Called by the collector."""
        with self._lock:
            self._batches.append(spans)
            self._spans += len(spans)
            self._drops += drops
            while self._spans > MAX_FEED_SPANS and len(self._batches) > 1:
                lost = len(self._batches.popleft())
                self._spans -= lost
                self._drops += lost

    def poll(self) -> tuple[np.ndarray, int]:
        """(structured array with the columns of a Trace, spans dropped since the last poll)."""
        with self._lock:
            batches, drops = list(self._batches), self._drops
            self._batches.clear()
            self._spans = self._drops = 0
        return (np.concatenate(batches) if batches else np.zeros(0, FEED_DTYPE)), drops


class Collector:
    """Collects from `segments` (one per rank) until closed."""

    def __init__(self, segments: Sequence[Any], node_of: np.ndarray) -> None:
        self._segments, self._node_of = segments, node_of
        self._lock = threading.Lock()
        self._steps: tuple[int, int, np.ndarray] = (0, 0, np.zeros(0, np.int32))
        self._kept: list[np.ndarray] = []
        self._keeping: tuple[int, int] = (0, 0)
        self._dropped_before = [0] * len(segments)
        self._kept_drops = 0
        self.ops_done = 0  # op spans of the run so far: what progress is measured by
        self._feeds: list[Feed] = []
        self._busy, self._closed = threading.Event(), False
        self._thread = threading.Thread(target=self._collect, name="ccl_lab-collector", daemon=True)
        self._thread.start()

    def feed(self) -> Feed:
        """A new feed, from now on."""
        feed = Feed()
        with self._lock:
            self._feeds.append(feed)
        return feed

    def unfeed(self, feed: Feed) -> None:
        """Stops a feed."""
        with self._lock:
            if feed in self._feeds:
                self._feeds.remove(feed)

    def begin(self, coll_id: int, repeat: int, steps: np.ndarray) -> None:
        """Keeps the spans of collectives [coll_id, coll_id + repeat), whose ops have these steps."""
        self.drain()
        with self._lock:
            self._keeping = (coll_id, coll_id + repeat)
            self._steps = (coll_id, coll_id + repeat, steps)
            self._kept, self._kept_drops, self.ops_done = [], 0, 0
        self._busy.set()

    def end(self) -> tuple[np.ndarray, int]:
        """(spans of the run, spans dropped meanwhile)."""
        self._busy.clear()
        self.drain()
        with self._lock:
            kept, drops = self._kept, self._kept_drops
            self._kept = []
        return (np.concatenate(kept) if kept else np.zeros(0, FEED_DTYPE)), drops

    def so_far(self) -> tuple[np.ndarray, int]:
        """What `end` would give now."""
        self.drain()
        with self._lock:
            return (np.concatenate(self._kept) if self._kept else np.zeros(0, FEED_DTYPE)), self._kept_drops

    def regroup(self, segments: Sequence[Any], node_of: np.ndarray) -> None:
        """Goes on with the segments of other members; what the old ones still held is dropped."""
        with self._lock:
            self._segments, self._node_of = segments, node_of
            self._dropped_before = [0] * len(segments)

    def drain(self) -> None:
        """Takes what is in the rings now."""
        with self._lock:
            for rank, segment in enumerate(self._segments):
                dropped = int(segment.dropped_spans())
                drops, self._dropped_before[rank] = dropped - self._dropped_before[rank], dropped
                records = segment.drain_spans(1 << 20)
                if len(records) or drops:
                    self._deliver(self._convert(records, rank), drops)

    def _convert(self, records: np.ndarray, rank: int) -> np.ndarray:
        spans = np.zeros(len(records), FEED_DTYPE)
        for name in FEED_DTYPE.names or ():
            if name in records.dtype.names:
                spans[name] = records[name]
        spans["rank"], spans["node"], spans["step"] = rank, self._node_of[rank], -1
        first, last, steps = self._steps
        known = (
            (spans["coll_id"] >= first)
            & (spans["coll_id"] < last)
            & (spans["op_id"] >= 0)
            & (spans["op_id"] < len(steps))
        )
        spans["step"][known] = steps[spans["op_id"][known]]
        return spans

    def _deliver(self, spans: np.ndarray, drops: int) -> None:
        mine = (spans["coll_id"] >= self._keeping[0]) & (spans["coll_id"] < self._keeping[1])
        ops = (
            mine
            & (spans["track"] == Track.channel)
            & (spans["op_id"] >= 0)
            & (spans["kind"] != SpanKind.ready)
        )
        self.ops_done += int(ops.sum())
        self._kept.append(spans if mine.all() else spans[mine])
        self._kept_drops += drops
        for feed in self._feeds:
            feed.push(spans, drops)

    def _collect(self) -> None:
        while not self._closed:
            if self._busy.wait(timeout=1.0) and not self._closed:
                self.drain()
                time.sleep(PERIOD_S)

    def close(self) -> None:
        """Ends the thread; the segments can be unmapped afterwards."""
        self._closed = True
        self._busy.set()
        self._thread.join(timeout=5)
