"""Proves that conflicting accesses are ordered: any two that touch the same memory, one of them writing.

Is: one walk over the ops with a vector clock per thread; a location remembers its last write and the reads since. Is not:
about what is written. What orders what:

    op, next op of its thread         program order
    k-th signal of a counter, wait    the wait for a value >= k comes after it, and after its put's bytes
    entry, first op                   all ranks have entered; nothing else is shared before

    copy, reduce, get, compute        touch memory between the ops around them; what a compute makes it does not read
    put writes at the peer            from its issue until a wait there has seen its signal; without a signal: the next
                                      signal of the same channel to the same peer
    put reads its source              from its issue until a flush of its channel, or the wait above, or the rank's end
    end of a rank                     after all its ops; what others do in its memory must come before

Invariants: a counter that several threads raise says only how many signals came; a wait then learns of those that must be
among them, whichever come first. Every signal is waited for, since counters go on into the next run.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from ..errors import ContributionError, RaceError
from ..ir import Kind, describe
from .program import Program

Row = np.ndarray  # int32[n_threads]: how far each thread is known to be


class _Signal(NamedTuple):
    """A raised signal: what its thread knew (`row`, own `clock`), and the puts whose bytes it announces."""

    row: Row
    thread: int
    clock: int
    puts: tuple[int, ...]
    op: int


def check_races(program: Program, order: list[int]) -> int:
    """Number of ordered pairs found; RaceError names two ops that nothing orders."""
    _check_all_awaited(program)
    walk = _Walk(program)
    walk.run(order)
    walk.check_ends()
    return walk.ordered


def _check_all_awaited(program: Program) -> None:
    extra = np.flatnonzero(program.raised > program.awaited)
    if len(extra) == 0:
        return
    c = int(extra[0])
    raising = [op for op in range(program.n_ops) if program.counter[op] == c and program.kind[op] != Kind.wait]
    op = program.schedule.ops[raising[int(program.awaited[c])]]
    raise RaceError(
        f"{describe(op)}: rank {op.peer} never waits for this signal ({program.raised[c]} raised, {program.awaited[c]} awaited), "
        "so it may end before the bytes are there; add a wait, or drop the signal.",
        rank=op.rank,
        op_id=op.op_id,
    )


class _Walk:
    """The state of the walk: clocks of threads, signals in flight, last accesses of every location."""

    def __init__(self, program: Program) -> None:
        self.program, n = program, len(program.programs)
        self.rows: list[Row] = [np.zeros(n, np.int32) for _ in range(n)]
        self.clock = [0] * n
        self.clock_of = [0] * program.n_ops
        self.signals: list[list[_Signal]] = [[] for _ in range(program.n_counters)]
        self.seen: dict[tuple[int, int], int] = {}
        self.unsure: dict[int, list[tuple[int, list[_Signal]]]] = defaultdict(list)
        self.silent: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.leaving: dict[int, list[int]] = defaultdict(list)
        # put -> (thread, clock) of the events after which its bytes are known to be there; of its flush
        self.arrived: dict[int, list[tuple[int, int]]] = {}
        self.left: dict[int, tuple[int, int]] = {}
        self.last_write = [-1] * program.n_locations
        self.reads: list[list[int]] = [[] for _ in range(program.n_locations)]
        self.ordered = 0

    def run(self, order: list[int]) -> None:
        """Walks all ops; RaceError at the first pair that is not ordered."""
        program = self.program
        kind, thread, counter, touches = program.kind, program.thread, program.counter, program.touches
        wait, flush, put = int(Kind.wait), int(Kind.flush), int(Kind.put)
        clock, clock_of = self.clock, self.clock_of
        for op in order:
            t, k = thread[op], kind[op]
            clock[t] += 1
            clock_of[op] = clock[t]
            if k == wait:
                self._wait(op, t)
                continue
            if touches[op]:
                if k == put:
                    self.arrived[op] = []
                    self.leaving[t].append(op)
                self._touch(op, t)
            if k == flush:
                self._flush(op, t)
            elif counter[op] >= 0:
                self._signal(op, t)
            elif k == put:
                self.silent[t, program.peer[op]].append(op)

    def _touch(self, op: int, t: int) -> None:
        """The accesses of an op that moves bytes."""
        program, row, last_write, reads = self.program, self.rows[t], self.last_write, self.reads
        clock_of, thread, arrived = self.clock_of, program.thread, self.arrived
        n, ordered = program.n_chunks[op], 0
        for source in program.sources[op]:
            for at in range(source, source + n):
                w = last_write[at]
                if w >= 0:
                    ordered += 1
                    if w in arrived:
                        if not self._knows(row, t, arrived[w]):
                            raise self._race(op, "reads", w, "write", at)
                    elif thread[w] != t and row[thread[w]] < clock_of[w]:
                        raise self._race(op, "reads", w, "write", at)
                reads[at].append(op)
        for at in range(program.dst[op], program.dst[op] + n) if program.writes[op] else ():
            w = last_write[at]
            if w >= 0:
                ordered += 1
                if w in arrived:
                    if not self._knows(row, t, arrived[w]):
                        raise self._race(op, "writes", w, "write", at)
                elif thread[w] != t and row[thread[w]] < clock_of[w]:
                    raise self._race(op, "writes", w, "write", at)
            if reads[at]:
                for r in reads[at]:
                    ordered += 1
                    if not self._read_is_over(r, op, row, t):
                        raise self._race(op, "writes", r, "read", at)
                reads[at] = []
            last_write[at] = op
        self.ordered += ordered

    def _read_is_over(self, read: int, op: int, row: Row, t: int) -> bool:
        thread = self.program.thread[read]
        if read in self.arrived:
            left = self.left.get(read)
            return (left is not None and self._knows(row, t, [left])) or self._knows(row, t, self.arrived[read])
        return thread == t or bool(row[thread] >= self.clock_of[read])

    @staticmethod
    def _knows(row: Row, t: int, events: list[tuple[int, int]]) -> bool:
        """Whether thread `t`, which knows `row`, comes after one of `events`."""
        return any(thread == t or row[thread] >= clock for thread, clock in events)

    def _signal(self, op: int, t: int) -> None:
        program, c = self.program, self.program.counter[op]
        silent = self.silent.pop((t, program.peer[op]), [])
        puts = (*silent, op) if program.kind[op] == Kind.put else tuple(silent)
        signal = _Signal(self.rows[t], t, self.clock[t], puts, op)
        for wait, counted in self.unsure[c] if program.several_sources[c] else ():
            after = self._knows(signal.row, t, [(program.thread[wait], self.clock_of[wait])])
            if not after and not all(_before(earlier, signal) for earlier in counted):
                raise self._unsure(op, wait)
        self.signals[c].append(signal)

    def _wait(self, op: int, t: int) -> None:
        program, c, k = self.program, self.program.counter[op], self.program.value[op]
        if program.several_sources[c]:
            self._wait_for_several(op, t)
            return
        signals, begin = self.signals[c], self.seen.get((c, t), 0)
        if k <= begin:
            return
        last = signals[k - 1]
        self._join(t, last)
        event = (t, self.clock[t])
        for signal in signals[begin:k]:
            for put in signal.puts:
                self.arrived[put].append(event)
        self.seen[c, t] = k
        if not program.several_waiters[c]:
            # what was seen is not needed again, and its rows are the bulk of the memory
            signals[begin:k] = [None] * (k - begin)  # type: ignore[list-item]

    def _wait_for_several(self, op: int, t: int) -> None:
        """Of the signals raised so far, those that are among the first `value` in whatever order they come."""
        c, k = self.program.counter[op], self.program.value[op]
        raised = self.signals[c]
        sure = [s for s in raised if sum(not _before(s, other) for other in raised) < k]
        for signal in sure:
            self._join(t, signal)
            for put in signal.puts:
                self.arrived[put].append((t, self.clock[t]))
        self.unsure[c].append((op, sure))

    def _join(self, t: int, signal: _Signal) -> None:
        row = np.maximum(self.rows[t], signal.row)
        if row[signal.thread] < signal.clock:
            row[signal.thread] = signal.clock
        self.rows[t] = row

    def _flush(self, op: int, t: int) -> None:
        peer = self.program.peer[op]
        event, staying = (t, self.clock[t]), []
        for put in self.leaving[t]:
            if peer < 0 or self.program.peer[put] == peer:
                self.left[put] = event
            else:
                staying.append(put)
        self.leaving[t] = staying

    def check_ends(self) -> None:
        """RaceError if something touches a rank's memory after the rank may have ended."""
        program = self.program
        n_ranks, n = program.schedule.n_ranks, len(program.programs)
        ends = np.zeros((n_ranks, n), np.int32)
        for t, row in enumerate(self.rows):
            rank = program.thread_rank[t]
            np.maximum(ends[rank], row, out=ends[rank])
            ends[rank, t] = self.clock[t]
        for put, events in self.arrived.items():
            if not events:
                raise self._late(put, program.peer[put], "writes")
        ops = program.schedule.ops
        op_of = np.repeat(np.arange(len(ops)), ops.src_count)
        far = np.flatnonzero((ops.src_rank != ops.rank[op_of]) & (ops.kind[op_of] != Kind.put))
        readers = op_of[far]
        threads, clocks = np.array(program.thread, np.int64)[readers], np.array(self.clock_of, np.int64)[readers]
        late = ends[ops.src_rank[far], threads] < clocks
        if late.any():
            i = int(np.argmax(late))
            raise self._late(int(readers[i]), int(ops.src_rank[far[i]]), "reads")
        self.ordered += len(self.arrived) + len(far)
        if program.schedule.collective == "barrier":
            self._check_barrier(ends)

    def _check_barrier(self, ends: np.ndarray) -> None:
        n_ranks, rank_of = self.program.schedule.n_ranks, np.array(self.program.thread_rank, np.int64)
        heard = np.eye(n_ranks, dtype=bool)
        for t, rank in enumerate(rank_of):
            heard[:, rank] |= ends[:, t] > 0
        if not heard.all():
            rank, peer = (int(i) for i in np.argwhere(~heard)[0])
            raise ContributionError(
                f"barrier: rank {rank} may leave before rank {peer} has entered; let rank {rank} wait for a signal that comes, "
                f"over others or not, from rank {peer}.",
                rank=rank,
            )

    def _race(self, op: int, does: str, other: int, did: str, location: int) -> RaceError:
        """`op` does (reads, writes) what `other` did: told in the order of op_ids, which is how the author thinks of them."""
        if op < other:
            op, does, other, did = other, f"{did}s", op, does.removesuffix("s")
        rank, place = self.program.where(location)
        ops = self.program.schedule.ops
        if ops[other].kind != Kind.put:
            advice = f"let the second wait for a signal that rank {ops[other].rank} raises after the first"
        elif did == "read":
            advice = f"flush rank {ops[other].peer} on channel {ops[other].channel} in between, or wait for word from it"
        else:
            advice = f"wait at rank {ops[other].peer} for the signal of the put before the second begins"
        return RaceError(
            f"{describe(ops[op])}: {does} {place} of rank {rank} while {describe(ops[other])} may still {did} it; "
            f"nothing orders the two. Try: {advice}.",
            rank=ops[op].rank,
            op_id=op,
        )

    def _late(self, op: int, rank: int, does: str) -> RaceError:
        row = self.program.schedule.ops[op]
        return RaceError(
            f"{describe(row)}: {does} the memory of rank {rank}, which may have ended by then; let rank {rank} wait for a signal "
            f"of rank {row.rank} that comes {'with or ' if does == 'writes' else ''}after this op.",
            rank=row.rank,
            op_id=op,
        )

    def _unsure(self, op: int, wait: int) -> RaceError:
        ops = self.program.schedule.ops
        return RaceError(
            f"{describe(ops[op])}: may be the signal that satisfies {describe(ops[wait])} in place of another channel's; use a "
            "sig_channel for each channel that signals, or wait for all signals at once.",
            rank=ops[op].rank,
            op_id=op,
        )


def _before(first: _Signal, second: _Signal) -> bool:
    """Whether `second` is raised after `first` in every run, or is the same."""
    if first.thread == second.thread:
        return first.clock <= second.clock
    return bool(second.row[first.thread] >= first.clock)
