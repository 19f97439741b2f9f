"""A schedule that is not unrolled, timed: whichever evaluation fits it.

    rings                 loops.py       RingLoops of the outline
    rings between nodes   hierarchy.py   and what comes before and after them inside the nodes
    chains                chains.py      ranks along which chunks are passed on
    pairs                 pairs.py       every rank puts to every other one
    rails                 rails.py       blocks meet inside nodes, then cross to the same place of each other node
    exchanges             paired.py      two ranks exchange a block, step by step
                          partners.py    and where ranks are not in step
    meetings              meetings.py    lanes of healthy nodes meet those that lost NICs
    trees                 trees.py       two trees over nodes, with chains inside them
    swaps                 swaps.py       partners swap many blocks, all nodes alike
                          swap_lanes.py  and where they are not
    steps, in step        in_step.py     partners exchange, all ranks at the same time
    anything else         flow.py        ops are timed while they are planned

Is: the choice, and the Summary. Is not: arithmetic. Invariant: the times are those of exact.py on the unrolled schedule, to the picosecond,
or Inapplicable is raised.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from ..errors import Inapplicable, ShapeError
from ..ir import Outline, collectives
from ..topo import Topology
from ..trace.statistics import bandwidths
from ..units import Duration, Size
from .chains import chain_finish
from .changes import NONE, Changes
from .exact import Late, late_times_ps, picoseconds
from .flow import flow_finish
from .hierarchy import hierarchical_finish
from .in_step import in_step_finish
from .loops import flat_finish
from .meetings import meeting_finish
from .paired import paired_finish
from .pairs import pair_finish
from .patience import allowed, check_work
from .rails import rail_finish
from .ring_rows import I64
from .summary import Summary
from .swap_lanes import swap_lane_finish
from .swaps import swap_finish
from .trees import tree_finish


def finish_times(outline: Outline, topology: Topology, nbytes: Size | None = None, dtype: str | None = None, late: Late = None,
                 alpha: Duration = 0, changes: Changes = NONE, *, merge: bool = True,
                 jumps: bool = True) -> tuple[I64, dict[str, Any]]:  # fmt: skip
    """When each rank ends, i64[n_ranks] in ps, and how that was found.

    Arguments as `simulate`; merge, jumps: False evaluates every unit and every round, for tests. Raises Inapplicable where the schedule
    has to be unrolled, errors as `simulate`.
    """
    if outline.n_ranks != topology.n_ranks:
        raise ShapeError(f"the schedule is for {outline.n_ranks} ranks, topology {topology.name!r} has {topology.n_ranks}: plan for "
                         "this topology, or give one of that size.")
    dtype = dtype or outline.dtype
    collectives.check_names(outline.collective, dtype)
    late_ps, alpha_ps = late_times_ps(late, topology.n_ranks), picoseconds("alpha", alpha)
    itemsize = collectives.itemsize(dtype)
    size = outline.nbytes if nbytes is None else nbytes
    if outline.loops is not None:
        try:
            if outline.node_phase is not None:
                count = outline.count_of(size, dtype) * itemsize
                found, counts = hierarchical_finish(outline, topology, count, dtype, itemsize, late_ps, alpha_ps, changes,
                                                    merge=merge, jumps=jumps)
                return found, {"as": "rings between nodes", **counts}
            found, counts = flat_finish(outline.loops, topology, outline.count_of(size, dtype), itemsize, late_ps, alpha_ps, changes,
                                        merge=merge, jumps=jumps)
            return found, {"as": "rings", **counts}
        except Inapplicable:
            if outline.told_about > allowed(_MOST_TOLD):
                raise
    for kind, part, finish in (("chains", outline.chains, chain_finish), ("pairs", outline.pairs, pair_finish),
                               ("rails", outline.rails, rail_finish), ("meetings", outline.meetings, meeting_finish),
                               ("trees", outline.trees, tree_finish)):  # fmt: skip
        if part is None:
            continue
        try:
            found, counts = finish(part, topology, outline.count_of(size, dtype), itemsize, late_ps, alpha_ps, changes, merge=merge)
            return found, {"as": kind, **counts}
        except Inapplicable:
            if outline.told_about > allowed(_MOST_FLOW if kind in ("meetings", "trees") else _MOST_TOLD):  # told as they happen
                raise
    if outline.paired is not None:
        try:
            found, counts = paired_finish(outline.paired, topology, outline.count_of(size, dtype), itemsize, late_ps, alpha_ps, changes,
                                          merge=merge)
            return found, {"as": "exchanges", **counts}
        except Inapplicable:
            if outline.told_about > allowed(_MOST_TOLD):
                raise
    if outline.swaps:
        count = outline.count_of(size, dtype)
        with contextlib.suppress(Inapplicable):
            found, counts = swap_finish(outline, topology, count, itemsize, late_ps, alpha_ps, changes)
            return found, {"as": "swaps", **counts}
        try:
            found, counts = swap_lane_finish(outline, topology, count, itemsize, late_ps, alpha_ps, changes)
            return found, {"as": "swaps", "by_lane": True, **counts}
        except Inapplicable:
            if outline.told_about > allowed(_MOST_TOLD):
                raise
    check_work(outline.told_about, _MOST_FLOW, "ops, told one by one,", 100e-9)
    count = 0 if outline.collective == "barrier" else outline.count_of(size, dtype)
    with contextlib.suppress(Inapplicable):
        found, counts = in_step_finish(outline, topology, count, itemsize, late_ps, alpha_ps, changes, merge=merge)
        return found, {"as": "steps", "in_step": True, **counts}
    found, counts = flow_finish(outline, topology, count, itemsize, late_ps, alpha_ps, changes)
    return found, {"as": "steps", **counts}


# Ops that are told one by one take some 0.1 us each: where rings fail, and where there are none and somebody asked for it.
_MOST_TOLD, _MOST_FLOW = 200_000_000, 2_000_000_000


def summarize(outline: Outline, topology: Topology, nbytes: Size | None = None, dtype: str | None = None, late: Late = None,
              alpha: Duration = 0, changes: Changes = NONE) -> Summary:  # fmt: skip
    """The Summary of an outlined schedule; arguments and errors as `simulate`.

    Raises Inapplicable, an UnsupportedError, where neither loops nor steps can be evaluated as such: `unroll` it.
    """
    try:
        finish_ps, evaluated = finish_times(outline, topology, nbytes, dtype, late, alpha, changes)
    except Inapplicable as why:
        raise Inapplicable(f"{outline.algorithm} {outline.collective} on topology {topology.name!r} cannot be timed without its table of "
                           f"about {outline.ops_about:,} ops: {why}. Simulate fewer ranks, take another algorithm, or "
                           "tier='estimate', a closed form.", why=str(why)) from None
    dtype = dtype or outline.dtype
    blocks = collectives.message_blocks(outline.collective, outline.n_ranks)
    message = 0 if outline.collective == "barrier" else (
        outline.count_of(outline.nbytes if nbytes is None else nbytes, dtype) * collectives.itemsize(dtype) * blocks)
    time_ps = int(finish_ps.max())
    algbw, busbw = bandwidths(outline.collective, outline.n_ranks, message, time_ps / 1e6)
    return Summary({
        "source": "simulated", "collective": outline.collective, "algorithm": outline.algorithm, "n_ranks": outline.n_ranks,
        "nbytes": message, "dtype": dtype, "redop": outline.redop, "time_ps": time_ps, "time_us": time_ps / 1e6, "finish_ps": finish_ps,
        "algbw_gbytes_per_s": algbw, "busbw_gbytes_per_s": busbw, "n_ops": outline.ops_about, "topology": topology.name,
        "late_ranks": int(np.count_nonzero(late_times_ps(late, topology.n_ranks))), "tier": "exact", "evaluated": evaluated,
        "reasons": list(outline.reasons), "drops": 0,
    })  # fmt: skip
