"""Known machines, each number with where it comes from.

Is: a table. Is not: calibrated to a benchmark; fabric rates are what a ring gets of the link (headers and flow control
take the rest), NIC rates are line rates (a NIC reaches 92 to 97 % of them). What nobody published says "assumption".
Machines without levels have a non-blocking network; those with levels say for each where its numbers come from.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ..errors import UsageError, suggest
from .network import Level

if TYPE_CHECKING:
    from .model import Topology


@dataclasses.dataclass(frozen=True)
class Preset:
    """One machine: what `Topology.cluster` takes, plus the source of each number."""

    nodes: int
    gpus_per_node: int
    nics_per_node: int
    nic_gbits_per_s: float
    nic_latency: str
    fabric_gbytes_per_s: float
    fabric_latency: str
    local_gbytes_per_s: float
    device: str
    rails: bool
    sources: dict[str, str]
    path_gbits_per_s: dict[str, float] = dataclasses.field(default_factory=dict)
    levels: tuple[Level, ...] = ()  # from the NICs up
    routing: str = "ecmp"


_NIC_LATENCY = "assumption: 5 us one way for a put by a host thread; rack to building ratios 1:7:15:30 are in arXiv 2510.20171"
_FABRIC_LATENCY = "assumption: 1 us for a store through NVSwitch and its flag"
_NIC_400 = "8 ConnectX-7 of 400 Gb/s line rate (NVIDIA DGX/HGX datasheets); 46 to 48.5 GB/s each measured"


def _hbm(text: str) -> str:
    return f"assumption: half of the memory bandwidth ({text}), since a copy reads and writes"


# What one H100 reaches of a NIC by where it sits: its own; one far; each of two far; each of near and far together.
_H100_PATHS = {"near": 400, "far": 234, "far_each": 117, "mixed_each": 70}
_H100_PATHS_SOURCE = "measured on H100, R2CCL (arXiv 2512.25059), Balance: 400, 234, 117 and 70 Gb/s a NIC"


def _gpu(gpus: int, nic_gbits: float, fabric: float, local: float, paths: dict[str, float] | None = None, **sources: str) -> Preset:
    return Preset(2, gpus, gpus, nic_gbits, "5us", fabric, "1us", local, "cuda", True,
                  {**sources, "nic_latency": _NIC_LATENCY, "fabric_latency": _FABRIC_LATENCY}, paths or {})


PRESETS: dict[str, Preset] = {
    "lab": Preset(2, 4, 4, 1, "50us", 4, "5us", 8, "cpu", True, dict.fromkeys(
        ("nic_gbits_per_s", "nic_latency", "fabric_gbytes_per_s", "fabric_latency", "local_gbytes_per_s"),
        "assumption: chosen so that shaped NICs are legible on two cores")),
    "laptop": Preset(1, 4, 1, 1, "50us", 8, "2us", 8, "cpu", True, {
        "nic_gbits_per_s": "assumption: one gigabit Ethernet port",
        "nic_latency": "assumption: a TCP message between two hosts on one switch",
        "fabric_gbytes_per_s": "assumption: one core copying between processes",
        "fabric_latency": "assumption: a flag in shared memory seen by a waiting process",
        "local_gbytes_per_s": "assumption: one core copying memory"}),
    "dgx_a100": _gpu(
        8, 200, 240, 1000,
        nic_gbits_per_s="8 ConnectX-6 of 200 Gb/s for computation (NVIDIA DGX A100 datasheet)",
        fabric_gbytes_per_s="NVLink 300 GB/s a direction (NVIDIA DGX A100 datasheet); assumption: a ring gets 80 %",
        local_gbytes_per_s=_hbm("2.0 TB/s, A100 80 GB datasheet")),
    "hgx_h100": _gpu(
        8, 400, 367, 1675, nic_gbits_per_s=_NIC_400,
        fabric_gbytes_per_s="NVLink 450 GB/s a direction (NVIDIA HGX H100 datasheet); a ring gets about 365 to 370 measured",
        local_gbytes_per_s=_hbm("3.35 TB/s, H100 SXM datasheet"), path_limits=_H100_PATHS_SOURCE, paths=_H100_PATHS),
    "hgx_h200": _gpu(
        8, 400, 367, 2400, nic_gbits_per_s=_NIC_400,
        fabric_gbytes_per_s="NVLink 450 GB/s a direction (NVIDIA HGX H200 datasheet); a ring gets about 365 to 370 measured",
        local_gbytes_per_s=_hbm("4.8 TB/s, H200 SXM datasheet")),
    "hgx_b200": _gpu(
        8, 400, 682, 4000, nic_gbits_per_s=_NIC_400,
        fabric_gbytes_per_s="NVLink 900 GB/s a direction (NVIDIA HGX B200 datasheet); a ring gets about 682 measured",
        local_gbytes_per_s=_hbm("8 TB/s, B200 datasheet")),
    "gb200_nvl72": _gpu(
        72, 400, 682, 4000,
        nic_gbits_per_s="assumption: one ConnectX-7 of 400 Gb/s a GPU; systems with two exist",
        fabric_gbytes_per_s="NVLink 900 GB/s a direction, 72 GPUs in one domain (NVIDIA GB200 NVL72 datasheet); "
                            "assumption: a ring gets 682 as on HGX B200",
        local_gbytes_per_s=_hbm("8 TB/s, GB200 datasheet")),
}


def _cluster(nodes: int, levels: tuple[Level, ...], routing: str, gpu: str = "hgx_h100", **sources: str) -> Preset:
    """`nodes` of a machine above on the switches of `levels`."""
    machine = PRESETS[gpu]
    return dataclasses.replace(machine, nodes=nodes, levels=levels, routing=routing, sources={**machine.sources, **sources})


_SWITCH_LATENCY = "assumption: 1 us more for two more switches and their fibres"
_SIXTEEN_FLOWS = "16 flows between two GPUs are hashed over all paths; taken as even"

PRESETS |= {
    "rail_leaf_spine": _cluster(
        128, (Level("leaf", nodes=32, uplinks=32, per_rail=True), Level("spine", latency="1us")), "ecmp",
        **{"network.leaf": "32 nodes of 8 GPUs on 8 leaf switches, NIC i on leaf i, 32 ports of 400 Gb/s down and 32 up (NVIDIA DGX "
                           "SuperPOD H100 reference architecture); latency within the NIC's",
           "network.spine": f"non-blocking (same source); {_SWITCH_LATENCY}",
           "network.routing": "assumption: one path per connection, by a hash"}),
    "llama3_24k": _cluster(
        3072, (Level("rack", nodes=2, uplinks=16), Level("pod", nodes=384, oversubscription=7, uplinks=16, latency="1us"),
               Level("aggregation", latency="2us")), "spray",
        **{"network.rack": "2 servers of 8 GPUs on one rack switch, 400 Gb/s a NIC (Llama 3, arXiv 2407.21783, 3.3.1); "
                           "assumption: as many uplinks as NICs",
           "network.pod": "192 racks, 3,072 GPUs, full bisection; 1:7 above (same source); assumption: 16 links to the aggregation layer; "
                          f"{_SWITCH_LATENCY}",
           "network.aggregation": "8 pods, 24,576 GPUs (same source); assumption: 2 us more than in a rack",
           "network.routing": f"{_SIXTEEN_FLOWS} (Llama 3, arXiv 2407.21783, 3.3.1)"}),
    "ncclx_100k": _cluster(
        38 * 384, (Level("rack", nodes=2, uplinks=16), Level("zone", nodes=384, oversubscription=2.8, uplinks=76, latency="6us"),
                   Level("building", nodes=8 * 384, uplinks=76, latency="14us"), Level("region", latency="29us")), "spray",
        **{"network.rack": "16 GPUs, 400 Gb/s each (NCCLX, arXiv 2510.20171); assumption: 1 us of the NIC's latency is the network's in a "
                           "rack, the base of the ratios 1:7:15:30 of the levels (same source)",
           "network.zone": "3,072 GPUs at full bisection, 1:2.8 above, 76 planes (same source); latency 7 times the base",
           "network.building": "38 zones in 5 buildings (same source); assumption: 8 zones a building, 6 in the last; no further "
                               "oversubscription between buildings (1, 1, 2.8, 2.8 counted from the NICs); latency 15 times the base",
           "network.region": "between buildings 30 times the base (same source)",
           "network.routing": "queue pairs spread over the planes (same source); taken as even"}),
    "hpn": _cluster(
        1920, (Level("port", nodes=1, uplinks=2, per_rail=True),
               Level("segment", nodes=128, oversubscription=128 * 200 / (60 * 400), uplinks=120, latency="0us", per_rail=True),
               Level("pod", nodes=1920, oversubscription=15, uplinks=120, latency="1us"), Level("core", latency="2us")), "ecmp",
        **{"network.port": "2 x 200 Gb/s a NIC, each on a plane of its own (Alibaba HPN, SIGCOMM 2024)",
           "network.segment": "128 hosts of 8 GPUs; of each rail and plane one switch with 128 x 200 Gb/s down and 60 x 400 Gb/s up (same "
                              "source)",
           "network.pod": f"15 segments, 15,360 GPUs; 15:1 above (same source); {_SWITCH_LATENCY}; assumption: as many links "
                          "up as a rail has",
           "network.core": "assumption: 2 us more than in a segment",
           "network.routing": "hash of each connection; planes stay apart to the top (same source)",
           "fabric_gbytes_per_s": "assumption: as HGX H100; the hosts' GPUs differ"}),
}

ALIASES = {"a100": "dgx_a100", "h100": "hgx_h100", "h200": "hgx_h200", "b200": "hgx_b200", "gb200": "gb200_nvl72",
           "nvl72": "gb200_nvl72", "default": "lab", "llama3": "llama3_24k", "ncclx": "ncclx_100k", "hpn7": "hpn"}


def build(name: str, nodes: int | None = None) -> Topology:
    """`nodes` of the machine called `name`."""
    from .model import Topology
    from .rates import GBIT

    key = str(name).lower().replace("-", "_")
    key = ALIASES.get(key, key)
    if key not in PRESETS:
        raise UsageError(f"no preset {name!r}.{suggest(str(name), [*PRESETS, *ALIASES])}")
    fields = {field.name: getattr(PRESETS[key], field.name) for field in dataclasses.fields(Preset)}
    levels, routing = fields.pop("levels"), fields.pop("routing")
    limits = {path: int(rate * GBIT) for path, rate in fields.pop("path_gbits_per_s").items()}
    machine = Topology.cluster(**{**fields, "nodes": PRESETS[key].nodes if nodes is None else nodes}, name=key)
    machine = machine.replace(path_limits=limits) if limits else machine
    return machine.with_network(*levels, routing=routing) if levels else machine
