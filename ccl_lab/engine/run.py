"""A run in progress: wait for it, await it, cancel it, look at what it has done so far.

Is: a future of a Trace. Is not: bound to the notebook kernel's loop: it ends on the World's threads, and `await` only
listens. Invariants: it ends exactly once, with a Trace or with the first error; `wait` never outlasts its timeout.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from ..errors import CclError, OpTimeout
from ..ir import Schedule
from ..ir.layout import Layout
from ..trace import Trace
from .compute import Device
from .fault import Fault


class Run:
    """One execution of a schedule by a World, possibly repeated. Made by `World.start`.

    `inputs`, `outputs`: one 1-D array per rank, views of the ranks' memory: valid until the next run of this world starts,
    copy what you keep. `errors`: rank -> error, where a run failed. `members`: who took part, by rank; in an elastic world
    they, and with them schedule, layout and inputs, are those of the attempt that counts.
    """

    def __init__(
        self,
        number: int,
        schedule: Schedule,
        layout: Layout,
        redop: str,
        cancel: Callable[[Run, str], None],
        so_far: Callable[[Run], Trace],
        repeat: int = 1,
    ) -> None:
        self.number, self.schedule, self.layout, self.redop = number, schedule, layout, redop
        self.repeat = repeat
        self.inputs: list[np.ndarray] = []
        self.outputs: list[np.ndarray] = []
        self.errors: dict[int, CclError] = {}
        self.faults: list[Fault] = []  # of the script it was given
        self.without: tuple[tuple[int, int], ...] = ()  # (node, NIC) that it was planned to leave out
        self.compute: Device | None = None
        self.device: str | None = None  # what did the computation, once it is prepared
        self.state = "preparing"
        self.members: tuple[int, ...] = tuple(range(schedule.n_ranks))  # who takes part, by rank
        self.begin_s = 0.0  # time.monotonic() when the ranks were told to go; 0: not yet
        self._cancel, self._so_far = cancel, so_far
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Run], None]] = []
        self._trace: Trace | None = None
        self._error: CclError | None = None

    def done(self) -> bool:
        """True once it has ended, well or not."""
        return self._ended.is_set()

    def wait(self, timeout_s: float | None = None) -> Trace:
        """The trace, when all ranks are done. Raises the run's error, or OpTimeout if it is still going after `timeout_s`
        (the run goes on)."""
        if not self._ended.wait(timeout_s):
            raise OpTimeout(
                f"run {self.number} ({self.schedule.collective}) is still {self.state} after {timeout_s:g} s; it goes on. "
                "Wait again, or run.cancel()."
            )
        return self.result()

    def join(self, timeout_s: float) -> bool:
        """True once it has ended, well or not; waits at most `timeout_s`."""
        return self._ended.wait(timeout_s)

    def result(self) -> Trace:
        """The trace of an ended run; raises its error, or OpTimeout if it has not ended."""
        if self._error:
            raise self._error
        if self._trace is None:
            raise OpTimeout(f"run {self.number} has not ended; use run.wait().")
        return self._trace

    @property
    def trace(self) -> Trace:
        """The trace so far, also of a run that is going or has failed."""
        return self._trace if self._trace is not None else self._so_far(self)

    @property
    def error(self) -> CclError | None:
        """Why it failed; None if it did not."""
        return self._error

    def cancel(self, reason: str = "run.cancel()") -> None:
        """Stops it on every rank; it ends in AbortedError. Acts at once, also while a cell runs; nothing if it has ended."""
        if not self.done():
            self._cancel(self, reason)

    def add_done_callback(self, function: Callable[[Run], None]) -> None:
        """Calls `function(run)` when it ends (at once if it has), on a thread of the World."""
        with self._lock:
            if not self.done():
                self._callbacks.append(function)
                return
        function(self)

    def finish(self, trace: Trace, error: CclError | None) -> None:
        """Called once by the World."""
        self._trace, self._error = trace, error
        self.state = "failed" if error else "done"
        with self._lock:
            self._ended.set()
            callbacks, self._callbacks = self._callbacks, []
        for function in callbacks:
            function(self)

    def __await__(self) -> Generator[Any, None, Trace]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        self.add_done_callback(lambda _: loop.call_soon_threadsafe(wake))
        yield from future
        return self.result()

    def check(self) -> None:
        """Compares every output with the numpy reference of the inputs this run had; raises ContributionError naming rank
        and first wrong element. Exact for integers; floats must agree bit for bit with the schedule's definition."""
        from .check import check_outputs

        check_outputs(self)

    def __repr__(self) -> str:
        end = f": {self._error}" if self._error else ""
        return f"<Run {self.number} {self.schedule.collective} {self.schedule.algorithm}: {self.state}{end}>"
