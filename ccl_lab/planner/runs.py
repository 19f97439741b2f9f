"""Runs of consecutive blocks, for algorithms that move many blocks at once.

With one channel a run is one op; with several, every channel moves its own part of each block, so a run becomes one op per
block. Invariant: `put_run` raises as many signals as `wait_run` with the same counts waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..ir import Builder, Ref
from .problem import Problem


class Everyone(NamedTuple):
    """Rows of (channel, rank), channel by channel: int64[channels * ranks]."""

    rank: np.ndarray
    channel: np.ndarray


def everyone(ranks: int, channels: int) -> Everyone:
    """Ranks 0 … ranks-1 on every channel."""
    return Everyone(np.tile(np.arange(ranks), channels), np.repeat(np.arange(channels), ranks))


def lanes(b: Builder, ranks: int) -> Everyone:
    """Ranks 0 … ranks-1 on every channel of which `b` is told."""
    return everyone(ranks, b.told_channels)


class Run(NamedTuple):
    """`count` blocks from `block` on, in buffer `buf`; each an int or one per row."""

    buf: Any
    block: Any


def _pieces(parts: int, count: np.ndarray) -> list[tuple[np.ndarray, int, np.ndarray]]:
    """(rows, block of the run, blocks taken) for each op of a run."""
    if parts == 1:
        rows = np.flatnonzero(count > 0)
        return [(rows, 0, count[rows])] if len(rows) else []
    most = int(count.max()) if len(count) else 0
    return [(rows, i, np.ones(len(rows), np.int64)) for i in range(most) for rows in [np.flatnonzero(count > i)]]


def _ref(b: Builder, run: Run, rows: np.ndarray, shape: tuple[int, ...], i: int, channel: np.ndarray, taken: np.ndarray) -> Ref:
    block = np.broadcast_to(run.block, shape)[rows] + i
    return Ref(np.broadcast_to(run.buf, shape)[rows], block * b.parts + (channel[rows] if b.parts > 1 else 0), taken)


def put_run(b: Builder, rank: np.ndarray, peer: Any, src: Run, dst: Run, count: Any, channel: np.ndarray) -> None:
    """Each rank puts `count` blocks of `src` to `dst` at its peer; rows with count 0 do nothing."""
    count, peer = np.broadcast_to(count, rank.shape), np.broadcast_to(peer, rank.shape)

    def put(rows: np.ndarray, i: int, taken: np.ndarray) -> None:
        b.put(rank=rank[rows], peer=peer[rows], src=_ref(b, src, rows, rank.shape, i, channel, taken),
              dst=_ref(b, dst, rows, rank.shape, i, channel, taken), channel=channel[rows])

    if b.parts > 1 and count.max(initial=0) > 1:
        b.repeat(count, lambda rows, i: put(rows, i, np.ones(len(rows), np.int64)))
        return
    for rows, i, taken in _pieces(b.parts, count):
        put(rows, i, taken)


def reduce_run(b: Builder, rank: np.ndarray, dst: Run, srcs: Sequence[Run], count: Any, channel: np.ndarray) -> None:
    """Each rank reduces `count` blocks of each source into `dst`."""
    count = np.broadcast_to(count, rank.shape)
    for rows, i, taken in _pieces(b.parts, count):
        b.reduce(rank=rank[rows], dst=_ref(b, dst, rows, rank.shape, i, channel, taken), channel=channel[rows],
                 srcs=[_ref(b, src, rows, rank.shape, i, channel, taken) for src in srcs])


def wait_run(b: Builder, rank: np.ndarray, peer: Any, counts: Sequence[Any], channel: np.ndarray) -> None:
    """Each rank waits for the signals of its peer's runs of `counts` blocks."""
    total = np.zeros(rank.shape, np.int64)
    for count in counts:
        total = total + signals_of(b, np.broadcast_to(count, rank.shape))
    wait_times(b, rank, peer, total, channel)


def signals_of(b: Builder, count: np.ndarray) -> np.ndarray:
    """Signals that a put of a run of `count` blocks raises."""
    return count if b.parts > 1 else count > 0


def wait_times(b: Builder, rank: np.ndarray, peer: Any, total: np.ndarray, channel: np.ndarray) -> None:
    """Each rank waits for `total` signals of its peer; rows with none do nothing."""
    rows = np.flatnonzero(total)
    if len(rows):
        b.wait(rank=rank[rows], peer=np.broadcast_to(peer, rank.shape)[rows], channel=channel[rows], count=total[rows])


def swaps(problem: Problem) -> bool:
    """Whether what partners swap is timed as runs of blocks (simulator/swaps.py, swap_lanes.py): over several nodes."""
    return problem.topology.n_nodes > 1
