"""Attention by query slices whose results leave while the next slice is computed, as differentiable functions of torch tensors.

Is: attention + output projection + reduce to owners (heads spread over ranks), and Ulysses attention (the output's all_to_all under
the attention). Is not: a module (layers.py). Invariants: positions first ([S, B, heads, D]), so that a slice of queries is whole rows;
backward works through the very graph of each slice, as its gradient arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ShapeError
from .exchange import Shape, consume, flat_width, produce
from .gradients import Sum, multiply
from .rows import split_rows
from .torch_needed import torch
from .workspace import how_of

Tensor = torch.Tensor


def attention_projection(
    comm: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weight: Tensor,
    *,
    causal: bool = False,
    schedule: Any = "auto",
    slices: int | None = None,
    sub_slices: int | None = None,
    rows: Sequence[int] | None = None,
) -> Tensor:
    """Rows of this rank of the sum over ranks of attention(q, k, v) @ weight, shape [rows[rank], B, E].

    q, k, v: [S, B, H, D], this rank's heads at all positions (k, v may have fewer heads, a divisor of H); weight: [H*D, E], its rows of
    the output projection. `rows`: positions of each rank (default: even). Raises ShapeError, DtypeError, UsageError. Source: CommFuse,
    query-split attention.
    """
    heads = _check(q, k, v, "attention_projection")
    if weight.dim() != 2 or weight.shape[0] != heads * q.shape[3]:
        raise ShapeError(
            f"attention_projection: expected weight [{heads} heads * {q.shape[3]}, E], found {list(weight.shape)}."
        )
    rows = split_rows(rows, q.shape[0], comm.size, "attention_projection")
    shape = Shape(rows, (rows[comm.rank],) * comm.size, max(rows))
    how = how_of(schedule, slices, sub_slices)
    return _AttentionProjection.apply(q, k, v, weight, (comm, how, shape, causal, torch.is_grad_enabled()))


def attention_all_to_all(
    comm: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    schedule: Any = "auto",
    slices: int | None = None,
    sub_slices: int | None = None,
    rows: Sequence[int] | None = None,
) -> Tensor:
    """Attention of this rank's heads; each position's result goes to the rank that owns it: [rows[rank], B, R, H, D].

    q, k, v: [S, B, H, D] as of `attention_projection`. The second half of Ulysses attention.
    """
    _check(q, k, v, "attention_all_to_all")
    rows = split_rows(rows, q.shape[0], comm.size, "attention_all_to_all")
    shape = Shape(rows, (rows[comm.rank],) * comm.size, max(rows))
    came = _AttentionAllToAll.apply(q, k, v, (comm, how_of(schedule, slices, sub_slices), shape, causal, torch.is_grad_enabled()))
    return came.view(comm.size, rows[comm.rank], *q.shape[1:]).permute(1, 2, 0, 3, 4)


def heads_all_to_all(
    comm: Any,
    x: Tensor,
    weight: Tensor,
    *,
    schedule: Any = "auto",
    slices: int | None = None,
    sub_slices: int | None = None,
    rows: Sequence[int] | None = None,
) -> Tensor:
    """x @ weight where column block d goes to rank d: [S, B, N/R], this rank's columns at all positions.

    x: [rows[rank], B, K], this rank's positions; weight: [K, N], the same on all ranks, its columns in R equal blocks. The first half of
    Ulysses attention, with the projection that comes before it.
    """
    if x.dim() != 3 or weight.dim() != 2 or x.shape[-1] != weight.shape[0] or weight.shape[1] % comm.size:
        raise ShapeError(
            f"heads_all_to_all: expected x [rows, B, K] and weight [K, N] with N a multiple of {comm.size} ranks, found "
            f"{list(x.shape)} and {list(weight.shape)}."
        )
    rows = (x.shape[0],) * comm.size if rows is None else split_rows(rows, sum(rows), comm.size, "heads_all_to_all")
    shape = Shape((x.shape[0],) * comm.size, rows, max(rows))
    return _HeadsAllToAll.apply(x, weight, (comm, how_of(schedule, slices, sub_slices), shape))


class _Slices:
    """Attention slice by slice: forward keeps each slice's graph, backward goes through it when all its rows have arrived."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, keep: bool) -> None:
        self._q, self._causal, self._keep = q.detach(), causal, keep
        self.k, self.v = (each.detach().requires_grad_(keep) for each in (k, v))
        self._kept: list[tuple[int, int, Tensor, Tensor]] = []
        self._missing: list[int] = []

    def clear(self) -> None:
        self._kept.clear()

    def forward(self, lo: int, hi: int) -> Tensor:
        """Results of queries [lo, hi): [hi - lo, B, H*D]."""
        with torch.set_grad_enabled(self._keep):
            q = self._q[lo:hi].requires_grad_(self._keep)
            result = attention(q, self.k, self.v, lo, self._causal)
        if self._keep:
            self._kept.append((lo, hi, q, result))
        return result.detach()

    def result(self) -> Tensor:
        """What all slices gave, in the order of positions."""
        return torch.cat([each[3].detach() for each in sorted(self._kept, key=lambda kept: kept[0])])

    def begin(self, like: Tensor) -> None:
        """Before the gradients of the results, shape of `like` [S, B, H*D], come in."""
        self._grad = torch.empty_like(like)
        self.grads = tuple(torch.zeros_like(each) for each in (self._q, self.k.detach(), self.v.detach()))
        self._missing = [hi - lo for lo, hi, _, _ in self._kept]

    def backward(self, lo: int, hi: int, grad: Tensor) -> None:
        """The gradient of the results of [lo, hi) has come."""
        self._grad[lo:hi] = grad
        for at, (first, last, q, result) in enumerate(self._kept):
            overlap = min(hi, last) - max(lo, first)
            if overlap <= 0:
                continue
            self._missing[at] -= overlap
            if self._missing[at] == 0:
                with torch.enable_grad():
                    found = torch.autograd.grad(
                        result, (q, self.k, self.v), self._grad[first:last], retain_graph=True, allow_unused=True
                    )
                self.grads[0][first:last] = found[0]
                for total, each in zip(self.grads[1:], found[1:], strict=True):
                    if each is not None:
                        total += each


def attention(q: Tensor, k: Tensor, v: Tensor, first: int, causal: bool) -> Tensor:
    """Attention of queries at positions `first`…, [s, B, H, D], to keys and values [S, B, heads, D]: [s, B, H*D]."""
    mask, last = None, first + q.shape[0]
    if causal:
        k, v = k[:last], v[:last]
        if first:
            mask = torch.arange(last) <= torch.arange(first, last)[:, None]
    queries, keys, values = (each.permute(1, 2, 0, 3) for each in (q, k, v))
    result = torch.nn.functional.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, is_causal=causal and not first, enable_gqa=k.shape[2] != q.shape[2]
    )
    return result.permute(2, 0, 1, 3).flatten(2)


class _AttentionProjection(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, weight: Tensor, call: Any) -> Tensor:
        comm, how, shape, causal, keep = call
        weight = weight.detach()
        slices = _Slices(q, k, v, causal, keep and any(ctx.needs_input_grad))
        inner, columns = weight.shape

        def project(lo: int, hi: int, target: Tensor, added: list[Tensor]) -> None:
            rows = slices.forward(lo, hi).reshape(-1, inner)
            multiply(rows, weight, target.view(-1, columns), [each.reshape(-1, columns) for each in added])

        result = produce(
            comm, "attention_projection", how, q.shape[1] * columns, q.dtype, shape, project,
            cost=("attention", *q.shape, *k.shape, *weight.shape, causal), again=slices.clear,
        )  # fmt: skip
        ctx.call, ctx.slices = (comm, how, shape), slices
        ctx.save_for_backward(weight)
        return result.view(-1, q.shape[1], columns)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        comm, how, shape = ctx.call
        (weight,), slices = ctx.saved_tensors, ctx.slices
        results = slices.result()
        total = Sum(weight)
        slices.begin(results)

        def back(lo: int, hi: int, tile: Tensor) -> None:
            flat = tile.view(-1, weight.shape[1])
            total.add(results[lo:hi].reshape(-1, weight.shape[0]), flat)
            slices.backward(lo, hi, torch.mm(flat, weight.t()).view(hi - lo, -1, weight.shape[0]))

        def again() -> None:
            total.clear()
            slices.begin(results)

        cost = ("attention back", *slices.k.shape, *weight.shape)
        back_shape = Shape(shape.take, shape.give, shape.most)
        consume(comm, "all_gather_matmul", how, grad.contiguous(), back_shape, back, cost=cost, again=again)
        return (*slices.grads, total.value(), None)


class _AttentionAllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, call: Any) -> Tensor:
        comm, how, shape, causal, keep = call
        slices = _Slices(q, k, v, causal, keep and any(ctx.needs_input_grad))

        def attend(lo: int, hi: int, target: Tensor, added: list[Tensor]) -> None:
            assert not added
            target.copy_(slices.forward(lo, hi).view(target.shape))

        cost = ("attention", *q.shape, *k.shape, causal)
        result = produce(
            comm, "matmul_all_to_all", how, flat_width(q), q.dtype, shape, attend, cost=cost, again=slices.clear
        )
        ctx.call, ctx.slices = (comm, how, shape), slices
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        comm, how, shape = ctx.call
        slices = ctx.slices
        results = slices.result()
        slices.begin(results)

        def back(lo: int, hi: int, tile: Tensor) -> None:
            slices.backward(lo, hi, tile.view(results[lo:hi].shape))

        cost = ("attention back", *slices.k.shape)
        back_shape = Shape(shape.take, shape.give, shape.most)
        consume(
            comm, "all_to_all_matmul", how, grad.contiguous(), back_shape, back, cost=cost, again=lambda: slices.begin(results)
        )
        return (*slices.grads, None)


class _HeadsAllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, call: Any) -> Tensor:
        comm, how, shape = call
        x, weight = x.detach().contiguous(), weight.detach()
        mine, inner, columns = x.shape[0], weight.shape[0], weight.shape[1] // comm.size

        def project(lo: int, hi: int, target: Tensor, added: list[Tensor]) -> None:
            assert not added
            for block, first, last in _blocks(lo, hi, mine):
                rows = x[first:last].view(-1, inner)
                at = block * mine + first - lo
                to = target[at : at + last - first].view(-1, columns)
                multiply(rows, weight[:, block * columns : (block + 1) * columns], to)

        width = x.shape[1] * columns
        result = produce(
            comm, "matmul_all_to_all", how, width, x.dtype, shape, project, cost=("heads", *weight.shape)
        )
        ctx.call = comm, how, shape
        ctx.save_for_backward(x, weight)
        return result.view(-1, x.shape[1], columns)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        comm, how, shape = ctx.call
        x, weight = ctx.saved_tensors
        mine, inner, columns = x.shape[0], weight.shape[0], weight.shape[1] // comm.size
        for_x = Sums(x.view(-1, inner))
        for_weight = [Sum(weight[:, :columns]) for _ in range(comm.size)]
        batch = x.shape[1]

        def back(lo: int, hi: int, tile: Tensor) -> None:
            for block, first, last in _blocks(lo, hi, mine):
                at = block * mine + first - lo
                grads = tile[at : at + last - first].reshape(-1, columns)
                for_weight[block].add(x[first:last].view(-1, inner), grads)
                for_x.add(first * batch, last * batch, grads, weight[:, block * columns : (block + 1) * columns].t())

        def again() -> None:
            for_x.clear()
            for each in for_weight:
                each.clear()

        back_shape = Shape(shape.take, shape.give, shape.most)
        cost = ("heads back", *weight.shape)
        consume(comm, "all_to_all_matmul", how, grad.contiguous(), back_shape, back, cost=cost, again=again)
        return for_x.value().view(x.shape), torch.cat([each.value() for each in for_weight], dim=1), None


class Sums:
    """A matrix of rows that products are added to, in float32 where it has 16 bits."""

    def __init__(self, like: Tensor) -> None:
        wide = torch.float32 if like.dtype == torch.bfloat16 else like.dtype
        self._dtype, self._total = like.dtype, torch.zeros(like.shape, dtype=wide)

    def clear(self) -> None:
        self._total.zero_()

    def add(self, lo: int, hi: int, rows: Tensor, weight: Tensor) -> None:
        """rows @ weight to rows [lo, hi)."""
        if self._total.dtype == rows.dtype:
            self._total[lo:hi].addmm_(rows, weight)
        else:
            self._total[lo:hi] += torch.mm(rows, weight)

    def value(self) -> Tensor:
        """The matrix."""
        return self._total.to(self._dtype)


def _blocks(lo: int, hi: int, rows: int) -> list[tuple[int, int, int]]:
    """Rows [lo, hi) of blocks of `rows` each: (block, first row in it, last)."""
    found = []
    while lo < hi:
        block = lo // rows
        last = min(hi, (block + 1) * rows)
        found.append((block, lo - block * rows, last - block * rows))
        lo = last
    return found


def _check(q: Tensor, k: Tensor, v: Tensor, what: str) -> int:
    """Heads of q."""
    fits = q.dim() == 4 and k.dim() == 4 and k.shape == v.shape and q.shape[1] == k.shape[1] and q.shape[3] == k.shape[3]
    if not fits or q.shape[0] != k.shape[0] or q.shape[2] % max(k.shape[2], 1):
        raise ShapeError(
            f"{what}: expected q [S, B, H, D] and k, v [S, B, heads, D] with H a multiple of heads, found {list(q.shape)}, "
            f"{list(k.shape)}, {list(v.shape)}."
        )
    return int(q.shape[2])


__all__ = ["attention", "attention_all_to_all", "attention_projection", "heads_all_to_all"]
