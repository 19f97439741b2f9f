"""Faults that wait for a point of the recovery protocol: armed in shared memory, done by the rank that passes it.

Is: what a rank is to do at the point, told to the segment of its node, and what came of it. Is not: moments of other kinds
(faults), nor what holds afterwards (fault_effects). Invariants: what a rank can do itself is done there and then, before its
next step; the rest, and what is of another node than the rank, the injector does when it sees that the point was passed
(looked at every 0.5 ms in a run). A trigger is freed once.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

from ..errors import UnsupportedError
from ..faults import FaultSpec
from ..faults.kinds import point_of
from ..topo import Topology
from .fault import Fault

_WHY = {
    "at_start": "the rails pass it in no run: give the line to the run without a moment, it is done before the ranks begin",
    "at_close": "a run that has ended has nothing under way on its rails; of this heal at=end is left, and calls after run.wait()",
}
_SIGNALS = {"pause": signal.SIGSTOP, "kill": signal.SIGKILL}


def check(spec: FaultSpec) -> None:
    """Raises UnsupportedError for a point that a live world has not."""
    if spec.moment != "at_point":
        return
    name, _ = point_of(spec.at)
    if name in _WHY:
        raise UnsupportedError(f"{spec.text()}: {name} is a point of the deterministic simulation only. Live, {_WHY[name]}.")


def asked_of(spec: FaultSpec) -> dict[str, int]:
    """The words of shared memory that make a NIC so; empty: the injector does it."""
    if spec.kind == "black_hole":
        return {f"silent_{way}": 1 for way in ("tx", "rx") if spec["direction"] in ("both", way)}
    if spec.kind in ("corrupt", "sever"):
        return {"damage": spec["frames"]} if spec.kind == "corrupt" else {"sever": spec["connections"]}
    word = {"nic_down": "down", "flap": "down", "cable": "unplugged"}.get(spec.kind)
    return {word: 1} if word else {}


def arm(fault: Fault, segments: Sequence[Any], topology: Topology, *, node: int | None, rank: int, by_rank: bool) -> None:
    """Has the ranks look out for the point of `fault`. node: of its NIC, now; None: of none. rank: that passes the point; -1:
    any, of that node if there is one. by_rank: words of shared memory do it."""
    spec = fault.spec
    point, passes = point_of(spec.at)
    node_of = topology.node_of.tolist()
    nodes = [node_of[rank]] if rank >= 0 else [node] if node is not None else range(topology.n_nodes)
    for where in nodes:
        order: dict[str, Any] = {"passes": passes, "rank": rank}
        if node is not None:
            order["path"] = (node, spec["nic"])
            if node == where and by_rank and (asked := asked_of(spec)):
                order |= {"nic": spec["nic"], "asked": asked}
        elif spec.kind in _SIGNALS:
            order["signal"] = int(_SIGNALS[spec.kind])
        segment = segments[node_of.index(where)]
        fault.triggers.append((segment, segment.arm_trigger(point, **order)))


def passed(fault: Fault) -> bool:
    """Whether its point was passed; `fault.passed` then says what was done there, and it waits no longer."""
    return any(segment.fired_trigger(number) for segment, number in fault.triggers) and leave(fault)


def leave(fault: Fault) -> bool:
    """It waits no longer. True if its point was passed all the same: `fault.passed` says what was done there."""
    found = [segment.release_trigger(number) for segment, number in fault.triggers]
    fault.triggers.clear()
    fault.passed = min(filter(None, found), key=lambda each: int(each["time_ns"]), default={})
    return bool(fault.passed)
