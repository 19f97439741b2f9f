"""Bytes over every NIC, of schedules that may be too large to unroll: who carries most, and how much of the time.

Is: a count. Is not: a time; it knows no order. Invariant: equal to the sums over the ops of the unrolled schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir import Builder, Kind, Outline, Ref, RingLoops, Schedule, collectives
from ..ir.builder import Ints
from ..topo import Topology
from ..units import Size

I64 = npt.NDArray[np.int64]


class _Sums:
    """bytes: i64[2, n_nodes, nics_per_node], sent and received."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.bytes = np.zeros((2, topology.n_nodes, max(topology.nics_per_node, 1)), np.int64)

    def add(self, src: npt.NDArray[Any], dst: npt.NDArray[Any], channel: npt.NDArray[Any], nbytes: npt.NDArray[Any]) -> None:
        """Transfers between ranks; those inside a node pass no NIC."""
        node = self.topology.node_of
        far = node[src] != node[dst]
        for side, rank in enumerate((src, dst)):
            np.add.at(self.bytes[side], (node[rank[far]], self.topology.nic_of(rank[far], channel[far])), nbytes[far])


class _Counter(Builder):
    """Counts what it is told, and keeps nothing of it."""

    def __init__(self, sums: _Sums, count: int, itemsize: int, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._sums, self._count, self._itemsize = sums, count, itemsize

    def _emit(self, kind: Kind, rank: Ints, channel: Ints, *, peer: Ints = -1, sig_channel: Ints = -1, value: Ints = 0,
              dst: Ref | None = None, srcs: Sequence[Ref] = (), arg: Ints = 0, n_chunks: Ints = 0) -> None:  # fmt: skip
        if kind not in (Kind.put, Kind.get) or dst is None:
            return
        cells = np.broadcast_arrays(np.atleast_1d(rank), peer, channel, np.asarray(dst.chunk, np.int64), np.asarray(dst.n, np.int64))
        ranks, peers, channels, first, span = cells
        nbytes = (self._offset(first + span) - self._offset(first)) * self._itemsize
        self._sums.add(*((peers, ranks) if kind == Kind.get else (ranks, peers)), channels, nbytes)

    def _offset(self, chunk: I64) -> I64:
        block, part = np.divmod(chunk, self.parts)
        return block * self._count + part * self._count // self.parts


def nic_bytes(what: Schedule | Outline, topology: Topology, nbytes: Size | None = None, dtype: str | None = None) -> I64:
    """Bytes that each NIC sends and receives, i64[2, n_nodes, nics_per_node].

    Arguments and errors as `simulate`. Cost: that of planning; of rings, a few operations a rank.
    """
    sums = _Sums(topology)
    if isinstance(what, Schedule):
        ops, moved = what.ops, what.layout(nbytes=nbytes, dtype=dtype).op_bytes()
        for kind in (Kind.put, Kind.get):
            at = np.flatnonzero(ops.kind == kind)
            ends = (ops.rank[at], ops.peer[at])
            sums.add(*(ends if kind == Kind.put else ends[::-1]), ops.channel[at], moved[at])
        return sums.bytes
    dtype = dtype or what.dtype
    itemsize = collectives.itemsize(dtype)
    count = 0 if what.collective == "barrier" else what.count_of(what.nbytes if nbytes is None else nbytes, dtype)
    if what.loops is None:
        what.emit(lambda *arguments, **options: _Counter(sums, count, itemsize, *arguments, **options))
    else:
        _rings(sums, what.loops, count, itemsize)
    return sums.bytes


def _rings(sums: _Sums, loops: RingLoops, count: int, itemsize: int) -> None:
    """Every position sends, a slice, `steps` times what is at it: that of the positions before it, one after the other."""
    sizes = (loops.chunk_bytes(count, itemsize) * (loops.slice_of >= 0)[:, :, None, None]).sum(axis=(1, 2))
    for ring, order in enumerate(loops.orders):
        length = len(order)
        each = np.broadcast_to(sizes[ring], (length,))
        before = np.concatenate([[0], np.cumsum(np.tile(each, 2))])
        turns, rest = divmod(loops.steps, length)
        end = length + np.arange(length) + 1
        sent = turns * each.sum() + before[end] - before[end - rest]
        sums.add(order, np.roll(order, -1), np.full(length, loops.channel[ring]), sent)
