"""Schedules made of rings, timed without a row per op: columns for the native evaluation (native/src/sim/rings.hpp), and what comes back.

Is: which ranks form a unit, what its links are called, and which units or rings are alike and need to be evaluated once. Is not: the
arithmetic. Invariants: the times are those of exact.py on the unrolled schedule, to the picosecond, or `Inapplicable` is raised; merging
changes nothing.

**Units.** A flat ring enters every node once per channel, so a node is a unit, and its ranks are the stations. Of the rings between nodes
(hierarchical) each rank is a unit of its own, unless rings share NICs: then all their ranks of one node are.

**Merging.** A ring that is turned by one unit (two, where nodes are passed through in turns) onto units with the same rates, latencies,
late ranks and sizes is the same set of equations, which has one solution: so times of units are equal, and one unit that sends to itself
stands for all. Rings whose links, rates and sizes are equal have equal times for the same reason.

**Chunks that differ by an element.** Which position has the longer ones follows no pattern, so no two units are alike. But the order of
service does not depend on bytes, so each message is followed all the way round (native/src/sim/followed.hpp); where units do not have to
wait for messages each goes on in its own time (native/src/sim/own_time.hpp); or else all are evaluated, step by step. Links may change in
time but for the last of these.

**Both directions.** A ring that runs backwards sends to the unit before. Of one unit, or of two, that is the unit after as well: where
all units are one of at most two kinds, rings in both directions are evaluated like those in one. Elsewhere all units go on together,
those that are alike as one (native/src/sim/both_ways.hpp), or, where chunks differ or many units are unlike each other, every message
(native/src/sim/both_ways_swept.hpp; both_ways_meeting.hpp where rings in both directions meet in a NIC). The order of service does not
depend on times, so there it is that of the same rings whose links are all alike.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import Inapplicable, UsageError
from ..ir import RingLoops
from ..topo import Topology
from .changes import NONE, Changes
from .patience import allowed, check_work
from .ring_rows import I64, Kinds, Rows, backward, turned_onto_itself

# Messages that are timed each by itself take some 50 ns; those of all units at once 1 to 2 ns.
_MOST_EACH, _MOST_SWEPT = 2_000_000_000, 100_000_000_000

# Of rings in both directions 0.2 µs; all of them, of all nodes at once, 1.1 ns each. Rounds of nodes that wait for one another in no
# rhythm some 10 µs.
_MOST_BOTH_WAYS, _MOST_BOTH_WAYS_SWEPT, _MOST_ROUNDS = 600_000_000, 200_000_000_000, 30_000_000
_MOST_MEETING = 50_000_000_000  # where they meet in NICs, 2 to 6 ns each
_MOST_OWN_TIME = 2_000_000_000  # of nodes in their own time, 10 ns each

# Of rings in both directions one message in so many is timed by itself in the time that all of them take.
_SWEPT_FOR_ONE = 180

# Of equal units, where fewer would do: what they send goes round among so many at a time.
_MOST_COPIES = 1024

_OK, _DISORDER, _OVERFLOW, _BAD, _OUT_OF_MEMORY, _TOO_MANY, _TOO_MUCH = range(7)


def evaluate(rows: Rows, loops: RingLoops, rings: npt.NDArray[Any], topology: Topology, sizes: I64, nominal_bytes: int,
             alpha_ps: int, *, begin: tuple[I64, I64] | None = None, merge: bool = True, jumps: bool = True,
             known: dict[Any, Any] | None = None, changes: Changes = NONE, one_by_one: bool = False, together_at_first: bool = False,
             every: bool = False) -> tuple[I64, I64, I64, dict[str, int]]:  # fmt: skip
    """(finish_ps [units, chains, stations], end_ps and end_batch [units, chains, slices], counts of rounds) of some rings.

    sizes: bytes [chains, slices, depth, 1 or length]; nominal_bytes: of each in nominal time. begin: ps and batch
    [units, chains, slices] at which what comes from ranks of the node is there. known: results by what they depend on; rings found there
    are not evaluated again. every: each message of rings in both directions is told (for tests). Raises Inapplicable.
    """
    units, chains, stations = rows.shape
    slices, told_all = loops.slice_of.shape[1], every or sizes.shape[-1] > 1
    kinds, both_ways, meet = rows.kinds(), False, False
    where = [np.where(np.isin(link, changes.link), link, -1) for link in (rows.a, rows.b)] if changes else []
    turn = turned_onto_itself([kinds.of, *(begin or ()), *where]) if merge and sizes.shape[-1] == 1 else units

    def told(several: int) -> dict[str, Any]:
        return _told(rows, loops, rings, topology, kinds, begin, several, changes) | {
            "alpha_ps": alpha_ps, "nominal_bytes": nominal_bytes, "n_sizes": sizes.shape[-1], "jumps": jumps,
            "bytes": np.ascontiguousarray(sizes).ravel(), "one_by_one": one_by_one, "together_at_first": together_at_first,
            "timetable": loops.timetable, "followed": False, "own_time": False, "swept": False,
            "most_both_ways": allowed(_MOST_BOTH_WAYS), "most_rounds": allowed(_MOST_ROUNDS), "most_own_time": allowed(_MOST_OWN_TIME),
            "backward": rows.backward.astype(np.uint8)[: len(rows.backward) * both_ways], "far": rows.far(meet)}  # fmt: skip

    def every_message() -> tuple[I64, I64, I64, dict[str, int]]:
        ordered = partial(evaluate, rows.without_times(), loops, rings, topology, np.ones_like(sizes[..., :1]), nominal_bytes, 0,
                          one_by_one=True, together_at_first=not meet)  # fmt: skip
        return _both_ways_swept(ordered, told(units), rows.shape, slices, messages)

    messages = units * chains * stations * slices * loops.depth * loops.steps
    if both_ways := bool(rows.backward.any()) and (turn > 2 or told_all):
        kinds, meet = rows.kinds(both_ways), rows.meet
        if meet and (one_by_one or not kinds.same_links_every_other):
            raise Inapplicable(_MEET)
        if meet or told_all:
            return every_message()
        return _both_ways(told(units), rows.shape, slices, messages, None if one_by_one else every_message)
    if sizes.shape[-1] > 1:
        found = None
        of_one_length = cache(lambda: evaluate(
            rows, loops, rings, topology, sizes.max(axis=-1, keepdims=True), nominal_bytes, alpha_ps, begin=begin, jumps=jumps,
            changes=changes, one_by_one=True, together_at_first=stations > 1))  # fmt: skip
        if merge and jumps:
            found = _unit_by_unit(of_one_length, lambda: told(units), rows.shape, slices, is_last=messages > allowed(_MOST_EACH))
        unlike = ("messages, no two alike since chunks differ by an element (none do where the number of elements is a multiple of "
                  f"{loops.parts:,}),")  # fmt: skip
        if found is None and merge and stations == 1 and not changes:
            check_work(messages, _MOST_SWEPT, unlike, 2e-9)
            found = _step_by_step("swept", of_one_length, told(units), rows.shape, slices)
        if found is not None:
            return found
        check_work(messages, _MOST_EACH, unlike, 50e-9)
    several = _several(units, turn, loops) if jumps and not rows.backward.any() else turn
    inputs, key = told(several), None
    if known is not None and all((link < 0).all() for link in where):
        key = (turn, nominal_bytes, _digest(inputs, sizes))
    if known is not None and key in known:
        return (*known[key], {"units": 0, "rounds": 0, "jumped": 0})
    status, rounds, jumped = _core.simulate_rings(inputs)
    _check(status)
    shaped = (_repeated(inputs["finish_ps"].reshape(several, chains, stations)[:turn], units),
              *(_repeated(inputs[end].reshape(several, chains, slices)[:turn], units) for end in ("end_ps", "end_batch")))
    if known is not None and key is not None:
        known[key] = shaped
    return (*shaped, {"units": turn, "rounds": rounds, "jumped": jumped})


_BY_KIND = ("memory", "link_a", "link_b", "memory_bytes_per_s", "a_bytes_per_s", "b_bytes_per_s", "latency_ps", "ticks", "late_ps",
           "ready_ps")  # fmt: skip


def _digest(inputs: dict[str, Any], sizes: I64) -> bytes:
    """Of all that times depend on beside the turn and nominal bytes."""
    own = [inputs[name] for name in ("kind_of", *_BY_KIND, "begin_ps", "begin_batch", "slices", "row_step")]
    order = [inputs[name] - inputs[name].min() for name in ("row", "group")]  # of ops, which come elsewhere for other rings
    return hashlib.sha256(b"".join(column.tobytes() for column in (*own, *order, sizes))).digest()


def _told(rows: Rows, loops: RingLoops, rings: npt.NDArray[Any], topology: Topology, kinds: Kinds, begin: tuple[I64, I64] | None,
          several: int, changes: Changes) -> dict[str, Any]:  # fmt: skip
    """What the native evaluation wants to know of the first units, and arrays for what it finds."""
    _, chains, stations = rows.shape
    slices, none = loops.slice_of.shape[1], np.zeros(0, np.int64)
    ends = np.zeros((2, several * chains * slices), np.int64)
    row, row_step = (np.ascontiguousarray(each, np.int64).ravel() for each in rows.places(loops, int(topology.ranks_per_node[0])))
    begins = [np.ascontiguousarray(each[:several]).ravel() for each in begin] if begin else [none, none]
    return {
        "units": several, "chains": chains, "stations": stations, "depth": loops.depth, "steps": loops.steps, "reducing": loops.reducing,
        "own": loops.own, "copies": loops.copies, "passes_on": loops.in_node,
        "slices": np.count_nonzero(loops.slice_of[rings] >= 0, axis=1).astype(np.int64),
        "group": np.maximum(loops.slice_of[rings], 0).astype(np.int64).ravel(), "row": row, "row_step": row_step,
        "kind_of": kinds.of[:several], **{name: column.ravel() for name, column in zip(_BY_KIND, kinds.columns, strict=True)},
        "begin_ps": begins[0], "begin_batch": begins[1],
        "finish_ps": np.zeros(several * chains * stations, np.int64), "end_ps": ends[0], "end_batch": ends[1],
        "all_links": len(topology.links), **changes.columns(),
        **{name: np.ascontiguousarray(link[: several if changes else 0], np.int32).ravel()
           for name, link in (("all_a", rows.a), ("all_b", rows.b))},
    }  # fmt: skip


def _unit_by_unit(of_one_length: Callable[[], tuple[I64, I64, I64, dict[str, int]]], told: Callable[[], dict[str, Any]],
                  shape: tuple[int, ...], slices: int, *, is_last: bool) -> tuple[I64, I64, I64, dict[str, int]] | None:  # fmt: skip
    """As `_step_by_step`, in own time or followed; told: inputs anew. is_last: what comes after it is a refusal, to be told soon."""
    if min(shape[1:]) > 1:
        try:
            found = _step_by_step("own_time", of_one_length, told(), shape, slices)
        except _TooMuchError:  # to follow each message is no less work
            if is_last:
                return None
        else:
            if found is not None:
                return found
    return _step_by_step("followed", of_one_length, told(), shape, slices)


def _both_ways(inputs: dict[str, Any], shape: tuple[int, ...], slices: int, messages: int,
               every_message: Callable[[], tuple[I64, I64, I64, dict[str, int]]] | None,
               ) -> tuple[I64, I64, I64, dict[str, int]]:  # fmt: skip
    """What `evaluate` returns, of rings in both directions; every_message: the same, of all messages, where that takes less time."""
    most = inputs["most_both_ways"]
    soon = min(most, messages // _SWEPT_FOR_ONE) if every_message else most
    status, rounds, jumped = _core.simulate_rings({**inputs, "most_both_ways": soon})
    if status == _TOO_MANY and every_message:
        with contextlib.suppress(Inapplicable):
            return every_message()
        status, rounds, jumped = _core.simulate_rings(inputs)
    _check(status)
    ends = (inputs[name].reshape(*shape[:2], slices) for name in ("end_ps", "end_batch"))
    return (inputs["finish_ps"].reshape(shape), *ends, {"units": shape[0], "rounds": rounds, "jumped": jumped})


def _both_ways_swept(ordered: Callable[..., Any], inputs: dict[str, Any], shape: tuple[int, ...], slices: int,
                     messages: int) -> tuple[I64, I64, I64, dict[str, int]]:  # fmt: skip
    """What `evaluate` returns, each of `messages` of rings in both directions told; without ends of slices.

    ordered: raises Inapplicable unless links serve all chains side by side; no time matters to it.
    """
    meet = len(inputs["far"]) > 0
    most, each_s = (_MOST_MEETING, 4e-9) if meet else (_MOST_BOTH_WAYS_SWEPT, 1.1e-9)
    check_work(messages, most, f"messages of rings in both directions{' that meet in NICs' * meet}", each_s)
    ordered()
    status, rounds, jumped = _core.simulate_rings({**inputs, "swept": True})
    if meet and status == _BAD:
        raise Inapplicable(_MEET)
    _check(status)
    ends = (inputs[name].reshape(*shape[:2], slices) for name in ("end_ps", "end_batch"))
    return (inputs["finish_ps"].reshape(shape), *ends, {"units": shape[0], "rounds": rounds, "jumped": jumped})


class _TooMuchError(Exception):
    """An evaluation was made for what it got, and gave up since it would take too long."""


def _step_by_step(how: str, of_one_length: Callable[[], tuple[I64, I64, I64, dict[str, int]]], inputs: dict[str, Any],
                  shape: tuple[int, ...], slices: int) -> tuple[I64, I64, I64, dict[str, int]] | None:  # fmt: skip
    """What `evaluate` returns, of messages of several lengths; None where it is not made for that, or they do not go round by round.

    how: "followed", each all the way round, "own_time", unit by unit, or "swept", all of a step at once. of_one_length: what `evaluate`
    returns where all messages are alike: the order in which links serve does not depend on lengths, nor do batches; a sweep knows them by
    itself where there is a timetable. shape: units, chains and stations. Raises _TooMuchError.
    """
    end_batch = inputs["end_batch"].reshape(*shape[:2], slices)
    if not (how == "swept" and inputs["timetable"]):
        try:
            *_, end_batch, _ = of_one_length()
        except Inapplicable:
            return None
    status, rounds, jumped = _core.simulate_rings({**inputs, how: True})
    if status == _TOO_MUCH:
        raise _TooMuchError
    if status == _BAD:
        return None
    _check(status)
    return (inputs["finish_ps"].reshape(shape), inputs["end_ps"].reshape(*shape[:2], slices), end_batch,
            {"units": shape[0], "rounds": rounds, "jumped": jumped})


def _repeated(found: I64, units: int) -> I64:
    """What was found of some units, one after the other until there are `units`; of one, a view."""
    if len(found) == 1:
        return np.broadcast_to(found, (units, *found.shape[1:]))
    return found if len(found) == units else np.tile(found, (units // len(found), 1, 1))


def _several(units: int, turn: int, loops: RingLoops) -> int:
    """Units to evaluate where `turn` of them stand for all: more of them find more messages at a time, and most follow (runs.hpp)."""
    return turn * min(units // turn, _MOST_COPIES) if loops.steps > _MOST_COPIES else turn


_MEET = ("rings in both directions meet in a NIC, which is timed without it where all nodes have the same links, every other one at least, "
         "that do not change, and send a message of each ring at a time")  # fmt: skip

_MORE = "; patience=10 allows ten times as many"


def _check(status: int) -> None:
    if status == _OUT_OF_MEMORY:
        raise MemoryError("simulating rings")
    if status == _DISORDER:
        raise Inapplicable("a link would be served in another order than round by round")
    if status == _TOO_MUCH:
        raise Inapplicable(f"rings wait for one another in a rhythm that is not found, with too many rounds to time each{_MORE}")
    if status == _TOO_MANY:
        raise Inapplicable(f"rings in both directions pass through too many nodes that are unlike each other{_MORE}")
    if status == _OVERFLOW:
        raise UsageError("the schedule would take more than 13 days, or nominal time does not fit: raise the rates or lower the size.")
    if status != _OK:
        raise Inapplicable("the columns of the rings do not fit together")


def flat_finish(loops: RingLoops, topology: Topology, count: int, itemsize: int, late_ps: I64, alpha_ps: int, changes: Changes = NONE, *,
                merge: bool = True, jumps: bool = True, every: bool = False) -> tuple[I64, dict[str, int]]:  # fmt: skip
    """When each rank ends, i64[n_ranks], of rings over all ranks; and how many rounds that took. Raises Inapplicable."""
    stations = _stations(loops, topology)
    rings = np.arange(len(loops.orders))
    rows = Rows(loops, topology, rings, stations, late_ps)
    sizes = loops.chunk_bytes(count, itemsize)
    nominal = loops.nominal_bytes(count, itemsize)
    finish, _, _, counts = evaluate(rows, loops, rings, topology, sizes, nominal, alpha_ps, merge=merge, jumps=jumps, changes=changes,
                                   every=every)
    out = late_ps.copy()
    for chain in rings:
        of = rows.rank[:, chain]
        out[of] = np.maximum(out[of], finish[:, chain])
    return out, counts


def _stations(loops: RingLoops, topology: Topology) -> int:
    """Ranks of a node; Inapplicable where rings do not pass through equal nodes one after the other, all in the same order."""
    sizes = topology.ranks_per_node
    size = int(sizes[0])
    if (sizes != size).any():
        raise Inapplicable("nodes hold different numbers of ranks")
    node = topology.node_of[loops.orders].reshape(len(loops.orders), -1, size)
    back = backward(loops.orders, topology, size)
    if (np.where(back[:, None, None], node[:, ::-1], node) != node[:1, :, :1]).any():
        raise Inapplicable("rings pass through the nodes in different orders")
    return size
