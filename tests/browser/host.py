"""A page that hosts a widget as JupyterLab would, without Jupyter: a stub of anywidget's model, messages by hand.

Is: the bridge between a Python View and a page, driven by `Host.run`. Is not: a kernel.
"""

from __future__ import annotations

import base64
import queue
import time
from typing import Any

from ccl_lab.widgets.export import inline_script
from ccl_lab.widgets.view import View

TURN_MS = 15  # that the page gets between two looks at its messages

STUB = """
window.decode = (value) => {
  if (Array.isArray(value)) return value.map(decode);
  if (value === null || typeof value !== 'object') return value;
  if ('$b64' in value) {
    // An odd offset, as JupyterLab hands out: byteOffset need not be a multiple of 8.
    const bytes = Uint8Array.from(atob(value.$b64), (c) => c.charCodeAt(0));
    const odd = new Uint8Array(bytes.length + 3);
    odd.set(bytes, 3);
    return new DataView(odd.buffer, 3, bytes.length);
  }
  return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, decode(v)]));
};
window.stub = (state) => {
  const values = decode(state), on = {};
  return {
    get: (k) => values[k],
    set: (k, v) => { values[k] = v; toKernel({ type: 'set', name: k, value: v }); (on['change:' + k] || []).forEach((f) => f()); },
    save_changes() {},
    send: (content) => toKernel(content),
    on: (k, f) => (on[k] = on[k] || []).push(f),
    off: (k, f) => (on[k] = (on[k] || []).filter((g) => g !== f)),
    deliver: (content, buffers) => (on['msg:custom'] || []).forEach((f) => f(content, decode(buffers))),
    listeners: () => Object.values(on).reduce((n, list) => n + list.length, 0),
  };
};
"""
START = """([state, views]) => {
  window.model = stub(state);
  window.made = new AbortController();
  cclLab.initialize({ model, signal: made.signal });
  window.shown = [];
  for (let k = 0; k < views; k++) {
    const el = document.createElement('div');
    const controller = new AbortController();
    cclLab.render({ model, el, signal: controller.signal });
    // anywidget draws into an element that is not in the page yet.
    setTimeout(() => document.body.append(el), 5);
    shown.push({ el, controller });
  }
}"""


def encoded(value: Any) -> Any:
    """JSON with bytes as {"$b64": text}."""
    if isinstance(value, (bytes, bytearray)):
        return {"$b64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {str(key): encoded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encoded(item) for item in value]
    return value


class Host:
    """`view` shown on `page`, `views` times. `lose`: (content) -> True for messages that vanish on the way."""

    def __init__(
        self, page: Any, view: View, *, views: int = 1, lose: Any = None, deaf: bool = False
    ) -> None:
        self.page, self.view, self.deaf = page, view, deaf
        self.lose = lose or (lambda content: False)
        self.sent: queue.SimpleQueue = queue.SimpleQueue()
        self.messages: list[dict] = []
        self.sizes: list[int] = []
        self.heard: list[dict] = []
        view._send_message = lambda content, buffers: self.sent.put((content, buffers))
        if view._pump is not None:
            view._pump._send = view._send_message
        self.exposed = False
        self.load(views)

    def load(self, views: int = 1) -> None:
        """Loads the page (again) and shows the widget."""
        self.page.goto("about:blank")
        if not self.exposed:
            self.page.expose_function("toKernel", self.hear)
            self.exposed = True
        self.page.evaluate(STUB)
        self.page.evaluate(
            "(code) => { const s = document.createElement('script'); s.type = 'module'; s.textContent = code; document.head.append(s); }",
            inline_script(),
        )
        self.page.wait_for_function("() => window.cclLab")
        state = {"uid": self.view.uid, "spec": self.view.spec, "selected": {}}
        self.page.evaluate(START, [encoded(state), views])

    def hear(self, content: dict) -> None:
        """What the page says, as the kernel hears it."""
        self.heard.append(content)
        if content["type"] == "set":
            self.view.set_trait(content["name"], content["value"])
        elif not self.deaf:
            self.view._on_message(self.view, content, [])

    def drain(self) -> None:
        """Delivers what was sent by now; what a live source goes on sending waits for the next turn."""
        for _ in range(self.sent.qsize()):
            content, buffers = self.sent.get_nowait()
            self.messages.append(content)
            self.sizes.append(sum(len(b) for b in buffers))
            if not self.lose(content):
                self.page.evaluate(
                    "([content, buffers]) => model.deliver(content, buffers)", [content, encoded(buffers)]
                )

    def run(self, seconds: float = 0.3, until: Any = None, timeout: float = 20.0) -> None:
        """Lets messages flow for `seconds`, or until a condition holds; TimeoutError after `timeout`.

        On a busy machine for longer: a page that hardly runs gets as many turns as one that runs freely.
        """
        began, turns = time.monotonic(), 0
        while True:
            self.drain()
            self.page.wait_for_timeout(TURN_MS)
            turns += 1
            if until is not None and until():
                return
            if until is None and time.monotonic() - began > seconds and turns * TURN_MS >= 1000 * seconds:
                return
            if until is not None and time.monotonic() - began > timeout:
                raise TimeoutError(f"not reached in {timeout} s")

    def js(self, code: str) -> Any:
        """Evaluates an expression over `t` (the first timeline) and `v` (all view roots)."""
        return self.page.evaluate(
            "() => { const v = [...document.querySelectorAll('.ccl-view')];"
            f" const t = v.map((x) => x.cclTimeline).find(Boolean); return {code}; }}"
        )
