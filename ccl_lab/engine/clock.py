"""How far this rank's clock is from that of the rank that holds the job together, so that traces of several hosts fit together.

Is: an exchange of times with the hub, best of a few, and what a trace says of it. Is not: for spans of one host, whose processes
share a clock; what collectives say of clocks (trace/importers/job.py). Invariants: durations never change; two clocks that the
exchange cannot tell apart are one: nothing is moved.

    rank   sent ────────────────────────► received      offset = (sent + received) / 2 − hub
    hub           └──► hub's clock ──┘                   off by at most (received − sent) / 2

Source: the exchange of NTP (RFC 5905, section 8), the sample of the least delay.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .hub import Spoke

ROUNDS = 8
PATIENCE_S = 1.0


class Offset(NamedTuple):
    """ns: how far this clock is ahead of the hub's. off_by_ns: at most so far from the truth."""

    ns: int
    off_by_ns: int


class HubClock:
    """Asks for the hub's clock whenever spans are read; spans between two looks are moved by the mean of both.

    A clock that runs at another rate moves between them: half the difference is part of what is not known.
    """

    def __init__(self, spoke: Spoke) -> None:
        self._spoke = spoke
        self._before: Offset | None = None

    def offset(self) -> Offset | None:
        """Of the spans since the last call; None where the hub does not answer and never did. Cost: some round trips of the
        control connection, tens of µs each on one host."""
        now, before = measured(self._spoke), self._before
        self._before = now or before
        if now is None or before is None:
            return now or before
        return Offset((now.ns + before.ns) // 2, max(now.off_by_ns, before.off_by_ns) + abs(now.ns - before.ns) // 2)


def measured(spoke: Spoke, rounds: int = ROUNDS) -> Offset | None:
    """One look: the answer that was under way for the shortest time."""
    best: Offset | None = None
    for _ in range(rounds):
        times = spoke.hub_clock(PATIENCE_S)
        if times is None:
            break
        sent, hub, received = times
        found = Offset((sent + received) // 2 - hub, (received - sent + 1) // 2)
        if best is None or found.off_by_ns < best.off_by_ns:
            best = found
    if best and abs(best.ns) <= best.off_by_ns:
        return Offset(0, best.off_by_ns)
    return best


def moved(records: np.ndarray, offset: Offset | None) -> np.ndarray:
    """Span records [n] on the hub's clock; 0, which is no time, stays."""
    if offset is None or offset.ns == 0:
        return records
    records = records.copy()
    for name in ("begin_ns", "end_ns"):
        times = records[name]
        times[times != 0] -= offset.ns
    return records


def note(offset: Offset | None, rank: int) -> dict[str, Any]:
    """What meta's `clock` says of it, in the form of imported jobs."""
    if offset is None:
        return {}
    return {
        "clock": {
            "method": "exchange of times with rank 0",
            "offset_us": {str(rank): offset.ns / 1e3},
            "off_by_us": {str(rank): offset.off_by_ns / 1e3},
        }
    }
