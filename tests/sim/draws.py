"""Planned schedules that are drawn at random, and what tests of evaluations without a table of ops compare them with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ccl_lab.errors import Inapplicable, UsageError
from ccl_lab.ir import Outline, Schedule
from ccl_lab.planner import outline, plan
from ccl_lab.simulator import exact_times, finish_times
from ccl_lab.simulator.changes import NONE, Changes
from ccl_lab.simulator.exact import late_times_ps
from ccl_lab.topo import Level, Topology

from .cases import links_of, random_changes
from .oracle import Oracle
from .test_scale import MOST_OPS


class Drawn(NamedTuple):
    """A schedule both ways, where it runs, who is late, alpha in seconds, and what to draw from next."""

    schedule: Schedule
    outlined: Outline
    topology: Topology
    late: dict[int, str]
    alpha: float
    rng: np.random.Generator

    def wanted(self, change: bool) -> tuple[list[int], Changes]:
        """When each rank ends, by the table of ops; `change`: rates change in the middle, three times in ten."""
        want, changes = exact_times(self.schedule, self.topology, late=self.late, alpha=self.alpha), NONE
        if self.rng.random() < 0.3 and change:
            changes = Changes.of(links_of(self.topology, random_changes(self.rng, self.topology, want.time_ps)))
            want = exact_times(self.schedule, self.topology, late=self.late, alpha=self.alpha, changes=changes)
        return want.finish_ps.tolist(), changes

    def by_the_oracle(self) -> list[int]:
        late_ps = [int(self.late.get(rank, "0ps")[:-2]) for rank in range(self.topology.n_ranks)]
        return Oracle(self.schedule, self.topology, self.schedule.layout(), late_ps, alpha=round(self.alpha * 1e12)).finish

    def found(self, finish: Callable[..., Any], part: Any, changes: Changes = NONE, **options: Any) -> tuple[list[int], dict[str, Any]]:
        """As `found`, of this one."""
        return found(finish, part, self.outlined, self.topology, self.late, self.alpha, changes, **options)


def gone_over(cases: Iterable[Drawn]) -> tuple[int, int]:
    """How many cases end as when every round of every unit is evaluated, and in how many most rounds are jumped over."""
    compared = jumped = 0
    for number, case in enumerate(cases):
        want, _ = finish_times(case.outlined, case.topology, merge=False, jumps=False, late=case.late, alpha=case.alpha)
        ends, how = finish_times(case.outlined, case.topology, late=case.late, alpha=case.alpha)
        assert ends.tolist() == want.tolist(), number
        compared, jumped = compared + 1, jumped + (how["jumped"] > how["rounds"])
    return compared, jumped


def in_step_and_nominal(schedule: Schedule, topology: Topology) -> tuple[int, int]:
    """Picoseconds of a schedule with its timetable, and in nominal time."""
    in_step, nominal = (exact_times(dataclasses.replace(schedule, timetable=each), topology).time_ps for each in (True, False))
    return in_step, nominal


def found(finish: Callable[..., Any], part: Any, outlined: Outline, topology: Topology, late: Any = None, alpha: float = 0.0,
          changes: Changes = NONE, **options: Any) -> tuple[list[int], dict[str, Any]]:  # fmt: skip
    """What one evaluation, chain_finish or its like, says of its part of an outline."""
    assert part is not None
    count = outlined.count_of(outlined.nbytes, outlined.dtype)
    times, how = finish(part, topology, count, 4, late_times_ps(late, topology.n_ranks), round(alpha * 1e12), changes, **options)
    return times.tolist(), how


def drawn(rng: np.random.Generator, name: tuple[str, str], topology: Topology, nbytes: int, late: tuple[float, float],
          fits: Callable[[Outline], bool] = lambda outlined: True, channels: bool = True, most_ops: int = MOST_OPS,
          **options: Any) -> Drawn | None:  # fmt: skip
    """None where it does not fit, or has many ops. late: how likely any rank is late, and how many of them then."""
    options |= {"algorithm": name[1], "in_place": bool(rng.random() < 0.3),
                "channels": None if rng.random() < 0.7 or not channels else int(rng.integers(1, 5))}  # fmt: skip
    try:
        outlined = outline(name[0], topology, nbytes, **options)
        schedule = plan(name[0], topology, nbytes, **options) if outlined.ops_about <= most_ops and fits(outlined) else None
    except UsageError:
        return None
    who = {}
    if rng.random() < late[0]:
        who = {r: f"{int(rng.integers(1, 10**8))}ps" for r in range(topology.n_ranks) if rng.random() < late[1]}
    return None if schedule is None else Drawn(schedule, outlined, topology, who, 0.0 if rng.random() < 0.7 else 3e-6, rng)


def equal_to_the_oracle(cases: Iterable[Drawn | None], finish: Callable[..., Any], part: str, most_ops: int = MOST_OPS,
                        may_refuse: bool = False) -> int:  # fmt: skip
    """How many cases of at most so many ops an evaluation of that part of an outline times as the oracle; may_refuse: others it leaves."""
    compared = 0
    for number, case in enumerate(cases):
        if case is None or len(case.schedule.ops) > most_ops:
            continue
        try:
            times, _ = case.found(finish, getattr(case.outlined, part))
        except Inapplicable:
            if not may_refuse:
                raise
            continue
        assert times == case.by_the_oracle(), number
        compared += 1
    return compared


def some_bytes(rng: np.random.Generator, most: int = 10**8) -> int:
    """A few bytes, some thousands, or up to `most`."""
    return int(rng.choice([int(rng.integers(0, 100)), int(rng.integers(1, 10**5)), int(rng.integers(1, most))]))


def with_tiers(rng: np.random.Generator, topology: Topology) -> Topology:
    """Switches above the NICs, in up to four tiers: with rails or without, far or near, groups that do not divide the nodes."""
    levels, nodes, rails = [], 1, int(rng.integers(0, 4))
    for tier in range(int(rng.integers(0, 4))):
        nodes *= int(rng.integers(2, 5))
        if nodes >= topology.n_nodes:
            break
        levels.append(Level(f"tier {tier}", nodes=nodes, latency=_far(rng), per_rail=tier < rails))
    return topology.with_network(*levels, Level("top", latency=_far(rng)))


def _far(rng: np.random.Generator) -> str:
    return f"{int(rng.choice([0, rng.integers(1, 10**4), rng.integers(1, 10**7), rng.integers(1, 10**9)]))}ps"


def alike_by_twos(nodes: int) -> list[tuple[Topology, dict[int, str] | None, int]]:
    """(topology, who is late, nodes after which all repeats): all alike; every other one with slower NICs and latencies, or a late rank."""
    whole = Topology.preset("h100", nodes)
    rates, latency = np.array(whole.nic_bytes_per_s), np.array(whole.nic_latency_ps)
    rates.reshape(nodes, 8)[1::2, 3] //= 3
    latency.reshape(nodes, 8)[::2, 5] += 777
    others = whole.replace(nic_bytes_per_s=rates, nic_latency_ps=latency)
    return [(whole, None, 1), (others, None, 2), (whole, dict.fromkeys(range(9, 8 * nodes, 16), "33us"), 2)]


Ring = tuple[int, Topology, dict[str, Any], Outline, int, dict[str, Any]]


def drawn_rings(seeds: Iterable[int], salt: int, draw: Callable[..., Any], made: Callable[..., Any]) -> Iterator[Ring]:
    """(seed, topology, options, outline, bytes, what it was planned with), where draw(rng) and made(rng, topology) come to rings."""
    for seed in seeds:
        rng = np.random.default_rng([seed, salt])
        topology, options = draw(rng)
        rings = made(rng, topology)
        if rings is not None:
            yield (seed, topology, options, *rings)


def changing(rings: Iterable[Ring]) -> Iterator[Ring]:
    """The same, with NICs whose rates change while they go round; at times one changes again and again."""
    for seed, topology, options, outlined, nbytes, planned in rings:
        rng = np.random.default_rng([seed, 9])
        try:
            whole = int(finish_times(outlined, topology, nbytes, merge=False, jumps=False, **options)[0].max())
        except (Inapplicable, UsageError):
            continue
        rates = random_changes(rng, topology, int(whole * rng.choice([0.2, 1, 1.5])))
        if rng.random() < 0.2:
            nic, first = next(iter(rates.items()))
            rates[nic] = [(1 + i * whole // 40, first[-1][1] // (1 + i % 3) + 1) for i in range(40) if i * whole // 40 > i - 1]
        yield seed, topology, {**options, "changes": Changes.of(links_of(topology, rates))}, outlined, nbytes, planned


def equal_to_every_message(rings: Iterable[Ring]) -> int:
    """How many were evaluated both ways, message by message too; all of them came to the same times."""
    compared = 0
    for seed, topology, options, outlined, nbytes, _ in rings:
        try:
            want = finish_times(outlined, topology, nbytes, merge=False, jumps=False, **options)[0]
            ends = finish_times(outlined, topology, nbytes, **options)[0]
        except (Inapplicable, UsageError):
            continue
        assert ends.tolist() == want.tolist(), seed
        compared += 1
    return compared
