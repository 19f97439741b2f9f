"""Devices that compute, as plain data: durations in all their forms, the way to the ranks, where partitions lie."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

import ccl_lab as ccl
from ccl_lab.engine.compute import Partitions, check_device, from_dict
from ccl_lab.errors import ShapeError, UsageError
from ccl_lab.ir import Builder, Schedule


def schedule(n: int = 2, parts: int = 2, in_place: bool = False) -> Schedule:
    b = Builder("reduce_scatter", n, algorithm="test", channels=2, parts=parts, scratch_blocks=1, in_place=in_place)
    r = np.arange(n)
    for part in range(parts):
        b.compute(rank=r, arg=part, reads=[b.scratch[part]])
        b.compute(rank=r, arg=parts + part, produces=b.input[r * parts + part], adds=[b.scratch[part]], dst=b.output[part])
    b.compute(rank=r, arg=9)
    return b.build()


def test_durations_are_nanoseconds_by_rank_and_partition() -> None:
    one = ccl.Emulated("5us").table(schedule())
    assert one.shape == (2, 10) and (one == 5000).all()
    assert (ccl.Emulated(1499).table(schedule()) == 1).all() and (ccl.Emulated(1500).table(schedule()) == 2).all()
    each = [f"{i}ms" for i in range(12)]  # more than there are partitions
    assert (ccl.Emulated(each).table(schedule()) == np.arange(10) * 1_000_000).all()
    rows = ccl.Emulated([each, [1000] * 12]).table(schedule())
    assert (rows[0] == np.arange(10) * 1_000_000).all() and (rows[1] == 1).all()
    assert (ccl.Emulated(np.full((2, 10), 3000)).table(schedule()) == 3).all()
    empty = ccl.plan("all_reduce", 2, "1KiB")
    assert ccl.Emulated("5us").table(empty).shape == (2, 0) and ccl.Emulated([]).table(empty).shape == (2, 0)


@pytest.mark.parametrize("wrong", [-1, 1.5, [0.5], True, None, {"a": 1}, [[[1]]], [1, [2]], ["1us", None], 1 << 61, "fast"])
def test_what_is_no_duration_is_refused(wrong: object) -> None:
    with pytest.raises(UsageError):
        ccl.Emulated(wrong).table(schedule())


def test_durations_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match="durations of 9 partitions: the schedule has 10"):
        ccl.Emulated([1] * 9).table(schedule())
    with pytest.raises(ShapeError, match="durations of 3 ranks"):
        ccl.Emulated([[1] * 10] * 3).table(schedule())


def test_devices_are_plain_data() -> None:
    for device in (ccl.Emulated("5us"), ccl.Emulated([[1, "2us"]]), ccl.Matmul(2, 3, 4, "bfloat16")):
        assert pickle.loads(pickle.dumps(device)) == device
        sent = from_dict(json.loads(json.dumps(device.to_dict())))
        assert sent.to_dict() == device.to_dict()
    assert ccl.Matmul(2, 3, 4) == ccl.Matmul(2, 3, 4, "float32")


def test_a_world_takes_devices_only() -> None:
    with pytest.raises(UsageError, match="has 10 compute ops: say who does them, compute=Emulated"):
        check_device(schedule(), None)
    with pytest.raises(UsageError, match="other processes"):
        check_device(schedule(), print)
    check_device(ccl.plan("all_reduce", 2, "1KiB"), None)
    check_device(schedule(), ccl.Matmul(1, 1, 1))


@pytest.mark.parametrize("in_place", [False, True])
def test_partitions_are_views_of_what_is_sent(in_place: bool) -> None:
    made = schedule(in_place=in_place)
    layout = made.layout(7, dtype="float32")  # parts of 3 and 4 elements
    table = Partitions(made, layout, 1)
    mine = [op for op in np.flatnonzero(made.ops.kind == ccl.Kind.compute) if made.ops.rank[op] == 1]
    places = [table.places(int(op)) for op in mine]
    out = (lambda lo, hi: (0, slice(7 + lo, 7 + hi))) if in_place else (lambda lo, hi: (1, slice(lo, hi)))
    assert places == [
        (0, None, [(2, slice(0, 3))]),
        (2, out(0, 3), [(2, slice(0, 3))]),
        (1, None, [(2, slice(3, 7))]),
        (3, out(3, 7), [(2, slice(3, 7))]),
        (9, None, []),
    ]
