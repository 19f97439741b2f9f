"""The shared-link tier: the same schedules, on links that all transfers share fairly; several jobs at once on one topology.

Is: the specification (below) of what time means where links are shared, and the columns that go to and come from the native core
(native/src/sim/sharing.hpp). Is not: packets, queues in switches, or loss. Invariants: whole picoseconds; nothing depends on the order
in which ranks, links or jobs are listed; where in the exact tier no transfer waits for one of another connection, no link has transfers
of two of them at one time, and no link between switches is slower than the NICs, every time equals the exact tier's to the picosecond.

Ops, channels, signals, counters, waits, latencies, `late`, `alpha` and `compute` mean what they mean in the exact tier (exact.py); the
order in which a counter's raises count is its static order too. What differs is the service of links.

**Flows.** What one channel puts to one peer is a connection, as a queue pair is: its puts go one after the other, in op order. A put
begins when its channel came to it, its peer has entered and the connection's put before has left; a get when its request has come;
a copy or reduction when its channel came to it. From its beginning until its last byte has left it is a flow on every link of its route
(Topology.route: the NICs, and the links between switches; or the fabric; or the rank's memory). Flows of different connections, ranks
and jobs move at one time. `alpha` is work, as many bytes as the slowest link of the route moves in that time.

**Rates** are max-min fair at every moment. In units of 2^-10 bytes/s: a link's share is what is left of its rate over its flows that
have no rate yet, rounded down (at least one unit); all flows of all links with the smallest share get it and are taken out with what
they use; and again. A flow leaves at the first whole picosecond at which it has moved all its work. Links of topo.INSTANT limit nobody.

**What holds, and what does not.** No link carries more than its rate, and every flow passes a full link on which no other gets more.
No collective is faster than the bytes of its busiest link at its rate. But it is not monotone: a slower link, a later rank or another
job can make some op (or the whole) earlier, because it keeps a competitor away at the right time; the exact tier is monotone.

**Routes.** With routing "ecmp" a connection stays on the uplinks that its hash gives it, so two may collide while other uplinks idle;
another `seed` of the network is another draw. With "spray" the uplinks of a switch are one link.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..arguments import as_array, instance, listed, several
from ..errors import UsageError
from ..ir import Kind, Layout, OpTable, Schedule
from ..topo import INSTANT, LinkKind, Topology
from ..trace import Trace
from ..units import Duration, Size
from . import exact
from .exact import Compute, Late, Times
from .interference import settle

I64 = npt.NDArray[np.int64]
_FASTEST = 2**52  # bytes/s: above, rates in units of 2^-10 bytes/s would not fit 64 bits


@dataclasses.dataclass(frozen=True)
class Job:
    """A collective among some ranks of a topology. ranks: rank r of the schedule is ranks[r] of the topology (default: all, in order).

    start: when the job begins (seconds or "5us"); `late` counts from there. The others as of `simulate`.
    """

    schedule: Schedule
    ranks: Sequence[int] | None = None
    start: Duration = 0
    nbytes: Size | None = None
    dtype: str | None = None
    counts: npt.ArrayLike | None = None
    late: Late = None
    compute_ps: Compute = None


def simulate_shared(
    schedule: Schedule,
    topology: Topology,
    nbytes: Size | None = None,
    dtype: str | None = None,
    counts: npt.ArrayLike | None = None,
    late: Late = None,
    compute_ps: Compute = None,
    alpha: Duration = 0,
    interference: float = 1.0,
    *,
    jobs: Sequence[Job] = (),
) -> Trace:
    """The trace of `schedule` on links that its transfers share fairly, with each other and with those of other `jobs`.

    Arguments, trace and errors as of `simulate`; meta also holds tier ("shared") and, of each other job, when it ended (jobs_end_ps).
    """
    first = Job(schedule, None, 0, nbytes, dtype, counts, late, compute_ps)
    return simulate_jobs([first, *_listed(jobs)], topology, alpha, interference)[0]


def simulate_jobs(jobs: Sequence[Job], topology: Topology, alpha: Duration = 0, interference: float = 1.0) -> list[Trace]:
    """A trace of each job, all on one topology at one time; alpha, interference: as of `simulate`, for all jobs.

    Ranks, nodes and NICs of the traces are those of the topology; begin and end of spans, and finish_ps, count from the common zero,
    time_ps and what follows from it from the job's start.
    Raises as `simulate`, and UsageError for ranks that are none of the topology or come twice in a job.
    Cost: as `shared_times`, and the spans of each trace.

        >>> simulate_jobs([Job(ring, ranks=range(8)), Job(ring, ranks=range(8, 16), start="1ms")], topology)      # doctest: +SKIP
    """
    placed = _placed(jobs, topology)
    all_times = _times(placed, topology, alpha, interference)
    ends = [times.time_ps for times in all_times]
    traces = []
    for i, (job, times) in enumerate(zip(placed, all_times, strict=True)):
        columns = exact._spans(job.on_topology, topology, job.layout, times)
        since_start = dataclasses.replace(times, finish_ps=times.finish_ps - job.start_ps)
        meta = exact._meta(job.schedule, topology, job.layout, since_start)
        meta |= {"tier": "shared", "finish_ps": times.finish_ps, "start_ps": job.start_ps, "ranks": job.ranks,
                 "jobs_end_ps": np.array(ends[:i] + ends[i + 1 :], np.int64)}  # fmt: skip
        if job.job.compute_ps is not None:
            meta |= {"alpha_ps": exact.picoseconds("alpha", alpha), "interference": float(interference), "device": "modelled"}
        traces.append(Trace(columns, meta))
    return traces


def shared_times(jobs: Sequence[Job], topology: Topology, alpha: Duration = 0, interference: float = 1.0) -> list[Times]:
    """The picoseconds themselves, of each job; arguments and errors as `simulate_jobs`.

    Cost: O(log ops) an op, and at each of the times when flows begin or end, for the links whose flows change rate then, their routes:
    an all_to_all among 512 ranks with ECMP takes 2 s, a ring of 10 million ops some 20 s.
    """
    return _times(_placed(jobs, topology), topology, alpha, interference)


def link_bytes(jobs: Sequence[Job], topology: Topology) -> I64:
    """Bytes that each link of the topology carries for all jobs, i64[n_links] (topology.links names them): where hashes collide.

    Copies and reductions count at their memory, once a source. Errors as `simulate_jobs`. Cost: O(ops log ops).
    """
    columns = _columns(_placed(jobs, topology), topology)
    moving = columns.route_of >= 0
    per_route = np.zeros(len(columns.routes), np.int64)
    np.add.at(per_route, columns.route_of[moving], columns.work[moving])
    out = np.zeros(len(topology.links), np.int64)
    once = np.sort(columns.routes, axis=1)
    once[:, 1:][once[:, 1:] == once[:, :-1]] = -1  # memory is both ends of its route
    for links in once.T:
        np.add.at(out, links[links >= 0], per_route[links >= 0])
    return out


def fair_rates(routes: npt.ArrayLike, flows: npt.ArrayLike, bytes_per_s: npt.ArrayLike,
               again: Sequence[int] = ()) -> npt.NDArray[np.float64]:  # fmt: skip
    """Max-min fair bytes/s of a flow of each class, f64[n], to 2^-10.

    routes: i32[n, width], links of a class, -1 where there are fewer; flows: i64[n], how many; bytes_per_s: i64[links]. again: classes
    that lose a flow and get it back one after the other, which must change nothing.
    """
    routes = np.ascontiguousarray(routes, np.int32)
    out = np.zeros(len(routes), np.int64)
    _core.fair_rates(routes, np.asarray(flows, np.int64), np.asarray(bytes_per_s, np.int64), np.asarray(again, np.int32), out)
    return out / 1024


@dataclasses.dataclass(frozen=True)
class _Placed:
    """A job with its place on the topology."""

    job: Job
    schedule: Schedule
    layout: Layout
    ranks: npt.NDArray[np.int32]
    on_topology: Schedule  # its ops, among ranks of the topology
    start_ps: int
    late_ps: I64

    @classmethod
    def of(cls, job: Job, topology: Topology) -> _Placed:
        schedule = instance(job.schedule, "schedule of a job", Schedule, "a Schedule")
        if job.ranks is None:
            exact._layout(schedule, topology, job.nbytes, job.dtype, job.counts)
        ranks = _ranks(job, topology)
        layout = schedule.layout(nbytes=job.nbytes, dtype=job.dtype, counts=None if job.counts is None else np.asarray(job.counts))
        ops, n = schedule.ops, schedule.n_ranks
        wrong = (ops.rank < 0) | (ops.rank >= n) | (ops.peer < -1) | (ops.peer >= n)
        if wrong.any():
            exact._raise(schedule, exact._BAD_OP, int(np.flatnonzero(wrong)[0]), 0)
        columns = dict(ops.columns())
        columns["rank"] = ranks[ops.rank]
        columns["peer"] = np.where(ops.peer >= 0, ranks[np.maximum(ops.peer, 0)], -1).astype(np.int32)
        start_ps = exact.picoseconds("start", job.start)
        late_ps = exact.late_times_ps(job.late, n) + start_ps
        if late_ps.max() >= exact._LONGEST_PS:
            raise UsageError(f"start {job.start!r} and late together: expected less than 26 days.")
        return cls(job, schedule, layout, ranks, schedule.replace(ops=OpTable(**columns)), start_ps, late_ps)


def _listed(jobs: Sequence[Job] | Job) -> tuple[Job, ...]:
    return listed(jobs, "jobs", Job, "a Job, or several")


def _placed(jobs: Sequence[Job] | Job, topology: Topology) -> list[_Placed]:
    placed = [_Placed.of(job, topology) for job in _listed(jobs)]
    if not placed:
        raise UsageError("no jobs: expected at least 1.")
    return placed


def _ranks(job: Job, topology: Topology) -> npt.NDArray[np.int32]:
    if job.ranks is None:
        return np.arange(topology.n_ranks, dtype=np.int32)
    ranks = as_array(several(job.ranks, "ranks of a job", "a list of ranks"))
    good = ranks.ndim == 1 and len(ranks) == job.schedule.n_ranks and ranks.dtype.kind in "iu"
    if not good or ranks.min() < 0 or ranks.max() >= topology.n_ranks or len(np.unique(ranks)) != len(ranks):
        raise UsageError(f"ranks {str(job.ranks)[:80]}: expected {job.schedule.n_ranks} different ranks of topology {topology.name!r}, 0 "
                         f"to {topology.n_ranks - 1}.")  # fmt: skip
    return ranks.astype(np.int32)


def _times(placed: Sequence[_Placed], topology: Topology, alpha: Duration, interference: float) -> list[Times]:
    alone_ps = np.concatenate([exact._compute_ps(job.schedule, job.job.compute_ps) for job in placed])
    alpha_ps = exact.picoseconds("alpha", alpha)
    exact._check_interference(interference)
    columns = _columns(placed, topology)
    times = _core_times(placed, topology, columns, alone_ps, alpha_ps)
    if interference != 1.0:
        times = settle(SimpleNamespace(ops=columns.ops), times, alone_ps, interference,
                       lambda compute_ps: _core_times(placed, topology, columns, compute_ps, alpha_ps))
    return _of_jobs(placed, times)


@dataclasses.dataclass(frozen=True)
class _Columns:
    """Ops of all jobs one after the other; `ops` has rank and peer as members: those of a job follow those of the job before."""

    ops: SimpleNamespace
    nbytes: I64
    work: I64  # bytes that links move for the op
    nominal: I64  # Layout.nominal_bytes
    step: npt.NDArray[np.int32]  # of jobs whose steps are a timetable; -1 for the others
    path: npt.NDArray[np.int32]
    request_ps: I64
    tier_ps: I64
    ready_ps: I64
    route_of: npt.NDArray[np.int32]
    routes: npt.NDArray[np.int32]


def _columns(placed: Sequence[_Placed], topology: Topology) -> _Columns:
    first = np.cumsum([0] + [len(job.ranks) for job in placed])[:-1]
    ops = SimpleNamespace(**{
        name: np.concatenate([getattr(job.schedule.ops, name) for job in placed])
        for name in ("channel", "kind", "sig_channel", "value", "src_count")})  # fmt: skip
    ops.rank = np.concatenate([job.schedule.ops.rank + at for job, at in zip(placed, first, strict=True)]).astype(np.int32)
    ops.peer = np.concatenate([np.where(job.schedule.ops.peer >= 0, job.schedule.ops.peer + at, -1)
                               for job, at in zip(placed, first, strict=True)]).astype(np.int32)  # fmt: skip
    paths, requests, tiers = zip(*(exact._paths(job.on_topology, topology) for job in placed), strict=True)
    route_of, routes = _routes(np.concatenate([_ends(job.on_topology, topology) for job in placed]), ops.kind, topology)
    nbytes = np.concatenate([job.layout.op_bytes() for job in placed])
    nominal = np.concatenate([job.layout.nominal_bytes() for job in placed])
    step = np.concatenate([np.where(job.schedule.timetable, np.maximum(job.schedule.ops.step, 0), -1) for job in placed]).astype(np.int32)
    work = nbytes * np.maximum(np.where(ops.kind == Kind.reduce, ops.src_count, 1), 1)
    return _Columns(ops, nbytes, work, nominal, step, np.concatenate(paths), np.concatenate(requests),
                    np.concatenate(tiers), np.concatenate([exact._ready_ps(job.schedule, job.late_ps) for job in placed]), route_of, routes)


def _ends(schedule: Schedule, topology: Topology) -> I64:
    """Where an op's bytes come from and go to, and the channel, i64[n_ops, 3]."""
    src, dst = exact._source_and_destination(schedule, topology)
    return np.stack([src, dst, schedule.ops.channel], axis=-1).astype(np.int64)


def _routes(ends: I64, kind: npt.NDArray[Any], topology: Topology) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """(row of each op, rows): every different route once; -1 for ops that move nothing."""
    moving = np.isin(kind, (Kind.put, Kind.get, Kind.copy, Kind.reduce))
    route_of = np.full(len(ends), -1, np.int32)
    src, dst, channel = ends[moving].T
    # One number a connection: sorting rows is ten times slower.
    channels, channel = np.unique(channel, return_inverse=True)
    key = (src * topology.n_ranks + dst) * max(len(channels), 1) + channel
    _, first, of_op = np.unique(key, return_index=True, return_inverse=True)
    routes, of_connection = np.unique(topology.route(*ends[moving][first].T), axis=0, return_inverse=True)
    route_of[moving] = of_connection.reshape(-1)[of_op.reshape(-1)]
    return route_of, np.ascontiguousarray(routes, np.int32)


def _core_times(placed: Sequence[_Placed], topology: Topology, columns: _Columns, compute_ps: I64, alpha_ps: int) -> Times:
    ops, links = columns.ops, topology.links
    used = np.unique(columns.routes[columns.routes >= 0])
    fast = used[(links.bytes_per_s[used] >= _FASTEST) & (links.bytes_per_s[used] < INSTANT)]
    if len(fast):
        raise UsageError(f"a {LinkKind(int(links.kind[fast[0]])).name} link of {links.bytes_per_s[fast[0]]} bytes/s: expected less than "
                         "2^52 where links are shared, or topo.INSTANT.")  # fmt: skip
    late_ps = np.concatenate([job.late_ps for job in placed])
    held = np.isin(ops.kind, (Kind.put, Kind.get)) & (ops.peer != ops.rank) & (columns.nbytes > 0)
    times, level, finish_ps = np.zeros((5, len(ops.kind)), np.int64), np.zeros(len(ops.kind), np.int32), np.zeros(len(late_ps), np.int64)
    status, op, detail = _core.simulate_shared(
        ops.rank, ops.channel, ops.kind, ops.peer, ops.sig_channel, ops.value,
        columns.work, columns.nominal, np.where(held, np.int64(alpha_ps), 0),
        compute_ps, columns.ready_ps, columns.request_ps, np.ascontiguousarray(columns.path[:, 0]),
        np.ascontiguousarray(columns.path[:, 1]), np.isin(links.kind, (LinkKind.nic_tx, LinkKind.nic_rx)).astype(np.uint8),
        links.bytes_per_s, links.latency_ps, late_ps, columns.tier_ps, columns.step,
        np.array([len(job.schedule.ops) for job in placed], np.int64), columns.route_of, columns.routes,
        times, level, finish_ps)  # fmt: skip
    if status != exact._OK:
        at = np.cumsum([0] + [len(job.schedule.ops) for job in placed])
        which = int(np.searchsorted(at, max(op, 0), side="right")) - 1
        exact._raise(placed[min(which, len(placed) - 1)].schedule, status, op - int(at[which]), detail)
    tier_ps = columns.tier_ps if len(columns.tier_ps) else np.zeros(len(ops.kind), np.int64)
    return Times(*times, level=level, finish_ps=finish_ps, late_ps=late_ps, links=columns.path, nbytes=columns.nbytes, tier_ps=tier_ps)


def _of_jobs(placed: Sequence[_Placed], times: Times) -> list[Times]:
    """The rows of each job, with the ranks of the topology."""
    out, op, member = [], 0, 0
    for job in placed:
        ops, members = slice(op, op + len(job.schedule.ops)), slice(member, member + len(job.ranks))
        per_op = {name: getattr(times, name)[ops] for name in
                  ("begin_ps", "end_ps", "start_ps", "leave_ps", "arrive_ps", "level", "links", "nbytes", "tier_ps")}  # fmt: skip
        out.append(Times(**per_op, finish_ps=times.finish_ps[members], late_ps=times.late_ps[members], ranks=job.ranks, shared=True))
        op, member = ops.stop, members.stop
    return out
