"""The Communicator of a torch group: plans by classes of sizes, and all_to_all with blocks of any size.

Is: a torch program calls with many shapes, so a shape that is new must not cost a new plan. Is not: another engine.
Invariants: a schedule is in fractions of the message, so one that was proved serves every size of its class (the next power
of two), on all ranks alike; all ranks see the same counts, and so choose the same way to move uneven blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine.communicator import Communicator
from ..engine.device_arrays import on_device
from ..errors import ShapeError
from ..ir import Schedule

MAX_PROVED, MAX_KEPT = 512, 4
PADDED = 3  # blocks are padded to one size while that is at most this times their bytes
SMALL = 1 << 18  # bytes of all blocks of a rank, or that few


class GroupCommunicator(Communicator):
    """A Communicator whose calls may come in any number of shapes."""

    def __init__(self, job: Any) -> None:
        super().__init__(job)
        self._proved: dict[tuple[Any, ...], Schedule] = {}
        self._padded: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def _planned(self, collective: str, nbytes: int, algorithm: str, **details: Any) -> Schedule:
        if details.get("counts") is not None:
            return super()._planned(collective, nbytes, algorithm, **details)
        size = 1 << max(nbytes - 1, 0).bit_length() if nbytes else 0
        key = (collective, size, algorithm, tuple(details.items()))
        schedule = self._proved.get(key)
        if schedule is None:
            schedule = super()._planned(collective, size, algorithm, **details)
            if len(self._proved) >= MAX_PROVED:
                self._proved.clear()
            self._proved[key] = schedule
        return schedule

    def exchange(self, x: Any, sent: list[int], out: Any, *, async_op: bool = False, **options: Any) -> Any:
        """sent[d] elements of the flat x go to rank d; `out` gets what came, by rank. Waits for the peers; for arrays on a GPU only for
        their counts, and async_op is as in any collective.

        Raises ShapeError, on all ranks, where `out` does not hold what comes. Blocks that are not too different travel padded to one size:
        new counts then need no plan of their own.
        """
        mine = np.array(sent, np.int64)
        matrix = self.all_gather(mine, out=np.empty((self.size, self.size), np.int64), **options)
        came = matrix[:, self.rank]
        if int(came.sum()) != out.size:
            raise self._failed(
                ShapeError(
                    f"all_to_all on rank {self.rank}: expected an output of {int(came.sum())} elements, as the other ranks send, found "
                    f"{out.size}. Are the output splits of this rank the input splits of the others?",
                    rank=self.rank,
                )
            )
        if on_device(x, out):  # at its own sizes: padding would be a kernel of torch for each block
            return self._call("all_to_allv", x, out, counts=matrix, async_op=async_op, **options) if matrix.any() else None
        largest = _rounded(int(matrix.max()))
        moved = self.size * largest * x.itemsize
        if moved > SMALL and self.size * self.size * largest > PADDED * int(matrix.sum()):
            return self._call("all_to_allv", x, out, counts=matrix, **options)
        if largest == 0:
            return None
        source, target = self._scratch(moved)
        rows, got = source.view(x.dtype).reshape(self.size, -1), target.view(x.dtype).reshape(self.size, -1)
        at = 0
        for row, count in zip(rows, sent, strict=True):
            row[:count] = x[at : at + count]
            at += count
        self.all_to_all(rows, out=got, **options)
        at = 0
        for row, count in zip(got, came.tolist(), strict=True):
            out[at : at + count] = row[:count]
            at += count
        return None

    def _scratch(self, nbytes: int) -> tuple[np.ndarray, np.ndarray]:
        """Two registered buffers of exactly this many bytes; those of the last few sizes are kept."""
        found = self._padded.get(nbytes)
        if found is None:
            if len(self._padded) >= MAX_KEPT:
                self._padded.pop(next(iter(self._padded)))
            found = self._padded[nbytes] = self.empty(nbytes, "uint8"), self.empty(nbytes, "uint8")
        return found


def _rounded(count: int) -> int:
    """The next power of two, or one and a half of it: few sizes, and at most half of it in vain."""
    if count <= 2:
        return count
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if count <= power * 3 // 4 else power
