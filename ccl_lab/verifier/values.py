"""Values of the symbolic run by number: sums of whole contributions, so that moving a value is copying an int.

Is: the numbering and the addition. Is not: about memory or order. Invariant: equal sums have equal numbers; a broken value
remembers the op that broke it.
"""

from __future__ import annotations

from typing import NamedTuple

UNWRITTEN = 0


class Value(NamedTuple):
    """Sum of input block `block` over the ranks in `mask`; `broken_by`: op that made something else, and `why`."""

    block: int
    mask: int
    broken_by: int = -1
    why: str = ""


class Values:
    """Values by number; equal sums have equal numbers."""

    def __init__(self) -> None:
        self.all = [Value(-1, 0, why="bytes that nobody wrote")]
        self._ids: dict[tuple[int, int], int] = {}
        self._sums: dict[tuple[int, ...], int] = {}

    def of(self, block: int, mask: int) -> int:
        """Number of the sum of `block` over the ranks of `mask`."""
        found = self._ids.get((block, mask))
        if found is None:
            found = self._ids[block, mask] = len(self.all)
            self.all.append(Value(block, mask))
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
                return self._broken(op, f"adds the contribution of {ranks_of(value.mask & mask)} twice")
            mask |= value.mask
        return self.of(block, mask)

    def _broken(self, op: int, why: str) -> int:
        self.all.append(Value(-1, 0, op, why))
        return len(self.all) - 1


def ranks_of(mask: int) -> str:
    ranks = [i for i in range(mask.bit_length()) if mask >> i & 1]
    shown = ", ".join(map(str, ranks[:8])) + (f", … ({len(ranks)} ranks)" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}" if ranks else "no rank"
