"""A collective in progress on one rank, as its caller sees it.

Is: wait, done, cancel. Is not: the queue or the engine. Invariant: `wait` gives the same result, or error, each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import units
from ..errors import CclError, OpTimeout
from .hub import cancelled, same_culprit


class Work:
    """A collective in progress on this rank."""

    def __init__(
        self, native: Any, finish: Callable[[], Any], failed: Callable[[CclError], CclError], what: str
    ) -> None:
        self._native, self._finish, self._failed, self._what = native, finish, failed, what
        self._result: Any = None
        self._ended = False

    def done(self) -> bool:
        """True once it has ended on this rank, well or not."""
        return bool(self._native.done())

    def wait(self, timeout: units.Duration | None = None) -> Any:
        """The output array. Raises the collective's error, or OpTimeout if it is still going after `timeout` (it goes on)."""
        if self._ended:
            return self._result
        seconds = -1.0 if timeout is None else units.parse_duration(timeout)
        try:
            ended = self._native.wait(seconds)
        except CclError as error:
            first = self._failed(error)
            if same_culprit(first, error):
                raise
            raise first from error
        if not ended:
            raise OpTimeout(
                f"{self._what} is still going after {seconds:g} s; it goes on until its deadline. Wait again, or cancel()."
            )
        self._result, self._ended = self._finish(), True
        return self._result

    result = wait

    def cancel(self, reason: str = "work.cancel()") -> None:
        """Ends it on every rank with AbortedError."""
        if not self.done():
            self._failed(cancelled(reason, self._what))

    def __repr__(self) -> str:
        return f"<Work {self._what}: {'done' if self.done() else 'running'}>"
