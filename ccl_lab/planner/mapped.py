"""What schedules on memory that all ranks of a node share have in common: shares, slices, and the end of reading.

    message     share of rank 0 │ share of rank 1 │ …      all_reduce, reduce, broadcast
    share       channel 0 │ channel 1 │ …                  each cut in `depth` slices

Is: who works on which chunk. Is not: an algorithm. Invariants: a rank's share is read by that rank alone, wherever it
lies, before the rank itself overwrites it: so buffers may be aliased in place without any other order. A rank whose memory is
read waits, before it ends, for a signal of every reader.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..ir import Builder, Ref
from .cost import slice_depth
from .problem import Problem
from .runs import everyone


def unshared(problem: Problem) -> str:
    """Why ranks cannot read each other's memory in place; empty where they can."""
    topology = problem.topology
    if topology.n_nodes > 1:
        return f"ranks are on {topology.n_nodes} nodes, and memory is read in place only inside one"
    if topology.device != "cpu":
        return f"each rank has memory of its own (device {topology.device!r}); memory is read in place only where ranks share it"
    return "" if problem.mapped else "the transport keeps ranks from reading each other's memory in place"


class Shares(NamedTuple):
    """One row per (channel, rank): int64[channels * ranks]; `depth` slices of each row's share."""

    rank: np.ndarray
    channel: np.ndarray
    channels: int
    depth: int

    def chunk(self, owner: np.ndarray, i: int) -> np.ndarray:
        """Slice i of the share of `owner` in a message cut in one share for each rank, on the row's channel."""
        return (owner * self.channels + self.channel) * self.depth + i

    def part(self, i: int) -> np.ndarray:
        """Slice i of a block, on the row's channel, where each rank's share is a whole block."""
        return self.channel * self.depth + i


def shares(problem: Problem, share_bytes: float) -> Shares:
    """Everyone on every channel: one channel unless asked for, since a rank's ops run one after the other."""
    channels = problem.slices(1, share_bytes)
    rank, channel = everyone(problem.n, channels)
    return Shares(rank, channel, channels, slice_depth(problem, share_bytes / channels))


def everywhere(ref: Ref, n: int) -> list[Ref]:
    """The same chunks in the memory of ranks 0 … n-1, in that order: every rank computes bitwise the same sum of floats."""
    return [ref.at(rank) for rank in range(n)]


def put_to_all(b: Builder, at: Shares, n: int, src: Ref, dst: Ref, i: int) -> None:
    """Each row puts slice i to every peer; the last slice raises the signal for all of them."""
    for distance in range(1, n):
        b.put(rank=at.rank, peer=(at.rank + distance) % n, src=src, dst=dst, channel=at.channel, signal=i == at.depth - 1)


def wait_for_all(b: Builder, at: Shares, n: int) -> None:
    """Each row waits for a signal of every peer."""
    for distance in range(1, n):
        b.wait(rank=at.rank, peer=(at.rank - distance) % n, channel=at.channel)


def end_reading(b: Builder, at: Shares, n: int) -> None:
    """Nobody goes on before all have read: each row tells every peer, and hears it from every peer."""
    for distance in range(1, n):
        b.signal(rank=at.rank, peer=(at.rank + distance) % n, channel=at.channel)
    wait_for_all(b, at, n)
