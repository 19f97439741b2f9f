"""A part of a topology: the ranks that are left, or that take part, as a topology of their own.

Is: selection of rows and renumbering. Is not: a plan. Invariants: every link keeps its rate and latency; ranks of one node
stay on one node, in the order of their local indices; nodes without a rank are left out with their NICs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..arguments import several, shown, wholes
from ..errors import UsageError
from .model import Topology
from .places import local_indices


def subset(topology: Topology, ranks: Sequence[int]) -> Topology:
    """The topology of `ranks`, which become 0, 1, 2, … in the order given; UsageError if one is no rank or comes twice."""
    chosen = wholes(several(ranks, "ranks", "a list of ranks"), "ranks")
    known = chosen.ndim == 1 and chosen.size and chosen.min() >= 0 and chosen.max() < topology.n_ranks
    if not known or len(set(chosen.tolist())) != chosen.size:
        raise UsageError(f"subset({shown(chosen.tolist())}) of topology {topology.name!r}: expected at least 1 of the ranks 0 to "
                         f"{topology.n_ranks - 1}, each once.")  # fmt: skip
    nodes, node_of = np.unique(topology.node_of[chosen], return_inverse=True)
    rows = (nodes[:, None] * topology.nics_per_node + np.arange(topology.nics_per_node)).reshape(-1)
    return topology.replace(
        node_of=node_of.astype(np.int32),
        local_of=_closed_up(node_of, topology.local_of[chosen]),
        nic_bytes_per_s=topology.nic_bytes_per_s[rows],
        nic_latency_ps=topology.nic_latency_ps[rows],
        fabric_bytes_per_s=topology.fabric_bytes_per_s[chosen],
        fabric_latency_ps=topology.fabric_latency_ps[chosen],
        local_bytes_per_s=topology.local_bytes_per_s[chosen],
        nic_names=tuple(topology.nic_names[row] for row in rows) if topology.nic_names else (),
        network=None if topology.network is None else topology.network.subset(nodes),
    )


def _closed_up(node_of: np.ndarray, local_of: np.ndarray) -> np.ndarray:
    """Local indices 0, 1, 2, … of each node, in the order of those that were left."""
    order = np.lexsort((local_of, node_of))
    closed = np.empty(len(order), np.int32)
    closed[order] = local_indices(node_of[order])
    return closed
