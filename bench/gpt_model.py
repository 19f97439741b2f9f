"""A small GPT for bench/gpt_steps.py, and its three parallel forms: torch's tensor parallelism, and ours with and without overlap.

Is: the model, its data, and how it is spread over TP x DP. Is not: the steps or their clock. Invariants: all forms begin with the same
parameters and see the same tokens; a form's loss, summed over TP and averaged over DP, is that of the whole model on the whole batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ccl_lab.overlap import layers
from ccl_lab.overlap.data import DataParallel

VOCABULARY, WIDTH, HEADS, LAYERS, POSITIONS, BATCH = 64, 384, 6, 3, 64, 4  # BATCH: sequences of a replica


class Attention(nn.Module):
    """Causal self-attention, [B, S, D]."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = WIDTH // HEADS
        q, k, v = (each(x).unflatten(-1, (-1, size)).transpose(1, 2) for each in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = Attention(), MLP()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Tokens [B, S] to logits [B, S, VOCABULARY]."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor, first: int = 0) -> torch.Tensor:
        where = torch.arange(first, first + tokens.shape[1])
        x = self.tokens(tokens) + self.positions(where)[None].expand(len(tokens), -1, -1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def new_model() -> GPT:
    """The same parameters every time."""
    torch.manual_seed(0)
    return GPT()


def batch(step: int, replicas: int) -> torch.Tensor:
    """Tokens [replicas * BATCH, POSITIONS + 1] of a step: sequences that count by a stride of their own."""
    make = torch.Generator().manual_seed(step)
    begin = torch.randint(VOCABULARY, (replicas * BATCH, 1), generator=make)
    stride = torch.randint(1, 8, (replicas * BATCH, 1), generator=make)
    return (begin + stride * torch.arange(POSITIONS + 1)) % VOCABULARY


def flops(replicas: int) -> float:
    """Of a step: 6 a parameter of a matmul and token, and attention."""
    tokens = replicas * BATCH * POSITIONS
    matmuls = LAYERS * 12 * WIDTH * WIDTH + WIDTH * VOCABULARY
    return 6.0 * tokens * matmuls + 12.0 * LAYERS * tokens * POSITIONS * WIDTH / 2


class Whole:
    """In one process."""

    def __init__(self) -> None:
        self.model = new_model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self, tokens: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        logits = self.model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


class Ours:
    """TP with sequence parallelism over `tp`, data parallelism over `dp`; overlap=False: nothing hides."""

    def __init__(self, tp: Any, dp: Any, overlap: bool, schedule: str = "auto") -> None:
        self.tp, self.dp = tp, dp
        how = {"schedule": schedule if overlap else "sequential", "sequence_dim": 1}
        model = new_model()
        for name in ("tokens", "positions", "norm", "head"):
            setattr(model, name, layers.SequenceParallel(getattr(model, name), tp))
        for block in model.blocks:
            block.norm1, block.norm2 = (layers.SequenceParallel(each, tp) for each in (block.norm1, block.norm2))
            block.mlp.up = layers.ColumnParallelLinear.of(block.mlp.up, tp, save_gathered=True, **how)
            block.mlp.down = layers.RowParallelLinear.of(block.mlp.down, tp, **how)
            block.attention = layers.Attention.of(_torch_attention(block.attention), tp, causal=True, **how)
        self.model = DataParallel(model, dp, overlap=overlap)
        self.optimizer = torch.optim.AdamW(self.model.shards(), lr=1e-3)

    def step(self, tokens: torch.Tensor) -> float:
        mine = tokens[self.dp.rank * BATCH : (self.dp.rank + 1) * BATCH]
        own = POSITIONS // self.tp.size
        first = self.tp.rank * own
        logits = self.model(mine[:, first : first + own], first)
        wanted = mine[:, first + 1 : first + own + 1]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum") / mine[:, 1:].numel()
        loss.backward()
        self.model.step(self.optimizer)
        return float(loss.detach())

    def finish(self) -> None:
        self.model.synchronize()


def _torch_attention(of: Attention) -> nn.MultiheadAttention:
    """The same attention as torch's own module."""
    made = nn.MultiheadAttention(WIDTH, HEADS, bias=False, batch_first=True)
    made.in_proj_weight.data.copy_(torch.cat([of.q.weight, of.k.weight, of.v.weight]))
    made.out_proj.weight.data.copy_(of.out.weight)
    return made


class Torch:
    """torch's tensor parallelism with sequence parallelism on `mesh` (dp, tp), and one flat all_reduce of gradients over dp."""

    def __init__(self, mesh: Any) -> None:
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            PrepareModuleInput,
            RowwiseParallel,
            SequenceParallel,
            parallelize_module,
        )

        self.dp, self.dp_rank = mesh["dp"].get_group(), mesh["dp"].get_local_rank()
        self.model = new_model()
        whole = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        plan: dict[str, Any] = {
            "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "positions": RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate()),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        }
        block: dict[str, Any] = {"norm1": SequenceParallel(), "norm2": SequenceParallel(), "attention": whole, "mlp": whole}
        block |= {f"attention.{name}": ColwiseParallel() for name in "qkv"} | {"mlp.up": ColwiseParallel()}
        block |= {name: RowwiseParallel(output_layouts=Shard(1)) for name in ("attention.out", "mlp.down")}
        self.tp_mesh = mesh["tp"]
        parallelize_module(self.model, self.tp_mesh, plan)
        for each in self.model.blocks:
            parallelize_module(each, self.tp_mesh, block)
        self.model.forward = self._forward  # positions are added to a sequence shard
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def _forward(self, tokens: torch.Tensor) -> torch.Tensor:
        from torch.distributed.tensor import DTensor, Shard

        model, tp = self.model, self.tp_mesh
        own = POSITIONS // tp.size()
        first = tp.get_local_rank() * own
        x, where = model.tokens(tokens), model.positions(torch.arange(POSITIONS))
        x = x.to_local() if isinstance(x, DTensor) else x
        where = where.full_tensor() if isinstance(where, DTensor) else where
        # Each rank uses its own positions of a table whose gradient is summed over them.
        x = x + _SumOverRanks.apply(where, tp.get_group())[first : first + own]
        x = DTensor.from_local(x, tp, [Shard(1)], run_check=False)
        for block in model.blocks:
            x = x + _shard(block.attention(block.norm1(x)), tp)
            x = x + _shard(block.mlp(block.norm2(x)), tp)
        return model.head(model.norm(x))

    def step(self, tokens: torch.Tensor) -> float:
        import torch.distributed as dist

        mine = tokens[self.dp_rank * BATCH : (self.dp_rank + 1) * BATCH]
        self.optimizer.zero_grad()
        logits = self.model(mine[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), mine[:, 1:].flatten())
        loss.backward()
        grads = [_local(each) for each in self.model.parameters()]
        flat = torch.cat([each.reshape(-1) for each in grads])
        dist.all_reduce(flat, group=self.dp)
        flat /= dist.get_world_size(self.dp)
        for each, part in zip(grads, flat.split([each.numel() for each in grads]), strict=True):
            each.copy_(part.view_as(each))
        self.optimizer.step()
        return float(loss.detach())

    def finish(self) -> None:
        pass


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        import torch.distributed as dist

        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


def _shard(x: Any, mesh: Any) -> Any:
    from torch.distributed.tensor import DTensor, Shard

    return x if isinstance(x, DTensor) else DTensor.from_local(x, mesh, [Shard(1)], run_check=False)


def _local(parameter: torch.Tensor) -> torch.Tensor:
    """This rank's part of the gradient; that of a whole parameter is summed over the ranks first."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    grad: Any = parameter.grad
    if isinstance(grad, DTensor):
        if any(isinstance(each, Partial) for each in grad.placements):
            grad = parameter.grad = grad.redistribute(placements=[Replicate()])
        return grad.to_local()
    return grad
