"""The host holds a stream of a GPU while it runs a collective, and tells the others when the GPU of this rank fails.

Is: pinned memory, the runs on it in the order of their calls, and the thread that hears of failures though nobody waits for a result.
Is not: a collective (staged.py), nor the flags and streams (native/src/device/stage.hpp). Invariants: a call never waits for the GPU;
pinned memory goes back to the pool when its run has ended, and after a failure when the stage is closed; what a run uses is kept alive
until then.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..errors import AbortedError, CclError
from .device_arrays import DeviceArray
from .status import code_of

if TYPE_CHECKING:
    from .member import Member

LEAST_BYTES = 1 << 16  # of a piece of pinned memory: whole pages
LOOK_S = 0.1
_KEPT: list[Any] = []  # of runs to which a stream did not come in time: it may still use their memory


class Watch:
    """A thread that hears of the failure of a session on a GPU: the other ranks are told at once. `close` it before the session."""

    def __init__(self, session: Any, failed: Callable[[CclError], CclError]) -> None:
        self._session, self._failed, self._closed = session, failed, False
        self._thread = threading.Thread(target=self._look, name="ccl_lab/gpu", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._closed:
            if not self._session.await_failure(LOOK_S):
                continue
            try:
                self._session.check()
            except CclError as error:
                if not self._closed:
                    self._failed(error)
            return

    def close(self) -> None:
        """Ends the thread."""
        self._closed = True
        self._thread.join()


class HeldStream:
    """The stage of one rank on GPU `ordinal`. Calls come from any thread, and are run in the order in which they came."""

    def __init__(self, member: Member, ordinal: int, library: str, failed: Callable[[CclError], CclError]) -> None:
        self._member = member
        self.native = _core.DeviceStage(member.engine, ordinal, member.options.timeout_s, library)
        self._lock = threading.Lock()
        self._free: dict[int, list[np.ndarray]] = defaultdict(list)
        self._running: list[tuple[int, list[np.ndarray], Any]] = []  # number of the run, its pinned memory, what it keeps alive
        self._watch = Watch(self.native, failed)

    def pinned(self, nbytes: int) -> np.ndarray:
        """u8 memory of the host that GPU and NICs read and write; `run` gives it back. RegistrationError where none can be pinned."""
        size = max(LEAST_BYTES, 1 << max(nbytes - 1, 0).bit_length())
        with self._lock:
            self._collect()
            if self._free[size]:
                return self._free[size].pop()
            memory = self._member.empty(size)[1]
            self.native.pin(memory.ctypes.data, size)
            return memory

    def run(
        self, stream: int, into_host: Sequence[tuple[DeviceArray, int, str]], from_host: Sequence[tuple[DeviceArray, int, str]],
        pinned: Sequence[np.ndarray], start: Callable[[Any], Any], keep: Any, kept: Sequence[tuple[int, int, int, str]] = (),
        by_nics: bool = False,
    ) -> int:  # fmt: skip
        """Copies to the host, `start(stall)`, which starts a work of the engine, and copies back, all in the order of `stream`: its number.

        Each copy: an array of the GPU, an address in pinned memory, and what it is, for errors. kept: copies on the GPU before the
        start, (to, from, bytes, what). by_nics: NICs read or write arrays of the GPU meanwhile.
        """
        copies = [[(array.address, address, array.nbytes, what) for array, address, what in each] for each in (into_host, from_host)]
        with self._lock:
            number = -1  # of a run that failed: its memory is in use until the stage is closed
            try:
                hold = self.native.hold(*copies, stream, list(kept), by_nics)
                try:
                    start(hold)
                except BaseException as error:
                    named = error if isinstance(error, CclError) else AbortedError(f"{type(error).__name__}: {error}")
                    hold.give_up(code_of(named), str(named), self._member.rank)
                    raise
                number = int(hold.number)
            finally:
                self._running.append((number, list(pinned), (keep, into_host, from_host)))
        return number

    def quiet(self) -> bool:
        """True where no run is under way, nor may still use what it was given."""
        with self._lock:
            self._collect()
            return not self._running

    def _collect(self) -> None:
        """Pinned memory of runs that have ended is free again."""
        still = []
        for run in self._running:
            if run[0] < 0 or not self.native.ended(run[0]):
                still.append(run)
                continue
            for memory in run[1]:
                self._free[memory.nbytes].append(memory)
        self._running = still

    def close(self) -> None:
        """Waits for what is on the stream, and gives everything back."""
        self._watch.close()
        if not self.native.close():
            _KEPT.extend(self._running)
        self._running.clear()
        self._free.clear()
