"""Compares what ranks computed with what they should have.

Is: the judge of a run: the numpy reference where sums are exact, the interpreter of the schedule otherwise.
Is not: part of the data path. Invariant: equality is bitwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import ContributionError
from ..ir import collectives, interpret

if TYPE_CHECKING:
    from .run import Run


def expected_outputs(run: Run) -> list[np.ndarray]:
    """What every rank's output must hold, from the inputs of the run."""
    schedule, layout = run.schedule, run.layout
    if schedule.collective in collectives.REDUCING and layout.dtype in collectives.FLOATS and not _small_integers(run.inputs):
        return interpret(schedule, run.inputs, redop=run.redop)
    return collectives.reference(schedule.collective, run.inputs, redop=run.redop, root=schedule.root, peer=schedule.peer,
                                 counts=layout.counts)  # fmt: skip


def _small_integers(inputs: list[np.ndarray]) -> bool:
    """True where float32 or float64 sums are exact whatever their order."""
    return all(x.dtype.itemsize >= 4 and bool((np.abs(x) < 2**16).all()) and bool((x == np.rint(x)).all()) for x in inputs)


def check_outputs(run: Run) -> None:
    """ContributionError naming rank and element of the first difference."""
    for rank, (want, got) in enumerate(zip(expected_outputs(run), run.outputs)):
        if want.size != got.size:
            raise ContributionError(f"rank {rank}: output has {got.size} elements, expected {want.size}.", rank=rank)
        same = want.view(np.uint8).reshape(want.size, -1) == got.view(np.uint8).reshape(got.size, -1) if want.size else np.ones((0, 1), bool)
        if not same.all():
            at = int(np.argmin(same.all(axis=1)))
            raise ContributionError(f"rank {rank}: element {at} of {want.size} is {got[at]}, expected {want[at]} "
                                    f"({int((~same.all(axis=1)).sum())} elements differ).", rank=rank)  # fmt: skip
