"""What a machine adds to the modelled links: measured once by small messages, used for all schedules and sizes.

    with World(topology) as world:
        machine = calibrate(world)
        measured = world.run(schedule)
        machine.simulate(schedule, late=entries(measured))     # as ccl_lab.simulate, on this machine

Is: three numbers (the latencies of NICs and of the fabric, and what a transfer costs beyond its bytes) fitted to a few schedules of 1 KiB
blocks, and the comparison of a run with its simulation. Is not: a fit to what is predicted: neither size nor algorithm nor rate enters
beyond those schedules. Invariant: what `entries` says of a run goes into its simulation, so a rank that the system let in late is not
taken for communication.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .errors import UsageError
from .ir import Schedule
from .planner import plan
from .simulation import Result, simulate
from .simulator import exact_times
from .topo import Topology
from .trace import SpanKind, Trace, Track

if TYPE_CHECKING:
    from .engine import World

__all__ = ["Calibration", "calibrate", "entries", "measured_us", "simulated_us"]

# Chains of hops, many puts at once, exchanges, a pipeline: what the three numbers differ in. Blocks are too long to pass a shaped NIC
# beside its queue, and short beside what a transfer costs.
CASES = (("all_gather", "ring"), ("all_gather", "direct"), ("all_to_all", "paired"), ("all_reduce", "recursive_doubling"),
         ("broadcast", "binomial"), ("gather", "direct"))  # fmt: skip
BLOCK_BYTES = 1024
RUNS = 9
# Where the search for the three begins, and by which factors it goes on.
STARTS_US = ((100.0, 100.0, 100.0), (300.0, 5.0, 30.0), (50.0, 50.0, 5.0))
FACTORS, LEAST_US, MOST_US = (4.0, 2.0, 1.4, 1.15), 0.5, 20_000.0

F64 = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What was measured on `topology`. Microseconds; `error`: median of |measured / simulated - 1| over the schedules it was fitted to."""

    topology: Topology
    nic_latency_us: float
    fabric_latency_us: float
    alpha_us: float
    error: float

    @property
    def modelled(self) -> Topology:
        """The topology with those latencies."""
        return _with(self.topology, self.nic_latency_us, self.fabric_latency_us)

    def simulate(self, schedule: Schedule, **options: Any) -> Result:
        """`ccl_lab.simulate` on this machine; `options` as there, but for alpha."""
        return simulate(schedule, self.modelled, alpha=self.alpha_us * 1e-6, **options)

    def to_dict(self) -> dict[str, Any]:
        """The numbers, for a record."""
        return {name: getattr(self, name) for name in ("nic_latency_us", "fabric_latency_us", "alpha_us", "error")}


def calibrate(world: World, runs: int = RUNS) -> Calibration:
    """Runs a few schedules of 1 KiB blocks on `world` and fits what its machine adds to the links of its topology.

    runs: measured runs of each schedule, after two that are not. Raises UsageError for a world of one rank or for less than 1 run; errors
    of World.run. Cost: a few seconds, more where NICs are held to less than 1 Mb/s.

        >>> calibrate(world).alpha_us           # doctest: +SKIP
    """
    topology = world.topology
    if topology.n_ranks < 2 or runs < 1:
        raise UsageError(f"calibrate with {topology.n_ranks} ranks and runs={runs}: expected 2 ranks and 1 run, or more.")
    known: list[tuple[Schedule, list[dict[int, str]], float]] = []
    for collective, algorithm in CASES:
        try:
            schedule = plan(collective, topology, BLOCK_BYTES * topology.n_ranks, algorithm=algorithm)
        except UsageError:
            continue  # not for this number of ranks
        for _ in range(2):
            world.run(schedule)
        traces = sorted((world.run(schedule) for _ in range(runs)), key=lambda trace, of=schedule: measured_us(trace, of))
        middle = traces[(runs - 1) // 3 : runs // 2 + 1 + runs // 6]
        known.append((schedule, [entries(trace) for trace in middle], measured_us(traces[runs // 2], schedule)))

    def errors(latencies: F64) -> F64:
        nic, fabric, alpha = (float(each) for each in latencies)
        model = _with(topology, nic, fabric)
        return np.array([abs(np.log(time_us / np.median([simulated_us(schedule, model, late, alpha) for late in lates])))
                         for schedule, lates, time_us in known])  # fmt: skip

    found = _least(lambda latencies: float(errors(latencies).sum()))
    return Calibration(topology, *(round(float(each), 3) for each in found), error=float(np.expm1(np.median(errors(found)))))


def entries(trace: Trace) -> dict[int, str]:
    """When each rank of a measured run began, after the first: what `simulate` takes as `late`. UsageError for a Trace without ranks."""
    begin, _ = _control(trace)
    first = min(begin.values())
    return {rank: f"{at - first}ns" for rank, at in begin.items()}


def measured_us(trace: Trace, schedule: Schedule) -> float:
    """From the last in to the last out of the ranks that have ops, µs."""
    begin, end = _control(trace)
    act = _those_who_act(schedule)
    return (max(end[rank] for rank in act) - max(begin[rank] for rank in act)) / 1e3


def simulated_us(schedule: Schedule, topology: Topology, late: dict[int, str], alpha_us: float) -> float:
    """The same of the simulation, µs. late: as `entries` says."""
    times, act = exact_times(schedule, topology, late=late, alpha=alpha_us * 1e-6), _those_who_act(schedule)
    return float(times.finish_ps[act].max() - times.late_ps[act].max()) / 1e6


def _those_who_act(schedule: Schedule) -> npt.NDArray[np.int64]:
    """Ranks that have ops, ascending: the others of a send_recv, say, end as they begin."""
    return np.unique(schedule.ops.rank).astype(np.int64)


def _control(trace: Trace) -> tuple[dict[int, int], dict[int, int]]:
    """ns at which each rank's collective began and ended."""
    columns = trace.columns
    at = np.flatnonzero((columns["track"] == int(Track.control)) & (columns["kind"] == int(SpanKind.collective)))
    if not len(at):
        raise UsageError("this Trace does not say when its ranks began: expected one of World.run.")
    ranks = columns["rank"][at].tolist()
    begin, end = (dict(zip(ranks, columns[name][at].tolist(), strict=True)) for name in ("begin_ns", "end_ns"))
    return begin, end


def _with(topology: Topology, nic_us: float, fabric_us: float) -> Topology:
    nics, fabric = (np.full_like(column, round(1e6 * us)) for column, us in
                    ((topology.nic_latency_ps, nic_us), (topology.fabric_latency_ps, fabric_us)))  # fmt: skip
    return topology.replace(nic_latency_ps=nics, fabric_latency_ps=fabric)


def _least(cost: Callable[[F64], float]) -> F64:
    """Where `cost` of three positive numbers is least: from each start one after the other, by factors that get smaller."""
    found = [_descend(cost, np.array(start)) for start in STARTS_US]
    return min(found, key=lambda each: each[0])[1]


def _descend(cost: Callable[[F64], float], at: F64) -> tuple[float, F64]:
    least = cost(at)
    for factor in FACTORS:
        better = True
        while better:
            better = False
            for i in range(len(at)):
                for by in (factor, 1 / factor):
                    trial = at.copy()
                    trial[i] = min(max(trial[i] * by, LEAST_US), MOST_US)
                    value = cost(trial)
                    if value < least * (1 - 1e-9):
                        at, least, better = trial, value, True
    return least, at
