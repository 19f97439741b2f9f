"""Gloo through torch.distributed as a peer: what a torch user gets without an accelerator.

Is: ranks forked after one import, a file as rendezvous. Is not: a test of torch. Invariants: protocol of `py_core`;
all_reduce of torch is in place, so out of place it is a copy and the call, as its user would have to write it.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import numpy as np
import py_core
import torch
import torch.distributed as dist


class Gloo:
    """torch.distributed's Gloo backend, one rank."""

    def __init__(self, rank: int, size: int, store: str) -> None:
        self.rank, self.size = rank, size
        torch.set_num_threads(1)
        dist.init_process_group("gloo", rank=rank, world_size=size, init_method=f"file://{store}")

    def buffer(self, count: int) -> tuple[Any, np.ndarray]:
        tensor = torch.zeros(count, dtype=torch.float32)
        return tensor, tensor.numpy()

    def bind(self, op: str, in_place: bool, source: Any, target: Any) -> Any:
        if op == "all_reduce":
            if in_place:
                return lambda: dist.all_reduce(target)

            def copied() -> None:
                target.copy_(source)
                dist.all_reduce(target)

            return copied
        if op == "ping_pong":
            return py_core.ping_pong(self, target, dist.send, dist.recv)
        calls = {
            "all_gather": lambda: dist.all_gather_into_tensor(target, source),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(target, source),
            "all_to_all": lambda: dist.all_to_all_single(target, source),
        }
        if op in calls:
            return None if in_place else calls[op]
        return {"broadcast": lambda: dist.broadcast(target, 0), "barrier": lambda: dist.barrier()}.get(op)

    def max_over_ranks(self, value: float) -> float:
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return float(tensor[0])

    def wait_for_all(self) -> None:
        dist.barrier()


def one_rank(rank: int, options: Any, store: str) -> None:
    """The whole life of a rank."""
    library = Gloo(rank, options.ranks, store)
    py_core.run_all(library, options)
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    """Forks the ranks; returns non-zero if one failed."""
    options = py_core.arguments()
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/store"
        return py_core.fork_ranks("torch_bench", options.ranks, lambda rank: one_rank(rank, options, store))



if __name__ == "__main__":
    sys.exit(main())
