"""What arguments are, before anything is done with them: one sentence for each way in which they are wrong.

Is: checks of kind and range, whose errors name the argument, what was found and what was expected. Is not: parsing (units.py), nor what
a value means. Invariant: whatever is given, the error is a UsageError (or the class that is asked for), never one of Python.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Collection, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from .errors import CclError, UsageError, suggest

Kind = TypeVar("Kind")

_MOST = 2**63 - 1  # what columns of whole numbers hold
_FEW = 4  # names that an error lists whatever is close


def shown(value: Any) -> str:
    """How an error shows a value: 60 characters of it at most."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def instance(value: Any, what: str, kind: type[Kind] | tuple[type[Kind], ...], expected: str) -> Kind:
    """`value`, which is of `kind`; or a UsageError that says what was `expected`."""
    if not isinstance(value, kind):
        raise UsageError(f"{what} {shown(value)} is a {type(value).__name__}: expected {expected}.")
    return value


def named(value: Any, what: str, known: Collection[str], error: type[CclError] = UsageError, verdict: str = "is unknown") -> str:
    """`value`, one of the names in `known`; or `error` with a suggestion."""
    if not isinstance(value, str):
        raise error(f"{what} {shown(value)} is a {type(value).__name__}: expected a name, one of {', '.join(sorted(known))}.")
    if value not in known:
        *others, last = map(repr, sorted(known)) if len(known) <= _FEW else ("", "")
        hint = suggest(value, known)
        few = f": expected {', '.join(others)} or {last}" if last and others else ""
        raise error(f"{what} {shown(value)} {verdict}{few}.{'' if few and hint.startswith(' Known') else hint}")
    return value


def whole(value: Any, what: str, low: int, high: int | None = None, error: type[CclError] = UsageError) -> int:
    """`value` as an int in [low, high]; or `error`."""
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = None
    if found is None or not low <= found <= (_MOST if high is None else high):
        raise error(f"{what} {shown(value)}: expected a whole number, {f'{low} or more' if high is None else f'{low} to {high}'}.")
    return found


def as_array(value: Any) -> npt.NDArray[Any]:
    """`value` as an array; where it is none, as rows of different lengths are not, one of a single object."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError):
        return np.asarray(None)


def wholes(value: Any, what: str, low: int = -_MOST, high: int | None = None) -> npt.NDArray[np.int64]:
    """`value` as i64[...], whole numbers in [low, high]; or UsageError."""
    array = as_array(value)
    if array.dtype.kind not in "iu" and array.size:
        raise UsageError(f"{what} {shown(value)}: expected whole numbers.")
    if array.size and not (low <= array.min() and array.max() <= (_MOST if high is None else high)):
        worst = array.min() if array.min() < low else array.max()
        raise UsageError(f"{what} {worst}: expected {f'{low} or more' if high is None else f'{low} to {high}'}.")
    return array.astype(np.int64, copy=False)


def flag(value: Any, what: str) -> bool:
    """`value`, which is true or false; or UsageError."""
    if not isinstance(value, (bool, int, np.bool_)):
        raise UsageError(f"{what} {shown(value)} is a {type(value).__name__}: expected True or False.")
    return bool(value)


def number(value: Any, what: str, expected: str) -> float:
    """`value` as a float, or UsageError."""
    if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
        raise UsageError(f"{what} {shown(value)} is a {type(value).__name__}: expected {expected}.")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{what} {shown(value)}: expected {expected}.") from None


def amount(value: Any, what: str, *, above: bool = False, least: int = 0) -> Any:
    """`value` as Python's own kind of number (an int, a float, a Fraction): finite, and at least, or `above`, `least`; or UsageError."""
    expected = f"a finite number {'above' if above else 'of'} {least}{'' if above else ' or more'}"
    found = number(value, what, expected)
    if not least <= found < math.inf or (above and found == least):
        raise UsageError(f"{what} {shown(value)}: expected {expected}.")
    if isinstance(value, (int, float, Fraction)):
        return value
    return value.item() if isinstance(value, (np.generic, np.ndarray)) else found  # numbers of a few bits would overflow


def listed(value: Any, what: str, kind: type[Kind] | tuple[type[Kind], ...], expected: str) -> tuple[Kind, ...]:
    """All of `value`, one of `kind` or several; or UsageError."""
    if isinstance(value, kind):
        return (value,)  # type: ignore[return-value]
    return tuple(instance(each, what, kind, expected) for each in several(value, what, expected))


def is_one(value: Any) -> bool:
    """Whether `value` is one thing and not several: text, a type, what cannot be gone over, an array without dimensions."""
    return isinstance(value, (str, bytes, type)) or not isinstance(value, Iterable) or getattr(value, "shape", None) == ()


def several(value: Any, what: str, expected: str) -> tuple[Any, ...]:
    """What is in `value`, which is no text; or UsageError."""
    if is_one(value):
        raise UsageError(f"{what} {shown(value)} is a {type(value).__name__}: expected {expected}.")
    return tuple(value)


def arrays(value: Any, what: str) -> list[np.ndarray]:
    """The arrays in `value`, a list of them or one with a row for each; or UsageError."""
    expected = "a list of arrays, one per rank"
    return [instance(each, what, np.ndarray, expected) for each in several(value, what, expected)]


def file_path(value: Any, what: str = "path") -> Path:
    """`value`, text or a path, as a Path; or UsageError."""
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else b""
    if not text or isinstance(text, bytes) or "\0" in text:
        raise UsageError(f"{what} {shown(value)}: expected the path of a file, as text or a Path.")
    return Path(text)
