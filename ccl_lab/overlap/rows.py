"""Which rows of an operand or result each partition of a schedule covers.

Is: chunks (IR) turned into rows of a matrix whose blocks, one per rank, may have unequal numbers of rows. Is not: torch.
Invariants: in memory every block is padded to the same number of rows, a multiple of the schedule's parts, so that a chunk is
whole rows; rows of padding are moved but never computed on, nor read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import ShapeError
from ..ir import Buffer, Kind, Schedule


class Piece(NamedTuple):
    """Rows [lo, hi) of the matrix without padding; they lie at row `at` of the partition's memory."""

    lo: int
    hi: int
    at: int


class Operand(NamedTuple):
    """What one ref of a partition covers: `length` padded rows, of which `pieces` are real."""

    length: int
    pieces: tuple[Piece, ...]


class Partition(NamedTuple):
    """A compute op: `operands` of what it reads, or one operand that it produces (`produces`)."""

    produces: bool
    operands: tuple[Operand, ...]


def padded_rows(rows: Sequence[int], parts: int) -> int:
    """Rows every block has in memory: the largest, rounded up to a multiple of `parts`; at least `parts`."""
    return max(-(-max(rows) // parts), 1) * parts


def pieces(first: int, last: int, padded: int, rows: Sequence[int]) -> tuple[Piece, ...]:
    """Real rows among the padded rows [first, last); neighbours without padding between them become one piece."""
    found: list[Piece] = []
    offset = sum(rows[: first // padded])
    for block in range(first // padded, -(-last // padded)):
        begin = max(first - block * padded, 0)
        end = min(last - block * padded, rows[block])
        if end > begin:
            piece = Piece(offset + begin, offset + end, block * padded + begin - first)
            if found and found[-1].hi == piece.lo and found[-1].at + found[-1].hi - found[-1].lo == piece.at:
                piece = Piece(found[-1].lo, piece.hi, found.pop().at)
            found.append(piece)
        offset += rows[block]
    return tuple(found)


def partitions_of(schedule: Schedule, rank: int, padded: int, rows: Sequence[int]) -> dict[int, Partition]:
    """{partition: what it covers} of `rank`; `rows`: real rows of each block of the operand (reads) or result (produces)."""
    per_chunk, ops = padded // schedule.parts, schedule.ops
    found = {}
    for op_id in ((ops.kind == Kind.compute) & (ops.rank == rank)).nonzero()[0]:
        op = ops[int(op_id)]
        produces = op.value == 1
        operands = []
        for _, buf, chunk in op.sources[:1] if produces else op.sources:
            # An all_gather's own shard may be read where it came in.
            shift = rank * schedule.parts if buf == Buffer.input and schedule.collective == "all_gather" else 0
            first, last = (chunk + shift) * per_chunk, (chunk + shift + op.n_chunks) * per_chunk
            operands.append(Operand(last - first, pieces(first, last, padded, rows)))
        found[op.arg] = Partition(produces, tuple(operands))
    return found


def split_rows(rows: Sequence[int] | None, total: int, n_ranks: int, what: str) -> tuple[int, ...]:
    """Rows of each rank's block: as given, or `total` split as evenly as it goes, larger blocks first. Raises ShapeError."""
    if rows is None:
        return tuple(total // n_ranks + (rank < total % n_ranks) for rank in range(n_ranks))
    found = tuple(int(each) for each in rows)
    if len(found) != n_ranks or min(found) < 0 or sum(found) != total:
        raise ShapeError(
            f"rows of {what}: expected {n_ranks} numbers, none negative, that add up to its {total} rows, found {list(found)}."
        )
    return found
