"""One parameter set per platform: what a machine's datasheet says, and the few numbers that its measurements gave.

Is: a table with the source of each number; `python -m bench validation` fits the numbers marked "fitted" anew and prints both errors.
Is not: tuned to sizes or algorithms; what nobody measured on a platform is the default, and says so. Invariant: rates are
bytes/us / 1e3 = GB/s in one direction, times are us.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Union

import numpy as np

from ...arguments import whole
from ...errors import UsageError, suggest
from ...topo import Topology
from ...topo.presets import ALIASES, PRESETS

PROTOCOLS = ("LL", "LL128", "Simple")


@dataclasses.dataclass(frozen=True)
class Platform:
    """A machine as the models of NCCL and CTran see it.

    name; nodes (default number of NVLink domains), trays: hosts in one domain; gpus_per_node; nics_per_node; nic_gbytes_per_s: line
    rate of one NIC; fabric_gbytes_per_s: NVLink of one GPU, one direction, datasheet. launch_us: start and end of a kernel as the
    harness sees it. nic_latency_us: one way between NICs. near_simple_us: a hop over NVLink in protocol Simple. ring_share,
    nvls_share: busbw of a large ring and NVLS all_reduce inside a node, over fabric_gbytes_per_s; nic_share: of a NIC's line rate.
    protocols: those that its network allows; cross_share: what a node gets of its NICs when all send to all. nvls_channels: 0
    without multicast in its switches. line_share: rate of a ring in LL128 over Simple (LL: half of it,
    and no more than turn_us, in which each thread sends its words once, allows). ll_line_ns: a proxy looks
    at a line of LL. nvls_depth, tree_depth: chunks in flight between the stages of NVLS, and between NVLS and the network;
    nvls_tree_share: rate of the switch in nvls_tree over that in NVLS, as the same warps feed the network. sources: where each is
    from.
    """

    name: str
    gpus_per_node: int
    nics_per_node: int
    nic_gbytes_per_s: float
    fabric_gbytes_per_s: float
    ring_share: float
    nvls_share: float = 0.0
    nvls_channels: int = 0
    nic_share: float = 0.97
    launch_us: float = 31.3
    nic_latency_us: float = 2.0
    near_simple_us: float = 8.73
    line_share: float = 0.678
    turn_us: float = 1.24
    ll_line_ns: float = 87.2
    nvls_depth: float = 1.275
    tree_depth: float = 1.275
    nvls_tree_share: float = 0.9397
    protocols: tuple[str, ...] = PROTOCOLS
    cross_share: float = 1.0
    nodes: int = 1
    trays: int = 1
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def node_gbytes_per_s(self) -> float:
        """What all NICs of a node carry together in one direction."""
        return self.nics_per_node * self.nic_gbytes_per_s * self.nic_share

    @property
    def ring_gbytes_per_s(self) -> float:
        """What a ring gets of the fabric."""
        return self.fabric_gbytes_per_s * self.ring_share

    @property
    def nvls_gbytes_per_s(self) -> float:
        """busbw of a large all_reduce by the switch."""
        return self.fabric_gbytes_per_s * self.nvls_share


_PUBLISHED = "labs/data/all_reduce_published.csv"
_DATASHEET = {
    "fabric_gbytes_per_s": "NVLink, one direction, datasheet (ccl_lab.topo.PRESETS)",
    "nic_gbytes_per_s": "line rate, datasheet (ccl_lab.topo.PRESETS)",
    "ring_share": "what a ring of 8 gets, measured (ccl_lab.topo.PRESETS): 367 of 450, 682 of 900",
}
_DEFAULT = {
    "launch_us": f"default: fitted on H200 1x8, {_PUBLISHED} (a harness in PyTorch; nccl-tests: see hgx_h100)",
    "nic_latency_us": "default: a few us through ConnectX-7 and a switch",
    "near_simple_us": f"default: fitted on A100 1x8 ring, {_PUBLISHED}",
    "nic_share": "46 to 48.5 GB/s of 50 measured on ConnectX-7 of 400 Gb/s",
    "tree_depth": f"default: as NVLS inside a node, fitted on H200 1x8, {_PUBLISHED}",
    "line_share": f"default: fitted on A100 1x8 ring, {_PUBLISHED}",
    "ll_line_ns": f"default: fitted on H100 2x8 EFA, {_PUBLISHED}",
    "turn_us": "assumption: that of dgx_a100, by NCCL's rates of LL on Ampere and Hopper (src/graph/tuning.cc: 87.7, 141 GB/s)",
    "nvls_depth": f"default: fitted on H200 1x8, {_PUBLISHED}",
    "nvls_tree_share": f"default: fitted on H100 2x8 EFA, {_PUBLISHED}",
    "nvls_channels": "NCCL src/transport/nvls.cc: 16 on Hopper, 32 on Blackwell, 24 on Blackwell NVL72",
}


def _platform(name: str, *numbers: float, sources: Mapping[str, str] | None = None, **more: object) -> Platform:
    return Platform(name, *numbers, sources={**_DATASHEET, **_DEFAULT, **(sources or {})}, **more)  # type: ignore[arg-type]


_HOPPER = {"nvls_share": 1.066, "nvls_channels": 16}
_NVLS_HOPPER = f"fitted on H200 1x8 NVLS, {_PUBLISHED}"
_NCCL_TESTS = f"fitted on H100 2x8 EFA (nccl-tests), {_PUBLISHED}"
_EFA = {"launch_us": 7.9, "nic_latency_us": 21.0, "nic_share": 0.92, "tree_depth": 3.454, "protocols": ("LL", "Simple")}
_EFA_SOURCES = {
    "nic_latency_us": _NCCL_TESTS, "tree_depth": _NCCL_TESTS, "launch_us": _NCCL_TESTS,
    "nic_share": "assumption: the low end of what NICs reach; two nodes are limited by NVLS, not by the NICs",
    "protocols": "assumption: without LL128, which needs 128-byte writes in order; the measured floor has no room for it",
}  # fmt: skip


def _efa(platform: Platform, name: str, nics: int, nic_gbytes_per_s: float) -> Platform:
    """The same GPUs behind EFA."""
    return dataclasses.replace(platform, name=name, nodes=2, nics_per_node=nics, nic_gbytes_per_s=nic_gbytes_per_s, **_EFA,
                               sources={**platform.sources, **_EFA_SOURCES})  # type: ignore[arg-type]  # fmt: skip


_A100 = _platform("dgx_a100", 8, 8, 25, 300, 0.751, turn_us=2.0,
                  sources={"turn_us": "assumption: a load from memory and a look at the flag, 1 us each, one after the other",
                           "ring_share": f"fitted on A100 1x8 ring, {_PUBLISHED}",
                           "near_simple_us": f"fitted on A100 1x8 ring, {_PUBLISHED}"})  # fmt: skip
_H100 = _platform("hgx_h100", 8, 8, 50, 450, 367 / 450, **_HOPPER, launch_us=7.9,
                  sources={"nvls_share": _NVLS_HOPPER, "launch_us": _NCCL_TESTS,
                           "nic_share": f"checked on H100 8x8 InfiniBand, {_PUBLISHED}"})  # fmt: skip
_H200 = _platform("hgx_h200", 8, 8, 50, 450, 367 / 450, **_HOPPER, sources={"nvls_share": _NVLS_HOPPER})
_B200 = _platform("hgx_b200", 8, 8, 50, 900, 682 / 900, nvls_share=838 / 900, nvls_channels=32,
                  sources={"nvls_share": "busbw of about 838 measured (ccl_lab.topo.PRESETS: HGX B200)"})  # fmt: skip
_NVL72 = _platform("gb200_nvl72", 72, 72, 50, 900, 682 / 900, nvls_share=0.9416, nvls_channels=24,
                   launch_us=7.9, trays=18, sources={"nvls_share": f"fitted on GB200 NVL72, {_PUBLISHED}"})  # fmt: skip

PLATFORMS: dict[str, Platform] = {
    each.name: each
    for each in (_A100, _H100, _H200, _B200, _NVL72,
                 _efa(_A100, "a100_efa", 4, 12.5), _efa(_H100, "h100_efa", 8, 50), _efa(_H200, "h200_efa", 16, 25),
                 _efa(_B200, "b200_efa", 8, 50))
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class CtranPlatform:
    """A machine under CTran: all traffic over NICs, host-driven, zero-copy.

    nics_per_rank; nic_gbytes_per_s: line rate of one; nic_share: what is reached of it. control_us: once a collective (command to
    the CPU thread, address exchange, the kernel that holds the stream); hop_us: a put, its completion and notification; reduce_us:
    added by a reducing step; reduce_gbytes_per_s: the part of the reduction that nothing hides. segment_bytes, qps, inflight:
    DQPLB. pipeline_bytes: a put of so many hides half of the hop after it, as the next rank begins with what has come.
    round_trip_us: of the path, for its window.
    """

    name: str
    nics_per_rank: int
    nic_gbytes_per_s: float
    nic_share: float
    control_us: float
    hop_us: float
    reduce_us: float
    reduce_gbytes_per_s: float
    segment_bytes: int = 512 << 10
    qps: int = 16
    inflight: int = 128
    pipeline_bytes: int = 4 << 20
    round_trip_us: float = 10.0
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def gbytes_per_s(self) -> float:
        """What a long put of one rank gets: all its NICs, or what the window allows."""
        window = self.qps * self.segment_bytes * self.inflight / self.round_trip_us / 1e3
        return min(self.nics_per_rank * self.nic_gbytes_per_s * self.nic_share, window)


_CTRAN_DATA = "labs/data/ctran_gb200_busbw.csv"
CTRAN_PLATFORMS: dict[str, CtranPlatform] = {
    "gb200_ctran": CtranPlatform(
        "gb200_ctran", 2, 50, 0.961, 26.8, 14.63, 12.65, 303,
        sources={
            **dict.fromkeys(("nic_share", "control_us", "hop_us", "reduce_us", "reduce_gbytes_per_s"),
                            f"fitted on 4 and 8 GPUs, {_CTRAN_DATA}"),
            **dict.fromkeys(("segment_bytes", "qps", "nics_per_rank"), "configuration of that measurement"),
            "inflight": "CTran's default for a rack (arXiv 2510.20171, DQPLB)",
            "pipeline_bytes": "8 slots of 512 KiB, CTran's staging (arXiv 2510.20171); the data allow 2 to 10 MiB",
            "round_trip_us": "assumption; the window of 16 x 128 segments does not limit below 10 ms"}),
}  # fmt: skip


def nodes_of(platform: Platform, nodes: int | None, gpus: int | None) -> tuple[int, int]:
    """(nodes, ranks): as given, or the platform's default. A node is an NVLink domain: the trays of a rack are one."""
    per_node = platform.gpus_per_node
    nodes, gpus = (value if value is None else whole(value, name, 1) for name, value in (("nodes", nodes), ("gpus", gpus)))
    if gpus is not None and nodes is not None and platform.trays > 1 and nodes <= platform.trays and gpus <= per_node:
        nodes = 1
    if gpus is None:
        nodes = platform.nodes if nodes is None else nodes
        return nodes, nodes * per_node
    if nodes is None:
        if gpus > per_node and gpus % per_node:
            raise UsageError(f"gpus {gpus}: {platform.name} has {per_node} a node; expected a multiple of it, or give nodes as well.")
        nodes = max(1, gpus // per_node)
    if gpus % nodes or gpus // nodes > per_node:
        raise UsageError(f"gpus {gpus} on {nodes} nodes: expected as many on each node, and at most {per_node}.")
    return nodes, gpus


def find(platform: Union[str, Topology, Platform]) -> tuple[Platform, int | None]:
    """The parameter set of a name, or of a topology (its rates, its preset's parameters), and the nodes that a topology has."""
    if isinstance(platform, Platform):
        return platform, None
    if isinstance(platform, Topology):
        return of_topology(platform), platform.n_nodes
    key = str(platform).lower().replace("-", "_")
    key = ALIASES.get(key, key)
    if key not in PLATFORMS and (described := _described(key)) is not None:
        return described, None
    if key not in PLATFORMS:
        raise UsageError(f"no platform {platform!r}.{suggest(str(platform), [*PLATFORMS, *ALIASES])} Known: {', '.join(PLATFORMS)}; "
                         "for others give a Topology.")
    return PLATFORMS[key], None


def find_ctran(platform: Union[str, Topology, Platform, CtranPlatform]) -> tuple[CtranPlatform, int | None]:
    """CTran's parameter set, and how many ranks a topology has.

    For a machine without one: gb200_ctran's costs with the machine's own NICs, as many for each rank as there are.
    """
    if isinstance(platform, CtranPlatform):
        return platform, None
    key = str(platform).lower().replace("-", "_") if isinstance(platform, str) else ""
    if key in CTRAN_PLATFORMS:
        return CTRAN_PLATFORMS[key], None
    machine, _ = find(platform)
    if not machine.nics_per_node:
        raise UsageError(f"CTran on {machine.name}: it has no NICs.")
    base = CTRAN_PLATFORMS["gb200_ctran"]
    costs = dict.fromkeys(("control_us", "hop_us", "reduce_us", "reduce_gbytes_per_s", "nic_share"), "default: those of gb200_ctran")
    nics = {"nics_per_rank": f"NICs of {machine.name} over its GPUs", "nic_gbytes_per_s": machine.sources.get("nic_gbytes_per_s", "")}
    found = dataclasses.replace(base, name=machine.name, nics_per_rank=max(1, machine.nics_per_node // machine.gpus_per_node),
                                nic_gbytes_per_s=machine.nic_gbytes_per_s, sources={**base.sources, **costs, **nics})  # fmt: skip
    return found, platform.n_ranks if isinstance(platform, Topology) else None


_DESCRIPTION = re.compile(r"(?P<gpu>gb200|a100|h100|h200|b200)\b(?P<words>.*)")
_SHAPE = re.compile(r"\b(\d{1,6})x(\d{1,3})\b")


def _described(text: str) -> Platform | None:
    """A platform as benchmark tables write it: "h100 p5 efa 2x8", "gb200 nvl72"; None for anything else."""
    found = _DESCRIPTION.match(text)
    if not found:
        return None
    name = f"{found['gpu']}_efa" if re.search(r"\befa\b", found["words"]) else ALIASES[found["gpu"]]
    if name not in PLATFORMS:
        return None
    shape = _SHAPE.search(found["words"])
    if not shape:
        return PLATFORMS[name]
    nodes, local = int(shape[1]), int(shape[2])
    if not nodes or local != PLATFORMS[name].gpus_per_node:
        raise UsageError(f"platform {text!r}: expected 1 or more nodes of {PLATFORMS[name].gpus_per_node} GPUs; for others give nodes "
                         "and gpus.")
    return dataclasses.replace(PLATFORMS[name], nodes=nodes)


def of_topology(topology: Topology) -> Platform:
    """A parameter set for `topology`: that of its preset, with the rates of its own NICs and fabric, and its network.

    The network above the NICs counts as its farthest latency in every hop between nodes, and as what it carries when all send to
    all; rings and trees in rank order cross it on few edges. Raises UsageError where nodes or NICs differ: the model knows equal
    nodes alone.
    """
    sizes = np.bincount(topology.node_of)
    rates = topology.nic_bytes_per_s
    if sizes.min() != sizes.max() or (len(rates) and rates.min() != rates.max()):
        raise UsageError(f"topology {topology.name!r}: the model of NCCL knows equal nodes with equal NICs alone; use simulate for others.")
    nic = float(rates[0]) / 1e9 if len(rates) else 0.0
    fabric = float(topology.fabric_bytes_per_s.min()) / 1e9
    preset = PRESETS.get(topology.name)
    base = PLATFORMS.get(topology.name) or (_H100 if preset is not None and preset.levels else None)
    if base is not None and preset is not None:
        changed = fabric / preset.fabric_gbytes_per_s  # there it is what a ring gets, here the datasheet's
        found = dataclasses.replace(base, name=topology.name, gpus_per_node=int(sizes[0]), nics_per_node=topology.nics_per_node,
                                    nic_gbytes_per_s=nic, fabric_gbytes_per_s=base.fabric_gbytes_per_s * changed)  # fmt: skip
    else:
        latency = float(topology.nic_latency_ps.max()) / 1e6 if len(rates) else 0.0
        own = dict.fromkeys(("fabric_gbytes_per_s", "nic_gbytes_per_s", "nic_latency_us", "ring_share"), "the topology")
        found = _platform(topology.name, int(sizes[0]), topology.nics_per_node, nic, fabric, 1.0, nic_latency_us=latency,
                          nodes=topology.n_nodes, sources=own)  # fmt: skip
    if topology.network is None:
        return found
    latency_us, share = _network(topology)
    return dataclasses.replace(found, nic_latency_us=found.nic_latency_us + latency_us, cross_share=share)


def _network(topology: Topology) -> tuple[float, float]:
    """(us that the farthest tier adds, what a node gets of its NICs when all send to all)."""
    assert topology.network is not None
    node = float(topology.nic_bytes_per_s[: topology.nics_per_node].sum())
    share, latency = 1.0, 0.0
    for tier in topology.network.tiers:
        latency = tier.latency_ps / 1e6
        if tier.groups == 1:
            break
        inside = int(np.bincount(tier.group_of).max())
        up = tier.uplinks * tier.uplink_bytes_per_s * (topology.nics_per_node if tier.per_rail else 1)
        crossing = 1 - inside / topology.n_nodes
        share = min(share, up / (inside * node) / crossing)
    return latency, share
