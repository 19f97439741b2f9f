"""The order of a run: rounds over all parties, forwards and backwards, and catching up where labels differ.

Is: what is timed when, and the progress that is shown. Is not: timing (`cells`) or arithmetic (`results`).
Invariants: every round times ours and every contender; the order of parties turns around each round; a party that hung at
a number of ranks is not tried there again; nothing a party does ends the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import results
from .catalogue import Party
from .cells import Cell, Limits, Outcome, Sample, cell, floor, label_of, measure

# In place is timed too where some library does better that way; in place all_to_all never is.
IN_PLACE_OPS = ("all_reduce", "all_gather")
TUNED_FROM_BYTES = 64 << 10  # below, messages live in memory set up once, and malloc does not show
LABEL_APART_BYTES = 1 << 20
Measure = Callable[[Party, Sequence[Cell], int, int, int, Limits], Outcome]


@dataclass
class Run:
    """Everything measured, and everything that went wrong: {(party, ranks or 0): {reason: cells}}."""

    samples: list[Sample] = field(default_factory=list)
    faults: dict[tuple[str, int], dict[str, list[Cell]]] = field(default_factory=dict)
    hung: set[tuple[str, int]] = field(default_factory=set)
    floors: list[dict[str, Any]] = field(default_factory=list)

    def add(self, party: Party, ranks: int, outcome: Outcome) -> None:
        self.samples += outcome.samples
        for at, reason in outcome.faults:
            cells = self.faults.setdefault((party.name, ranks), {}).setdefault(reason, [])
            if at is not None and at not in cells:
                cells.append(at)
        if outcome.hung:
            self.hung.add((party.name, ranks))


def cells_of(ops: Sequence[str], ranks: Sequence[int], sizes: Sequence[int]) -> list[Cell]:
    """Every cell once, by ranks and op; ping_pong is among two ranks."""
    found = []
    for n in ranks:
        for op in ops:
            if op == "ping_pong" and n != min(ranks):
                continue
            for nbytes in sizes if op != "barrier" else [0]:
                found.append(cell(op, n, nbytes))
    return list(dict.fromkeys(found))


def wanted(party: Party, cells: Sequence[Cell], cores: int, memory_bytes: int) -> list[Cell]:
    """Of the cells those that make sense for a party here."""
    return [
        one
        for one in cells
        if not (party.oversubscribed_only and one.ranks <= cores)
        and not (party.name.endswith("-tm") and one.bytes < TUNED_FROM_BYTES)
        and not (party.kind == "oneccl" and one.op == "ping_pong")
        and one.bytes * one.ranks * 4 <= memory_bytes
    ]


class Rounds:
    """Runs rounds over parties and cells; `say` gets a line after each process."""

    def __init__(
        self, parties: Sequence[Party], cells: Sequence[Cell], cores: int, limits: Limits,
        say: Callable[[str], None], memory_bytes: int = 1 << 62, measuring: Measure = measure,
    ) -> None:  # fmt: skip
        self.parties, self.cores, self.limits, self.say = list(parties), cores, limits, say
        self.cells = {party.name: wanted(party, cells, cores, memory_bytes) for party in parties}
        self.ranks = list(dict.fromkeys(one.ranks for one in cells))
        self.kinds = {party.name: {"language": party.language, "buffers": party.buffers} for party in parties}
        self.run, self._measuring, self._begin = Run(), measuring, time.monotonic()

    def rows(self) -> list[results.Row]:
        return results.rows_of(self.run.samples, self.kinds)

    def round(self, number: int, only: set[tuple[str, Cell]] | None = None) -> None:
        """One round: all parties, or of the peers those cells that are in `only`; odd rounds go backwards."""
        order = self.parties if number % 2 == 0 else self.parties[::-1]
        for ranks in self.ranks:
            with self.limits.turns.turn():
                self.run.floors.append(floor(quick=False))
            for at, party in enumerate(order):
                cells = [
                    one
                    for one in self.cells[party.name]
                    if one.ranks == ranks and (only is None or (party.name, one) in only)
                ]
                self.time(party, ranks, cells, number, f"round {number + 1}, party {at + 1}/{len(order)}")

    def time(self, party: Party, ranks: int, cells: Sequence[Cell], number: int, what: str) -> None:
        """Both forms of the cells, in a process each."""
        # What collapses with some ranks collapses with more.
        if not cells or any((party.name, fewer) in self.run.hung for fewer in range(ranks + 1)):
            return
        for in_place, some in self._processes(party, cells):
            if (party.name, ranks) in self.run.hung:
                return
            begin = time.monotonic()
            outcome = self._measuring(party, some, in_place, number, self.cores, self.limits)
            self.run.add(party, ranks, outcome)
            labels = [one.label for one in outcome.samples]
            where = ", ".join(f"{labels.count(label)} {label}" for label in dict.fromkeys(labels)) or "-"
            faults = f", {len(outcome.faults)} faults: {outcome.faults[0][1][:90]}" if outcome.faults else ""
            form = " in place" if in_place else ""
            self.say(
                f"[{time.monotonic() - self._begin:5.0f} s] {what}, {ranks} ranks, {party.name}{form}: "
                f"{len(outcome.samples)}/{len(some)} cells, {where}, {time.monotonic() - begin:.1f} s{faults}"
            )

    @staticmethod
    def _processes(party: Party, cells: Sequence[Cell]) -> list[tuple[int, list[Cell]]]:
        """(form, cells of one process): Python's are labelled per process, so theirs are short."""
        found = []
        for in_place, some in ((0, list(cells)), (1, [one for one in cells if one.op in IN_PLACE_OPS])):
            if in_place and party.kind in ("mpi4py", "oneccl"):
                continue
            small = [one for one in some if one.bytes <= LABEL_APART_BYTES]
            large = [one for one in some if one.bytes > LABEL_APART_BYTES]
            groups = [small, large] if party.language == "python" else [some]
            found += [(in_place, group) for group in groups if group]
        return found

    def catch_up(self, number: int) -> int:
        """Times the cells a party lacks at the label the machine is in now; returns how many it found lacking."""
        with self.limits.turns.turn():
            label = label_of(floor().get("cache_line_ns"))
        lacking = self._lacking(label)
        for ranks in self.ranks:
            for party in self.parties:
                cells = [one for one in lacking.get(party.name, ()) if one.ranks == ranks]
                self.time(party, ranks, cells, number, f"catching up on {label}")
        return sum(map(len, lacking.values()))

    def _lacking(self, label: str) -> dict[str, list[Cell]]:
        """By party the cells that it has at other labels, or at this one in fewer forms."""
        matter = results.contenders(self.rows())
        here: dict[tuple[str, Cell], set[int]] = {}
        anywhere: dict[tuple[str, Cell], set[int]] = {}
        for one in self.run.samples:
            anywhere.setdefault((one.peer, one.cell), set()).add(one.in_place)
            if one.label == label:
                here.setdefault((one.peer, one.cell), set()).add(one.in_place)
        seen = {at for _, at in here}
        found: dict[str, list[Cell]] = {}
        for peer, at in sorted(matter):
            if at in seen and anywhere[peer, at] - here.get((peer, at), set()):
                found.setdefault(peer, []).append(at)
        return found
