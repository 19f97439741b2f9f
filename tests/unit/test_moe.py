"""Where experts are, what a row looks like, and which nodes can dedup: the parts of moe.py that need no ranks."""

from __future__ import annotations

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import ccl_lab as ccl
from ccl_lab.engine.moe import MoE, placement_of, row_type


def test_experts_lie_in_equal_runs_also_where_there_are_fewer_than_ranks():
    assert placement_of(8, [0, 0, 1, 1]).owner.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert placement_of(7, [0, 0, 0]).owner.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert placement_of(2, [0, 0, 1, 1]).owner.tolist() == [0, 2]


def test_bitmaps_say_who_in_a_node_wants_a_token():
    where = placement_of(8, [0, 1, 0, 1])  # ranks of a node need not be neighbours
    assert where.local_of.tolist() == [0, 0, 1, 1] and where.ranks_of(1).tolist() == [1, 3]
    wanted = where.destinations(np.array([[0, 1], [2, 7], [-1, 4], [-1, -1]]))
    assert wanted.tolist() == [[True, False, False, False], [False, True, False, True], [False, False, True, False], [False] * 4]
    assert where.bitmaps(wanted).tolist() == [[1, 0], [0, 3], [2, 0], [0, 0]]


@pytest.mark.parametrize("hidden, dtype, k", [(5, np.float32, 3), (1, ml_dtypes.bfloat16, 1), (7, np.float64, 8)])
def test_fields_of_neighbouring_rows_are_aligned(hidden, dtype, k):
    row = row_type(hidden, np.dtype(dtype), k)
    assert row.itemsize % 8 == 0 and row["token"].shape == (hidden,)
    rows = np.zeros(3, row)
    assert all(rows[name].flags.aligned for name in row.names)
    assert sum(row[name].itemsize for name in row.names) <= row.itemsize < hidden * np.dtype(dtype).itemsize + 8 * k + 24


def test_dedup_needs_as_many_ranks_on_every_node():
    def dedup(node_of: list[int], wanted: bool | None) -> bool:
        return MoE._dedup(SimpleNamespace(placement=placement_of(4, node_of)), wanted)  # type: ignore[arg-type]

    assert dedup([0, 0, 1, 1], None) and not dedup([0, 0], None) and not dedup([0, 0], True) and not dedup([0, 0, 1], None)
    assert not dedup([0, 0, 1, 1], False)
    with pytest.raises(ccl.UnsupportedError, match=r"nodes have \[2, 1\] ranks"):
        dedup([0, 0, 1], True)
