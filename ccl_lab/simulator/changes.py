"""Links whose rate changes at given times: what faults in the middle of a run are to the exact tier.

Is: columns for the native evaluations (native/src/sim/changes.hpp). Is not: the words that users write (simulation.py). Invariants: the
static order does not depend on it, so nothing gets earlier when a rate falls; with no rows everything is as without.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True, eq=False)
class Changes:
    """From `from_ps` on link `link` has rate `bytes_per_s` (0: nothing passes): i32[k], i64[k], i64[k], by link and then by time."""

    link: npt.NDArray[np.int32]
    from_ps: npt.NDArray[np.int64]
    bytes_per_s: npt.NDArray[np.int64]

    @classmethod
    def of(cls, rates: Mapping[int, Sequence[tuple[int, int]]]) -> Changes:
        """From {link: [(from_ps, bytes_per_s), …]}, times above 0 and rising."""
        rows = [(link, at, rate) for link in sorted(rates) for at, rate in rates[link]]
        link, at, rate = (np.array([row[i] for row in rows], np.int64) for i in range(3))
        return cls(link.astype(np.int32), at, rate)

    def __bool__(self) -> bool:
        return len(self.link) > 0

    def columns(self) -> dict[str, npt.NDArray[np.int64] | npt.NDArray[np.int32]]:
        """As the native evaluations take them."""
        return {"change_link": self.link, "change_ps": self.from_ps, "change_bytes_per_s": self.bytes_per_s}


NONE = Changes.of({})
