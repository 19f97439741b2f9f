"""The one widget class behind every view: a spec of what to draw, streams of spans, actions back.

Is: the anywidget model. Is not: what any one view needs (see `views_of`). Invariants: handlers of messages only set
numbers or enqueue, so they never block the kernel; spans travel as binary, never as JSON.
"""

from __future__ import annotations

import math
import queue
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import numpy as np
import traitlets

from .stream import Pump, SpanStream

BUNDLE = Path(__file__).parent / "static" / "ccl_lab.js"
INLINE_BYTES = 1 << 20


class View(anywidget.AnyWidget):
    """A drawn value. `.selection` is a Trace of what was selected; `.on_action(f)` hears of clicks."""

    _esm = BUNDLE
    uid = traitlets.Unicode().tag(sync=True)
    spec = traitlets.Dict().tag(sync=True)
    selected = traitlets.Dict().tag(sync=True)

    def __init__(self, views: list[dict[str, Any]], *, streams: dict[str, SpanStream] | None = None,
                 traces: dict[str, Any] | None = None, metas: dict[str, dict[str, Any]] | None = None,
                 data: dict[str, Any] | None = None, link: str | None = None, name: str = "trace",
                 live: bool = False, summary: str = "") -> None:  # fmt: skip
        self._streams = streams or {}
        self._traces = traces or {}
        self._metas = metas or {}
        self._live = live
        self._summary = summary
        self._handlers: list[Callable[[str, dict[str, Any]], Any]] = []
        self._actions: queue.SimpleQueue[tuple[int, str, dict[str, Any]] | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        self._pump: Pump | None = None
        spec = {
            "link": link or uuid.uuid4().hex,
            "name": name,
            "views": views,
            "data": data or {},
            "sources": {},
        }
        for key, stream in self._streams.items():
            spec["sources"][key] = self._source(
                key, stream, inline=not live and stream.nbytes <= INLINE_BYTES
            )
        super().__init__(uid=uuid.uuid4().hex, spec=spec)
        self.on_msg(self._on_message)

    def _source(self, key: str, stream: SpanStream, inline: bool) -> dict[str, Any]:
        meta = {**self._metas.get(key, {}), "origin_ns": str(stream.origin_ns or 0)}
        source: dict[str, Any] = {"meta": meta, "live": self._live, "complete": inline}
        if inline:
            source["batches"] = stream.inline()
        return source

    # -- messages from the page

    def _on_message(self, _widget: Any, content: dict[str, Any], _buffers: Any) -> None:
        kind, stream = content.get("type"), self._streams.get(str(content.get("source")))
        if kind == "ask" and stream is not None:
            stream.ask(str(content.get("client")), int(content.get("from", 0)))
            self._ensure_pump()
        elif kind == "ack" and stream is not None:
            stream.ack(str(content.get("client")), int(content.get("seq", -1)))
        elif kind == "action":
            self._ensure_worker()
            self._actions.put((int(content["id"]), str(content["name"]), dict(content.get("args") or {})))

    def _ensure_pump(self) -> None:
        if self._pump is None or not self._pump.is_alive():
            self._pump = Pump(list(self._streams.values()), self._send_message)
            self._pump.start()
        self._pump.wake()

    def _send_message(self, content: dict[str, Any], buffers: list[bytes]) -> None:
        self.send(content, buffers)

    def _ensure_worker(self) -> None:
        if self._worker is None or not self._worker.is_alive():
            self._worker = threading.Thread(target=self._work, name="ccl_lab-widget-actions", daemon=True)
            self._worker.start()

    def _work(self) -> None:
        """Acts in order, off the kernel's loop; the page is told how each ended."""
        while (item := self._actions.get()) is not None:
            number, name, args = item
            try:
                said = self.act(name, args)
                reply = {
                    "type": "done",
                    "id": number,
                    "ok": True,
                    "text": said if isinstance(said, str) else "",
                }
            except Exception as error:  # noqa: BLE001 - shown to the person who clicked
                reply = {
                    "type": "done",
                    "id": number,
                    "ok": False,
                    "text": f"{type(error).__name__}: {error}",
                }
            self._send_message(reply, [])

    # -- for people

    def on_action(self, handler: Callable[[str, dict[str, Any]], Any]) -> Callable[[], None]:
        """Calls `handler(name, args)` on every click that acts, off the kernel's main thread; text it returns is shown.

        Returns a function that stops it.
        """
        self._handlers.append(handler)
        return lambda: self._handlers.remove(handler)

    def act(self, name: str, args: dict[str, Any]) -> Any:
        """Does what a click would do."""
        said = None
        for handler in list(self._handlers):
            said = handler(name, args) or said
        return said

    @property
    def selection(self) -> Any:
        """What is selected, as a Trace (empty where nothing is): spans that touch the range, on the chosen lanes."""
        chosen = self.selected
        key = str(chosen.get("source", next(iter(self._streams), "")))
        trace = self._trace(key)
        if trace is None:
            return None
        columns = trace.columns
        mask = np.zeros(len(columns["rank"]), bool)
        if chosen.get("source") is not None:
            mask = self._mask(columns, key, chosen)
        return type(trace)({name: column[mask] for name, column in columns.items()}, dict(trace.meta))

    def _trace(self, key: str) -> Any:
        return self._traces.get(key)

    def _mask(self, columns: Any, key: str, chosen: dict[str, Any]) -> np.ndarray:
        stream = self._streams.get(key)
        mask = np.ones(len(columns["rank"]), bool)
        if chosen.get("range") and stream is not None:
            # Whole ns, as the Python shown says: floats of absolute times are too coarse.
            low, high = (
                int(f(t)) + (stream.origin_ns or 0)
                for f, t in zip((math.floor, math.ceil), chosen["range"], strict=False)
            )
            begin, end = columns["begin_ns"], columns["end_ns"]
            mask &= (begin < high) & ((end > low) | ((end == begin) & (begin >= low)))
        if chosen.get("lanes") and stream is not None:
            mask &= np.isin(stream.lanes.numbers(columns), np.asarray(chosen["lanes"], np.int64))
        if chosen.get("op_id", -1) >= 0:
            mask &= columns["op_id"] == chosen["op_id"]
        if "coll_id" in chosen:
            mask &= columns["coll_id"] == chosen["coll_id"]
        for name in ("rank", "node"):
            if name in chosen and "op_id" not in chosen:
                mask &= columns[name] == chosen[name]
        if chosen.get("nic") is not None:
            mask &= (columns["index"] == chosen["nic"]) & np.isin(columns["track"], (1, 2))
        return mask

    def save_html(self, path: str | Path, title: str = "ccl_lab") -> Path:
        """Writes one file that opens with the network off and no kernel. Returns its path."""
        from .export import export_html

        return export_html(path, [self], title)

    def document(self) -> dict[str, Any]:
        """The state a file without a kernel needs: the spec with every span inlined."""
        sources = {
            key: {**self._source(key, stream, inline=True), "live": False}
            for key, stream in self._streams.items()
        }
        return {"uid": uuid.uuid4().hex, "spec": {**self.spec, "sources": sources}}

    def close(self) -> None:
        """Stops the threads and closes the widget."""
        if self._pump is not None:
            self._pump.close()
        if self._worker is not None:
            self._actions.put(None)
        super().close()

    def __repr__(self) -> str:
        return self._summary or f"<{', '.join(v['view'] for v in self.spec.get('views', []))}>"
