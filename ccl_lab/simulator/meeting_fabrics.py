"""Puts inside nodes between the lanes of a meeting and after them: the fabric of each node serves them in the order of their batches.

Is: the columns of all puts, and who is ready. Is not: what they move. Invariant: a node serves its puts one by one in the static order
(batch, turn, op), each once what it waits for is known.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import Inapplicable
from ..topo import Topology
from .meeting_sweeps import check

I64 = npt.NDArray[np.int64]


class Fabrics:
    """Of nodes whose ranks are grid [nodes, ranks of a node]. tx_ps, rx_ps: when their fabrics are free at first; late_ps: when they enter.

    Puts are rows of batch, ready_ps, left_ps, seen_ps [puts, nodes]: -1 where they are not, or not known yet.
    """

    def __init__(self, topology: Topology, grid: npt.NDArray[Any], tx_ps: I64, rx_ps: I64, late_ps: I64, alpha_ps: int) -> None:
        self.nodes, self.group = grid.shape
        self._put: list[tuple[I64, I64, I64, I64]] = []
        self._free = {"tx_ps": np.ascontiguousarray(tx_ps).ravel(), "rx_ps": np.ascontiguousarray(rx_ps).ravel(),
                      "next": np.zeros(self.nodes, np.int64)}  # fmt: skip
        columns = (topology.fabric_bytes_per_s[grid], topology.fabric_latency_ps[grid], late_ps)
        self._columns: dict[str, Any] = {"nodes": self.nodes, "group": self.group, "alpha_ps": alpha_ps}
        self._columns |= {name: np.ascontiguousarray(each, np.int64).ravel()
                          for name, each in zip(("bytes_per_s", "latency_ps", "late_ps"), columns, strict=True)}

    def put(self, batch: I64, source: I64, to: I64, nbytes: I64 | int) -> int:
        """One more, in the order of ops: [nodes] each; source, to: local indices. Returns its row."""
        shape = self.nodes
        self._put.append((batch, source, to, np.broadcast_to(np.int64(nbytes), shape)))
        return len(self._put) - 1

    def close(self) -> None:
        """All puts are told. Raises Inapplicable where one is of the tick at which nodes begin."""
        rows = len(self._put), self.nodes
        self.batch, self.source, self.to = (np.stack([each[i] for each in self._put]) for i in range(3))
        if (self.batch[self.batch >= 0] < 1 << 20).any():
            raise Inapplicable("messages between nodes take no time")
        self.ready_ps, self.left_ps, self.seen_ps = np.full((3, *rows), -1, np.int64)
        self._columns |= {
            "puts": rows[0], "batch": self.batch.ravel(), **{name: each.astype(np.int32).ravel() for name, each in
                                                             (("source", self.source), ("to", self.to))},
            "nbytes": np.stack([each[3] for each in self._put]).ravel(), "order": np.empty(rows[0] * rows[1], np.int32),
            "ready_ps": self.ready_ps.reshape(-1), "left_ps": self.left_ps.reshape(-1), "seen_ps": self.seen_ps.reshape(-1), **self._free}
        self._put.clear()
        check(_core.serve_fabrics({**self._columns, "first": True}))

    def advance(self) -> None:
        """Serves what is ready, of each node up to the first that is not."""
        check(_core.serve_fabrics({**self._columns, "first": False}))

    def raise_to(self, finish: I64) -> None:
        """Ranks end, finish [nodes, ranks of a node], once what they put has left, and what was put to them is seen."""
        for row in range(len(self.batch)):
            node = np.flatnonzero(self.batch[row] >= 0)
            if (self.seen_ps[row, node] < 0).any():
                raise Inapplicable("lanes wait for one another inside nodes in different orders")
            for ends, ps in ((self.source, self.left_ps), (self.to, self.seen_ps)):
                at = node, ends[row, node]
                finish[at] = np.maximum(finish[at], ps[row, node])
