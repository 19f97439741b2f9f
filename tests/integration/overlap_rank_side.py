"""What the processes of test_overlap_torch_ranks.py run: all cases, their results to files.

Is not: a test. Invariants: the ranks and the emulation go through the same cases in the same order; ranks are forked when torch is
there, which takes longer to load than all cases take to run.

    python overlap_rank_side.py FOLDER PORT: emulates, then runs ranks over each transport
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import overlap_cases as cases
import torch
from torch import nn

import ccl_lab as ccl
from ccl_lab.overlap import data, layers, parallel, tune
from ccl_lab.overlap.functions import all_gather_matmul, matmul_reduce_scatter
from ccl_lab.overlap.lockstep import lockstep

SEEDED = threading.Lock()  # torch's generator is one for all threads, and the emulation's ranks are threads
N = 3
SEEDS = range(1000, 1040)


def all_cases(n: int) -> list[cases.Case]:
    """Every operator under every schedule, and some random shapes."""
    some = [
        cases.Case(operator, n, options, dtype, rows=(8,) * n, counts=((8,) * n,) * n, inner=32, columns=16, seed=5)
        for operator in cases.OPERATORS
        for options in cases.schedules_of(operator)
        for dtype in (torch.float32, torch.bfloat16)
    ]
    return some + [cases.random_case(seed, ranks=n) for seed in SEEDS]


def run_cases(comm: Any, folder: str, name: str = "rank") -> None:
    """Results and gradients of this rank: `<case>.<tensor>` in one file."""
    found = {}
    for number, case in enumerate(all_cases(comm.size)):
        for at, bits in enumerate(cases.as_bits(cases.run(comm, case))):
            found[f"{number}.{at}"] = bits
    found |= {f"layers.{at}": bits for at, bits in enumerate(cases.as_bits(_layers(comm)))}
    np.savez(Path(folder) / f"{name}{comm.rank}.npz", **found)


def emulate(n: int, folder: str) -> None:
    """The same by the definition of the schedules, in this process."""
    lockstep(n, lambda comm: run_cases(comm, folder, "emulated"))


def _layers(comm: Any) -> list[torch.Tensor]:
    """Two steps of a small model, tensor parallel and then data parallel."""
    with SEEDED:
        torch.manual_seed(0)
        model = nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12), nn.MultiheadAttention(12, 3))
        second = nn.Sequential(nn.Linear(12, 12), nn.LayerNorm(12))
    plan = {
        "0": parallel.SequenceParallel(),
        "1": parallel.ColwiseParallel(schedule="ring"),
        "3": parallel.RowwiseParallel(schedule="direct", sub_slices=2),
        "4": parallel.UlyssesParallel(schedule="direct"),
    }
    parallel.parallelize(model, comm, plan)
    x = torch.randn(4, 2, 12, generator=torch.Generator().manual_seed(comm.rank))
    y = model(x)
    y.square().sum().backward()
    found = [y.detach(), *(each.grad for each in model.parameters())]
    whole = data.DataParallel(second, comm, bucket_nbytes=400)
    optimizer = torch.optim.SGD(whole.shards(), lr=0.1)
    for _ in range(2):
        whole(x).square().mean().backward()
        whole.step(optimizer)
    whole.synchronize()
    # Its plain collectives may add in another order than that of ranks: run here, compared in test_overlap_layers.py.
    assert all(each.isfinite().all() for each in whole.parameters())
    sharded = layers.ShardedLinear(comm, 12, 7, schedule="ring")
    sharded(x).sum().backward()
    return [*found, sharded.weight.grad]


def behave(comm: Any) -> None:
    """Memory stays bounded, choices agree, errors reach every rank and the communicator can be reset."""
    x, w = torch.randn(8, 64), torch.randn(64, 64)
    for _ in range(3):
        all_gather_matmul(comm, x, w, schedule="ring")
    before = comm.memory()
    for _ in range(50):
        y = matmul_reduce_scatter(comm, all_gather_matmul(comm, x, w, schedule="ring"), w, schedule="direct")
    after = comm.memory()
    assert y.shape == (8, 64)
    assert after["registered_bytes"] <= before["registered_bytes"] + (1 << 20), (before, after)
    for _ in range(2):
        all_gather_matmul(comm, x, w)
    (choice,) = tune.choices(comm).values()
    names = comm.all_gather(np.array([hash((choice.k, choice.m)), len(choice.schedule)]))
    assert (names == names[0]).all() and choice.reasons

    class Broken(Exception):
        pass

    def fails(*_: Any, **__: Any) -> None:
        raise Broken("on purpose")

    original = torch.mm
    try:
        if comm.rank == 1:
            torch.mm = fails
        try:
            all_gather_matmul(comm, x, w, schedule="ring")
            comm.barrier()  # who had all he needed hears of it here
            raise AssertionError("nothing was raised")
        except Exception as error:
            said = repr(error)
            assert "on purpose" in said, said
    finally:
        torch.mm = original
    comm.reset()
    assert all_gather_matmul(comm, x, w, schedule="ring").shape == (8 * comm.size, 64)


def on_ranks(port: int, transport: str, work: Callable[[Any], None]) -> None:
    """work(comm) in N forked ranks; ends this process with what went wrong."""
    children = []
    for rank in range(N):
        child = os.fork()
        if child == 0:
            os.environ |= {
                "CCL_LAB_RANK": str(rank), "CCL_LAB_WORLD_SIZE": str(N), "CCL_LAB_RENDEZVOUS": f"127.0.0.1:{port}",
                "CCL_LAB_TRANSPORT": transport, "CCL_LAB_TIMEOUT": "60s",
            }  # fmt: skip
            status = 1
            try:
                with ccl.init() as comm:
                    work(comm)
                status = 0
            except BaseException:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(status)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    if any(statuses):
        sys.exit(f"a rank over {transport} failed")


def main(folder: str, port: int) -> None:
    """All of it, in this order: what forks comes before what starts threads."""
    for at, transport in enumerate(("shm", "tcp")):
        on_ranks(port + at, transport, lambda comm, transport=transport: run_cases(comm, folder, transport))
    on_ranks(port + 2, "shm", behave)
    emulate(N, folder)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
