"""Who takes part in an elastic job: groups that leave together, what happened when, and what a change makes of a message.

Is: plain functions and values that a World's and a launcher's elastic jobs share. Is not: an agreement (elastic_ranks,
elastic_job). Invariants: a member's number stays and is never used again; ranks are the members of an epoch, counted
from 0 in the order of their places.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import PeerLostError, UsageError

PATIENCE_S = 5.0  # how long a member may be silent before it counts as lost
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter", "send_recv"})
BLOCKED_IN = frozenset({"reduce_scatter", "all_to_all", "scatter"})  # an input of one block per rank


@dataclass(frozen=True)
class Event:
    """A member left or joined. `epoch`: the first without, or with it; `at_s`: time.time() when the others had agreed;
    `took_s`: from the beginning of the agreement."""

    what: str
    member: int
    epoch: int
    why: str = ""
    took_s: float = 0.0
    at_s: float = field(default_factory=time.time)

    def __str__(self) -> str:
        why = f": {self.why}" if self.why else ""
        return f"epoch {self.epoch}: member {self.member} {self.what}{why}"


def groups_of(groups: int | Sequence[Sequence[int]] | None, n_ranks: int) -> list[tuple[int, ...]]:
    """Groups of ranks that leave together: None: every rank alone; a number: that many of equal size; or lists of ranks.

    Raises UsageError unless every rank is in exactly one group.
    """
    if groups is None:
        return [(rank,) for rank in range(n_ranks)]
    if isinstance(groups, int):
        if not 1 <= groups <= n_ranks or n_ranks % groups:
            raise UsageError(f"groups={groups} of {n_ranks} ranks: expected a number that divides them.")
        size = n_ranks // groups
        return [tuple(range(first, first + size)) for first in range(0, n_ranks, size)]
    found = [tuple(int(rank) for rank in group) for group in groups]
    if sorted(rank for group in found for rank in group) != list(range(n_ranks)) or not all(found):
        raise UsageError(f"groups={groups}: expected every rank from 0 to {n_ranks - 1} in exactly one group.")
    return found


def kept_input(
    collective: str, array: np.ndarray, n_before: int, kept: Sequence[int], counts: np.ndarray | None = None
) -> np.ndarray:
    """What is left of a rank's flat input when only the ranks `kept` of `n_before` go on: the blocks for those who left are
    dropped. counts: elements for each rank, of all_to_allv."""
    if counts is not None:
        ends = np.cumsum(counts)
        return np.concatenate([array[ends[r] - counts[r] : ends[r]] for r in kept])
    if collective in BLOCKED_IN and array.size:
        return np.ascontiguousarray(array.reshape(n_before, -1)[list(kept)]).reshape(-1)
    return array


def place_of(rank: int, before: Sequence[int], now: Sequence[int], role: str, collective: str) -> int:
    """The new rank of who was `rank` among the members `before`; PeerLostError if it left."""
    member = before[rank]
    if member not in now:
        raise PeerLostError(
            f"member {member}, {role} of {collective}, is lost: without it there is no result. The others can go on with the "
            "next collective.",
            rank=rank,
        )
    return list(now).index(member)
