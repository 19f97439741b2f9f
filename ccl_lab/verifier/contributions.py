"""Proves that every output chunk holds exactly the contributions it must, whatever the numbers are.

Is: a symbolic run. The value of a location is (input block, set of ranks whose contribution it holds), numbered so that
moving it is copying an int. Is not: a check of order: it runs the ops in one possible order, which stands for all since
`races` proved that conflicting accesses are ordered. Invariant: a value that no sum of whole contributions has (counted
twice, blocks mixed, never written) is kept as broken with the op that broke it, and is an error only if it is in an output.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import ContributionError
from ..ir import Buffer, Kind, collectives, describe
from .program import Program

UNWRITTEN = 0


class _Value(NamedTuple):
    """Sum of input block `block` over the ranks in `mask`; `broken_by`: op that made something else, and `why`."""

    block: int
    mask: int
    broken_by: int = -1
    why: str = ""


class _Values:
    """Values by number; equal sums have equal numbers."""

    def __init__(self) -> None:
        self.all = [_Value(-1, 0, why="bytes that nobody wrote")]
        self._ids: dict[tuple[int, int], int] = {}
        self._sums: dict[tuple[int, ...], int] = {}

    def of(self, block: int, mask: int) -> int:
        """Number of the sum of `block` over the ranks of `mask`."""
        found = self._ids.get((block, mask))
        if found is None:
            found = self._ids[block, mask] = len(self.all)
            self.all.append(_Value(block, mask))
        return found

    def add(self, ids: tuple[int, ...], op: int) -> int:
        """Number of the sum of values; a broken one if they do not add up to whole contributions."""
        found = self._sums.get(ids)
        if found is None:
            found = self._add(ids, op)
            if self.all[found].broken_by < 0:
                self._sums[ids] = found
        return found

    def _add(self, ids: tuple[int, ...], op: int) -> int:
        values = [self.all[i] for i in ids]
        block, mask = values[0].block, 0
        for value in values:
            if value.broken_by >= 0:
                return self._broken(value.broken_by, value.why)
            if value.mask == 0:
                return self._broken(op, "adds bytes that nobody wrote")
            if value.block != block:
                return self._broken(op, f"adds input blocks {block} and {value.block}, which belong to different results")
            if value.mask & mask:
                return self._broken(op, f"adds the contribution of {_ranks(value.mask & mask)} twice")
            mask |= value.mask
        return self.of(block, mask)

    def _broken(self, op: int, why: str) -> int:
        self.all.append(_Value(-1, 0, op, why))
        return len(self.all) - 1


def _ranks(mask: int) -> str:
    ranks = [i for i in range(mask.bit_length()) if mask >> i & 1]
    shown = ", ".join(map(str, ranks[:8])) + (f", … ({len(ranks)} ranks)" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}" if ranks else "no rank"


def check_contributions(program: Program, order: list[int]) -> int:
    """Number of output chunks that hold what they must; ContributionError names the first that does not."""
    values = _Values()
    held = _run(program, order, values)
    schedule, parts, checked = program.schedule, program.schedule.parts, 0
    for rank in range(schedule.n_ranks):
        begin = int(program.base[rank, Buffer.output])
        expected = collectives.expected(schedule.collective, schedule.n_ranks, rank, schedule.root, schedule.peer)
        for i, (sources, block) in enumerate(expected):
            goal = values.of(block, sum(1 << source for source in sources))
            at = begin + i * parts
            found = held[at : at + parts]
            if found.count(goal) != parts:
                part = next(p for p in range(parts) if found[p] != goal)
                raise _explain(program, order, values, rank, i * parts + part, found[part], goal)
            checked += parts
    return checked


def _run(program: Program, order: list[int], values: _Values) -> list[int]:
    """Number of the value at every location after all ops."""
    parts, reduce = program.schedule.parts, int(Kind.reduce)
    held = [UNWRITTEN] * program.n_locations
    for rank in range(program.schedule.n_ranks):
        at = int(program.base[rank, Buffer.input])
        for block in range(int(program.n_blocks[rank, Buffer.input])):
            held[at + block * parts : at + (block + 1) * parts] = [values.of(block, 1 << rank)] * parts
    kind, dst, sources, n_chunks = program.kind, program.dst, program.sources, program.n_chunks
    for op in order:
        srcs = sources[op]
        if not srcs:
            continue
        to, n = dst[op], n_chunks[op]
        if kind[op] == reduce and len(srcs) > 1:
            for i in range(n):
                held[to + i] = values.add(tuple([held[src + i] for src in srcs]), op)
        elif n == 1:
            held[to] = held[srcs[0]]
        else:
            held[to : to + n] = held[srcs[0] : srcs[0] + n]
    return held


def _explain(
    program: Program, order: list[int], values: _Values, rank: int, chunk: int, found: int, goal: int
) -> ContributionError:
    location = int(program.base[rank, Buffer.output]) + chunk
    writers = [op for op in order if program.sources[op] and program.dst[op] <= location < program.dst[op] + program.n_chunks[op]]
    ops, value, want = program.schedule.ops, values.all[found], values.all[goal]
    expected = f"expected input block {want.block} of {_ranks(want.mask)}"
    if value.broken_by >= 0:
        culprit, holds = value.broken_by, f"a wrong sum: {describe(ops[value.broken_by])} {value.why}"
    elif value.mask == 0:
        culprit, holds = writers[-1] if writers else -1, "bytes that nobody wrote"
    else:
        culprit, holds = writers[-1] if writers else -1, f"input block {value.block} of {_ranks(value.mask)}"
        if value.block == want.block and want.mask & ~value.mask:
            expected += f"; {_ranks(want.mask & ~value.mask)} missing"
    last = f" Last written by {describe(ops[writers[-1]])}." if writers else " No op writes it."
    return ContributionError(
        f"output[{chunk}] of rank {rank} holds {holds}; {expected}.{last} Check which chunks that op and those before it move.",
        rank=rank,
        op_id=culprit,
    )
