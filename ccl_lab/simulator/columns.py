"""What evaluations node by node have in common: after how many nodes all repeats, and how long bytes take at each of many rates.

Is: helpers of pairs.py, paired.py, partners.py and rails.py. Is not: an evaluation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import Inapplicable, UsageError
from ..topo import Topology, duration_ps
from .changes import Changes

I64 = npt.NDArray[np.int64]

# What evaluations of pairs say: native/src/sim/pairs.hpp, paired.hpp, partners.hpp.
_OK, _TOO_LONG, _OVERFLOW, _BAD, _OUT_OF_MEMORY = range(5)


def period(columns: list[npt.NDArray[Any]]) -> int:
    """The least number of nodes, of those that divide all, after which all columns, [nodes, …], repeat."""
    nodes = len(columns[0])
    for units in (each for each in range(1, nodes) if nodes % each == 0):
        if all(np.array_equal(column[units:], column[:-units]) for column in columns):
            return units
    return nodes


def too_long() -> UsageError:
    """What is raised where times of a schedule leave 2^60 ps."""
    return UsageError("the schedule would take more than 13 days: raise the rates or lower the size.")


def check(status: int, what: str, why_too_long: str) -> None:
    """Raises MemoryError where there is none for simulating `what`, UsageError after 13 days, Inapplicable for all else but ok."""
    if status == _OUT_OF_MEMORY:
        raise MemoryError(f"simulating {what}")
    if status == _OVERFLOW:
        raise too_long()
    if status != _OK:
        raise Inapplicable(why_too_long if status == _TOO_LONG else "columns do not fit")


def busy_ps(nbytes: int, rates: I64) -> I64:
    """Picoseconds that bytes need at each rate; UsageError after 13 days."""
    rate, which = np.unique(rates, return_inverse=True)
    times = [duration_ps(nbytes, int(each)) for each in rate]
    if max(times, default=0) > 2**60:
        raise too_long()
    return np.array(times, np.int64)[which].reshape(rates.shape)


def no_tiers(topology: Topology) -> None:
    """Raises Inapplicable where switches add latency, which depends on the pair of nodes."""
    if topology.tiers_add_latency:
        raise Inapplicable("switches between nodes add latencies of their own")


def tier_columns(topology: Topology) -> dict[str, npt.NDArray[Any]]:
    """Columns of native/src/sim/pair_tiers.hpp, by node; empty where switches add nothing."""
    tiers = topology.network.tiers if topology.network is not None and topology.tiers_add_latency and topology.n_nodes > 1 else ()
    return {"tier_group": np.array([tier.group_of for tier in tiers], np.int32).ravel(),
            "tier_latency_ps": np.array([tier.latency_ps for tier in tiers], np.int64),
            "tier_per_rail": np.array([tier.per_rail for tier in tiers], np.uint8)}  # fmt: skip


def switch_columns(topology: Topology, nic: I64) -> dict[str, npt.NDArray[Any]]:
    """Columns of native/src/sim/partner_tiers.hpp, by channel and rank, whose NICs are `nic`, [channels, n_ranks], of all; empty where
    switches add nothing."""
    adds, many = topology.tiers_add_latency and topology.n_nodes > 1, topology.nics_per_node
    network = topology.network if adds else None
    above = [] if network is None else [network.switch_of(tier, nic // many, nic % many, many) for tier in range(len(network.tiers))]
    return {"tier_switch": np.array(above, np.int32).ravel(),
            "tier_latency_ps": np.array([tier.latency_ps for tier in network.tiers] if network is not None else [], np.int64)}


def no_changes_inside(changes: Changes, topology: Topology) -> None:
    """Raises Inapplicable where rates of anything but NICs change in time."""
    if changes and (changes.link < 3 * topology.n_ranks).any():
        raise Inapplicable("rates inside nodes change")
