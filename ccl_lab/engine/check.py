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
    floats = schedule.collective in collectives.REDUCING and layout.dtype in collectives.FLOATS
    if floats and not (run.redop != "prod" and _small_integers(run.inputs)):
        return interpret(schedule, run.inputs, redop=run.redop)
    return collectives.reference(
        schedule.collective,
        run.inputs,
        redop=run.redop,
        root=schedule.root,
        peer=schedule.peer,
        counts=layout.counts,
    )


def _small_integers(inputs: list[np.ndarray]) -> bool:
    """True where float32 or float64 sums are exact whatever their order."""

    def small(x: np.ndarray) -> bool:
        return x.size == 0 or (
            float(x.min()) > -(2.0**16) and float(x.max()) < 2.0**16 and bool((x.astype(np.int32) == x).all())
        )

    return all(x.dtype.itemsize >= 4 for x in inputs) and all(small(x) for x in inputs)


def check_outputs(run: Run) -> None:
    """ContributionError naming rank and element of the first difference."""
    for rank, (want, got) in enumerate(zip(expected_outputs(run), run.outputs, strict=True)):
        if want.size != got.size:
            raise ContributionError(
                f"rank {rank}: output has {got.size} elements, expected {want.size}.", rank=rank
            )
        bits = np.dtype(f"u{want.dtype.itemsize}")
        want_bits, got_bits = want.view(bits), got.view(bits)
        if not np.array_equal(want_bits, got_bits):
            wrong = want_bits != got_bits
            at = int(np.argmax(wrong))
            raise ContributionError(
                f"rank {rank}: element {at} of {want.size} is {got[at]}, expected {want[at]} "
                f"({int(wrong.sum())} elements differ).",
                rank=rank,
            )
