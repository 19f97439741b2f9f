"""Where chunks lie: parts of uneven blocks, buffers of every collective, aliasing, all_to_allv."""

from __future__ import annotations

import numpy as np
import pytest

from ccl_lab.errors import ShapeError, UsageError
from ccl_lab.ir import Buffer, Builder, Collective, Schedule, collectives


def schedule_of(collective: str, n: int, **options) -> Schedule:
    return Builder(collective, n, algorithm="x", **options).build()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 1000])
@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_parts_tile_a_block(count: int, parts: int) -> None:
    layout = schedule_of("all_gather", 3, parts=parts).layout(count)
    offsets = layout.offset(Buffer.output, 0, np.arange(3 * parts + 1))
    assert offsets[::parts].tolist() == [0, count, 2 * count, 3 * count]
    sizes = np.diff(offsets)
    assert sizes.sum() == 3 * count and sizes.min() >= count // parts and sizes.max() <= -(-count // parts)
    assert np.array_equal(sizes[:parts], sizes[parts : 2 * parts])


BLOCKS = {
    "all_reduce": ([1, 1, 1], [1, 1, 1]), "all_gather": ([1, 1, 1], [3, 3, 3]), "reduce_scatter": ([3, 3, 3], [1, 1, 1]),
    "broadcast": ([0, 1, 0], [1, 1, 1]), "reduce": ([1, 1, 1], [0, 1, 0]), "gather": ([1, 1, 1], [0, 3, 0]),
    "scatter": ([0, 3, 0], [1, 1, 1]), "all_to_all": ([3, 3, 3], [3, 3, 3]), "all_to_allv": ([3, 3, 3], [3, 3, 3]),
    "send_recv": ([0, 1, 0], [0, 0, 1]), "barrier": ([0, 0, 0], [0, 0, 0]),
}  # fmt: skip


@pytest.mark.parametrize("collective", Collective.__members__)
def test_buffers_of_every_collective(collective: str) -> None:
    layout = schedule_of(collective, 3, root=1, peer=2, scratch_blocks=0).layout(5, dtype="int16")
    ins, outs = BLOCKS[collective]
    for rank in range(3):
        assert layout.elements(Buffer.input, rank) == 5 * ins[rank]
        assert layout.nbytes(Buffer.output, rank) == 10 * outs[rank]
        assert len(collectives.expected(collective, 3, rank, 1, 2)) == outs[rank]


def test_message_size_is_that_of_the_larger_buffer_rounded_down() -> None:
    assert schedule_of("all_gather", 4).layout(nbytes=1000, dtype="float32").count == 62
    assert schedule_of("all_gather", 4).layout(nbytes="1KiB").message_nbytes() == 1024
    assert schedule_of("all_reduce", 4).layout(nbytes=7, dtype="float64").count == 0
    with pytest.raises(UsageError, match="one of them"):
        schedule_of("all_reduce", 4).layout(1, nbytes=4)
    with pytest.raises(ShapeError, match="count -1: expected a whole number, 0 to"):
        schedule_of("all_reduce", 4).layout(-1)
    with pytest.raises(UsageError, match="negative"):
        schedule_of("all_reduce", 4).layout(nbytes=-1)


@pytest.mark.parametrize(
    ("collective", "rank", "buf", "found"),
    [
        ("all_reduce", 0, Buffer.input, (Buffer.output, 3)), ("all_gather", 2, Buffer.input, (Buffer.output, 23)),
        ("reduce_scatter", 2, Buffer.output, (Buffer.input, 23)), ("gather", 1, Buffer.input, (Buffer.output, 13)),
        ("gather", 0, Buffer.input, (Buffer.input, 3)), ("scatter", 1, Buffer.output, (Buffer.input, 13)),
        ("scatter", 0, Buffer.output, (Buffer.output, 3)), ("all_to_all", 0, Buffer.input, (Buffer.output, 3)),
        ("broadcast", 0, Buffer.output, (Buffer.output, 3)), ("broadcast", 1, Buffer.input, (Buffer.output, 3)),
    ],
)  # fmt: skip
def test_in_place_buffers_share_memory(collective: str, rank: int, buf: Buffer, found: tuple[int, int]) -> None:
    layout = schedule_of(collective, 3, root=1, parts=3, in_place=True).layout(10)
    assert layout.resolve(buf, rank, 1) == found
    out_of_place = schedule_of(collective, 3, root=1, parts=3).layout(10)
    assert out_of_place.resolve(buf, rank, 1) == (buf, 3)


COUNTS = np.array([[1, 0, 5], [2, 3, 0], [4, 6, 7]])


def test_blocks_of_all_to_allv() -> None:
    pairs = np.array([[[0, 2], [1, 0]], [[2, 1], [0, 0]], [[2, 2], [1, 2]]])
    schedule = schedule_of("all_to_allv", 3, parts=2, scratch_blocks=2, scratch_pairs=pairs)
    layout = schedule.layout(counts=COUNTS)
    assert layout.offset(Buffer.input, 0, np.arange(7)).tolist() == [0, 0, 1, 1, 1, 3, 6]
    assert layout.offset(Buffer.output, 2, np.arange(7)).tolist() == [0, 2, 5, 5, 5, 8, 12]
    assert layout.offset(Buffer.scratch, 0, np.arange(5)).tolist() == [0, 2, 5, 6, 7]
    assert [layout.elements(Buffer.output, r) for r in range(3)] == COUNTS.sum(axis=0).tolist()
    mixed = layout.offset(np.array([0, 1, 2]), np.array([0, 2, 0]), np.array([6, 6, 4]))
    assert mixed.tolist() == [6, 12, 7]
    assert layout.message_nbytes() == 28 * 4 // 3


@pytest.mark.parametrize(
    ("counts", "words"),
    [(COUNTS[:2], "found shape (2, 3)"), (-COUNTS, "negative entries"), (np.arange(3), "found shape (3,)")],
)
def test_counts_are_checked(counts: np.ndarray, words: str) -> None:
    with pytest.raises(ShapeError) as found:
        schedule_of("all_to_allv", 3).layout(counts=counts)
    assert words in str(found.value)


def test_counts_in_place_must_be_symmetric() -> None:
    with pytest.raises(ShapeError, match="symmetric"):
        schedule_of("all_to_allv", 3, in_place=True).layout(counts=COUNTS)
    schedule_of("all_to_allv", 3, in_place=True).layout(counts=COUNTS + COUNTS.T)


def test_bytes_of_ops() -> None:
    b = Builder("all_gather", 2, algorithm="x", parts=2)
    b.put(rank=0, peer=1, src=b.input[0:2], dst=b.output[2:4])
    b.wait(rank=1, peer=0)
    b.copy(rank=1, src=b.input[1], dst=b.output[1])
    assert b.build().layout(5, dtype="float64").op_bytes().tolist() == [40, 0, 24]
