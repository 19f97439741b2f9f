"""Which NICs the channels of a node's ranks use, where that is the same in all nodes.

Is: one question about a topology, asked by planners and simulators. Is not: where a lost NIC's channels go (model.py).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .model import Topology


def lane_nics(topology: Topology, channels: int) -> npt.NDArray[np.int32] | None:
    """i32[channels, ranks of a node]: the NIC of its node that each rank uses on each channel; None where nodes differ in that.

    None too on one node, and where ranks are not numbered node by node. Cost: an array of a number per rank and channel.
    """
    nodes = topology.n_nodes
    group = topology.n_ranks // nodes
    if nodes == 1 or not topology.nics_per_node or group * nodes != topology.n_ranks:
        return None
    if (topology.node_of != np.arange(topology.n_ranks) // group).any() or not topology.nic_bytes_per_s.all():
        return None
    nics = topology.nic_of(np.arange(topology.n_ranks), np.arange(channels)[:, None]).reshape(channels, nodes, group)
    return np.ascontiguousarray(nics[:, 0]) if (nics == nics[:, :1]).all() else None
