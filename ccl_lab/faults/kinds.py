"""The kinds of faults, what each is told, and how values are read and written.

Is: one table, from which parsing, text, Python form, checks and help come. Is not: how a fault is done. Invariant: for every
value that `read` returns, `read(form, write(form, value))` is that value.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from .. import units
from ..errors import UsageError

MAX_NS = 1 << 53  # about 104 days: as far as a float of seconds is exact to the nanosecond
MAX_COUNT = (1 << 31) - 1
MAX_BYTES = 1 << 53  # sizes are read as floats, too


class Parameter(NamedTuple):
    """One name of a line. form: index, count, ns, share, rate, point, or the words to choose from, split by `|`."""

    name: str
    form: str
    default: Any = None  # None: must be given, unless the kind says otherwise
    optional: bool = False


class Kind(NamedTuple):
    """target: "nic", "rank" or "" (all). counted: used up after so many hits. undo: False where nothing brings it back."""

    name: str
    target: str
    meaning: str
    parameters: tuple[Parameter, ...] = ()
    counted: bool = False
    undo: bool = True

    @property
    def names(self) -> dict[str, Parameter]:
        """Parameters by name."""
        return {each.name: each for each in self.parameters}


_NIC = (Parameter("node", "index"), Parameter("nic", "index"))
_RANK = (Parameter("rank", "index"),)
_ALL = (
    Kind("nic_down", "nic", "sockets of the NIC are shut, and the system says so", _NIC),
    Kind("cable", "nic", "nothing passes, and the system says that the cable is out", _NIC),
    Kind("black_hole", "nic", "what is sent or received vanishes, and nobody is told",
         (*_NIC, Parameter("direction", "both|tx|rx", "both"))),
    Kind("flap", "nic", "down for the share `duty` of every period, then up again",
         (*_NIC, Parameter("period", "ns"), Parameter("duty", "inside", 0.5))),
    Kind("cap", "nic", "carries no more than this fraction of its rate, or than so many Gb/s",
         (*_NIC, Parameter("fraction", "share", optional=True), Parameter("gbits", "rate", optional=True))),
    Kind("delay", "nic", "what it sends waits for `latency`, and up to `jitter` longer",
         (*_NIC, Parameter("latency", "ns", 0), Parameter("jitter", "ns", 0))),
    Kind("corrupt", "nic", "so many frames it sends are damaged; the receiver refuses them",
         (*_NIC, Parameter("frames", "count", 1)), counted=True),
    Kind("sever", "nic", "so many of its connections are shut", (*_NIC, Parameter("connections", "count", 1)), counted=True),
    Kind("pause", "rank", "the process is stopped (SIGSTOP)", _RANK),
    Kind("kill", "rank", "the process is killed (SIGKILL)", _RANK, undo=False),
    Kind("messages", "rank", "out-of-band messages it sends are lost, doubled, or held for up to `late`",
         (*_RANK, Parameter("loss", "share", 0.0), Parameter("double", "share", 0.0), Parameter("late", "ns", 0))),
    Kind("heal", "", "everything before is undone", undo=False),
)  # fmt: skip
KINDS = {kind.name: kind for kind in _ALL}

# Where the recovery protocol may be cut; the deterministic simulation has the same names (native/tests/fault_script.hpp).
POINTS = (
    "at_start", "before_post", "posted", "arrived", "told", "data_before_signal", "parked", "confirmed", "retiring", "retired",
    "hint_sent", "hint_heard", "request_sent", "request_heard", "ack_sent", "ack_heard", "ping_sent", "ping_heard", "pong_sent",
    "pong_heard", "probe_sent", "probe_heard", "reply_sent", "reply_heard", "backup_post", "wanted", "one_end_back", "back",
    "at_close",
)  # fmt: skip

# When it happens, and for how long: names that lines of every kind may have.
TIMES = {
    "after": Parameter("after", "ns"),
    "at_bytes": Parameter("at_bytes", "bytes"),
    "at_op": Parameter("at_op", "index"),
    "at_point": Parameter("at_point", "point"),
    "at": Parameter("at", "end"),
    "for": Parameter("for", "ns"),
}

_EXPECTED = {
    "index": "a whole number, 0 or more", "count": "a whole number, 1 or more", "ns": "a duration such as 2ms",
    "share": "a fraction from 0 to 1", "inside": "a fraction between 0 and 1", "rate": "Gb/s, more than 0",
    "bytes": "a size such as 4MiB", "point": f"one of {', '.join(POINTS)}; :n after it: the n-th time",
}  # fmt: skip


def expected(form: str) -> str:
    """What `form` takes, in words."""
    return _EXPECTED.get(form) or "one of " + ", ".join(form.split("|"))


def read(parameter: Parameter, value: Any) -> Any:
    """`value` (text, or what Python has for it) in its canonical form. Raises UsageError naming what was expected."""
    try:
        return _READERS.get(parameter.form, _choice)(value, parameter.form)
    except (ValueError, TypeError, OverflowError):
        raise UsageError(f"{parameter.name}={str(value)[:60]}: expected {expected(parameter.form)}.") from None


def _whole(value: Any, form: str) -> int:
    if isinstance(value, bool) or not (isinstance(value, str) or hasattr(value, "__index__")):
        raise ValueError
    if isinstance(value, str) and not (value.isascii() and value.isdigit() and len(value) <= 10):
        raise ValueError
    number = int(value)
    if not (form == "count") <= number <= MAX_COUNT:
        raise ValueError
    return number


def _duration(value: Any, _: str) -> int:
    ns = round(units.parse_duration(value) * 1e9)
    if ns > MAX_NS:
        raise ValueError
    return ns


def _size(value: Any, _: str) -> int:
    nbytes = units.parse_size(value)
    if nbytes > MAX_BYTES:
        raise ValueError
    return nbytes


def _number(value: Any, form: str) -> float:
    if isinstance(value, bool):
        raise ValueError
    number = float(value)
    if not math.isfinite(number) or number < 0 or (form != "share" and number == 0):
        raise ValueError
    if (form == "share" and number > 1) or (form == "inside" and number >= 1):
        raise ValueError
    return number + 0.0  # -0.0 and 0.0 are one value


def point_of(value: str) -> tuple[str, int]:
    """ ("posted", 3) of "posted:3"; ("posted", 1) of "posted"."""
    name, _, nth = value.partition(":")
    return name, int(nth or 1)


def _point(value: Any, _: str) -> str:
    name, colon, nth = str(value).partition(":")
    times = _whole(nth, "count") if colon else 1
    if name not in POINTS:
        raise ValueError
    return f"{name}:{times}" if times > 1 else name


def _choice(value: Any, form: str) -> str:
    if value not in form.split("|"):
        raise ValueError
    return str(value)


_READERS = {
    "index": _whole, "count": _whole, "ns": _duration, "bytes": _size, "share": _number, "inside": _number, "rate": _number,
    "point": _point,
}  # fmt: skip


def write(form: str, value: Any) -> str:
    """The text of a canonical value, as short as it can be said exactly."""
    if form == "ns":
        return duration_text(value)
    if form == "bytes":
        for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
            if value and value % unit == 0:
                return f"{value // unit}{name}"
        return str(value)
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() and value < 1e15 else repr(value)
    return str(value)


def duration_text(ns: int) -> str:
    """ "2.5ms" for 2,500,000 ns, exactly."""
    for digits, name in ((9, "s"), (6, "ms"), (3, "us")):
        if ns >= 10**digits:
            whole, rest = divmod(ns, 10**digits)
            return f"{whole}.{rest:0{digits}d}".rstrip("0").rstrip(".") + name
    return f"{ns}ns" if ns else "0ms"
