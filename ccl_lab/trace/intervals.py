"""Unions and differences of time intervals, many groups at once.

Is: array arithmetic on half-open intervals [begin, end) in ns. Is not: aware of traces or of what a group
means.
Invariants: empty and reversed intervals cover nothing; no loop over intervals. Cost: one sort.
"""

from __future__ import annotations

import numpy as np

_MAX = 2**62


def union(
    begin: np.ndarray, end: np.ndarray, group: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The disjoint intervals that cover the same time, per group, in order: (begin, end, group), i64[k] each.

    Args: begin, end: i64[n] ns; group: i64[n] (default: all one group).
    """
    group = np.zeros(len(begin), np.int64) if group is None else np.asarray(group, np.int64)
    keep = end > begin
    begin, end, group = begin[keep].astype(np.int64), end[keep].astype(np.int64), group[keep]
    if not len(begin):
        return begin, end, group
    order = np.lexsort((begin, group))
    begin, end, group = begin[order], end[order], group[order]
    reach = _running_end(begin, end, group)
    first = np.ones(len(begin), bool)
    first[1:] = (group[1:] != group[:-1]) | (begin[1:] > reach[:-1])
    starts = np.flatnonzero(first)
    lasts = np.append(starts[1:], len(begin)) - 1
    return begin[starts], reach[lasts], group[starts]


def _running_end(begin: np.ndarray, end: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The largest end so far within the group; arrays sorted by (group, begin)."""
    dense = np.cumsum(np.concatenate(([0], group[1:] != group[:-1])))
    low, high = int(begin.min()), int(end.max())
    stride = high - low + 1
    if stride * (int(dense[-1]) + 1) < _MAX:
        # one cumulative maximum for all groups: each is lifted above all ends of the one before
        lift = dense * stride
        return np.maximum.accumulate(end - low + lift) - lift + low
    reach = np.empty_like(end)
    bounds = np.append(np.flatnonzero(np.concatenate(([True], dense[1:] != dense[:-1]))), len(end))
    for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        reach[a:b] = np.maximum.accumulate(end[a:b])
    return reach


def covered(begin: np.ndarray, end: np.ndarray, group: np.ndarray, n_groups: int) -> np.ndarray:
    """ns covered per group 0..n_groups-1, i64[n_groups]."""
    begin, end, group = union(begin, end, group)
    total = np.zeros(n_groups, np.int64)
    np.add.at(total, group, end - begin)
    return total


def covered_without(
    begin: np.ndarray, end: np.ndarray, group: np.ndarray, wanted: np.ndarray, n_groups: int
) -> np.ndarray:
    """ns per group that wanted intervals (mask) cover and no other interval does, i64[n_groups]."""
    others = ~wanted
    return covered(begin, end, group, n_groups) - covered(begin[others], end[others], group[others], n_groups)
