"""The op table: one row per op, one numpy column per field, row index = op_id.

Is: plain columns with fixed dtypes and a CSR table of sources. Is not: the meaning of an op (`interpret`), nor its
correctness (`verifier`). Invariants: all columns of a table have equal length; every kind is a Kind; sources lie in the
order of their ops without gaps (`src_begin` is the running sum of `src_count`), so that equal schedules have equal bytes;
columns are read-only, so a schedule can be shared and hashed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from ..errors import ScheduleError
from .ops import Buffer, Kind

I32, U8 = np.dtype("<i4"), np.dtype("u1")

OP_COLUMNS = {
    "rank": I32, "channel": I32, "step": I32, "kind": U8, "peer": I32, "sig_channel": I32, "value": I32,
    "dst_buf": U8, "dst_chunk": I32, "n_chunks": I32, "src_begin": I32, "src_count": I32, "arg": I32,
}  # fmt: skip
SOURCE_COLUMNS = {"src_rank": I32, "src_buf": U8, "src_chunk": I32}


class Op(NamedTuple):
    """One row, for reading and printing; `sources` holds (rank, buffer, chunk)."""

    op_id: int
    rank: int
    channel: int
    step: int
    kind: Kind
    peer: int
    sig_channel: int
    value: int
    dst_buf: int
    dst_chunk: int
    n_chunks: int
    arg: int
    sources: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, eq=False)
class OpTable:
    """Ops of all ranks. `kind`: Kind; `peer`, `sig_channel`: -1 for none; `value`: what a wait waits for.

    A put's destination is at `peer`; every other destination is at `rank`. Each source covers `n_chunks` chunks.

    compute: `arg` is the partition. `value` 1: it produces, its first source is the INPUT range whose contribution it makes (not
    read), further sources are added to it, the sum goes to the destination. `value` 0: no destination, sources are what it reads.
    """

    rank: np.ndarray
    channel: np.ndarray
    step: np.ndarray
    kind: np.ndarray
    peer: np.ndarray
    sig_channel: np.ndarray
    value: np.ndarray
    dst_buf: np.ndarray
    dst_chunk: np.ndarray
    n_chunks: np.ndarray
    src_begin: np.ndarray
    src_count: np.ndarray
    arg: np.ndarray
    src_rank: np.ndarray
    src_buf: np.ndarray
    src_chunk: np.ndarray

    def __post_init__(self) -> None:
        for names in (OP_COLUMNS, SOURCE_COLUMNS):
            lengths = set()
            for name, dtype in names.items():
                column = np.ascontiguousarray(getattr(self, name), dtype=dtype)
                if column.ndim != 1:
                    raise ScheduleError(f"op table column {name!r}: expected one dimension, found {column.ndim}.")
                column = column.view()
                column.flags.writeable = False
                object.__setattr__(self, name, column)
                lengths.add(len(column))
            if len(lengths) > 1:
                raise ScheduleError(f"op table columns differ in length: {sorted(lengths)}; expected one length.")
        ends = self.src_begin.astype(np.int64) + self.src_count
        bad = (self.src_begin < 0) | (self.src_count < 0) | (ends > len(self.src_rank))
        if bad.any():
            op_id = int(np.flatnonzero(bad)[0])
            raise ScheduleError(
                f"op {op_id}: sources [{self.src_begin[op_id]}, {ends[op_id]}) lie outside the source table "
                f"of {len(self.src_rank)} rows.", op_id=op_id)  # fmt: skip
        if len(self.kind) and self.kind.max() >= len(Kind):
            op_id = int(np.argmax(self.kind >= len(Kind)))
            raise ScheduleError(f"op {op_id}: kind {self.kind[op_id]} is none of {', '.join(kind.name for kind in Kind)}.", op_id=op_id)
        self._pack_sources()

    def _pack_sources(self) -> None:
        count = self.src_count.astype(np.int64)
        begin = np.cumsum(count) - count
        if np.array_equal(begin, self.src_begin) and int(count.sum()) == len(self.src_rank):
            return
        rows = np.repeat(self.src_begin - begin, count) + np.arange(int(count.sum()))
        for name, cells in (("src_begin", begin), *((name, getattr(self, name)[rows]) for name in SOURCE_COLUMNS)):
            column = cells.astype({**OP_COLUMNS, **SOURCE_COLUMNS}[name])
            column.flags.writeable = False
            object.__setattr__(self, name, column)

    def __len__(self) -> int:
        return len(self.rank)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpTable) and all(
            np.array_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))  # fmt: skip

    __hash__ = None  # type: ignore[assignment]

    def __getitem__(self, op_id: int) -> Op:
        begin, count = int(self.src_begin[op_id]), int(self.src_count[op_id])
        sources = tuple(
            (int(self.src_rank[s]), int(self.src_buf[s]), int(self.src_chunk[s])) for s in range(begin, begin + count)
        )
        names = [n for n in Op._fields if n not in ("op_id", "kind", "sources")]
        row = {name: int(getattr(self, name)[op_id]) for name in names}
        return Op(op_id=op_id, kind=Kind(int(self.kind[op_id])), sources=sources, **row)

    def __iter__(self) -> Iterator[Op]:
        return (self[op_id] for op_id in range(len(self)))

    def columns(self) -> dict[str, np.ndarray]:
        """All columns by name, op columns first."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def first_source(self) -> np.ndarray:
        """Index of each op's first source in the source table; -1 where it has none."""
        return np.where(self.src_count > 0, self.src_begin, -1)

    def produces(self) -> np.ndarray:
        """Which ops are computations with a destination: bool[n_ops]; their first source is made, not read."""
        return (self.kind == Kind.compute) & (self.value > 0) & (self.src_count > 0)

    def writes(self) -> np.ndarray:
        """Which ops write memory: bool[n_ops]."""
        return (self.src_count > 0) & ((self.kind != Kind.compute) | (self.value > 0))

    def program_order(self) -> np.ndarray:
        """op_ids sorted by (rank, channel, op_id): each channel's program is a contiguous run."""
        return np.lexsort((np.arange(len(self)), self.channel, self.rank))


def describe(op: Op) -> str:
    """One line for errors and hover: `op 12 (rank 1, channel 0, step 2): put output[3] -> rank 2 output[3] +signal`."""
    def ref(rank: int, buf: int, chunk: int) -> str:
        where = "" if rank == op.rank else f"rank {rank} "
        span = str(chunk) if op.n_chunks == 1 else f"{chunk}:{chunk + op.n_chunks}"
        return f"{where}{Buffer(buf).name if buf < len(Buffer) else f'buffer {buf}'}[{span}]"

    head = f"op {op.op_id} (rank {op.rank}, channel {op.channel}, step {op.step}): {op.kind.name}"
    srcs = ", ".join(ref(*source) for source in op.sources)
    if op.kind == Kind.put:
        tail = f" {srcs} -> {ref(op.peer, op.dst_buf, op.dst_chunk)}"
    elif op.kind in (Kind.get, Kind.copy, Kind.reduce):
        tail = f" {srcs} -> {ref(op.rank, op.dst_buf, op.dst_chunk)}"
    elif op.kind == Kind.wait:
        tail = f" signal {op.value} of rank {op.peer} on channel {op.sig_channel}"
    elif op.kind == Kind.compute:
        tail = f" partition {op.arg}"
        if op.value and op.sources:
            tail += f" {' + '.join(ref(*source) for source in op.sources)} -> {ref(op.rank, op.dst_buf, op.dst_chunk)}"
        elif op.sources:
            tail += f" {srcs}"
    else:
        tail = f" rank {op.peer}" if op.peer >= 0 else " all peers"
    if op.sig_channel >= 0 and op.kind in (Kind.put, Kind.signal):
        tail += f" +signal on channel {op.sig_channel}"
    return head + tail
