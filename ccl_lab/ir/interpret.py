"""The definition of a schedule: runs it on numpy arrays, one op at a time.

Is: what every executor is judged against, bit for bit. Is not: fast, and not a check: a schedule that races gives one of
its possible results, one that deadlocks raises DeadlockError.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np

from ..arguments import arrays, instance
from ..errors import DeadlockError, ShapeError
from . import collectives
from .layout import Layout
from .ops import Buffer, Kind
from .schedule import Schedule
from .table import Op, describe

Partition = Callable[[int, int, "np.ndarray | None", "tuple[np.ndarray, ...]"], None]


def interpret(schedule: Schedule, inputs: list[np.ndarray], *, redop: str | None = None, counts: np.ndarray | None = None,
              compute: Partition | None = None) -> list[np.ndarray]:  # fmt: skip
    """Outputs of `schedule`, one 1-D array per rank.

    `inputs`: one 1-D array per rank, all of one dtype, empty where the rank has no input; `counts` for all_to_allv.
    `compute(rank, partition, target, sources)` runs a partition: it writes its product, with the sources added, into `target`
    (None where the partition only reads `sources`). Without it a partition produces what `inputs` hold at its INPUT chunks.
    Raises ShapeError if sizes do not fit, DtypeError for an unsupported type. Cost: Python time per op.
    """
    instance(schedule, "schedule", Schedule, "a Schedule")
    inputs = arrays(inputs, "inputs")
    redop = schedule.redop if redop is None else redop
    dtype = collectives.dtype_name(inputs[0].dtype if inputs else np.dtype(np.float32))
    collectives.check_names(schedule.collective, dtype, redop)
    layout = _layout_of(schedule, inputs, dtype, counts)
    memory = [_memory(layout, rank, inputs[rank]) for rank in range(schedule.n_ranks)]
    if schedule.ops.produces().any():
        for rank in range(schedule.n_ranks):
            memory[rank][Buffer.input][:] = 0  # nothing is there until it is made
    for op in topological_order(schedule):
        if op.kind == Kind.compute:
            _compute(op, layout, memory, inputs, redop, compute)
        else:
            _apply(op, layout, memory, redop)
    outputs = [memory[rank][Buffer.output] for rank in range(schedule.n_ranks)]
    if schedule.collective not in collectives.REDUCING:
        return outputs
    return [collectives.finish(output, redop, schedule.n_ranks) for output in outputs]


def _layout_of(schedule: Schedule, inputs: list[np.ndarray], dtype: str, counts: np.ndarray | None) -> Layout:
    if len(inputs) != schedule.n_ranks:
        raise ShapeError(f"{len(inputs)} inputs for {schedule.n_ranks} ranks: expected one per rank.")
    shape = collectives.blocks(schedule.collective, schedule.n_ranks, schedule.root, schedule.peer)
    owner = int(np.argmax(shape[:, 0]))
    count = inputs[owner].size // max(int(shape[owner, 0]), 1)
    layout = Layout(schedule, count, dtype, schedule.counts if counts is None else counts)
    for rank, array in enumerate(inputs):
        if array.ndim != 1 or array.size != layout.elements(Buffer.input, rank):
            raise ShapeError(f"input of rank {rank}: expected {layout.elements(Buffer.input, rank)} elements in one dimension, "
                             f"found shape {array.shape}.", rank=rank)  # fmt: skip
    return layout


def _memory(layout: Layout, rank: int, source: np.ndarray) -> dict[int, np.ndarray]:
    """The rank's buffers; in place, one of INPUT and OUTPUT is a view of the other."""
    schedule = layout.schedule
    memory = {buf: np.zeros(layout.elements(buf, rank), source.dtype) for buf in Buffer}
    memory[Buffer.input][:] = source
    shared = collectives.alias(schedule.collective, rank, schedule.root) if schedule.in_place else None
    if shared:
        alias, base, block = shared
        begin = int(layout.offset(base, rank, block * layout.parts))
        view = memory[base][begin : begin + memory[alias].size]
        view[:] = memory[Buffer.input][: view.size] if alias == Buffer.input else view
        memory[alias] = view
    return memory


def topological_order(schedule: Schedule) -> list[Op]:
    """All ops in an order that respects programs and signals; DeadlockError names an op that can never run."""
    programs: dict[tuple[int, int], list[Op]] = defaultdict(list)
    for op in schedule.ops:
        programs[op.rank, op.channel].append(op)
    position = dict.fromkeys(programs, 0)
    raised: dict[tuple[int, int, int], int] = defaultdict(int)
    waiting: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
    order: list[Op] = []
    ready = list(programs)
    while ready:
        key = ready.pop()
        program = programs[key]
        while position[key] < len(program):
            op = program[position[key]]
            if op.kind == Kind.wait and raised[op.peer, op.rank, op.sig_channel] < op.value:
                waiting[op.peer, op.rank, op.sig_channel].append(key)
                break
            position[key] += 1
            order.append(op)
            if op.kind in (Kind.put, Kind.signal) and op.sig_channel >= 0:
                signal = (op.rank, op.peer, op.sig_channel)
                raised[signal] += 1
                ready += waiting.pop(signal, [])
    if len(order) < len(schedule.ops):
        key = next(k for k in programs if position[k] < len(programs[k]))
        op = programs[key][position[key]]
        found = raised[op.peer, op.rank, op.sig_channel]
        raise DeadlockError(f"{describe(op)}: never satisfied, {found} of {op.value} signals are raised before all programs stop.",
                            rank=op.rank, op_id=op.op_id)  # fmt: skip
    return order


def _place(op: Op, layout: Layout, rank: int, buf: int, chunk: int) -> slice:
    first, end = layout.offset(buf, rank, np.array([chunk, chunk + op.n_chunks]))
    return slice(int(first), int(end))


def _compute(op: Op, layout: Layout, memory: list[dict[int, np.ndarray]], inputs: list[np.ndarray], redop: str,
             function: Partition | None) -> None:  # fmt: skip
    views = [memory[rank][buf][_place(op, layout, rank, buf, chunk)] for rank, buf, chunk in op.sources]
    if not op.value or not op.sources:
        if function:
            function(op.rank, op.arg, None, tuple(views))
        return
    target = memory[op.rank][op.dst_buf][_place(op, layout, op.rank, op.dst_buf, op.dst_chunk)]
    if function:
        function(op.rank, op.arg, target, tuple(views[1:]))
        return
    made = inputs[op.rank][_place(op, layout, *op.sources[0])]
    target[:] = collectives.accumulate([made, *views[1:]], redop)


def _apply(op: Op, layout: Layout, memory: list[dict[int, np.ndarray]], redop: str) -> None:
    if op.kind not in (Kind.put, Kind.get, Kind.copy, Kind.reduce):
        return
    sources = [memory[rank][buf][_place(op, layout, rank, buf, chunk)] for rank, buf, chunk in op.sources]
    owner = op.peer if op.kind == Kind.put else op.rank
    target = memory[owner][op.dst_buf][_place(op, layout, owner, op.dst_buf, op.dst_chunk)]
    if any(source.size != target.size for source in sources):
        raise ShapeError(f"{describe(op)}: source and destination differ in length ({[s.size for s in sources]} and {target.size} "
                         "elements); chunks must be the same part of equally large blocks.", rank=op.rank, op_id=op.op_id)  # fmt: skip
    target[:] = collectives.accumulate(sources, redop) if op.kind == Kind.reduce else sources[0].copy()
