"""Random (collective, ranks, topology, algorithm, type, reduction, size): interpret, verify and numpy agree bit by bit.

`--cases N` sets how many, `--seed S` which; a failure prints its case, which `--case I` runs alone.
"""

from __future__ import annotations

import cases
import pytest

from ccl_lab import verify
from ccl_lab.ir import Schedule, collectives, interpret

BATCHES = 20


def check(case: cases.Case, seed: int) -> None:
    schedule = case.schedule(seed)
    proof = verify(schedule, topology=case.topology())
    assert proof.digest == schedule.digest
    assert Schedule.decode(schedule.encode()) == schedule
    if len(schedule.ops) < 500:
        assert Schedule.from_text(schedule.text()) == schedule
    counts = case.counts(seed)
    layout = schedule.layout(case.count, dtype=case.dtype, counts=counts)
    inputs = case.inputs(seed, layout)
    found = interpret(schedule, [x.copy() for x in inputs], redop=case.redop, counts=counts)
    expected = collectives.reference(
        case.collective, inputs, redop=case.redop, root=case.root, peer=schedule.peer, counts=counts
    )
    for rank, (mine, goal) in enumerate(zip(found, expected, strict=True)):
        same = mine.dtype == goal.dtype and mine.tobytes() == goal.tobytes()
        assert same, f"output of rank {rank}: {mine[:8]} ({mine.dtype}) != {goal[:8]} ({goal.dtype})"


@pytest.mark.parametrize("batch", range(BATCHES))
def test_plan_verify_interpret_agree_with_numpy(batch: int, seed: int, request: pytest.FixtureRequest) -> None:
    only = request.config.getoption("--case")
    for index in [only] if only is not None and only % BATCHES == batch else range(batch, request.config.getoption("--cases"), BATCHES):
        if only is not None and index != only:
            break
        case = cases.make_case(seed, index)
        try:
            check(case, seed)
        except Exception as error:
            pytest.fail(f"replay with --seed {seed} --case {index}: {case}\n{type(error).__name__}: {error}")
