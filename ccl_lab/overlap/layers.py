"""Layers of tensor, sequence and data parallelism whose communication hides under their own matmuls; beside torch's own.

Is: torch.nn modules over the operators of `functions`, `attention` and `sharded`. Is not: a way to replace layers of a model
(parallel.py). Invariants: activations between layers are sequence shards, [S/R, B, D] (sequence_dim=0) or [B, S/R, D] (1); a layer made
by `of(...)` computes what the torch layer it was made of computes; gradients of parameters that every rank has whole are summed
over ranks before anybody sees them. A layer made new draws the whole layer's parameters and keeps its part: seed all ranks alike.

Common arguments: `comm` the Communicator of the group; `options` schedule, slices, sub_slices of the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ShapeError
from .attention import attention_all_to_all, attention_projection, heads_all_to_all
from .functions import all_gather_matmul, matmul_reduce_scatter
from .rows import split_rows
from .sharded import sharded_linear
from .torch_needed import array_over, torch

if TYPE_CHECKING:
    from typing_extensions import Self

Tensor = torch.Tensor
nn = torch.nn


class _SumOfGradients(torch.autograd.Function):
    """Identity; the gradients of all parameters are summed over ranks in one all_reduce."""

    @staticmethod
    def forward(ctx: Any, comm: Any, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.comm = comm
        return tuple(each.detach().view_as(each) for each in parameters)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        if ctx.comm.size == 1:
            return (None, *grads)
        flat = torch.cat([each.reshape(-1) for each in grads])
        ctx.comm.all_reduce(array_over(flat), out=array_over(flat))
        parts = flat.split([each.numel() for each in grads])
        return (None, *(part.view_as(each) for part, each in zip(parts, grads, strict=True)))


def replicated(comm: Any, *parameters: Tensor) -> tuple[Tensor, ...]:
    """The parameters, which every rank of `comm` has whole, for use on this rank's rows: their gradients are summed over ranks."""
    return _SumOfGradients.apply(comm, *parameters)


class SequenceParallel(nn.Module):
    """A module that works on each position by itself (a norm, say), on this rank's positions; parameters are whole everywhere."""

    def __init__(self, module: nn.Module, comm: Any) -> None:
        super().__init__()
        self.module, self.comm = module, comm

    def forward(self, x: Tensor, *rest: Any) -> Any:
        names = [name for name, _ in self.module.named_parameters()]
        if not names:
            return self.module(x, *rest)
        whole = replicated(self.comm, *(value for _, value in self.module.named_parameters()))
        return torch.func.functional_call(self.module, dict(zip(names, whole, strict=True)), (x, *rest))


class _ParallelLinear(nn.Module):
    """A linear layer of which each rank keeps a part (`_keep`)."""

    def __init__(
        self, comm: Any, in_features: int, out_features: int, bias: bool = True, *, sequence_dim: int = 0, dtype: Any = None,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self._take(nn.Linear(in_features, out_features, bias=bias, dtype=dtype), comm, sequence_dim, options)

    @classmethod
    def of(cls, linear: nn.Linear, comm: Any, *, sequence_dim: int = 0, **options: Any) -> Self:
        """This rank's part of `linear`, which is the same on all ranks."""
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made._take(linear, comm, sequence_dim, options)
        return made

    def _take(self, linear: nn.Linear, comm: Any, sequence_dim: int, options: dict[str, Any]) -> None:
        self.comm, self.sequence_dim, self.options = comm, sequence_dim, options
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight, bias = self._keep(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())
        self.weight, self.bias = nn.Parameter(weight.clone()), None if bias is None else nn.Parameter(bias.clone())

    def _keep(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        raise NotImplementedError


class ColumnParallelLinear(_ParallelLinear):
    """Gathers sequence shards and multiplies them with this rank's columns: [S/R, B, in] to [S, B, out/R].

    weight: [out/R, in], bias: [out/R]; out_features are split as evenly as it goes. Option save_gathered: keeps the gathered rows for
    backward, which otherwise gathers them again.
    """

    def _keep(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        lo, hi = _share(self.comm, self.out_features, "out_features")
        return weight[lo:hi], None if bias is None else bias[lo:hi]

    def forward(self, x: Tensor, rows: Sequence[int] | None = None) -> Tensor:
        x = _first(x, self.sequence_dim)
        y = all_gather_matmul(self.comm, x, self.weight.t(), self.bias, rows=rows, **self.options)
        return _first(y, self.sequence_dim)


class RowParallelLinear(_ParallelLinear):
    """Multiplies this rank's columns of the input and scatters the sum over the sequence: [S, B, in/R] to [S/R, B, out].

    weight: [out, in/R]; bias: [out], whole on every rank, added to its own positions.
    """

    def _keep(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        lo, hi = _share(self.comm, self.in_features, "in_features")
        return weight[:, lo:hi], bias

    def forward(self, x: Tensor, rows: Sequence[int] | None = None) -> Tensor:
        x = _first(x, self.sequence_dim)
        y = matmul_reduce_scatter(self.comm, x, self.weight.t(), rows=rows, **self.options)
        if self.bias is not None:
            y = y + replicated(self.comm, self.bias)[0]
        return _first(y, self.sequence_dim)


class MLP(nn.Module):
    """Two linear layers with an activation, tensor parallel inside and sequence shards outside: [S/R, B, D] to [S/R, B, D]."""

    def __init__(
        self, comm: Any, features: int, hidden: int, *, activation: Callable[[Tensor], Tensor] = nn.functional.gelu,
        bias: bool = True, sequence_dim: int = 0, dtype: Any = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        common = {"bias": bias, "sequence_dim": sequence_dim, "dtype": dtype, **options}
        self.activation = activation
        self.up = ColumnParallelLinear(comm, features, hidden, **common)
        self.down = RowParallelLinear(comm, hidden, features, **common)

    def forward(self, x: Tensor, rows: Sequence[int] | None = None) -> Tensor:
        return self.down(self.activation(self.up(x, rows)), rows)


class _HeadsOverRanks(nn.Module):
    """Self-attention whose heads are spread over ranks; what each keeps of the parameters is `_keep`."""

    def __init__(
        self, comm: Any, features: int, heads: int, *, bias: bool = True, causal: bool = False, sequence_dim: int = 0,
        dtype: Any = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self._take(nn.MultiheadAttention(features, heads, bias=bias, dtype=dtype), comm, causal, sequence_dim, options)

    @classmethod
    def of(cls, whole: nn.MultiheadAttention, comm: Any, *, causal: bool = False, **options: Any) -> Self:
        """What this rank has of `whole`, which is the same on all ranks and has one size of q, k and v."""
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made._take(whole, comm, causal, options.pop("sequence_dim", int(whole.batch_first)), options)
        return made

    def _take(self, whole: nn.MultiheadAttention, comm: Any, causal: bool, sequence_dim: int, options: dict[str, Any]) -> None:
        if whole.num_heads % comm.size or whole.in_proj_weight is None or whole.bias_k is not None or whole.add_zero_attn:
            raise ShapeError(
                f"{type(self).__name__} of {whole.num_heads} heads on {comm.size} ranks: expected a multiple of the ranks, one size of "
                "q, k and v, and neither add_bias_kv nor add_zero_attn."
            )
        self.comm, self.causal, self.sequence_dim, self.options = comm, causal, sequence_dim, options
        self.head_size, self.heads = whole.head_dim, whole.num_heads // comm.size
        self.in_weight = nn.Parameter(self._keep(whole.in_proj_weight.detach()).clone())
        self.out_weight = nn.Parameter(self._keep_columns(whole.out_proj.weight.detach()).clone())
        self.in_bias = self.out_bias = None
        if whole.in_proj_bias is not None:
            self.in_bias = nn.Parameter(self._keep(whole.in_proj_bias.detach()).clone())
            self.out_bias = nn.Parameter(whole.out_proj.bias.detach().clone())

    def _keep(self, in_projection: Tensor) -> Tensor:
        """Of the parameters that make q, k and v, one below the other."""
        return in_projection

    def _keep_columns(self, out_projection: Tensor) -> Tensor:
        return out_projection


class Attention(_HeadsOverRanks):
    """Self-attention with its heads spread over ranks: [S/R, B, D] to [S/R, B, D].

    Gathers the sequence under the projection to q, k, v, then computes query slices whose projected results leave for their owners
    while the next is computed. Made of a torch.nn.MultiheadAttention by `of`. heads: a multiple of the ranks.
    """

    @property
    def _mine(self) -> slice:
        width = self.heads * self.head_size
        return slice(self.comm.rank * width, (self.comm.rank + 1) * width)

    def _keep(self, in_projection: Tensor) -> Tensor:
        return torch.cat([part[self._mine] for part in in_projection.chunk(3)])

    def _keep_columns(self, out_projection: Tensor) -> Tensor:
        return out_projection[:, self._mine]

    def forward(self, x: Tensor, rows: Sequence[int] | None = None) -> Tensor:
        x = _first(x, self.sequence_dim)
        together = all_gather_matmul(self.comm, x, self.in_weight.t(), self.in_bias, rows=rows, **self.options)
        q, k, v = together.view(*together.shape[:2], 3, self.heads, self.head_size).unbind(2)
        y = attention_projection(
            self.comm, q, k, v, self.out_weight.t(), causal=self.causal, rows=rows, **self.options
        )
        if self.out_bias is not None:
            y = y + replicated(self.comm, self.out_bias)[0]
        return _first(y, self.sequence_dim)


class UlyssesAttention(_HeadsOverRanks):
    """Self-attention of sequence parallelism (DeepSpeed Ulysses): [S/R, B, D] to [S/R, B, D], weights whole on every rank.

    The projection to q, k, v leaves for the ranks of its heads as it is computed; each query slice's result goes back to the owner of its
    positions while the next is computed; the output projection is local. heads: a multiple of the ranks.
    """

    def _by_rank(self, parameter: Tensor) -> Tensor:
        """[3, ranks, heads, …] as [ranks, 3, heads, …]: the columns that go to one rank are neighbours."""
        split = parameter.view(3, self.comm.size, self.heads * self.head_size, *parameter.shape[1:])
        return split.transpose(0, 1).reshape(parameter.shape)

    def forward(self, x: Tensor, rows: Sequence[int] | None = None) -> Tensor:
        x = _first(x, self.sequence_dim)
        names = [name for name in ("in_bias", "out_weight", "out_bias") if getattr(self, name) is not None]
        whole = dict(zip(names, replicated(self.comm, *(getattr(self, name) for name in names)), strict=True))
        in_weight = replicated(self.comm, self.in_weight)[0]
        together = heads_all_to_all(self.comm, x, self._by_rank(in_weight).t(), rows=rows, **self.options)
        if "in_bias" in whole:
            bias = self._by_rank(whole["in_bias"]).view(self.comm.size, -1)[self.comm.rank]
            together = together + bias
        q, k, v = together.view(*together.shape[:2], 3, self.heads, self.head_size).unbind(2)
        here = attention_all_to_all(
            self.comm, q, k, v, causal=self.causal, rows=rows or [x.shape[0]] * self.comm.size, **self.options
        )
        y = nn.functional.linear(here.flatten(2), whole["out_weight"], whole.get("out_bias"))
        return _first(y, self.sequence_dim)


class ShardedLinear(nn.Module):
    """torch.nn.Linear of data parallelism: each rank has its own input and owns some rows of the weight.

    weight: [out/R, in]; its gradient is the mean over ranks of the rows this rank owns, so any optimizer works on it as it is. bias: [out],
    whole on every rank.
    """

    def __init__(self, comm: Any, in_features: int, out_features: int, bias: bool = True, *, dtype: Any = None, **options: Any) -> None:
        super().__init__()
        self._take(nn.Linear(in_features, out_features, bias=bias, dtype=dtype), comm, options)

    @classmethod
    def of(cls, linear: nn.Linear, comm: Any, **options: Any) -> ShardedLinear:
        """The same layer as `linear`, which is the same on all ranks."""
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made._take(linear, comm, options)
        return made

    def _take(self, linear: nn.Linear, comm: Any, options: dict[str, Any]) -> None:
        self.comm, self.options = comm, options
        self.rows = split_rows(None, linear.out_features, comm.size, "ShardedLinear")
        lo = sum(self.rows[: comm.rank])
        self.weight = nn.Parameter(linear.weight.detach()[lo : lo + self.rows[comm.rank]].clone())
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        share = 1 / self.comm.size  # the exchange adds; data parallelism takes the mean
        y = sharded_linear(self.comm, x, scaled_gradient(self.weight, share), rows=self.rows, **self.options)
        return y if self.bias is None else y + replicated(self.comm, scaled_gradient(self.bias, share))[0]


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.detach().view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.factor, None


def scaled_gradient(x: Tensor, factor: float) -> Tensor:
    """x, its gradient times `factor`."""
    return x if factor == 1 else _ScaledGradient.apply(x, factor)


def _first(x: Tensor, sequence_dim: int) -> Tensor:
    """Positions first, or back."""
    return x.transpose(0, sequence_dim) if sequence_dim else x


def _share(comm: Any, total: int, what: str) -> tuple[int, int]:
    if total < comm.size:
        raise ShapeError(f"{what} {total}: expected at least one for each of {comm.size} ranks.", rank=comm.rank)
    rows = split_rows(None, total, comm.size, what)
    lo = sum(rows[: comm.rank])
    return lo, lo + rows[comm.rank]


__all__ = [
    "MLP", "Attention", "ColumnParallelLinear", "RowParallelLinear", "SequenceParallel", "ShardedLinear", "UlyssesAttention", "replicated",
]  # fmt: skip
