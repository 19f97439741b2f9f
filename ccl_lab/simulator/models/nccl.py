"""How long NCCL takes: one algorithm in one protocol, from hops, stages and chunks.

    T(S) = launch + latency + S / slowest stage + min(S, chunks in flight) * (all stages - the slowest)

Is: the pipeline model below, its numbers from `platforms`. Is not: NCCL's tuner, whose tables rank choices and are no times; nor a
schedule on links (simulator.exact). `latency` is what the first byte meets: hops x latency of the protocol. A *stage* is something all
bytes go through (the switch's reduction, a NIC, the way back); while stages work on different chunks only the slowest counts, but the first
chunk meets them one after the other. S F / (S + F) stands for the bytes in flight: all of a small message, F = channels x heads x
chunk x depth of a large one (NCCL halves its chunks as messages shrink, src/enqueue.cc, which this smooths).

Protocols: LL sends 8-byte words of 4 bytes data and 4 bytes flag: half the rate, least latency; over a NIC its buffers lie in host
memory and the proxy looks at each line. LL128 sends lines of 128 bytes with a flag of 8. Both keep less in flight than Simple,
which sends chunks and then a flag: `line_share` of its rate.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ...arguments import named
from ...errors import UsageError
from .platforms import PROTOCOLS, Platform

F64 = npt.NDArray[np.float64]

# One hop of a ring, and of a tree, over NVLink and over the network without the NIC's own latency, in us; NCCL src/graph/tuning.cc.
RING_NEAR_US = {"LL": 0.6, "LL128": 1.9}
TREE_NEAR_US = {"LL": 0.6, "LL128": 1.25, "Simple": 4.0}
RING_FAR_US = {"LL": 2.7, "LL128": 4.0, "Simple": 14.0}
TREE_FAR_US = {"LL": 5.0, "LL128": 8.5, "Simple": 14.0}
FAR_LATENCIES = {"LL": 1, "LL128": 1, "Simple": 2}  # Simple adds a flush at the receiver
NVLS_US = 8.0  # assumption: what NVLS adds to a launch; as LL, whose floor on 8 GPUs is the same
NVLS_CHUNK_BYTES, NVLS_TREE_CHUNK_BYTES = 128 << 10, 64 << 10  # NCCL src/transport/nvls.cc; the second from 4 nodes on
LL_LINE_BYTES = 8  # data in a line of 16 bytes
LL_CHANNELS, LL_THREADS = 24, 512  # NCCL on 8 GPUs; src/include/device.h: a thread has one line on its way
TREE_CHUNK_BYTES, LINE_CHUNK_BYTES, TREE_CHANNELS = 512 << 10, 32 << 10, 16  # a slot of NCCL's buffers in Simple, and in lines
P2P_US = 1.0  # assumption: a send and its receive posted by a proxy
COLLNET_FAR_US = 30.0  # NCCL src/graph/tuning.cc: up and down a switch tree
PAT_STEP_US = 2.8  # NCCL src/graph/tuning.cc: what each rank adds to PAT

FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "send_recv": lambda n: 1.0,
}
"""busbw = bytes / time x factor, as nccl-tests define it; bytes are those of the larger buffer of a rank."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """Where a collective runs: `nodes` of `local` ranks."""

    platform: Platform
    nodes: int
    ranks: int

    @property
    def local(self) -> int:
        """Ranks on a node."""
        return self.ranks // self.nodes

    @property
    def node_gbytes_per_s(self) -> float:
        """All NICs of a node that its ranks can use."""
        used = min(self.local / self.platform.gpus_per_node * self.platform.nics_per_node, self.platform.nics_per_node)
        return max(used, 1.0) * self.platform.nic_gbytes_per_s * self.platform.nic_share

    def far_us(self, table: dict[str, float], protocol: str) -> float:
        """One hop between nodes."""
        return table[protocol] + FAR_LATENCIES[protocol] * self.platform.nic_latency_us

    def near_us(self, table: dict[str, float], protocol: str) -> float:
        """One hop inside a node."""
        return table.get(protocol, self.platform.near_simple_us)


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """One algorithm in one protocol: latency_us; stages: us a byte of each; flight_bytes: bytes that are between stages at a time."""

    latency_us: float
    stages: tuple[float, ...]
    flight_bytes: float = 0.0

    def parts(self, nbytes: F64) -> dict[str, F64]:
        """us spent in latency, in the slowest stage, and in filling the pipeline."""
        slowest = max(self.stages, default=0.0)
        inside = nbytes * self.flight_bytes / (nbytes + self.flight_bytes)
        fill = inside * (sum(self.stages) - slowest)
        return {"latency": np.full_like(nbytes, self.latency_us), "bandwidth": nbytes * slowest, "fill": fill}


def _us_a_byte(bytes_moved: float, gbytes_per_s: float) -> float:
    return bytes_moved / gbytes_per_s / 1e3


def _ring_rates(at: Shape, protocol: str) -> tuple[float, float]:
    """GB/s of a ring inside a node, and of the edges between two nodes."""
    near, far = at.platform.ring_gbytes_per_s, at.node_gbytes_per_s
    lines = near * at.platform.line_share
    if protocol == "LL":
        turned = LL_CHANNELS * LL_THREADS * LL_LINE_BYTES / at.platform.turn_us / 1e3
        return min(lines / 2, turned), min(far / 2, at.local * LL_LINE_BYTES / at.platform.ll_line_ns)
    return (lines, far * 120 / 128) if protocol == "LL128" else (near, far)


def _ring(op: str, at: Shape, protocol: str) -> Pipeline:
    """n-1 steps (all_reduce: twice); broadcast and reduce: a chain of as many hops. Every byte crosses every edge once a round."""
    near, far = _ring_rates(at, protocol)
    rounds = 2 if op == "all_reduce" else 1
    crossings = rounds * (at.nodes - 1)
    hops = rounds * (at.ranks - 1)
    latency = (hops - crossings) * at.near_us(RING_NEAR_US, protocol) + crossings * at.far_us(RING_FAR_US, protocol)
    moved = FACTORS[op](at.ranks)
    edge = min(near, far) if at.nodes > 1 and at.local > 1 else far if at.nodes > 1 else near
    return Pipeline(latency, (_us_a_byte(moved, edge),))


def _tree_load(nodes: int) -> float:
    """Bytes that the busiest node sends per byte of message in a double binary tree.

    Half of the message goes up and down each tree. Two nodes: each is root of one tree and leaf of the other. From four on some node has
    a parent and two children in one tree (3/2) and a parent in the other (1/2).
    """
    return {2: 1.0, 3: 1.5}.get(nodes, 2.0)


def _tree_stages(nodes: int, gbytes_per_s: float) -> tuple[float, ...]:
    """The busiest node's NICs, and the levels beyond it: a byte goes up and down all, half of the message in either tree."""
    load = _tree_load(nodes)
    beyond = _tree_depth(nodes) - load
    whole = int(beyond) if beyond > 0 else 0
    return tuple(_us_a_byte(part, gbytes_per_s) for part in (load, *[1.0] * whole, max(beyond - whole, 0.0)))


def _tree_depth(nodes: int) -> int:
    return max(1, math.ceil(math.log2(nodes)))


def _tree(op: str, at: Shape, protocol: str) -> Pipeline:
    """A chain in each node, a double binary tree among nodes, up and down again. Sanders, Speck, Traeff 2009."""
    near, far = _ring_rates(at, protocol)
    hops = at.local - 1
    latency = 2 * (hops * at.near_us(TREE_NEAR_US, protocol) + _tree_depth(at.nodes) * at.far_us(TREE_FAR_US, protocol))
    chain = tuple(_us_a_byte(part, near) for part in (2.0, *[1.0] * (2 * hops - 2))) if hops else ()
    chunk = TREE_CHUNK_BYTES if protocol == "Simple" else LINE_CHUNK_BYTES
    return Pipeline(latency, (*chain, *_tree_stages(at.nodes, far)), chunk * TREE_CHANNELS)


def _nvls_flight(at: Shape, chunk: float, depth: float) -> float:
    return at.platform.nvls_channels * at.local * chunk * depth


def _nvls(op: str, at: Shape, protocol: str) -> Pipeline:
    """The switch adds and multicasts: two stages for all_reduce. all_gather only multicasts, reduce_scatter only adds: what each GPU
    gets, or gives, is as much as in a ring.
    """
    if op != "all_reduce":
        return Pipeline(NVLS_US, (_us_a_byte(FACTORS[op](at.ranks), at.platform.ring_gbytes_per_s),))
    rate = at.platform.nvls_gbytes_per_s / FACTORS[op](at.ranks)
    return Pipeline(NVLS_US, (_us_a_byte(1, rate),) * 2, _nvls_flight(at, NVLS_CHUNK_BYTES, at.platform.nvls_depth))


def _nvls_tree(op: str, at: Shape, protocol: str) -> Pipeline:
    """NVLS inside each node, a double binary tree between the GPUs of equal number: the switch's two stages, up and down between them."""
    rate = at.platform.nvls_gbytes_per_s / FACTORS["all_reduce"](at.local) * at.platform.nvls_tree_share
    latency = NVLS_US + 2 * _tree_depth(at.nodes) * at.far_us(TREE_FAR_US, protocol)
    stages = (*(_us_a_byte(1, rate),) * 2, *_tree_stages(at.nodes, at.node_gbytes_per_s))
    chunk = NVLS_CHUNK_BYTES if at.nodes < 4 else NVLS_TREE_CHUNK_BYTES
    return Pipeline(latency, stages, _nvls_flight(at, chunk, at.platform.tree_depth))


def _collnet(op: str, at: Shape, protocol: str, chain: bool) -> Pipeline:
    """Switches of the network add: every node sends and receives the message once. Direct: all to all in the node; chain: a chain."""
    hops = at.local - 1
    latency = COLLNET_FAR_US + 2 * at.platform.nic_latency_us + 2 * (hops * 2.8 if chain else min(1, hops) * 3.7 + hops * 0.4)
    near = (_us_a_byte(2 if chain else FACTORS["all_reduce"](at.local), at.platform.ring_gbytes_per_s),) if hops else ()
    return Pipeline(latency, (*near, _us_a_byte(1, at.node_gbytes_per_s)), TREE_CHUNK_BYTES * TREE_CHANNELS)


def _collnet_direct(op: str, at: Shape, protocol: str) -> Pipeline:
    return _collnet(op, at, protocol, chain=False)


def _collnet_chain(op: str, at: Shape, protocol: str) -> Pipeline:
    return _collnet(op, at, protocol, chain=True)


def _pat(op: str, at: Shape, protocol: str) -> Pipeline:
    """Parallel aggregated trees: log2 n hops, all bytes over the NIC, and a part for each rank. Jeaugey 2025 (arXiv 2506.20252)."""
    hops = math.ceil(math.log2(at.ranks))
    latency = hops * at.far_us(RING_FAR_US, protocol) / 3.5 + PAT_STEP_US * at.ranks
    return Pipeline(latency, (_us_a_byte(FACTORS[op](at.ranks), at.node_gbytes_per_s),))


def _direct(op: str, at: Shape, protocol: str) -> Pipeline:
    """Each rank sends to each other: the part for its node over NVLink, the rest over the node's NICs."""
    peers = at.ranks - 1 if op == "all_to_all" else 1
    near = (at.local - 1) / at.ranks if op == "all_to_all" else float(at.nodes == 1)
    far = at.local * (at.ranks - at.local) / at.ranks if op == "all_to_all" else float(at.nodes > 1)
    hop = at.far_us(RING_FAR_US, protocol) if at.nodes > 1 else at.near_us(RING_NEAR_US, protocol)
    rate = at.node_gbytes_per_s * (at.platform.cross_share if op == "all_to_all" else 1.0)
    slowest = max(_us_a_byte(near, at.platform.ring_gbytes_per_s), _us_a_byte(far, rate) if far else 0.0)
    return Pipeline(hop + P2P_US * (peers - 1), (slowest,))


_REDUCING = ("all_reduce",)
_SHARDED = ("all_gather", "reduce_scatter")
_FORMS: dict[str, tuple[Callable[[str, Shape, str], Pipeline], tuple[str, ...], tuple[str, ...]]] = {
    "ring": (_ring, ("all_reduce", *_SHARDED, "broadcast", "reduce"), PROTOCOLS),
    "tree": (_tree, _REDUCING, PROTOCOLS),
    "nvls": (_nvls, (*_REDUCING, *_SHARDED), ("Simple",)),
    "nvls_tree": (_nvls_tree, _REDUCING, ("Simple",)),
    "pat": (_pat, _SHARDED, ("Simple",)),
    "collnet_direct": (_collnet_direct, _REDUCING, ("Simple",)),
    "collnet_chain": (_collnet_chain, _REDUCING, ("Simple",)),
    "direct": (_direct, ("all_to_all", "send_recv"), ("Simple",)),
}
"""algorithm: its pipeline, the ops and the protocols it is there for."""

ALGORITHMS = tuple(_FORMS)


# What NCCL's table (src/graph/tuning.cc) takes a ring inside a node for: us at the start, us a hop, share of the ring's rate, GB/s at
# most (LL: on Ampere, and on later ones). It ranks protocols and is no time.
_TABLE = {"LL": (6.6, 0.6, 0.5), "LL128": (14.0, 1.9, 0.92), "Simple": (8.4, 3.4, 1.0)}
_TABLE_LL_GBYTES_PER_S, _AMPERE_FABRIC_GBYTES_PER_S = (87.7, 141.0), 300.0


def protocol_of_ring(op: str, at: Shape, protocols: Sequence[str], nbytes: F64) -> npt.NDArray[np.int64]:
    """Which of `protocols` NCCL takes for a ring inside a node, i64[sizes]: the least by its table, whatever it then costs.

    Between nodes the model's own minimum stands: the table's rates there are means over networks.
    """
    hops = (2 if op == "all_reduce" else 1) * (at.ranks - 1)
    rows = []
    for name in protocols:
        start, hop, share = _TABLE[name]
        rate = at.platform.ring_gbytes_per_s * share
        if name == "LL":
            rate = min(rate, _TABLE_LL_GBYTES_PER_S[at.platform.fabric_gbytes_per_s > _AMPERE_FABRIC_GBYTES_PER_S])
        rows.append(start + hops * hop + nbytes * _us_a_byte(FACTORS[op](at.ranks), rate))
    return np.argmin(rows, axis=0)


def _missing(algorithm: str, at: Shape) -> str:
    """Why `algorithm` cannot run here, or ""."""
    if algorithm in ("nvls", "nvls_tree") and not at.platform.nvls_channels:
        return f"{at.platform.name} has no multicast in its switches"
    if algorithm in ("nvls", "nvls_tree") and at.local < 3:
        return "NVLS needs 3 GPUs or more on a node"
    if algorithm == "nvls" and at.nodes > 1:
        return "NVLS is for one node; over several it is nvls_tree"
    if algorithm in ("nvls_tree", "tree", "collnet_direct", "collnet_chain") and at.nodes == 1:
        return "it needs more than one node"
    if algorithm == "pat" and (at.local > 1 or at.nodes == 1):
        return "PAT needs several nodes of one GPU each"
    return ""


def candidates(op: str, at: Shape, algorithm: str | None, protocol: str | None) -> dict[tuple[str, str], Pipeline]:
    """The pipelines among which NCCL may choose, or the one asked for.

    CollNet is one only if asked for by name: it needs switches that add. Raises UsageError naming what is unknown or cannot run here.
    """
    for name, value, known in (("op", op, FACTORS), ("algorithm", algorithm, _FORMS), ("protocol", protocol, PROTOCOLS)):
        if value is not None or name == "op":
            named(value, name, known, verdict="is not in the model of NCCL")
    found = {}
    for name, (form, ops, protocols) in _FORMS.items():
        if algorithm is None and name.startswith("collnet") or algorithm not in (None, name):
            continue
        why = f"it is for {', '.join(ops)}" if op not in ops else _missing(name, at)
        if why and algorithm is not None:
            raise UsageError(f"{op} by {algorithm} on {at.nodes} nodes of {at.local} GPUs: {why}.")
        allowed = [each for each in protocols if each in at.platform.protocols and protocol in (None, each)]
        found |= {(name, each): form(op, at, each) for each in allowed if not why}
    if not found:
        raise UsageError(f"{op} in protocol {protocol} on {at.platform.name}: nothing runs so; its protocols are "
                         f"{', '.join(at.platform.protocols)}, and all but ring and tree use Simple alone.")
    return found
