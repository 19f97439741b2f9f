"""What a puzzle is: a task, a picture, hints, and a check through the verifier and the interpreter.

Is not: the solutions (tests hold those). Invariant: `check` never raises for a wrong answer; it returns a Verdict that is
false and says what is wrong in the words of the verifier.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import CclError, UsageError
from ..ir import Buffer, Builder, Schedule, collectives, interpret
from ..verifier import verify

Answer = Callable[[Builder, int], Any]


# Notebooks break <pre> inside words, which tears pictures apart; here lines break between words, if at all.
_FIXED_WIDTH = "margin:0;padding:0;line-height:1.3;white-space:pre-wrap;word-break:normal;font-size:var(--jp-code-font-size,13px)"


class _Text:
    """Text that a notebook shows in a fixed-width font."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<pre style='{_FIXED_WIDTH}'>{html.escape(self.text)}</pre>"


@dataclass(frozen=True)
class Verdict:
    """The outcome of a check; true where the puzzle is solved."""

    solved: bool
    message: str
    schedule: Schedule | None = None

    def __bool__(self) -> bool:
        return self.solved

    def __repr__(self) -> str:
        return f"{'solved' if self.solved else 'not yet'}: {self.message}"

    def _repr_html_(self) -> str:
        return _Text(repr(self))._repr_html_()


@dataclass(frozen=True)
class Told:
    """A task with hints. `task`: what to do; `picture`: drawn in text; `hints`: from gentle to nearly the answer."""

    name: str
    task: str
    picture: str
    hints: tuple[str, ...]

    def show(self) -> _Text:
        """The task and its picture."""
        return _Text(f"{self.task}\n\n{self.picture}")

    def hint(self, number: int = 1) -> _Text:
        """Hint `number`, from 1."""
        if not 1 <= number <= len(self.hints):
            raise UsageError(f"hint {number} of {self.name}: there are {len(self.hints)}, from 1.")
        return _Text(f"hint {number} of {len(self.hints)}: {self.hints[number - 1]}")


@dataclass(frozen=True)
class Puzzle(Told):
    """A collective to write with a Builder. `rule(schedule)`: what the answer must obey beyond being right, as a sentence where it
    does not, else None."""

    collective: str
    rule: Callable[[Schedule], str | None]
    sizes: tuple[int, ...] = (2, 3, 4, 5, 8)

    def check(self, answer: Answer) -> Verdict:
        """Builds the answer for several numbers of ranks, proves each, and compares its results with numpy."""
        schedule = None
        for n_ranks in self.sizes:
            builder = Builder(self.collective, n_ranks, algorithm=self.name)
            try:
                answer(builder, n_ranks)
                schedule = builder.build(nbytes=n_ranks * 64)
                verify(schedule)
                self._compare(schedule)
            except CclError as error:
                return Verdict(False, f"with {n_ranks} ranks: {type(error).__name__}: {error}", schedule)
            except (TypeError, ValueError, IndexError, AttributeError, NameError) as error:
                return Verdict(
                    False, f"with {n_ranks} ranks your function raised {type(error).__name__}: {error}"
                )
            if broken := self.rule(schedule):
                return Verdict(
                    False, f"with {n_ranks} ranks it is a right {self.collective}, but {broken}", schedule
                )
        sizes = ", ".join(map(str, self.sizes))
        return Verdict(
            True,
            f"proved for {sizes} ranks, and equal to numpy. Look at it: verdict.schedule.show()",
            schedule,
        )

    def _compare(self, schedule: Schedule) -> None:
        layout = schedule.layout()
        inputs = [
            rank * 1000 + np.arange(layout.elements(Buffer.input, rank), dtype=schedule.dtype)
            for rank in range(schedule.n_ranks)
        ]
        wanted = collectives.reference(schedule.collective, inputs, redop=schedule.redop, root=schedule.root)
        for rank, (found, want) in enumerate(zip(interpret(schedule, inputs), wanted, strict=True)):
            if not np.array_equal(found, want):
                raise UsageError(f"rank {rank} ends with {found[:8]}, expected {want[:8]}.")
