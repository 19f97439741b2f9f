"""Every overlap schedule is proved and means its collective; one without an op it needs is refused."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ccl_lab import overlap
from ccl_lab.errors import CclError
from ccl_lab.ir import Kind, OpTable, Schedule, collectives, interpret
from ccl_lab.verifier import verify

RANKS = (1, 2, 3, 5, 8)


def ways(operator: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Every schedule of an operator, with its options."""
    what = overlap.OPERATORS[operator]
    yield "sequential", {}
    for k in (2, 3):
        yield "k_slice", {"slices": k}
    for by in what.by:
        for m in (1, 2, 3):
            for adds in ((None, "separate", "fused", *(("early",) if by == "direct" else ())) if what.adds else (None,)):
                yield by, {"sub_slices": m, "adds": adds}


CASES = [
    (operator, schedule, options, in_place)
    for operator in overlap.OPERATORS
    for schedule, options in ways(operator)
    for in_place in ((True, False) if overlap.OPERATORS[operator].collective != "all_to_all" else (False,))
]


def integers(schedule: Schedule, count: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    blocks = collectives.blocks(schedule.collective, schedule.n_ranks)
    return [rng.integers(-999, 999, int(blocks[rank, 0]) * count) for rank in range(schedule.n_ranks)]


@pytest.mark.parametrize("n", RANKS)
def test_proved_and_equal_to_the_collective(n: int) -> None:
    for operator, name, options, in_place in CASES:
        schedule = overlap.plan(operator, name, n, in_place=in_place, **options)  # type: ignore[arg-type]
        what = f"{operator} {name} {options} among {n}, in place: {in_place}"
        verify(schedule)
        for count in (7, 1) if n < 5 else (2,):
            inputs = integers(schedule, count, n + count)
            for found, wanted in zip(interpret(schedule, inputs), collectives.reference(schedule.collective, inputs), strict=True):
                assert np.array_equal(found, wanted), what
        if n == 3:
            assert Schedule.from_text(schedule.text()) == schedule, what
        shares = [sum(partition.share for partition in rank) for rank in overlap.partitions(schedule)]
        assert shares == [1] * n, what


def without(schedule: Schedule, rows: list[int]) -> Schedule:
    keep = np.setdiff1d(np.arange(len(schedule)), rows)
    source = ("src_rank", "src_buf", "src_chunk")
    return schedule.replace(ops=OpTable(**{n: c if n in source else c[keep] for n, c in schedule.ops.columns().items()}))


@pytest.mark.parametrize("case", range(0, len(CASES), 3))
def test_nothing_can_be_left_out(case: int) -> None:
    operator, name, options, in_place = CASES[case]
    schedule = overlap.plan(operator, name, 3, in_place=in_place, **options)  # type: ignore[arg-type]
    rng = np.random.default_rng(case)
    paces = (schedule.ops.kind == Kind.flush) & (name == "direct")  # they say when blocks leave, not what is right
    some = np.flatnonzero(~paces)
    for op in rng.choice(some, min(6, len(some)), replace=False).tolist():
        with pytest.raises(CclError) as caught:
            verify(without(schedule, [op]))
        assert "rank" in str(caught.value), schedule.describe(op)


@pytest.mark.parametrize("case", range(1, len(CASES), 3))
def test_channels_must_tell_each_other(case: int) -> None:
    """Both ends of a rank's word to itself removed: its put or computation comes too early."""
    operator, name, options, in_place = CASES[case]
    schedule = overlap.plan(operator, name, 3, in_place=in_place, **options)  # type: ignore[arg-type]
    ops = schedule.ops
    told = np.flatnonzero((ops.kind == Kind.signal) & (ops.peer == ops.rank))
    for op in told[: 2 * schedule.n_ranks : schedule.n_ranks].tolist():
        mine = (ops.rank == ops.rank[op]) & (ops.peer == ops.rank[op]) & (ops.sig_channel == ops.sig_channel[op])
        pair = [np.flatnonzero(mine & (ops.kind == kind))[-1] for kind in (Kind.signal, Kind.wait)]
        with pytest.raises(CclError):
            verify(without(schedule, pair))


@pytest.mark.parametrize("operator", ["matmul_reduce_scatter", "attention_projection"])
@pytest.mark.parametrize("by", ["ring", "direct"])
@pytest.mark.parametrize("m", [1, 3])
def test_floats_are_summed_in_the_order_that_is_written(operator: str, by: str, m: int) -> None:
    n, count = 5, 12
    rng = np.random.default_rng(m)
    inputs = [rng.standard_normal(n * count).astype(np.float32) for _ in range(n)]
    for adds in ("separate", "fused", *(("early",) if by == "direct" else ())):
        outputs = interpret(overlap.plan(operator, by, n, sub_slices=m, adds=adds), inputs)
        for s, output in enumerate(outputs):
            order = [(s + 1 + i) % n for i in range(n)] if by == "ring" else [(s - i) % n for i in range(n)]
            total = inputs[order[0]][s * count : (s + 1) * count].copy()
            for rank in order[1:]:
                total += inputs[rank][s * count : (s + 1) * count]
            assert np.array_equal(output, total), (adds, s)
