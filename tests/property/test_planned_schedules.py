"""Every algorithm over every small number of ranks: `interpret` gives what numpy gives.

Is: the systematic half of the property tests (test_properties.py draws at random). Is not: a proof of ordering (verifier).
Invariant: seeds are the test's own parameters, so a failure names all that is needed to see it again.
"""

from __future__ import annotations

import numpy as np
import pytest

from ccl_lab.errors import UsageError
from ccl_lab.ir import Buffer, Schedule, collectives, interpret
from ccl_lab.ir.ops import DType, RedOp
from ccl_lab.planner import ALGORITHMS, plan
from ccl_lab.topo import Topology
from ccl_lab.verifier import verify

NAMES = [(collective, name) for collective, known in ALGORITHMS.items() for name in known]
SIZES = [*range(1, 18), 32, 33]
COUNTS = (0, 1, 2, 7, 64, 1021)
CLUSTERS = [
    Topology.cluster(2, 4, 4), Topology.cluster(3, 2, 4), Topology.cluster(4, 4, 2), Topology.cluster(3, [1, 2, 3], 2),
    Topology.cluster(3, 1, 2), Topology.cluster(2, 3, 3), Topology.cluster(5, 2, 1),
    Topology.cluster(2, 3, 2).replace(node_of=[0, 1, 0, 1, 0, 1]), Topology.cluster(1, 8, 2), Topology.cluster(1, 5, 0),
]  # fmt: skip


def planned(collective: str, name: str, topology: Topology | int, **options) -> Schedule | None:
    """The plan, or None where the algorithm does not fit the topology."""
    try:
        return plan(collective, topology, algorithm=name, **options)
    except UsageError as error:
        assert "does not fit" in str(error)
        return None


def agrees(schedule: Schedule, count: int, seed: int, counts: np.ndarray | None = None) -> None:
    """interpret == numpy, bit by bit; floats are small whole numbers, so that any order of adding is exact."""
    rng = np.random.default_rng(seed)
    layout = schedule.layout(count) if counts is None else schedule.layout(counts=counts)
    dtype = collectives.numpy_dtype(schedule.dtype)
    low, high = (-2, 3) if schedule.dtype in collectives.FLOATS else (0, 100)
    sizes = [layout.elements(Buffer.input, rank) for rank in range(schedule.n_ranks)]
    inputs = [rng.integers(low, high, size).astype(dtype) for size in sizes]
    if schedule.redop == "prod":
        inputs = [np.sign(x) for x in inputs]
    if schedule.collective == "all_to_allv" and counts is None:
        counts = np.full((schedule.n_ranks,) * 2, count)
    found = interpret(schedule, [x.copy() for x in inputs], counts=counts)
    goal = collectives.reference(schedule.collective, inputs, redop=schedule.redop, root=schedule.root, peer=schedule.peer, counts=counts)
    for rank in range(schedule.n_ranks):
        assert found[rank].dtype == goal[rank].dtype
        assert found[rank].tobytes() == goal[rank].tobytes(), f"rank {rank}, count {count}: {found[rank]} != {goal[rank]}"


@pytest.mark.parametrize(("collective", "name"), NAMES)
@pytest.mark.parametrize("in_place", [False, True])
def test_any_number_of_ranks_any_root_any_count(collective: str, name: str, in_place: bool) -> None:
    for n in SIZES:
        for root in {0, n // 2, n - 1} if collective in collectives.ROOTED and n < 10 else {n - 1}:
            schedule = planned(collective, name, n, nbytes=4096, dtype="int32", in_place=in_place, root=root, peer=(root + 1) % n)
            for count in COUNTS if n < 9 else COUNTS[n % 6 :][:1] if n < 18 else COUNTS[3:4]:
                if schedule:
                    agrees(schedule, count, seed=n)


@pytest.mark.parametrize(("collective", "name"), NAMES)
def test_clusters_channels_and_large_plans(collective: str, name: str) -> None:
    for topology in CLUSTERS:
        n = topology.n_ranks
        for in_place in (False, True):
            for nbytes, channels in [(1000, None), ("1MiB", 3), ("64MiB", None)][: 3 if n == 8 else 2]:
                schedule = planned(collective, name, topology, nbytes=nbytes, channels=channels, dtype="int16", in_place=in_place,
                                   root=n // 2, peer=0)
                if schedule:
                    agrees(schedule, 97, seed=n)
                    verify(schedule)


@pytest.mark.parametrize("name", ALGORITHMS["all_to_allv"])
@pytest.mark.parametrize("in_place", [False, True])
def test_counts_of_their_own_for_every_pair(name: str, in_place: bool) -> None:
    for topology in (*range(1, 10), *CLUSTERS):
        n = topology if isinstance(topology, int) else topology.n_ranks
        rng = np.random.default_rng(n)
        counts = rng.integers(0, 6, (n, n)) * (rng.random((n, n)) < 0.7)
        counts = np.triu(counts) + np.triu(counts, 1).T if in_place else counts
        schedule = planned("all_to_allv", name, topology, dtype="int64", in_place=in_place, counts=counts)
        if schedule:
            agrees(schedule, 0, seed=n, counts=counts)


@pytest.mark.parametrize("dtype", DType.__members__)
def test_every_dtype_and_reduction(dtype: str) -> None:
    for redop in RedOp.__members__:
        if redop in collectives.BITWISE and dtype in collectives.FLOATS:
            continue
        for collective in collectives.REDUCING:
            for name in ALGORITHMS[collective]:
                for n in (3, 4) if redop == "sum" else (3,):
                    agrees(plan(collective, n, 4096, algorithm=name, dtype=dtype, redop=redop), 7, seed=n)


def test_all_ranks_get_the_same_floats() -> None:
    rng = np.random.default_rng(0)
    for topology in (7, 8, CLUSTERS[0]):
        n = topology if isinstance(topology, int) else topology.n_ranks
        inputs = [rng.standard_normal(1000).astype(np.float32) for _ in range(n)]
        for name in ALGORITHMS["all_reduce"]:
            schedule = planned("all_reduce", name, topology, nbytes=4000)
            if schedule is None:
                continue
            outputs = interpret(schedule, [x.copy() for x in inputs])
            assert len({output.tobytes() for output in outputs}) == 1, name
            assert np.allclose(outputs[0], np.sum(inputs, axis=0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("collective", "name"), NAMES)
def test_one_proof_holds_for_every_size(collective: str, name: str) -> None:
    for n in (2, 3, 5, 8):
        for in_place in (False, True):
            schedule = plan(collective, n, "64MiB", algorithm=name, in_place=in_place, root=n - 1, peer=0)
            verify(schedule)
            agrees(schedule.replace(dtype="int32"), 5, seed=n)
