"""Proves that every output chunk holds exactly the contributions it must, whatever the numbers are.

Is: a symbolic run. The value of a location is (input block, set of ranks whose contribution it holds), numbered so that
moving it is copying an int. Is not: a check of order: it runs the ops in one possible order, which stands for all since
`races` proved that conflicting accesses are ordered. Invariant: a value that no sum of whole contributions has (counted
twice, blocks mixed, never written) is kept as broken with the op that broke it, and is an error only if it is in an output
or a computation works on it. Where computations make the input, INPUT holds nothing before; what they read of OUTPUT is final.
"""

from __future__ import annotations

from ..errors import ContributionError
from ..ir import Buffer, Kind, collectives, describe
from .computations import Computations, check_partitions
from .program import Program
from .values import UNWRITTEN, Values, ranks_of


def check_contributions(program: Program, order: list[int]) -> int:
    """Number of output chunks that hold what they must; ContributionError names the first that does not."""
    values = Values()
    check_partitions(program)
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


def _run(program: Program, order: list[int], values: Values) -> list[int]:
    """Number of the value at every location after all ops."""
    reduce, compute = int(Kind.reduce), int(Kind.compute)
    given = _inputs(program, values)
    held = [UNWRITTEN] * program.n_locations if program.makes else list(given)
    computations = Computations(program, values, given)
    kind, dst, sources, n_chunks, makes = program.kind, program.dst, program.sources, program.n_chunks, bool(program.makes)
    for op in order:
        srcs = sources[op]
        if kind[op] == compute:
            computations.run(op, held)
            continue
        if not srcs:
            continue
        to, n = dst[op], n_chunks[op]
        if makes:
            computations.check_made(op, held)
        if kind[op] == reduce and len(srcs) > 1:
            for i in range(n):
                held[to + i] = values.add(tuple([held[src + i] for src in srcs]), op)
        elif n == 1:
            held[to] = held[srcs[0]]
        else:
            held[to : to + n] = held[srcs[0] : srcs[0] + n]
    return held


def _inputs(program: Program, values: Values) -> list[int]:
    """Number of the value that every INPUT location contributes; UNWRITTEN elsewhere."""
    parts, given = program.schedule.parts, [UNWRITTEN] * program.n_locations
    for rank in range(program.schedule.n_ranks):
        at = int(program.base[rank, Buffer.input])
        for block in range(int(program.n_blocks[rank, Buffer.input])):
            given[at + block * parts : at + (block + 1) * parts] = [values.of(block, 1 << rank)] * parts
    return given


def _explain(
    program: Program, order: list[int], values: Values, rank: int, chunk: int, found: int, goal: int
) -> ContributionError:
    location = int(program.base[rank, Buffer.output]) + chunk
    writers = [op for op in order if program.writes[op] and program.dst[op] <= location < program.dst[op] + program.n_chunks[op]]
    ops, value, want = program.schedule.ops, values.all[found], values.all[goal]
    expected = f"expected input block {want.block} of {ranks_of(want.mask)}"
    if value.broken_by >= 0:
        culprit, holds = value.broken_by, f"a wrong sum: {describe(ops[value.broken_by])} {value.why}"
    elif value.mask == 0:
        culprit, holds = writers[-1] if writers else -1, "bytes that nobody wrote"
    else:
        culprit, holds = writers[-1] if writers else -1, f"input block {value.block} of {ranks_of(value.mask)}"
        if value.block == want.block and want.mask & ~value.mask:
            expected += f"; {ranks_of(want.mask & ~value.mask)} missing"
    last = f" Last written by {describe(ops[writers[-1]])}." if writers else " No op writes it."
    return ContributionError(
        f"output[{chunk}] of rank {rank} holds {holds}; {expected}.{last} Check which chunks that op and those before it move.",
        rank=rank,
        op_id=culprit,
    )
