"""What lies between two nodes of a job, as far as the spreading of puts over queue pairs goes.

    CCL_LAB_PLACE of each host, "building/zone/rack" ──► tiers of the topology's network ──► where two nodes meet ──► class

Is: the places that hosts say and the tiers that follow; the class of each pair of nodes, and the words for it. Is not: the
numbers of a class (verbs, and native transport/verbs/spread.hpp) and not a measurement. Invariant: the class of (a, b) is that of
(b, a), so both ends of a path choose the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError
from ..topo import Topology
from ..topo.network import Network, Tier

CLASSES = ("same_rack", "same_zone", "cross_zone", "cross_building")
# Tiers from the NICs up, and the class of two nodes that meet there.
PLACES = {"rack": "same_rack", "zone": "same_zone", "building": "cross_zone", "region": "cross_building"}
FULL_RATE = 1.01  # what comes up to a switch over what goes on, up to which it counts as all of it


class Reach(NamedTuple):
    """The class of two nodes, and why."""

    name: str
    why: str


def places_of(hosts: Sequence[str], places: Sequence[str]) -> list[tuple[str, ...]]:
    """The words of each place, outermost first; [] where no host says one. ConfigError names the host that does not fit the others."""
    if not any(places):
        return []
    said = [tuple(word.strip() for word in place.split("/")) for place in places]
    for host, words, place in zip(hosts, said, places, strict=True):
        if not 1 <= len(words) <= 3 or not all(words):
            raise ConfigError(
                f"CCL_LAB_PLACE of host {host} is {place!r}, others say {next(filter(None, places))!r}: expected a rack, a zone/rack or a "
                "building/zone/rack on every host of the job."
            )
        if len(words) != len(said[0]):
            raise ConfigError(
                f"CCL_LAB_PLACE of host {host} is {place!r}, that of host {hosts[0]} is {places[0]!r}: expected equally many words."
            )
    return said


def network_of(places: list[tuple[str, ...]], node_bytes_per_s: int) -> Network | None:
    """Tiers of nodes at these places, each wide enough for all below; None without places, or for one node."""
    if len(places) < 2:
        return None
    depth, names = len(places[0]), tuple(PLACES)
    tiers = []
    for k in range(depth + 1):
        prefixes = [place[: depth - k] for place in places]
        groups = list(dict.fromkeys(prefixes))
        top = k == depth
        group_of = np.array([groups.index(prefix) for prefix in prefixes], np.int32)
        rate = 0 if top else int(np.bincount(group_of).max()) * max(node_bytes_per_s, 1)
        tiers.append(Tier(names[k], group_of, uplinks=0 if top else 1, uplink_bytes_per_s=rate))
    return Network(tuple(tiers), "spray")


def reaches_of(topology: Topology, rank: int) -> list[Reach]:
    """By rank: what lies between its node and that of `rank`; its own node's entry does not count. Cost: a few passes over the nodes."""
    network, own = topology.network, int(topology.node_of[rank])
    if network is None:
        return [Reach("same_zone", "no tiers of switches are known; CCL_LAB_PLACE says them")] * topology.n_ranks
    ends = np.stack(np.broadcast_arrays(own, np.arange(topology.n_nodes)), axis=-1)
    met = np.minimum(network.meeting_tier(ends, np.zeros_like(ends), topology.nics_per_node), len(network.tiers) - 1)
    by_tier = [_class_of(topology, network, tier) for tier in range(len(network.tiers))]
    by_node = [by_tier[tier] for tier in met]
    return [by_node[node] for node in topology.node_of]


def _class_of(topology: Topology, network: Network, tier: int) -> Reach:
    """Of nodes that meet at a tier: by its name, else by whether the tiers below carry all that their NICs send."""
    name = network.tiers[tier].name
    if name in PLACES:
        return Reach(PLACES[name], f"they meet at their {name}")
    if tier == 0:
        return Reach("same_rack", f"they meet at the first tier, {name!r}")
    worst = max(_oversubscription(topology, network, k) for k in range(tier))
    if worst <= FULL_RATE:
        return Reach("same_zone", f"they meet at tier {name!r}, at full rate")
    return Reach("cross_zone", f"they meet at tier {name!r}, {worst:.3g} to 1 oversubscribed")


def _oversubscription(topology: Topology, network: Network, k: int) -> float:
    tier = network.tiers[k]
    sent: npt.NDArray[np.int64] = topology.nic_bytes_per_s.reshape(topology.n_nodes, -1).sum(axis=1)
    carried = tier.uplinks * tier.uplink_bytes_per_s * (topology.nics_per_node if tier.per_rail else 1)
    return float(np.bincount(tier.group_of, weights=sent).max() / max(carried, 1))
