"""The network between nodes as tiers of switches: who meets where, over which links, and how far that is.

    NIC (node, i) ──► switch of tier 0 ──uplink──► switch of tier 1 ──uplink──► … ──► the tier where the two NICs meet, and down

At tier k every node is in one group, and groups of tier k lie whole in groups of tier k + 1. A group is one switch, or one per NIC
index where the tier is `per_rail` (rails, planes of a NIC's ports). A switch reaches the tier above over `uplinks` equal links; a
connection takes one of them, and comes down over the link of the same number: equal numbers lead to the same switch above, as in
a Clos. Where a tier has a multiple of the uplinks of the tier below, each uplink below leads to its own share of them, so that a
choice made at the bottom holds to the top: planes.

Is: a frozen value that a Topology may carry, and its arithmetic. Is not: queues, or time (simulator); without it a topology's network
is non-blocking. Invariants: rates are whole bytes/s, latencies whole ps; which uplink a connection takes depends on `seed`, the two
ranks, the channel and the tier, and on nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..arguments import listed, named, whole
from ..errors import UsageError
from ..units import Duration
from .rates import INSTANT, parse_latency

if TYPE_CHECKING:
    from .model import Topology

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
ROUTINGS = ("ecmp", "spray")
MAX_TIERS = 8
MAX_LINKS = 1 << 26


@dataclasses.dataclass(frozen=True)
class Level:
    """A tier as people describe it: `Topology.with_network` makes a Tier of it, from the rates of the NICs below.

    nodes: nodes in a group (None: all). oversubscription: what comes up to a switch of this tier over what its uplinks carry.
    uplinks: how many they are; the top has none. latency: one way, added for two NICs that meet at this tier. per_rail: one switch per
    NIC index instead of one for all NICs of the group.
    """

    name: str
    nodes: int | None = None
    oversubscription: float = 1.0
    uplinks: int = 1
    latency: Duration = 0
    per_rail: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Tier:
    """One tier: group_of i32[n_nodes]; latency_ps one way, added where two NICs meet here; uplinks of a switch and the rate of each.

    The top tier has no uplinks (0, and its rate does not count).
    """

    name: str
    group_of: I32
    latency_ps: int = 0
    uplinks: int = 0
    uplink_bytes_per_s: int = 0
    per_rail: bool = False

    @property
    def groups(self) -> int:
        return int(self.group_of.max()) + 1


@dataclasses.dataclass(frozen=True, eq=False)
class Network:
    """Tiers from the NICs up. routing "ecmp": a connection takes one uplink at each tier, by a hash of (seed, source, destination,
    channel, tier), so two may take the same one; "spray": its packets go evenly over all, which then are as one link of their sum.

    Raises UsageError naming the tier that does not fit.
    """

    tiers: tuple[Tier, ...]
    routing: str = "ecmp"
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= len(self.tiers) <= MAX_TIERS:
            raise UsageError(f"network of {len(self.tiers)} tiers: expected 1 to {MAX_TIERS}.")
        named(self.routing, "routing", ROUTINGS)
        whole(self.seed, "seed", 0)
        object.__setattr__(self, "tiers", tuple(_checked(tier) for tier in self.tiers))
        if len({len(tier.group_of) for tier in self.tiers}) != 1:
            raise UsageError(f"tiers of {[len(tier.group_of) for tier in self.tiers]} nodes: expected the same nodes at every tier.")
        for below, tier in zip(self.tiers, self.tiers[1:], strict=False):
            _check_nested(below, tier)

    @property
    def n_nodes(self) -> int:
        return len(self.tiers[0].group_of)

    def paths(self, tier: int) -> int:
        """Links that a switch of a tier has upwards, as far as sharing goes: all its uplinks, or one of their sum."""
        return min(self.tiers[tier].uplinks, 1) if self.routing == "spray" else self.tiers[tier].uplinks

    def switches(self, tier: int, nics_per_node: int) -> int:
        """Switches of a tier."""
        return self.tiers[tier].groups * (nics_per_node if self.tiers[tier].per_rail else 1)

    def switch_of(self, tier: int, node: npt.ArrayLike, nic: npt.ArrayLike, nics_per_node: int) -> I64:
        """Number of the switch of a tier above each NIC (node, nic)."""
        group = self.tiers[tier].group_of[node].astype(np.int64)
        return group * nics_per_node + nic if self.tiers[tier].per_rail else group

    def meeting_tier(self, nodes: npt.NDArray[Any], nics: npt.NDArray[Any], nics_per_node: int) -> I32:
        """Tier at which two NICs meet; `nodes`, `nics` int[..., 2], result i32[...]; the number of tiers where they never do."""
        met = np.full(nodes.shape[:-1], len(self.tiers), np.int32)
        for tier in reversed(range(len(self.tiers))):
            switch = self.switch_of(tier, nodes, nics, nics_per_node)
            met[switch[..., 0] == switch[..., 1]] = tier
        return met

    def latency_ps(self, met: npt.NDArray[Any]) -> I64:
        """What the tier adds to the latencies of the NICs, i64 of the same shape."""
        return np.array([tier.latency_ps for tier in self.tiers] + [0], np.int64)[met]

    def uplink_of(self, src: npt.ArrayLike, dst: npt.ArrayLike, channel: npt.ArrayLike) -> I64:
        """Number of the uplink at each tier that a connection between two ranks takes, i64[..., tiers]; -1 at the top."""
        src, dst, channel = np.broadcast_arrays(*(np.asarray(x).astype(np.uint64) for x in (src, dst, channel)))
        out = np.full((*src.shape, len(self.tiers)), -1, np.int64)
        below = 1
        for tier in range(len(self.tiers)):
            ways = self.paths(tier)
            if not ways:
                continue
            drawn = _hash(self.seed, src, dst, channel, tier)
            if tier and ways % below == 0:
                share = ways // below
                out[..., tier] = out[..., tier - 1] * share + (drawn % np.uint64(share)).astype(np.int64)
            else:
                out[..., tier] = (drawn % np.uint64(ways)).astype(np.int64)
            below = ways
        return out

    def subset(self, nodes: npt.NDArray[Any]) -> Network:
        """The network of some nodes, in that order; switches keep their uplinks."""
        tiers = [dataclasses.replace(tier, group_of=np.unique(tier.group_of[nodes], return_inverse=True)[1].astype(np.int32))
                 for tier in self.tiers]  # fmt: skip
        return dataclasses.replace(self, tiers=tuple(tiers))

    # -- links, numbered after those of the NICs: for each tier but the top its uplinks, then its downlinks

    def first_link(self, tier: int, nics_per_node: int) -> int:
        """Of the links of the network, the first of a tier."""
        return sum(2 * self.switches(k, nics_per_node) * self.paths(k) for k in range(tier))

    def link_columns(self, nics_per_node: int) -> dict[str, npt.NDArray[Any]]:
        """Columns as of topo.Links: up bool instead of kind, node i32, owner i32, bytes_per_s i64, latency_ps i64."""
        parts: dict[str, list[npt.NDArray[Any]]] = {"up": [], "node": [], "owner": [], "bytes_per_s": [], "latency_ps": []}
        for k, tier in enumerate(self.tiers):
            ways, switches = self.paths(k), self.switches(k, nics_per_node)
            rate = tier.uplink_bytes_per_s * (tier.uplinks if self.routing == "spray" else 1)
            parts["up"].append(np.repeat([True, False], switches * ways))
            parts["node"].append(np.tile(np.repeat(np.arange(switches, dtype=np.int32), ways), 2))
            parts["owner"].append(np.tile(np.arange(ways, dtype=np.int32), 2 * switches))
            parts["bytes_per_s"].append(np.full(2 * switches * ways, min(rate, INSTANT), np.int64))
            parts["latency_ps"].append(np.zeros(2 * switches * ways, np.int64))
        return {name: np.concatenate(columns) for name, columns in parts.items()}

    def route(self, met: I32, switches: npt.NDArray[Any], uplink: I64, nics_per_node: int) -> I32:
        """Links between two NICs, i32[..., 2 * (tiers - 1)]: up from tier 0, then down to it; -1 where a tier is not passed.

        met: where they meet; switches: i64[tiers, ..., 2], those above both; uplink: as `uplink_of`.
        """
        crossed = len(self.tiers) - 1
        out = np.full((*met.shape, 2 * crossed), -1, np.int32)
        for tier in range(crossed):
            ways, first = self.paths(tier), self.first_link(tier, nics_per_node)
            down = first + self.switches(tier, nics_per_node) * ways
            passed = met > tier
            out[..., tier] = np.where(passed, first + switches[tier][..., 0] * ways + uplink[..., tier], -1)
            out[..., 2 * crossed - 1 - tier] = np.where(passed, down + switches[tier][..., 1] * ways + uplink[..., tier], -1)
        return out


def _checked(tier: Tier) -> Tier:
    """The tier with a read-only column and whole numbers."""
    where = f"tier {tier.name!r}"
    groups = np.asarray(tier.group_of)
    if groups.ndim != 1 or not len(groups) or groups.dtype.kind not in "iu" or groups.min() < 0 or groups.max() >= len(groups):
        raise UsageError(f"{where}: group_of: expected the group of each node, numbered from 0, found {tier.group_of!r}.")
    if not np.bincount(groups).all():
        raise UsageError(f"{where}: groups 0 to {groups.max()} expected to have at least 1 node each; number groups without gaps.")
    for field in ("latency_ps", "uplinks", "uplink_bytes_per_s"):
        whole(getattr(tier, field), f"{where}: {field}", 0, 2**52)
    groups = np.array(groups, np.int32)
    groups.setflags(write=False)
    return dataclasses.replace(tier, group_of=groups, per_rail=bool(tier.per_rail))


def _check_nested(below: Tier, tier: Tier) -> None:
    first = np.unique(below.group_of, return_index=True)[1]
    torn = np.flatnonzero(tier.group_of != tier.group_of[first][below.group_of])
    if len(torn):
        raise UsageError(f"tier {tier.name!r}: node {torn[0]} is in group {tier.group_of[torn[0]]}, others of its {below.name!r} in "
                         f"{tier.group_of[first][below.group_of[torn[0]]]}; expected groups to lie whole in those above.")  # fmt: skip
    if tier.per_rail and not below.per_rail:
        raise UsageError(f"tier {tier.name!r} is per rail, {below.name!r} below it is not: expected rails to begin at the bottom.")
    if not below.uplinks or not below.uplink_bytes_per_s:
        raise UsageError(f"tier {below.name!r} has {below.uplinks} uplinks of {below.uplink_bytes_per_s} bytes/s: expected at least 1 "
                         f"with a rate, to reach {tier.name!r}.")


def _hash(seed: int, src: npt.NDArray[Any], dst: npt.NDArray[Any], channel: npt.NDArray[Any], tier: int) -> npt.NDArray[np.uint64]:
    """64 bits of each connection at a tier (the finisher of splitmix64 after every word)."""
    mixed = np.full(src.shape, seed, np.uint64)
    with np.errstate(over="ignore"):
        for word in (src, dst, channel, np.uint64(tier)):
            mixed = (mixed ^ word) + np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ mixed >> np.uint64(31)
    return mixed


def check(network: Network, n_nodes: int, nics_per_node: int) -> None:
    """Raises UsageError where a network does not fit nodes, or has more links than anybody's memory."""
    if network.n_nodes != n_nodes or not nics_per_node:
        raise UsageError(f"network of {network.n_nodes} nodes: expected {n_nodes} nodes, with NICs.")
    links = network.first_link(len(network.tiers), nics_per_node)
    if links > MAX_LINKS:
        raise UsageError(f"network of {links} links between switches: expected at most {MAX_LINKS}; fewer uplinks, or routing 'spray'.")


def meeting(topology: Topology, src: npt.ArrayLike, dst: npt.ArrayLike, channel: npt.ArrayLike) -> tuple[I32, Any, Any]:
    """(tier, nodes, nics): where the NICs between two ranks meet, i32[...], -1 in one node; nodes and NICs at both ends, int[..., 2].

    Raises UsageError naming two ranks that no switch joins.
    """
    network = topology.network
    assert network is not None
    src, dst, channel = np.broadcast_arrays(*(np.asarray(x, dtype=np.int64) for x in (src, dst, channel)))
    ends = np.stack([src, dst], axis=-1)
    nodes, nics = topology.node_of[ends].astype(np.int64), np.zeros(ends.shape, np.int64)
    far = nodes[..., 0] != nodes[..., 1]
    nics[far] = topology.nic_of(ends[far], channel[far][:, None])
    met = np.where(far, network.meeting_tier(nodes, nics, topology.nics_per_node), -1).astype(np.int32)
    lost = np.argwhere(met == len(network.tiers))
    if len(lost):
        a, b = ends[tuple(lost[0])]
        raise UsageError(f"no switch of topology {topology.name!r} joins ranks {a} and {b} (NICs {nics[tuple(lost[0])].tolist()} of nodes "
                         f"{nodes[tuple(lost[0])].tolist()}): expected a tier above both; add one, or keep traffic on its rail.")
    return met, nodes, nics


def tier_latency_ps(topology: Topology, src: npt.ArrayLike, dst: npt.ArrayLike, channel: npt.ArrayLike) -> I64:
    """See Topology.tier_latency_ps."""
    if topology.network is None:
        return np.zeros(np.broadcast_shapes(*(np.shape(x) for x in (src, dst, channel))), np.int64)
    met = meeting(topology, src, dst, channel)[0]
    return np.where(met < 0, 0, topology.network.latency_ps(met))


def route(topology: Topology, src: npt.ArrayLike, dst: npt.ArrayLike, channel: npt.ArrayLike) -> I32:
    """See Topology.route."""
    ends = topology.path(src, dst, channel)
    network, m = topology.network, topology.nics_per_node
    if network is None or len(network.tiers) == 1:
        return ends
    met, nodes, nics = meeting(topology, src, dst, channel)
    switches = np.stack([network.switch_of(k, nodes, nics, m) for k in range(len(network.tiers))])
    between = network.route(met, switches, network.uplink_of(src, dst, channel), m)
    first = 3 * topology.n_ranks + 2 * topology.n_nodes * m
    return np.concatenate([ends[..., :1], np.where(between >= 0, between + first, -1), ends[..., 1:]], axis=-1).astype(np.int32)


def build(levels: Sequence[Level], n_nodes: int, node_bytes_per_s: int, nics_per_node: int, routing: str, seed: int) -> Network:
    """The network of `levels` over nodes numbered from 0, whose NICs together carry `node_bytes_per_s`."""
    tiers: list[Tier] = []
    arriving = node_bytes_per_s  # bytes/s that come up to a group, if all below it sends
    per_group = 1                # nodes in a group of the tier below
    for i, level in enumerate(listed(levels, "levels", Level, "a Level for each layer of switches")):
        nodes = -(-n_nodes // per_group) * per_group if level.nodes is None else level.nodes
        _check_level(level, nodes, per_group)
        arriving, per_group = arriving * (nodes // per_group if tiers else nodes), nodes
        switches = nics_per_node if level.per_rail else 1
        top = i == len(levels) - 1
        if not top:
            arriving = round(arriving / level.oversubscription)
        rate = 0 if top else round(arriving / (switches * level.uplinks))
        latency_ps = parse_latency(level.latency, f"{level.name}.latency")
        tiers.append(Tier(level.name, np.arange(n_nodes) // nodes, latency_ps, 0 if top else level.uplinks, rate, level.per_rail))
    return Network(tuple(tiers), routing, seed)


def _check_level(level: Level, nodes: Any, per_group: int) -> None:
    where = f"level {level.name!r}"
    for what, value in (("nodes", nodes), ("uplinks", level.uplinks)):
        whole(value, f"{where}: {what}", 1)
    if nodes % per_group:
        raise UsageError(f"{where}: {nodes} nodes: expected a multiple of the {per_group} nodes of the level below.")
    if not isinstance(level.oversubscription, (int, float)) or not 0 < level.oversubscription < 1e6:
        raise UsageError(f"{where}: oversubscription {level.oversubscription!r}: expected a number above 0, 1 for full rate.")
