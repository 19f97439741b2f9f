"""Chains over all ranks, timed without a row per op: columns for the native evaluation (native/src/sim/chains.hpp), and what comes back.

Is: which links a chain uses, how long its chunks are. Is not: the arithmetic. Invariant: the times are those of exact.py on the unrolled
schedule, to the picosecond, or `Inapplicable` is raised.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import Inapplicable
from ..ir import Chains
from ..topo import Topology
from ..topo.model import duration_ps
from .changes import NONE, Changes
from .columns import too_long

I64 = npt.NDArray[np.int64]

_OK, _DISORDER, _OVERFLOW, _BAD, _OUT_OF_MEMORY, _APART, _TOO_LONG = range(7)
_WHY = {
    _DISORDER: "chains end on the links that they begin on, before they are done with them",
    _APART: "chains do not come to the nodes in one order",
    _TOO_LONG: "nominal time does not fit",
}


def chain_finish(chains: Chains, topology: Topology, count: int, itemsize: int, late_ps: I64, alpha_ps: int, changes: Changes = NONE, *,
                 merge: bool = True) -> tuple[I64, dict[str, Any]]:  # fmt: skip
    """When each rank ends, i64[n_ranks], and counts: units (nodes, but that of the root may be two), those whose times, and whose order
    of service, were not taken from another one.

    Blocks of `count` elements; merge: False evaluates every unit, for tests. Raises Inapplicable, UsageError after 13 days. Cost: 5 ns a
    chunk and rank, less where nodes are alike; 100 ns where chunks of different lengths meet in another order at every node.
    """
    n, links = topology.n_ranks, topology.links
    after = np.roll(chains.orders, -1, axis=1)
    path = topology.path(chains.orders, after, chains.channel[:, None]).reshape(-1, 2)
    tier_ps = np.zeros(0, np.int64)
    if topology.network is not None:
        tier_ps = np.ascontiguousarray(topology.tier_latency_ps(chains.orders, after, chains.channel[:, None]), np.int64).ravel()
    sizes = chains.chunk_bytes(count, itemsize)
    finish = late_ps.copy()
    if chains.keeps:  # one copy a chain, one after the other: nothing else is done in the memory of the first rank
        first = int(chains.orders[0, 0])
        finish[first] += sum(duration_ps(int(each), int(topology.local_bytes_per_s[first])) for each in sizes.sum(axis=1))
    status, units, evaluated, orders = _core.simulate_chains({
        "chains": len(chains.orders), "length": n, "chunks": chains.depth, "adds": chains.adds, "merge": merge, "alpha_ps": alpha_ps,
        "rank": np.ascontiguousarray(chains.orders, np.int32).ravel(), "link_a": np.ascontiguousarray(path[:, 0]),
        "link_b": np.ascontiguousarray(path[:, 1]), "tier_ps": tier_ps, "bytes": sizes.ravel(),
        "nominal_parts": chains.nominal_parts(count), "node_of": np.ascontiguousarray(topology.node_of, np.int32),
        "bytes_per_s": links.bytes_per_s, "latency_ps": links.latency_ps, "late_ps": late_ps, "finish_ps": finish,
        **changes.columns()})  # fmt: skip
    if status == _OUT_OF_MEMORY:
        raise MemoryError("simulating chains")
    if status == _OVERFLOW:
        raise too_long()
    if status != _OK:
        raise Inapplicable(_WHY.get(status, "columns do not fit"))
    return finish, {"units": units, "evaluated": evaluated, "orders": orders}
