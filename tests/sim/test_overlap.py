"""Overlap in the simulator: equal to the closed forms to the picosecond; alpha against the oracle; interference; the choice."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from ccl_lab import overlap
from ccl_lab.errors import UsageError
from ccl_lab.ir import Builder, Kind, Schedule
from ccl_lab.overlap.choose import CLOSE
from ccl_lab.simulator import Times, exact_times, simulate
from ccl_lab.topo import INSTANT, Topology, duration_ps
from ccl_lab.trace import Track

from .oracle import Oracle
from .test_exact import COLUMNS, draw, late_text

RATE = 10**12  # a byte a picosecond, so that nbytes of a block are its beta
US = 10**6  # ps

# R, p (c = 10, alpha = 0): sequential, k = 2, 4, 8, decomposed with m = 1
GOLDEN = {
    (4, 6): (18, 9, 4.5, 2.25, 0),
    (4, 14): (42, 22, 12, 7, 12),
    (8, 6): (42, 21, 10.5, 5.25, 0),
    (8, 14): (98, 58, 38, 28, 28),
    (16, 14): (210, 130, 90, 70, 60),
}


def line(n: int, *, slow: int | None = None, factor: int = 1, local: int = INSTANT) -> Topology:
    """One rank and one NIC a node, without latency; NIC `slow` at RATE, the others `factor` times that."""
    rates = np.full(n, RATE * factor)
    if slow is not None:
        rates[slow] = RATE
    return Topology("line", np.arange(n), 1, rates, 0, RATE, 0, local)


def times_of(schedule: Schedule, topology: Topology, c: int, alpha: int, beta: int, *, factor: int = 1, launch: int = 0,
             slow_rank: int = -1, by: int = 1) -> Times:  # fmt: skip
    """Times with slices of c ps, alpha ps a transfer and beta ps a slice where links are not slow; rank slow_rank computes by * c."""
    each = [c * (by if rank == slow_rank else 1) for rank in range(schedule.n_ranks)]
    return exact_times(schedule, topology, nbytes=beta * factor * schedule.n_ranks, dtype="int8", alpha=f"{alpha}ps",
                       compute_ps=overlap.durations(schedule, each, launch))  # fmt: skip


def exposed(schedule: Schedule, c: int, alpha: int, beta: int) -> int:
    return times_of(schedule, line(schedule.n_ranks), c, alpha, beta).time_ps - schedule.n_ranks * c


@pytest.mark.parametrize("operator", overlap.OPERATORS)
def test_golden_exposed_times(operator: str) -> None:
    for (n, p), (sequential, *sliced, decomposed) in GOLDEN.items():
        wanted = [("sequential", {}, sequential)]
        wanted += [("k_slice", {"slices": k}, value) for k, value in zip((2, 4, 8), sliced, strict=True)]
        wanted += [(by, {}, decomposed) for by in overlap.OPERATORS[operator].by]
        for name, options, value in wanted:
            schedule = overlap.plan(operator, name, n, **options)  # type: ignore[arg-type]
            assert exposed(schedule, 10 * US, 0, p * US) == value * US, (n, p, name, options)
            assert overlap.closed_form(name, n, 10, 0, p, k=options.get("slices", 1)) == Fraction(value)


def random_case(rng: np.random.Generator) -> tuple[str, str, int, dict[str, int], str | None]:
    operator = str(rng.choice(list(overlap.OPERATORS)))
    what = overlap.OPERATORS[operator]
    name = str(rng.choice(["sequential", "k_slice", *what.by]))
    cut = {"sequential": "k", "k_slice": "k"}.get(name, "m")
    parts = 1 if name == "sequential" else int(rng.choice([1, 2, 3, 4, 6, 8]))
    adds = None
    if what.adds and cut == "m":
        adds = str(rng.choice(["separate", "fused", *(["early"] if name == "direct" else [])]))
    return operator, name, int(rng.choice([1, 2, 3, 4, 5, 7, 8, 16])), {cut: parts}, adds


@pytest.mark.parametrize("seed", range(12))
def test_random_exposed_times(seed: int) -> None:
    """R, c, alpha, beta, k, m, f, a and launch at random: equal; an upper bound where a slow link meets fused adds."""
    rng = np.random.default_rng(seed)
    for _ in range(40):
        operator, name, n, cut, adds = random_case(rng)
        options = {"slices": cut["k"]} if name == "k_slice" else {"sub_slices": cut.get("m", 1)}
        schedule = overlap.plan(operator, name, n, adds=adds, **options)  # type: ignore[arg-type]
        c, beta = 96 * int(rng.integers(0, 1000)), 96 * int(rng.integers(1, 1000))
        alpha, launch = 96 * int(rng.integers(0, 200)) * int(rng.integers(2)), int(rng.choice([0, 24]))
        factor = int(rng.choice([1, 1, 2, 3, 5]))
        add, local = 0, INSTANT
        if factor == 1 and overlap.OPERATORS[operator].adds and rng.random() < 0.6:
            # An add reads two sources: 2 beta / local
            up, down = [(1, 1), (1, 2), (1, 4), (2, 1)][int(rng.integers(4))]
            add, local = beta * up // down, 2 * RATE * down // up
        topology = line(n, slow=int(rng.integers(n)) if factor > 1 else None, factor=factor, local=local)
        found = times_of(schedule, topology, c, alpha, beta, factor=factor, launch=launch).time_ps - n * c
        wanted = overlap.closed_form(name, n, c, alpha, beta, **cut, add=add, adds=adds or "separate", slow_link=factor, launch=launch)
        case = f"seed {seed}: {operator} {name} {cut} {adds}, R={n}, c={c}, alpha={alpha}, beta={beta}, f={factor}, a={add}"
        if adds == "fused" and factor > 1:
            assert found <= wanted, case
        else:
            assert found == wanted, case


def test_a_slow_link() -> None:
    for by in ("ring", "direct"):
        for n, c, alpha, beta, f in ((4, 10, 1, 3, 2), (4, 10, 1, 3, 4), (8, 10, 0, 6, 3), (5, 7, 2, 2, 7)):
            schedule = overlap.plan("matmul_reduce_scatter", by, n)
            found = times_of(schedule, line(n, slow=1, factor=f), c * US, alpha * US, beta * US, factor=f).time_ps
            assert found - n * c * US == (n - 1) * max(0, alpha + f * beta - c) * US


@pytest.mark.parametrize("operator", overlap.OPERATORS)
def test_a_slow_rank_exposes_nothing_beyond_its_own_time(operator: str) -> None:
    for by in overlap.OPERATORS[operator].by:
        for n, c, beta, slower in ((4, 10, 6, 2), (8, 10, 9, 3), (3, 10, 1, 2)):
            schedule = overlap.plan(operator, by, n, adds="separate" if overlap.OPERATORS[operator].adds else None)
            found = times_of(schedule, line(n), c * US, 0, beta * US, slow_rank=1, by=slower).time_ps
            own = n * c * slower * US
            # What the slow rank sends last may still have to reach another.
            assert own <= found <= own + beta * US


class TestChoice:
    @pytest.mark.parametrize("seed", range(6))
    def test_is_close_to_the_least_of_its_candidates_and_of_the_simulated(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(5):
            operator, n = str(rng.choice(list(overlap.OPERATORS))), int(rng.choice([2, 3, 4, 8]))
            c, beta = 840 * int(rng.integers(10, 1000)), 840 * int(rng.integers(1, 1500))
            alpha = 840 * int(rng.integers(0, 100)) * int(rng.integers(2))
            choice = overlap.choose(c, alpha, beta, n, operator=operator, divides=840)
            least = min(one.exposed for one in choice.candidates)
            enough = least + (n * c + least) * CLOSE
            assert choice.exposed <= enough
            parts = [one.k * one.m * (1 if one.schedule == "sequential" else n) for one in choice.candidates if one.exposed <= enough]
            assert choice.k * choice.m * (1 if choice.schedule == "sequential" else n) == min(parts)
            best = exposed(self.planned(operator, n, choice), c, alpha, beta)
            assert best == choice.exposed
            rivals = [overlap.plan(operator, "sequential", n)] + [overlap.plan(operator, "k_slice", n, slices=k) for k in (2, 4, 8)]
            assert all(best <= exposed(rival, c, alpha, beta) + (n * c + best) * CLOSE for rival in rivals), str(choice)

    @staticmethod
    def planned(operator: str, n: int, choice: overlap.Choice) -> Schedule:
        return overlap.plan(operator, choice.schedule, n, slices=choice.k, sub_slices=choice.m, adds=choice.adds)

    def test_auto_is_what_it_chooses(self) -> None:
        for timing in (overlap.Timing(10, 0, 14), overlap.Timing(10, 1, 5), overlap.Timing(10, 100, 1)):
            found = overlap.plan("matmul_reduce_scatter", "auto", 4, timing=timing)
            choice = overlap.choose(*timing[:3], 4)
            assert found.ops == self.planned("matmul_reduce_scatter", 4, choice).ops
            assert found.reasons == choice.reasons and "exposes" in found.reasons[0]


class TestAlpha:
    @pytest.mark.parametrize("block", range(4))
    def test_equals_the_oracle(self, block: int) -> None:
        for seed in range(20 * block, 20 * block + 20):
            schedule, topology, late, compute = draw(seed + 10_000, 32)
            alpha = int(np.random.default_rng(seed).integers(0, 10**7))
            times = exact_times(schedule, topology, late=late_text(late), compute_ps=compute, alpha=f"{alpha}ps")
            oracle = Oracle(schedule, topology, schedule.layout(), late.tolist(),
                            lambda rank, arg, table=compute: int(table[rank, arg]), alpha)  # fmt: skip
            assert times.finish_ps.tolist() == oracle.finish, f"seed {seed}"
            for column in COLUMNS:
                known, found = getattr(oracle, column), getattr(times, column + "_ps").tolist()
                assert {op: found[op] for op in known} == known, f"seed {seed}: {column}"

    @pytest.mark.parametrize("seed", range(20))
    def test_more_alpha_is_never_earlier(self, seed: int) -> None:
        schedule, topology, late, compute = draw(seed + 20_000, 24)
        some, more = (exact_times(schedule, topology, late=late_text(late), compute_ps=compute, alpha=a) for a in ("1us", "3us"))
        for column in COLUMNS + ("finish",):
            assert (getattr(more, column + "_ps") >= getattr(some, column + "_ps")).all(), column

    def test_of_a_transfer(self) -> None:
        b = Builder("send_recv", 2, algorithm="x", root=0, peer=1)
        b.put(rank=0, peer=1, src=b.input[0], dst=b.output[0])
        b.wait(rank=1, peer=0)
        schedule = b.build(nbytes=1000, dtype="int8")
        assert exact_times(schedule, line(2), alpha="5us").time_ps == 5 * US + 1000
        assert exact_times(schedule, line(2), "0", alpha="5us").time_ps == 0  # no bytes, no transfer
        with pytest.raises(UsageError, match="alpha"):
            exact_times(schedule, line(2), alpha=3e6)


class TestInterference:
    @staticmethod
    def beside(c: int, beta: int, factor: float) -> Times:
        """Two ranks: each computes c ps from the start while it sends and receives beta ps."""
        b = Builder("all_gather", 2, algorithm="x", channels=2, in_place=True)
        r = np.arange(2)
        b.put(rank=r, peer=1 - r, src=b.output[r], dst=b.output[r], channel=1)
        b.wait(rank=r, peer=1 - r, channel=1)
        b.compute(rank=r, arg=0)
        return exact_times(b.build(nbytes=2 * beta, dtype="int8"), line(2), compute_ps=c, interference=factor)

    def test_what_overlaps_is_stretched(self) -> None:
        assert self.beside(1000, 5000, 1.5).end_ps[-1] == 1500  # all of it
        assert self.beside(1000, 300, 1.5).end_ps[-1] == 1100  # 300 ps do the work of 200
        assert self.beside(1000, 300, 1.0).end_ps[-1] == 1000

    def test_what_does_not_overlap_is_not(self) -> None:
        for operator in overlap.OPERATORS:
            schedule = overlap.plan(operator, "sequential", 4)
            alone = times_of(schedule, line(4), 10 * US, 0, 6 * US)
            durations = overlap.durations(schedule, 10 * US)
            with_it = exact_times(schedule, line(4), nbytes=24 * US, dtype="int8", compute_ps=durations, interference=1.4)
            assert (with_it.end_ps == alone.end_ps).all()

    def test_bounds(self) -> None:
        for by in ("ring", "direct"):
            schedule = overlap.plan("matmul_reduce_scatter", by, 4, sub_slices=2)
            compute, durations = schedule.ops.kind == Kind.compute, overlap.durations(schedule, 10 * US)
            ends = []
            for factor in (1.0, 1.19, 1.4):
                times = exact_times(schedule, line(4), nbytes=24 * US, dtype="int8", compute_ps=durations, interference=factor)
                took = (times.end_ps - times.begin_ps)[compute]
                assert (took >= 5 * US).all() and (took <= round(5 * US * factor)).all()
                ends.append(times.time_ps)
            assert ends[0] < ends[1] < ends[2] <= 1.4 * ends[0] + 24 * US
        with pytest.raises(UsageError, match="interference"):
            exact_times(schedule, line(4), interference=0.5)


def test_the_trace_shows_partitions_and_transfers() -> None:
    schedule = overlap.plan("all_gather_matmul", "ring", 4, nbytes=4 * 6 * US, dtype="int8")
    trace = simulate(schedule, line(4), compute_ps=overlap.durations(schedule, 10 * US))
    assert trace.meta["time_ps"] == 40 * US
    assert (trace.meta["alpha_ps"], trace.meta["interference"], trace.meta["device"]) == (0, 1.0, "modelled")
    assert (trace["track"] == Track.compute).sum() == 16
    assert (trace["track"] == Track.nic_tx).sum() == 12


def test_memory_that_takes_no_time() -> None:
    topology = Topology.cluster(2, 1, 1, local_gbytes_per_s=math.inf)
    assert (topology.local_bytes_per_s == INSTANT).all() and duration_ps(10**9, INSTANT) == 0
    schedule = overlap.plan("matmul_reduce_scatter", "ring", 2, nbytes="1MiB")
    times = exact_times(schedule, topology, compute_ps=1000)
    adds = schedule.ops.kind == Kind.reduce
    assert adds.any() and (times.leave_ps[adds] == times.start_ps[adds]).all()
