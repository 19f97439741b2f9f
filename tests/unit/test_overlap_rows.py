"""Rows of partitions: padding is never computed on; and what is said where torch is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ccl_lab import overlap
from ccl_lab.errors import ShapeError
from ccl_lab.overlap.rows import Piece, padded_rows, partitions_of, pieces, split_rows


def test_pieces_leave_padding_out_and_join_what_is_next_to_each_other():
    assert pieces(0, 12, 4, (4, 4, 4)) == (Piece(0, 12, 0),)
    assert pieces(0, 12, 4, (3, 4, 2)) == (Piece(0, 3, 0), Piece(3, 9, 4))
    assert pieces(2, 6, 4, (3, 4, 2)) == (Piece(2, 3, 0), Piece(3, 5, 2))
    assert pieces(8, 12, 4, (4, 4, 0)) == ()


@pytest.mark.parametrize("rows, parts, wanted", [((3, 4), 1, 4), ((3, 4), 3, 6), ((0, 0), 2, 2), ((8,), 4, 8)])
def test_padded_rows(rows, parts, wanted):
    assert padded_rows(rows, parts) == wanted


@pytest.mark.parametrize("operator", overlap.OPERATORS)
def test_partitions_cover_every_real_row_once(operator):
    rows = (5, 3, 6)
    for options in ({"schedule": "sequential"}, {"schedule": "k_slice", "slices": 4}, {"schedule": "direct", "sub_slices": 2}):
        name = options.pop("schedule")
        schedule = overlap.plan(operator, name, 3, in_place=operator == "all_gather_matmul", **options)
        padded = padded_rows(rows, schedule.parts)
        for rank in range(3):
            found = [
                row
                for partition in partitions_of(schedule, rank, padded, rows).values()
                for operand in partition.operands
                for piece in operand.pieces
                for row in range(piece.lo, piece.hi)
            ]
            assert sorted(found) == list(range(sum(rows))), (name, rank)


def test_split_rows():
    assert split_rows(None, 7, 3, "x") == (3, 2, 2)
    assert split_rows([1, 0, 6], 7, 3, "x") == (1, 0, 6)
    with pytest.raises(ShapeError, match="add up to its 7 rows"):
        split_rows([1, 2, 3], 7, 3, "x")


def test_without_torch_the_operators_say_what_to_install_and_schedules_work():
    body = """
import sys
sys.modules["torch"] = None
from ccl_lab import overlap
from ccl_lab.errors import UnsupportedError
overlap.plan("matmul_reduce_scatter", "ring", 4)
for name in ("all_gather_matmul", "parallelize"):
    try:
        getattr(overlap, name)
        raise SystemExit("no error")
    except UnsupportedError as error:
        assert 'pip install "ccl-lab[torch]"' in str(error), error
"""
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout


def test_public_names_of_the_torch_part_load():
    for name in overlap.WITH_TORCH:
        assert getattr(overlap, name).__doc__, name
    with pytest.raises(AttributeError, match="all_gather_matmul"):
        _ = overlap.all_gather_matmull
