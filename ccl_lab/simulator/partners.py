"""Pairwise exchanges of ranks that are not in step with each other: columns for the native evaluation (native/src/sim/partners.hpp).

Is: who has which NICs and links, what copies take. Is not: their order, nor time. Invariant: the times are those of exact.py on the
unrolled schedule, to the picosecond, or `Inapplicable` is raised.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import Inapplicable
from ..ir import Paired
from ..topo import Topology
from .changes import Changes
from .columns import busy_ps, check, no_changes_inside, switch_columns
from .patience import allowed, check_work

I64 = npt.NDArray[np.int64]

# Puts that are timed in minutes: of several ranks at a time, and one by one.
_MOST_SIDE_BY_SIDE = 20_000_000_000
_MOST_PUTS = 5_000_000_000
_TOO_MANY = 5


def partners_finish(paired: Paired, topology: Topology, count: int, itemsize: int, late_ps: I64, alpha_ps: int,
                    changes: Changes, *, side_by_side: bool = True, target: int = 0) -> tuple[I64, dict[str, Any]]:  # fmt: skip
    """When each rank ends, i64[n_ranks], and counts: puts that were evaluated, and of them those that took turns with others.

    Blocks of `count` elements; side_by_side: False evaluates every put by itself, target: code for one of _core.vector_targets(), tests.
    Raises Inapplicable where rates inside nodes change, in place on several channels; UsageError after 13 days.
    Cost: on one channel and not in place 3 to 8 ns a put of a power of two of ranks few of which share a NIC, 1 to 2 ns of
    another number of which none does; else some 25 ns.
    """
    n, channels, nics = topology.n_ranks, paired.channels, topology.n_nodes * topology.nics_per_node
    no_changes_inside(changes, topology)
    if topology.n_nodes == 1:
        raise Inapplicable("ranks of one node that are no power of two are not in step with each other")
    if count == 0:
        raise Inapplicable("puts of no bytes are not in step with each other")
    if paired.in_place and channels > 1:
        raise Inapplicable("ranks are not in step with each other, and copy on several channels in one memory")
    check_work(n * n * channels, _MOST_SIDE_BY_SIDE, "puts of ranks that are not in step with each other", 4e-9)
    links, node = topology.links, topology.node_of
    nic = node * topology.nics_per_node + topology.nic_of(np.arange(n), np.arange(channels)[:, None])
    sizes = paired.part_bytes(count, itemsize)
    copies = np.stack([busy_ps(int(each), topology.local_bytes_per_s) for each in sizes])
    begin = late_ps + (np.zeros_like(copies) if paired.in_place else np.cumsum(copies, axis=0))
    ids = np.concatenate([np.arange(3 * n, 3 * n + 2 * nics).reshape(2, nics).T.ravel(), np.arange(2 * n).reshape(2, n).T.ravel()])
    finish = np.zeros(n, np.int64)
    status, puts, turns = _core.simulate_partners({
        "ranks": n, "nics": nics, "channels": channels, "in_place": paired.in_place, "node": node.astype(np.int32),
        "nic": np.ascontiguousarray(nic, np.int32).ravel(), "bytes": sizes, "late_ps": np.ascontiguousarray(late_ps, np.int64),
        "begin_ps": np.ascontiguousarray(begin, np.int64).ravel(), "copy_ps": np.ascontiguousarray(copies, np.int64).ravel(),
        "alpha_ps": alpha_ps, "bytes_per_s": links.bytes_per_s[ids], "latency_ps": links.latency_ps[ids],
        "link": ids[: 2 * nics * bool(changes)].astype(np.int32), "links": len(links),
        "side_by_side": side_by_side, "most_puts": allowed(_MOST_PUTS), "target": target, "finish_ps": finish, **changes.columns(),
        **switch_columns(topology, nic)})  # fmt: skip
    if status == _TOO_MANY:
        check_work(n * n * channels, _MOST_PUTS, "puts, one by one since ranks are not in step with each other,", 25e-9)
    check(status, "exchanges", "puts take days")
    return finish, {"puts": puts, "turns": turns}
