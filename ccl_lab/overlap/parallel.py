"""`parallelize(model, comms, plan)`: replaces modules of a model by parallel ones, by name, in the style of torch's tensor-parallel API.

Is: styles (plain data) and the walk over the model. Is not: the layers (layers.py). Invariants: the model is the same on all ranks
before; afterwards it computes the same function on sequence shards; a name that fits nothing is an error.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError, suggest
from . import layers
from .layers import replicated
from .torch_needed import array_over, torch

Tensor = torch.Tensor
nn = torch.nn


@dataclass(frozen=True)
class Style:
    """How one module is made parallel, over the communicator called `axis`; options as of the operators (None: theirs)."""

    axis: str = "tp"
    schedule: Any = "auto"
    slices: int | None = None
    sub_slices: int | None = None
    sequence_dim: int = 0

    def options(self) -> dict[str, Any]:
        return {"schedule": self.schedule, "slices": self.slices, "sub_slices": self.sub_slices}

    def apply(self, module: nn.Module, comm: Any) -> nn.Module:
        raise NotImplementedError


@dataclass(frozen=True)
class ColwiseParallel(Style):
    """torch.nn.Linear: gathers the sequence, keeps this rank's columns (layers.ColumnParallelLinear)."""

    save_gathered: bool = False

    def apply(self, module: nn.Module, comm: Any) -> nn.Module:
        extra = {"sequence_dim": self.sequence_dim, "save_gathered": self.save_gathered}
        return layers.ColumnParallelLinear.of(_kind(module, nn.Linear, self), comm, **extra, **self.options())


@dataclass(frozen=True)
class RowwiseParallel(Style):
    """torch.nn.Linear: takes this rank's columns, scatters the sum over the sequence (layers.RowParallelLinear)."""

    def apply(self, module: nn.Module, comm: Any) -> nn.Module:
        return layers.RowParallelLinear.of(
            _kind(module, nn.Linear, self), comm, sequence_dim=self.sequence_dim, **self.options()
        )


@dataclass(frozen=True)
class SequenceParallel(Style):
    """A module that works on each position by itself, its parameters whole on every rank (layers.SequenceParallel)."""

    def apply(self, module: nn.Module, comm: Any) -> nn.Module:
        return layers.SequenceParallel(module, comm)


@dataclass(frozen=True)
class HeadParallel(Style):
    """torch.nn.MultiheadAttention for self-attention: heads spread over ranks (layers.Attention); the module then takes x alone."""

    causal: bool = False

    def apply(self, module: nn.Module, comm: Any) -> nn.Module:
        whole = _kind(module, nn.MultiheadAttention, self)
        return layers.Attention.of(whole, comm, causal=self.causal, sequence_dim=self.sequence_dim, **self.options())


@dataclass(frozen=True)
class UlyssesParallel(Style):
    """torch.nn.MultiheadAttention for self-attention by all_to_all (layers.UlyssesAttention); the module then takes x alone."""

    causal: bool = False

    def apply(self, module: nn.Module, comm: Any) -> nn.Module:
        whole = _kind(module, nn.MultiheadAttention, self)
        return layers.UlyssesAttention.of(
            whole, comm, causal=self.causal, sequence_dim=self.sequence_dim, **self.options()
        )


@dataclass(frozen=True)
class ShardedParallel(Style):
    """torch.nn.Linear with its rows spread over the ranks of data parallelism (layers.ShardedLinear)."""

    axis: str = "dp"

    def apply(self, module: nn.Module, comm: Any) -> nn.Module:
        return layers.ShardedLinear.of(_kind(module, nn.Linear, self), comm, **self.options())


def parallelize(model: nn.Module, comms: Any, plan: Mapping[str, Style] | Style) -> nn.Module:
    """Replaces modules of `model`, in place, and returns it (or what takes its place, if the plan is one Style).

    comms: a Communicator, or {axis: Communicator}. plan: {name pattern: Style}; patterns as of fnmatch over `named_modules`, a dot is not
    special ("blocks.*.mlp.up"). Raises UsageError for a pattern that fits nothing, a module a style cannot take, two patterns that fit
    one module, or an axis that is not in comms.

        parallelize(model, {"tp": comm}, {"blocks.*.norm": SequenceParallel(), "blocks.*.up": ColwiseParallel(), …})
    """
    if isinstance(plan, Style):
        return plan.apply(model, _comm(comms, plan.axis))
    names = [name for name, _ in model.named_modules() if name]
    chosen: dict[str, str] = {}
    for pattern in plan:
        fits = fnmatch.filter(names, pattern)
        if not fits:
            raise UsageError(f"parallelize: no module of {type(model).__name__} is called {pattern!r}.{suggest(pattern, names)}")
        for name in fits:
            if name in chosen:
                raise UsageError(f"parallelize: {name!r} fits both {chosen[name]!r} and {pattern!r}; expected one of them.")
            chosen[name] = pattern
    for name, pattern in chosen.items():
        parent, _, last = name.rpartition(".")
        style = plan[pattern]
        made = style.apply(model.get_submodule(name), _comm(comms, style.axis))
        setattr(model.get_submodule(parent), last, made)
    return model


def _comm(comms: Any, axis: str) -> Any:
    if not isinstance(comms, Mapping):
        return comms
    if axis not in comms:
        raise UsageError(f"parallelize: there is no communicator for axis {axis!r}; expected one of {', '.join(comms)}.")
    return comms[axis]


def _kind(module: nn.Module, kind: type, style: Style) -> Any:
    if not isinstance(module, kind):
        raise UsageError(
            f"{type(style).__name__}: expected a torch.nn.{kind.__name__}, found {type(module).__name__}; choose another style."
        )
    return module


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Any, dim: int) -> Tensor:
        ctx.comm, ctx.dim = comm, dim
        return x.chunk(comm.size, dim)[comm.rank].contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _joined(ctx.comm, grad, ctx.dim), None, None


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Any, dim: int) -> Tensor:
        ctx.comm, ctx.dim = comm, dim
        return _joined(comm, x.detach(), dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad.chunk(ctx.comm.size, ctx.dim)[ctx.comm.rank].contiguous(), None, None


def _joined(comm: Any, x: Tensor, dim: int) -> Tensor:
    x = x.contiguous()
    whole = x.new_empty((comm.size, *x.shape))
    comm.all_gather(array_over(x), out=array_over(whole).reshape(comm.size, -1))
    return torch.cat(list(whole), dim)


def split_sequence(x: Tensor, comm: Any, dim: int = 0) -> Tensor:
    """This rank's positions of x, which every rank has whole; equal shards. Backward gathers."""
    return _Split.apply(x, comm, dim)


def join_sequence(x: Tensor, comm: Any, dim: int = 0) -> Tensor:
    """All positions, of every rank's shard. Backward takes this rank's: use it where all ranks go on with the same computation."""
    return _Join.apply(x, comm, dim)


__all__ = [
    "ColwiseParallel", "HeadParallel", "RowwiseParallel", "SequenceParallel", "ShardedParallel", "Style", "UlyssesParallel",
    "join_sequence", "parallelize", "replicated", "split_sequence",
]  # fmt: skip
