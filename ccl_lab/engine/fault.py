"""One fault of a World: whether it waits, holds or is over, how often it hit, and its undo.

Is: the handle that `world.faults.nic_down(...)` returns. Is not: what does it (faults). Invariants: its state only goes
forward; `fired` counts what was seen to happen, never what was asked for.

    waiting ─run begins─► armed ─moment─► active ──undo, heal, for_──► undone
       └── run ended ──► missed ◄─┘          └── used up, or at once ──► ended      (failed: `error` says why)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import CclError
from ..faults import FaultSpec

if TYPE_CHECKING:
    from .faults import Faults

PENDING = ("waiting", "armed")


class Fault:
    """Made by `world.faults`. number: from 1, in the order of the calls. time_ns, undone_ns: when, on the clock of spans; 0: not yet."""

    def __init__(self, owner: Faults, number: int, spec: FaultSpec, *, bound: bool) -> None:
        self.number, self.spec, self.kind = number, spec, spec.kind
        self.node: int | None = spec.get("node")
        self.nic: int | None = spec.get("nic")
        self.rank: int | None = spec.get("rank")
        self.state = "waiting"
        self.error: CclError | None = None
        self.time_ns = self.undone_ns = 0
        self._owner = owner
        # The injector's notes. Of a script that a run was given: bound, and that run's begin.
        self.bound, self.bound_ns = bound, -1
        self.key: tuple[int, int] = (-1, -1)  # node of the whole topology, NIC
        self.member = -1  # stable number of `rank`
        self.seen_by = -1  # and of the rank that passes its point
        self.bytes_from = self.bytes_before = 0  # of at_bytes: carried when armed; and by then since the run's begin
        self.hits_from: dict[str, int] = {}
        self.counted = 0  # hits that no counter holds any more
        self.down_now = True  # of flap
        self.asked_left = 0  # of what is counted down
        self.pidfd = -1
        self.by_heal = False
        self.triggers: list[tuple[Any, int]] = []  # of at_point: (segment, number) that wait for it
        self.passed: dict[str, Any] = {}  # and what was done there

    @property
    def fired(self) -> int:
        """How often it hit: what the engine counted (a path ended, a frame damaged, a message dropped, …), what was seen of the
        process; of cap, the bytes carried under it. 0 while it waits."""
        return self._owner.fired(self)

    @property
    def python(self) -> str:
        """The Python that does the same."""
        return self.spec.python()

    def undo(self) -> None:
        """Takes it back, or calls it off; nothing if that has happened. Raises UsageError for a kill."""
        self._owner.undo(self)

    def __repr__(self) -> str:
        why = f": {self.error}" if self.error else ""
        fired = "" if self.state in PENDING else f", fired {self.fired}"
        return f"<Fault {self.number} {self.spec.text()}: {self.state}{fired}{why}>"
