"""The order in which ranks sit on a ring or in a tree, chosen from the topology.

Is: pure functions of the topology. Is not: an algorithm. Invariants: every order is a permutation of all ranks; the
ranks of a node are consecutive, so a ring crosses between nodes once per node and channel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..ir import RingLoops
from ..topo import Topology
from .problem import Problem


class Rings(NamedTuple):
    """One row per (ring, position), all int64[channels * n]: the rank there, and its neighbours on that ring.

    A ring carries `weight` of `units` equal slices of the message, from slice `first` on; healthy topologies give each ring one.
    `channel` is its number, below `numbers`.
    """

    channels: int
    channel: np.ndarray
    position: np.ndarray
    rank: np.ndarray
    next: np.ndarray
    prev: np.ndarray
    first: np.ndarray
    weight: np.ndarray
    units: int
    numbers: int


def ring_orders(topology: Topology, channels: int) -> np.ndarray:
    """int64[channels, n]: the ranks along each channel's ring.

    Channel c enters a node at local index e = floor(c * g / channels) and, on even nodes, visits e, e+1, …, e-1; odd nodes
    go the other way round, e-1, e-2, …, e. So each channel crosses on NICs of its own, and (on an even number of nodes)
    leaves and arrives on the same rail.
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
    return orders


def rings(problem: Problem, both_ways: bool = False) -> Rings:
    """As many rings as nodes have NICs (one on a single node); with `both_ways` each ring also runs backwards."""
    return flatten(orders_of(problem, both_ways))


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
    orders = at.rank.reshape(at.channels, -1)
    weight = at.weight[:: orders.shape[1]]
    return RingLoops(orders=orders, channel=at.channel[:: orders.shape[1]], parts=parts, depth=depth, steps=steps, reducing=reducing,
                     first=first[:, None], stride=stride, span=1 if (weight == 1).all() else weight,
                     slice_of=np.zeros((at.channels, 1), np.int64), copies=copies, timetable=timetable)


def flatten(orders: np.ndarray, channel: np.ndarray | None = None, weight: np.ndarray | None = None) -> Rings:
    """Rows of all rings, ring by ring; `channel` and `weight` of each (default: in order, 1)."""
    channels, n = orders.shape
    channel = np.arange(channels) if channel is None else channel
    weight = np.ones(channels, np.int64) if weight is None else weight
    return Rings(channels, np.repeat(channel, n), np.tile(np.arange(n), channels), orders.ravel(),
                 np.roll(orders, -1, axis=1).ravel(), np.roll(orders, 1, axis=1).ravel(),
                 np.repeat(np.cumsum(weight) - weight, n), np.repeat(weight, n), int(weight.sum()), int(channel.max()) + 1)


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
    orders = ring.rank.reshape(ring.channels, -1)
    turned = np.stack([np.roll(order, -int(np.flatnonzero(order == problem.root)[0])) for order in orders])
    return flatten(turned, ring.channel[::problem.n], ring.weight[::problem.n])


def tree_order(topology: Topology, root: int) -> np.ndarray:
    """int64[n]: the root, the rest of its node, then node after node, each beginning at the root's local index.

    A binomial tree over these positions whose longest distance comes first enters every node once.
    """
    size = topology.ranks_per_node[topology.node_of]
    node = (topology.node_of.astype(np.int64) - topology.node_of[root]) % topology.n_nodes
    local = (topology.local_of.astype(np.int64) - topology.local_of[root]) % size
    return np.lexsort((local, node))
