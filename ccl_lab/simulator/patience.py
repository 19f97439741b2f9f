"""How much work an evaluation may be: some minutes of it unless somebody is more patient.

Most schedules are timed in seconds. The others tell every put or message by itself; how many of them are told is limited, so that a call
that would take an hour says so at once. `with patience(4)` allows four times as much of everything.

Is: the limits' common factor, and the refusal. Is not: a limit of time or of memory: what is told is counted, not waited for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import wraps
from numbers import Real
from typing import ParamSpec, TypeVar

from ..errors import Inapplicable, UsageError

_MOST_PATIENT = 1e6

_FACTOR: ContextVar[float] = ContextVar("patience", default=1.0)


@contextmanager
def patience(factor: float) -> Iterator[None]:
    """Inside, evaluations may do `factor` times the usual work. UsageError unless it is a number above 0, of at most a million."""
    known = isinstance(factor, Real) and not isinstance(factor, bool)
    if not known or not 0 < factor <= _MOST_PATIENT:
        raise UsageError(f"patience {factor!r}: expected a number above 0 and up to {_MOST_PATIENT:,.0f}, how many times the usual work "
                         "may be done (1: what takes a few minutes).")  # fmt: skip
    token = _FACTOR.set(float(factor))
    try:
        yield
    finally:
        _FACTOR.reset(token)


Found, P = TypeVar("Found"), ParamSpec("P")


def patient(call: Callable[P, Found]) -> Callable[P, Found]:
    """`call` with its keyword `patience`, a factor, in force; None, the default: the one that is in force around it."""

    @wraps(call)
    def with_patience(*args: P.args, **options: P.kwargs) -> Found:
        factor = options.get("patience")
        with nullcontext() if factor is None else patience(factor):  # type: ignore[arg-type]
            return call(*args, **options)

    return with_patience


def allowed(most: int) -> int:
    """What is allowed of what is `most` for somebody of usual patience."""
    return int(most * _FACTOR.get())


def check_work(work: int, most: int, what: str, each_s: float) -> None:
    """Raises Inapplicable where `work` is more than is allowed; what: words for it; each_s: seconds that one takes."""
    if work > allowed(most):
        raise Inapplicable(f"{work:,} {what} would take some {_minutes(work * each_s)} (patience={math.ceil(work / most)} allows it)")


def _minutes(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.0f} hours"
