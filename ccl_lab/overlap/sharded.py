"""A linear layer whose weight is spread over the ranks of data parallelism, its exchanges hidden under its matmuls.

Is: forward gathers the weight's rows, own first, and computes the columns of the result as they arrive; backward gathers them again
under the input's gradient and scatters the weight's gradient to its owners, slice by slice. Is not: a module (data.py).
Invariants: every rank has its own input; a rank gets the sum over ranks of the gradient of the rows that it owns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ShapeError
from .attention import Sums
from .exchange import Shape, consume, produce
from .gradients import multiply
from .rows import split_rows
from .torch_needed import torch
from .workspace import how_of

Tensor = torch.Tensor


def sharded_linear(
    comm: Any,
    x: Tensor,
    weight: Tensor,
    *,
    schedule: Any = "auto",
    slices: int | None = None,
    sub_slices: int | None = None,
    rows: Sequence[int] | None = None,
) -> Tensor:
    """x @ gather(weight).T, shape [..., N]: x [..., K] of this rank; weight [rows[rank], K], the rows this rank owns.

    `rows`: rows of each rank (default: as many as this one's). Raises ShapeError, DtypeError, UsageError. Source: CommFuse, data
    parallelism: parameter all_gather with the own shard first, gradient reduce_scatter with the own shard last.
    """
    if weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise ShapeError(
            f"sharded_linear: expected x [..., K] and weight [rows, K], found {list(x.shape)} and {list(weight.shape)}."
        )
    given = (weight.shape[0],) * comm.size if rows is None else rows
    found = split_rows(given, sum(given), comm.size, "sharded_linear")
    if found[comm.rank] != weight.shape[0]:
        raise ShapeError(
            f"sharded_linear on rank {comm.rank}: rows says {found[comm.rank]} for this rank, weight has {weight.shape[0]}.",
            rank=comm.rank,
        )
    return _ShardedLinear.apply(x, weight, (comm, how_of(schedule, slices, sub_slices), found))


class _ShardedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, call: Any) -> Tensor:
        comm, how, rows = call
        x, weight = x.detach(), weight.detach()
        flat = x.reshape(-1, x.shape[-1])
        y = flat.new_empty((flat.shape[0], sum(rows)))

        def columns(lo: int, hi: int, tile: Tensor) -> None:
            torch.mm(flat, tile.t(), out=y[:, lo:hi])

        shape = Shape((weight.shape[0],) * comm.size, rows, max(rows))
        consume(comm, "all_gather_matmul", how, weight, shape, columns, cost=("columns", *flat.shape))
        ctx.call = comm, how, shape
        ctx.save_for_backward(x, weight)
        return y.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        comm, how, shape = ctx.call
        x, weight = ctx.saved_tensors
        flat, grads = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
        for_x = for_weight = None
        if ctx.needs_input_grad[0]:
            total = Sums(flat)

            def add(lo: int, hi: int, tile: Tensor) -> None:
                total.add(0, flat.shape[0], grads[:, lo:hi], tile)

            consume(
                comm, "all_gather_matmul", how, weight, shape, add, cost=("input", *flat.shape), again=total.clear
            )
            for_x = total.value().view(x.shape)
        if ctx.needs_input_grad[1]:

            def slice_of_gradient(lo: int, hi: int, target: Tensor, added: list[Tensor]) -> None:
                multiply(grads[:, lo:hi].t(), flat, target, added)

            back, cost = Shape(shape.take, shape.give, shape.most), ("gradient", *flat.shape)
            for_weight = produce(
                comm, "matmul_reduce_scatter", how, flat.shape[1], weight.dtype, back, slice_of_gradient, cost=cost
            )
        return for_x, for_weight, None


__all__ = ["sharded_linear"]
