"""Goodput of a long run in which NICs fail: a model, drawn from a seed.

Is: failures at random times, what each costs at once, and how much slower the run is until the NIC is repaired. Is not: a measurement,
nor a model of other failures (GPUs, software, hosts). Invariants: one seed gives one history of failures, so that ways to answer them
are compared on the same ones; goodput is at most 1, and does not rise when a failure costs more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..errors import UsageError

# Unexpected interruptions by NICs (7) and by switches and cables (35) in 54 days of 16,384 GPUs with a NIC each: Llama 3, arXiv
# 2407.21783, table 5.
NIC_MTBF_HOURS = 16384 * 54 * 24 / (7 + 35)


@dataclass(frozen=True)
class Answer:
    """How a system meets a lost NIC: seconds that all wait, and the share by which work is slower while `lost` NICs are gone."""

    name: str
    cost_s: float
    slower: Callable[[int], float]


@dataclass(frozen=True)
class Goodput:
    """share: useful time / time; failures; waited_s: time that all waited; slowed_s: time lost by going on more slowly; most_lost: NICs."""

    share: float
    failures: int
    waited_s: float
    slowed_s: float
    most_lost: int


def goodput(answer: Answer, nics: int, hours: float = 24.0, *, mtbf_hours: float = NIC_MTBF_HOURS, repair_hours: float = 4.0,
            seed: int = 0) -> Goodput:  # fmt: skip
    """Useful share of `hours` of a job with `nics` NICs that fail after `mtbf_hours` each, on average, and are back `repair_hours` later.

    Raises UsageError for numbers that are not above 0. Cost: a few µs a failure.

        >>> goodput(Answer("none", 0.0, lambda lost: 0.0), nics=131072).share
        1.0
    """
    for name, value in (("nics", nics), ("hours", hours), ("mtbf_hours", mtbf_hours), ("repair_hours", repair_hours)):
        if not value > 0:
            raise UsageError(f"{name} {value!r}: expected more than 0.")
    if answer.cost_s < 0:
        raise UsageError(f"cost_s {answer.cost_s!r}: expected 0 or more.")
    rng, end = np.random.default_rng(seed), hours * 3600.0
    times = np.sort(rng.uniform(0, end, rng.poisson(nics * hours / mtbf_hours)))
    back = times + repair_hours * 3600.0
    events = sorted([(float(t), 1) for t in times] + [(float(t), -1) for t in back if t < end])
    now, free_at, lost, most, waited, useful = 0.0, 0.0, 0, 0, 0.0, 0.0
    for time, change in [*events, (end, 0)]:
        running = max(0.0, time - max(now, free_at))
        useful += running / (1.0 + answer.slower(lost))
        waited += max(0.0, min(free_at, time) - now)
        if change > 0:
            free_at = max(free_at, time) + answer.cost_s
        lost, now = lost + change, time
        most = max(most, lost)
    return Goodput(useful / end, len(times), waited, end - waited - useful, most)
