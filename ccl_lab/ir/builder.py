"""Builds a schedule with array arithmetic: one call emits one row for every rank given.

Is: the way algorithms are written, here and by users. Is not: a check (the verifier proves what is built).
Invariant: op_ids follow the order of the calls, and inside a call the order of the ranks given.

    r = np.arange(n)
    b = Builder("all_gather", n, algorithm="my_ring")
    b.copy(rank=r, src=b.input[0], dst=b.output[r])
    for s in range(n - 1):
        b.put(rank=r, peer=(r + 1) % n, src=b.output[(r - s) % n], dst=b.output[(r - s) % n])
        b.wait(rank=r, peer=(r - 1) % n)
    schedule = b.build()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..arguments import flag, instance, listed, whole, wholes
from ..errors import ScheduleError, UsageError
from . import collectives
from .ops import Buffer, Kind
from .schedule import Schedule
from .table import OP_COLUMNS, SOURCE_COLUMNS, OpTable

Ints = Any  # an int or an integer array


class Ref(NamedTuple):
    """Chunks [chunk, chunk + n) of a buffer, per rank; `rank` is where the buffer lives (None: at the op's own rank)."""

    buf: int
    chunk: Ints
    n: Ints = 1
    rank: Ints | None = None

    def at(self, rank: Ints) -> Ref:
        """The same chunks in the memory of `rank`, for copies and reductions that read a peer of the same node."""
        return self._replace(rank=rank)


_CHUNKS = "chunks of a buffer, such as b.input[0] or b.output[2:4]"


class _BufferRefs:
    """`b.output[chunks]` or `b.output[lo:hi]`, with ints or arrays."""

    def __init__(self, buf: Buffer) -> None:
        self._buf = buf

    def __getitem__(self, chunks: Ints) -> Ref:
        if isinstance(chunks, slice):
            if chunks.step is not None or chunks.start is None or chunks.stop is None:
                raise UsageError(f"{self._buf.name}[{chunks}]: expected [lo:hi] with both ends and no step.")
            lo, hi = (_cell(f"{self._buf.name}[lo:hi]", end) for end in (chunks.start, chunks.stop))
            return Ref(self._buf, lo, hi - lo)
        return Ref(self._buf, chunks)


def one_by_one(times: np.ndarray, emit: Callable[[np.ndarray, int], None]) -> None:
    """`emit(rows, i)` for i = 0, 1, …, with those rows that come more than i times."""
    for i in range(int(times.max()) if len(times) else 0):
        emit(np.flatnonzero(times > i), i)


class Builder:
    """Collects ops of `collective` among `n_ranks` ranks. Chunk index = block * parts + part.

    `in_place`: INPUT and OUTPUT share memory; copies of memory onto itself are then dropped.
    `scratch_blocks`: blocks of scratch per rank; for all_to_allv `scratch_pairs` int32[n, blocks, 2] says which
    (source, destination) pair sizes each. `timetable`: `step` says when things happen, for links that several want (Schedule).
    Raises UsageError for unknown names and impossible numbers.
    """

    def __init__(
        self,
        collective: str,
        n_ranks: int,
        *,
        algorithm: str,
        channels: int = 1,
        parts: int = 1,
        in_place: bool = False,
        root: int = 0,
        peer: int = -1,
        scratch_blocks: int = 0,
        counts: np.ndarray | None = None,
        scratch_pairs: np.ndarray | None = None,
        timetable: bool = False,
    ) -> None:
        collectives.check_names(collective)
        n_ranks = whole(n_ranks, f"n_ranks of {collective}", 1)
        for what, value in (("root", root), ("peer", peer if collective == "send_recv" else 0)):
            whole(value, f"{what} of {collective}", 0, n_ranks - 1)
        for what, value, low in (("channels", channels, 1), ("parts", parts, 1), ("scratch_blocks", scratch_blocks, 0)):
            whole(value, what, low)
        instance(algorithm, "algorithm", str, "a name")
        in_place = flag(in_place, "in_place")
        self.collective, self.n_ranks, self.algorithm = collective, n_ranks, algorithm
        self.channels, self.parts, self.in_place, self.root, self.peer = channels, parts, in_place, root, peer
        self.scratch_blocks, self.counts, self.scratch_pairs = scratch_blocks, counts, scratch_pairs
        self.timetable = timetable
        # A planner that does the same on all channels, each with its own part of every block, tells that many of them: the first ones.
        self.told_channels = channels
        # Whether waits of ranks that have nothing else to do meanwhile are told at once, long before the signal. Puts keep their order.
        self.early_waits = False
        self.input, self.output, self.scratch = (_BufferRefs(buf) for buf in Buffer)
        self.step = 0
        self._rows: list[dict[str, np.ndarray]] = []
        self._sources: list[list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = []

    def put(
        self,
        *,
        rank: Ints,
        peer: Ints,
        src: Ref,
        dst: Ref,
        channel: Ints = 0,
        signal: bool = True,
        sig_channel: Ints | None = None,
    ) -> None:
        """`rank` writes `src` into `dst` at `peer`; with `signal` the peer can wait for it on `sig_channel`."""
        self._emit(
            Kind.put,
            rank,
            channel,
            peer=peer,
            dst=dst,
            srcs=[src],
            sig_channel=(channel if sig_channel is None else sig_channel) if signal else -1,
        )

    def get(self, *, rank: Ints, peer: Ints, src: Ref, dst: Ref, channel: Ints = 0) -> None:
        """`rank` reads `src` of `peer` into its own `dst`, and goes on when the bytes are here."""
        self._emit(Kind.get, rank, channel, peer=peer, dst=dst, srcs=[_chunks(src, "src").at(peer)])

    def signal(self, *, rank: Ints, peer: Ints, channel: Ints = 0, sig_channel: Ints | None = None) -> None:
        """`rank` raises its counter at `peer`; peer == rank orders two channels of one rank."""
        self._emit(
            Kind.signal, rank, channel, peer=peer, sig_channel=channel if sig_channel is None else sig_channel
        )

    def wait(
        self, *, rank: Ints, peer: Ints, channel: Ints = 0, sig_channel: Ints | None = None, count: Ints = 1
    ) -> None:
        """`rank` waits for the next `count` signals of `peer` on `sig_channel` (default: the channel it waits on)."""
        self._emit(
            Kind.wait,
            rank,
            channel,
            peer=peer,
            sig_channel=channel if sig_channel is None else sig_channel,
            value=count,
        )

    def flush(self, *, rank: Ints, peer: Ints = -1, channel: Ints = 0) -> None:
        """`rank` waits until its earlier puts of this channel to `peer` (-1: to all) have left their source."""
        self._emit(Kind.flush, rank, channel, peer=peer)

    def copy(self, *, rank: Ints, src: Ref, dst: Ref, channel: Ints = 0) -> None:
        """dst = src; rows whose source and destination are the same memory in place are dropped."""
        self._emit(Kind.copy, rank, channel, dst=dst, srcs=[src])

    def reduce(self, *, rank: Ints, dst: Ref, srcs: Sequence[Ref], channel: Ints = 0) -> None:
        """dst = srcs[0] (+) srcs[1] (+) … in that order."""
        self._emit(Kind.reduce, rank, channel, dst=dst, srcs=list(listed(srcs, "srcs", Ref, _CHUNKS)))

    def repeat(self, times: np.ndarray, emit: Callable[[np.ndarray, int], None]) -> None:
        """`emit(rows, i)` for i = 0, 1, …, with those rows that come more than i times.

        Calls of one kind, between the same ranks, that differ in nothing but which chunks they name, each as many; where they raise signals
        these are waited for together. So it is enough to tell one of them, and how often it comes.
        """
        one_by_one(times, emit)

    def rounds(self, times: np.ndarray, emit: Callable[[np.ndarray, int], None]) -> None:
        """As `repeat`, where a round is several calls; where some of them are of fewer rows, rows are ranks 0, 1, …, channel by channel."""
        one_by_one(times, emit)

    def ends(self, rank: Ints, channel: Ints) -> None:
        """Nothing more is told of these channels of ranks: whoever times ops as they are told waits for all that may still come."""

    def compute(
        self,
        *,
        rank: Ints,
        arg: Ints,
        reads: Sequence[Ref] = (),
        produces: Ref | None = None,
        adds: Sequence[Ref] = (),
        dst: Ref | None = None,
        channel: Ints = 0,
    ) -> None:
        """Runs partition `arg` of the user's computation.

        It works on `reads`, or makes what INPUT chunks `produces` contribute: dst = made (+) adds[0] (+) … in that order (default
        dst: those chunks). Neither: it takes time. Where a schedule makes its input, all INPUT is empty until it is made.
        """
        if produces is None:
            if dst is not None or adds:
                raise UsageError("compute: dst and adds need produces=, the INPUT chunks whose contribution is made.")
            spans = {str(ref.n) for ref in reads}
            if len(spans) > 1:
                raise UsageError(f"compute: its reads have {', '.join(sorted(spans))} chunks; expected as many in each.")
            self._emit(Kind.compute, rank, channel, arg=arg, srcs=list(reads), n_chunks=reads[0].n if reads else 0)
            return
        if reads or produces.buf != Buffer.input:
            raise UsageError("compute: produces= names INPUT chunks and goes with adds=, not with reads=.")
        self._emit(Kind.compute, rank, channel, arg=arg, value=1, srcs=[produces, *adds], dst=produces if dst is None else dst)

    def _emit(
        self,
        kind: Kind,
        rank: Ints,
        channel: Ints,
        *,
        peer: Ints = -1,
        sig_channel: Ints = -1,
        value: Ints = 0,
        dst: Ref | None = None,
        srcs: Sequence[Ref] = (),
        arg: Ints = 0,
        n_chunks: Ints = 0,
    ) -> None:
        rank = np.atleast_1d(wholes(rank, f"{kind.name} at step {self.step}: rank", -(2**31), 2**31 - 1).astype(np.int32, copy=False))
        if rank.ndim > 1:
            raise UsageError(f"{kind.name} at step {self.step}: rank has shape {list(rank.shape)}: expected a rank, or a list of them.")
        if dst is not None:
            _chunks(dst, "dst")
        for src in srcs:
            _chunks(src, "src")
        cells: dict[str, Ints] = {
            "rank": rank,
            "channel": channel,
            "step": self.step,
            "kind": int(kind),
            "peer": peer,
            "sig_channel": sig_channel,
            "value": value,
            "arg": arg,
            "dst_buf": dst.buf if dst else 0,
            "dst_chunk": dst.chunk if dst else 0,
            "n_chunks": dst.n if dst else n_chunks,
            "src_count": len(srcs),
        }
        try:
            row = {
                name: np.broadcast_to(_cell(name, cell).astype(OP_COLUMNS[name], copy=False), rank.shape)
                for name, cell in cells.items()
            }
            sources = [
                tuple(
                    np.broadcast_to(_cell("src", cell).astype(np.int32, copy=False), rank.shape)
                    for cell in (rank if ref.rank is None else ref.rank, ref.buf, ref.chunk)
                )
                for ref in srcs
            ]
        except UsageError as error:
            raise UsageError(f"{kind.name} at step {self.step}: {error}") from None
        except ValueError as error:
            raise UsageError(
                f"{kind.name} at step {self.step}: arguments do not fit {len(rank)} ranks ({error})."
            ) from None
        if kind == Kind.copy and self.in_place:
            keep = ~self.same_memory(rank, dst, srcs[0])  # type: ignore[arg-type]
            row = {name: cells[keep] for name, cells in row.items()}
            sources = [tuple(cells[keep] for cells in source) for source in sources]
        self._rows.append(row)
        self._sources.append(sources)

    def same_memory(self, rank: np.ndarray, dst: Ref, src: Ref) -> np.ndarray:
        """Which rows name one piece of memory twice, in place: bool[rows]."""
        ends = [self._base(rank, *np.broadcast_arrays(rank, ref.buf, ref.chunk)[1:]) for ref in (dst, src)]
        near = True if src.rank is None else np.equal(src.rank, rank)
        return np.broadcast_to((ends[0][0] == ends[1][0]) & (ends[0][1] == ends[1][1]) & near, rank.shape)

    def _base(self, rank: np.ndarray, buf: np.ndarray, chunk: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(buffer that owns the memory, chunk in it) of each row."""
        at_root = collectives.alias(self.collective, self.root, self.root)
        elsewhere = collectives.alias(self.collective, (self.root + 1) % self.n_ranks, self.root)
        if at_root is None:
            return buf, chunk
        shared = (buf == at_root[0]) & ((rank == self.root) | (elsewhere is not None))
        # The block where a buffer begins in the other is the rank's own, or the first.
        block = rank if collectives.message_blocks(self.collective, self.n_ranks) > 1 and self.collective not in (
            "all_to_all", "all_to_allv") else np.zeros_like(rank)
        return np.where(shared, at_root[1], buf), np.where(shared, block * self.parts + chunk, chunk)

    def build(
        self, *, nbytes: int = 0, dtype: str = "float32", redop: str = "sum", reasons: Sequence[str] = ()
    ) -> Schedule:
        """The schedule; `nbytes`, `dtype`, `redop` are its defaults for a run."""
        collectives.check_names(self.collective, dtype, redop)
        columns = {
            name: _concatenate([row[name] for row in self._rows], kind)
            for name, kind in OP_COLUMNS.items()
            if name != "src_begin"
        }
        columns["value"] = _running_totals(columns)
        columns |= self._source_table(columns["src_count"])
        if len(columns["channel"]) and (
            columns["channel"].min() < 0 or columns["channel"].max() >= self.channels
        ):
            raise ScheduleError(
                f"channels {columns['channel'].min()}..{columns['channel'].max()} used: expected 0..{self.channels - 1};"
                " pass channels= to Builder."
            )
        return Schedule(
            collective=self.collective,
            algorithm=self.algorithm,
            n_ranks=self.n_ranks,
            n_channels=self.channels,
            parts=self.parts,
            in_place=self.in_place,
            root=self.root,
            peer=self.peer,
            scratch_blocks=self.scratch_blocks,
            scratch_pairs=self.scratch_pairs,
            counts=self.counts,
            timetable=self.timetable,
            ops=OpTable(**columns),
            nbytes=nbytes,
            dtype=dtype,
            redop=redop,
            reasons=listed(reasons, "reasons", str, "texts"),
        )

    def _source_table(self, src_count: np.ndarray) -> dict[str, np.ndarray]:
        begin = np.concatenate([[0], np.cumsum(src_count, dtype=np.int64)])
        table = {name: np.zeros(int(begin[-1]), kind) for name, kind in SOURCE_COLUMNS.items()}
        first = 0
        for row, sources in zip(self._rows, self._sources, strict=True):
            rows = len(row["rank"])
            for i, source in enumerate(sources):
                at = begin[first : first + rows] + i
                for name, cells in zip(SOURCE_COLUMNS, source, strict=True):
                    table[name][at] = cells
            first += rows
        return {"src_begin": begin[:-1], **table}


def _cell(name: str, cell: Any) -> np.ndarray:
    """Whole numbers of 32 bits, which is what ops hold."""
    return wholes(cell, name, -(2**31), 2**31 - 1)


def _chunks(ref: Any, what: str) -> Ref:
    return instance(ref, what, Ref, _CHUNKS)


def _concatenate(cells: list[np.ndarray], dtype: np.dtype[Any]) -> np.ndarray:
    return np.concatenate(cells) if cells else np.zeros(0, dtype)


def _running_totals(columns: dict[str, np.ndarray]) -> np.ndarray:
    """A wait's `value` counts signals from the start of the schedule: running totals per (rank, peer, sig_channel)."""
    value = columns["value"].copy()
    waits = np.flatnonzero(columns["kind"] == Kind.wait)
    if len(waits) == 0:
        return value
    keys = [columns[name][waits] for name in ("sig_channel", "peer", "rank")]
    order = np.lexsort((waits, *keys))
    sums = np.cumsum(value[waits[order]])
    fresh = np.concatenate([[True], np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)])
    before = np.concatenate([[0], sums[:-1]])
    group = np.cumsum(fresh) - 1
    value[waits[order]] = sums - before[fresh][group]
    return value
