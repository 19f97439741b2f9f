"""Collectives fused with the matmuls around them, as differentiable functions of torch tensors (CommFuse, arXiv 2604.24013).

Is: all_gather+matmul, matmul+reduce_scatter, matmul+all_to_all, all_to_all+matmul, query-split attention+projection, each under
any schedule of `overlap.plan`; backward is the mirror under the same one. Is not: a layer (layers.py) or a choice (tune.py).
Invariants: all ranks of `comm` call the same operator with the same shapes; results equal the unfused computation but for the
order of additions, which the schedule fixes: the same on every run.

Common arguments: `comm` a Communicator; `schedule` "auto" (measured and chosen at the first call of a shape), "sequential", "k_slice"
(`slices`), "ring" or "direct" (`sub_slices`), or a Choice of `overlap.choose`; `rows` the rows of each rank's block where they are unequal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import DtypeError, ShapeError
from .exchange import Shape, consume, flat_width, produce
from .gradients import Sum, multiply
from .rows import split_rows
from .torch_needed import torch
from .workspace import How, how_of

Tensor = torch.Tensor


def all_gather_matmul(
    comm: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    schedule: Any = "auto",
    slices: int | None = None,
    sub_slices: int | None = None,
    rows: Sequence[int] | None = None,
    save_gathered: bool = False,
) -> Tensor:
    """gather(x) @ weight + bias, shape [sum(rows), ..., N]: every rank's x, in the order of ranks, times this rank's weight.

    x: this rank's shard [rows[rank], ..., K] (default: all ranks have as many rows); weight: [K, N], any strides; bias: [N].
    float32, bfloat16 or float64. Backward gathers x once more, hidden under the weight's gradient; with `save_gathered` it keeps
    what was gathered instead (memory × ranks, no communication). Raises ShapeError, DtypeError, UsageError. Moves (R−1)/R of
    gather(x) per rank.
    """
    rows = _even(rows, x.shape[0], comm, "all_gather_matmul")
    _check(x, weight, "all_gather_matmul")
    shape = Shape((x.shape[0],) * comm.size, rows, max(rows))
    how = how_of(schedule, slices, sub_slices)
    return _AllGatherMatmul.apply(x, weight, bias, (comm, how, shape, save_gathered and torch.is_grad_enabled()))


def matmul_reduce_scatter(
    comm: Any,
    x: Tensor,
    weight: Tensor,
    *,
    schedule: Any = "auto",
    slices: int | None = None,
    sub_slices: int | None = None,
    rows: Sequence[int] | None = None,
) -> Tensor:
    """Rows of this rank of the sum over ranks of x @ weight, shape [rows[rank], ..., N].

    x: [sum(rows), ..., K] of this rank; weight: [K, N], any strides. `rows` default: split evenly, larger blocks first. Additions
    are fused into the matmul where the schedule allows it. Raises ShapeError, DtypeError, UsageError. Moves (R−1)/R of x @ weight.
    """
    _check(x, weight, "matmul_reduce_scatter")
    rows = split_rows(rows, x.shape[0], comm.size, "matmul_reduce_scatter")
    shape = Shape(rows, (rows[comm.rank],) * comm.size, max(rows))
    return _MatmulReduceScatter.apply(x, weight, (comm, how_of(schedule, slices, sub_slices), shape))


def matmul_all_to_all(
    comm: Any,
    x: Tensor,
    weight: Tensor,
    *,
    schedule: Any = "auto",
    slices: int | None = None,
    sub_slices: int | None = None,
    counts: Any = None,
) -> Tensor:
    """Block d of x @ weight goes to rank d; returns what came, by rank, shape [rows that came, ..., N].

    x: [rows, ..., K]; counts: [R, R] rows from rank s (first index) to d, the same on all ranks (default: equal blocks).
    """
    _check(x, weight, "matmul_all_to_all")
    shape = _pairs(counts, x.shape[0], comm, "matmul_all_to_all")
    return _MatmulAllToAll.apply(x, weight, (comm, how_of(schedule, slices, sub_slices), shape))


def all_to_all_matmul(
    comm: Any,
    x: Tensor,
    weight: Tensor,
    *,
    schedule: Any = "auto",
    slices: int | None = None,
    sub_slices: int | None = None,
    counts: Any = None,
) -> Tensor:
    """Block d of x goes to rank d; returns what came, by rank, times this rank's weight, shape [rows that came, ..., N].

    x: [rows, ..., K]; counts: [R, R] rows from rank s (first index) to d, the same on all ranks (default: equal blocks).
    """
    _check(x, weight, "all_to_all_matmul")
    shape = _pairs(counts, x.shape[0], comm, "all_to_all_matmul")
    how = how_of(schedule, slices, sub_slices)
    return _AllToAllMatmul.apply(x, weight, (comm, how, shape, torch.is_grad_enabled()))


class _AllGatherMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, call: Any) -> Tensor:
        comm, how, shape, save = call
        x, weight = x.detach(), weight.detach()
        y = x.new_empty((sum(shape.take), *x.shape[1:-1], weight.shape[1]))

        def tile_times_weight(lo: int, hi: int, tile: Tensor) -> None:
            multiply(tile.view(-1, weight.shape[0]), weight, y[lo:hi].view(-1, weight.shape[1]), bias=bias)

        save = save and ctx.needs_input_grad[1]
        gathered = consume(comm, "all_gather_matmul", how, x, shape, tile_times_weight, cost=_cost(weight), keep=save)
        ctx.call, ctx.saved_gathered, ctx.x_shape = (comm, how, shape), save, x.shape
        ctx.save_for_backward(gathered if save else x if ctx.needs_input_grad[1] else None, weight)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        comm, how, shape = ctx.call
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        for_x = for_weight = for_bias = None
        flat = grad.view(-1, weight.shape[1])
        total = Sum(weight) if ctx.needs_input_grad[1] else None
        if total and ctx.saved_gathered:
            total.add(x.reshape(-1, weight.shape[0]), flat)
        elif total:
            width = grad.shape[1:].numel() // weight.shape[1]

            def add(lo: int, hi: int, tile: Tensor) -> None:
                total.add(tile.view(-1, weight.shape[0]), flat[lo * width : hi * width])

            consume(comm, "all_gather_matmul", how, x, shape, add, cost=("weight", *weight.shape), again=total.clear)
        if ctx.needs_input_grad[0]:
            scattered = Shape(shape.take, shape.give, shape.most)
            for_x = _times_scattered(comm, "matmul_reduce_scatter", how, grad, weight.t(), scattered)
            for_x = for_x.view(ctx.x_shape)
        if ctx.needs_input_grad[2]:
            for_bias = flat.sum(0)
        if total:
            for_weight = total.value()
        return for_x, for_weight, for_bias, None


class _MatmulReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, call: Any) -> Tensor:
        comm, how, shape = call
        x, weight = x.detach().contiguous(), weight.detach()
        ctx.call = comm, how, shape
        ctx.save_for_backward(x, weight)
        return _times_scattered(comm, "matmul_reduce_scatter", how, x, weight, shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        comm, how, shape = ctx.call
        back = Shape(shape.take, shape.give, shape.most)
        return (*_gathered_back(ctx, "all_gather_matmul", comm, how, grad, back), None)


class _MatmulAllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, call: Any) -> Tensor:
        comm, how, shape = call
        x, weight = x.detach().contiguous(), weight.detach()
        ctx.call = comm, how, shape
        ctx.save_for_backward(x, weight)
        return _times_scattered(comm, "matmul_all_to_all", how, x, weight, shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        comm, how, shape = ctx.call
        back = Shape(shape.take, shape.give, shape.most)
        return (*_gathered_back(ctx, "all_to_all_matmul", comm, how, grad, back), None)


class _AllToAllMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, call: Any) -> Tensor:
        comm, how, shape, keep = call
        x, weight = x.detach(), weight.detach()
        y = x.new_empty((sum(shape.take), *x.shape[1:-1], weight.shape[1]))

        def tile_times_weight(lo: int, hi: int, tile: Tensor) -> None:
            multiply(tile.view(-1, weight.shape[0]), weight, y[lo:hi].view(-1, weight.shape[1]))

        keep = keep and ctx.needs_input_grad[1]
        came = consume(comm, "all_to_all_matmul", how, x, shape, tile_times_weight, cost=_cost(weight), keep=keep)
        ctx.call, ctx.x_shape = (comm, how, shape), x.shape
        ctx.save_for_backward(came, weight)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        comm, how, shape = ctx.call
        came, weight = ctx.saved_tensors
        grad = grad.contiguous()
        for_x = for_weight = None
        if ctx.needs_input_grad[0]:
            back = Shape(shape.take, shape.give, shape.most)
            for_x = _times_scattered(comm, "matmul_all_to_all", how, grad, weight.t(), back).view(ctx.x_shape)
        if ctx.needs_input_grad[1]:
            total = Sum(weight)
            total.add(came.reshape(-1, weight.shape[0]), grad.view(-1, weight.shape[1]))
            for_weight = total.value()
        return for_x, for_weight, None


def _times_scattered(comm: Any, operator: str, how: How, x: Tensor, weight: Tensor, shape: Shape) -> Tensor:
    """x @ weight, each block of rows to its rank; x: [rows, ..., K] contiguous."""
    inner, columns = weight.shape
    each = flat_width(x) // inner if inner else x.shape[1:-1].numel()

    def rows_times_weight(lo: int, hi: int, target: Tensor, added: list[Tensor]) -> None:
        rows = x[lo:hi].view((hi - lo) * each, inner)
        multiply(rows, weight, target.view(-1, columns), [other.reshape(-1, columns) for other in added])

    result = produce(comm, operator, how, each * columns, x.dtype, shape, rows_times_weight, cost=_cost(weight))
    return result.view(result.shape[0], *x.shape[1:-1], columns)


def _gathered_back(ctx: Any, operator: str, comm: Any, how: How, grad: Tensor, shape: Shape) -> tuple[Any, Any]:
    """Gradients of x and weight of an operator that gave x @ weight away: the results' gradients come back, both in one pass."""
    x, weight = ctx.saved_tensors
    inner, columns = weight.shape
    for_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
    total = Sum(weight) if ctx.needs_input_grad[1] else None

    def back(lo: int, hi: int, tile: Tensor) -> None:
        tile = tile.view(-1, columns)
        if for_x is not None:
            multiply(tile, weight.t(), for_x[lo:hi].view(-1, inner))
        if total:
            total.add(x[lo:hi].view(-1, inner), tile)

    if for_x is not None or total:
        cost = ("both", *weight.shape, for_x is None, total is None)
        consume(comm, operator, how, grad, shape, back, cost=cost, again=total.clear if total else None)
    return for_x, total.value() if total else None


def _cost(weight: Tensor) -> tuple[Any, ...]:
    return ("matmul", *weight.shape)


def _check(x: Tensor, weight: Tensor, what: str) -> None:
    if x.dim() < 2 or weight.dim() != 2 or x.shape[-1] != weight.shape[0]:
        raise ShapeError(
            f"{what}: expected x [rows, ..., K] and weight [K, N], found {list(x.shape)} and {list(weight.shape)}"
            f"{'; pass weight.t() of a torch.nn.Linear' if weight.dim() == 2 and x.shape[-1] == weight.shape[1] else ''}."
        )
    if x.dtype != weight.dtype:
        raise DtypeError(f"{what}: x is {x.dtype} and weight {weight.dtype}; expected one dtype.")


def _even(rows: Sequence[int] | None, mine: int, comm: Any, what: str) -> tuple[int, ...]:
    """Rows of each rank's shard, as given or all like this one. Raises ShapeError where this rank has others."""
    if rows is None:
        return (mine,) * comm.size
    found = split_rows(rows, sum(rows), comm.size, what)
    if found[comm.rank] != mine:
        raise ShapeError(
            f"{what} on rank {comm.rank}: rows says {found[comm.rank]} rows for this rank, x has {mine}.", rank=comm.rank
        )
    return found


def _pairs(counts: Any, total: int, comm: Any, what: str) -> Shape:
    size, rank = comm.size, comm.rank
    if counts is None:
        if total % size:
            raise ShapeError(
                f"{what} on rank {rank}: {total} rows are not {size} equal blocks; pass counts, [R, R] rows from rank to rank.",
                rank=rank,
            )
        return Shape((total // size,) * size, (total // size,) * size, total // size)
    table = [[int(each) for each in line] for line in counts]
    if len(table) != size or any(len(line) != size or min(line) < 0 for line in table) or sum(table[rank]) != total:
        raise ShapeError(
            f"counts of {what} on rank {rank}: expected {size} lines of {size} numbers, none negative, line {rank} adding up to "
            f"{total}; found {table if size <= 8 else f'{len(table)} lines'}.",
            rank=rank,
        )
    return Shape(tuple(table[rank]), tuple(line[rank] for line in table), max(map(max, table)))


__all__ = ["all_gather_matmul", "all_to_all_matmul", "matmul_all_to_all", "matmul_reduce_scatter"]
