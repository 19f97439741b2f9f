"""Proves that every op is well formed: ranks, peers and channels exist, chunk ranges lie inside their buffers, and source
and destination have the same length for every message size.

Is: a few array comparisons over the whole table. Is not: about order or contents. Invariants proved: a source chunk is
the same part of an equally large block as its destination chunk, hence equally long for every count; INPUT is never a
destination, but of the computation that makes the same chunk; an op never overlaps its own source partly; no put or get
goes to its own rank (that is a copy); a computation works on its own rank's memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import BoundsError
from ..ir import Buffer, Kind, Schedule, collectives, describe

if TYPE_CHECKING:
    from ..topo import Topology

MAX_CHANNELS = 4096
# What a proof holds in memory grows with the chunks of all buffers; a foreign file must not ask for more than this.
MAX_CHUNKS = 1 << 27
_NAMES = ("input", "output", "scratch")


def check_bounds(schedule: Schedule) -> int:
    """Number of chunk ranges found in bounds; BoundsError names the first op that is not well formed."""
    _check_facts(schedule)
    _check_cells(schedule)
    return _Ranges(schedule).check()


def check_reach(schedule: Schedule, topology: Topology) -> None:
    """BoundsError if an op reads the memory of a rank on another node, or the topology has other ranks."""
    if topology.n_ranks != schedule.n_ranks:
        raise BoundsError(
            f"the schedule is for {schedule.n_ranks} ranks, the topology has {topology.n_ranks}; plan for this topology."
        )
    ops, op_of = schedule.ops, _op_of_source(schedule)
    node = np.asarray(topology.node_of)
    far = _reads_memory(schedule)[op_of] & (node[ops.src_rank] != node[ops.rank[op_of]])
    if far.any():
        op_id, peer = int(op_of[np.argmax(far)]), int(ops.src_rank[np.argmax(far)])
        raise _error(
            schedule,
            op_id,
            f"rank {peer} is on node {node[peer]}, this rank on node {node[ops.rank[op_id]]}: copy and reduce reach peers of "
            "the same node only; use put or get.",
        )


def peer_reads(schedule: Schedule) -> frozenset[tuple[int, int]]:
    """(rank, peer) pairs in which a copy or reduce of `rank` reads the peer's memory."""
    ops, op_of = schedule.ops, _op_of_source(schedule)
    rows = _reads_memory(schedule)[op_of] & (ops.src_rank != ops.rank[op_of])
    pairs = np.unique(np.stack([ops.rank[op_of][rows], ops.src_rank[rows]], axis=1), axis=0)
    return frozenset((int(rank), int(peer)) for rank, peer in pairs)


def _reads_memory(schedule: Schedule) -> np.ndarray:
    return (schedule.ops.kind == Kind.copy) | (schedule.ops.kind == Kind.reduce)


def _op_of_source(schedule: Schedule) -> np.ndarray:
    return np.repeat(np.arange(len(schedule.ops)), schedule.ops.src_count)


def _error(schedule: Schedule, op_id: int, what: str) -> BoundsError:
    op = schedule.ops[op_id]
    return BoundsError(f"{describe(op)}: {what}", rank=op.rank, op_id=op_id)


def _check_facts(schedule: Schedule) -> None:
    for name, value, low in (
        ("n_ranks", schedule.n_ranks, 1),
        ("n_channels", schedule.n_channels, 1),
        ("parts", schedule.parts, 1),
        ("scratch_blocks", schedule.scratch_blocks, 0),
    ):
        if value < low:
            raise BoundsError(f"{name} is {value}: expected {low} or more.")
    collectives.check_names(schedule.collective)
    n, pairs = int(schedule.n_ranks), schedule.scratch_pairs
    per_rank = 2 * collectives.message_blocks(schedule.collective, n) + int(schedule.scratch_blocks)
    if n * per_rank * int(schedule.parts) > MAX_CHUNKS:
        raise BoundsError(
            f"{n} ranks with up to {per_rank} blocks of {schedule.parts} parts each are more than {MAX_CHUNKS:,} chunks, "
            "which is what a proof can hold; use fewer parts or scratch blocks."
        )
    for name in ("root", "peer") if schedule.collective == "send_recv" else ("root",):
        if not 0 <= getattr(schedule, name) < n:
            raise BoundsError(f"{name} is {getattr(schedule, name)}: expected a rank from 0 to {n - 1}.")
    if schedule.collective == "all_to_allv" and schedule.scratch_blocks:
        shape = (n, schedule.scratch_blocks, 2)
        if pairs is None or pairs.shape != shape or pairs.min() < 0 or pairs.max() >= n:
            raise BoundsError(
                f"scratch_pairs of all_to_allv: expected ranks from 0 to {n - 1} in shape {shape}, found "
                f"{None if pairs is None else pairs.shape}; pass scratch_pairs= to Builder."
            )


def _check_cells(schedule: Schedule) -> None:
    """Ranks, channels, peers, signals, values and numbers of sources."""
    ops, n = schedule.ops, schedule.n_ranks
    is_a = {kind: ops.kind == kind for kind in Kind}
    moves = is_a[Kind.put] | is_a[Kind.get] | is_a[Kind.copy] | is_a[Kind.reduce]
    remote = is_a[Kind.put] | is_a[Kind.get]
    counted = is_a[Kind.signal] | is_a[Kind.wait]
    compute = is_a[Kind.compute]
    one = is_a[Kind.put] | is_a[Kind.get] | is_a[Kind.copy]

    def reject(bad: np.ndarray, what: str) -> None:
        if bad.any():
            raise _error(schedule, int(np.argmax(bad)), what)

    def outside(cells: np.ndarray, low: int, high: int) -> np.ndarray:
        return (cells < low) | (cells >= high)

    reject(outside(ops.rank, 0, n), f"this rank does not exist; expected 0 to {n - 1}.")
    channels = f"expected a channel from 0 to {schedule.n_channels - 1}; pass channels= to Builder."
    reject(outside(ops.channel, 0, schedule.n_channels), f"this channel does not exist; {channels}")
    reject((remote | counted) & outside(ops.peer, 0, n), f"the peer does not exist; expected a rank from 0 to {n - 1}.")
    reject(is_a[Kind.flush] & outside(ops.peer, -1, n), f"the peer does not exist; expected -1 (all) to {n - 1}.")
    reject(remote & (ops.peer == ops.rank), "the peer is this rank itself; use copy.")
    limit = f"expected a signal channel from 0 to {MAX_CHANNELS - 1}"
    reject(counted & outside(ops.sig_channel, 0, MAX_CHANNELS), f"{limit}.")
    reject(is_a[Kind.put] & outside(ops.sig_channel, -1, MAX_CHANNELS), f"{limit}, or -1 for no signal.")
    reject(is_a[Kind.wait] & (ops.value < 1), "waits for no signal; expected a value of 1 or more.")
    reject(compute & (ops.arg < 0), "expected a partition of 0 or more.")
    reject(compute & outside(ops.value, 0, 2), "expected value 0 (reads only) or 1 (makes its first source).")
    reject(compute & (ops.value == 1) & (ops.src_count < 1), "makes nothing; expected the INPUT chunks it makes as first source.")
    reject(one & (ops.src_count != 1), "expected exactly one source.")
    reject(is_a[Kind.reduce] & (ops.src_count < 1), "expected one source or more.")
    reject(~moves & ~compute & (ops.src_count != 0), "this kind of op has no sources; expected none.")
    reject(compute & (ops.src_count > 0) & (ops.n_chunks < 1), "works on no chunk; expected 1 or more.")
    reject(moves & (ops.n_chunks < 1), "moves no chunk; expected 1 or more.")


class _Ranges:
    """Chunk ranges of the ops that move bytes, as columns."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, ops = schedule, schedule.ops
        n, self.parts = schedule.n_ranks, schedule.parts
        shape = collectives.blocks(schedule.collective, n, schedule.root, schedule.peer)
        self.chunks = np.concatenate([shape, np.full((n, 1), schedule.scratch_blocks)], axis=1) * self.parts
        self.moves = ops.writes()
        self.owner = np.where(ops.kind == Kind.put, ops.peer, ops.rank)
        self.op_of = _op_of_source(schedule)

    def check(self) -> int:
        """Ranges seen; BoundsError for the first that is wrong."""
        ops, moves, op_of = self.schedule.ops, self.moves, self.op_of
        written = np.flatnonzero(moves)
        self._inside("destination", written, self.owner[moves], ops.dst_buf[moves], ops.dst_chunk[moves])
        self._input_is_kept()
        ranks = ops.src_rank
        bad = (ranks < 0) | (ranks >= self.schedule.n_ranks)
        bad |= np.isin(ops.kind[op_of], (Kind.put, Kind.compute)) & (ranks != ops.rank[op_of])
        bad |= (ops.kind[op_of] == Kind.get) & (ranks != ops.peer[op_of])
        if bad.any():
            raise _error(
                self.schedule,
                int(op_of[np.argmax(bad)]),
                f"a source is at rank {ranks[np.argmax(bad)]}; expected an existing rank (put, compute: this rank; get: the peer).",
            )
        self._inside("source", op_of, ranks, ops.src_buf, ops.src_chunk)
        self._same_length()
        self._no_partial_overlap()
        return len(written) + len(op_of)

    def _input_is_kept(self) -> None:
        ops = self.schedule.ops
        first = np.minimum(ops.src_begin, max(len(ops.src_rank) - 1, 0))
        makes = ops.produces()
        if makes.any():
            wrong = makes & (ops.src_buf[first] != Buffer.input)
            if wrong.any():
                raise _error(self.schedule, int(np.argmax(wrong)), "makes what is no input; expected INPUT chunks as first source.")
            makes &= ops.src_chunk[first] == ops.dst_chunk
        written = self.moves & (ops.dst_buf == Buffer.input) & ~makes
        if written.any():
            op_id = int(np.argmax(written))
            advice = "a computation writes the chunk it makes, " if ops.kind[op_id] == Kind.compute else ""
            raise _error(self.schedule, op_id, f"writes input, which is read-only; {advice}write output or scratch.")

    def _inside(self, what: str, op_ids: np.ndarray, rank: np.ndarray, buf: np.ndarray, chunk: np.ndarray) -> None:
        known = buf < len(Buffer)
        limit = np.where(known, self.chunks[rank, np.minimum(buf, len(Buffer) - 1)], 0)
        end = chunk.astype(np.int64) + self.schedule.ops.n_chunks[op_ids]
        bad = ~known | (chunk < 0) | (end > limit)
        if bad.any():
            i = int(np.argmax(bad))
            name = _NAMES[buf[i]] if known[i] else f"buffer {buf[i]}, which does not exist,"
            raise _error(
                self.schedule,
                int(op_ids[i]),
                f"{what} chunks [{chunk[i]}, {end[i]}) of {name} at rank {rank[i]} lie outside its {limit[i]} chunks "
                f"({limit[i] // self.parts} blocks of {self.parts} parts).",
            )

    def _same_length(self) -> None:
        ops, op_of = self.schedule.ops, self.op_of
        shift = (ops.src_chunk.astype(np.int64) - ops.dst_chunk[op_of]) % self.parts * self.moves[op_of]
        if shift.any():
            i = int(np.argmax(shift != 0))
            raise _error(
                self.schedule,
                int(op_of[i]),
                f"source chunk {ops.src_chunk[i]} is part {ops.src_chunk[i] % self.parts} of its block, destination chunk "
                f"{ops.dst_chunk[op_of[i]]} part {ops.dst_chunk[op_of[i]] % self.parts}: they differ in length for some "
                "message sizes; move a part to the same part of another block.",
            )
        if self.schedule.collective == "all_to_allv":
            self._same_pairs()

    def _same_pairs(self) -> None:
        """all_to_allv: a block is as long as counts[s, d] of its pair, so pairs must agree block by block."""
        ops = self.schedule.ops
        written = self.moves[self.op_of]
        op_of, src_rank, src_buf, src_chunk = (cells[written] for cells in (self.op_of, ops.src_rank, ops.src_buf, ops.src_chunk))
        n_chunks = ops.n_chunks[op_of].astype(np.int64)
        last = ops.dst_chunk[op_of] + n_chunks - 1
        n_blocks = last // self.parts - ops.dst_chunk[op_of] // self.parts + 1
        row = np.repeat(np.arange(len(op_of)), n_blocks)
        step = np.arange(len(row)) - np.repeat(np.cumsum(n_blocks) - n_blocks, n_blocks)
        op_ids = op_of[row]
        dst = self._pairs(self.owner[op_ids], ops.dst_buf[op_ids], ops.dst_chunk[op_ids] // self.parts + step)
        src = self._pairs(src_rank[row], src_buf[row], src_chunk[row] // self.parts + step)
        bad = (dst != src).any(axis=1)
        if bad.any():
            i = int(np.argmax(bad))
            raise _error(
                self.schedule,
                int(op_ids[i]),
                f"the source block is as long as rank {src[i, 0]} sends to rank {src[i, 1]}, the destination block as rank "
                f"{dst[i, 0]} sends to rank {dst[i, 1]}: they differ in length for some counts.",
            )

    def _pairs(self, rank: np.ndarray, buf: np.ndarray, block: np.ndarray) -> np.ndarray:
        pair = np.stack([rank, block], axis=1).astype(np.int64)
        pair[buf == Buffer.output] = pair[buf == Buffer.output][:, ::-1]
        scratch = buf == Buffer.scratch
        if scratch.any():
            pair[scratch] = self.schedule.scratch_pairs[rank[scratch], block[scratch]]  # type: ignore[index]
        return np.sort(pair, axis=1) if self.schedule.in_place else pair

    def _no_partial_overlap(self) -> None:
        ops, op_of, parts = self.schedule.ops, self.op_of, self.parts
        base = memory_bases(self.schedule)
        n_chunks = ops.n_chunks[op_of]
        dst = base[self.owner[op_of], ops.dst_buf[op_of]] + ops.dst_chunk[op_of]
        src = base[ops.src_rank, ops.src_buf] + ops.src_chunk
        bad = (dst != src) & (np.abs(dst - src) < n_chunks) & self.moves[op_of]
        if bad.any():
            i = int(op_of[np.argmax(bad)])
            raise _error(self.schedule, i, f"source and destination overlap partly (parts of a block: {parts}).")


def memory_bases(schedule: Schedule) -> np.ndarray:
    """Where each buffer of each rank begins when all memory is laid out chunk after chunk, aliases sharing theirs.

    int64[n_ranks, 3]; chunk c of buffer b at rank r is location base[r, b] + c.
    """
    n, parts = schedule.n_ranks, schedule.parts
    shape = collectives.blocks(schedule.collective, n, schedule.root, schedule.peer)
    sizes = np.concatenate([shape, np.full((n, 1), schedule.scratch_blocks)], axis=1) * parts
    base = np.concatenate([[0], np.cumsum(sizes.ravel())[:-1]]).reshape(n, len(Buffer))
    if schedule.in_place:
        for rank in range(n):
            shared = collectives.alias(schedule.collective, rank, schedule.root)
            if shared:
                base[rank, shared[0]] = base[rank, shared[1]] + shared[2] * parts
    return base
