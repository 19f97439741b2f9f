"""The definition of a schedule against numpy, on schedules written by hand; accumulation of every type; its errors."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ccl_lab.errors import DeadlockError, DtypeError, ShapeError, UsageError
from ccl_lab.ir import Builder, RedOp, Schedule, collectives, interpret

N = 3
R = np.arange(N)


def direct_all_reduce(in_place: bool) -> Schedule:
    b = Builder("all_reduce", N, algorithm="direct", in_place=in_place, scratch_blocks=N)
    for shift in range(1, N):
        b.put(rank=R, peer=(R + shift) % N, src=b.input[0], dst=b.scratch[R])
        b.wait(rank=R, peer=(R - shift) % N)
    b.flush(rank=R)
    for rank in range(N):
        b.reduce(rank=rank, dst=b.output[0], srcs=[b.input[0] if source == rank else b.scratch[source] for source in R])
    return b.build()


def get_all_to_all() -> Schedule:
    b = Builder("all_to_all", N, algorithm="get")
    b.copy(rank=R, src=b.input[R], dst=b.output[R])
    for shift in range(1, N):
        b.get(rank=R, peer=(R + shift) % N, src=b.input[R], dst=b.output[(R + shift) % N])
        b.signal(rank=R, peer=(R + shift) % N)
    for shift in range(1, N):
        b.wait(rank=R, peer=(R + shift) % N)
    return b.build()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("redop", RedOp.__members__)
@pytest.mark.parametrize("size", [0, 1, 5])
def test_all_reduce_equals_numpy(in_place: bool, redop: str, size: int) -> None:
    rng = np.random.default_rng(size)
    inputs = [rng.integers(-128, 128, size, dtype=np.int8) for _ in R]
    found = interpret(direct_all_reduce(in_place), inputs, redop=redop)
    expected = collectives.reference("all_reduce", inputs, redop=redop)
    for mine, goal in zip(found, expected, strict=True):
        assert mine.dtype == np.int8 and np.array_equal(mine, goal)


def test_inputs_are_left_alone() -> None:
    inputs = [np.arange(4.0) for _ in R]
    interpret(direct_all_reduce(True), inputs)
    assert all(np.array_equal(x, np.arange(4.0)) for x in inputs)


def test_all_to_all_by_get_and_avg_of_a_collective_that_does_not_reduce() -> None:
    inputs = [np.arange(6) + 10 * rank for rank in R]
    found = interpret(get_all_to_all(), inputs, redop="avg")
    for mine, goal in zip(found, collectives.reference("all_to_all", inputs), strict=True):
        assert np.array_equal(mine, goal)


def test_all_to_allv_with_empty_blocks() -> None:
    counts = np.array([[1, 0, 5], [2, 3, 0], [4, 6, 7]])
    b = Builder("all_to_allv", N, algorithm="direct")
    b.copy(rank=R, src=b.input[R], dst=b.output[R])
    for shift in range(1, N):
        b.put(rank=R, peer=(R + shift) % N, src=b.input[(R + shift) % N], dst=b.output[R])
        b.wait(rank=R, peer=(R - shift) % N)
    inputs = [np.arange(counts[rank].sum()) + 100 * rank for rank in R]
    found = interpret(b.build(), inputs, counts=counts)
    assert found[0].tolist() == [0, 100, 101, 200, 201, 202, 203]
    for mine, goal in zip(found, collectives.reference("all_to_allv", inputs, counts=counts), strict=True):
        assert np.array_equal(mine, goal)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sixteen_bits_accumulate_in_float32_and_round_once(dtype) -> None:
    big, small = (2048.0, 1.0) if dtype is np.float16 else (256.0, 1.0)
    parts = [np.array([value], dtype) for value in (big, small, small)]
    assert float(collectives.accumulate(parts, "sum")[0]) == big + 2
    stepwise = (parts[0] + parts[1]).astype(dtype) + parts[2]
    assert float(stepwise[0]) == big, "each step rounds to even: the wide sum must differ"
    assert collectives.accumulate(parts, "sum").dtype == parts[0].dtype
    inputs = [np.full(3, value, dtype) for value in (big, small, small)]
    assert interpret(direct_all_reduce(False), inputs)[0].tolist() == [big + 2] * 3


@pytest.mark.parametrize(
    ("dtype", "sums", "means"),
    [
        (np.int8, [-7, 7, -128, 127], [-2, 2, -42, 42]),
        (np.uint8, [7, 255, 0, 1], [2, 85, 0, 0]),
        (np.int64, [-7, -(2**63), 2**63 - 1, -1], [-2, -(2**63 // 3), (2**63 - 1) // 3, 0]),
        (np.float32, [1, 2, -1, 0], np.float32([1, 2, -1, 0]) / np.float32(3)),
    ],
)
def test_avg_divides_as_c_does(dtype, sums: list, means: list) -> None:
    found = collectives.finish(np.array(sums, dtype), "avg", 3)
    assert found.dtype == dtype and np.array_equal(found, np.array(means, dtype))


def test_integers_wrap_and_nan_wins() -> None:
    assert collectives.accumulate([np.array([100], np.int8)] * 2, "sum").tolist() == [-56]
    assert collectives.accumulate([np.array([2**62])] * 4, "sum").tolist() == [0]
    for redop in ("min", "max"):
        for parts in ([np.nan, 1.0], [1.0, np.nan]):
            assert np.isnan(collectives.accumulate([np.array([x], np.float32) for x in parts], redop)[0])


def test_errors() -> None:
    schedule = direct_all_reduce(False)
    with pytest.raises(ShapeError, match="2 inputs for 3 ranks"):
        interpret(schedule, [np.zeros(1)] * 2)
    with pytest.raises(ShapeError, match="input of rank 2: expected 4 elements") as found:
        interpret(schedule, [np.zeros(4), np.zeros(4), np.zeros(3)])
    assert found.value.rank == 2
    with pytest.raises(DtypeError, match="complex128"):
        interpret(schedule, [np.zeros(1, complex)] * 3)
    with pytest.raises(UsageError, match="'summ'.*Did you mean 'sum'"):
        interpret(schedule, [np.zeros(1)] * 3, redop="summ")
    with pytest.raises(DtypeError, match="bitwise"):
        interpret(schedule, [np.zeros(1)] * 3, redop="bor")
    b = Builder("barrier", 2, algorithm="x")
    b.wait(rank=0, peer=1)
    with pytest.raises(DeadlockError, match="0 of 1 signals") as dead:
        interpret(b.build(), [np.zeros(0)] * 2)
    assert dead.value.op_id == 0


def test_reference_of_rooted_collectives() -> None:
    inputs = [np.arange(3) + 10 * rank for rank in R]
    assert [x.tolist() for x in collectives.reference("scatter", inputs, root=1)] == [[10], [11], [12]]
    assert [x.size for x in collectives.reference("gather", inputs, root=1)] == [0, 9, 0]
    assert collectives.reference("send_recv", inputs, root=0, peer=2)[2].tolist() == [0, 1, 2]
    with pytest.raises(ShapeError, match="multiple of 3"):
        collectives.reference("reduce_scatter", [np.arange(4)] * 3)
