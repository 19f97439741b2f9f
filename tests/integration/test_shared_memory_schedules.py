"""Schedules that read peers' memory in place, executed by real processes: bitwise what the interpreter says.

Is: every such algorithm at every size class, in and out of place, with slices; floats that round, so that the order of adding shows.
Is not: the random cases (test_random_runs.py), which draw these algorithms too.
"""

from __future__ import annotations

import numpy as np
import pytest

import ccl_lab as ccl
from ccl_lab.ir import Buffer, collectives
from ccl_lab.planner import ALGORITHMS
from ccl_lab.planner.choose import IN_PLACE

NAMES = [(collective, name) for collective, known in ALGORITHMS.items() for name in known if name in IN_PLACE]
# Elements of a block, and the size planned for: one element a rank or none, odd parts, whole slices.
SIZES = ((1, 4096), (1021, 4096), (300_001, "16MiB"))


@pytest.fixture(scope="module", params=[2, 4, 7])
def node(request):
    with ccl.World(request.param, transport="shm", timeout="60s") as world:
        yield world


def outputs_equal(world, schedule, count, dtype, seed) -> None:
    rng = np.random.default_rng(seed)
    layout = schedule.layout(count, dtype=dtype, counts=schedule.counts)
    sizes = [layout.elements(Buffer.input, rank) for rank in range(schedule.n_ranks)]
    inputs = [(rng.standard_normal(size) * 100).astype(collectives.numpy_dtype(dtype)) for size in sizes]
    want = ccl.interpret(schedule, [x.copy() for x in inputs], counts=layout.counts)
    run = world.start(schedule, count=count, counts=layout.counts, dtype=dtype, inputs=inputs)
    run.wait(60)
    for rank, (expected, found) in enumerate(zip(want, run.outputs, strict=True)):
        assert expected.tobytes() == np.ascontiguousarray(found).tobytes(), f"rank {rank}, count {count}, {dtype}"


def pairs(n, count):
    """Elements from every rank to every other, symmetric so that they can change places, some of them none."""
    counts = np.random.default_rng(n).integers(0, count + 1, (n, n)) // n
    return np.triu(counts) + np.triu(counts, 1).T


@pytest.mark.parametrize(("collective", "algorithm"), NAMES)
@pytest.mark.parametrize("in_place", [False, True])
def test_real_ranks_compute_what_the_interpreter_says(node, collective, algorithm, in_place):
    for i, (count, planned) in enumerate(SIZES):
        options = {"algorithm": algorithm, "in_place": in_place, "root": node.n_ranks - 1}
        options |= {"counts": pairs(node.n_ranks, count)} if collective == "all_to_allv" else {}
        for dtype in ("float32", "bfloat16") if i else ("float64",):
            schedule = ccl.plan(collective, node.n_ranks, planned, dtype=dtype, **options)
            outputs_equal(node, schedule, count, dtype, seed=i)


def test_runs_in_a_row_do_not_touch_each_other(node):
    """The next run may begin on one rank while another still reads: its memory must not have changed by then."""
    for algorithm in IN_PLACE:
        schedule = ccl.plan("all_reduce", node.n_ranks, "64KiB", algorithm=algorithm)
        run = node.start(schedule, repeat=50)
        run.wait(60)
        run.check()


def test_auto_on_one_node_reads_in_place_and_over_tcp_alone_does_not(node):
    run = node.all_reduce("1MiB")
    assert run.meta["algorithm"] == "one_pass"
    if node.n_ranks == 4:
        with ccl.World(2, transport="tcp") as rails:
            assert rails.all_reduce("1MiB").meta["algorithm"] not in IN_PLACE
