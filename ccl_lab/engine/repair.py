"""Keeps the rails of one rank alive: messages about paths that fail, and new connections for those that answer again.

Is: the Python half of native/src/fault: it opens the sockets for messages, tells the native side where the peers' are, dials
paths that may come back, and hands on what happened. Is not: the recovery itself, which needs no Python. Invariants: one
thread, which sleeps until the native side has news; a path that could not be dialled is asked for again later.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable
from typing import Any

from ..errors import CclError
from ..topo import Topology

log = logging.getLogger("ccl_lab.engine")
Link = tuple[int, int, int]  # peer, NIC here, NIC there
Dial = Callable[[int, int, int, int], None]  # … and the generation of the path
Tell = Callable[[list[dict[str, Any]]], None]


class Repair:
    """The repair of `engine`'s rails. `nics`: addresses of its NICs; `here`: its address away from them; `node_of`: by rank.

    dial(peer, nic, peer_nic, generation) connects a path again; tell(events) gets what happened. `card`: where its own
    sockets are, for the peers.
    """

    def __init__(
        self, engine: Any, key: bytes, here: str, nics: list[str], node_of: list[int], dial: Dial, tell: Tell
    ) -> None:
        self._engine, self._dial, self._tell = engine, dial, tell
        self.card = engine.open_messenger(key, here, nics, node_of)
        self._stop_r, self._stop_w = os.pipe()
        self._thread = threading.Thread(target=self._serve, name="ccl_lab-repair", daemon=True)

    def start(self, cards: list[Any]) -> None:
        """Begins, once every rank has said where its sockets are."""
        for rank, card in enumerate(cards):
            if card:
                self._engine.set_messenger_peer(rank, card)
        self._thread.start()

    def _serve(self) -> None:
        news = self._engine.news_fd
        while True:
            ready, _, _ = select.select([news, self._stop_r], [], [])
            if self._stop_r in ready:
                return
            try:
                os.read(news, 8)
            except BlockingIOError:
                pass
            try:
                wanted, events = self._engine.rail_news()
            except CclError:
                return  # the engine is closed
            if events:
                self._tell(events)
            for link in wanted:
                self._bring_back(*link)

    def _bring_back(self, peer: int, nic: int, peer_nic: int, generation: int) -> None:
        try:
            self._dial(peer, nic, peer_nic, generation)
        except (CclError, OSError) as error:
            log.info("path to rank %d over NIC %d did not come back yet: %s", peer, nic, error)

    def close(self) -> None:
        """Ends the thread; idempotent."""
        if self._stop_w < 0:
            return
        os.write(self._stop_w, b"x")
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
        os.close(self._stop_w)
        os.close(self._stop_r)
        self._stop_w = -1


def with_backups(links: list[Link], topology: Topology) -> list[Link]:
    """`links` and, for each, the paths that could stand in: the same pair of ranks over every other pair of NICs in step.

    Both ends of a link find the same ones. Cost: NICs per node paths for each pair of ranks that exchange anything.
    """
    m = topology.nics_per_node
    found = dict.fromkeys(links)
    for peer, nic, peer_nic in links:
        found.update(dict.fromkeys((peer, (nic + k) % m, (peer_nic + k) % m) for k in range(m)))
    return list(found)

