"""mpi4py as a peer: MPI as a Python user calls it, on numpy arrays.

Is: the seven operations by their buffer methods. Is not: pickled objects. Invariants: protocol of `py_core`; ranks come
from the MPI's own launcher.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import py_core
from mpi4py import MPI


class Mpi4py:
    """COMM_WORLD."""

    def __init__(self) -> None:
        self.comm = MPI.COMM_WORLD
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()

    def buffer(self, count: int) -> tuple[Any, np.ndarray]:
        array = np.zeros(count, np.float32)
        return array, array

    def bind(self, op: str, in_place: bool, source: Any, target: Any) -> Any:
        comm = self.comm
        given = MPI.IN_PLACE if in_place else source
        if op == "ping_pong":
            return py_core.ping_pong(self, target, self.comm.Send, self.comm.Recv)
        if in_place and op in ("reduce_scatter", "all_gather"):
            return None  # the block of numpy that MPI.IN_PLACE means is not the one py_core fills
        return {
            "all_reduce": lambda: comm.Allreduce(given, target),
            "all_gather": lambda: comm.Allgather(given, target),
            "reduce_scatter": lambda: comm.Reduce_scatter_block(given, target),
            "all_to_all": lambda: comm.Alltoall(given, target),
            "broadcast": lambda: comm.Bcast(target, 0),
            "barrier": lambda: comm.Barrier(),
        }.get(op)

    def max_over_ranks(self, value: float) -> float:
        return self.comm.allreduce(value, MPI.MAX)

    def wait_for_all(self) -> None:
        self.comm.Barrier()


if __name__ == "__main__":
    py_core.run_all(Mpi4py(), py_core.arguments())
