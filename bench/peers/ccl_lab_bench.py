"""Our Python path as a party of the bench: `ccl_lab.init()`'s communicator on plain or registered arrays.

Is: ranks forked after one import, as the other Python programs do. Is not: the native path (ccl_lab_bench).
Invariants: protocol of `py_core`; public names only; `--buffers registered` takes arrays from `Communicator.empty`.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

import numpy as np
import py_core

import ccl_lab
import ccl_lab.planner  # noqa: F401  imported before the fork, as a user's program has by its first call
import ccl_lab.verifier  # noqa: F401


class Ours:
    """A Communicator and its buffers."""

    def __init__(self, registered: bool) -> None:
        self.comm = ccl_lab.init()
        self.rank, self.size, self._registered = self.comm.rank, self.comm.size, registered
        self._one = self.buffer(self.size)[1]

    def buffer(self, count: int) -> tuple[Any, np.ndarray]:
        array = self.comm.empty(count, "float32") if self._registered else np.empty(count, np.float32)
        array[:] = 0
        return array, array

    def bind(self, op: str, in_place: bool, source: Any, target: Any) -> Any:
        comm, size = self.comm, self.size
        if op == "ping_pong":
            return py_core.ping_pong(self, target, self.comm.send, self.comm.recv)
        if in_place and op in py_core.SPLIT:
            return None
        blocked = source.reshape(size, -1) if op in ("reduce_scatter", "all_to_all") else source
        return {
            "all_reduce": lambda: comm.all_reduce(source, out=target),
            "all_gather": lambda: comm.all_gather(source, out=target),
            "reduce_scatter": lambda: comm.reduce_scatter(blocked, out=target),
            "all_to_all": lambda: comm.all_to_all(blocked, out=target),
            "broadcast": lambda: comm.broadcast(target),
            "barrier": lambda: comm.barrier(),
        }.get(op)

    def max_over_ranks(self, value: float) -> float:
        mine = np.full(1, value, np.float64)
        return float(self.comm.all_reduce(mine, "max")[0])

    def wait_for_all(self) -> None:
        self.comm.barrier()


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def one_rank(rank: int, rendezvous: str, options: Any) -> None:
    """The whole life of a rank."""
    os.environ.update(
        CCL_LAB_RANK=str(rank), CCL_LAB_WORLD_SIZE=str(options.ranks), CCL_LAB_RENDEZVOUS=rendezvous
    )
    library = Ours(options.buffers == "registered")
    py_core.run_all(library, options)
    library.wait_for_all()
    library.comm.close()


def main() -> int:
    """Forks the ranks; returns non-zero if one failed."""
    options = py_core.arguments()
    rendezvous = f"127.0.0.1:{free_port()}"
    return py_core.fork_ranks("ccl_lab_bench", options.ranks, lambda rank: one_rank(rank, rendezvous, options))



if __name__ == "__main__":
    sys.exit(main())
