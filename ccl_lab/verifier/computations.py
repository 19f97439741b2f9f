"""What the symbolic run says about computations: each runs once, on bytes that are there, and makes what it must.

Is: the part of `contributions` for schedules with compute ops. Is not: about order (`races`). Invariants: where one
computation makes a part of the input, computations make all that is used of it, each chunk once; what a computation reads
of OUTPUT is the final value; in a collective in which all ranks do the same, all ranks run the same partitions.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NoReturn

import numpy as np

from ..errors import ContributionError
from ..ir import Buffer, Kind, collectives, describe
from .program import Program
from .values import UNWRITTEN, Values

_ALIKE = ("all_gather", "reduce_scatter", "all_to_all", "all_to_allv", "all_reduce")


def check_partitions(program: Program) -> None:
    """ContributionError where a rank runs a partition twice, or not although another rank of the collective does."""
    ops = program.schedule.ops
    first: dict[int, int] = {}
    seen: dict[int, dict[int, int]] = defaultdict(dict)
    for op_id in np.flatnonzero((ops.kind == Kind.compute) & (ops.src_count > 0)).tolist():
        rank, partition = program.rank[op_id], int(ops.arg[op_id])
        if partition in seen[rank]:
            raise ContributionError(
                f"{describe(ops[op_id])}: rank {rank} computes partition {partition} twice, first in "
                f"{describe(ops[seen[rank][partition]])}.",
                rank=rank,
                op_id=op_id,
            )
        seen[rank][partition] = op_id
        first.setdefault(partition, op_id)
    if program.schedule.collective not in _ALIKE:
        return
    for partition, op_id in first.items():
        for rank in range(program.schedule.n_ranks):
            if partition not in seen[rank]:
                raise ContributionError(
                    f"rank {rank} never computes partition {partition}, which {describe(ops[op_id])} does; in an "
                    f"{program.schedule.collective} every rank computes every partition: add the op at rank {rank}.",
                    rank=rank,
                    op_id=op_id,
                )


class Computations:
    """Runs compute ops on the values held by all locations; ContributionError names the op that is wrong."""

    def __init__(self, program: Program, values: Values, given: list[int]) -> None:
        self.program, self.values, self.given = program, values, given
        self.maker: dict[int, int] = {}
        self.inputs: set[int] = set()
        self.final: dict[int, int] = {}
        if not (program.schedule.ops.kind == Kind.compute).any():
            return
        for op, at in program.makes.items():
            for location in range(at, at + program.n_chunks[op]):
                if location in self.maker:
                    self._fail(op, f"makes {self._where(location)} again, which {self._name(self.maker[location])} makes.")
                self.maker[location] = op
        self._lay_out()

    def _lay_out(self) -> None:
        schedule, parts = self.program.schedule, self.program.schedule.parts
        for rank in range(schedule.n_ranks):
            inputs = int(self.program.n_blocks[rank, Buffer.input]) * parts
            begin = int(self.program.base[rank, Buffer.input])
            self.inputs.update(range(begin, begin + inputs))
            begin = int(self.program.base[rank, Buffer.output])
            goals = collectives.expected(schedule.collective, schedule.n_ranks, rank, schedule.root, schedule.peer)
            for block, (sources, source_block) in enumerate(goals):
                goal = self.values.of(source_block, sum(1 << source for source in sources))
                for part in range(parts):
                    self.final[begin + block * parts + part] = goal

    def run(self, op: int, held: list[int]) -> None:
        """The effect of compute op `op` on `held`."""
        program, n = self.program, self.program.n_chunks[op]
        if not program.touches[op]:
            return
        at = program.makes.get(op)
        if at is None:
            for source in program.sources[op]:
                for location in range(source, source + n):
                    self._check_read(op, location, held)
            return
        self.check_made(op, held)
        to = program.dst[op]
        for i in range(n):
            parts = (self.given[at + i], *(held[source + i] for source in program.sources[op]))
            held[to + i] = self.values.add(parts, op) if len(parts) > 1 else parts[0]

    def check_made(self, op: int, held: list[int]) -> None:
        """ContributionError if `op` reads INPUT that no computation has made yet."""
        program = self.program
        for source in program.sources[op]:
            for location in range(source, source + program.n_chunks[op]):
                if held[location] == UNWRITTEN and location in self.inputs:
                    self._not_made(op, location)

    def _not_made(self, op: int, location: int) -> NoReturn:
        maker = self.maker.get(location)
        if maker is None:
            self._fail(op, f"reads {self._where(location)}, which no computation makes; this schedule computes its input: add the "
                           "compute op that makes this chunk.")  # fmt: skip
        self._fail(op, f"reads {self._where(location)} before {self._name(maker)} has made it; put it after that op, or after a "
                       "signal that follows it.")  # fmt: skip

    def _check_read(self, op: int, location: int, held: list[int]) -> None:
        value, wanted = held[location], self.final.get(location)
        if location in self.inputs and value == UNWRITTEN:
            self._not_made(op, location)
        if value == UNWRITTEN:
            self._fail(op, f"computes with {self._where(location)}, where nobody has written yet; wait for its bytes first.")
        found = self.values.all[value]
        if found.broken_by >= 0:
            self._fail(op, f"computes with {self._where(location)}, a wrong sum: {self._name(found.broken_by)} {found.why}.")
        if wanted is not None and wanted != value and location not in self.inputs:
            self._fail(op, f"computes with {self._where(location)} before it holds its final value; wait for what is missing first.")

    def _where(self, location: int) -> str:
        rank, place = self.program.where(location)
        if location in self.inputs and not place.startswith("input"):
            place += " (input in place)"
        return f"{place} of rank {rank}"

    def _name(self, op: int | None) -> str:
        return describe(self.program.schedule.ops[op]) if op is not None else "no op"

    def _fail(self, op: int, what: str) -> NoReturn:
        raise ContributionError(f"{self._name(op)}: {what}", rank=self.program.rank[op], op_id=op)
