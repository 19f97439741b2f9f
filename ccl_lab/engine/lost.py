"""Which NICs are lost, by what the ranks say of their paths.

Is: the mask that the next plan leaves out. Is not: what was injected (faults) or how it is found out (native/src/fault). Invariant:
a NIC is lost from the verdict of a rank that names it until a path over it is back or the paths
are made afresh.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

Nic = tuple[int, int]  # node, NIC


class LostNics:
    """`node_of`: node of each rank."""

    def __init__(self, node_of: Sequence[int]) -> None:
        self._node_of = [int(node) for node in node_of]
        self._lock = threading.Lock()
        self._lost: set[Nic] = set()

    def heard(self, rank: int, events: list[dict[str, Any]]) -> None:
        """What a rank tells of its paths, in its order."""
        with self._lock:
            for event in events:
                own = (self._node_of[rank], int(event["nic"]))
                far = (self._node_of[int(event["peer"])], int(event["peer_nic"]))
                if event["kind"] == "back":
                    self._lost -= {own, far}
                elif event["kind"] == "verdict" and event["verdict"] in ("own_nic", "own_cable"):
                    self._lost.add(own)
                elif event["kind"] == "verdict" and event["verdict"] == "peer_nic":
                    self._lost.add(far)

    def forget(self, node_of: Sequence[int]) -> None:
        """The ranks begin anew, maybe as others: paths made afresh tell of no return, and a NIC that is still down is found again."""
        with self._lock:
            self._node_of = [int(node) for node in node_of]
            self._lost.clear()

    @property
    def nics(self) -> tuple[Nic, ...]:
        """Those that are lost now, in order."""
        with self._lock:
            return tuple(sorted(self._lost))
