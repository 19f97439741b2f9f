"""What a simulation says where a row for every op would be too much: the end of every rank, and the few numbers that follow.

Is: a value. Is not: a Trace; it has no spans. Invariant: `meta` holds the keys that a simulated Trace's meta holds, but for `n_levels` and
`schedule_digest`, which need the ops.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import units
from ..errors import UsageError


@dataclasses.dataclass(frozen=True, eq=False)
class Summary:
    """One collective on modelled links. meta: as of a simulated Trace; also `tier`, `evaluated` (how, and how much of it)."""

    meta: dict[str, Any]

    @property
    def time_us(self) -> float:
        """From tick 0 to the end of the last rank."""
        return float(self.meta["time_us"])

    @property
    def time_ps(self) -> int:
        """The same, exact."""
        return int(self.meta["time_ps"])

    @property
    def algbw_gbytes_per_s(self) -> float:
        """Bytes of the message by time, 1e9 bytes/s."""
        return float(self.meta["algbw_gbytes_per_s"])

    @property
    def busbw_gbytes_per_s(self) -> float:
        """As nccl-tests define it, 1e9 bytes/s."""
        return float(self.meta["busbw_gbytes_per_s"])

    @property
    def finish_ps(self) -> npt.NDArray[np.int64]:
        """When each rank ends, i64[n_ranks]."""
        return self.meta["finish_ps"]

    def slowest_ranks(self, count: int = 10) -> list[dict[str, Any]]:
        """The ranks that end last, the last first: rank, finish_us, and how long after the median rank. UsageError for a count below 1."""
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise UsageError(f"slowest_ranks({count!r}): expected a whole number of ranks, 1 or more.")
        order = np.lexsort((np.arange(len(self.finish_ps)), -self.finish_ps))[:count]
        behind = self.finish_ps - float(np.median(self.finish_ps))  # in picoseconds: differences of microseconds would not be round
        return [{"rank": int(rank), "finish_us": int(self.finish_ps[rank]) / 1e6, "behind_us": float(behind[rank]) / 1e6} for rank in order]

    def __repr__(self) -> str:
        m = self.meta
        return (f"<Summary {m['collective']} {m['algorithm']}: {m['n_ranks']} ranks, {units.format_size(m['nbytes'])}, "
                f"{units.format_time(self.time_us * 1e-6)}, busbw {self.busbw_gbytes_per_s:.4g} GB/s, {m['tier']}>")
