"""Lanes: which spans of one track must be drawn side by side.

Is: the split of overlapping spans into lanes on which spans either nest or follow each other, as Perfetto
demands, and the order that joins puts with the waits they end. Is not: drawing.
Invariants: on a lane, any two spans are disjoint or one contains the other; a track without overlap has
one lane.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import numpy as np

from .columns import SpanKind, Track

if TYPE_CHECKING:
    from .model import Trace

_NESTING_LANES = 64


def drawing_order(trace: Trace) -> np.ndarray:
    """Rows by begin, the longer first: parents before their children, i64[n]."""
    return np.lexsort((-trace["end_ns"], trace["begin_ns"]))


def tracks_of(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """The tracks a trace has and which one each span is on: (i64[k, 4] of (node, rank, track, index),
    i64[n]).

    A NIC belongs to its node (rank -1), everything else to a rank.
    """
    on_nic = np.isin(trace["track"], [Track.nic_tx, Track.nic_rx])
    rank = np.where(on_nic, -1, trace["rank"]).astype(np.int64)
    node = trace["node"].astype(np.int64)
    keys = np.stack([node, rank, trace["track"].astype(np.int64), trace["index"].astype(np.int64)], axis=1)
    distinct, which = np.unique(keys, axis=0, return_inverse=True)
    return distinct, which.reshape(-1)


def assign_lanes(trace: Trace, track_of: np.ndarray) -> np.ndarray:
    """The lane of each span within its track, i32[n]: the first on which it nests or follows.

    Cost: array arithmetic for tracks without overlap; per span and lane where spans overlap.
    """
    begin = trace["begin_ns"]
    end = np.maximum(trace["end_ns"], begin)
    order = np.lexsort((-end, begin, track_of))
    lanes = np.zeros(len(trace), np.int32)
    if not len(trace):
        return lanes
    tracks, sorted_begin, sorted_end = track_of[order], begin[order], end[order]
    same = tracks[1:] == tracks[:-1]
    overlap = same & (sorted_begin[1:] < sorted_end[:-1])
    busy = np.unique(tracks[1:][overlap])
    bounds = np.searchsorted(tracks, np.stack([busy, busy + 1]))
    for first, last in bounds.T.tolist():
        lanes[order[first:last]] = _greedy(sorted_begin[first:last].tolist(), sorted_end[first:last].tolist())
    return lanes


def _greedy(begins: list[int], ends: list[int]) -> list[int]:
    """First fit; each lane is a stack of the ends of the spans open on it.

    Beyond _NESTING_LANES lanes spans only follow each other: a heap finds the lane that is free first.
    """
    lanes: list[list[int]] = []
    more: list[tuple[int, int]] = []
    found = []
    for begin, end in zip(begins, ends, strict=True):
        for number, stack in enumerate(lanes):
            while stack and stack[-1] <= begin:
                stack.pop()
            if not stack or stack[-1] >= end:
                stack.append(end)
                found.append(number)
                break
        else:
            if len(lanes) < _NESTING_LANES:
                lanes.append([end])
                found.append(len(lanes) - 1)
            else:
                number = _NESTING_LANES + len(more)
                if more and more[0][0] <= begin:
                    number = heapq.heapreplace(more, (end, more[0][1]))[1]
                else:
                    heapq.heappush(more, (end, number))
                found.append(number)
    return found


def put_wait_pairs(trace: Trace, schedule: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Rows of puts (or signals) and of the waits that saw them: (i64[k], i64[k]).

    With the schedule the pairs are exact: the wait for value v sees the v-th signal on its counter.
    Without it the i-th put of a channel to a peer belongs to the i-th wait of that peer's channel of the
    same number, where both have as many; other waits get no pair.
    """
    rows = np.flatnonzero(
        (trace["op_id"] >= 0) & np.isin(trace["track"], [Track.channel, Track.nic_tx, Track.fabric])
    )
    kind = trace["kind"][rows]
    senders, waits = rows[kind <= SpanKind.signal], rows[(kind == SpanKind.wait) & (trace["peer"][rows] >= 0)]
    senders = senders[(trace["kind"][senders] != SpanKind.get) & (trace["peer"][senders] >= 0)]
    senders = _first_of_op(trace, senders)
    waits = _first_of_op(trace, waits)
    if not len(senders) or not len(waits):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return (
        _by_counter(trace, senders, waits, schedule)
        if schedule is not None
        else _by_order(trace, senders, waits)
    )


def _first_of_op(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """One row per (collective, op): on the channel if there is one, else the first."""
    if not len(rows):
        return rows
    coll, op, track, begin = (trace[name][rows] for name in ("coll_id", "op_id", "track", "begin_ns"))
    order = np.lexsort((begin, track, op, coll))
    rows, coll, op = rows[order], coll[order], op[order]
    new = np.ones(len(rows), bool)
    new[1:] = (coll[1:] != coll[:-1]) | (op[1:] != op[:-1])
    return rows[new]


def _by_order(trace: Trace, senders: np.ndarray, waits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    def keys(rows: np.ndarray, source: str, target: str) -> np.ndarray:
        names = ("coll_id", source, target, "index")
        return np.stack([trace[name][rows].astype(np.int64) for name in names], axis=1)

    # a sender seen only on a NIC carries the NIC's number, not the channel's
    senders = senders[trace["track"][senders] == Track.channel]
    both = np.concatenate([keys(senders, "rank", "peer"), keys(waits, "peer", "rank")])
    if not len(both):
        return senders, waits[:0]
    _, counter = np.unique(both, axis=0, return_inverse=True)
    counter = counter.reshape(-1)
    sent, seen = counter[: len(senders)], counter[len(senders) :]
    n = int(counter.max()) + 1
    equal = np.bincount(sent, minlength=n) == np.bincount(seen, minlength=n)
    order_sent = np.lexsort((trace["op_id"][senders], sent))
    order_seen = np.lexsort((trace["op_id"][waits], seen))
    return senders[order_sent][equal[sent[order_sent]]], waits[order_seen][equal[seen[order_seen]]]


def _by_counter(
    trace: Trace, senders: np.ndarray, waits: np.ndarray, schedule: Any
) -> tuple[np.ndarray, np.ndarray]:
    ops = schedule.ops
    n_ops = len(ops.rank)
    source = signal_of_wait(ops)
    senders = senders[trace["op_id"][senders] < n_ops]
    waits = waits[trace["op_id"][waits] < n_ops]
    wanted = source[trace["op_id"][waits]]
    waits, wanted = waits[wanted >= 0], wanted[wanted >= 0]
    sent_key = trace["coll_id"][senders].astype(np.int64) * n_ops + trace["op_id"][senders]
    seen_key = trace["coll_id"][waits].astype(np.int64) * n_ops + wanted
    order = np.argsort(sent_key)
    at = np.minimum(np.searchsorted(sent_key[order], seen_key), max(len(order) - 1, 0))
    if not len(order):
        return senders, waits[:0]
    hit = sent_key[order][at] == seen_key
    return senders[order[at[hit]]], waits[hit]


def signal_of_wait(ops: Any) -> np.ndarray:
    """For each op of a schedule: the op whose signal ends this wait, i64[n_ops]; -1 for other ops."""
    kind, n = np.asarray(ops.kind), len(ops.kind)
    rank, peer, channel = (np.asarray(x).astype(np.int64) for x in (ops.rank, ops.peer, ops.sig_channel))
    found = np.full(n, -1, np.int64)
    raises = np.flatnonzero((kind <= SpanKind.signal) & (kind != SpanKind.get) & (channel >= 0))
    waits = np.flatnonzero(kind == SpanKind.wait)
    if not len(raises) or not len(waits):
        return found
    both = np.concatenate(
        [
            np.stack([rank[raises], peer[raises], channel[raises]], axis=1),
            np.stack([peer[waits], rank[waits], channel[waits]], axis=1),
        ]
    )
    _, counter = np.unique(both, axis=0, return_inverse=True)
    counter = counter.reshape(-1)
    raised, awaited = counter[: len(raises)], counter[len(raises) :]
    order = np.argsort(raised, kind="stable")
    counts = np.bincount(raised, minlength=int(counter.max()) + 1)
    firsts = np.concatenate(([0], np.cumsum(counts)[:-1]))
    value = np.asarray(ops.value)[waits].astype(np.int64)
    fits = (value >= 1) & (value <= counts[awaited])
    found[waits[fits]] = raises[order[firsts[awaited[fits]] + value[fits] - 1]]
    return found
