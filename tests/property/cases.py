"""Random cases: (collective, ranks, topology, algorithm, type, reduction, size, in place, root), and their data.

Is: a pure function of (seed, index), so that any case can be had again. Is not: a test. Sums and products of the floats
are exact in any order, so that results can be compared bit by bit.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from ccl_lab import Topology, plan
from ccl_lab.errors import UsageError
from ccl_lab.ir import Buffer, Collective, DType, Layout, RedOp, Schedule, collectives
from ccl_lab.planner import ALGORITHMS

PLANNED = tuple(name for name in Collective.__members__ if ALGORITHMS.get(name))
MAX_RANKS = 33


@dataclass(frozen=True)
class Case:
    """One random problem; `planned_nbytes` and `count` differ, since one schedule serves every size."""

    index: int
    collective: str
    gpus_per_node: tuple[int, ...]
    nics_per_node: int
    algorithm: str
    dtype: str
    redop: str
    planned_nbytes: int
    count: int
    in_place: bool
    root: int
    peer: int
    channels: int | None

    @property
    def n_ranks(self) -> int:
        return sum(self.gpus_per_node)

    def topology(self) -> Topology:
        sizes = self.gpus_per_node
        return Topology.cluster(nodes=len(sizes), gpus_per_node=list(sizes), nics_per_node=self.nics_per_node)

    def counts(self, seed: int) -> np.ndarray | None:
        """int64[n, n] of all_to_allv with empty and odd blocks, symmetric in place; None otherwise."""
        if self.collective != "all_to_allv":
            return None
        rng = np.random.default_rng((seed, self.index))
        counts = rng.integers(0, self.count + 2, (self.n_ranks, self.n_ranks)) * (rng.random((self.n_ranks, self.n_ranks)) < 0.8)
        return np.triu(counts) + np.triu(counts, 1).T if self.in_place else counts

    def schedule(self, seed: int) -> Schedule:
        """The plan; where the algorithm does not fit the topology, what `auto` chooses."""
        options = {"dtype": self.dtype, "redop": self.redop, "in_place": self.in_place, "root": self.root, "peer": self.peer,
                   "channels": self.channels, "counts": self.counts(seed)}
        try:
            return plan(self.collective, self.topology(), self.planned_nbytes, algorithm=self.algorithm, **options)
        except UsageError as error:
            if "does not fit" not in str(error):
                raise
            return plan(self.collective, self.topology(), self.planned_nbytes, **options)

    def inputs(self, seed: int, layout: Layout) -> list[np.ndarray]:
        rng = np.random.default_rng((seed, self.index, 1))
        dtype = collectives.numpy_dtype(self.dtype)
        sizes = [layout.elements(Buffer.input, rank) for rank in range(self.n_ranks)]
        if self.dtype not in collectives.FLOATS:
            limits = np.iinfo(dtype)
            return [rng.integers(limits.min, limits.max, size, dtype=dtype, endpoint=True) for size in sizes]
        values = [-1, 1] if self.redop == "prod" else [-2, -1, 0, 1, 2]
        return [rng.choice(values, size).astype(dtype) for size in sizes]


def make_case(seed: int, index: int) -> Case:
    """Case `index` of `seed`."""
    dice = random.Random(seed * 1_000_003 + index)
    collective = PLANNED[index % len(PLANNED)]
    n = dice.randint(1, 9) if dice.random() < 0.85 else dice.randint(10, MAX_RANKS)
    nodes = dice.choice([d for d in range(1, n + 1) if n % d == 0])
    sizes = [n // nodes] * nodes
    if nodes > 1 and sizes[0] > 1 and dice.random() < 0.2:
        sizes[0], sizes[-1] = sizes[0] + 1, sizes[-1] - 1
    dtype = dice.choice(list(DType.__members__))
    redops = [op for op in RedOp.__members__ if dtype not in collectives.FLOATS or op not in collectives.BITWISE]
    return Case(
        index=index, collective=collective, gpus_per_node=tuple(sizes), nics_per_node=dice.choice([1, 1, 2, 4]),
        algorithm=dice.choice([*ALGORITHMS[collective], "auto"]), dtype=dtype, redop=dice.choice(redops),
        planned_nbytes=dice.choice([0, 1, 4096, 999_999, 1 << 20, 64 << 20]),
        count=dice.choice([0, 1, 2, 3, 7, 13, 64, 257]), in_place=dice.random() < 0.5,
        root=dice.randrange(n), peer=dice.randrange(n), channels=dice.choice([None, None, 1, 2, 3]),
    )  # fmt: skip
