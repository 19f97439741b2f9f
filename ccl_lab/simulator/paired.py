"""Pairwise exchanges, timed without a row per op: columns for the native evaluation (native/src/sim/paired.hpp).

Is: where they are in step with each other, what puts and copies take, and, where ranks have several channels, which take turns in the
fabric, the steps inside nodes. Is not: the other steps. Invariant: the times are those of exact.py on the unrolled schedule, to the
picosecond, or `Inapplicable` is raised.

Several channels. In nominal time all parts of a block are as long, so that in each step every link serves its channels in their order: in
one batch, or one a turn behind the other where they share a NIC. Channels with NICs of their own do not meet outside nodes and are
evaluated one by one; in place they meet in memory, step by step and in their order as well if all NICs carry as many of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import Inapplicable
from ..ir import Paired
from ..topo import Topology
from .changes import NONE, Changes
from .columns import busy_ps, check, no_changes_inside, switch_columns, too_long
from .partners import partners_finish

I64 = npt.NDArray[np.int64]

_LATEST_PS = 2**60


# Steps inside nodes on several channels, one after the other.
_MOST_INSIDE = 4096


def paired_finish(paired: Paired, topology: Topology, count: int, itemsize: int, late_ps: I64, alpha_ps: int, changes: Changes = NONE, *,
                  merge: bool = True, target: int = 0) -> tuple[I64, dict[str, Any]]:  # fmt: skip
    """When each rank ends, i64[n_ranks], and counts: puts that were evaluated, and where ranks are not in step those that took `turns`.

    Blocks of `count` elements; merge: False evaluates every rank, target: code for one of _core.vector_targets(), for tests. Raises
    Inapplicable as `partners_finish`; UsageError after 13 days. Cost: nothing where all ranks are alike,
    else 1 ns a put with AVX-512; where ranks are not in step (no power of two, NICs shared or lost) as `partners_finish`.
    """
    n, channels = topology.n_ranks, paired.channels
    ranks = np.arange(n)
    group = n // topology.n_nodes
    if not _in_step(paired, topology):
        return partners_finish(paired, topology, count, itemsize, late_ps, alpha_ps, changes)
    no_changes_inside(changes, topology)
    if channels > 1 and group > _MOST_INSIDE:
        raise Inapplicable(f"ranks of a node have {channels} channels, and at most {_MOST_INSIDE:,} of them are timed so")
    nic, shares = _nics(topology, channels)
    shares = shares[:, 0]
    by_nic = [np.flatnonzero(shares == one) for one in np.unique(shares)]
    if paired.in_place and len({len(each) for each in by_nic}) > 1:
        raise Inapplicable("some channels have more of a NIC than others, and all of them copy in one memory")
    sizes = paired.part_bytes(count, itemsize)
    copies = np.stack([busy_ps(int(each), topology.local_bytes_per_s) for each in sizes])
    near = _Near(topology, ranks, alpha_ps)
    begin, left = late_ps + (0 if paired.in_place else np.cumsum(copies, axis=0)), late_ps
    if channels > 1:
        begin, left = near.all_steps(group, np.broadcast_to(begin, copies.shape), copies, sizes.tolist(), late_ps, paired.in_place)
    finish, puts, even = left, 0, _even_tiers(topology, nic)
    for some in [np.arange(channels)] if paired.in_place else by_nic:
        far = _far(topology, nic[some], sizes[some], alpha_ps)
        given = {"late_ps": late_ps, "begin_ps": np.broadcast_to(begin, copies.shape)[some], "copy_ps": copies[some], **far.times,
                 **near.columns(int(sizes[0]))}  # fmt: skip
        alike = merge and not changes and even and all((each == each[..., :1]).all() for each in given.values())
        ends = np.zeros(n, np.int64)
        status = _core.simulate_paired({
            "ranks": n, "group": group, "first": group if channels > 1 else 1,
            "nic": np.unique(shares[some], return_inverse=True)[1].astype(np.int32), "in_place": paired.in_place, "alike": alike,
            "alpha_ps": alpha_ps, "nbytes": sizes[some], "links": len(topology.links), "target": target,
            **{name: np.ascontiguousarray(each, np.int64).ravel() for name, each in given.items()},
            **{name: np.ascontiguousarray(each[: len(some) * bool(changes)]).ravel() for name, each in far.links.items()},
            "finish_ps": ends, **changes.columns(),
            **switch_columns(topology, nic[some])})  # fmt: skip
        check(status, "exchanges", "puts take days")
        finish, puts = np.maximum(finish, ends), puts + (1 if alike else n) * (n - 1) * len(some)
    return finish, {"puts": puts}


def _in_step(paired: Paired, topology: Topology) -> bool:
    """Whether all ranks take each step at one tick of nominal time: a power of two of them, in equal nodes, with NICs of their own."""
    n = topology.n_ranks
    group = n // topology.n_nodes
    if n & (n - 1) or n != group * topology.n_nodes or (topology.node_of != np.arange(n) // group).any():
        return False
    nic, shares = _nics(topology, paired.channels)
    return bool((shares == shares[:, :1]).all()) and len(np.unique(nic)) == len(np.unique(shares)) * n


def _even_tiers(topology: Topology, nic: I64) -> bool:
    """Whether switches add as much for all ranks in each step they take together: groups of powers of two of nodes with NICs alike."""
    if not topology.tiers_add_latency or topology.network is None or topology.n_nodes == 1:
        return True
    nodes, many = np.arange(topology.n_nodes), topology.nics_per_node
    number = (nic % many).reshape(len(nic), topology.n_nodes, -1)
    sizes = [1 << int(np.count_nonzero(tier.group_of == tier.group_of[0]) - 1).bit_length() for tier in topology.network.tiers]
    aligned = all(np.array_equal(tier.group_of, nodes // size) for tier, size in zip(topology.network.tiers, sizes, strict=True))
    return aligned and bool((number == number[:, :1]).all())


def _nics(topology: Topology, channels: int) -> tuple[I64, I64]:
    """The NIC of each channel and rank, and the first channel that has the same one: [channels, n_ranks] both."""
    ranks = np.arange(topology.n_ranks)
    if topology.n_nodes == 1:
        return np.tile(ranks, (channels, 1)), np.zeros((channels, topology.n_ranks), np.int64)
    nic = topology.node_of * topology.nics_per_node + topology.nic_of(ranks, np.arange(channels)[:, None])
    return nic.astype(np.int64), np.argmax(nic[:, None] == nic[None], axis=1)


class _Far(NamedTuple):
    """Of NICs, [channels, n_ranks]: what puts take on them and latencies, and which ones they are."""

    times: dict[str, I64]
    links: dict[str, npt.NDArray[Any]]


def _far(topology: Topology, nic: I64, sizes: I64, alpha_ps: int) -> _Far:
    n, links, many = topology.n_ranks, topology.links, topology.n_nodes > 1
    times, names = {}, {}
    for side, name in enumerate(("tx", "rx")):
        ids = 3 * n + side * topology.n_nodes * topology.nics_per_node + nic if many else side * n + nic
        times[f"{name}_ps"] = np.stack([(alpha_ps if each else 0) + busy_ps(int(each), links.bytes_per_s[row])
                                        for each, row in zip(sizes, ids, strict=True)])  # fmt: skip
        times[f"{name}_latency_ps"] = links.latency_ps[ids]
        names |= {f"{name}_link": ids.astype(np.int32), f"{name}_bytes_per_s": links.bytes_per_s[ids]}
    return _Far(times, names)


class _Near:
    """Puts inside nodes."""

    def __init__(self, topology: Topology, ranks: I64, alpha_ps: int) -> None:
        self._links, self._ids, self._alpha_ps, self._ranks = topology.links, (ranks, len(ranks) + ranks), alpha_ps, ranks

    def columns(self, nbytes: int) -> dict[str, I64]:
        """What puts take on both sides, and latencies."""
        held, found = self._alpha_ps if nbytes else 0, {}
        for name, ids in zip(("near_tx", "near_rx"), self._ids, strict=True):
            found[f"{name}_ps"] = held + busy_ps(nbytes, self._links.bytes_per_s[ids])
            found[f"{name}_latency_ps"] = self._links.latency_ps[ids]
        return found

    def all_steps(self, group: int, clock: I64, copies: I64, sizes: list[int], late_ps: I64, in_place: bool) -> tuple[I64, I64]:
        """When each channel is through the steps inside nodes, [channels, n_ranks], and when all puts had left; in each they take turns."""
        clock, left, tx, rx, memory = clock.copy(), late_ps, late_ps, late_ps, late_ps
        takes = [self.columns(each) for each in sizes]
        for step in range(1, group):
            partner, leaves, seen = self._ranks ^ step, [], []
            for channel, own in enumerate(takes):
                start = np.maximum(clock[channel], np.maximum(tx, rx[partner]))
                tx, rx = start + own["near_tx_ps"], (start + own["near_rx_ps"][partner])[partner]
                leaves.append(np.maximum(tx, rx[partner]))
                seen.append((leaves[-1] + own["near_tx_latency_ps"])[partner] + own["near_rx_latency_ps"])
            clock, left = np.maximum(clock, seen), np.maximum(left, leaves[-1])
            for channel in range(len(sizes) if in_place else 0):
                memory = clock[channel] = np.maximum(np.maximum(clock[channel], leaves[channel]), memory) + copies[channel]
            if clock.max() > _LATEST_PS:
                raise too_long()
        return clock, left
