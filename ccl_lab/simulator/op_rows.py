"""Rows about the ops of a schedule: its steps, what one rank did, what one NIC carried.

Is: a table of whole picoseconds as rows of microseconds. Is not: a Trace, whose spans are of whole nanoseconds and can be drawn.
Invariant: every row is of ops with an op_id, so that it can be compared with the spans of a run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import UsageError
from ..ir import Kind, Schedule
from ..topo import LinkKind, Topology
from .exact import Times

Row = dict[str, Any]
_WORK = (Kind.put, Kind.get, Kind.copy, Kind.reduce, Kind.compute)


def step_rows(schedule: Schedule, times: Times) -> list[Row]:
    """One row a step, in order: when its first op began to move or to compute and its last one's bytes were seen, how many, how much.

    Steps that only wait or signal have none. `rank` is the one whose op is the last of the step.
    """
    ops = schedule.ops
    at = np.flatnonzero(np.isin(ops.kind, _WORK))
    if not len(at):
        return []
    # By step, in a step by end; of equal ends the lowest op is the last, so that it is named.
    end = np.maximum(times.end_ps[at], times.arrive_ps[at])
    order = np.lexsort((-at, end, ops.step[at]))
    at, end = at[order], end[order]
    step, first, number = np.unique(ops.step[at], return_index=True, return_counts=True)
    begin, moved = np.minimum.reduceat(times.start_ps[at], first), np.add.reduceat(times.nbytes[at], first)
    last = first + number - 1
    return [{"step": int(step[i]), "begin_us": float(begin[i]) / 1e6, "end_us": float(end[last[i]]) / 1e6, "ops": int(number[i]),
             "bytes": int(moved[i]), "rank": int(ops.rank[at[last[i]]])} for i in range(len(step))]  # fmt: skip


def rank_rows(schedule: Schedule, topology: Topology, times: Times, rank: int) -> list[Row]:
    """What one rank did, op by op, in the order in which its channels came to them."""
    if not 0 <= rank < topology.n_ranks:
        raise UsageError(f"rows of rank {rank}: expected 0 to {topology.n_ranks - 1}.")
    at = np.flatnonzero(schedule.ops.rank == rank)
    at = at[np.lexsort((at, times.begin_ps[at]))]
    ends = np.where(schedule.ops.kind == Kind.put, times.leave_ps, times.end_ps)
    return _rows(schedule, times, at, times.begin_ps, ends)


def nic_rows(schedule: Schedule, topology: Topology, times: Times, node: int, nic: int) -> list[Row]:
    """What one NIC sent and received, transfer by transfer; times are those of the bytes' leaving."""
    if not (0 <= node < topology.n_nodes and 0 <= nic < topology.nics_per_node):
        raise UsageError(f"rows of NIC {nic} of node {node}: expected node 0 to {topology.n_nodes - 1}, NIC 0 to "
                         f"{topology.nics_per_node - 1}.")
    links, moves = topology.links, np.isin(schedule.ops.kind, (Kind.put, Kind.get)) & (times.nbytes > 0)
    found = []
    for side, kind in enumerate((LinkKind.nic_tx, LinkKind.nic_rx)):
        link = 3 * topology.n_ranks + (side * topology.n_nodes + node) * topology.nics_per_node + nic
        assert links.kind[link] == kind
        at = np.flatnonzero(moves & (times.links[:, side] == link))
        found += [{"direction": ("tx", "rx")[side], **row} for row in _rows(schedule, times, at, times.start_ps, times.leave_ps)]
    return sorted(found, key=lambda row: (row["begin_us"], row["op_id"]))


def _rows(schedule: Schedule, times: Times, at: npt.NDArray[Any], begin: npt.NDArray[Any], end: npt.NDArray[Any]) -> list[Row]:
    ops = schedule.ops
    return [{"op_id": int(op), "kind": Kind(int(ops.kind[op])).name, "rank": int(ops.rank[op]), "peer": int(ops.peer[op]),
             "channel": int(ops.channel[op]), "step": int(ops.step[op]), "bytes": int(times.nbytes[op]),
             "begin_us": float(begin[op]) / 1e6, "end_us": float(end[op]) / 1e6} for op in at]  # fmt: skip
