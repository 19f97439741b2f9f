"""What the arrays of one rank say about a collective: the size of the message, and whether they fit.

Is: arithmetic on sizes with named errors. Is not: a plan. Invariant: every rank gets the same size of message, though some
hold only a block of it: ranks must plan the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arguments import named, whole
from ..errors import ShapeError, UsageError
from ..ir import Buffer, RedOp, Schedule, collectives
from ..ir.layout import Layout

Array = np.ndarray | None


def blocked(array: np.ndarray, rank: int, size: int) -> np.ndarray:
    """`array`, which has a block for each rank; ShapeError otherwise."""
    if array.ndim == 0 or array.shape[0] != size:
        raise ShapeError(f"x on rank {rank}: expected shape [{size}, ...], one block per rank, found {array.shape}.", rank=rank)
    return array


def other(peer: int, rank: int, size: int) -> int:
    """`peer`, which is another rank; UsageError otherwise."""
    if whole(peer, f"peer of rank {rank}:", 0, size - 1) == rank:
        raise UsageError(f"peer {peer} of rank {rank}: expected another rank from 0 to {size - 1}.", rank=rank)
    return peer


def check_call(root: Any, op: Any, rank: int, size: int) -> None:
    """UsageError where `root` is no rank, or `op` no reduction."""
    whole(root, f"root of a collective on rank {rank}:", 0, size - 1)
    named(op, "reduction", RedOp.__members__)


def overwrites_input(schedule: Schedule) -> bool:
    """True where a run leaves another INPUT than it found."""
    ops = schedule.ops
    return bool(schedule.in_place or (ops.produces() & (ops.dst_buf == Buffer.input)).any())


def check_inputs(layout: Layout, inputs: list[np.ndarray], repeat: int) -> None:
    """UsageError or ShapeError unless `inputs`, by rank, can be run `repeat` times."""
    if repeat > 1 and overwrites_input(layout.schedule):
        raise UsageError("repeat > 1 with inputs in place: the first run overwrites them; run again with fresh ones.")
    for rank, array in enumerate(inputs):
        want = layout.elements(Buffer.input, rank)
        fits = want == 0 or array.dtype == collectives.numpy_dtype(layout.dtype)
        if array.ndim != 1 or array.size != want or not fits:
            raise ShapeError(
                f"input of rank {rank}: expected {want} elements of {layout.dtype} in one dimension, "
                f"found {array.dtype} of shape {array.shape}.",
                rank=rank,
            )


def message_nbytes(
    collective: str, rank: int, size: int, source: Array, target: Array, *, dtype: str, root: int, peer: int, counts: Array
) -> int:
    """The bytes of the message as all ranks see it."""
    if counts is not None:
        return int(counts.sum()) * collectives.itemsize(dtype) // size
    shape = collectives.blocks(collective, size, root, peer)[rank]
    block = _block(shape, source, target)
    return block * collectives.itemsize(dtype) * collectives.message_blocks(collective, size)


def _block(shape: np.ndarray, source: Array, target: Array) -> int:
    """Elements per block that this rank's arrays say; `shape`: its blocks of INPUT and OUTPUT."""
    pairs = ((source, int(shape[0])), (target, int(shape[1])))
    return next((array.size // blocks for array, blocks in pairs if array is not None and blocks), 0)


def layout_of(schedule: Schedule, rank: int, source: Array, target: Array, counts: Any) -> Layout:
    """The schedule at the size of these arrays. Raises ShapeError where one does not fit, or their types differ."""
    shape = collectives.blocks(schedule.collective, schedule.n_ranks, schedule.root, schedule.peer)[rank]
    some = source if source is not None else target
    count = 0 if counts is not None else _block(shape, source, target)
    layout = Layout(
        schedule, count, collectives.dtype_name(some.dtype) if some is not None else "uint8", counts
    )
    for name, buf, array in (("x", 0, source), ("out", 1, target)):
        want, found = layout.elements(buf, rank), 0 if array is None else array.size
        if want != found:
            raise ShapeError(
                f"{name} of {schedule.collective} on rank {rank}: expected {want} elements, found {found}.", rank=rank
            )
    if source is not None and target is not None and source.dtype != target.dtype:
        raise ShapeError(
            f"out of {schedule.collective} on rank {rank}: expected {source.dtype} as x, found {target.dtype}.", rank=rank
        )
    _check_overlap(schedule, rank, source, target)
    return layout


def _check_overlap(schedule: Schedule, rank: int, source: Array, target: Array) -> None:
    """In place means block for block: the same memory, or the rank's own block of the larger buffer."""
    if source is None or target is None or not (source.nbytes and target.nbytes):
        return
    shift = target.ctypes.data - source.ctypes.data
    if shift >= source.nbytes or -shift >= target.nbytes:
        return
    allowed = {
        "all_gather": -rank * source.nbytes,
        "gather": -rank * source.nbytes,
        "reduce_scatter": rank * target.nbytes,
        "scatter": rank * target.nbytes,
    }.get(schedule.collective, 0)
    if shift != allowed:
        raise ShapeError(
            f"x and out of {schedule.collective} on rank {rank} overlap: expected out to begin {allowed} bytes after x, as in "
            f"place, or elsewhere; found {shift} bytes. Pass an out of its own, or x.copy().",
            rank=rank,
        )
