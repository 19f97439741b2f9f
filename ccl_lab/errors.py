"""Every error the project raises, in one tree.

    CclError
    ├─ UsageError        ConfigError · ShapeError · DtypeError
    ├─ ScheduleError     DecodeError · BoundsError · ContributionError · RaceError · DeadlockError
    ├─ TransportError    ConnectError · RegistrationError · LinkDownError · PeerLostError
    ├─ OpTimeout         (also a TimeoutError)
    ├─ AbortedError      first reason, and who set it
    └─ UnsupportedError  names the missing device, library or option
                         Inapplicable

A message says what, where (rank, channel, op, peer, NIC), expected and found, and what to try. Is not: a place for
formatting helpers beyond `to_wire`/`from_wire`, which carry an error from one rank to all others unchanged.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CclError(Exception):
    """Any error of ccl_lab. `rank`, `nic`, `op_id` name the culprit where there is one (-1: none)."""

    def __init__(self, message: str, *, rank: int = -1, nic: int = -1, op_id: int = -1) -> None:
        super().__init__(message)
        self.rank, self.nic, self.op_id = rank, nic, op_id

    def to_wire(self) -> dict[str, object]:
        """The error as plain data, so that another rank can raise the same."""
        return {"type": type(self).__name__, "message": str(self), "rank": self.rank, "nic": self.nic, "op_id": self.op_id}


class UsageError(CclError, ValueError):
    """The call itself is wrong: nothing was started."""


class ConfigError(UsageError):
    """An option or environment key is unknown or unusable."""


class ShapeError(UsageError):
    """Sizes do not fit, on one rank or among ranks."""


class DtypeError(UsageError, TypeError):
    """The element type, or the reduction on it, is not supported."""


class ScheduleError(CclError):
    """A schedule is not correct; it was not run."""


class DecodeError(ScheduleError):
    """Bytes or text are not a schedule or trace of ours."""


class BoundsError(ScheduleError):
    """An op touches bytes outside its buffer."""


class ContributionError(ScheduleError):
    """An output byte does not hold exactly the contributions it must."""


class RaceError(ScheduleError):
    """Two unordered ops touch the same bytes, and one writes."""


class DeadlockError(ScheduleError):
    """Ops wait for each other, or for a signal nobody raises."""


class TransportError(CclError):
    """Bytes could not be moved."""


class ConnectError(TransportError):
    """No connection to a peer, or it could not be authenticated."""


class RegistrationError(TransportError):
    """Memory could not be registered, or the registered memory is used up."""


class LinkDownError(TransportError):
    """A link or NIC failed."""


class PeerLostError(TransportError):
    """A rank died or left."""


class OpTimeout(CclError, TimeoutError):
    """An operation passed its deadline."""


class AbortedError(CclError):
    """The operation was cancelled; the message holds the first reason and who set it."""


class UnsupportedError(CclError, NotImplementedError):
    """A device, library or option is missing; the message names it and how to get it."""


class Inapplicable(UnsupportedError):
    """A schedule cannot be timed without its table of ops: the message says why, and `why` that alone."""

    def __init__(self, message: str, *, why: str = "", rank: int = -1, nic: int = -1, op_id: int = -1) -> None:
        super().__init__(message, rank=rank, nic=nic, op_id=op_id)
        self.why = why or message


def all_errors() -> dict[str, type[CclError]]:
    """Every class of the tree, by name."""
    found: dict[str, type[CclError]] = {}
    todo: list[type[CclError]] = [CclError]
    while todo:
        cls = todo.pop()
        found[cls.__name__] = cls
        todo += cls.__subclasses__()
    return found


def from_wire(data: dict[str, object]) -> CclError:
    """The error another rank sent with `to_wire`; an unknown type becomes CclError."""
    cls = all_errors().get(str(data.get("type")), CclError)
    culprit = {key: int(data.get(key, -1)) for key in ("rank", "nic", "op_id")}  # type: ignore[call-overload]
    return cls(str(data.get("message", "")), **culprit)


def suggest(word: str, known: Iterable[str]) -> str:
    """`" Did you mean 'ring'?"`, or the list of what is known."""
    known = sorted(known)
    close = difflib.get_close_matches(str(word), known, n=1)
    return f" Did you mean {close[0]!r}?" if close else f" Known: {', '.join(known)}."
