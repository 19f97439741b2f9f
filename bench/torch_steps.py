"""Training steps over the torch backend and over Gloo, in turn, in the same processes: who takes longer?

Is: two ranks on one machine, one thread of torch each; each model exists once per backend, and their steps alternate, so that
a pair of steps saw the same machine. What counts is the ratio of a pair. Is not: a measurement of networks, nor of a GPU.
Invariants: both copies begin with the same parameters and see the same data, and must end with the same ones.
"""

from __future__ import annotations

import datetime
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from .record import percentiles

RANKS, PAIRS, WARM_UP = 2, 25, 4
WIDTH, LAYERS, BATCH = 1250, 16, 64  # 16 x (1250 x 1250 + 1250) = 25.0 M parameters
BACKENDS = ("ccl_lab", "gloo")


def _network(layers: int = LAYERS, width: int = WIDTH) -> torch.nn.Module:
    torch.manual_seed(1)
    blocks = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh()) for _ in range(layers)]
    return torch.nn.Sequential(*blocks)


def _ddp(group: Any) -> Callable[[torch.Tensor], torch.nn.Module]:
    return DistributedDataParallel(_network(), process_group=group)


def _fsdp(group: Any) -> torch.nn.Module:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(group, "cpu", mesh=list(range(RANKS)))
    network = _network()
    for block in network:
        fully_shard(block, mesh=mesh)
    return fully_shard(network, mesh=mesh)


class _Tensor:
    """A DTensor matmul whose operand is gathered: [BATCH, WIDTH] x [WIDTH, WIDTH], rows and columns sharded."""

    def __init__(self, group: Any) -> None:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        torch.manual_seed(2)
        mesh = DeviceMesh.from_group(group, "cpu", mesh=list(range(RANKS)))
        self.weight = distribute_tensor(torch.randn(WIDTH, WIDTH), mesh, [Shard(0)])
        self.mesh, self.placements = mesh, ([Shard(1)], [Replicate()])

    def step(self, batch: torch.Tensor) -> torch.Tensor:
        """The product, whole on every rank."""
        from torch.distributed.tensor import distribute_tensor

        x = distribute_tensor(batch, self.mesh, self.placements[0], src_data_rank=None)
        return (x @ self.weight).redistribute(placements=self.placements[1]).to_local()


def _trainer(model: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _all_reduce(group: Any, elements: int, repeat: int) -> Callable[[torch.Tensor], torch.Tensor]:
    data = torch.ones(elements)

    def step(batch: torch.Tensor) -> torch.Tensor:
        for _ in range(repeat):
            data.fill_(1.0)
            dist.all_reduce(data, group=group)
        return data[:1].clone()

    return step


CASES: dict[str, Callable[[Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "ddp_25m": lambda group: _trainer(_ddp(group)),  # type: ignore[arg-type]
    "fsdp2_25m": lambda group: _trainer(_fsdp(group)),
    "dtensor_matmul": lambda group: _Tensor(group).step,
    "all_reduce_4KiB_100_times": lambda group: _all_reduce(group, 1 << 10, 100),
    "all_reduce_25MiB_twice": lambda group: _all_reduce(group, 25 << 18, 2),
}


def _timed(case: str, groups: dict[str, Any], rank: int, pairs: int) -> dict[str, Any]:
    steps = {name: CASES[case](group) for name, group in groups.items()}
    times: dict[str, list[float]] = {name: [] for name in groups}
    apart = 0.0
    for turn in range(WARM_UP + pairs):
        torch.manual_seed(100 * turn + rank)
        batch, results = torch.randn(BATCH, WIDTH), {}
        for name in BACKENDS if turn % 2 else BACKENDS[::-1]:
            dist.barrier(groups["gloo"])
            begin = time.perf_counter()
            results[name] = steps[name](batch)
            if turn >= WARM_UP:
                times[name].append(time.perf_counter() - begin)
        apart = max(apart, float((results["ccl_lab"] - results["gloo"]).abs().max()))
    ratios = [ours / theirs for ours, theirs in zip(times["ccl_lab"], times["gloo"], strict=True)]
    return {
        "ratio": percentiles(ratios),
        "ms": {name: percentiles([1e3 * t for t in found]) for name, found in times.items()},
        "largest_difference": apart,
    }


def _rank(rank: int, store: str, out: str, cases: list[str], pairs: int) -> None:
    import ccl_lab.torch_backend  # noqa: F401 - registers the backend

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS, timeout=datetime.timedelta(seconds=60)
    )
    groups = {name: dist.new_group(backend=name) for name in BACKENDS}
    found = {case: _timed(case, groups, rank, pairs) for case in cases}
    if rank == 0:
        Path(out).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def measure(cases: list[str] | None = None, pairs: int = PAIRS) -> dict[str, Any]:
    """{case: {ratio, ms, largest_difference}}; a ratio is our time over Gloo's in one pair of steps."""
    with tempfile.TemporaryDirectory() as folder:
        store, out = str(Path(folder) / "store"), str(Path(folder) / "out")
        mp.spawn(_rank, (store, out, cases or list(CASES), pairs), nprocs=RANKS)
        return json.loads(Path(out).read_text())


def run() -> dict[str, Any]:
    """The facts of the record."""
    cases = measure()
    words = ", ".join(f"{case} {found['ratio']['p50']:.2f}" for case, found in cases.items())
    return {
        "summary": f"step time over Gloo's, median of {PAIRS} pairs: {words}",
        "ranks": RANKS,
        "torch": torch.__version__,
        "parameters": sum(p.numel() for p in _network().parameters()),
        "cases": cases,
    }
