"""What a window on bytes in flight does to the buffer of a switch: DQPLB's effect, as a fluid on one port.

    k senders at the port's rate C, M bytes each, at most W in flight each, round trip t:
    peak of the queue = min((k - 1) M, max(0, k W - C t));  rate = min(C, k W / t)

Is: the queue at the port where k flows meet (incast of all_to_allv, or k flows that one hash put on one link). Is not: congestion
control, pause frames or loss, so nothing here says what a full buffer costs. Invariants: without a window k M bytes come in while M
leave; with one no more than k W are under way, of which C t are on the wire; W = C t is the least window that keeps one sender at
full rate. Source of the rule QPs x segment x in flight = bandwidth-delay product, and of the measured effect: arXiv 2510.20171,
DQPLB.
"""

from __future__ import annotations

import dataclasses

from ...arguments import amount, whole
from ...errors import UsageError
from ...units import Size, parse_size

MEASURED = {"all_to_allv": (0.75, 0.90), "all_gather, 256 GPUs": (0.72, 0.72)}
"""By how much DQPLB lowered the peak of switch buffering (arXiv 2510.20171)."""


@dataclasses.dataclass(frozen=True)
class Buffering:
    """peak_bytes with the window and unlimited_bytes without; reduction: 1 - their ratio; gbytes_per_s that all senders get; label:
    "model"."""

    peak_bytes: float
    unlimited_bytes: float
    gbytes_per_s: float
    label: str = "model"

    @property
    def reduction(self) -> float:
        """By how much the window lowers the peak; 0 where there is no queue at all."""
        return 1 - self.peak_bytes / self.unlimited_bytes if self.unlimited_bytes else 0.0


def window_bytes(qps: int, segment: Size, inflight: int) -> int:
    """What DQPLB lets be under way of a connection: QPs x segment x in flight."""
    return whole(qps, "qps", 1) * whole(parse_size(segment), "segment", 1) * whole(inflight, "inflight", 1)


def buffering(senders: int, nbytes: Size, window: Size | None, *, gbytes_per_s: float = 50.0, round_trip_us: float = 20.0) -> Buffering:
    """The peak of the queue where `senders` meet, each with nbytes, at most `window` bytes of each under way.

    window: bytes, or None for the bandwidth-delay product. gbytes_per_s: of the port and of each sender. Raises UsageError.

        >>> round(buffering(16, "8MiB", None).reduction, 2)
        0.88
    """
    senders = whole(senders, "senders", 1)
    gbytes_per_s = amount(gbytes_per_s, "gbytes_per_s", above=True)
    round_trip_us = amount(round_trip_us, "round_trip_us", above=True)
    product = gbytes_per_s * round_trip_us * 1e3
    limit = product if window is None else float(parse_size(window))
    size = float(parse_size(nbytes))
    if limit < 1 or size < 1:
        raise UsageError(f"nbytes {nbytes}, window {window}: expected 1 byte or more.")
    unlimited = (senders - 1) * size
    peak = min(unlimited, max(0.0, senders * limit - product))
    return Buffering(peak, unlimited, min(gbytes_per_s, senders * limit / round_trip_us / 1e3))
