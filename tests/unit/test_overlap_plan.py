"""overlap.plan, partitions, durations, closed_form and choose: names, numbers, errors."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from ccl_lab import overlap
from ccl_lab.errors import ShapeError, UsageError
from ccl_lab.ir import Builder, Kind


class TestPlan:
    @pytest.mark.parametrize(
        ("arguments", "options", "words"),
        [
            (("matmul_reduce_scater", "ring", 4), {}, "matmul_reduce_scatter"),
            (("matmul_reduce_scatter", "rings", 4), {}, "'ring'"),
            (("matmul_reduce_scatter", "ring", 0), {}, "n_ranks 0: expected a whole number, 1 or more"),
            (("matmul_reduce_scatter", "ring", 4), {"sub_slices": 0}, "sub_slices 0"),
            (("matmul_reduce_scatter", "k_slice", 4), {"slices": 1.5}, "slices 1.5"),
            (("matmul_reduce_scatter", "ring", 4), {"adds": "early"}, "separate, or fused"),
            (("matmul_reduce_scatter", "k_slice", 4), {"adds": "fused"}, "the collective adds there"),
            (("all_gather_matmul", "ring", 4), {"adds": "fused"}, "nothing is added"),
            (("matmul_all_to_all", "ring", 4), {}, "use direct"),
            (("matmul_all_to_all", "direct", 4), {"in_place": True}, "in place"),
            (("matmul_reduce_scatter", "auto", 4), {}, "needs timing=Timing"),
        ],
    )
    def test_errors_say_what_to_do(self, arguments: tuple, options: dict, words: str) -> None:
        with pytest.raises(UsageError, match=words):
            overlap.plan(*arguments, **options)

    def test_channels(self) -> None:
        for operator in overlap.OPERATORS:
            ops = overlap.plan(operator, "direct", 4, sub_slices=2).ops
            assert (ops.channel[ops.kind == Kind.compute] == 0).all()
            assert (ops.channel[ops.kind == Kind.put] == 1).all()

    def test_own_block_first_or_last(self) -> None:
        for operator, what in overlap.OPERATORS.items():
            for by in what.by:
                ops = overlap.plan(operator, by, 5).ops
                for rank in range(5):
                    order = ops.arg[(ops.kind == Kind.compute) & (ops.rank == rank)].tolist()
                    assert order[0 if what.gathers else -1] == rank
                    if operator == "matmul_reduce_scatter":
                        step = -1 if by == "ring" else 1
                        assert order == [(rank + step * (i + 1)) % 5 for i in range(5)]

    def test_no_copies_in_place(self) -> None:
        for operator in ("all_gather_matmul", "matmul_reduce_scatter"):
            for name in ("sequential", "k_slice", "ring", "direct"):
                assert not (overlap.plan(operator, name, 4).ops.kind == Kind.copy).any()

    def test_early_adds_leave_one(self) -> None:
        counts = {}
        for adds in ("separate", "early", "fused"):
            ops = overlap.plan("matmul_reduce_scatter", "direct", 5, adds=adds).ops
            counts[adds] = int((ops.kind == Kind.reduce).sum()) // 5
        assert counts == {"separate": 4, "early": 1, "fused": 0}


class TestPartitions:
    def test_numbers_are_chunks(self) -> None:
        for rank, each in enumerate(overlap.partitions(overlap.plan("all_gather_matmul", "ring", 3, sub_slices=2, in_place=False))):
            for i, one in enumerate(each):
                assert one == (rank, i, False, i, 1, i // 2, i % 2, Fraction(1, 6))

    def test_sequential_is_one(self) -> None:
        for operator in overlap.OPERATORS:
            (one,) = overlap.partitions(overlap.plan(operator, "sequential", 3))[0]
            assert (one.chunk, one.n_chunks, one.share) == (0, 3, 1)

    def test_a_rank_without(self) -> None:
        b = Builder("all_gather", 2, algorithm="x")
        b.compute(rank=0, arg=0, reads=[b.output[0]])
        with pytest.raises(ShapeError, match="rank 1 does not compute partition 0"):
            overlap.partitions(b.build())

    def test_durations(self) -> None:
        schedule = overlap.plan("matmul_reduce_scatter", "direct", 2, sub_slices=2)
        assert overlap.durations(schedule, 10, launch_ps=1).tolist() == [[6] * 4] * 2
        assert overlap.durations(schedule, [10, 30]).tolist() == [[5] * 4, [15] * 4]
        whole = overlap.plan("matmul_reduce_scatter", "sequential", 2)
        assert overlap.durations(whole, 10).tolist() == [[20], [20]]


class TestClosedForm:
    def test_what_the_source_says(self) -> None:
        assert overlap.closed_form("k_slice", 4, 10, 0, 14, k=8) == 7
        assert overlap.closed_form("ring", 4, 10, 0, 14) == 12
        assert overlap.closed_form("direct", 4, 10, 2, 4) == 0
        assert overlap.closed_form("ring", 4, 10, 0, 6, add=1) == 3
        assert overlap.closed_form("ring", 4, 10, 1, 6, slow_link=2) == 9

    def test_zero_tail_condition(self) -> None:
        for n in (2, 4, 8):
            for m in (1, 2, 5):
                edge = Fraction(10) * (n - Fraction(1, m)) / (n - 1)  # m alpha + beta
                assert overlap.closed_form("ring", n, 10, 0, edge, m=m) == 0
                assert overlap.closed_form("ring", n, 10, 0, edge + 1, m=m) == n - 1

    def test_exact_in_exact_out(self) -> None:
        assert overlap.closed_form("ring", 3, 1, 0, Fraction(4, 3)) == Fraction(2, 3)
        assert isinstance(overlap.closed_form("ring", 3, 1.0, 0, 2), float)

    @pytest.mark.parametrize(
        ("schedule", "options", "words"),
        [("auto", {}, "no closed form"), ("ring", {"m": 0}, "m 0: expected"), ("ring", {"adds": "early"}, "expected separate"),
         ("ring", {"add": -1}, "add -1"), ("ring", {"slow_link": 0.5}, "slow_link 0.5: expected")],
    )  # fmt: skip
    def test_errors(self, schedule: str, options: dict, words: str) -> None:
        with pytest.raises(UsageError, match=words):
            overlap.closed_form(schedule, 4, 10, 0, 6, **options)


class TestChoose:
    def test_hidden_or_not(self) -> None:
        hidden = overlap.choose(10, 0, 6, 4)
        assert hidden.exposed == 0 and hidden.schedule in ("ring", "direct") and hidden.m == 1
        assert "every hop hides" in str(hidden)
        assert "exposes 0" in hidden.reasons[0] and "sequential would expose 18" in str(hidden)

    def test_bound_by_communication(self) -> None:
        busy = overlap.choose(10, 0, 14, 4, divides=8)
        least = min(one.exposed for one in busy.candidates)
        assert least <= busy.exposed <= least + (40 + least) / 100 and busy.exposed < 7
        assert "links are busier" in str(busy)

    def test_latency_makes_cutting_pointless(self) -> None:
        far = overlap.choose(1, 100, 1, 4)
        assert far.m == far.k == 1 and far.schedule != "k_slice"

    def test_only_what_divides_the_rows(self) -> None:
        for one in overlap.choose(10, 0.01, 14, 4, divides=6).candidates:
            assert 6 % one.m == 0 and 6 % one.k == 0

    def test_one_rank(self) -> None:
        assert overlap.choose(10, 1, 1, 1).schedule == "sequential"

    def test_adds_that_cost(self) -> None:
        for operator in ("matmul_reduce_scatter", "all_gather_matmul"):
            found = overlap.choose(10, 0, 2, 4, operator=operator, add=1)
            assert found.exposed <= (1 if operator == "matmul_reduce_scatter" else 0)
        assert overlap.choose(10, 0, 2, 4, add=1).adds in ("early", "fused")

    def test_launch_cost_counts(self) -> None:
        cheap, dear = (overlap.choose(10, 0, 14, 4, launch=launch) for launch in (0, 1))
        assert dear.m * dear.k < cheap.m * cheap.k

    def test_errors(self) -> None:
        with pytest.raises(UsageError, match="beta -1"):
            overlap.choose(10, 0, -1, 4)
        with pytest.raises(UsageError, match="1 or more"):
            overlap.choose(10, 0, 1, 0)
        with pytest.raises(UsageError, match="unknown"):
            overlap.choose(10, 0, 1, 2, operator="matmul")

    def test_no_more_partitions_than_a_hundredth_of_the_time_is_worth(self) -> None:
        few = overlap.choose(10, 0, 14, 8)
        assert (few.schedule, few.m) == ("ring", 16)  # m = 64 would expose 18.16 of 98, this 18.63
        assert overlap.choose(10, 0, 9, 4, operator="all_gather_matmul").schedule == "ring"  # direct exposes 0 as well

    def test_numpy_numbers(self) -> None:
        assert overlap.choose(np.float64(10), np.float64(0), np.float64(6), 4).exposed == 0


def test_what_the_page_shows_runs() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "overlap.md").read_text()
    exec(compile("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), "docs/overlap.md", "exec"), {})
