"""The exact tier: every op of a schedule gets whole picoseconds, by max-plus arithmetic in a static order.

Is: the specification (below) of what time means, and the columns that go to and come from the native core
(native/src/sim/exact.hpp). Is not: the core, which does the arithmetic, nor a correctness check (verifier).
Invariants: the order of service does not depend on any rate or delay, so no op gets earlier when a link gets slower or a rank
later; no transfer is faster than its slowest link; the core and the oracle of the tests agree to the picosecond.

**Order.** Channels of a rank are independent streams; an op follows the one before it in its channel (op_id order). The order is that
of nominal time, in which a transfer takes one tick a byte on the NICs of its path, in what order they come there, and all else takes
none; chunks count as if all parts of a block were as long as the longest (Layout.nominal_bytes), since an element more, which no link
would notice, must not put the puts of one rank as a whole before those of another. What begins at a tick begins in batches: all that
can begin, then all that can begin after that; puts to others and signals in a row, at which the channel goes on at once, are of one
batch. The transfers and memory operations of a batch take turns: in op_id order, each gets the first turn, 0, 1, 2, …, that none of
its links has given to another of this batch. Static order is (batch, turn, op_id); `level` is the number of the batch. The raises of
a counter (destination, source, sig_channel) are numbered by (batch, op_id), and a wait for value v follows the v-th of them (v <= 0:
none). An op that is never reached is a deadlock.

Where the planner gives a timetable (Schedule.timetable) an op begins at the tick of its step at the earliest, and transfers take no ticks.

In nominal time, from tick 0: a channel goes on at the tick of the op before it; after a wait not before the raise is seen, which is when
the put has left and no earlier than the raise before; after a get when it has arrived; after a flush when the channel's puts have left.

**Links.** A transfer uses two links at once (Topology.path), a local operation one (the rank's memory). A link serves one op at
a time, in static order, and is busy for ceil(bytes * 10^12 / its rate) ps from the common start (0 at topo.INSTANT), and for `alpha`
more with each transfer to or from another rank: what it costs beyond its bytes, when no other can use them. Nothing else is shared.
Where a link's rate changes in time (changes.py), its bytes, which come after `alpha`, pass at the rate of each moment; busy until the first
whole ps at which all have passed.

**Ops.** t is the time of the op's channel, at first when its rank enters (`late`); L the path's latency (Topology.latency_ps);
`free` the time when every link of the path is free; `ready` when the owner of remote memory has entered.

    put      start = max(t, ready, free); leaves = start + alpha + bytes / slowest link; arrives = leaves + L. The channel goes on at t.
    put to self   a copy: start = max(t, free); leaves = arrives = end. The channel goes on at the end.
    signal   arrives at t + L (to self: t); occupies no link. A put's signal arrives with the put.
    counter  rises never before an earlier raise was seen: arrival = max(arrival, arrival of the raise before).
    wait     the channel goes on at max(t, arrival of the v-th signal).
    flush    the channel goes on at max(t, when the puts of this channel before it, to that peer or to all, had left).
    get      start = max(t + L of the request's path rank -> peer, ready, free); arrives as a put; the channel goes on at arrival.
             From self: a copy.
    copy, reduce  start = max(t, ready, free); takes bytes * sources / memory rate; the channel goes on at the end. Sources in
             peers' memory cost the same as own ones.
    compute  takes what `compute_ps` says, whatever it reads and writes; the channel goes on at the end. Computation on two channels
             overlaps. Beside communication it may be slower: `interference` (interference.py).

Signals to a rank that has not entered are kept for it (only memory waits for `ready`). A rank ends when all its channels have
and its puts have left; a rank without ops ends when it enters. The division of `avg` takes no time. Ops of zero bytes
still queue for their links but do not occupy them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from .. import _core
from ..arguments import as_array, number, shown, whole
from ..errors import DeadlockError, ScheduleError, ShapeError, UsageError
from ..ir import Kind, Layout, Schedule
from ..topo import LinkKind, Topology
from ..trace import SpanKind, Trace, Track
from ..trace.statistics import bandwidths
from ..units import Duration, Size, parse_duration
from .changes import NONE, Changes
from .interference import settle

I64 = npt.NDArray[np.int64]
Late = Union[Mapping[int, Duration], Sequence[Duration], None]
Compute = Union[int, npt.ArrayLike, None]

_OK, _DEADLOCK, _OVERFLOW, _BAD_OP, _OUT_OF_MEMORY = range(5)
_LONGEST_PS = 2**61


@dataclasses.dataclass(frozen=True, eq=False)
class Times:
    """Picoseconds of every op, i64[n_ops], and of every rank, i64[n_ranks].

    begin_ps: its channel came to it; end_ps: its channel went on; start_ps: the first byte moved; leave_ps: the last byte left;
    arrive_ps: last byte and signal are visible; level: i32, number of the batch; finish_ps: a rank's end; links: i32[n_ops, 2];
    nbytes: bytes each op moves; tier_ps: latency of its path beyond that of the links, by the tier of switches where its ends meet.
    ranks: i32[n_ranks], the rank of the topology that each one is (None: the same); shared: transfers use all links of their path from
    the first byte to the last.
    """

    begin_ps: I64
    end_ps: I64
    start_ps: I64
    leave_ps: I64
    arrive_ps: I64
    level: npt.NDArray[np.int32]
    finish_ps: I64
    late_ps: I64
    links: npt.NDArray[np.int32]
    nbytes: I64
    tier_ps: I64
    ranks: npt.NDArray[np.int32] | None = None
    shared: bool = False

    @property
    def time_ps(self) -> int:
        """When the last rank ended."""
        return int(self.finish_ps.max())


def simulate(
    schedule: Schedule,
    topology: Topology,
    nbytes: Size | None = None,
    dtype: str | None = None,
    counts: npt.ArrayLike | None = None,
    late: Late = None,
    compute_ps: Compute = None,
    alpha: Duration = 0,
    interference: float = 1.0,
    changes: Changes = NONE,
) -> Trace:
    """The trace of `schedule` on the modelled links of `topology`.

    nbytes, dtype: size and type of the message (default: the schedule's). counts: i64[n, n] of all_to_allv. late: when each rank
    enters, {rank: duration} or one per rank (seconds or "5us"; others at 0). compute_ps: whole ps of a computation: one number, by
    partition i64[parts], or by rank and partition i64[n_ranks, parts] (default 0). alpha: how long each transfer to another rank
    occupies its links beyond its bytes (seconds or "5us"). interference: how many times longer computation takes while its rank
    communicates (1: not at all; measured elsewhere: 1.19 on average, at most 1.4, arXiv 2507.03114). changes: rates that change in time.

    Returns a Trace with spans per op (channel), per transfer (nic_tx, nic_rx, fabric), memory (copy), computation and rank
    (control); meta holds time_ps (exact), finish_ps per rank, time_us, algbw_gbytes_per_s, busbw_gbytes_per_s, n_ops, n_levels.
    Raises ShapeError where schedule and topology differ in ranks, DeadlockError naming the op that waits for ever, ScheduleError
    for an op with a column out of range, UsageError for an unusable size, lateness or duration.
    Cost: O(ops log ops), a few million ops a second: 0.02 s for 100,000 ops, 2 s for 4 million among 131,072 ranks.

        >>> simulate(ring, Topology.cluster(), "64MiB").time_us           # doctest: +SKIP
    """
    layout = _layout(schedule, topology, nbytes, dtype, counts)
    times = _exact_times(schedule, topology, layout, late, compute_ps, alpha, interference, changes)
    columns = _spans(schedule, topology, layout, times)
    meta = _meta(schedule, topology, layout, times)
    if compute_ps is not None:
        meta |= {"alpha_ps": picoseconds("alpha", alpha), "interference": float(interference), "device": "modelled"}
    return Trace(columns, meta)


def exact_times(
    schedule: Schedule,
    topology: Topology,
    nbytes: Size | None = None,
    dtype: str | None = None,
    counts: npt.ArrayLike | None = None,
    late: Late = None,
    compute_ps: Compute = None,
    alpha: Duration = 0,
    interference: float = 1.0,
    changes: Changes = NONE,
) -> Times:
    """The picoseconds themselves; arguments and errors as `simulate`."""
    layout = _layout(schedule, topology, nbytes, dtype, counts)
    return _exact_times(schedule, topology, layout, late, compute_ps, alpha, interference, changes)


def _layout(schedule: Schedule, topology: Topology, nbytes: Size | None, dtype: str | None, counts: Any) -> Layout:
    if schedule.n_ranks != topology.n_ranks:
        raise ShapeError(f"the schedule is for {schedule.n_ranks} ranks, topology {topology.name!r} has {topology.n_ranks}: plan for "
                         "this topology, or give one of that size.")
    return schedule.layout(nbytes=nbytes, dtype=dtype, counts=None if counts is None else as_array(counts))


def _exact_times(schedule: Schedule, topology: Topology, layout: Layout, late: Late, compute: Compute, alpha: Duration,
                 interference: float, changes: Changes) -> Times:
    late_ps, alone_ps = late_times_ps(late, topology.n_ranks), _compute_ps(schedule, compute)
    alpha_ps = picoseconds("alpha", alpha)
    _check_interference(interference)
    times = core_times(schedule, topology, layout, late_ps, alone_ps, alpha_ps, changes)
    if interference == 1.0:
        return times
    return settle(schedule, times, alone_ps, interference,
                  lambda compute_ps: core_times(schedule, topology, layout, late_ps, compute_ps, alpha_ps, changes))


def _check_interference(interference: float) -> None:
    if not 1.0 <= number(interference, "interference", "a factor from 1 (none) to 100") <= 100.0:
        raise UsageError(f"interference {interference!r}: expected a factor from 1 (none) to 100.")


def core_times(schedule: Schedule, topology: Topology, layout: Layout, late_ps: I64, compute_ps: I64, alpha_ps: int,
               changes: Changes = NONE) -> Times:  # fmt: skip
    """The native core's answer for checked arguments, all in ps; errors as `simulate`."""
    ops, links = schedule.ops, topology.links
    nbytes = layout.op_bytes()
    held = np.isin(ops.kind, (Kind.put, Kind.get)) & (ops.peer != ops.rank) & (nbytes > 0)
    path, request_ps, tier_ps = _paths(schedule, topology)
    times = np.zeros((5, len(ops)), np.int64)
    level, finish_ps = np.zeros(len(ops), np.int32), np.zeros(topology.n_ranks, np.int64)
    status, op, detail = _core.simulate_exact(
        ops.rank, ops.channel, ops.kind, ops.peer, ops.sig_channel, ops.value,
        nbytes * np.maximum(np.where(ops.kind == Kind.reduce, ops.src_count, 1), 1), layout.nominal_bytes(),
        np.where(held, np.int64(alpha_ps), 0), compute_ps, _ready_ps(schedule, late_ps), request_ps,
        np.ascontiguousarray(path[:, 0]), np.ascontiguousarray(path[:, 1]),
        np.isin(links.kind, (LinkKind.nic_tx, LinkKind.nic_rx)).astype(np.uint8), links.bytes_per_s, links.latency_ps, late_ps, tier_ps,
        ops.step if schedule.timetable else ops.step[:0],
        *changes.columns().values(), times, level, finish_ps)  # fmt: skip
    if status != _OK:
        _raise(schedule, status, op, detail)
    return Times(*times, level=level, finish_ps=finish_ps, late_ps=late_ps, links=path, nbytes=nbytes,
                 tier_ps=tier_ps if len(tier_ps) else np.zeros(len(ops), np.int64))


def _paths(schedule: Schedule, topology: Topology) -> tuple[npt.NDArray[np.int32], I64, I64]:
    """Links i32[n_ops, 2] of every op, the latency of each get's request, and what switches add to each op's latency (empty: nothing).

    Ranks out of range are left to the core to refuse.
    """
    ops = schedule.ops
    src, dst = _source_and_destination(schedule, topology)
    path, gets = topology.path(src, dst, ops.channel), ops.kind == Kind.get
    request_ps = np.zeros(len(ops), np.int64)
    if gets.any():
        request_ps[gets] = topology.latency_ps(dst[gets], src[gets], ops.channel[gets])
    tier_ps = np.zeros(0, np.int64)
    if topology.network is not None:
        tier_ps = topology.tier_latency_ps(src, dst, ops.channel)
    return path, request_ps, tier_ps


def _source_and_destination(schedule: Schedule, topology: Topology) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Ranks whose link an op's bytes leave and reach; the op's own rank twice where it moves nothing to another."""
    ops, last = schedule.ops, topology.n_ranks - 1
    rank = np.clip(ops.rank, 0, last)
    peer = np.where(np.isin(ops.kind, (Kind.put, Kind.get, Kind.signal)), np.clip(ops.peer, 0, last), rank)
    gets = ops.kind == Kind.get
    return np.where(gets, peer, rank), np.where(gets, rank, peer)


def _ready_ps(schedule: Schedule, late_ps: I64) -> I64:
    """When the owners of all remote memory an op touches have entered."""
    ops, ready = schedule.ops, np.zeros(len(schedule.ops), np.int64)
    if not late_ps.any():
        return ready
    known = (ops.peer >= 0) & (ops.peer < len(late_ps)) & np.isin(ops.kind, (Kind.put, Kind.get))
    ready[known] = late_ps[ops.peer[known]]
    local = np.flatnonzero(np.isin(ops.kind, (Kind.copy, Kind.reduce)) & (ops.src_count > 0))
    rows = np.repeat(local, ops.src_count[local])
    first = np.repeat(ops.src_begin[local] - np.cumsum(ops.src_count[local]) + ops.src_count[local], ops.src_count[local])
    owner = np.clip(ops.src_rank[first + np.arange(len(rows))], 0, len(late_ps) - 1)
    np.maximum.at(ready, rows, late_ps[owner])
    return ready


def late_times_ps(late: Late, n_ranks: int) -> I64:
    """When each rank enters, i64[n_ranks]; UsageError or ShapeError for a rank or duration that cannot be."""
    out = np.zeros(n_ranks, np.int64)
    if late is None:
        return out
    if isinstance(late, (Sequence, np.ndarray)) and as_array(late).ndim == 1:
        if len(late) != n_ranks:
            raise ShapeError(f"late lists {len(late)} ranks: expected {n_ranks}, or {{rank: duration}}.")
        late = dict(enumerate(late))
    if not hasattr(late, "items"):  # a Series has them, too, by its index
        raise UsageError(f"late {shown(late)} is a {type(late).__name__}: expected {{rank: duration}}, or a duration for each rank.")
    for rank, duration in late.items():
        out[whole(rank, "late names rank", 0, n_ranks - 1)] = picoseconds(f"late[{rank}]", duration)
    return out


def picoseconds(what: str, duration: Duration) -> int:
    """Whole ps of a duration; UsageError naming `what`."""
    try:
        picoseconds = round(parse_duration(duration) * 1e12)
    except UsageError as error:
        raise UsageError(f"{what}: {error}") from None
    if picoseconds >= _LONGEST_PS:
        raise UsageError(f"{what} is {duration!r}: expected less than 26 days.")
    return picoseconds


def _compute_ps(schedule: Schedule, compute: Compute) -> I64:
    """Duration of each compute op; 0 for the others."""
    ops, out = schedule.ops, np.zeros(len(schedule.ops), np.int64)
    rows = np.flatnonzero(ops.kind == Kind.compute)
    if compute is None or not len(rows):
        return out
    table = as_array(compute)
    if table.dtype.kind not in "iu" or table.ndim > 2 or (table.size and (table.min() < 0 or table.max() >= _LONGEST_PS)):
        raise UsageError("compute_ps: expected whole picoseconds, 0 or more and below 2^61: a number, one per partition, or "
                         "[n_ranks, partitions].")
    if table.ndim == 0:
        out[rows] = table
        return out
    if table.ndim == 2 and table.shape[0] != schedule.n_ranks:
        raise ShapeError(f"compute_ps has {table.shape[0]} rows: expected one for each of {schedule.n_ranks} ranks.")
    arg = ops.arg[rows]
    wrong = (arg < 0) | (arg >= table.shape[-1])
    if wrong.any():
        op = int(rows[wrong][0])
        raise ShapeError(f"op {op} computes partition {ops.arg[op]}: compute_ps has {table.shape[-1]} partitions.")
    out[rows] = table[arg] if table.ndim == 1 else table[np.clip(ops.rank[rows], 0, schedule.n_ranks - 1), arg]
    return out


def _raise(schedule: Schedule, status: int, op: int, detail: int) -> None:
    if status == _OUT_OF_MEMORY:
        raise MemoryError(f"simulating {len(schedule.ops)} ops")
    what, rank = schedule.describe(op), int(schedule.ops.rank[op])
    if status == _DEADLOCK:
        raise DeadlockError(f"{what} waits for ever: at most {detail} of the {schedule.ops.value[op]} signals it waits for can be "
                            "raised. Look for a missing signal, or for two channels that wait for each other.", rank=rank, op_id=op)
    if status == _OVERFLOW:
        raise UsageError(f"{what} would happen after more than 53 days: raise the rates or lower the size.", rank=rank, op_id=op)
    raise ScheduleError(f"{what} has a rank, peer, kind, channel or chunk out of range: verify the schedule.", rank=rank, op_id=op)


def _spans(schedule: Schedule, topology: Topology, layout: Layout, times: Times) -> dict[str, npt.NDArray[Any]]:
    """Columns of the trace: ranks, channels, then what occupied memory, fabric and NICs."""
    ops = schedule.ops
    own = ops.peer == ops.rank
    moves = np.isin(ops.kind, (Kind.put, Kind.get)) & ~own & (times.nbytes > 0)
    far = np.zeros(len(ops), bool)
    far[moves] = topology.node_of[ops.rank[moves]] != topology.node_of[ops.peer[moves]]
    local = np.isin(ops.kind, (Kind.copy, Kind.reduce)) | (own & np.isin(ops.kind, (Kind.put, Kind.get)))
    every = np.ones(len(ops), bool)
    # A put is open from its issue until its bytes have left, as the engine records it.
    ends = np.where(ops.kind == Kind.put, times.leave_ps, times.end_ps)
    parts = [
        _ranks(layout, times),
        _rows(schedule, times, every, Track.channel, ops.kind, times.begin_ps, ends),
        _rows(schedule, times, ops.kind == Kind.compute, Track.compute, ops.kind, times.begin_ps, times.end_ps),
        _rows(schedule, times, local, Track.copy, ops.kind, times.start_ps, times.leave_ps),
        _rows(schedule, times, moves & ~far, Track.fabric, np.where(ops.kind == Kind.get, Kind.get, SpanKind.segment),
              times.start_ps, times.leave_ps),
        _nic_rows(schedule, topology, times, far, Track.nic_tx),
        _nic_rows(schedule, topology, times, far, Track.nic_rx),
    ]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    begin_ps, end_ps = columns.pop("begin_ps"), columns.pop("end_ps")
    return {**columns, "node": topology.node_of[columns["rank"]], "begin_ns": begin_ps // 1000, "end_ns": end_ps // 1000}


def _ranks(layout: Layout, times: Times) -> dict[str, npt.NDArray[Any]]:
    n = len(times.finish_ps)
    none = np.full(n, -1, np.int32)
    ranks = np.arange(n, dtype=np.int32) if times.ranks is None else times.ranks
    return {"rank": ranks, "track": np.full(n, Track.control, np.uint8), "index": np.zeros(n, np.uint16),
            "kind": np.full(n, SpanKind.collective, np.uint8), "op_id": none, "step": none, "peer": none,
            "nbytes": np.full(n, layout.message_nbytes(), np.int64), "begin_ps": times.late_ps, "end_ps": times.finish_ps}  # fmt: skip


def _rows(schedule: Schedule, times: Times, mask: npt.NDArray[np.bool_], track: Track, kind: npt.NDArray[Any],
          begin_ps: I64, end_ps: I64) -> dict[str, npt.NDArray[Any]]:  # fmt: skip
    ops, op_id = schedule.ops, np.flatnonzero(mask).astype(np.int32)
    return {"rank": ops.rank[op_id], "track": np.full(len(op_id), track, np.uint8), "index": ops.channel[op_id].astype(np.uint16),
            "kind": kind[op_id].astype(np.uint8), "op_id": op_id, "step": ops.step[op_id], "peer": ops.peer[op_id],
            "nbytes": times.nbytes[op_id], "begin_ps": begin_ps[op_id], "end_ps": end_ps[op_id]}  # fmt: skip


def _nic_rows(schedule: Schedule, topology: Topology, times: Times, mask: npt.NDArray[np.bool_],
              track: Track) -> dict[str, npt.NDArray[Any]]:  # fmt: skip
    """What a NIC did: its own busy time, at the receiver shifted by the latency of the path."""
    links, side = topology.links, int(track == Track.nic_rx)
    link = times.links[:, side]
    busy = np.where(mask, times.leave_ps - times.start_ps, 0)
    rates = links.bytes_per_s[times.links]
    # The slower side is busy for the whole transfer, the faster one for its share of it; spans are drawn, so a float will do. Where links
    # are shared both are in use from the first byte to the last.
    faster = (rates[:, side] > rates.min(axis=1)) & (not times.shared)
    own = np.where(faster, busy * (rates.min(axis=1) / np.maximum(rates[:, side], 1)), busy)
    shift = links.latency_ps[times.links].sum(axis=1) + times.tier_ps if side else 0
    out = _rows(schedule, times, mask, track, np.full(len(mask), SpanKind.segment), times.start_ps + shift,
                times.start_ps + shift + own.astype(np.int64))
    op_id = out["op_id"]
    # A get's bytes leave at the peer; the span belongs to the rank on whose side the NIC is.
    swap = (schedule.ops.kind[op_id] == Kind.get) ^ bool(side)
    out["rank"], out["peer"] = np.where(swap, out["peer"], out["rank"]), np.where(swap, out["rank"], out["peer"])
    return {**out, "index": links.owner[link[op_id]].astype(np.uint16)}


def _meta(schedule: Schedule, topology: Topology, layout: Layout, times: Times) -> dict[str, Any]:
    nbytes, time_us = layout.message_nbytes(), times.time_ps / 1e6
    algbw, busbw = bandwidths(schedule.collective, schedule.n_ranks, nbytes, time_us)
    return {
        "source": "simulated", "collective": schedule.collective, "algorithm": schedule.algorithm, "n_ranks": schedule.n_ranks,
        "nbytes": nbytes, "dtype": layout.dtype, "redop": schedule.redop, "time_ps": times.time_ps, "time_us": time_us,
        "finish_ps": times.finish_ps, "algbw_gbytes_per_s": algbw, "busbw_gbytes_per_s": busbw, "n_ops": len(schedule.ops),
        "n_levels": int(times.level.max()) + 1 if len(schedule.ops) else 0, "topology": topology.to_dict(),
        "schedule_digest": schedule.digest, "drops": 0,
    }  # fmt: skip
