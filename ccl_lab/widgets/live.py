"""The panel of a running world: topology, NIC heatmap, timeline, controls and faults on one live stream.

Is: a View whose spans come from `world.feed` while the world runs. Is not: the collector or the injector (engine).
Invariants: the feed is polled by the pump thread, and clicks act on a thread of their own, never on the kernel's main
loop, so the panel lives and a click acts while a cell awaits or a run goes on in the background.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np

from . import specs, wire
from .faults import FaultBoard
from .stream import Pump, SpanStream
from .view import View

WINDOW_SPANS = 1_000_000
FAULTS_S = 0.1


class Panel(View):
    """Everything of a world at once. `.trace` is the window of spans kept; `.selection` what was selected of it.

    world: has `.topology`, `.feed` (asked for once) whose `poll()` gives (structured spans with the trace columns,
    spans dropped since the last poll), `.status() -> dict` (state, collective, progress in [0, 1], closed, faults)
    and `.cancel()`. window_spans: spans kept here and in the page. name: the world's variable in the Python shown
    after clicks (the panel's is `panel`). Clicks on NICs and ranks reach `.on_action(handler)` as ("nic", {node, nic})
    and ("rank", {rank}). Where the world has `.faults`, a click on a NIC or rank opens a menu of what can be done to it,
    and what happened is marked on timeline, heatmap and topology; `.events` has it as plain data.
    """

    def __init__(
        self,
        world: Any,
        *,
        window_spans: int = WINDOW_SPANS,
        window_s: float = 2.0,
        name: str = "world",
        height: int = 360,
    ) -> None:
        self._world = world
        feed = world.feed
        self._feed = feed() if callable(feed) else feed
        self._drops = 0
        self._kept: deque[np.ndarray] = deque()
        self._kept_spans = 0
        self._keep_lock = threading.Lock()
        self._window_spans = window_spans
        topology = world.topology
        faults = getattr(world, "faults", None)
        self._board = FaultBoard(faults, topology, name) if faults is not None else None
        self._told_faults, self._faults_at = -1, 0.0
        meta = {
            "source": "measured",
            "n_ranks": int(topology.n_ranks),
            "emulated": bool(getattr(topology, "emulated", False)),
        }
        # Beside each other only while the cards of the nodes stay readable at half the width.
        slots = max(int(topology.nics_per_node), -(-int(topology.n_ranks) // int(topology.n_nodes)))
        beside = int(topology.n_nodes) * slots <= 4
        views: list[dict[str, Any]] = [
            {"view": "controls"},
            {"view": "topology", "source": "a", "half": beside},
            {"view": "heatmap", "source": "a", "half": beside, "height": 250},
            *([{"view": "faults", "source": "a"}] if self._board else []),
            {"view": "timeline", "source": "a", "height": height, "window_ns": window_s * 1e9},
        ]
        data = {"topology": specs.topology_spec(topology), "faults": [], "world": name,
                "fault_menu": self._board.menu() if self._board else None}  # fmt: skip
        super().__init__(views, streams={"a": SpanStream("a", window_spans=window_spans)}, metas={"a": meta}, live=True, name="panel.trace",
                         data=data, link=specs.link_of(world),
                         summary=f"<panel of {topology.n_ranks} ranks on {topology.n_nodes} nodes>")  # fmt: skip
        self._ensure_pump()

    def _ensure_pump(self) -> None:
        if self._pump is None:
            self._pump = Pump(
                list(self._streams.values()),
                self._send_message,
                poll=self._poll,
                status=self._status,
                news=self._news if self._board else None,
            )
            self._pump.start()
        if self._pump.is_alive():
            self._pump.wake()
        else:
            super()._ensure_pump()

    def _poll(self) -> tuple[np.ndarray, int]:
        spans, drops = self._feed.poll()
        self._drops += int(drops)
        if not len(spans) and self._status().get("closed"):
            raise StopIteration
        if len(spans):
            with self._keep_lock:
                self._kept.append(spans)
                self._kept_spans += len(spans)
                while self._kept_spans > self._window_spans and len(self._kept) > 1:
                    self._kept_spans -= len(self._kept.popleft())
        return spans, self._drops

    def _status(self) -> dict[str, Any]:
        status = {
            key: value.item() if isinstance(value, np.generic) else value
            for key, value in self._world.status().items()
        }
        if status.get("closed"):
            status["state"] = "closed"
        out = {
            key: value
            for key, value in status.items()
            if key == "faults" or isinstance(value, (str, int, float, bool))
        }
        return out | ({"faults_version": self._board.version} if self._board else {})

    def _news(self) -> dict[str, Any] | None:
        """What a page must know of faults, where it changed or a page asked; looked at ten times a second, or at once after a click."""
        now = time.monotonic()
        if self._board is None or now - self._faults_at < FAULTS_S:
            return None
        self._faults_at = now
        shown = self._board.collect()
        if shown["version"] == self._told_faults:
            return None
        self._told_faults = shown["version"]
        return {"type": "faults", "source": "a", "faults": shown}

    def _tell_faults(self) -> None:
        """The next turn of the pump tells the page of faults, changed or not."""
        self._told_faults, self._faults_at = -1, 0.0

    def _on_message(self, widget: Any, content: dict[str, Any], buffers: Any) -> None:
        if content.get("type") in ("ask", "ask_faults"):
            self._tell_faults()
        super()._on_message(widget, content, buffers)

    def _source(self, key: str, stream: SpanStream, inline: bool) -> dict[str, Any]:
        source = super()._source(key, stream, inline)
        if inline and self._board is not None:
            source["meta"]["faults"] = self._board.collect()
        return source

    @property
    def events(self) -> list[dict[str, Any]]:
        """What happened to NICs and ranks so far, in order: injections, and what the engine saw and did. Plain data."""
        return self._board.events() if self._board else []

    @property
    def trace(self) -> Any:
        """The spans of the live window, as a Trace."""
        with self._keep_lock:
            parts = list(self._kept)
        columns = {name: np.concatenate([wire.from_records(part)[name] for part in parts]) if parts else np.zeros(0, dtype)
                   for name, dtype in wire.COLUMNS.items()}  # fmt: skip
        meta = {**self._metas["a"], "drops": self._streams["a"].drops}
        if self._board is not None:
            meta["faults"] = self.events
        try:
            from ..trace import Trace
        except ImportError:
            return SimpleNamespace(columns=columns, meta=meta)
        return Trace(columns, meta)

    def _trace(self, key: str) -> Any:
        return self.trace

    def act(self, name: str, args: dict[str, Any]) -> Any:
        """Does what a click would do; everything also goes to the handlers.

        "cancel" cancels the run. Of faults: "fault" {what, node, nic} or {what, rank}, "bring_back" {node, nic} or {rank},
        "undo" {number of the list shown}, "heal" {}.
        """
        said = None
        if name == "cancel":
            self._world.cancel()
            said = "cancelled"
        elif self._board is not None and name in ("fault", "bring_back", "undo", "heal"):
            try:
                said = self._act_on_faults(self._board, name, args)
            finally:
                self._tell_faults()
        return super().act(name, args) or said

    @staticmethod
    def _act_on_faults(board: FaultBoard, name: str, args: dict[str, Any]) -> str:
        if name == "fault":
            return board.inject(args)
        if name == "bring_back":
            return board.bring_back(args)
        return board.undo(int(args["number"])) if name == "undo" else board.heal()

    def close(self) -> None:
        """Stops listening to the world, and closes the widget; the world goes on."""
        super().close()
        if hasattr(self._world, "unfeed"):
            self._world.unfeed(self._feed)
