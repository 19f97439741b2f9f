"""torch.distributed.Work over the engine's: done at once, in progress, or waiting for its turn; and the thread behind them.

Is: wait, futures, errors as torch has them, and one queue per group that keeps the order of issue. Is not: the engine's queue
(collectives of a communicator run in the order of their start there). Invariants: a work ends once, and gives the same
result or error each time; its last step (copies into the caller's tensors) has been done before anybody sees it completed;
whoever waits does so without the GIL. The thread is started by the first future or deferred call, not before.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ..errors import AbortedError, CclError, OpTimeout
from .tensors import as_torch, seconds_of

Call = Callable[[dict[str, Any]], Any]  # runs a collective with these options; with async_op returns its work, or several


class Done(dist.Work):
    """A collective that has ended well."""

    def __init__(self, outputs: list[torch.Tensor]) -> None:
        super().__init__()
        self._outputs = outputs

    def wait(self, timeout: Any = None) -> bool:
        """True."""
        return True

    def is_completed(self) -> bool:
        """True."""
        return True

    def is_success(self) -> bool:
        """True."""
        return True

    def exception(self) -> None:
        """None: no error."""

    def synchronize(self) -> None:
        """Nothing: the memory is the CPU's."""

    def result(self) -> list[torch.Tensor]:
        """The tensors that hold the result."""
        return self._outputs

    def get_future(self) -> torch.futures.Future:
        """Completed, with the list of tensors that hold the result."""
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(self._outputs)
        return future


class Collecting(dist.Work):
    """What all works of the group say of themselves by what they do; `_outputs` are the tensors that hold the result."""

    _outputs: list[torch.Tensor]

    def is_success(self) -> bool:
        """True once it has ended well."""
        return self.is_completed() and self.exception() is None

    def synchronize(self) -> None:
        """As wait."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """The tensors that hold the result; waits for it as `wait` does."""
        self.wait()
        return self._outputs


class Pending(Collecting):
    """A collective in progress, or one that waits for its turn (`deferred`) until the group's thread runs it."""

    def __init__(self, turns: Turns, outputs: list[torch.Tensor], finish: Callable[[], None] | None, what: str) -> None:
        super().__init__()
        self._turns, self._outputs, self._finish, self._what = turns, outputs, finish, what
        self.parts: tuple[Any, ...] = ()
        self.deferred: tuple[Call, dict[str, Any]] | None = None
        self._driving, self._settling = threading.Lock(), threading.Lock()
        self._ended, self._error = False, None
        self._future: torch.futures.Future | None = None

    def wait(self, timeout: Any = None) -> bool:
        """True once it has ended; raises its error, or BackendTimeout if it is still going after `timeout` (it goes on)."""
        if not self._ended:
            self._drive(seconds_of(timeout))
        if self._error is not None:
            raise self._error
        return True

    def _drive(self, seconds: float | None) -> None:
        """Until it has ended; one thread at a time."""
        deadline = None if seconds is None else time.monotonic() + seconds
        if not self._driving.acquire(timeout=-1 if seconds is None else seconds):
            raise self._late(seconds)
        try:
            if self._ended:
                return
            for part in self.parts:
                left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
                try:
                    part.wait(left)
                except OpTimeout:
                    if not part.done():
                        raise self._late(seconds) from None
                    raise
            if self._finish:
                self._finish()
        except BaseException as error:
            if not isinstance(error, CclError):
                raise
            self._end(as_torch(error))
        else:
            self._end(None)
        finally:
            self._driving.release()

    def _late(self, seconds: float | None) -> BaseException:
        return as_torch(OpTimeout(f"{self._what} is still going after {seconds:g} s; it goes on until its own deadline."))

    def run(self) -> None:
        """In its turn, on the group's thread, which alone may: `_driving` is held since it was put off."""
        assert self.deferred
        call, options = self.deferred
        try:
            call(options)
            if self._finish:
                self._finish()
        except BaseException as error:
            self._end(as_torch(error))
        else:
            self._end(None)
        finally:
            self._driving.release()

    def put_off(self, call: Call, options: dict[str, Any]) -> None:
        """Waiters wait until `run` has run it."""
        self.deferred = call, options
        self._driving.acquire()

    def give_up(self, error: BaseException) -> None:
        """Instead of `run`: it will not have its turn."""
        self._end(error)
        self._driving.release()

    def _end(self, error: BaseException | None) -> None:
        with self._settling:
            self._error, self._ended = error, True
            self.parts, self._finish, self.deferred = (), None, None
            future = self._future
        if future is not None:
            self._settle(future)

    def _settle(self, future: torch.futures.Future) -> None:
        if self._error is None:
            future.set_result(self._outputs)
        else:
            future.set_exception(self._error)  # type: ignore[arg-type]

    def is_completed(self) -> bool:
        """True once it has ended, well or not."""
        if not self._ended and self.parts and all(part.done() for part in self.parts):
            self._drive(None)
        return self._ended

    def exception(self) -> BaseException | None:
        """The error it ended in, or None."""
        return self._error if self.is_completed() else None

    def get_future(self) -> torch.futures.Future:
        """Completed, when it has ended, with the list of tensors that hold the result, or with its error."""
        with self._settling:
            new = self._future is None
            if new:
                self._future = torch.futures.Future()
            future, ended = self._future, self._ended
        if new and ended:
            self._settle(future)
        elif new and self.deferred is None:
            self._turns.watch(self)
        return future


class All(dist.Work):
    """Several works as one, which ends with the last; the first error counts."""

    def __init__(self, works: list[Any]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: Any = None) -> bool:
        """True once all have ended."""
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """True once all have ended."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """True once all have ended well."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        """The first error."""
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def synchronize(self) -> None:
        """As wait."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """The tensors that hold the results."""
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self) -> torch.futures.Future:
        """Completed with the tensors of all."""
        future: torch.futures.Future = torch.futures.Future()

        def settle(ended: torch.futures.Future) -> None:
            try:
                future.set_result([tensor for one in ended.value() for tensor in one.value()])
            except Exception as error:
                future.set_exception(error)

        torch.futures.collect_all([work.get_future() for work in self._works]).add_done_callback(settle)
        return future


class Turns:
    """The order of a group's calls. Calls that cannot start without waiting are run by a thread, in their turn, and with
    them all that come after; as long as there are none, the caller starts its calls itself."""

    def __init__(self, name: str) -> None:
        self._name, self._lock = name, threading.RLock()
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._deferred = 0
        self._closed: BaseException | None = None

    def take(
        self, call: Call, options: dict[str, Any], outputs: list[torch.Tensor], finish: Callable[[], None] | None,
        *, waits: bool, what: str, at_once: bool = True,
    ) -> Any:  # fmt: skip
        """Runs (`waits`) or starts a call; at_once=False: it cannot be started without waiting for peers."""
        with self._lock:
            if self._closed is not None:
                raise self._closed
            if not self._deferred and (waits or at_once):
                try:
                    return self._start(call, options, outputs, finish, waits, what)
                except CclError as error:
                    raise as_torch(error) from error
            work = Pending(self, outputs, finish, what)
            work.put_off(call, options)
            self._deferred += 1
            self._tell(work)
        if waits:
            work.wait()
        return work

    def _start(
        self, call: Call, options: dict[str, Any], outputs: list[torch.Tensor], finish: Callable[[], None] | None, waits: bool, what: str
    ) -> Any:
        if waits:
            call(options)
            if finish:
                finish()
            return Done(outputs)
        work = Pending(self, outputs, finish, what)
        started = call({**options, "async_op": True})
        work.parts = tuple(started) if isinstance(started, list) else (started,)
        return work

    def watch(self, work: Pending) -> None:
        """Its future is completed though nobody waits."""
        with self._lock:
            self._tell(work)

    def _tell(self, work: Pending) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=f"ccl_lab-turns-{self._name}", daemon=True)
            self._thread.start()
        self._queue.put(work)

    def _serve(self) -> None:
        while True:
            work = self._queue.get()
            if work is None:
                return
            deferred = work.deferred is not None
            if not deferred:
                try:
                    work.wait()
                except Exception:  # its error went to the future
                    pass
            elif self._closed is not None:
                work.give_up(self._closed)
            else:
                work.run()
            if deferred:
                with self._lock:
                    self._deferred -= 1
            del work

    def close(self, error: BaseException | None = None) -> None:
        """No call after this; those that wait for their turn end with the error. The thread ends when its works have."""
        with self._lock:
            if self._closed is None:
                self._closed = error or as_torch(AbortedError("the process group was destroyed."))
            thread, self._thread = self._thread, None
            self._queue.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)
