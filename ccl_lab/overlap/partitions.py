"""What each partition of a schedule computes: which block, which part of it, what share of the whole.

Is: read from the op table, so that it also holds for schedules that users write. Is not: rows of a matrix (rows.py).
Invariant: a partition that covers several chunks covers consecutive ones.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..arguments import amount, instance, shown
from ..errors import ShapeError, UsageError
from ..ir import Buffer, Kind, Schedule, collectives


class Partition(NamedTuple):
    """Partition `index` of `rank`: chunks [chunk, chunk + n_chunks) of the gathered operand (`makes` False) or of the result.

    `block`, `sub_slice`: of its first chunk; `share`: of the rank's whole computation.
    """

    rank: int
    index: int
    makes: bool
    chunk: int
    n_chunks: int
    block: int
    sub_slice: int
    share: Fraction


def partitions(schedule: Schedule) -> tuple[tuple[Partition, ...], ...]:
    """[rank][partition]: what each partition of `schedule` covers. Raises ShapeError if a rank lacks one that another has."""
    ops, parts = schedule.ops, schedule.parts
    shape = collectives.blocks(schedule.collective, schedule.n_ranks, schedule.root, schedule.peer)
    found: list[dict[int, Partition]] = [{} for _ in range(schedule.n_ranks)]
    for op_id in np.flatnonzero((ops.kind == Kind.compute) & (ops.src_count > 0)):
        rank, first = int(ops.rank[op_id]), int(ops.src_begin[op_id])
        makes, n = bool(ops.value[op_id]), int(ops.n_chunks[op_id])
        chunk = int(ops.src_chunk[first])
        if not makes and ops.src_buf[first] == Buffer.input and schedule.collective == "all_gather":
            chunk += rank * parts  # the own shard, where it came in
        whole = int(shape[rank].max()) * parts
        index = int(ops.arg[op_id])
        found[rank][index] = Partition(rank, index, makes, chunk, n, chunk // parts, chunk % parts, Fraction(n, whole))
    n_partitions = max((max(each) + 1 for each in found if each), default=0)
    for rank, each in enumerate(found):
        missing = [i for i in range(n_partitions) if i not in each]
        if missing:
            raise ShapeError(f"rank {rank} does not compute partition {missing[0]} of {n_partitions}: verify the schedule.", rank=rank)
    return tuple(tuple(each[i] for i in range(n_partitions)) for each in found)


def durations(schedule: Schedule, c_ps: Any, launch_ps: int = 0) -> npt.NDArray[np.int64]:
    """Whole picoseconds of every partition, i64[n_ranks, partitions], for `simulate(..., compute_ps=)`.

    c_ps: computation of one block (a slice): one number, or one per rank for slow ranks. launch_ps: more for each partition.
    """
    instance(schedule, "schedule", Schedule, "a Schedule with compute ops")
    try:
        c = np.broadcast_to(np.asarray(c_ps, dtype=object), (schedule.n_ranks,))
    except ValueError:
        raise ShapeError(f"c_ps {shown(c_ps)}: expected one number, or one for each of {schedule.n_ranks} ranks.") from None
    *c, launch_ps = (amount(each, "picoseconds") for each in (*c, launch_ps))
    if (longest := max(*c, launch_ps)) >= 2**60:
        raise UsageError(f"picoseconds {shown(longest)}: expected less than 13 days.")
    blocks = collectives.message_blocks(schedule.collective, schedule.n_ranks)
    rows = [[round(Fraction(c[p.rank]) * blocks * p.share) + launch_ps for p in each] for each in partitions(schedule)]
    return np.array(rows, np.int64).reshape(schedule.n_ranks, -1)
