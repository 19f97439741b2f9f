"""What the operators of one communicator keep between calls: schedules, registered memory, choices.

Is: caches. Is not: a computation. Invariants: one buffer a role, grown as needed, in use by one call at a time (calls of a
communicator are one after the other); what is handed to a user or saved for backward is memory of its own, so nothing that a
caller holds ever changes under it; ranks that make the same calls hold equal caches.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import UsageError
from ..ir import Schedule, collectives
from .operators import SCHEDULES
from .plan import plan
from .rows import Partition, padded_rows, partitions_of

MAX_KEPT = 256


@dataclass(frozen=True)
class How:
    """A schedule by name: `slices` (k) of k_slice, `sub_slices` (m) and `adds` of ring and direct, as `plan` takes them."""

    schedule: str = "auto"
    slices: int = 4
    sub_slices: int = 1
    adds: str | None = None


def how_of(schedule: Any, slices: int | None, sub_slices: int | None) -> How:
    """From what a caller gave: a name, a How, or a Choice of `overlap.choose`. Raises UsageError for anything else."""
    if isinstance(schedule, How):
        return schedule
    if isinstance(schedule, str) and schedule in SCHEDULES:
        return How(schedule, 4 if slices is None else int(slices), 1 if sub_slices is None else int(sub_slices))
    if hasattr(schedule, "schedule") and hasattr(schedule, "k") and hasattr(schedule, "m"):
        return How(schedule.schedule, schedule.k or 1, schedule.m or 1, schedule.adds)
    raise UsageError(f"schedule {schedule!r}: expected one of {', '.join(SCHEDULES)}, or a Choice of overlap.choose.")


@dataclass(frozen=True)
class Planned:
    """A schedule at one shape, and what its partitions cover on this rank."""

    schedule: Schedule
    padded: int
    partitions: dict[int, Partition]


class Workspace:
    """Of one communicator; get it by `workspace_of`."""

    def __init__(self, comm: Any) -> None:
        self._comm = weakref.ref(comm)
        self._buffers: dict[str, np.ndarray] = {}
        self._schedules: OrderedDict[tuple[Any, ...], Schedule] = OrderedDict()
        self._planned: OrderedDict[tuple[Any, ...], Planned] = OrderedDict()
        self._handed: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self.choices: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        self.hops: dict[int, tuple[float, float]] = {}

    def planned(self, operator: str, how: How, rows: tuple[int, ...], width: int, dtype: str, most: int) -> Planned:
        """`rows`: real rows of each block of this rank; `most`: the largest block of any rank; `width`: elements of a row."""
        comm = self._comm()
        assert comm is not None
        key = (operator, how, rows, width, dtype, most)
        found = self._planned.get(key)
        if found is None:
            schedule = self._schedule(comm.size, operator, how, width, dtype, most)
            padded = padded_rows((most,), schedule.parts)
            found = Planned(schedule, padded, partitions_of(schedule, comm.rank, padded, rows))
            _keep(self._planned, key, found)
        return found

    def _schedule(self, size: int, operator: str, how: How, width: int, dtype: str, most: int) -> Schedule:
        nbytes = size * most * width * collectives.itemsize(dtype)
        key = (operator, how, nbytes, dtype)
        found = self._schedules.get(key)
        if found is None:
            # What is gathered goes where the own shard lies; a sum in place would keep all the blocks it was made of.
            found = plan(
                operator, how.schedule, size, slices=how.slices, sub_slices=how.sub_slices, adds=how.adds, dtype=dtype,
                nbytes=nbytes, in_place=operator == "all_gather_matmul",
            )  # fmt: skip
            _keep(self._schedules, key, found)
        return found

    def buffer(self, role: str, elements: int, dtype: str) -> np.ndarray:
        """Flat registered memory for the length of a call; what it held is gone."""
        kind = collectives.numpy_dtype(dtype)
        held, nbytes = self._buffers.get(role), elements * kind.itemsize
        if held is None or held.nbytes < nbytes:
            self._buffers.pop(role, None)
            del held
            held = self._buffers[role] = self._empty(1 << max(nbytes - 1, 4095).bit_length())
        return held[:nbytes].view(kind)

    def fresh(self, elements: int, dtype: str) -> np.ndarray:
        """Flat registered memory that belongs to the caller: it is free again when nobody holds it."""
        kind = collectives.numpy_dtype(dtype)
        array = self._empty(max(elements * kind.itemsize, 1))
        self._handed[array.ctypes.data] = array
        return array[: elements * kind.itemsize].view(kind)

    def _empty(self, nbytes: int) -> np.ndarray:
        comm = self._comm()
        assert comm is not None
        return comm.empty(nbytes, "uint8")

    def holds(self, address: int, nbytes: int) -> bool:
        """True if these bytes begin a buffer that `fresh` gave and somebody still has."""
        array = self._handed.get(address)
        return array is not None and array.nbytes >= nbytes


def _keep(cache: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    cache[key] = value
    if len(cache) > MAX_KEPT:
        cache.popitem(last=False)


_OF: weakref.WeakKeyDictionary[Any, Workspace] = weakref.WeakKeyDictionary()


def workspace_of(comm: Any) -> Workspace:
    """The workspace of a communicator; it goes with it."""
    found = _OF.get(comm)
    if found is None:
        found = _OF[comm] = Workspace(comm)
    return found
