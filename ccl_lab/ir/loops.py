"""A schedule as loops: rings on which every rank repeats wait, add, send on, without a row per op.

Is: what the planner's ring algorithms repeat, in a few numbers and one array of ranks; and the outline of a schedule, which can be
unrolled to the op table. Is not: another schedule; `unroll` runs the same algorithm that `plan` runs. Invariant: the loops say of every
op of the unrolled rings its rank, channel, peer and bytes (`programs`; a test compares).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .. import units
from ..errors import Inapplicable, ShapeError
from . import collectives
from .builder import Builder
from .chains import Chains
from .meetings import Meetings
from .node_trees import NodeTrees
from .pairs import Paired, Pairs
from .rails import Rails
from .schedule import Schedule


class RingOp(NamedTuple):
    """One op of a ring: `kind` is "put", "wait", "reduce" or "copy"; `chunk` the first of `n_chunks` in its block, none for a wait."""

    kind: str
    rank: int
    channel: int
    peer: int
    chunk: int
    n_chunks: int


@dataclass(frozen=True, eq=False)
class RingLoops:
    """Rings, all alike but for their ranks and chunks.

    orders: int64[rings, length], the ranks along each; channel: int64[rings]. On each ring, once per slice: every position sends `depth`
    messages, then `steps` times `depth`: waits, adds what arrived (the first `reducing` steps), sends it on (not in the last step). own:
    arrays that it adds to what arrived; several, those of the ranks of its node, it adds up before it sends its first messages, at once.
    What is at position p after step s are `span` chunks from first[ring, slice] + ((p - 1 - s) mod length) * stride + i * span on
    (i-th of `depth`); stride and span: of all rings, or int64[rings]. slice_of: int64[rings, slices]: place of a slice among all, -1 where
    the ring has fewer. copies: a position copies its own message after it sent it. in_node: slices begin and end with work inside the nodes
    (`node_phase`). in_turn: lanes of a rank take its slices in turn, else each ring has a part of every slice; their ops are told slice by
    slice and rank by rank, else ring by ring. timetable: of the schedule; message m of a position, counted over slices, steps and `depth`,
    is waited for, added and sent on at tick max(0, m - depth * (its place in the node) + 1).
    """

    orders: np.ndarray
    channel: np.ndarray
    parts: int
    depth: int
    steps: int
    reducing: int
    first: np.ndarray
    stride: int | np.ndarray
    span: int | np.ndarray
    slice_of: np.ndarray
    own: int = 1
    copies: bool = False
    in_node: bool = False
    in_turn: bool = False
    timetable: bool = False

    def chunk_bytes(self, count: int, itemsize: int) -> np.ndarray:
        """Bytes of every message, of blocks of `count` elements: int64[rings, slices, depth, 1 or length]; 1 where positions are alike."""
        parts, even = self.parts, not np.any(self.stride) or count % self.parts == 0
        place = np.zeros(1, np.int64) if even else np.arange(self.orders.shape[1], dtype=np.int64)
        stride, span = (np.reshape(each, (-1, 1, 1, 1)) for each in (self.stride, self.span))
        begin = (self.first[:, :, None, None] + place * stride + np.arange(self.depth)[:, None] * span).astype(np.int64)
        return ((begin + span) * count // parts - begin * count // parts) * itemsize

    def nominal_bytes(self, count: int, itemsize: int) -> int:
        """Bytes of a message whose parts are all as long as the longest, 0 of a timetable (Layout.nominal_bytes). Raises Inapplicable."""
        if self.timetable:
            return 0
        if not isinstance(self.span, int):
            raise Inapplicable("rings of different shares meet, and have no timetable")
        return self.span * -(-count // self.parts) * itemsize

    def programs(self) -> Iterator[RingOp]:
        """Every op, channel by channel of every rank, in program order: what the loops stand for. Cost: as many as there are ops."""
        rings, length = self.orders.shape
        for ring, position in np.ndindex(rings, length):
            for index in np.flatnonzero(self.slice_of[ring] >= 0):
                yield from self._slice(ring, position, int(self.first[ring, index]))

    def _slice(self, ring: int, position: int, first: int) -> Iterator[RingOp]:
        order, length = self.orders[ring].tolist(), self.orders.shape[1]
        rank, channel = order[position], int(self.channel[ring])
        after, before = order[(position + 1) % length], order[position - 1]
        stride, span = (int(np.broadcast_to(each, len(self.orders))[ring]) for each in (self.stride, self.span))

        def op(kind: str, peer: int, step: int, i: int) -> RingOp:
            return RingOp(kind, rank, channel, peer, first + (position - 1 - step) % length * stride + i * span, span)

        if self.own > 1:
            yield RingOp("reduce", rank, channel, -1, first + position % length * stride, self.depth * span)
        yield from (op("put", after, -1, i) for i in range(self.depth))
        if self.copies:
            yield op("copy", -1, -1, 0)
        for step in range(self.steps):
            for i in range(self.depth):
                yield RingOp("wait", rank, channel, before, 0, 0)
                if step < self.reducing:
                    yield op("reduce", -1, step, i)
                if step + 1 < self.steps:
                    yield op("put", after, step, i)


@dataclass(frozen=True, eq=False)
class Outline:
    """A schedule that is planned but not unrolled; the fields are those of Schedule.

    `emit(builder)` runs the algorithm on what `builder` (a Builder, or what takes its calls) makes; `ops_about`: its rows, within a small
    factor; `told_about`: as many of them as are told, if what comes several times is told once (Builder.repeat). `loops` where the schedule
    is made of rings; `node_phase(owners)` a Schedule of one node, where the ranks of these local indices take part in rings: what happens
    inside it before they begin; `chains` where it is made of chains, `pairs` where every rank puts to every other one,
    `rails` where blocks meet inside nodes first; `paired` where rank r exchanges a block with r xor 1, r xor 2, …;
    `meetings` where lanes meet the nodes that lost NICs; `trees` where it is two trees over nodes; `swaps` where partners swap many
    blocks at every step.
    """

    collective: str
    algorithm: str
    n_ranks: int
    in_place: bool
    nbytes: int
    dtype: str
    redop: str
    reasons: tuple[str, ...]
    emit: Callable[[Callable[..., Builder]], Builder]
    ops_about: int
    told_about: int
    loops: RingLoops | None = None
    node_phase: Callable[[np.ndarray], Schedule] | None = None
    chains: Chains | None = None
    pairs: Pairs | None = None
    rails: Rails | None = None
    paired: Paired | None = None
    meetings: Meetings | None = None
    trees: NodeTrees | None = None
    swaps: bool = False

    @cached_property
    def _unrolled(self) -> Schedule:
        return self.emit(Builder).build(nbytes=self.nbytes, dtype=self.dtype, redop=self.redop, reasons=self.reasons)

    def unroll(self) -> Schedule:
        """The schedule itself, equal to what `plan` returns. Cost: a row per op."""
        return self._unrolled

    def count_of(self, nbytes: units.Size, dtype: str) -> int:
        """Elements per block of a message of `nbytes`, rounded down."""
        if self.collective == "all_to_allv":
            raise ShapeError("all_to_allv has a size for each pair: unroll the schedule and give counts.")
        blocks = collectives.message_blocks(self.collective, self.n_ranks)
        return units.parse_size(nbytes) // (collectives.itemsize(dtype) * blocks)
