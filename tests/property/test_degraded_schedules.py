"""Random losses of NICs: every algorithm made for them plans what the verifier proves and what interprets as numpy.

Is not: timing (tests/unit/test_planner_degraded.py). A failure names seed and index.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from ccl_lab.ir import Buffer, collectives, interpret
from ccl_lab.ir.ops import RedOp
from ccl_lab.planner import ALGORITHMS, plan
from ccl_lab.planner.algorithms import DEGRADED
from ccl_lab.topo import Topology
from ccl_lab.verifier import verify

NAMES = [(collective, name) for collective, known in ALGORITHMS.items() for name in known if name in DEGRADED]
CASES = 12


def random_loss(dice: random.Random) -> Topology:
    """2 to 6 nodes, 1 to 8 NICs, equal or unequal nodes; some NICs down or slow, at least one up on each node."""
    nodes, nics = dice.randint(2, 6), dice.choice([1, 2, 3, 4, 8])
    group = dice.choice([1, 1, 2, 3, 4])
    sizes = [group] * nodes
    if group > 1 and dice.random() < 0.2:
        sizes[0], sizes[-1] = group + 1, group - 1
    topology = Topology.cluster(nodes, sizes, nics)
    for node in dice.sample(range(nodes), dice.randint(1, min(3, nodes))):
        down = dice.sample(range(nics), dice.randint(0, nics - 1))
        topology = topology.without(*[(node, nic) for nic in down])
        if dice.random() < 0.3:
            topology = topology.slow(dice.choice([1.5, 2, 4]), nic=(node, dice.randrange(nics)))
    return topology


@pytest.mark.parametrize(("nodes", "group", "nics", "lost"), [
    (3, 2, 4, 1), (4, 2, 8, 4), (4, 3, 3, 1), (5, 4, 4, 2), (4, 1, 8, 3), (6, 1, 4, 1)])
def test_a_mix_of_many_units_is_right(nodes: int, group: int, nics: int, lost: int) -> None:
    """Slow NICs make units many: sums inside nodes come in the order of units, whichever is needed first, as their signals are counted."""
    topology = Topology.cluster(nodes, group, nics, nic_gbits_per_s=4).without(*[(0, nic) for nic in range(lost)])
    schedule = plan("all_reduce", topology, "4MiB", algorithm="mix")
    assert schedule.timetable
    verify(schedule, topology=topology)
    agrees(schedule, 4099, None)


@pytest.mark.parametrize(("collective", "name"), NAMES)
def test_any_loss_is_planned_right(collective: str, name: str, seed: int) -> None:
    for index in range(CASES):
        dice = random.Random(f"{seed} {collective} {name} {index}")
        topology = random_loss(dice)
        n, dtype, in_place = topology.n_ranks, dice.choice(["int32", "float32", "int8"]), dice.random() < 0.5
        redop = dice.choice([op for op in RedOp.__members__ if dtype != "float32" or op not in collectives.BITWISE])
        root = dice.randrange(n)
        counts = None
        if collective == "all_to_allv":
            rng = np.random.default_rng(index)
            counts = rng.integers(0, 9, (n, n))
            counts = np.triu(counts) + np.triu(counts, 1).T if in_place else counts
        schedule = plan(collective, topology, dice.choice([1, 4096, "1MiB", "64MiB"]), algorithm=name, dtype=dtype, redop=redop,
                        in_place=in_place, root=root, peer=(root + 1 + dice.randrange(n - 1)) % n if n > 1 else 0, counts=counts)
        try:
            verify(schedule, topology=topology)
            agrees(schedule, dice.choice([0, 1, 3, 97, 1021]), counts)
        except Exception as error:
            pytest.fail(f"seed {seed}, case {index}, {topology.to_dict()}: {type(error).__name__}: {error}")


def agrees(schedule, count: int, counts: np.ndarray | None) -> None:
    """interpret == numpy, bit by bit: whole numbers, whose sums are exact."""
    layout = schedule.layout(count) if counts is None else schedule.layout(counts=counts)
    rng, dtype = np.random.default_rng(count), collectives.numpy_dtype(schedule.dtype)
    low, high = (-2, 3) if schedule.dtype == "float32" else (0, 100)
    inputs = [rng.integers(low, high, layout.elements(Buffer.input, rank)).astype(dtype) for rank in range(schedule.n_ranks)]
    if schedule.redop == "prod":
        inputs = [np.where(x % 2 == 0, 1, -1).astype(dtype) for x in inputs]
    found = interpret(schedule, [x.copy() for x in inputs], counts=counts)
    goal = collectives.reference(schedule.collective, inputs, redop=schedule.redop, root=schedule.root, peer=schedule.peer, counts=counts)
    for rank, (mine, wanted) in enumerate(zip(found, goal, strict=True)):
        assert mine.tobytes() == wanted.tobytes(), f"rank {rank}"
