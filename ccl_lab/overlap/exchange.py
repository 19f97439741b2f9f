"""Computation and one collective in one pass: what every operator is made of, without gradients.

Is: `consume` (a collective brings blocks of rows, a function computes on them as they arrive) and `produce` (a function
computes blocks of rows that a collective takes away), by any schedule. Is not: a matmul; the function says what is computed.
Invariants: the function runs on the calling thread, partition by partition in the schedule's order, on memory that the engine
sends from or received into: nothing is copied in between; rows of padding are never given to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .torch_needed import array_over, dtype_name, tensor_over, torch
from .tune import settled
from .workspace import How, Planned, Workspace, workspace_of

Tensor = torch.Tensor
Consumer = Callable[[int, int, Tensor], None]
Producer = Callable[[int, int, Tensor, list[Tensor]], None]


@dataclass(frozen=True)
class Shape:
    """Blocks of an exchange as this rank sees them: rows it gives to and gets from each rank, and the largest of any pair."""

    give: tuple[int, ...]
    take: tuple[int, ...]
    most: int


def consume(
    comm: Any,
    operator: str,
    how: How,
    x: Tensor,
    shape: Shape,
    function: Consumer,
    *,
    cost: tuple[Any, ...] = (),
    again: Callable[[], None] | None = None,
    keep: bool = False,
) -> Tensor | None:
    """Gives the rows of `x` [rows, ...], and calls function(lo, hi, tile): tile [hi - lo, width] are rows [lo, hi) of what came.

    operator: all_gather_matmul (`x` is this rank's block) or all_to_all_matmul (`x` has a block for each rank). Rows that came
    are numbered by rank they came from, `shape.take` of each. With `keep` returns all of them, [sum(take), width], in memory
    of the caller's. For "auto", `cost` says what the time of `function` depends on beside the shape, and `again` forgets what
    it did, since it is timed first. Cost: as `overlap.closed_form` says.
    """
    space, width, dtype = workspace_of(comm), flat_width(x), dtype_name(x.dtype, f"x of {operator}")
    how = settled(
        comm, operator, how, (shape.most, width, dtype, *cost), shape.most, shape.most * width * x.element_size(),
        lambda m: _probe_consumer(function, again, shape.take, width, x, m),
    )  # fmt: skip
    planned = space.planned(operator, how, shape.take, width, dtype, shape.most)
    schedule, block = planned.schedule, planned.padded * width
    out = (space.fresh if keep else _buffer(space, "output"))(comm.size * block, dtype)
    gathers = operator == "all_gather_matmul"
    sent = (shape.give[comm.rank],) if gathers else shape.give
    if schedule.in_place:  # the input is the output, or this rank's block of it
        source = out[comm.rank * block : (comm.rank + 1) * block] if gathers else out
        _fill(source, x, sent, planned.padded)
    else:
        source = _source(space, x, sent, planned.padded, dtype)

    def compute(partition: int, target: np.ndarray | None, sources: Sequence[np.ndarray]) -> None:
        with torch.no_grad():
            for operand, memory in zip(planned.partitions[partition].operands, sources, strict=True):
                tile = tensor_over(memory).view(operand.length, width)
                for lo, hi, at in operand.pieces:
                    function(lo, hi, tile[at : at + hi - lo])

    comm.run(schedule, source, out=out, compute=compute)
    return _packed(tensor_over(out).view(-1, width), shape.take, planned.padded) if keep else None


def produce(
    comm: Any,
    operator: str,
    how: How,
    width: int,
    dtype: torch.dtype,
    shape: Shape,
    function: Producer,
    *,
    cost: tuple[Any, ...] = (),
    again: Callable[[], None] | None = None,
) -> Tensor:
    """Calls function(lo, hi, target, added) for rows [lo, hi) of what this rank computes, numbered by the rank they go to.

    It must write the rows, plus `added[0]` plus `added[1]` …, to `target` [hi - lo, width], which may be added[0]. operator:
    matmul_reduce_scatter, attention_projection (returns the sum of all ranks' rows for this rank, [give[rank], width]) or
    matmul_all_to_all (returns what came from each rank, [sum(take), width]); in memory of the caller's. `cost`, `again`: as of `consume`.
    """
    space, name = workspace_of(comm), dtype_name(dtype, operator)
    how = settled(
        comm, operator, how, (shape.most, width, name, *cost), shape.most, shape.most * width * dtype.itemsize,
        lambda m: _probe_producer(function, again, shape.give, width, dtype, m),
    )  # fmt: skip
    planned = space.planned(operator, how, shape.give, width, name, shape.most)
    schedule, block = planned.schedule, planned.padded * width
    scatters = operator != "matmul_all_to_all"
    blocks = 1 if scatters else comm.size
    if schedule.in_place:
        source = space.fresh(comm.size * block, name)
        out = source[comm.rank * block : (comm.rank + 1) * block] if scatters else source
    else:
        source, out = space.buffer("input", comm.size * block, name), space.fresh(blocks * block, name)

    def compute(partition: int, target: np.ndarray | None, sources: Sequence[np.ndarray]) -> None:
        operand = planned.partitions[partition].operands[0]
        memory = tensor_over(target).view(operand.length, width)  # type: ignore[arg-type]
        added = [tensor_over(each).view(operand.length, width) for each in sources]
        with torch.no_grad():
            for lo, hi, at in operand.pieces:
                end = at + hi - lo
                function(lo, hi, memory[at:end], [each[at:end] for each in added])

    comm.run(schedule, source, out=out, compute=compute)
    rows = (shape.give[comm.rank],) if scatters else shape.take
    return _packed(tensor_over(out).view(-1, width), rows, planned.padded)


def _probe_consumer(
    function: Consumer, again: Callable[[], None] | None, rows: Sequence[int], width: int, x: Tensor, m: int
) -> None:
    """All blocks of this rank, each in `m` pieces, on rows of zeros."""
    tile = x.new_zeros((max(rows), width))
    _each_piece(rows, m, lambda lo, hi: function(lo, hi, tile[: hi - lo]))
    if again is not None:
        again()


def _probe_producer(
    function: Producer, again: Callable[[], None] | None, rows: Sequence[int], width: int, dtype: torch.dtype,
    m: int,
) -> None:  # fmt: skip
    target = torch.zeros((max(rows), width), dtype=dtype)
    _each_piece(rows, m, lambda lo, hi: function(lo, hi, target[: hi - lo], []))
    if again is not None:
        again()


def _each_piece(rows: Sequence[int], m: int, work: Callable[[int, int], None]) -> None:
    lo = 0
    with torch.no_grad():
        for each in rows:
            for j in range(m):
                first, last = lo + each * j // m, lo + each * (j + 1) // m
                if last > first:
                    work(first, last)
            lo += each


def _buffer(space: Workspace, role: str) -> Callable[[int, str], np.ndarray]:
    return lambda elements, dtype: space.buffer(role, elements, dtype)


def _source(space: Workspace, x: Tensor, rows: Sequence[int], padded: int, dtype: str) -> np.ndarray:
    """Registered memory with the blocks of `x`: x itself where it is that already, else a copy."""
    elements = len(rows) * padded * flat_width(x)
    if x.is_contiguous() and x.numel() == elements and space.holds(x.data_ptr(), x.numel() * x.element_size()):
        return array_over(x)
    source = space.buffer("input", elements, dtype)
    _fill(source, x, rows, padded)
    return source


def _fill(memory: np.ndarray, x: Tensor, rows: Sequence[int], padded: int) -> None:
    target = tensor_over(memory).view(len(rows), padded, flat_width(x))
    with torch.no_grad():
        if all(each == padded for each in rows):
            target.view(x.shape).copy_(x)
            return
        for block, part in zip(target, x.split(list(rows)), strict=True):
            block[: len(part)].view(part.shape).copy_(part)


def _packed(memory: Tensor, rows: Sequence[int], padded: int) -> Tensor:
    """The real rows of padded blocks: a view where nothing, or only the end, is padding."""
    if all(each == padded for each in rows[:-1]):
        return memory[: sum(rows)]
    return torch.cat([block[:each] for block, each in zip(memory.view(len(rows), padded, -1), rows, strict=True)])


def flat_width(x: Tensor) -> int:
    """Elements of x[0]."""
    return math.prod(x.shape[1:])


__all__ = ["Consumer", "Planned", "Producer", "Shape", "consume", "flat_width", "produce"]
