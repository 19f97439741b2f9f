"""The torch operators, run by the definition of their schedules (lockstep): the right numbers and gradients, for any shape.

Is not: real ranks (test_overlap_torch_ranks.py).
"""

from __future__ import annotations

import pytest
import torch

from ccl_lab.errors import DtypeError, ShapeError, UsageError
from ccl_lab.overlap import tune
from ccl_lab.overlap.attention import attention_projection, heads_all_to_all
from ccl_lab.overlap.functions import all_gather_matmul, all_to_all_matmul, matmul_reduce_scatter
from ccl_lab.overlap.lockstep import lockstep
from ccl_lab.overlap.sharded import sharded_linear

from . import overlap_cases as cases

TYPES = [torch.float32, torch.bfloat16]
SEEDS, PER_TEST = 500, 25


def names(options):
    return "-".join(map(str, options.values()))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    "operator, options",
    [(operator, options) for operator in cases.OPERATORS for options in cases.schedules_of(operator)],
    ids=lambda value: value if isinstance(value, str) else names(value),
)
def test_results_and_gradients_equal_one_process(operator, options, dtype):
    for ranks in (2, 4):
        case = cases.Case(
            operator, ranks, options, dtype, rows=(6,) * ranks, counts=((6,) * ranks,) * ranks, inner=16, columns=8, seed=ranks
        )  # fmt: skip
        cases.check(case, lockstep(ranks, lambda comm, case=case: cases.run(comm, case)))


@pytest.mark.parametrize("first", range(0, SEEDS, PER_TEST))
def test_random_shapes(first):
    for seed in range(first, first + PER_TEST):
        case = cases.random_case(seed)
        cases.check(case, lockstep(case.ranks, lambda comm, case=case: cases.run(comm, case)))


@pytest.mark.parametrize("operator", cases.OPERATORS)
def test_gradients_by_differences(operator):
    """torch.autograd.gradcheck of one rank's inputs while the others go along."""
    case = cases.random_case(
        7, operator=operator, ranks=2, dtype=torch.float64, options={"schedule": "direct"}, batch=(), inner=2, columns=2, heads=1
    )  # fmt: skip

    def body(comm):
        tensors = [each.requires_grad_() for each in cases.inputs(case, comm.rank)]

        def total(*mine):
            # A function of all ranks' inputs that all ranks know, so that differences of one rank's are seen everywhere.
            y = cases.call(comm, case, list(mine))
            weights = cases.seed_of_gradient(case, comm.rank, y)
            value = (y * weights).sum()
            whole = comm.all_reduce(value.detach().numpy().reshape(1))
            return value + float(whole[0]) - value.detach()

        value = total(*tensors)
        grads = torch.autograd.grad(value, tensors)
        step, worst = 1e-6, 0.0
        for turn in range(comm.size):
            sizes = [int(n) for n in comm.all_gather(torch.tensor([sum(t.numel() for t in tensors)]).numpy())[:, 0]]
            for at in range(min(sizes[turn], 24)):
                values = []
                for sign in (1, -1):
                    moved = [each.detach().clone() for each in tensors]
                    if comm.rank == turn:
                        which, index = _place(moved, at * max(sizes[turn] // 24, 1) % sizes[turn])
                        moved[which].view(-1)[index] += sign * step
                    values.append(float(total(*moved)))
                if comm.rank == turn:
                    slope = (values[0] - values[1]) / (2 * step)
                    worst = max(worst, abs(slope - float(grads[which].reshape(-1)[index])))
        return worst

    assert max(lockstep(2, body)) < 1e-6


def _place(tensors, at):
    for which, each in enumerate(tensors):
        if at < each.numel():
            return which, at
        at -= each.numel()
    raise AssertionError(at)


def test_the_same_bits_every_time():
    for options in cases.SCHEDULES:
        case = cases.Case("matmul_reduce_scatter", 4, options, rows=(5, 3, 4, 4), inner=16, seed=3)
        first, second = (
            [cases.as_bits(each) for each in lockstep(4, lambda comm, case=case: cases.run(comm, case))]
            for _ in range(2)
        )
        assert all((a == b).all() for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True))


def test_auto_measures_once_chooses_the_same_everywhere_and_says_why():
    def body(comm):
        x, w = torch.randn(4, 8), torch.randn(8, 8)
        for _ in range(2):
            all_gather_matmul(comm, x.requires_grad_(), w.requires_grad_()).sum().backward()
        return tune.choices(comm)

    found = lockstep(3, body)
    assert found[0] and all(
        {key: (c.schedule, c.k, c.m) for key, c in each.items()}
        == {key: (c.schedule, c.k, c.m) for key, c in found[0].items()}
        for each in found
    )
    assert {key[0] for key in found[0]} == {"all_gather_matmul", "matmul_reduce_scatter"}
    assert all(choice.reasons for choice in found[0].values())


def test_what_a_caller_holds_does_not_change():
    def body(comm):
        x, w = torch.randn(4, 8), torch.randn(8, 8)
        first = matmul_reduce_scatter(comm, x, w, schedule="direct")
        kept = first.clone()
        matmul_reduce_scatter(comm, x + 1, w, schedule="direct")
        return torch.equal(first, kept)

    assert all(lockstep(2, body))


def test_no_graph_without_gradients():
    def body(comm):
        q = torch.randn(4, 1, 2, 4, requires_grad=True)
        with torch.no_grad():
            return attention_projection(comm, q, q, q, torch.randn(8, 3), schedule="direct").requires_grad

    assert lockstep(2, body) == [False, False]


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda c: all_gather_matmul(c, torch.ones(2, 3), torch.ones(4, 5)), ShapeError, r"\[2, 3\] and \[4, 5\]"),
        (lambda c: all_gather_matmul(c, torch.ones(2, 3), torch.ones(5, 3)), ShapeError, r"weight\.t\(\)"),
        (lambda c: all_gather_matmul(c, torch.ones(2, 3), torch.ones(3, 5).double()), DtypeError, "one dtype"),
        (lambda c: all_gather_matmul(c, torch.ones(2, 3).half(), torch.ones(3, 5).half()), DtypeError, "float16"),
        (lambda c: all_gather_matmul(c, torch.ones(2, 3), torch.ones(3, 5), rows=[1, 1]), ShapeError, "x has 2"),
        (lambda c: matmul_reduce_scatter(c, torch.ones(4, 3), torch.ones(3, 5), rows=[1, 1]), ShapeError, "add up to"),
        (lambda c: all_to_all_matmul(c, torch.ones(3, 3), torch.ones(3, 5)), ShapeError, "equal blocks"),
        (lambda c: all_to_all_matmul(c, torch.ones(3, 3), torch.ones(3, 5), counts=[[1]]), ShapeError, "lines"),
        (lambda c: matmul_reduce_scatter(c, torch.ones(4, 3), torch.ones(3, 5), schedule="fast"), UsageError, "expected one of"),
        (lambda c: all_to_all_matmul(c, torch.ones(4, 3), torch.ones(3, 5), schedule="ring"), UsageError, "use direct"),
        (lambda c: attention_projection(c, *[torch.ones(4, 1, 2, 4)] * 3, torch.ones(7, 3)), ShapeError, "2 heads"),
        (lambda c: heads_all_to_all(c, torch.ones(4, 1, 3), torch.ones(3, 3)), ShapeError, "multiple of 2"),
        (lambda c: sharded_linear(c, torch.ones(4, 3), torch.ones(2, 4)), ShapeError, "sharded_linear"),
    ],
)
def test_errors_say_what_is_wrong(call, error, words):
    with pytest.raises(error, match=words):
        lockstep(2, call)
