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


def coverage_within(
    begin: np.ndarray,
    end: np.ndarray,
    group: np.ndarray,
    by: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> np.ndarray:
    """ns of each interval that `by` covers, i64[n]: `by` is (begin, end, group) as `union` returns it.

    The covered time up to t is a sum of whole intervals and a part of one, so each end is one search. An
    interval is measured against the intervals of its own group; one that covers nothing has 0.
    """
    covers, reaches, groups = by
    found = np.zeros(len(begin), np.int64)
    if not len(begin) or not len(covers):
        return found
    group = np.asarray(group, np.int64)
    bounds = np.flatnonzero(np.concatenate(([True], groups[1:] != groups[:-1])))
    order = np.argsort(group, kind="stable")
    first = np.searchsorted(group[order], groups[bounds], "left")
    last = np.searchsorted(group[order], groups[bounds], "right")
    for a, b, low, high in zip(
        bounds.tolist(), [*bounds[1:].tolist(), len(covers)], first.tolist(), last.tolist(), strict=True
    ):
        rows = order[low:high]
        until = [_covered_until(covers[a:b], reaches[a:b], t[rows].astype(np.int64)) for t in (begin, end)]
        found[rows] = np.maximum(until[1] - until[0], 0)
    return found


def _covered_until(begin: np.ndarray, end: np.ndarray, times: np.ndarray) -> np.ndarray:
    """ns that these disjoint, ordered intervals cover before each time."""
    before = np.concatenate(([0], np.cumsum(end - begin)))
    at = np.searchsorted(begin, times, "right") - 1
    inside = np.clip(times - begin[np.maximum(at, 0)], 0, (end - begin)[np.maximum(at, 0)])
    return np.where(at >= 0, before[np.maximum(at, 0)] + inside, 0)
