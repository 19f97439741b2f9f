"""Pairwise exchanges, timed without a row per op: columns for the native evaluation (native/src/sim/paired.hpp).

Is: where they are in step with each other, and what puts and copies take. Is not: the steps. Invariant: the times are those of exact.py on
the unrolled schedule, to the picosecond, or `Inapplicable` is raised.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import Inapplicable, UsageError
from ..topo import Topology
from .changes import NONE, Changes
from .columns import busy_ps, no_tiers

I64 = npt.NDArray[np.int64]

_OK, _TOO_LONG, _OVERFLOW, _BAD, _OUT_OF_MEMORY = range(5)


def paired_finish(in_place: bool, topology: Topology, count: int, itemsize: int, late_ps: I64, alpha_ps: int, changes: Changes = NONE, *,
                  merge: bool = True, target: int = 0) -> tuple[I64, dict[str, Any]]:  # fmt: skip
    """When each rank ends, i64[n_ranks], and counts: puts that were evaluated.

    Blocks of `count` elements, on one channel; merge: False evaluates every rank, target: code for one of _core.vector_targets(), for
    tests. Raises Inapplicable where ranks are not in step with each other (nodes are no powers of two, NICs shared or lost), where switches
    add latency; UsageError after 13 days. Cost: nothing where all ranks are alike, else 1 ns a put with AVX-512.
    """
    n, links, nbytes = topology.n_ranks, topology.links, count * itemsize
    ranks = np.arange(n)
    group = n // topology.n_nodes
    if n & (n - 1) or n != group * topology.n_nodes or (topology.node_of != ranks // group).any():
        raise Inapplicable("ranks are not in step with each other unless nodes are equal, and powers of two")
    no_tiers(topology)
    if changes and (changes.link < 3 * n).any():
        raise Inapplicable("rates inside nodes change")
    nics = topology.nics_per_node
    nic = topology.node_of * nics + topology.nic_of(ranks, 0) if topology.n_nodes > 1 else ranks
    if len(np.unique(nic)) < n:
        raise Inapplicable("ranks share NICs, and are not in step with each other")
    tx, rx = (3 * n + nic, 3 * n + topology.n_nodes * nics + nic) if topology.n_nodes > 1 else (ranks, n + ranks)
    held, copy = alpha_ps if nbytes else 0, busy_ps(nbytes, topology.local_bytes_per_s)
    ids = {"tx": tx, "rx": rx, "near_tx": ranks, "near_rx": n + ranks}
    columns = {f"{name}_ps": held + busy_ps(nbytes, links.bytes_per_s[each]) for name, each in ids.items()}
    columns |= {f"{name}_latency_ps": links.latency_ps[each] for name, each in ids.items()}
    columns |= {"late_ps": late_ps, "copy_ps": copy, "begin_ps": late_ps + (0 if in_place else copy)}
    alike = merge and not changes and all((each == each[0]).all() for each in columns.values())
    finish = np.zeros(n, np.int64)
    status = _core.simulate_paired({
        "ranks": n, "group": group, "in_place": in_place, "alike": alike, "alpha_ps": alpha_ps, "nbytes": nbytes,
        "links": len(links), "target": target,
        **{name: np.ascontiguousarray(each, np.int64) for name, each in columns.items()},
        **{f"{name}_link": np.ascontiguousarray(each if changes else each[:0], np.int32) for name, each in (("tx", tx), ("rx", rx))},
        **{f"{name}_bytes_per_s": np.ascontiguousarray(links.bytes_per_s[each if changes else each[:0]])
           for name, each in (("tx", tx), ("rx", rx))},
        "finish_ps": finish, **changes.columns()})  # fmt: skip
    if status == _OUT_OF_MEMORY:
        raise MemoryError("simulating exchanges")
    if status == _OVERFLOW:
        raise UsageError("the schedule would take more than 13 days: raise the rates or lower the size.")
    if status != _OK:
        raise Inapplicable("puts take days" if status == _TOO_LONG else "columns do not fit")
    return finish, {"puts": (1 if alike else n) * (n - 1)}
