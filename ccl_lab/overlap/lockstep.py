"""Ranks as threads of one process that run a schedule by its definition, one op after the other.

Is: the sequential emulation that the operators' results are judged against, bit for bit, and a way to try them without starting
processes. Is not: parallel, or fast. Invariants: the ops of all ranks run in one order that respects programs and signals
(`ir.interpret`); an error of one rank is raised by all of them, that one first.

    outputs = lockstep(4, lambda comm: overlap.all_gather_matmul(comm, shards[comm.rank], weight))
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from ..errors import AbortedError, ShapeError, UsageError
from ..ir import Schedule, collectives, interpret

T = TypeVar("T")
WAIT_S = 60.0


class _Meeting:
    """Where the calls of all ranks meet: whoever comes last does the work for all."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.error: BaseException | None = None
        self.calls: dict[int, Any] = {}
        self.results: dict[int, Any] = {}
        self._barrier = threading.Barrier(size)

    def call(self, rank: int, what: Any, work: Callable[[dict[int, Any]], dict[int, Any]]) -> Any:
        """Gives `what`; returns the result for `rank` of work({rank: what})."""
        self.calls[rank] = what
        if self._await() == 0:
            try:
                self.results = work(self.calls)
            except BaseException as error:
                self.fail(error)
        self._await()
        result = self.results.get(rank)
        self._await()  # nobody gives a new call before all have their result
        return result

    def fail(self, error: BaseException) -> None:
        self.error = self.error or error
        self._barrier.abort()

    def _await(self) -> int:
        try:
            return self._barrier.wait(WAIT_S)
        except threading.BrokenBarrierError:
            raise self.error or AbortedError("another rank of this lockstep group did not come.") from None


class _Done:
    """A Work that has ended."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def done(self) -> bool:
        return True

    def wait(self, timeout: Any = None) -> Any:
        return self._result


class LockstepCommunicator:
    """Rank `rank` of `size`; has what the operators of `overlap` use of a Communicator, with the same meaning."""

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        self.rank, self.size, self._meeting = rank, meeting.size, meeting

    def empty(self, shape: int | tuple[int, ...], dtype: str = "float32") -> np.ndarray:
        """An array of ordinary memory; it begins as NaN (floats), so that reading what nobody wrote is seen."""
        array = np.empty(shape, collectives.numpy_dtype(dtype))
        if dtype in collectives.FLOATS:
            array.fill(np.nan)
        return array

    def run(
        self, schedule: Schedule, x: Any = None, *, out: Any = None, compute: Any = None, timeout: Any = None
    ) -> Any:
        """As `Communicator.run`. All ranks must give schedules that are equal, else UsageError."""
        del timeout
        return self._meeting.call(self.rank, (schedule, x, out, compute), _interpret)

    def all_reduce(self, x: Any, op: str = "sum", *, out: Any = None, async_op: bool = False) -> Any:
        """Every rank gets the reduction, added in the order of ranks. Collectives have ended when they return, async_op or not."""
        total = self._meeting.call(self.rank, np.asarray(x).reshape(-1), lambda calls: _all_reduce(calls, op))
        target = np.empty_like(np.asarray(x)) if out is None else out
        target.reshape(-1)[:] = total
        return _Done(target) if async_op else target

    def all_gather(self, x: Any, *, out: Any = None, async_op: bool = False) -> Any:
        """Every rank gets all x, stacked by rank."""
        stacked = self._meeting.call(self.rank, np.asarray(x).copy(), _all_gather)
        target = np.empty_like(stacked) if out is None else out
        target[...] = stacked.reshape(target.shape)
        return _Done(target) if async_op else target

    def reduce_scatter(self, x: Any, op: str = "sum", *, out: Any = None, async_op: bool = False) -> Any:
        """Rank r gets the reduction of x[r], added in the order of ranks."""
        whole = self.all_reduce(x, op)[self.rank]
        target = np.empty_like(whole) if out is None else out
        target[...] = whole
        return _Done(target) if async_op else target

    def barrier(self) -> None:
        """No rank returns before all have entered."""
        self._meeting.call(self.rank, None, lambda calls: {})


def _interpret(calls: dict[int, Any]) -> dict[int, Any]:
    schedule = calls[0][0]
    if any(call[0] is not schedule and call[0].digest != schedule.digest for call in calls.values()):
        raise UsageError("ranks gave different schedules to run: they must plan the same.")
    inputs = [_flat(calls[rank][1]) for rank in range(len(calls))]
    sizes = {array.size for array in inputs}
    if len(sizes) > 1:
        raise ShapeError(f"ranks gave inputs of different sizes {sorted(sizes)}: blocks must be padded to one size.")
    functions = {rank: call[3] for rank, call in calls.items()}

    def compute(rank: int, partition: int, target: Any, sources: Any) -> None:
        functions[rank](partition, target, sources)

    outputs = interpret(schedule, inputs, compute=compute)
    for rank, (_, _, out, _) in calls.items():
        if out is not None:
            _flat(out)[:] = outputs[rank]
    return {rank: call[2] for rank, call in calls.items()}


def _flat(array: Any) -> np.ndarray:
    return np.asarray(array).reshape(-1)


def _all_reduce(calls: dict[int, Any], op: str) -> dict[int, Any]:
    total = collectives.accumulate([calls[rank] for rank in range(len(calls))], op)
    return dict.fromkeys(calls, collectives.finish(total, op, len(calls)))


def _all_gather(calls: dict[int, Any]) -> dict[int, Any]:
    return dict.fromkeys(calls, np.stack([calls[rank] for rank in range(len(calls))]))


def lockstep(size: int, body: Callable[[LockstepCommunicator], T]) -> list[T]:
    """body(comm) on `size` ranks; their results by rank. Raises the first error of a rank."""
    meeting = _Meeting(size)

    def one(rank: int) -> T:
        try:
            return body(LockstepCommunicator(rank, meeting))
        except BaseException as error:
            meeting.fail(error)
            raise

    with ThreadPoolExecutor(size, thread_name_prefix="ccl_lab-lockstep") as pool:
        futures = [pool.submit(one, rank) for rank in range(size)]
        errors = [error for error in (future.exception() for future in futures) if error is not None]
    if errors:
        raise meeting.error or errors[0]
    return [future.result() for future in futures]


__all__ = ["LockstepCommunicator", "lockstep"]
