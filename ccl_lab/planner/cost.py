"""How long an algorithm takes, in closed form: the alpha-beta-gamma model over a topology.

Is: an estimate, made to rank algorithms and to pick pipeline depths. Is not: the simulator, which times every op on every
link. Invariants: `alpha` latency of a hop, `beta` seconds per byte, `gamma` seconds per byte of a reduction; the slowest
NIC, fabric port and memory engine stand for all; times in seconds, sizes in bytes.

A *hop* is one step in which the busiest rank sends S bytes:
    inside a node      o + alpha_fabric + S / fabric
    between nodes      o + alpha_nic + max(S / (NICs of a rank), s S / (NICs of a node))     s ranks of a node sending at once
Source: Hockney's model as in Thakur, Rabenseifner and Gropp, IJHPCA 2005; section 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..topo import Topology
from .problem import Problem

# What a rank needs to start one op, the o of LogP: an assumption, as no link has it.
OP_SECONDS = 1e-6
# What one more chunk must save to be worth its ops: an assumption for ranks that share cores, to keep pipelines from becoming too fine.
CHUNK_SECONDS = 10e-6
# What a rank works on at a time where it reads peers' memory: with its sources it fits a second-level cache of 1 MiB up to 3 sources.
SLICE_BYTES = 256 * 1024
# What a core fetches or hands over at least, and how long it takes: an assumption, between 25 and 280 ns by where the two cores sit.
LINE_BYTES = 64
LINE_SECONDS = 100e-9


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
        return OP_SECONDS + self.alpha_fabric + nbytes / self.fabric

    def far(self, nbytes: float, senders: int | None = None) -> float:
        """A hop between nodes; `senders` ranks of each node at once (default: all)."""
        if self.nodes == 1:
            return self.near(nbytes)
        senders = self.group if senders is None else senders
        return OP_SECONDS + self.alpha_nic + max(nbytes / self.rank_nic, senders * nbytes / self.node_nic)

    def hop(self, nbytes: float, distance: int, senders: int | None = None) -> float:
        """A hop to the rank `distance` further on: between nodes where that is a node's size or more."""
        return self.far(nbytes, senders) if distance >= self.group and self.nodes > 1 else self.near(nbytes)

    @property
    def alpha(self) -> float:
        """Latency of the longest hop."""
        return self.alpha_nic if self.nodes > 1 else self.alpha_fabric

    @property
    def crowding(self) -> float:
        """Bytes over the busiest NIC per byte that each rank of a node sends away."""
        return max(self.one_nic / self.rank_nic, self.group * self.one_nic / self.node_nic) if self.nodes > 1 else 0.0

    def add(self, nbytes: float, sources: int = 2) -> float:
        """One reduction of `sources` arrays of `nbytes`."""
        return sources * nbytes / self.local


class Cost(NamedTuple):
    """An estimate: seconds; steps; bytes that the busiest rank sends, or reads from peers; bytes over the busiest NIC (0 on one node).

    `memory_bytes`, of algorithms that read peers' memory in place: what the busiest rank reads from and writes to memory.
    """

    seconds: float
    steps: int
    rank_bytes: float
    nic_bytes: float = 0.0
    memory_bytes: float = 0.0


def machine(topology: Topology) -> Machine:
    """The numbers of a topology; NICs that are down do not count."""
    # Kept with the topology: to find it in a cache by its value would cost more than the numbers, where there are many nodes.
    kept: dict[str, Machine] = topology.__dict__
    if "_machine" not in kept:
        kept["_machine"] = _machine(topology)
    return kept["_machine"]


def _machine(topology: Topology) -> Machine:
    up = topology.nic_bytes_per_s[topology.nic_bytes_per_s > 0]
    one = float(up.min()) if len(up) else math.inf
    whole = topology.nic_bytes_per_s.reshape(topology.n_nodes, -1).sum(axis=1)
    node = float(whole.min()) if topology.n_nodes > 1 else math.inf
    if topology.n_nodes > 1 and (topology.nic_bytes_per_s == 0).any():
        node = min(node, _failed_over(topology))
    group = int(topology.ranks_per_node.max())
    return Machine(
        n=topology.n_ranks, nodes=topology.n_nodes, group=group, alpha_fabric=float(topology.fabric_latency_ps.max()) * 1e-12,
        alpha_nic=float(topology.nic_latency_ps.max()) * 1e-12 if len(topology.nic_latency_ps) else 0.0,
        fabric=float(topology.fabric_bytes_per_s.min()), one_nic=one, rank_nic=one * max(1, topology.nics_per_node // group),
        node_nic=max(node, 1.0), local=float(topology.local_bytes_per_s.min()),
    )  # fmt: skip


def _failed_over(topology: Topology) -> float:
    """What the NICs of the worst node carry together where channels of lost NICs go to others and no more is done about it."""
    group, m = topology.gpus_per_node, topology.nics_per_node
    number, rates = max(1, m // group), topology.nic_bytes_per_s.reshape(topology.n_nodes, m).astype(float)
    least = math.inf
    for node in np.flatnonzero((rates == 0).any(axis=1) & (rates > 0).any(axis=1)):
        ranks = topology.ranks_of(int(node))
        load = np.bincount(topology.nic_of(ranks[:, None], np.arange(number)[None, :]).ravel(), minlength=m)
        least = min(least, len(ranks) * number / float((load / np.maximum(rates[node], 1e-9)).max()))
    return least


def of(problem: Problem) -> Machine:
    """The machine of a problem."""
    return machine(problem.topology)


def log2_floor(n: int) -> int:
    """floor(log2 n)."""
    return int(n).bit_length() - 1


def log2_ceil(n: int) -> int:
    """ceil(log2 n)."""
    return int(n - 1).bit_length()


# -- pipeline depths


def _power_of_two(value: float, most: int) -> int:
    return 2 ** min(max(round(math.log2(value)) if value > 0 else 0, 0), int(math.log2(most)))


def ring_channels(problem: Problem, both_ways: bool = False) -> int:
    """Rings that `orders.rings` makes."""
    wanted = max(1, problem.topology.nics_per_node) if problem.topology.n_nodes > 1 else 1
    return problem.slices(wanted, problem.nbytes / problem.n) * (2 if both_ways and problem.channels is None else 1)


def ring_depth(problem: Problem, channels: int) -> int:
    """Sub-chunks k of a reducing ring: the reduction of one overlaps the transfer of the next.

    A step costs t_send + t_add / k + k o; least at k = sqrt(t_add / o). At most 4; 1 where neither can go on during the other.
    """
    if not problem.overlaps:
        return 1
    chunk = problem.nbytes / problem.n / channels
    return _power_of_two(math.sqrt(of(problem).add(chunk) / CHUNK_SECONDS), 4)


class Cut(NamedTuple):
    """How the hierarchical all_reduce cuts what a rank sends between nodes: into `slices`, which `lanes` take in turn."""

    slices: int
    lanes: int

    def lane(self, i: int) -> int:
        """The channel of slice i."""
        return 1 + i % self.lanes

    def begin(self, local: Any, i: Any, nodes: int) -> Any:
        """The first chunk of slice i of a local index, of `chunks` in all."""
        return (local * self.slices + i) * nodes

    def chunks(self, nodes: int, group: int) -> int:
        """Chunks of the message."""
        return group * self.slices * nodes


def hierarchical_cut(problem: Problem) -> Cut:
    """The cut that takes least: two lanes for each NIC of a rank, or one."""
    rounds, nics = _hierarchical(problem)
    lanes = nics * rounds.abreast
    return Cut(rounds.number * lanes, lanes)


def hierarchical_seconds(problem: Problem) -> float:
    """What it takes with that cut."""
    return _hierarchical(problem)[0].seconds


def _hierarchical(problem: Problem) -> tuple[Rounds, int]:
    """And the NICs that a rank uses."""
    at, lanes = of(problem), max(1, problem.channels - 1) if problem.channels else 0
    nics = min(problem.nics_per_rank, lanes) if lanes else problem.nics_per_rank
    piece = problem.nbytes / at.group / at.nodes / nics
    wire = max(piece / at.one_nic, nics * piece / at.rank_nic, at.group * nics * piece / at.node_nic)
    return best_rounds(at, problem.nbytes, piece, wire, lanes // nics, as_slices=True), nics


class Rounds(NamedTuple):
    """Slices of the message, a `number` of rounds one after the other, of so many messages `abreast` on each NIC; and seconds of it all."""

    number: int
    abreast: int
    seconds: float


def best_rounds(at: Machine, nbytes: float, piece: float, wire: float, abreast: int = 0, *, as_slices: bool) -> Rounds:
    """The rounds, of 1 to 16, that take least by `rings_seconds`, and g `CHUNK_SECONDS` for what is put to owners at once.

    piece, wire: bytes of the message that a NIC carries in a step if all goes at once, and the seconds that it takes. abreast: 0 for what
    suits; as_slices: each is put to its owners by itself. One message at a time leaves the NIC idle while it is under way and is added; two
    fill each other's gaps, where that saves more than the ops of the other one.
    """
    found = []
    for number in (1, 2, 4, 8, 16):
        half = piece / number / 2, wire / number / 2
        is_worth_it = min(half[1], OP_SECONDS + at.alpha_nic + at.add(half[0], 1 + at.group)) > OP_SECONDS
        width = abreast or 1 + is_worth_it
        found.append(Rounds(number, width, rings_seconds(at, nbytes, number, width, piece / number / width, wire / number / width)))

    def key(rounds: Rounds) -> float:
        return rounds.seconds + rounds.number * (rounds.abreast if as_slices else 1) * at.group * CHUNK_SECONDS

    return min(found, key=key)


def rings_seconds(at: Machine, nbytes: float, rounds: int, abreast: int, piece: float, wire: float) -> float:
    """T = max(k steps, fabric, adds, posts) + (fabric + adds)/k for k rounds: only the first scatter and the last gather are not hidden.

    A step takes what its messages take on the NIC, or one of them on its way, with its sum in the first half. piece, wire: of a message.
    """
    between, share = 0.0, nbytes / at.group
    fabric, adds = 2 * (at.group - 1) * share / at.fabric, at.add(share, at.group + (at.nodes > 1))
    if at.nodes > 1:
        way = OP_SECONDS + at.alpha_nic + wire
        between = rounds * (at.nodes - 1) * (max(abreast * wire, way + at.add(piece, 1 + at.group)) + max(abreast * wire, way))
    posts = rounds * abreast * 2 * (at.nodes + at.group - 2) * OP_SECONDS
    hidden = max(between, fabric, adds, posts)
    return 2 * at.alpha_fabric + hidden + (fabric + adds - (0 if between else max(fabric, adds))) / rounds


def pipeline_depth(problem: Problem, hops: int, nbytes: float) -> int:
    """Chunks k of a pipeline over `hops` hops: (hops + k - 1)(alpha + S/(k B)), least at k = sqrt((hops-1) S/(B alpha)). At most 64."""
    at = of(problem)
    seconds = at.far(nbytes, 1) - at.far(0, 1) + at.add(nbytes)
    return _power_of_two(math.sqrt(max(hops - 1, 0) * seconds / (at.far(0) + CHUNK_SECONDS)), 64)


def broadcast_depth(problem: Problem, channels: int) -> int:
    """Chunks per channel of a chain over all ranks."""
    return pipeline_depth(problem, problem.n - 1, problem.nbytes / channels)


def tree_slices(problem: Problem) -> int:
    """Slices of the double binary tree over several nodes: one per NIC of a node; each takes four channels."""
    if problem.topology.n_nodes == 1 or problem.channels is not None:
        return max(1, (problem.channels or 1) // 4)
    return problem.slices(max(1, problem.topology.nics_per_node), problem.nbytes / 2)


def tree_height(problem: Problem) -> int:
    """Hops from the deepest leaf to the root: ceil(log2 n) on one node, ceil(log2 K) + g - 1 over K nodes of g."""
    at = of(problem)
    return log2_ceil(at.n) if at.nodes == 1 else log2_ceil(at.nodes) + at.group - 1


def tree_depth(problem: Problem) -> int:
    """Chunks per tree and slice of the double binary tree."""
    return pipeline_depth(problem, 2 * tree_height(problem), problem.nbytes / 2 / tree_slices(problem))


# -- memory that all ranks of a node share


def slice_depth(problem: Problem, share: float) -> int:
    """Slices k of a rank's share: each is still in the caches when it is written to the peers. At most 64, and 65,536 ops in all."""
    most = max(1, min(64, 65_536 // problem.n**2))
    return _power_of_two(share / SLICE_BYTES, 1 << log2_floor(most))


def groups(n: int) -> tuple[int, int]:
    """(ranks of a group g, groups k) of two levels: g = floor(sqrt(n)), k = floor(n/g); n - gk < g ranks are in no group."""
    size = math.isqrt(n)
    return size, n // size
