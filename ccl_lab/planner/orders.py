"""The order in which ranks sit on a ring or in a tree, chosen from the topology.

Is: pure functions of the topology. Is not: an algorithm. Invariants: every order is a permutation of all ranks; the
ranks of a node are consecutive, so a ring crosses between nodes once per node and channel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..ir import RingLoops
from ..topo import Topology
from .problem import Problem


@dataclass(frozen=True, eq=False)
class Rings:
    """orders: int64[rings, n], the ranks along each ring; it carries weight_of of `units` equal slices of the message, on channel_of.

    Of every (ring, position), int64[rings * n], made when asked for, since loops have no use for it: the rank there, its neighbours on that
    ring, `channel`, `weight`, and `first`, the first slice of the ring. Channels are numbers below `numbers`.
    """

    orders: np.ndarray
    channel_of: np.ndarray
    weight_of: np.ndarray

    @classmethod
    def along(cls, orders: np.ndarray, channel: np.ndarray | None = None, weight: np.ndarray | None = None) -> Rings:
        """Rings along these ranks; channel and weight of each (default: in order, 1)."""
        rings = len(orders)
        return cls(orders, np.arange(rings) if channel is None else channel, np.ones(rings, np.int64) if weight is None else weight)

    @property
    def channels(self) -> int:
        """How many rings there are."""
        return len(self.orders)

    @property
    def units(self) -> int:
        """Slices of the message."""
        return int(self.weight_of.sum())

    @property
    def numbers(self) -> int:
        """Channels up to the last one that a ring uses."""
        return int(self.channel_of.max()) + 1

    @property
    def first_of(self) -> np.ndarray:
        """The first slice of each ring."""
        return np.cumsum(self.weight_of) - self.weight_of

    @cached_property
    def position(self) -> np.ndarray:
        return np.tile(np.arange(self.orders.shape[1]), self.channels)

    @cached_property
    def rank(self) -> np.ndarray:
        return self.orders.ravel()

    @cached_property
    def next(self) -> np.ndarray:
        return np.roll(self.orders, -1, axis=1).ravel()

    @cached_property
    def prev(self) -> np.ndarray:
        return np.roll(self.orders, 1, axis=1).ravel()

    @cached_property
    def channel(self) -> np.ndarray:
        return np.repeat(self.channel_of, self.orders.shape[1])

    @cached_property
    def first(self) -> np.ndarray:
        return np.repeat(self.first_of, self.orders.shape[1])

    @cached_property
    def weight(self) -> np.ndarray:
        return np.repeat(self.weight_of, self.orders.shape[1])


def ring_orders(topology: Topology, channels: int) -> np.ndarray:
    """int64[channels, n]: the ranks along each channel's ring.

    Channel c enters a node at local index e = floor(c * g / channels) and, on even nodes, visits e, e+1, …, e-1; odd nodes
    go the other way round, e-1, e-2, …, e. So each channel crosses on NICs of its own, and (on an even number of nodes)
    leaves and arrives on the same rail. Around a lost NIC it crosses at the rank of one that no other channel has, where there is one.
    """
    sizes, nodes = topology.ranks_per_node, topology.node_of.astype(np.int64)
    local, size = topology.local_of.astype(np.int64), sizes[topology.node_of]
    orders = np.empty((channels, topology.n_ranks), np.int64)
    for c in range(channels):
        entry = c * size // channels
        forward = local - entry
        forward += size * (forward < 0)
        place = np.where(nodes % 2 == 1, size - 1 - forward, forward)
        orders[c] = topology.by_node(place)
    if topology.n_nodes > 1 and channels > 1:
        _to_spare_nics(topology, orders)
    return orders


def _to_spare_nics(topology: Topology, orders: np.ndarray) -> None:
    """Around lost NICs, in place: the rank at which a ring enters a node, or leaves it, changes places with that of a spare NIC."""
    lost = (topology.nic_bytes_per_s == 0).reshape(topology.n_nodes, -1).any(axis=1)
    if not lost.any():
        return
    places = np.flatnonzero(np.repeat(lost, topology.ranks_per_node))
    on, channel = orders[:, places], np.arange(len(orders))[:, None]
    nics = topology.nic_of(on, channel)
    displaced = nics != topology.replace(nic_bytes_per_s=np.maximum(topology.nic_bytes_per_s, 1)).nic_of(on, channel)
    ends = np.cumsum(topology.ranks_per_node[lost])
    for begin, end in zip((ends - topology.ranks_per_node[lost]).tolist(), ends.tolist(), strict=True):
        for at, other in ((begin, end - 1), (end - 1, begin)):
            for ring in np.flatnonzero(displaced[:, at]):
                used = nics[:, at].tolist()
                spare = [to for to in range(begin, end) if to != other and nics[ring, to] not in used]
                if used.count(nics[ring, at]) > 1 and spare:
                    swap = [at, min(spare, key=lambda to: abs(to - at))]
                    for each in (on, nics, displaced):
                        each[ring, swap] = each[ring, swap[::-1]]
    orders[:, places] = on


def share_nics(topology: Topology, orders: np.ndarray) -> bool:
    """Whether two rings leave a node by one NIC, or come into it by one, as those in both directions do and those around a lost NIC.

    They need a timetable then. In nominal time a ring that shares its NIC takes more ticks than one that does not, or comes to a node
    later; others overtake it all round the ring, and since links serve in that order they wait for it in every rank.
    Cost: O(rings * nodes).
    """
    if topology.n_nodes == 1 or len(orders) == 1:
        return False
    channel = np.arange(len(orders))[:, None]
    for ranks in _ends(topology, orders):
        nics = topology.node_of[ranks] * np.int64(topology.nics_per_node) + topology.nic_of(ranks, channel)
        if np.bincount(nics.ravel()).max() > 1:
            return True
    return False


def share_unevenly(topology: Topology, ranks: np.ndarray, channel: np.ndarray) -> bool:
    """Whether some NICs carry more rings than others, as around lost ones; of ranks [nodes, group] one ring a column on each channel.

    They need a timetable then, for the reason that those have which `share_nics`. Where all NICs carry as many, all are in step anyway.
    Cost: O(channels * ranks).
    """
    if topology.n_nodes == 1:
        return False
    nics = topology.node_of[ranks] * np.int64(topology.nics_per_node) + topology.nic_of(ranks, channel[:, None, None])
    carries = np.bincount(nics.ravel())
    return bool((carries[nics] != carries[nics.flat[0]]).any())


def _ends(topology: Topology, orders: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ranks at which rings come into each node on their way, and those at which they leave it: [rings, nodes] each."""
    sizes = topology.ranks_per_node
    if (sizes == (size := int(sizes[0]))).all():
        return orders[:, ::size], orders[:, size - 1 :: size]
    node = topology.node_of[orders]
    first = node != np.roll(node, 1, axis=1)
    return tuple(orders[each].reshape(len(orders), -1) for each in (first, np.roll(first, -1, axis=1)))  # type: ignore[return-value]


def rings(problem: Problem, both_ways: bool = False) -> Rings:
    """As many rings as nodes have NICs (one on a single node); with `both_ways` each ring also runs backwards."""
    return Rings.along(orders_of(problem, both_ways))


def orders_of(problem: Problem, both_ways: bool = False) -> np.ndarray:
    """The ranks along those rings, int64[channels, n]."""
    topology = problem.topology
    wanted = max(1, topology.nics_per_node) if topology.n_nodes > 1 else 1
    channels = problem.slices(wanted, problem.nbytes / problem.n)
    orders = ring_orders(topology, (channels + 1) // 2 if both_ways and problem.channels else channels)
    return np.concatenate([orders, orders[:, ::-1]]) if both_ways else orders


def ring_loops(at: Rings, parts: int, first: np.ndarray, stride: int, depth: int, steps: int, reducing: int,
               copies: bool = False, timetable: bool = False) -> RingLoops:
    """The loops of an algorithm on rings of one slice each, the message of ring c beginning at chunk first[c] of its block."""
    return RingLoops(orders=at.orders, channel=at.channel_of, parts=parts, depth=depth, steps=steps, reducing=reducing,
                     first=first[:, None], stride=stride, span=1 if (at.weight_of == 1).all() else at.weight_of,
                     slice_of=np.zeros((at.channels, 1), np.int64), copies=copies, timetable=timetable)


def ticks(topology: Topology, at: Rings, depth: int) -> Callable[[int], np.ndarray]:
    """A timetable for rings that share NICs: when each row gets its message `number` and sends it on, i64[rows].

    One after the other goes into each node, and at once on through it, as far as those that are under way at first let it.
    """
    node = topology.node_of[at.rank]
    begins = np.append(True, node[1:] != node[:-1]) | (at.position == 0)
    row = np.arange(len(node))
    inside = row - np.maximum.accumulate(np.where(begins, row, 0))
    return lambda number: np.maximum(number - inside * depth + 1, 0)


def chains(problem: Problem, ring: Rings | None = None) -> Rings:
    """The rings, turned so that the root is at position 0 of each."""
    ring = rings(problem) if ring is None else ring
    turned = np.stack([np.roll(order, -int(np.flatnonzero(order == problem.root)[0])) for order in ring.orders])
    return Rings.along(turned, ring.channel_of, ring.weight_of)


def tree_order(topology: Topology, root: int) -> np.ndarray:
    """int64[n]: the root, the rest of its node, then node after node, each beginning at the root's local index.

    A binomial tree over these positions whose longest distance comes first enters every node once.
    """
    size = topology.ranks_per_node[topology.node_of]
    node = (topology.node_of.astype(np.int64) - topology.node_of[root]) % topology.n_nodes
    local = (topology.local_of.astype(np.int64) - topology.local_of[root]) % size
    return np.lexsort((local, node))
