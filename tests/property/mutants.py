"""Every schedule that differs from a given one in a single op: dropped, doubled, moved, or one cell changed.

Is: the list of changes. Is not: a judgement of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ccl_lab.ir import Kind, OpTable, Schedule

NEIGHBOURS = {
    "rank": (1, -1), "channel": (1, 1, -1), "step": (1,), "peer": (1, -1, 1000), "sig_channel": (1, -1, 1000), "value": (1, -1),
    "dst_buf": (1, 2), "dst_chunk": (1, -1), "n_chunks": (1, -1), "arg": (1,),
}  # fmt: skip
MOVED = {"dst_buf", "dst_chunk", "n_chunks"}
# The cells that mean nothing for a kind are left alone: changing them changes nothing.
MEANING = {
    Kind.put: MOVED | {"peer", "sig_channel"}, Kind.get: MOVED | {"peer"}, Kind.copy: MOVED, Kind.reduce: MOVED,
    Kind.signal: {"peer", "sig_channel"}, Kind.wait: {"peer", "sig_channel", "value"}, Kind.flush: {"peer"}, Kind.compute: {"arg"},
}  # fmt: skip
SOURCE_NEIGHBOURS = {"src_rank": (1, -1), "src_buf": (1, 2), "src_chunk": (1, -1)}


class Mutant(NamedTuple):
    """A change in words, the ops it is about, and the schedule with it."""

    change: str
    suspects: tuple[int, ...]
    schedule: Schedule


def changes(schedule: Schedule) -> list[tuple[str, int, str, int]]:
    """All changes of one op as (what, op_id, column, amount), cheap to list and sample."""
    ops, parts, n = schedule.ops, schedule.parts, schedule.n_ranks
    found: list[tuple[str, int, str, int]] = []
    for op_id in range(len(ops)):
        found += [("drop", op_id, "", 0), ("double", op_id, "", 0), ("swap with next of channel", op_id, "", 0)]
        found += [("set", op_id, "kind", int(kind)) for kind in Kind if kind != ops.kind[op_id]]
        used = MEANING[Kind(int(ops.kind[op_id]))] | {"rank", "channel", "step"}
        for column in sorted(NEIGHBOURS.keys() & used):
            found += [("add", op_id, column, step) for step in NEIGHBOURS[column]]
        if parts > 1 and "dst_chunk" in used:
            found += [("add", op_id, column, step * parts) for column in ("dst_chunk", "n_chunks") for step in (1, -1)]
        if "peer" in used:
            found += [("set", op_id, "peer", peer) for peer in (0, n - 1)]
        for source in range(int(ops.src_begin[op_id]), int(ops.src_begin[op_id] + ops.src_count[op_id])):
            for column, steps in SOURCE_NEIGHBOURS.items():
                found += [("source", source, column, step) for step in steps]
            found += [("source", source, "src_chunk", step * parts) for step in (1, -1) if parts > 1]
        if ops.src_count[op_id] > 1:
            found += [("drop a source", op_id, "", i) for i in range(int(ops.src_count[op_id]))]
        if ops.src_count[op_id]:
            found += [("double a source", op_id, "", 0)]
    return found


def mutants(schedule: Schedule, seed: int, limit: int | None = None) -> Iterator[Mutant]:
    """`limit` mutants at random (all if None), the same for the same seed."""
    listed = changes(schedule)
    if limit is not None and limit < len(listed):
        listed = random.Random(seed).sample(listed, limit)
    for change in listed:
        mutant = _apply(schedule, *change)
        if mutant is not None:
            yield mutant


def _apply(schedule: Schedule, what: str, at: int, column: str, amount: int) -> Mutant | None:
    ops = schedule.ops
    cells = {name: cell.copy() for name, cell in ops.columns().items()}
    op_id = at if what != "source" else int(np.searchsorted(np.cumsum(ops.src_count), at, side="right"))
    order = np.arange(len(ops))
    later = np.flatnonzero((ops.rank == ops.rank[op_id]) & (ops.channel == ops.channel[op_id]) & (order > op_id))
    near = [op_id, *later[:2].tolist()]
    if what == "drop":
        order = np.delete(order, op_id)
        near = [max(i - 1, 0) for i in near[1:]] or [0]
    elif what == "double":
        order = np.insert(order, op_id, op_id)
    elif what == "swap with next of channel":
        if len(later) == 0:
            return None
        order[[op_id, later[0]]] = order[[later[0], op_id]]
    elif what in ("drop a source", "double a source"):
        begin, count = int(ops.src_begin[op_id]), int(ops.src_count[op_id])
        kept = list(range(begin, begin + count))
        kept = kept[:amount] + kept[amount + 1 :] if what == "drop a source" else [*kept, kept[0]]
        rows = np.concatenate([np.arange(begin), kept, np.arange(begin + count, len(ops.src_rank))]).astype(int)
        for name in ("src_rank", "src_buf", "src_chunk"):
            cells[name] = cells[name][rows]
        cells["src_count"][op_id] = len(kept)
        cells["src_begin"] = np.cumsum(cells["src_count"]) - cells["src_count"]
    else:
        before = int(cells[column][at])
        limits = np.iinfo(cells[column].dtype)
        after = amount if what == "set" else before + amount
        if column in ("dst_buf", "src_buf"):
            after = (before + amount) % 3
        if after == before or not limits.min <= after <= limits.max:
            return None
        cells[column][at] = after
    for name in cells:
        if not name.startswith("src_") or name in ("src_begin", "src_count"):
            cells[name] = cells[name][order]
    words = f"{what} {column} {amount}".strip() if column else what
    # A channel more, so that moving an op to a channel of its own is judged by what it does.
    channels = schedule.n_channels + (column == "channel")
    mutated = schedule.replace(ops=OpTable(**cells), n_channels=channels)
    return Mutant(f"{words} of {schedule.describe(op_id)}", tuple(i for i in near if i < len(mutated.ops)), mutated)
