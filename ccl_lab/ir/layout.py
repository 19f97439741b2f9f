"""Sizes and places of every chunk for one message size: turns (buffer, rank, chunk) into element offsets.

Is: the only place that knows how a block is cut into parts and how in-place buffers share memory. Is not: memory.
Invariants: part p of a block of c elements begins at floor(p*c/parts); blocks are contiguous, so consecutive chunks are
one contiguous range; offsets are in elements, int64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..arguments import whole, wholes
from ..errors import ShapeError
from . import collectives
from .ops import Buffer, Kind

if TYPE_CHECKING:
    from .schedule import Schedule

MOST_ELEMENTS = 2**53  # of a block; bytes of all blocks of a rank stay below 2^63


def element_offset(chunk: int | np.ndarray, parts: int, count: int) -> np.ndarray:
    """Elements before `chunk` where blocks of `count` elements are cut into `parts`; vectorised over chunk."""
    block, part = np.divmod(np.asarray(chunk, np.int64), parts)
    return np.asarray(block * count + part * count // parts)


class Layout:
    """Layout of `schedule` for `count` elements per block, or for `counts` int64[n, n] of all_to_allv, of `dtype`."""

    def __init__(self, schedule: Schedule, count: int, dtype: str, counts: np.ndarray | None = None) -> None:
        self.schedule, self.count, self.dtype = schedule, whole(count, "count", 0, MOST_ELEMENTS, ShapeError), dtype
        self.itemsize = collectives.itemsize(dtype)
        self.parts, self.n_ranks = schedule.parts, schedule.n_ranks
        n = self.n_ranks
        shape = collectives.blocks(schedule.collective, n, schedule.root, schedule.peer)
        self._blocks = np.concatenate([shape, np.full((n, 1), schedule.scratch_blocks)], axis=1)
        self.counts = None
        if schedule.collective == "all_to_allv":
            self.counts = self._check_counts(counts)
            self._starts = [self._block_starts(buf) for buf in Buffer]

    def _check_counts(self, counts: np.ndarray | None) -> np.ndarray:
        n = self.n_ranks
        counts = wholes(np.full((n, n), self.count) if counts is None else counts, "counts", high=MOST_ELEMENTS)
        if counts.shape != (n, n) or (counts < 0).any():
            raise ShapeError(f"counts of all_to_allv: expected a non-negative int64[{n}, {n}] matrix, found shape {counts.shape}"
                             f"{' with negative entries' if counts.size and counts.min() < 0 else ''}.")  # fmt: skip
        if self.schedule.in_place and not np.array_equal(counts, counts.T):
            raise ShapeError("all_to_allv in place: expected a symmetric counts matrix, since received blocks take the place of sent "
                             "ones; pass separate buffers.")  # fmt: skip
        return counts

    def _block_starts(self, buf: int) -> np.ndarray:
        """Element offsets of the blocks of a buffer on every rank: int64[n, blocks + 1] (all_to_allv only)."""
        assert self.counts is not None
        if buf == Buffer.scratch:
            pairs = self.schedule.scratch_pairs
            sizes = np.zeros((self.n_ranks, 0), np.int64) if pairs is None else self.counts[pairs[:, :, 0], pairs[:, :, 1]]
        else:
            sizes = self.counts if buf == Buffer.input else self.counts.T
        return np.concatenate([np.zeros((self.n_ranks, 1), np.int64), np.cumsum(sizes, axis=1)], axis=1)

    def n_chunks(self, buf: int, rank: int | np.ndarray) -> np.ndarray:
        """Chunks of a buffer on a rank (vectorised over ranks)."""
        return self._blocks[rank, buf] * self.parts

    def offset(self, buf: int | np.ndarray, rank: int | np.ndarray, chunk: int | np.ndarray) -> np.ndarray:
        """Element offset where `chunk` begins; `chunk == n_chunks` gives the end. Vectorised over all three."""
        if self.counts is None:
            return element_offset(chunk, self.parts, self.count)
        block, part = np.divmod(np.asarray(chunk, np.int64), self.parts)
        buf, rank, block, part = np.broadcast_arrays(buf, rank, block, part)
        out = np.zeros(block.shape, np.int64)
        for b in Buffer:
            here = buf == b
            if here.any():
                starts = self._starts[b]
                lo = starts[rank[here], block[here]]
                hi = starts[rank[here], np.minimum(block[here] + 1, starts.shape[1] - 1)]
                out[here] = lo + part[here] * (hi - lo) // self.parts
        return out

    def elements(self, buf: int, rank: int) -> int:
        """Elements of a buffer on a rank."""
        return int(self.offset(buf, rank, self.n_chunks(buf, rank)))

    def nbytes(self, buf: int, rank: int) -> int:
        """Bytes of a buffer on a rank."""
        return self.elements(buf, rank) * self.itemsize

    def message_nbytes(self) -> int:
        """Bytes of the message as nccl-tests count it: the larger buffer of a rank (all_to_allv: mean over ranks)."""
        if self.counts is not None:
            return int(self.counts.sum()) * self.itemsize // self.n_ranks
        return self.count * self.itemsize * collectives.message_blocks(self.schedule.collective, self.n_ranks)

    def resolve(self, buf: int, rank: int, chunk: int) -> tuple[int, int]:
        """(buffer that owns the memory, element offset in it) of a chunk, after in-place aliasing."""
        offset = int(self.offset(buf, rank, chunk))
        shared = collectives.alias(self.schedule.collective, rank, self.schedule.root) if self.schedule.in_place else None
        if shared and buf == shared[0]:
            return shared[1], offset + int(self.offset(shared[1], rank, shared[2] * self.parts))
        return int(buf), offset

    def op_offsets(self) -> np.ndarray:
        """Element offset of each op's destination in its buffer (at the peer for a put): int64[n_ops]."""
        ops = self.schedule.ops
        return self.offset(ops.dst_buf, self.destination_rank(), ops.dst_chunk)

    def destination_rank(self) -> np.ndarray:
        """Rank whose memory each op writes: the peer of a put, the op's own rank otherwise."""
        ops = self.schedule.ops
        return np.where((ops.kind == Kind.put) & (ops.peer >= 0), ops.peer, ops.rank)

    def span_bytes(self) -> np.ndarray:
        """Bytes of each op's destination, of the first source where a computation only reads: int64[n_ops], 0 for the others."""
        ops, spans = self.schedule.ops, self.op_bytes()
        writes = np.flatnonzero(ops.produces())
        reads = np.flatnonzero((ops.kind == Kind.compute) & (ops.src_count > 0) & ~ops.writes())
        first = ops.src_begin[reads]
        places = (
            (writes, ops.dst_buf[writes], ops.rank[writes], ops.dst_chunk[writes]),
            (reads, ops.src_buf[first], ops.src_rank[first], ops.src_chunk[first]),
        )
        for rows, buf, rank, chunk in places:
            ends = self.offset(buf, rank, chunk + ops.n_chunks[rows])
            spans[rows] = (ends - self.offset(buf, rank, chunk)) * self.itemsize
        return spans

    def nominal_bytes(self) -> np.ndarray:
        """Bytes each op would move if all parts were as long as the longest: int64[n_ops]; all_to_allv: `op_bytes`, as blocks differ.

        Parts that a message does not fill evenly differ by an element; by this measure they are equal.
        """
        if self.counts is not None:
            return self.op_bytes()
        ops = self.schedule.ops
        moves = np.isin(ops.kind, (Kind.put, Kind.get, Kind.copy, Kind.reduce))
        return np.where(moves, ops.n_chunks.astype(np.int64), 0) * (-(-self.count // self.parts) * self.itemsize)

    def op_bytes(self) -> np.ndarray:
        """Bytes each op moves (0 for signal, wait, flush, compute): int64[n_ops]."""
        ops = self.schedule.ops
        owner = self.destination_rank()
        ends = self.offset(ops.dst_buf, owner, ops.dst_chunk + ops.n_chunks)
        moves = np.isin(ops.kind, (Kind.put, Kind.get, Kind.copy, Kind.reduce))
        return np.where(moves, ends - self.op_offsets(), 0) * self.itemsize
