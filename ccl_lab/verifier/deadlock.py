"""Proves that every op can run: finds an order of all ops that respects programs and signals, or the cycle that stops it.

Is: a greedy run of all threads. Counters only grow, so an op that can run stays runnable and the greedy run gets as far
as any run can. Is not: a model of buffers or credits. Invariant: in the order, waits on counters that several threads
raise come as late as possible, so that whatever can be raised without them stands before them (races relies on it).
"""

from __future__ import annotations

from collections import defaultdict

from ..errors import DeadlockError
from ..ir import Kind, describe
from .program import Program


def run_order(program: Program) -> list[int]:
    """All op_ids in an order in which they can run; DeadlockError names who waits for whom."""
    kind, counter, value, programs = program.kind, program.counter, program.value, program.programs
    several = program.several_sources
    position = [0] * len(programs)
    raised = [0] * program.n_counters
    waiting: dict[int, list[int]] = defaultdict(list)
    postponed: list[int] = []
    order: list[int] = []
    ready = list(range(len(programs)))[::-1]
    go_on = -1
    while ready or postponed:
        if not ready:
            ready, postponed, runnable = _resume(program, postponed, position, raised)
            if not ready:
                break
            go_on = runnable
        thread = ready.pop()
        ops = programs[thread]
        at, end = position[thread], len(ops)
        while at < end:
            op = ops[at]
            c = counter[op]
            if c >= 0:
                if kind[op] == Kind.wait:
                    if several[c]:
                        if op != go_on:
                            postponed.append(thread)
                            break
                    elif raised[c] < value[op]:
                        waiting[c].append(thread)
                        break
                else:
                    raised[c] += 1
                    if c in waiting:
                        ready += waiting.pop(c)
            order.append(op)
            at += 1
        position[thread] = at
    if len(order) < program.n_ops:
        raise _explain(program, position, raised)
    return order


def _resume(
    program: Program, postponed: list[int], position: list[int], raised: list[int]
) -> tuple[list[int], list[int], int]:
    """The first postponed thread whose wait is satisfied, the others, and the op it may pass."""
    for i, thread in enumerate(postponed):
        op = program.programs[thread][position[thread]]
        if raised[program.counter[op]] >= program.value[op]:
            return [thread], postponed[:i] + postponed[i + 1 :], op
    return [], postponed, -1


def _explain(program: Program, position: list[int], raised: list[int]) -> DeadlockError:
    """A wait that nobody will ever satisfy if there is one, else a cycle of waits."""
    blocked = {t: ops[at] for t, (ops, at) in enumerate(zip(program.programs, position, strict=True)) if at < len(ops)}
    coming: dict[int, list[int]] = defaultdict(list)
    for thread in blocked:
        for op in program.programs[thread][position[thread] :]:
            if program.counter[op] >= 0 and program.kind[op] != Kind.wait:
                coming[program.counter[op]].append(thread)
    next_of: dict[int, int] = {}
    for thread, op in blocked.items():
        c = program.counter[op]
        if raised[c] + len(coming[c]) < program.value[op]:
            return _starved(program, op, raised[c] + len(coming[c]))
        next_of[thread] = coming[c][0]
    seen: dict[int, int] = {}
    thread = min(blocked)
    while thread not in seen:
        seen[thread] = len(seen)
        thread = next_of[thread]
    cycle = [t for t in seen if seen[t] >= seen[thread]]
    ops = program.schedule.ops
    lines = [
        f"  {describe(ops[blocked[t]])}, which comes from rank {program.thread_rank[next_of[t]]} channel "
        f"{program.thread_channel[next_of[t]]} after its op {blocked[next_of[t]]}"
        for t in cycle[:8]
    ]
    more = [f"  … {len(cycle) - 8} more"] if len(cycle) > 8 else []
    op = ops[blocked[cycle[0]]]
    head = f"{describe(op)}: can never run, {len(cycle)} channel{'s wait' if len(cycle) > 1 else ' waits'} in a circle:"
    return DeadlockError(
        "\n".join([head, *lines, *more, "Let one of them put or signal before it waits."]), rank=op.rank, op_id=op.op_id
    )


def _starved(program: Program, op_id: int, found: int) -> DeadlockError:
    op = program.schedule.ops[op_id]
    return DeadlockError(
        f"{describe(op)}: can never run, rank {op.peer} raises only {found} of {op.value} signals on channel "
        f"{op.sig_channel} to rank {op.rank}; wait for fewer, or let a put of rank {op.peer} carry the signal.",
        rank=op.rank,
        op_id=op_id,
    )
