"""What the processes of a launcher's job tell each other of their hosts, and the topology that follows.

Is: which ranks share a host, and the NICs of each. Is not: a connection. Invariant: the same cards give the same topology on
every rank.
"""

from __future__ import annotations

import hashlib
import json
import socket
from pathlib import Path
from typing import Any

import numpy as np

from .. import config
from ..errors import ConnectError, UsageError
from ..topo import Topology, discover
from .reach import network_of, places_of

Nics = list[tuple[str, float, str]]  # name, Gb/s, address


def card() -> tuple[dict[str, Any], Nics]:
    """(what the others must know of this host, its NICs)."""
    machine = discover()
    nics = _nics_with_addresses(machine)
    rates = [(name, rate) for name, rate, _ in nics]
    return {"host": host_id(), "name": machine.host, "nics": rates, "place": config.get("place")}, nics


def topology_of(cards: list[dict[str, Any]], nics: Nics) -> tuple[Topology, list[str]]:
    """The topology of the ranks that gave `cards`, and the addresses to use of this host's `nics`; ConnectError if a host
    has no NIC and there are others, ConfigError where hosts say places that do not go together."""
    hosts = list(dict.fromkeys(card["host"] for card in cards))
    node_of = np.array([hosts.index(card["host"]) for card in cards], np.int32)
    per_node = [next(card for card in cards if card["host"] == host)["nics"] for host in hosts]
    n_nics = min(len(nics_) for nics_ in per_node)
    if len(hosts) == 1:  # rails inside one host are only for transport="tcp", over loopback
        nics, per_node, n_nics = [("lo", 40.0, "127.0.0.1")], [[("lo", 40.0)]], 1
    if n_nics == 0:
        raise ConnectError(
            "a host of this job has no NIC with an address that is up; see ccl-lab doctor, or set CCL_LAB_NICS."
        )
    first = [next(card for card in cards if card["host"] == host) for host in hosts]
    places = places_of([card["name"] for card in first], [card.get("place", "") for card in first])
    rates = [round(rate * 1.25e8) for nics_ in per_node for _, rate in nics_[:n_nics]]
    network = network_of(places, max(sum(rates[at : at + n_nics]) for at in range(0, len(rates), n_nics)))
    said = {"network": "CCL_LAB_PLACE of each host; that every tier carries all below it is an assumption"} if network else {}
    topology = Topology(
        name="job",
        node_of=node_of,
        nics_per_node=n_nics,
        nic_bytes_per_s=rates,
        nic_latency_ps=50_000_000,  # type: ignore[arg-type]
        fabric_bytes_per_s=8_000_000_000,
        fabric_latency_ps=2_000_000,
        local_bytes_per_s=8_000_000_000,  # type: ignore[arg-type]
        emulated=False,
        nic_names=tuple(name for nics_ in per_node for name, _ in nics_[:n_nics]),
        sources={"nic_gbits_per_s": "speed in /sys/class/net", **said, "others": "assumption"},
        network=network,
    )
    return topology, [address for _, _, address in nics[:n_nics]]


def digest(topology: Topology) -> str:
    """Equal for equal topologies."""
    return hashlib.sha256(json.dumps(topology.to_dict(), sort_keys=True).encode()).hexdigest()


def played(cards: list[dict[str, Any]], topology: Topology | None, rank: int) -> tuple[Topology, list[str]]:
    """The emulated topology that all ranks of one host gave, and the addresses that stand for the NICs of this rank's node."""
    for other, card in enumerate(cards):
        if topology is None or card["plays"] != cards[rank]["plays"] or card["host"] != cards[rank]["host"]:
            raise UsageError(
                f"topology of init: rank {other} and rank {rank} differ in it, or in their host; give the same one to every rank, "
                "all on one host. Jobs of several hosts have the topology of those.",
                rank=other,
            )
    assert topology is not None
    if topology.n_ranks != len(cards) or not topology.emulated:
        raise UsageError(
            f"topology of init: expected an emulated one of {len(cards)} ranks, found {topology.n_ranks} ranks"
            f"{'' if topology.emulated else ' of a real machine'}; make it with Topology.cluster(...)."
        )
    return topology, nic_addresses(topology, int(topology.node_of[rank]))


def nic_addresses(topology: Topology, node: int) -> list[str]:
    """Loopback addresses that stand for the NICs of an emulated node: 127.<64 + node>.<nic>.1 and on."""
    if node >= 128 * 190 or topology.nics_per_node > 250:
        raise UsageError(
            f"emulated node {node} with {topology.nics_per_node} NICs: at most 24,320 nodes of 250 NICs."
        )
    return [f"127.{64 + node // 190}.{1 + node % 190}.{1 + nic}" for nic in range(topology.nics_per_node)]


def host_id() -> str:
    """Equal for processes that can share memory: same boot of the same kernel, same host name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"


def _nics_with_addresses(machine: Any) -> list[tuple[str, float, str]]:
    """(name, Gb/s, address) of the NICs to use: those of CCL_LAB_NICS, else those with RDMA, else those that are up."""
    wanted = [word.strip() for word in config.get("nics").split(",") if word.strip()]
    rdma = {device.netdev for device in machine.rdma if device.netdev and device.state == "active"}
    up = [nic for nic in machine.nics if nic.state == "up" and nic.name != "lo"]
    candidates = up if wanted else [nic for nic in up if nic.name in rdma] or machine.usable_nics()
    found = []
    for nic in candidates:
        address = _ipv4_of(nic.name)
        if address and (not wanted or nic.name in wanted or address in wanted):
            found.append((nic.name, nic.gbits_per_s or 1.0, address))
    return found


def _ipv4_of(name: str) -> str:
    """The IPv4 address of an interface; "" if it has none."""
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(
                sock.fileno(), 0x8915, struct.pack("256s", name.encode()[:15])
            )  # SIOCGIFADDR
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])
