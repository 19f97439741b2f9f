"""Lowers a schedule to what one rank executes: its ops in program order, with byte offsets, peers and NICs.

Is: the only translation from chunks to bytes for the native engine (see `Engine.compile` in _core.pyi). Is not: a check;
the native side validates every number again. Invariant: a pure function of (schedule, layout, rank, topology, redop).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir import Buffer, Collective, DType, Kind, RedOp, Schedule, collectives
from ..ir.layout import Layout
from ..topo import Topology

# Algorithms whose results the node layer produces in one pass over mapped memory (docs/adr/0009).
FUSED = frozenset({"one_pass", "flat"})

Mask = Sequence[tuple[int, int]]  # (node, NIC)
ALIAS_NONE, ALIAS_INPUT_IN_OUTPUT, ALIAS_OUTPUT_IN_INPUT = 0, 1, 2


def plan_hash(schedule: Schedule, layout: Layout, redop: str, without: Mask = ()) -> int:
    """What ranks compare before they touch each other's memory: schedule, sizes, dtype, reduction and NICs left out in 64 bits."""
    mask = f" {sorted(without)}" if without else ""
    sha = hashlib.sha256(f"{schedule.digest} {layout.count} {layout.dtype} {redop}{mask}".encode())
    if layout.counts is not None:
        sha.update(layout.counts.tobytes())
    return int.from_bytes(sha.digest()[:8], "little")


def lower(
    schedule: Schedule, layout: Layout, rank: int, topology: Topology, redop: str, fused: bool = False, without: Mask = (),
    keeps: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Arrays for `Engine.compile` of `rank`; fused: see `fusible`; without: NICs that `topology` lacks because they are lost; keeps:
    with its copies, which somebody else makes before it begins where it is False (direct.py).

    Cost: a few numpy passes over the op table.
    """
    ops, item = schedule.ops, layout.itemsize
    mine = np.flatnonzero((ops.rank == rank) & (keeps | (ops.kind != Kind.copy)))
    peer, channel = ops.peer[mine], ops.channel[mine]
    target = np.where((ops.kind[mine] == Kind.put) & (peer >= 0), peer, rank)
    nic, peer_nic = nics_of(topology, rank, np.where(peer >= 0, peer, rank), channel)
    counts = ops.src_count[mine].astype(np.int64)
    begins = np.concatenate([[0], np.cumsum(counts)])
    sources = np.repeat(ops.src_begin[mine] - begins[:-1], counts) + np.arange(begins[-1])
    src_rank, src_buf, src_chunk = ops.src_rank[sources], ops.src_buf[sources], ops.src_chunk[sources]
    return {
        "collective": int(Collective[schedule.collective]),
        "dtype": int(DType[layout.dtype]),
        "redop": int(RedOp[redop]),
        "plan_hash": plan_hash(schedule, layout, redop, without),
        "count": layout.count,
        "n_channels": schedule.n_channels,
        "input_bytes": layout.nbytes(Buffer.input, rank),
        "output_bytes": layout.nbytes(Buffer.output, rank),
        "scratch_bytes": layout.nbytes(Buffer.scratch, rank),
        "output_elements": layout.elements(Buffer.output, rank),
        **_fused(schedule, fused),
        "n_ranks_avg": schedule.n_ranks if schedule.collective in collectives.REDUCING else 1,
        **_alias(schedule, layout, rank),
        "op_id": mine.astype(np.int32),
        "kind": ops.kind[mine],
        "channel": channel,
        "peer": peer,
        "sig_channel": ops.sig_channel[mine],
        "value": ops.value[mine].astype(np.int64),
        "step": ops.step[mine],
        "dst_buf": ops.dst_buf[mine],
        "dst_offset": (layout.offset(ops.dst_buf[mine], target, ops.dst_chunk[mine]) * item).astype(
            np.uint64
        ),
        "nbytes": layout.span_bytes()[mine].astype(np.uint64),
        "src_begin": begins[:-1].astype(np.int32),
        "src_count": counts.astype(np.int32),
        "nic": nic,
        "peer_nic": peer_nic,
        "arg": ops.arg[mine],
        "src_rank": src_rank,
        "src_buf": src_buf,
        "src_offset": (layout.offset(src_buf, src_rank, src_chunk) * item).astype(np.uint64),
        **_ready(schedule, rank, topology),
    }


def fusible(schedule: Schedule, topology: Topology) -> bool:
    """True where the node layer may run the schedule as one collective; the same on all ranks."""
    alike = schedule.algorithm in FUSED and schedule.collective != "all_to_allv"  # whose blocks differ in size
    alike = alike and not (schedule.ops.kind == Kind.compute).any()
    return alike and bool((topology.node_of == topology.node_of[0]).all())


def _fused(schedule: Schedule, fused: bool) -> dict[str, Any]:
    """What the node layer needs, and which op of the schedule each rank's share of the work stands for."""
    ops = schedule.ops
    work = np.flatnonzero(np.isin(ops.kind, (Kind.reduce, Kind.copy, Kind.put, Kind.get)))[::-1]
    share_ops = np.full(schedule.n_ranks, -1, np.int32)
    share_ops[ops.rank[work]] = work  # reversed: the first op of each rank stays
    return {
        "fused": int(fused),
        "root": schedule.root,
        "receiver": schedule.peer,
        "share_ops": share_ops,
    }


def _alias(schedule: Schedule, layout: Layout, rank: int) -> dict[str, int]:
    shared = collectives.alias(schedule.collective, rank, schedule.root) if schedule.in_place else None
    if not shared:
        return {"alias": ALIAS_NONE, "alias_offset": 0}
    alias, base, block = shared
    offset = int(layout.offset(base, rank, block * layout.parts)) * layout.itemsize
    return {
        "alias": ALIAS_INPUT_IN_OUTPUT if alias == Buffer.input else ALIAS_OUTPUT_IN_INPUT,
        "alias_offset": offset,
    }


def nics_of(
    topology: Topology, rank: int, peer: np.ndarray, channel: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(NIC of `rank`, NIC of `peer`) that carry each op of `channel`: u16; zeros where a node has no NICs."""
    if topology.nics_per_node == 0:
        return np.zeros(len(channel), np.uint16), np.zeros(len(channel), np.uint16)
    own = topology.nic_of(np.full(len(channel), rank), channel)
    return own.astype(np.uint16), topology.nic_of(peer, channel).astype(np.uint16)


def _ready(schedule: Schedule, rank: int, topology: Topology) -> dict[str, np.ndarray]:
    """Peers that access this rank's memory or counters, with the NICs of the first op that does."""
    ops = schedule.ops
    incoming = (ops.peer == rank) & (ops.rank != rank) & np.isin(ops.kind, (Kind.put, Kind.get, Kind.signal))
    reader = np.repeat(ops.rank, ops.src_count) if len(ops.src_rank) else np.zeros(0, np.int32)
    reads = (ops.src_rank == rank) & (reader != rank)
    peers = np.concatenate([ops.rank[incoming], reader[reads]])
    channels = np.concatenate([ops.channel[incoming], np.zeros(int(reads.sum()), np.int32)])
    peers, first = np.unique(peers, return_index=True)
    nic, peer_nic = nics_of(topology, rank, peers, channels[first])
    return {"ready_to": peers.astype(np.int32), "ready_nic": nic, "ready_peer_nic": peer_nic}


def links_needed(
    schedule: Schedule, rank: int, topology: Topology, transport: str
) -> list[tuple[int, int, int]]:
    """(peer, NIC of `rank`, NIC of `peer`) of every connection `rank` uses in this schedule, in either direction."""
    ops = schedule.ops
    moves = np.isin(ops.kind, (Kind.put, Kind.get, Kind.signal)) & (ops.peer >= 0) & (ops.peer != ops.rank)
    if transport != "tcp":
        moves &= topology.node_of[ops.rank] != topology.node_of[np.maximum(ops.peer, 0)]
    out = moves & (ops.rank == rank)
    back = moves & (ops.peer == rank)
    peers = np.concatenate([ops.peer[out], ops.rank[back]])
    channels = np.concatenate([ops.channel[out], ops.channel[back]])
    nic, peer_nic = nics_of(topology, rank, peers, channels)
    return sorted(set(zip(peers.tolist(), nic.tolist(), peer_nic.tolist(), strict=True)))
