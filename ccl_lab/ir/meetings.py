"""Meetings of healthy nodes with those that are not, without a row per op.

Is: what all_reduce around lost or slower NICs repeats. Is not: what is moved. Invariant: together with planner/lane_meeting.py it
says of every op of the unrolled schedule its rank, channel, peer and bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .schedule import Schedule


@dataclass(frozen=True, eq=False)
class Meetings:
    """Slices, each on a lane: a ring all_reduce over all nodes (or none), then the blocks of a meeting of members with the other nodes.

    misfit: why it is not told like this, empty where it is; then the rest holds. members: int64[m], nodes in the order of their ring;
    outsiders: int64[O], the others; ring: int64[m + O], the places of the ring's nodes among (*members, *outsiders), empty where there is
    no ring. channel: int64[S]; rank, nic: int64[S, m + O], by (*members, *outsiders). lo, hi: int64[jobs, S], parts of each slice for the
    ring (where there is one) and for the meeting, cut into as many equal chunks as there are nodes, or members. through: bool[S], whether
    the (only) outsider adds. apart_channel: int64[A]; apart_rank, apart_nic: int64[A, m], lanes of members alone; apart_of: int64[S], the
    one of a slice's reduce-scatter, -1: its own. node_phase(rings, meets): a Schedule of one node, where the ranks of these local indices,
    one a slice, gather for ring and meeting: what happens inside it before lanes begin.
    """

    misfit: str = ""
    members: Any = None
    outsiders: Any = None
    ring: Any = None
    channel: Any = None
    rank: Any = None
    nic: Any = None
    parts: int = 1
    lo: Any = None
    hi: Any = None
    through: Any = None
    apart_channel: Any = None
    apart_rank: Any = None
    apart_nic: Any = None
    apart_of: Any = None
    node_phase: Callable[[np.ndarray, np.ndarray], Schedule] | None = None
