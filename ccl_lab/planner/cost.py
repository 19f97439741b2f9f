"""How long an algorithm takes, in closed form: the alpha-beta-gamma model over a topology.

Is: an estimate, made to rank algorithms and to pick pipeline depths. Is not: the simulator, which times every op on every
link. Invariants: `alpha` latency of a hop, `beta` seconds per byte, `gamma` seconds per byte of a reduction; the slowest
NIC, fabric port and memory engine stand for all; times in seconds, sizes in bytes.

A *hop* is one step in which the busiest rank sends S bytes:
    inside a node      alpha_fabric + S / fabric
    between nodes      alpha_nic + max(S / (NICs of a rank), s S / (NICs of a node))     s ranks of a node sending at once
Source: Hockney's model as in Thakur, Rabenseifner and Gropp, IJHPCA 2005; section 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..topo import Topology
from .problem import Problem

# What an engine needs to start one op: an assumption, used only to keep pipelines from becoming too fine.
OP_SECONDS = 10e-6


@dataclass(frozen=True)
class Machine:
    """The topology in the few numbers that the formulas use; rates in bytes/s, `rank_nic`: the NICs one rank can drive."""

    n: int
    nodes: int
    group: int
    alpha_fabric: float
    alpha_nic: float
    fabric: float
    one_nic: float
    rank_nic: float
    node_nic: float
    local: float

    def near(self, nbytes: float) -> float:
        """A hop inside a node."""
        return self.alpha_fabric + nbytes / self.fabric

    def far(self, nbytes: float, senders: int | None = None) -> float:
        """A hop between nodes; `senders` ranks of each node at once (default: all)."""
        if self.nodes == 1:
            return self.near(nbytes)
        senders = self.group if senders is None else senders
        return self.alpha_nic + max(nbytes / self.rank_nic, senders * nbytes / self.node_nic)

    def hop(self, nbytes: float, distance: int, senders: int | None = None) -> float:
        """A hop to the rank `distance` further on: between nodes where that is a node's size or more."""
        return self.far(nbytes, senders) if distance >= self.group and self.nodes > 1 else self.near(nbytes)

    def add(self, nbytes: float, sources: int = 2) -> float:
        """One reduction of `sources` arrays of `nbytes`."""
        return sources * nbytes / self.local


@dataclass(frozen=True)
class Cost:
    """An estimate: seconds; steps; bytes that the busiest rank sends; bytes over the busiest NIC (0 on one node)."""

    seconds: float
    steps: int
    rank_bytes: float
    nic_bytes: float = 0.0


@lru_cache(maxsize=64)
def machine(topology: Topology) -> Machine:
    """The numbers of a topology; NICs that are down do not count."""
    up = topology.nic_bytes_per_s[topology.nic_bytes_per_s > 0]
    one = float(up.min()) if len(up) else math.inf
    whole = topology.nic_bytes_per_s.reshape(topology.n_nodes, -1).sum(axis=1)
    node = float(whole.min()) if topology.n_nodes > 1 else math.inf
    group = int(topology.ranks_per_node.max())
    return Machine(
        n=topology.n_ranks, nodes=topology.n_nodes, group=group, alpha_fabric=float(topology.fabric_latency_ps.max()) * 1e-12,
        alpha_nic=float(topology.nic_latency_ps.max()) * 1e-12 if len(topology.nic_latency_ps) else 0.0,
        fabric=float(topology.fabric_bytes_per_s.min()), one_nic=one, rank_nic=one * max(1, topology.nics_per_node // group),
        node_nic=max(node, 1.0), local=float(topology.local_bytes_per_s.min()),
    )  # fmt: skip


def of(problem: Problem) -> Machine:
    """The machine of a problem."""
    return machine(problem.topology)


# -- pipeline depths


def _power_of_two(value: float, most: int) -> int:
    return 2 ** min(max(round(math.log2(value)) if value > 0 else 0, 0), int(math.log2(most)))


def ring_channels(problem: Problem, both_ways: bool = False) -> int:
    """Rings that `orders.rings` makes."""
    wanted = max(1, problem.topology.nics_per_node) if problem.topology.n_nodes > 1 else 1
    return problem.slices(wanted, problem.nbytes / problem.n) * (2 if both_ways and problem.channels is None else 1)


def ring_depth(problem: Problem, channels: int) -> int:
    """Sub-chunks k of a reducing ring: the reduction of one overlaps the transfer of the next.

    A step costs t_send + t_add / k + k o; least at k = sqrt(t_add / o). At most 4.
    """
    chunk = problem.nbytes / problem.n / channels
    return _power_of_two(math.sqrt(of(problem).add(chunk) / OP_SECONDS), 4)


def hierarchical_depth(problem: Problem) -> int:
    """Slices k of the hierarchical all_reduce: only the first scatter and the last gather are not hidden.

    Costs t_node / k + k o (3g ops a slice); least at k = sqrt(t_node / o). At most 16.
    """
    at = of(problem)
    share = problem.nbytes / at.group
    node = 2 * (at.group - 1) * share / at.fabric + at.add(share, at.group)
    return _power_of_two(math.sqrt(node / (3 * at.group * OP_SECONDS)), 16)


def hierarchical_lanes(problem: Problem, depth: int) -> int:
    """Channels between nodes: two for each NIC of a rank, so that one sends while the other reduces."""
    return max(1, min(depth, problem.channels - 1 if problem.channels else 2 * problem.nics_per_rank))


def chain_depth(problem: Problem, hops: int, nbytes: float) -> int:
    """Chunks k of a pipeline over `hops` hops: (hops + k - 1)(alpha + S/(k B)), least at k = sqrt((hops-1) S/(B alpha)). At most 64."""
    at = of(problem)
    seconds = at.far(nbytes, 1) - at.far(0, 1) + at.add(nbytes)
    return _power_of_two(math.sqrt(max(hops - 1, 0) * seconds / (at.far(0) + OP_SECONDS)), 64)


# -- rings


def _ring(problem: Problem, steps: int, chunk: float, channels: int, reducing: float) -> Cost:
    """T = steps max(chunk/nic, C chunk/fabric + add, mean over edges of a hop + add) + alpha.

    A ring is periodic: its rate is the largest cycle mean of its max-plus matrix, which is either one busy link or the
    round trip of a chunk over all n edges, K of them between nodes (Baccelli et al., "Synchronization and Linearity", 3.2).
    `chunk`: bytes per channel and step; `reducing`: share of the steps that add.
    """
    at = of(problem)
    both = channels * chunk
    added = reducing * at.add(both) / ring_depth(problem, channels) if reducing else 0.0
    nic = chunk / at.one_nic * max(1.0, channels * at.one_nic / at.node_nic) if at.nodes > 1 else 0.0
    crossings = at.nodes if at.nodes > 1 else 0
    round_trip = (crossings * (at.alpha_nic + nic + added) + (at.n - crossings) * (at.near(both) + added)) / at.n
    seconds = steps * max(nic, both / at.fabric + added, round_trip) + (at.alpha_nic if crossings else at.alpha_fabric)
    return Cost(seconds, steps, steps * both, steps * chunk if crossings else 0.0)


def all_reduce_ring(problem: Problem) -> Cost:
    """2(n-1) steps of M/n, half of them adding. Patarasuk and Yuan 2009."""
    channels = ring_channels(problem)
    return _ring(problem, 2 * problem.n - 2, problem.nbytes / problem.n / channels, channels, 0.5)


def all_reduce_bidirectional_ring(problem: Problem) -> Cost:
    """As ring, on twice the channels. Patarasuk and Yuan 2009."""
    channels = ring_channels(problem, both_ways=True)
    return _ring(problem, 2 * problem.n - 2, problem.nbytes / problem.n / channels, channels, 0.5)


def all_gather_ring(problem: Problem) -> Cost:
    """n-1 steps of a block. Thakur et al. 2005, 4.1."""
    channels = ring_channels(problem)
    return _ring(problem, problem.n - 1, problem.block_bytes / channels, channels, 0.0)


def reduce_scatter_ring(problem: Problem) -> Cost:
    """n-1 steps of a block, all adding. Thakur et al. 2005, 4.2."""
    channels = ring_channels(problem)
    return _ring(problem, problem.n - 1, problem.block_bytes / channels, channels, 1.0)


# -- all_reduce


def all_reduce_hierarchical(problem: Problem) -> Cost:
    """T = max(2(K-1)(M/(gK)/nic + add + alpha), node) + node/k, node = 2(g-1) M/(g fabric) + g M/(g local). Jia et al. 2018, 3.3."""
    at, size = of(problem), problem.nbytes
    depth = hierarchical_depth(problem)
    share = size / at.group
    node = 2 * at.alpha_fabric + 2 * (at.group - 1) * share / at.fabric + at.add(share, at.group)
    hop = at.far(share / at.nodes) if at.nodes > 1 else 0.0
    steps = 2 * (at.nodes - 1)
    lanes = hierarchical_lanes(problem, depth)
    between = steps * (hop + at.add(share / at.nodes) / 2 / lanes)
    crossing = steps * share / at.nodes
    return Cost(max(between, node) + (node / depth if at.nodes > 1 else 0.0), 2 * at.nodes,
                2 * (at.group - 1) * share + crossing, crossing * at.group * at.one_nic / at.node_nic if at.nodes > 1 else 0.0)


# -- all_to_all


def all_to_all_direct(problem: Problem) -> Cost:
    """T = alpha + max((n-1) o, near bytes/fabric, far bytes g/node NICs). NCCLX 2.6: T_c (N-1) + S/BW."""
    return _exchange(problem, problem.n - 1, overlapped=True)


def _exchange(problem: Problem, steps: int, overlapped: bool) -> Cost:
    at, block = of(problem), problem.block_bytes
    far = at.n - at.group
    near_seconds = (at.group - 1) * block / at.fabric
    far_seconds = far * block * at.group / at.node_nic if at.nodes > 1 else 0.0
    alpha = at.alpha_nic if far else at.alpha_fabric
    copies = at.add(2 * at.n * block, 1) if problem.in_place else at.add(block)
    if overlapped:
        seconds = alpha + max((at.n - 1) * OP_SECONDS, near_seconds, far_seconds) + copies
    else:
        seconds = far * at.alpha_nic + (at.group - 1) * at.alpha_fabric + near_seconds + far_seconds + copies
    return Cost(seconds, steps, (at.n - 1) * block, far * block * at.group * at.one_nic / at.node_nic if far else 0.0)


def log2_floor(n: int) -> int:
    """floor(log2 n)."""
    return int(n).bit_length() - 1


def log2_ceil(n: int) -> int:
    """ceil(log2 n)."""
    return int(n - 1).bit_length()


def busiest(values: np.ndarray) -> float:
    """The largest of `values`, 0 of none."""
    return float(values.max()) if values.size else 0.0
