"""What is done for every pair of a node and a chunk of a meeting, as the native core takes it (native/src/sim/meetings.hpp).

    around    all nodes of a ring wait, add (the first `reducing` steps) and put, `steps` times; came: what comes to each, before and after
    before    members pass on the chunks that come from members before them; returned: what comes to the last member
    after     they pass on the chunks that come round from the last member (`stream`); returned: the last one that comes to each member

Is: columns and statuses. Is not: the arithmetic. Arrays of nodes are changed in place: batch and free (NICs, as keys), or clock, tx, rx.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import Inapplicable

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]

_AROUND, _BEFORE, _AFTER = range(3)
_OK, _TOO_LONG, _OUT_OF_MEMORY = 0, 1, 4


def check(status: int) -> None:
    """Raises what a status says."""
    if status == _OUT_OF_MEMORY:
        raise MemoryError("simulating meetings")
    if status == _TOO_LONG:
        raise Inapplicable("it would take more than an hour")
    if status != _OK:
        raise Inapplicable("columns do not fit")


class Batched:
    """Sweeps in batches; target: code for one of _core.vector_targets()."""

    def __init__(self, target: int = 0) -> None:
        self.target = target

    def _run(self, sweep: int, batch: I64, free: I64, came: I64, ticks: I64, shift: int = 0, steps: int = 0, reducing: int = 0) -> None:
        check(_core.sweep_meeting_batches({"sweep": sweep, "batch": batch, "free": free, "came": came, "ticks": ticks, "shift": shift,
                                           "steps": steps, "reducing": reducing, "target": self.target}))  # fmt: skip

    def around(self, batch: I64, free: I64, came: I64, ticks: I64, shift: int, steps: int, reducing: int) -> None:
        self._run(_AROUND, batch, free, came, ticks, shift, steps, reducing)

    def before(self, batch: I64, free: I64, ticks: I64) -> I64:
        came = np.zeros(len(batch), np.int64)
        self._run(_BEFORE, batch, free, came, ticks)
        return came[:-1]

    def after(self, batch: I64, free: I64, stream: I64, ticks: I64) -> I64:
        came = np.append(stream, 0)
        self._run(_AFTER, batch, free, came, ticks)
        return came[:-1]


class Timed:
    """Sweeps in ps. costs: latency [nodes] to the next one, add and nic [kinds, chunks], then the kinds of each node's memory and NICs."""

    def __init__(self, target: int = 0) -> None:
        self.target = target

    def _run(self, sweep: int, clock: I64, tx: I64, rx: I64, came: I64, costs: tuple[I64, ...], shift: int = 0, steps: int = 0,
             reducing: int = 0) -> None:
        check(_core.sweep_meeting_times(_timed(sweep, clock, tx, rx, came, costs, shift, steps, reducing, self.target)))

    def around(self, clock: I64, tx: I64, rx: I64, came: I64, costs: tuple[I64, ...], shift: int, steps: int, reducing: int) -> None:
        self._run(_AROUND, clock, tx, rx, came, costs, shift, steps, reducing)

    def before(self, clock: I64, tx: I64, rx: I64, costs: tuple[I64, ...]) -> I64:
        came = np.zeros(len(clock), np.int64)
        self._run(_BEFORE, clock, tx, rx, came, costs)
        return came[:-1]

    def after(self, clock: I64, tx: I64, rx: I64, stream: I64, costs: tuple[I64, ...]) -> I64:
        came = np.append(stream, 0)
        self._run(_AFTER, clock, tx, rx, came, costs)
        return came[:-1]


# -- among several nodes that lost NICs: native/src/sim/meeting_puts.hpp


def order_puts(nodes: int, source: I64, to: I64, batch: I64) -> I32:
    """Rows of puts in which NICs serve them: by batch, turn, op."""
    order = np.empty(len(source), np.int32)
    check(_core.order_meeting_puts({"nodes": nodes, **_places(source, to), "batch": np.ascontiguousarray(batch, np.int64), "order": order}))
    return order


def serve_puts(source: I64, to: I64, order: I32, ready: I64, tx_for: I64, rx_for: I64, tx: I64, rx: I64) -> I64:
    """When each put has left; tx, rx: when NICs of nodes are free, changed in place."""
    left = np.empty(len(source), np.int64)
    check(_core.serve_meeting_puts({**_places(source, to), "order": order, "ready": np.ascontiguousarray(ready, np.int64),
                                    "tx_for": np.ascontiguousarray(tx_for, np.int64), "rx_for": np.ascontiguousarray(rx_for, np.int64),
                                    "tx": tx, "rx": rx, "left": left}))  # fmt: skip
    return left


def along_batches(batch: I64, free: I64, came: I64, ticks: I64) -> None:
    """All nodes pass on a few messages: came is when these come to the first, and then when they come to the one after the last."""
    check(_core.pass_meeting_batches_along({"batch": batch, "free": free, "came": came, "ticks": ticks}))


def along_times(clock: I64, tx: I64, rx: I64, came: I64, costs: tuple[I64, ...]) -> None:
    """The same in ps."""
    check(_core.pass_meeting_times_along(_timed(_AROUND, clock, tx, rx, came, costs, 0, 0, 0, 0)))


def _places(source: I64, to: I64) -> dict[str, I32]:
    return {"source": source.astype(np.int32), "to": to.astype(np.int32)}


def _timed(sweep: int, clock: I64, tx: I64, rx: I64, came: I64, costs: tuple[I64, ...], shift: int, steps: int, reducing: int,
           target: int) -> dict[str, Any]:  # fmt: skip
    names = ("latency_ps", "add", "nic", "memory_kind", "tx_kind", "rx_kind")
    columns = {name: np.ascontiguousarray(each, np.int64).ravel() for name, each in zip(names, costs, strict=True)}
    return {"sweep": sweep, "clock": clock, "tx": tx, "rx": rx, "came": came, "shift": shift, "steps": steps, "reducing": reducing,
            "target": target, **columns}
