"""Where ranks and links are: their numbers in their nodes, whatever any rate.

Is: arithmetic on columns of whole numbers. Is not: the topology (model.py). Invariant: nothing here depends on a rate or a latency, so it
stays right where a copy of a topology has others. Cost: a few passes over a column; nothing is sorted where nodes are in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..arguments import shown, whole
from ..errors import UsageError

if TYPE_CHECKING:
    from .model import Topology


def _first_of_node(node_of: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """How many ranks are on nodes before that of each rank, i64[n_ranks]."""
    size = np.bincount(node_of)
    return (np.cumsum(size) - size)[node_of]


def by_node(node_of: npt.NDArray[Any], place: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """All ranks, node after node, in a node by `place`[rank], which numbers its ranks 0, 1, 2, …; i64[n_ranks]."""
    order = np.empty(len(node_of), np.int64)
    order[_first_of_node(node_of) + place] = np.arange(len(node_of))
    return order


def nic_at(topology: Topology, nic: Any) -> tuple[int, int]:
    """(node, index) as ints, of a NIC that is there; or UsageError."""
    if not isinstance(nic, (tuple, list)) or len(nic) != 2:
        raise UsageError(f"nic {shown(nic)}: expected (node, index).")
    return whole(nic[0], "node", 0, topology.n_nodes - 1), whole(nic[1], "nic", 0, topology.nics_per_node - 1)


def local_indices(node_of: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Index of each rank among those of its node, in rank order; i32[n_ranks]."""
    first = _first_of_node(node_of)
    if (node_of[1:] >= node_of[:-1]).all():
        return (np.arange(len(node_of)) - first).astype(np.int32)
    order = np.argsort(node_of, kind="stable")
    local = np.empty(len(node_of), np.int32)
    local[order] = np.arange(len(node_of)) - first[order]
    return local


def check_local(node_of: npt.NDArray[Any], local_of: npt.NDArray[Any]) -> None:
    """UsageError unless local_of numbers the ranks of every node 0, 1, 2, …, each number once."""
    inside = (local_of >= 0) & (local_of < np.bincount(node_of)[node_of])
    if not inside.all() or (np.bincount(_first_of_node(node_of) + local_of) != 1).any():
        raise UsageError("local_of: expected every node's ranks to be numbered 0, 1, 2, … each number once.")


def link_in_node(topology: Topology) -> npt.NDArray[np.int32]:
    """Each link's number among those of its node, i32[links], read-only.

    Ranks' fabric_tx, fabric_rx and local, then nic_tx, nic_rx; links between switches belong to no node and have numbers above those.
    """
    links, size, nics = topology.links, topology.gpus_per_node, max(topology.nics_per_node, 1)
    last = 3 * size + 2 * nics
    first = np.array([0, size, 2 * size, 3 * size, 3 * size + nics, last, last], np.int32)
    names = first[links.kind] + links.owner
    ranks = 3 * topology.n_ranks
    names[:ranks] = first[links.kind[:ranks]] + np.tile(topology.local_of, 3)
    names.setflags(write=False)
    return names
