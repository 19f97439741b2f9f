"""Sizes, durations and rates, parsed from what people type and printed the way they read.

Is: `"64MiB"` <-> bytes, `"2ms"` <-> seconds, `8e9` bits/s <-> `"8 Gb/s"`. Is not: a units library.
Invariants: sizes are non-negative ints of bytes; durations are non-negative floats of seconds.
"""

from __future__ import annotations

import operator
import re
from typing import Union

from .arguments import number, shown
from .errors import UsageError

Size = Union[int, str]
Duration = Union[int, float, str]

_SIZES = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZES |= {f"{p}ib": 2 ** (10 * i) for i, p in enumerate("kmgtp", 1)} | {f"{p}b": 1000**i for i, p in enumerate("kmgtp", 1)}
_TIMES = {"ps": 1e-12, "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "min": 60.0, "h": 3600.0}
_LONGEST = 1e18  # seconds; no clock of 64 bits counts them
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?)\s*([a-zµ]*)\s*", re.IGNORECASE)


def _split(text: str, units: dict[str, float] | dict[str, int], what: str, example: str) -> tuple[float, float]:
    match = _NUMBER.fullmatch(text)
    if not match or match[2].lower() not in units:
        raise UsageError(f"{what} {text!r} cannot be read: expected a non-negative number with a unit, such as {example}.")
    return float(match[1]), units[match[2].lower()]


def parse_size(size: Size) -> int:
    """Bytes of `size`: an int, or text such as "64MiB", "1GB", "512", "4k" (k, M, G alone are binary).

    Raises UsageError if it is negative, not whole or cannot be read.
    """
    if isinstance(size, str):
        amount, unit = _split(size, _SIZES, "size", "'64MiB', '1GB' or '512'")
        if not (amount * unit).is_integer():
            raise UsageError(f"size {size!r} is {amount * unit} bytes: expected a whole number of bytes.")
        return _in_range(size, int(amount * unit))
    try:
        found = None if isinstance(size, bool) else operator.index(size)
    except TypeError:
        found = None
    if found is None:
        raise UsageError(f"size {shown(size)} is a {type(size).__name__}: expected a whole number of bytes or text such as '64MiB'.")
    return _in_range(size, found)


def _in_range(size: Size, nbytes: int) -> int:
    if not 0 <= nbytes < 2**63:
        raise UsageError(f"size {shown(size)} is {'negative' if nbytes < 0 else 'too large'}: expected 0 bytes or more, below 8 EiB.")
    return nbytes


def parse_duration(duration: Duration) -> float:
    """Seconds of `duration`: a number of seconds, or text such as "2ms", "5us", "1.5s".

    Raises UsageError if it is negative, not finite or cannot be read.
    """
    if isinstance(duration, str):
        amount, unit = _split(duration, _TIMES, "duration", "'2ms', '5us' or '1.5s'")
        seconds = amount * unit
    else:
        seconds = number(duration, "duration", "seconds or text such as '2ms'")
    if not 0 <= seconds < _LONGEST:
        raise UsageError(f"duration {shown(duration)}: expected a finite number of seconds, 0 or more.")
    return seconds


def format_size(nbytes: int) -> str:
    """"64 MiB" for 67108864: binary units, three digits at most."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.4g} {name}"
    return f"{nbytes} B"


def format_time(seconds: float) -> str:
    """"1.23 ms" for 0.00123."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}" if seconds < 1000 * unit else f"{seconds / unit:.0f} {name}"
    return f"{seconds * 1e12:.3g} ps" if seconds else "0 s"


def format_rate(bytes_per_s: float) -> str:
    """"8 Gb/s" for 1e9 bytes/s: rates of links are given in bits."""
    bits = bytes_per_s * 8
    for unit, name in ((1e12, "Tb/s"), (1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "kb/s")):
        if bits >= unit:
            return f"{bits / unit:.4g} {name}"
    return f"{bits:.4g} b/s"
