"""Collectives on tensors of a GPU: the stream they run on, and the Work that orders other streams behind them.

    waits at once   on the current stream                                                       (as NCCL's with async_op=False)
    async           current ──event──► side stream of the group ─ collective ─ copies back ──event──► stream that calls wait()

Is: torch's streams and events around calls of a Communicator, which only enqueue. Is not: the collective (engine/devices.py), nor a
wait of the host. Invariants: nothing here waits for the GPU unless a timeout is given, a barrier comes, or calls before it have to be
made first; memory that a side stream uses is not given to others before that has done with it; a method in a lane finds the lane's
stream as torch's current one, so whatever torch does there is in its order.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..errors import CclError, OpTimeout
from .tensors import as_torch, seconds_of
from .works import Collecting, Turns


class OnStream(Collecting):
    """A collective on a stream. `event`: recorded behind it; None where the caller's own stream is behind it already."""

    def __init__(self, lane: Lane, parts: tuple[Any, ...], outputs: list[torch.Tensor], event: Any, what: str) -> None:
        super().__init__()
        self._lane, self._parts, self._outputs, self._event, self._what = lane, parts, outputs, event, what

    def wait(self, timeout: Any = None) -> bool:
        """Orders the current stream behind it, and returns; with a timeout it keeps this thread until the GPU has ended it.

        Raises the error of a collective that has failed, or BackendTimeout if it is still going after `timeout` (it goes on).
        """
        seconds = seconds_of(timeout)
        if seconds is not None:
            self._await(seconds)
        self._raise()
        if self._event is not None:
            torch.cuda.current_stream(self._lane.device).wait_event(self._event)
        return True

    def _await(self, seconds: float) -> None:
        for part in self._parts:
            try:
                part.wait(seconds)
            except CclError as error:
                late = isinstance(error, OpTimeout) and not part.done()
                why = OpTimeout(f"{self._what} is still going after {seconds:g} s; it goes on until its own deadline.") if late else error
                raise as_torch(why) from error

    def _raise(self) -> None:
        """The error, where one is known."""
        for part in self._parts:
            try:
                if part.done():
                    part.wait(0.0)
            except CclError as error:
                raise as_torch(error) from error

    def is_completed(self) -> bool:
        """True once the GPU has ended it, well or not."""
        return all(part.done() for part in self._parts)

    def exception(self) -> BaseException | None:
        """The error it ended in, or None."""
        try:
            self._raise()
        except Exception as error:
            return error
        return None

    def get_future(self) -> torch.futures.Future:
        """Completed at once, with the tensors: whoever takes them from it is ordered behind the collective."""
        future: torch.futures.Future = torch.futures.Future(devices=[self._lane.device])
        with torch.cuda.stream(self._lane.stream):
            if self._event is not None:
                self._lane.stream.wait_event(self._event)
            future.set_result(self._outputs)
        return future


class Lane:
    """Where one call runs: a stream of a device; `aside`: not that of the caller."""

    def __init__(self, device: torch.device, stream: Any, aside: bool, keep: Callable[[OnStream], None]) -> None:
        self.device, self.stream, self.aside, self._keep = device, stream, aside, keep

    def go(
        self, turns: Turns, call: Callable[[dict[str, Any]], Any], options: dict[str, Any], outputs: list[torch.Tensor],
        finish: Callable[[], None] | None, what: str,
    ) -> OnStream:  # fmt: skip
        """Enqueues a call, behind those of the group that have not been made yet."""
        parts: list[Any] = []

        def enqueue(given: dict[str, Any]) -> None:
            started = call({**given, "async_op": True})
            parts.extend(part for part in (started if isinstance(started, list) else [started]) if part is not None)

        turns.take(enqueue, options, outputs, None, waits=True, what=what)
        if finish:
            finish()
        event = self.stream.record_event() if self.aside else None
        work = OnStream(self, tuple(parts), outputs, event, what)
        self._keep(work)
        return work


class Lanes:
    """The lanes of one group: a side stream for each device, made with the first call there."""

    def __init__(self) -> None:
        self._sides: dict[torch.device, Any] = {}
        self._last: OnStream | None = None
        self._here = threading.local()

    def now(self) -> Lane | None:
        """The lane that this thread is in."""
        return getattr(self._here, "lane", None)

    def run(self, tensor: torch.Tensor, aside: bool, used: Iterator[torch.Tensor], method: Callable[[], Any]) -> Any:
        """`method` in a lane of the tensor's device; `used`: all tensors of the call."""
        device = tensor.device
        current = torch.cuda.current_stream(device)
        # To make a stream waits for the GPU: with the first call, and not when something may hold the GPU up.
        side = self._side(device)
        stream = side if aside else current
        if aside:
            stream.wait_stream(current)
            for each in used:
                if each.is_cuda:
                    each.record_stream(stream)
        self._here.lane = Lane(device, stream, aside, self._keep)
        try:
            with torch.cuda.stream(stream):
                return method()
        finally:
            self._here.lane = None

    def settle(self) -> None:
        """Waits until the GPU has ended what was enqueued. Raises its error."""
        last, self._last = self._last, None
        for part in last._parts if last is not None else ():
            part.wait()

    def _side(self, device: torch.device) -> Any:
        if device not in self._sides:
            self._sides[device] = torch.cuda.Stream(device)
        return self._sides[device]

    def _keep(self, work: OnStream) -> None:
        if work._parts:
            self._last = work


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """Every tensor in lists of lists of them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def placed(method: Callable[..., Any]) -> Callable[..., Any]:
    """A collective of a group that, where a tensor is on a GPU, runs in a lane: aside unless its options say that the caller waits."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        first = next((tensor for tensor in tensors_in(args) if tensor.is_cuda), None)
        if first is None and kwargs:
            first = next((tensor for tensor in tensors_in(kwargs.values()) if tensor.is_cuda), None)
        if first is None or self._lanes.now() is not None:
            return method(self, *args, **kwargs)
        said = next((value for value in (*args, *kwargs.values()) if hasattr(value, "asyncOp")), None)
        aside = self._coalescing is not None or getattr(said, "asyncOp", True)
        return self._lanes.run(first, aside, tensors_in((*args, *kwargs.values())), lambda: method(self, *args, **kwargs))

    return call
