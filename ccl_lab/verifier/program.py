"""A schedule in the form the checks walk through: plain lists, one memory location per chunk, threads and counters by number.

Is: the columns that deadlock, races and contributions share, computed once. Is not: checked (bounds comes first).
Invariants: a thread is one (rank, channel); a counter is one (source rank, destination rank, sig_channel); two chunks
have one location exactly if they are the same memory.
"""

from __future__ import annotations

import numpy as np

from ..ir import Buffer, Kind, Schedule, collectives
from .bounds import memory_bases


class Program:
    """Lists indexed by op_id (`thread`, `counter`, `kind`, …) or by thread or counter number."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, ops = schedule, schedule.ops
        self.n_ops = len(ops)
        self._lay_out_memory()
        threads, thread = np.unique(ops.rank.astype(np.int64) * schedule.n_channels + ops.channel, return_inverse=True)
        self.thread: list[int] = thread.tolist()
        self.thread_rank: list[int] = (threads // schedule.n_channels).tolist()
        self.thread_channel: list[int] = (threads % schedule.n_channels).tolist()
        order = np.argsort(thread, kind="stable")
        ends = np.cumsum(np.bincount(thread, minlength=len(threads))) if len(threads) else np.zeros(0, np.int64)
        self.programs: list[list[int]] = [part.tolist() for part in np.split(order, ends[:-1])] if len(threads) else []
        self._number_counters()
        self.kind: list[int] = ops.kind.tolist()
        self.rank: list[int] = ops.rank.tolist()
        self.peer: list[int] = ops.peer.tolist()
        self.value: list[int] = ops.value.tolist()
        self.n_chunks: list[int] = ops.n_chunks.tolist()

    def _lay_out_memory(self) -> None:
        schedule, ops = self.schedule, self.schedule.ops
        self.base = memory_bases(schedule)
        n, parts = schedule.n_ranks, schedule.parts
        shape = collectives.blocks(schedule.collective, n, schedule.root, schedule.peer)
        self.n_locations = (int(shape.sum()) + schedule.scratch_blocks * n) * parts
        self.n_blocks = shape
        owner = np.where(ops.kind == Kind.put, ops.peer, ops.rank)
        writes, produces = ops.writes(), ops.produces()
        dst = np.zeros(len(ops), np.int64)
        dst[writes] = self.base[owner[writes], ops.dst_buf[writes]] + ops.dst_chunk[writes]
        self.dst: list[int] = dst.tolist()
        self.writes: list[bool] = writes.tolist()
        self.touches: list[bool] = (ops.src_count > 0).tolist()
        src = (self.base[ops.src_rank, ops.src_buf] + ops.src_chunk).tolist()
        # What a computation makes is not read.
        begin, count = (ops.src_begin + produces).tolist(), (ops.src_count - produces).tolist()
        self.sources: list[list[int]] = [src[at : at + size] for at, size in zip(begin, count, strict=True)]
        self.makes: dict[int, int] = {op: src[ops.src_begin[op]] for op in np.flatnonzero(produces).tolist()}

    def _number_counters(self) -> None:
        ops, thread = self.schedule.ops, np.array(self.thread, np.int64)
        raises = ((ops.kind == Kind.put) | (ops.kind == Kind.signal)) & (ops.sig_channel >= 0)
        waits = ops.kind == Kind.wait
        keys = np.stack([np.where(waits, ops.peer, ops.rank), np.where(waits, ops.rank, ops.peer), ops.sig_channel], axis=1)
        used = np.flatnonzero(raises | waits)
        self.counter_keys, inverse = np.unique(keys[used], axis=0, return_inverse=True)
        counter = np.full(len(ops), -1, np.int64)
        counter[used] = inverse.ravel()
        self.counter: list[int] = counter.tolist()
        n = len(self.counter_keys)
        self.n_counters, self.n_signals = n, int(raises.sum())
        self.raised = np.bincount(counter[raises], minlength=n)
        self.awaited = np.zeros(n, np.int64)
        np.maximum.at(self.awaited, counter[waits], ops.value[waits])
        self.several_sources: list[bool] = (_distinct(counter[raises], thread[raises], n) > 1).tolist()
        self.several_waiters: list[bool] = (_distinct(counter[waits], thread[waits], n) > 1).tolist()

    def where(self, location: int) -> tuple[int, str]:
        """(rank, "output[3]") of a location; the name of the buffer that owns the memory."""
        sizes = np.concatenate([self.n_blocks, np.full((len(self.n_blocks), 1), self.schedule.scratch_blocks)], axis=1)
        ends = np.cumsum(sizes.ravel()) * self.schedule.parts
        at = int(np.searchsorted(ends, location, side="right"))
        rank, buf = divmod(at, len(Buffer))
        return rank, f"{Buffer(buf).name}[{location - (int(ends[at - 1]) if at else 0)}]"


def _distinct(counter: np.ndarray, thread: np.ndarray, n: int) -> np.ndarray:
    """Number of different threads per counter."""
    pairs = np.unique(np.stack([counter, thread], axis=1), axis=0)
    return np.bincount(pairs[:, 0], minlength=n)
