"""Runs a schedule as badly as its rules allow, bytes and all: the judge of what the verifier accepts.

Is: an executor over numpy memory in which a seeded adversary chooses who goes next, when each piece of a put is read and
written, when signals arrive and when ranks enter and end. Is not: derived from the verifier, and no proof: it knows
nothing of vector clocks or contributions; a wrong schedule is found when some run gives wrong bytes. What a rank may rely
on and nothing more: program order of a channel; signals of a counter in order, each after its put's bytes and after the
unsignalled puts that its channel sent that peer before; flush; entry of a peer before its memory is touched. A rank that ended
leaves rubbish in its memory.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from ccl_lab.errors import CclError
from ccl_lab.ir import Buffer, Kind, Layout, Schedule, collectives
from ccl_lab.ir.table import Op

MOVERS = (Kind.put, Kind.get, Kind.copy, Kind.reduce)


class Wrong(Exception):
    """What went wrong in a run."""


@dataclass(eq=False)
class Transfer:
    """A mover in progress: pieces still to read from the sources, and to write to the destination."""

    op: Op
    target_rank: int
    to_read: list[slice]
    to_write: list[slice] = field(default_factory=list)
    data: np.ndarray | None = None

    @property
    def left(self) -> bool:
        """Nothing more is read from the source."""
        return not self.to_read

    @property
    def done(self) -> bool:
        return not self.to_read and not self.to_write


@dataclass(eq=False)
class Signal:
    """A signal under way, behind transfers."""

    after: list[Transfer]


class Run:
    """One run. `starved`: op_ids that move only when nothing else can; `lazy`: transfers move only when no thread can."""

    def __init__(self, schedule: Schedule, layout: Layout, inputs: list[np.ndarray], seed: int, *,
                 starved: frozenset[int] = frozenset(), lazy: bool = False, eager: bool = False,
                 slow_ranks: frozenset[int] = frozenset()) -> None:
        self.schedule, self.layout, self.dice = schedule, layout, random.Random(seed)
        self.starved, self.lazy, self.eager, self.slow_ranks = starved, lazy, eager, slow_ranks
        n = schedule.n_ranks
        self.memory = [self._allocate(rank, inputs[rank]) for rank in range(n)]
        self.programs: dict[tuple[int, int], list[Op]] = defaultdict(list)
        for op in schedule.ops:
            if not 0 <= op.rank < n:
                raise Wrong(f"op {op.op_id}: no such rank")
            self.programs[op.rank, op.channel].append(op)
        self.entered, self.ended = [False] * n, [False] * n
        self.outputs: list[np.ndarray | None] = [None] * n
        self.inputs = inputs
        self.counters: dict[tuple[int, int, int], int] = defaultdict(int)
        self.wires: dict[tuple[int, int, int], list[Signal]] = defaultdict(list)
        self.transfers: list[Transfer] = []
        self.silent: dict[tuple[int, int, int], list[Transfer]] = defaultdict(list)
        self.sent: dict[tuple[int, int], list[Transfer]] = defaultdict(list)
        self.busy: dict[tuple[int, int], Transfer] = {}

    def _allocate(self, rank: int, given: np.ndarray) -> dict[int, np.ndarray]:
        layout, schedule = self.layout, self.schedule
        rubbish = np.random.default_rng(self.dice.randrange(1 << 30))
        memory = {int(buf): rubbish.integers(1 << 60, 1 << 61, layout.elements(buf, rank)) for buf in Buffer}
        memory[Buffer.input][:] = given
        if schedule.in_place:
            for small, large in ((Buffer.input, Buffer.output), (Buffer.output, Buffer.input)):
                owner, begin = layout.resolve(small, rank, 0)
                if owner == large and memory[small].size:
                    memory[small] = memory[large][begin : begin + memory[small].size]
                    if small == Buffer.input:
                        memory[small][:] = given
        return memory

    def _view(self, rank: int, buf: int, chunk: int, n_chunks: int) -> np.ndarray:
        limit = int(self.layout.n_chunks(buf, rank)) if 0 <= rank < self.schedule.n_ranks and 0 <= buf <= 2 else -1
        if chunk < 0 or n_chunks < 0 or chunk + n_chunks > limit:
            raise Wrong(f"chunks [{chunk}, {chunk + n_chunks}) of buffer {buf} at rank {rank}")
        ends = self.layout.offset(buf, rank, np.array([chunk, chunk + n_chunks]))
        return self.memory[rank][buf][ends[0] : ends[1]]

    def play(self) -> list[np.ndarray]:
        """Outputs; Wrong if a rule is broken on the way."""
        while not all(self.ended):
            steps = self._steps()
            if not steps:
                raise Wrong("deadlock")
            self.dice.choice(steps)()
        if any(not transfer.done for transfer in self.transfers):
            raise Wrong("bytes under way after all ranks ended")
        self._check_signals()
        return [output for output in self.outputs if output is not None]

    def _check_signals(self) -> None:
        awaited: dict[tuple[int, int, int], int] = defaultdict(int)
        for op in self.schedule.ops:
            if op.kind == Kind.wait:
                key = (op.peer, op.rank, op.sig_channel)
                awaited[key] = max(awaited[key], op.value)
        if any(self.wires.values()) or any(awaited[key] != count for key, count in self.counters.items()):
            raise Wrong("signals that nobody waits for")

    def _steps(self) -> list:
        """What may happen next, the worst choices of this adversary first."""
        threads, slow_threads, moves, slow_moves = [], [], [], []
        for rank in range(self.schedule.n_ranks):
            if not self.entered[rank]:
                (slow_threads if rank in self.slow_ranks else threads).append(lambda rank=rank: self._enter(rank))
            elif not self.ended[rank] and self._may_end(rank):
                threads.append(lambda rank=rank: self._end(rank))
        for key, ops in self.programs.items():
            if ops and key not in self.busy and self._may_start(ops[0]):
                slow = ops[0].op_id in self.starved or key[0] in self.slow_ranks
                (slow_threads if slow else threads).append(lambda key=key: self._start(key))
        for transfer in self.transfers:
            if not transfer.done:
                slow = transfer.op.op_id in self.starved
                (slow_moves if slow else moves).append(lambda transfer=transfer: self._move(transfer))
        for key, queue in self.wires.items():
            if queue and all(transfer.done for transfer in queue[0].after):
                moves.append(lambda key=key: self._deliver(key))
        if self.lazy:
            return threads or moves or slow_threads or slow_moves
        if self.eager:
            return moves or threads or slow_moves or slow_threads
        return threads + moves or slow_threads + slow_moves

    def _enter(self, rank: int) -> None:
        self.entered[rank] = True

    def _may_start(self, op: Op) -> bool:
        if not self.entered[op.rank]:
            return False
        touched = {op.peer} if op.kind in (Kind.put, Kind.get, Kind.signal) else set()
        touched |= {rank for rank, _, _ in op.sources}
        if any(not 0 <= rank < self.schedule.n_ranks for rank in touched):
            raise Wrong(f"op {op.op_id}: no such rank")
        if not all(self.entered[rank] for rank in touched):
            return False
        if op.kind == Kind.wait:
            return self.counters[op.peer, op.rank, op.sig_channel] >= op.value
        if op.kind == Kind.flush:
            return all(t.left or (op.peer >= 0 and t.op.peer != op.peer) for t in self.sent[op.rank, op.channel])
        return True

    def _start(self, key: tuple[int, int]) -> None:
        op = self.programs[key].pop(0)
        transfer = None
        if op.kind in MOVERS:
            transfer = self._transfer(op)
            self.transfers.append(transfer)
            if op.kind == Kind.put:
                self.sent[key].append(transfer)
                if op.sig_channel < 0:
                    self.silent[op.rank, op.channel, op.peer].append(transfer)
            elif not transfer.done:
                self.busy[key] = transfer
        if op.kind in (Kind.put, Kind.signal) and op.sig_channel >= 0:
            behind = self.silent.pop((op.rank, op.channel, op.peer), []) + ([transfer] if transfer else [])
            self.wires[op.rank, op.peer, op.sig_channel].append(Signal(behind))

    def _transfer(self, op: Op) -> Transfer:
        target = op.peer if op.kind == Kind.put else op.rank
        size = self._view(target, op.dst_buf, op.dst_chunk, op.n_chunks).size
        if not op.sources or (op.kind != Kind.reduce and len(op.sources) != 1):
            raise Wrong(f"op {op.op_id}: {len(op.sources)} sources")
        if any(self._view(*source, op.n_chunks).size != size for source in op.sources):
            raise Wrong(f"op {op.op_id}: lengths differ")
        cut = self.dice.randrange(size + 1)
        pieces = [piece for piece in (slice(0, cut), slice(cut, size)) if piece.stop > piece.start]
        self.dice.shuffle(pieces)
        return Transfer(op, target, pieces, data=np.zeros(size, np.int64))

    def _move(self, transfer: Transfer) -> None:
        """Reads or writes a piece; a put may read again what it has not yet written, as a resend does."""
        op, data = transfer.op, transfer.data
        assert data is not None
        if transfer.to_read and (not transfer.to_write or self.dice.random() < 0.5):
            piece = transfer.to_read.pop()
            views = [self._view(*source, op.n_chunks)[piece] for source in op.sources]
            data[piece] = collectives.accumulate(views, "sum")
            transfer.to_write.append(piece)
        else:
            if self.ended[transfer.target_rank]:
                raise Wrong(f"op {op.op_id} writes after the end of rank {transfer.target_rank}")
            piece = transfer.to_write.pop(self.dice.randrange(len(transfer.to_write)))
            self._view(transfer.target_rank, op.dst_buf, op.dst_chunk, op.n_chunks)[piece] = data[piece]
        if transfer.done and op.kind != Kind.put:
            self.busy = {key: busy for key, busy in self.busy.items() if busy is not transfer}

    def _deliver(self, key: tuple[int, int, int]) -> None:
        self.wires[key].pop(0)
        self.counters[key] += 1

    def _may_end(self, rank: int) -> bool:
        idle = all(not ops and key not in self.busy for key, ops in self.programs.items() if key[0] == rank)
        return idle and all(t.left for key, sent in self.sent.items() if key[0] == rank for t in sent)

    def _end(self, rank: int) -> None:
        if self.schedule.collective == "barrier" and not all(self.entered):
            raise Wrong(f"rank {rank} leaves the barrier early")
        self.ended[rank] = True
        self.outputs[rank] = self.memory[rank][Buffer.output].copy()
        if not self.schedule.in_place and not np.array_equal(self.memory[rank][Buffer.input], self.inputs[rank]):
            raise Wrong(f"the input of rank {rank} was changed")
        for buf in Buffer:
            self.memory[rank][buf][:] = -(1 << 40) - rank


def problem_of(schedule: Schedule, seed: int, count: int) -> tuple[Layout, list[np.ndarray], list[np.ndarray]]:
    """Layout, random int64 inputs and the outputs that numpy computes; sums of wrong contributions differ."""
    rng = np.random.default_rng(seed)
    counts = None
    if schedule.collective == "all_to_allv":
        n = schedule.n_ranks
        counts = rng.integers(1, 3 + 2 * schedule.parts, (n, n))
        counts = np.triu(counts) + np.triu(counts, 1).T if schedule.in_place else counts
    layout = Layout(schedule, count, "int64", counts)
    inputs = [rng.integers(-(1 << 50), 1 << 50, layout.elements(Buffer.input, r)) for r in range(schedule.n_ranks)]
    goal = collectives.reference(schedule.collective, inputs, root=schedule.root, peer=schedule.peer, counts=counts)
    return layout, inputs, goal


def judge(schedule: Schedule, seed: int, *, runs: int = 12, suspects: tuple[int, ...] = ()) -> str:
    """What some bad run of `schedule` shows ("" if nothing in `runs` runs). `suspects`: ops to delay in turn."""
    dice = random.Random(seed)
    n_ops, n = len(schedule.ops), schedule.n_ranks
    for i in range(runs):
        count = (2 * schedule.parts + schedule.parts // 2 + 1) if i % 4 else max(schedule.parts - 1, 1)
        layout, inputs, goal = problem_of(schedule, seed + i, count)
        starved = set(dice.sample(range(n_ops), min(n_ops, dice.choice((0, 1, 2)))))
        if suspects and i % 2:
            starved = {suspects[(i // 2) % len(suspects)]}
        slow = frozenset(dice.sample(range(n), 1)) if n > 1 and i % 2 == 0 else frozenset()
        try:
            outputs = Run(schedule, layout, inputs, seed + i, starved=frozenset(starved), lazy=i % 3 == 1,
                          eager=i % 3 == 2, slow_ranks=slow).play()
        except (Wrong, CclError) as error:
            return str(error)
        for rank, (found, expected) in enumerate(zip(outputs, goal, strict=True)):
            if schedule.collective != "barrier" and not np.array_equal(found, expected):
                return f"output of rank {rank} differs"
    return ""
