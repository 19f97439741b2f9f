"""How long a communicator of N ranks takes to start, and how much memory each rank then holds.

    T(N) = fixed + N (ring exchange + store) + N^2 topology work

Is: arXiv 2510.20171's account of start-up with its published times as the only data: the baseline, in which every rank asks rank 0
and each rank's topology is compared with each other's, and NCCLX, whose ranks get only their neighbours from the store and send the rest
round a ring. Is not: a measurement, nor a simulation of a store. Invariants: coefficients are not negative; two points cannot tell a linear
from a quadratic term, so every prediction comes with the range of all such T that pass within TOLERANCE of both points.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np

from ...arguments import named, whole

SOURCE = "arXiv 2510.20171, scalable initialization: seconds at 8K and 32K ranks; memory at 64K"
MEASURED_S: dict[str, dict[int, float]] = {"baseline": {8192: 14.5, 32768: 55.71}, "ncclx": {8192: 3.97, 32768: 11.89}}
TOLERANCE = 0.05  # assumption: how far a published time may be from its expectation

_TERMS = {"fixed": lambda n: 1.0, "ring": float, "log_ring": lambda n: n * math.log2(max(n, 2)), "pairs": lambda n: float(n) * n}
_MAY_HOLD = {"baseline": ("fixed", "ring", "pairs"), "ncclx": ("fixed", "ring", "log_ring")}
"""Terms that the range allows: what grows as pairs is what NCCLX removed."""


@dataclasses.dataclass(frozen=True)
class StartUp:
    """Seconds to start `ranks` ranks: seconds, and the range [low, high] that the data allow; parts: seconds by what takes them."""

    library: str
    ranks: int
    seconds: float
    low: float
    high: float
    parts: dict[str, float]
    fitted_on: dict[int, float]
    label: str = "model"

    def __str__(self) -> str:
        """In one line."""
        return (f"{self.library} at {self.ranks} ranks: {self.seconds:.1f} s (between {self.low:.1f} and {self.high:.1f} s), "
                f"fitted on {', '.join(f'{n}: {s} s' for n, s in self.fitted_on.items())} ({self.label})")


def coefficients(library: str) -> dict[str, float]:
    """Seconds: fixed, ring (a rank), store (a rank), pairs (a pair of ranks).

    NCCLX: fixed and ring through its two points. The baseline has both, too; its own two points give store and pairs.
    """
    (n0, t0), (n1, t1) = sorted(MEASURED_S["ncclx"].items())
    ring = (t1 - t0) / (n1 - n0)
    fixed = t0 - ring * n0
    if library == "ncclx":
        return {"fixed": fixed, "ring": ring, "store": 0.0, "pairs": 0.0}
    (n0, t0), (n1, t1) = sorted(MEASURED_S["baseline"].items())
    a_rank = [(time - fixed) / n for n, time in ((n0, t0), (n1, t1))]
    pairs = (a_rank[1] - a_rank[0]) / (n1 - n0)
    return {"fixed": fixed, "ring": ring, "store": a_rank[0] - pairs * n0 - ring, "pairs": pairs}


def start_up(ranks: int, library: str = "ncclx") -> StartUp:
    """How long a communicator of `ranks` ranks takes to start.

    library: "ncclx" or "baseline". Raises UsageError for another, or for less than 1 rank. Cost: some hundred solutions of 3 x 3.

        >>> start_up(98304).seconds > start_up(32768).seconds
        True
    """
    named(library, "library", MEASURED_S, verdict="is not in the model of start-up")
    ranks = whole(ranks, "ranks", 1, 2**31)
    found = coefficients(library)
    parts = {"fixed": found["fixed"], "ring exchange": found["ring"] * ranks, "store": found["store"] * ranks,
             "topology work": found["pairs"] * ranks**2}  # fmt: skip
    low, high = _range(ranks, library)
    return StartUp(library, ranks, sum(parts.values()), low, high, parts, MEASURED_S[library])


def _range(ranks: int, library: str) -> tuple[float, float]:
    """Least and largest T(ranks) over all sums of the library's terms with coefficients >= 0 within TOLERANCE of its points.

    A linear programme whose optimum lies where as many constraints are tight as there are terms; they are few, so all are tried.
    """
    terms = [_TERMS[name] for name in _MAY_HOLD[library]]
    scale = np.array([term(ranks) for term in terms])  # so that the unknowns are what each term adds to T(ranks)
    rows, limit = list(-np.eye(len(terms))), [0.0] * len(terms)
    for n, time in MEASURED_S[library].items():
        row = np.array([term(n) for term in terms]) / scale
        rows += [row, -row]
        limit += [(1 + TOLERANCE) * time, -(1 - TOLERANCE) * time]
    totals = _corners(np.array(rows), np.array(limit))
    return min(totals), max(totals)


def _corners(rows: np.ndarray, limit: np.ndarray) -> Sequence[float]:
    """sum(x) at every corner of {x: rows x <= limit}."""
    found = []
    for chosen in itertools.combinations(range(len(rows)), rows.shape[1]):
        tight = rows[list(chosen)]
        if abs(np.linalg.det(tight)) > 1e-12:
            corner = np.linalg.solve(tight, limit[list(chosen)])
            if (rows @ corner <= limit + 1e-9 * np.abs(limit).max()).all():
                found.append(float(corner.sum()))
    return found


# -- memory

_SIMPLE_BYTES, _LL_BYTES, _LL128_BYTES = 4 << 20, 512 << 10, 120 * 640 * 8 * 8  # a receive buffer by protocol: NCCL src/include/device.h
_CHANNELS, _RING_PEERS, _TREE_PEERS = 16, 1, 4
MEASURED_BYTES = {"baseline": {65536: 10e9}, "ncclx": {65536: 4.2e9}}


def memory(ranks: int, library: str = "ncclx") -> dict[str, float]:
    """Bytes that each rank holds: {"buffers", "tables", "total"}.

    buffers: baseline: of every channel, ring and tree, three protocols; NCCLX makes a channel's buffer when an algorithm first uses it: one
    ring in Simple. tables: bytes for each other rank, from the one published total at 64K ranks, so a prediction for other numbers assumes
    that they grow as ranks do. Raises UsageError. Source: arXiv 2510.20171 (10 GB, and 4.2 GB with lazy channels and slabs).
    """
    named(library, "library", MEASURED_BYTES, verdict="is not in the model of memory")
    ranks = whole(ranks, "ranks", 1, 2**31)
    every = (_RING_PEERS + _TREE_PEERS) * (_SIMPLE_BYTES + _LL_BYTES + _LL128_BYTES)
    buffers = float(_CHANNELS * (every if library == "baseline" else _SIMPLE_BYTES))
    ((n, total),) = MEASURED_BYTES[library].items()
    tables = (total - buffers) / n * ranks
    return {"buffers": buffers, "tables": tables, "total": buffers + tables}
