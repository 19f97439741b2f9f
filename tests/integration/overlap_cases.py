"""Cases of the torch operators: every operator, schedule, type and split of rows, made from a seed.

Is: what a rank runs (`run`, over any communicator: real ranks and the lockstep emulation), and the fp64 computation without ranks
that it must equal (`reference`). Is not: a test. Invariant: a case is its fields; every process makes the same numbers of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ccl_lab.overlap.attention import attention, attention_all_to_all, attention_projection, heads_all_to_all
from ccl_lab.overlap.functions import (
    all_gather_matmul,
    all_to_all_matmul,
    matmul_all_to_all,
    matmul_reduce_scatter,
)
from ccl_lab.overlap.sharded import sharded_linear

Tensor = torch.Tensor
torch.set_num_threads(1)  # sums in one order

OPERATORS = (
    "all_gather_matmul", "matmul_reduce_scatter", "matmul_all_to_all", "all_to_all_matmul", "attention_projection",
    "attention_all_to_all", "heads_all_to_all", "sharded_linear",
)  # fmt: skip
SCHEDULES: tuple[dict[str, Any], ...] = (
    {"schedule": "sequential"},
    {"schedule": "k_slice", "slices": 2},
    {"schedule": "k_slice", "slices": 4},
    {"schedule": "ring"},
    {"schedule": "ring", "sub_slices": 3},
    {"schedule": "direct"},
    {"schedule": "direct", "sub_slices": 2},
)
GATHERS_OR_ADDS = ("all_gather_matmul", "matmul_reduce_scatter", "attention_projection", "sharded_linear")
# Of the largest sum of absolute products.
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 3e-2, torch.float64: 1e-12}


@dataclass(frozen=True)
class Case:
    """`rows`: of each rank; `counts`: rows between ranks, of the all_to_all forms; sizes as the operators name them."""

    operator: str
    ranks: int
    options: dict[str, Any]
    dtype: torch.dtype = torch.float32
    rows: tuple[int, ...] = ()
    counts: tuple[tuple[int, ...], ...] = ()
    batch: tuple[int, ...] = ()
    inner: int = 4
    columns: int = 5
    heads: int = 2
    causal: bool = False
    bias: bool = False
    save_gathered: bool = False
    seed: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.operator} {self.options} R={self.ranks} {self.dtype} rows={self.rows or self.counts} seed={self.seed}"


def schedules_of(operator: str) -> list[dict[str, Any]]:
    """A block of an all_to_all has one destination: no ring."""
    return [each for each in SCHEDULES if operator in GATHERS_OR_ADDS or each["schedule"] != "ring"]


def random_case(seed: int, **fixed: Any) -> Case:
    """Any case; uneven and empty blocks among them."""
    rng = random.Random(seed)
    ranks = fixed.pop("ranks", None) or rng.choice((1, 2, 2, 3, 4, 5))
    low = rng.choice((0, 1, 4))
    rows = [rng.randint(low, 9) for _ in range(ranks)]
    if rng.random() < 0.5:
        rows = [max(rows)] * ranks
    rows[0] = max(rows[0], 1)
    counts = [[rng.randint(low, 6) for _ in range(ranks)] for _ in range(ranks)]
    if rng.random() < 0.5:
        counts = [[3] * ranks for _ in range(ranks)]
    operator = fixed.get("operator") or rng.choice(OPERATORS)
    values = {
        "operator": operator,
        "options": rng.choice(schedules_of(operator)),
        "dtype": rng.choice((torch.float32, torch.bfloat16, torch.float64)),
        "batch": rng.choice(((), (1,), (3,), (2, 2))),
        "inner": rng.choice((1, 4, 16, 33)),
        "columns": rng.choice((1, 5, 8, 24)),
        "heads": rng.choice((1, 2)),
        "causal": rng.random() < 0.5,
        "bias": rng.random() < 0.3,
        "save_gathered": rng.random() < 0.5,
    } | fixed
    return Case(ranks=ranks, rows=tuple(rows), counts=tuple(map(tuple, counts)), seed=seed, **values)


def inputs(case: Case, rank: int) -> list[Tensor]:
    """The differentiable tensors of a rank."""
    make = torch.Generator().manual_seed(1000 * case.seed + rank)
    every = torch.Generator().manual_seed(1000 * case.seed + 999)

    def new(*shape: int, of: torch.Generator = make) -> Tensor:
        return torch.randn(shape, generator=of, dtype=torch.float64).to(case.dtype)

    total, batch, k, n = sum(case.rows), case.batch, case.inner, case.columns
    if case.operator == "all_gather_matmul":
        return [new(case.rows[rank], *batch, k), new(k, n), *([new(n)] if case.bias else [])]
    if case.operator == "matmul_reduce_scatter":
        return [new(total, *batch, k), new(k, n)]
    if case.operator in ("matmul_all_to_all", "all_to_all_matmul"):
        return [new(sum(case.counts[rank]), *batch, k), new(k, n)]
    if case.operator == "heads_all_to_all":
        return [new(case.rows[rank], 2, k), new(k, n * case.ranks, of=every)]
    if case.operator == "sharded_linear":
        return [new(3, *batch, k), new(case.rows[rank], k)]
    q, k_, v = (new(total, 2, heads, 4) for heads in (case.heads, 1, 1))
    return [q, k_, v] + ([new(case.heads * 4, n)] if case.operator == "attention_projection" else [])


def call(comm: Any, case: Case, tensors: list[Tensor]) -> Tensor:
    """The operator under test."""
    options, rows = case.options | case.extra, list(case.rows)
    if case.operator == "all_gather_matmul":
        return all_gather_matmul(comm, *tensors, rows=rows, save_gathered=case.save_gathered, **options)
    if case.operator in ("attention_projection", "attention_all_to_all"):
        function: Callable[..., Tensor] = {"attention_projection": attention_projection}.get(
            case.operator, attention_all_to_all
        )
        return function(comm, *tensors, rows=rows, causal=case.causal, **options)
    if case.operator in ("matmul_all_to_all", "all_to_all_matmul"):
        function = matmul_all_to_all if case.operator == "matmul_all_to_all" else all_to_all_matmul
        return function(comm, *tensors, counts=case.counts, **options)
    by_name = {"matmul_reduce_scatter": matmul_reduce_scatter, "heads_all_to_all": heads_all_to_all}
    return by_name.get(case.operator, sharded_linear)(comm, *tensors, rows=rows, **options)


def seed_of_gradient(case: Case, rank: int, like: Tensor) -> Tensor:
    """What flows back into the result of a rank."""
    make = torch.Generator().manual_seed(1000 * case.seed + 500 + rank)
    return torch.randn(like.shape, generator=make, dtype=torch.float64).to(like.dtype)


def run(comm: Any, case: Case) -> list[Tensor]:
    """The result and the gradients of this rank."""
    tensors = [each.requires_grad_() for each in inputs(case, comm.rank)]
    result = call(comm, case, tensors)
    grads = torch.autograd.grad(result, tensors, seed_of_gradient(case, comm.rank, result))
    return [result.detach().clone(), *grads]


def reference(case: Case) -> list[list[Tensor]]:
    """The same of all ranks, in fp64 in one process, of the very inputs."""
    whole = [[each.double().requires_grad_() for each in inputs(case, rank)] for rank in range(case.ranks)]
    results = _whole(case, whole)
    seeds = [seed_of_gradient(case, rank, y.to(case.dtype)).double() for rank, y in enumerate(results)]
    torch.autograd.backward(results, seeds)
    return [
        [y.detach(), *(torch.zeros_like(x) if x.grad is None else x.grad for x in xs)]
        for y, xs in zip(results, whole, strict=True)
    ]


def _whole(case: Case, tensors: list[list[Tensor]]) -> list[Tensor]:
    rows, n = list(case.rows), range(case.ranks)
    if case.operator == "all_gather_matmul":
        x = torch.cat([each[0] for each in tensors])
        return [x @ each[1] + (each[2] if case.bias else 0) for each in tensors]
    if case.operator == "matmul_reduce_scatter":
        return list(sum(x @ w for x, w in tensors).split(rows))
    if case.operator in ("matmul_all_to_all", "all_to_all_matmul"):
        first = case.operator == "matmul_all_to_all"
        parts = [((x @ w) if first else x).split(list(case.counts[s])) for s, (x, w) in enumerate(tensors)]
        came = [torch.cat([parts[s][d] for s in n]) for d in n]
        return came if first else [y @ w for y, (_, w) in zip(came, tensors, strict=True)]
    if case.operator == "heads_all_to_all":
        c = case.columns
        return [torch.cat([x @ w[:, r * c : (r + 1) * c] for x, w in tensors]) for r in n]
    if case.operator == "sharded_linear":
        weight = torch.cat([w for _, w in tensors])
        return [x @ weight.t() for x, _ in tensors]
    results = [attention(*each[:3], 0, case.causal) for each in tensors]
    if case.operator == "attention_projection":
        return list(sum(y @ each[3] for y, each in zip(results, tensors, strict=True)).split(rows))
    stacked = torch.stack([y.view(*y.shape[:2], case.heads, 4) for y in results], dim=2)
    return list(stacked.split(rows))


def check(case: Case, found: list[list[Tensor]]) -> None:
    """Asserts that what each rank found equals the reference within the type's tolerance."""
    for rank, (ours, theirs) in enumerate(zip(found, reference(case), strict=True)):
        for what, (mine, right) in enumerate(zip(ours, theirs, strict=True)):
            assert mine.shape == right.shape and mine.dtype == case.dtype, f"{case}, rank {rank}, result {what}"
            scale = max(float(right.abs().max()) if right.numel() else 0.0, 1.0)
            error = float((mine.double() - right).abs().max()) if right.numel() else 0.0
            assert error <= TOLERANCE[case.dtype] * scale * max(case.inner, 8) ** 0.5, (
                f"{case}, rank {rank}, {'result' if what == 0 else f'gradient {what - 1}'}: off by {error} at scale {scale}"
            )


def as_bits(tensors: list[Tensor]) -> list[np.ndarray]:
    """For a comparison bit by bit, and for files."""
    return [each.contiguous().view(-1).view(torch.uint8).numpy().copy() for each in tensors]
