"""A puzzle about order: in which order must the ranks compute their slices so that no communication is left at the end?

Is: a task, hints, and a check of an order by proof and simulation. Is not: a puzzle about ops (model.py). Invariant: `check` never
raises for a wrong answer; it says what is computed twice or never, or how much stays exposed and where.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import CclError
from ..ir import Builder, Schedule
from ..overlap import durations
from ..simulator import simulate
from ..topo import INSTANT, Topology
from ..verifier import verify
from .model import Told, Verdict

Order = Callable[[np.ndarray, int, int], Any]
COMPUTE, COMM = 0, 1
C_PS, P_PS = 10_000_000, 6_000_000  # ps: a slice's computation, its way over a NIC

TASK = """\
Every rank computes a partial of all n slices; slice s belongs to rank s, which needs the sum. A partial leaves
for its owner as soon as it is computed, while the next is computed. Computing a slice takes 10 µs, its way over
a NIC 6 µs; a NIC sends one slice at a time and receives one at a time. Write order(r, i, n): the slice that
rank r computes at step i, for r = np.arange(n) all at once, so that nothing is left to wait for when the last
slice is computed."""

PICTURE = """\
everybody in the order 0, 1, 2, 3             what you look for (who is who?)
rank 0  [0][1][2][3]......                    rank 0  [?][?][?][?]
rank 1  [0][1][2][3].........                 rank 1  [?][?][?][?]
rank 2  [0][1][2][3]............              rank 2  [?][?][?][?]
rank 3  [0][1][2][3]............   exposed    rank 3  [?][?][?][?]   nothing exposed"""

HINTS = (
    "which slice of a rank never travels? Nothing has to be sent after it.",
    "at each step, every NIC should receive from one rank only: no two ranks compute the same slice at the same step.",
    "rank r ends with its own slice r. Count backwards from there: at step i it computes slice (r + 1 + i) % n.",
)


@dataclass(frozen=True)
class OrderPuzzle(Told):
    """An order to find."""

    sizes: tuple[int, ...] = (2, 3, 4, 5, 8)

    def check(self, order: Order) -> Verdict:
        """Builds the schedule of this order for several numbers of ranks, proves it and simulates it."""
        schedule = None
        for n in self.sizes:
            try:
                blocks = _blocks(order, n)
                if wrong := _not_each_once(blocks):
                    return Verdict(False, f"with {n} ranks: {wrong}", schedule)
                schedule = schedule_of(blocks)
                verify(schedule)
                exposed = exposed_ps(schedule)
            except CclError as error:
                return Verdict(False, f"with {n} ranks: {type(error).__name__}: {error}", schedule)
            except (TypeError, ValueError, IndexError, AttributeError, NameError) as error:
                return Verdict(False, f"with {n} ranks your function raised {type(error).__name__}: {error}")
            if exposed:
                return Verdict(False, f"with {n} ranks all sums are right, but {exposed / 1e6:g} µs stay exposed at the end; "
                               f"the computation takes {n * C_PS / 1e6:g} µs.", schedule)  # fmt: skip
        return Verdict(True, f"nothing is exposed with {', '.join(map(str, self.sizes))} ranks.", schedule)


def _blocks(order: Order, n: int) -> np.ndarray:
    """[step, rank]."""
    r = np.arange(n)
    return np.stack([np.broadcast_to(np.asarray(order(r, i, n)), (n,)) for i in range(n)]).astype(np.int64)


def _not_each_once(blocks: np.ndarray) -> str:
    n = len(blocks)
    for rank in range(n):
        missing = sorted(set(range(n)) - set(blocks[:, rank].tolist()))
        if missing:
            return f"rank {rank} computes slices {blocks[:, rank].tolist()} and never slice {missing[0]}."
    return ""


def schedule_of(blocks: np.ndarray) -> Schedule:
    """Compute + reduce_scatter in the order of blocks[step, rank]; partials go straight to their owners."""
    n = len(blocks)
    b = Builder("reduce_scatter", n, algorithm="no_tail", channels=2, scratch_blocks=max(n - 1, 1))
    for step, mine in enumerate(blocks):
        b.step = step
        r = np.flatnonzero(mine == np.arange(n))
        if len(r):
            b.compute(rank=r, arg=r, produces=b.input[r], dst=b.output[np.zeros_like(r)], channel=COMPUTE)
        r = np.flatnonzero(mine != np.arange(n))
        if len(r):
            block = mine[r]
            b.compute(rank=r, arg=block, produces=b.input[block], channel=COMPUTE)
            b.signal(rank=r, peer=r, channel=COMPUTE, sig_channel=COMM)
            b.wait(rank=r, peer=r, channel=COMM, sig_channel=COMM)
            slot = (r - block) % n - 1
            b.put(rank=r, peer=block, src=b.input[block], dst=b.scratch[slot], channel=COMM, sig_channel=COMPUTE)
    b.step, r = n, np.arange(n)
    for away in range(1, n):
        b.wait(rank=r, peer=(r + away) % n, channel=COMPUTE)
        b.reduce(rank=r, dst=b.output[np.zeros_like(r)], srcs=[b.output[np.zeros_like(r)], b.scratch[np.full(n, away - 1)]])
    return b.build(nbytes=n * P_PS, dtype="int8")


def exposed_ps(schedule: Schedule) -> int:
    """What the schedule takes beyond its computation, with NICs of a byte a picosecond."""
    n, rate = schedule.n_ranks, 10**12
    topology = Topology("puzzle", np.arange(n), 1, np.full(n, rate), 0, rate, 0, INSTANT)
    trace = simulate(schedule, topology, compute_ps=durations(schedule, C_PS))
    return int(trace.meta["time_ps"]) - n * C_PS


no_tail = OrderPuzzle("no_tail", TASK, PICTURE, HINTS)
