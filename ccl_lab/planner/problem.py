"""What is to be planned: a collective, where it runs, and how large the message is.

Is: a checked, frozen value that every algorithm and every cost formula takes. Is not: a choice of algorithm.
Invariants: all fields are consistent (root and peer are ranks, names are known); `n` ranks, `nbytes` bytes as nccl-tests
count a message, `count` elements per block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..arguments import as_array, flag, shown, whole
from ..errors import ShapeError, UsageError
from ..ir import Builder, collectives
from ..topo import Topology
from ..units import Size, parse_size

# Below this a slice is not worth a channel of its own: the fixed cost of an op is larger than what the slice saves.
MIN_SLICE_BYTES = 4096


@dataclass(frozen=True, eq=False)
class Problem:
    """A collective on a topology; `channels` is None where the algorithm decides, `counts` int64[n, n] for all_to_allv.

    `mapped`: ranks of a node can read each other's memory in place. `overlaps`: a rank adds while its NICs move other bytes; False where
    the core that adds is what moves them. `make` is what algorithms write to: a Builder, or what takes its calls.
    """

    collective: str
    topology: Topology
    nbytes: int
    dtype: str = "float32"
    redop: str = "sum"
    in_place: bool = False
    root: int = 0
    peer: int = -1
    channels: int | None = None
    counts: np.ndarray | None = None
    mapped: bool = True
    overlaps: bool = True
    make: Callable[..., Builder] = Builder

    @property
    def n(self) -> int:
        """Ranks."""
        return self.topology.n_ranks

    @cached_property
    def count(self) -> int:
        """Elements per block."""
        return self.nbytes // collectives.itemsize(self.dtype) // collectives.message_blocks(self.collective, self.n)

    @cached_property
    def block_bytes(self) -> int:
        """Bytes of a block; of all_to_allv the mean block."""
        if self.counts is not None:
            return int(self.counts.mean() * collectives.itemsize(self.dtype))
        return self.count * collectives.itemsize(self.dtype)

    @cached_property
    def grid(self) -> np.ndarray | None:
        """int64[nodes, ranks per node]: ranks by (node, local index); None where nodes differ in size."""
        sizes = self.topology.ranks_per_node
        if (sizes != sizes[0]).any():
            return None
        return self.topology.by_node(self.topology.local_of).reshape(self.topology.n_nodes, -1)

    def slices(self, wanted: int, nbytes: float) -> int:
        """Channels to use: what the caller asked for, else `wanted`, fewer where `nbytes` over them would be tiny."""
        if self.channels is not None:
            return self.channels
        while wanted > 1 and nbytes / wanted < MIN_SLICE_BYTES:
            wanted //= 2
        return max(wanted, 1)

    @property
    def nics_per_rank(self) -> int:
        """NICs that a rank has to itself, at least 1; 1 on a single node."""
        topology = self.topology
        return max(1, topology.nics_per_node // topology.gpus_per_node) if topology.n_nodes > 1 else 1

    def builder(self, algorithm: str, **options: Any) -> Builder:
        """A Builder for this problem; `options`: channels, parts, scratch_blocks, scratch_pairs."""
        return self.make(self.collective, self.n, algorithm=algorithm, in_place=self.in_place, root=self.root, peer=self.peer,
                         counts=self.counts, **options)


def make_problem(collective: str, topology: Topology | int, nbytes: Size, *, dtype: str, redop: str, in_place: bool, root: int,
                 peer: int, channels: int | None, counts: Any, mapped: bool = True, overlaps: bool = True) -> Problem:
    """Checks what the user gave. Raises UsageError, ShapeError or DtypeError naming the argument."""
    collectives.check_names(collective, dtype, redop)
    where = _topology(topology)
    n = where.n_ranks
    peer = peer if collective == "send_recv" else -1
    root = whole(root, "root", 0, n - 1)
    if collective == "send_recv":
        peer = whole(peer, "peer", 0, n - 1)
    if channels is not None:
        channels = whole(channels, "channels", 1, 1024)
    size = parse_size(nbytes)
    if counts is not None and collective != "all_to_allv":
        raise UsageError(f"counts given for {collective}: only all_to_allv has a size per pair.")
    if collective == "all_to_allv":
        counts = _counts(counts, n, size // collectives.itemsize(dtype) // n, in_place)
        size = int(counts.sum()) * collectives.itemsize(dtype) // n
    return Problem(collective, where, size, dtype, redop, flag(in_place, "in_place"), root, peer, channels, counts,
                   bool(mapped), bool(overlaps))


def _topology(topology: Topology | int) -> Topology:
    if isinstance(topology, Topology):
        return topology
    try:
        ranks = whole(topology, "topology", 1)
    except UsageError:
        raise UsageError(f"topology {shown(topology)}: expected a Topology, or a number of ranks (1 or more) on one node.") from None
    return Topology.cluster(nodes=1, gpus_per_node=ranks, nics_per_node=0, name=f"{ranks} ranks")


def _counts(counts: Any, n: int, count: int, in_place: bool) -> np.ndarray:
    if counts is None:
        return np.full((n, n), count, np.int64)
    found = as_array(counts)
    if found.shape != (n, n) or not np.issubdtype(found.dtype, np.integer) or (found.size and found.min() < 0):
        raise ShapeError(f"counts: expected whole numbers, 0 or more, of shape [{n}, {n}] (elements from rank i to rank j), "
                         f"found {found.dtype} of shape {list(found.shape)}.")
    if in_place and not np.array_equal(found, found.T):
        raise ShapeError("counts of all_to_allv in place: expected a symmetric matrix, since what is received takes the place of "
                         "what was sent; use separate buffers.")
    return found.astype(np.int64)
