"""Layers and strategies: each computes what the torch layer it stands for computes, forward and backward, on lockstep ranks.

Is not: real ranks (test_overlap_torch_ranks.py).
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ccl_lab.errors import ShapeError, UsageError
from ccl_lab.overlap import layers, parallel
from ccl_lab.overlap.data import DataParallel
from ccl_lab.overlap.lockstep import lockstep

S, B, D, H, SIZE = 6, 2, 8, 4, 2
OPTIONS = {"schedule": "direct"}


def whole_input(sequence_dim: int) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn((S, B, D) if sequence_dim == 0 else (B, S, D), dtype=torch.float64)


def piece(x: torch.Tensor, comm, dim: int) -> torch.Tensor:
    return x.chunk(comm.size, dim)[comm.rank].clone()


def compare(make_whole, make_part, sequence_dim=0, rows=None, through=lambda y: y):
    """Outputs, input gradients and gradients of replicated parameters, of a part per rank against the whole."""
    x = whole_input(sequence_dim).requires_grad_()
    torch.manual_seed(2)
    whole = make_whole().double()
    y = through(whole(x) if not isinstance(whole, nn.MultiheadAttention) else whole(x, x, x, need_weights=False)[0])
    weights = torch.randn_like(y)
    (y * weights).sum().backward()

    def body(comm):
        part = make_part(copy.deepcopy(whole), comm)
        split = rows or [S // comm.size] * comm.size
        mine = x.detach().split(split, sequence_dim)[comm.rank].clone().requires_grad_()
        out = part(mine, rows) if rows else part(mine)
        part.zero_grad()
        (out * weights.split(split, sequence_dim)[comm.rank]).sum().backward()
        return out.detach(), mine.grad, {name: each.grad for name, each in part.named_parameters()}

    found = lockstep(SIZE, body)
    torch.testing.assert_close(torch.cat([each[0] for each in found], sequence_dim), y.detach())
    torch.testing.assert_close(torch.cat([each[1] for each in found], sequence_dim), x.grad)
    return whole, [each[2] for each in found]


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(D, 12), nn.Linear(12, D)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


def mlp_of(whole, comm, dim, **options):
    made = layers.MLP(comm, D, 12, sequence_dim=dim)
    made.up = layers.ColumnParallelLinear.of(whole.up, comm, sequence_dim=dim, **OPTIONS, **options)
    made.down = layers.RowParallelLinear.of(whole.down, comm, sequence_dim=dim, **OPTIONS)
    return made


@pytest.mark.parametrize("save", [False, True])
@pytest.mark.parametrize("rows", [None, [4, 2]])
@pytest.mark.parametrize("dim", [0, 1])
def test_mlp(dim, rows, save):
    whole, grads = compare(TwoLayers, lambda w, c: mlp_of(w, c, dim, save_gathered=save), dim, rows)
    torch.testing.assert_close(torch.cat([g["up.weight"] for g in grads]), whole.up.weight.grad)
    torch.testing.assert_close(torch.cat([g["up.bias"] for g in grads]), whole.up.bias.grad)
    torch.testing.assert_close(torch.cat([g["down.weight"] for g in grads], 1), whole.down.weight.grad)
    for each in grads:
        torch.testing.assert_close(each["down.bias"], whole.down.bias.grad)


@pytest.mark.parametrize("rows", [None, [4, 2]])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", [layers.Attention, layers.UlyssesAttention])
def test_attention(kind, dim, bias, rows):
    def whole():
        return nn.MultiheadAttention(D, H, bias=bias, batch_first=dim == 1)

    of, grads = compare(whole, lambda w, c: kind.of(w, c, **OPTIONS), dim, rows)
    if kind is layers.UlyssesAttention:
        for each in grads:
            torch.testing.assert_close(each["in_weight"], of.in_proj_weight.grad)
            torch.testing.assert_close(each["out_weight"], of.out_proj.weight.grad)
            if bias:
                torch.testing.assert_close(each["in_bias"], of.in_proj_bias.grad)
                torch.testing.assert_close(each["out_bias"], of.out_proj.bias.grad)
    else:
        torch.testing.assert_close(torch.cat([g["out_weight"] for g in grads], 1), of.out_proj.weight.grad)
        parts = [torch.cat([g["in_weight"].chunk(3)[i] for g in grads]) for i in range(3)]
        torch.testing.assert_close(torch.cat(parts), of.in_proj_weight.grad)


def test_sequence_parallel_norm():
    whole, grads = compare(lambda: nn.LayerNorm(D), lambda w, c: layers.SequenceParallel(w, c))
    for each in grads:
        torch.testing.assert_close(each["module.weight"], whole.weight.grad)
        torch.testing.assert_close(each["module.bias"], whole.bias.grad)


def test_new_layers_have_their_part():
    def body(comm):
        made = layers.MLP(comm, D, 7, **OPTIONS)
        attention = layers.Attention(comm, D, H, causal=True, **OPTIONS)
        ulysses = layers.UlyssesAttention(comm, D, H, causal=True, **OPTIONS)
        sharded = layers.ShardedLinear(comm, D, 5, **OPTIONS)
        x = torch.randn(S // SIZE, B, D)
        assert made(x).shape == attention(x).shape == ulysses(x).shape == x.shape
        assert sharded(x).shape == (*x.shape[:-1], 5)
        return made.up.weight.shape[0], sharded.weight.shape[0]

    assert lockstep(SIZE, body) == [(4, 3), (3, 2)]


@pytest.mark.parametrize("batch", [(3,), (2, 3)])
def test_sharded_linear_is_the_mean_over_ranks(batch):
    torch.manual_seed(3)
    whole = nn.Linear(D, 5).double()
    xs = torch.randn(SIZE, *batch, D, dtype=torch.float64)
    whole(xs).square().sum().div(SIZE).backward()

    def body(comm):
        part = layers.ShardedLinear.of(whole, comm, **OPTIONS)
        x = xs[comm.rank].clone().requires_grad_()
        y = part(x)
        y.square().sum().backward()
        return y.detach(), x.grad, part.weight.grad, part.bias.grad

    found = lockstep(SIZE, body)
    torch.testing.assert_close(torch.stack([each[0] for each in found]), whole(xs).detach())
    torch.testing.assert_close(torch.cat([each[2] for each in found]), whole.weight.grad)
    for each in found:
        torch.testing.assert_close(each[3], whole.bias.grad)


@pytest.mark.parametrize("overlap", [False, True])
def test_data_parallel_trains_as_one_process(overlap):
    torch.manual_seed(4)
    start = nn.Sequential(nn.Linear(D, 12), nn.GELU(), nn.Linear(12, D), nn.LayerNorm(D)).double()
    xs = torch.randn(3, SIZE, 5, D, dtype=torch.float64)
    one = copy.deepcopy(start)
    optimizer = torch.optim.AdamW(one.parameters(), lr=0.01)
    for x in xs:
        optimizer.zero_grad()
        one(x).square().mean().backward()
        optimizer.step()

    def body(comm):
        model = DataParallel(copy.deepcopy(start), comm, bucket_nbytes=600, overlap=overlap)
        mine = torch.optim.AdamW(model.shards(), lr=0.01)
        for x in xs:
            model(x[comm.rank]).square().mean().backward()
            model.step(mine)
        model.synchronize()
        return [each.detach().clone() for each in model.module.parameters()]

    for found in lockstep(SIZE, body):
        for mine, right in zip(found, one.parameters(), strict=True):
            torch.testing.assert_close(mine, right.detach())


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2, self.mlp = nn.LayerNorm(D), nn.LayerNorm(D), TwoLayers()
        self.attention = nn.MultiheadAttention(D, H)

    def forward(self, x):
        y = self.norm1(x)
        y = self.attention(y, y, y, need_weights=False)[0] if isinstance(self.attention, nn.MultiheadAttention) else self.attention(y)
        x = x + y
        return x + self.mlp(self.norm2(x))


PLAN = {
    "*.norm?": parallel.SequenceParallel(),
    "*.up": parallel.ColwiseParallel(schedule="ring"),
    "*.down": parallel.RowwiseParallel(schedule="ring"),
    "*.attention": parallel.HeadParallel(schedule="direct"),
}


@pytest.mark.parametrize("attention", [parallel.HeadParallel(schedule="direct"), parallel.UlyssesParallel(schedule="direct")])
def test_parallelize_a_model(attention):
    whole, grads = compare(
        lambda: nn.Sequential(Block(), Block()),
        lambda w, c: parallel.parallelize(w, {"tp": c}, PLAN | {"*.attention": attention}),
    )
    for each in grads:
        torch.testing.assert_close(each["0.norm1.module.weight"], whole[0].norm1.weight.grad)


def test_parallelize_one_module_and_sharded():
    def body(comm):
        one = parallel.parallelize(nn.Linear(D, 4), comm, parallel.ColwiseParallel())
        two = parallel.parallelize(nn.Sequential(nn.Linear(D, 4)), {"dp": comm}, {"0": parallel.ShardedParallel()})
        return type(one).__name__, type(two[0]).__name__

    assert lockstep(SIZE, body) == [("ColumnParallelLinear", "ShardedLinear")] * SIZE


def test_split_and_join_are_each_other_backwards():
    x = whole_input(0)

    def body(comm):
        mine = x.clone().requires_grad_()
        back = parallel.join_sequence(parallel.split_sequence(mine, comm), comm)
        (back * back).sum().backward()
        return back.detach(), mine.grad

    for back, grad in lockstep(SIZE, body):
        torch.testing.assert_close(back, x)
        torch.testing.assert_close(grad, 2 * x)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda c: parallel.parallelize(TwoLayers(), c, {"upp": parallel.ColwiseParallel()}), UsageError, "called 'upp'.*up"),
        (lambda c: parallel.parallelize(TwoLayers(), c, {"up": PLAN["*.up"], "u*": PLAN["*.up"]}), UsageError, "fits both"),
        (lambda c: parallel.parallelize(TwoLayers(), {"dp": c}, {"up": PLAN["*.up"]}), UsageError, "axis 'tp'"),
        (lambda c: parallel.parallelize(Block(), c, {"norm1": PLAN["*.up"]}), UsageError, "expected a torch.nn.Linear"),
        (lambda c: layers.Attention(c, 9, 3), ShapeError, "3 heads on 2 ranks"),
        (lambda c: layers.ColumnParallelLinear(c, 4, 1), ShapeError, "at least one"),
        (lambda c: DataParallel(TwoLayers(), c).step(torch.optim.SGD([torch.zeros(1)])), UsageError, "got no gradient"),
    ],
)
def test_errors_say_what_is_wrong(call, error, words):
    with pytest.raises(error, match=words):
        lockstep(SIZE, call)
