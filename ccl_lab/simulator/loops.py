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
service does not depend on bytes, and in a ring of which each unit has one, messages follow one another along one path: if the one before
has left a unit when the next one comes there, nothing waits for anything, and the times of a message are those of a ring in which all are
as long, and begin when that one does. How far a longer one falls behind a shorter one only grows from step to step: what holds at the first
step, where nodes begin at different times, and at the last one, held at all of them. Where it does not hold, or units are not alike, each
message is followed all the way round (native/src/sim/followed.hpp); where units do not have to wait for messages each goes on in its own
time (native/src/sim/own_time.hpp); or else all are evaluated, step by step. Links may change in time but for the last of these.

**Both directions.** A ring that runs backwards sends to the unit before. Of one unit, or of two, that is the unit after as well: where
all units are one of at most two kinds, rings in both directions are evaluated like those in one. Elsewhere all units go on together
(native/src/sim/both_ways.hpp), unless rings in both directions meet in a NIC.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import Inapplicable, UsageError
from ..ir import RingLoops
from ..topo import Topology
from .changes import NONE, Changes
from .patience import allowed, check_work

I64 = npt.NDArray[np.int64]

# Messages that are timed each by itself take some 50 ns; those of all units at once 1 ns.
_MOST_EACH, _MOST_SWEPT = 2_000_000_000, 20_000_000_000

# Of rings in both directions 0.2 µs; rounds of nodes that wait for one another in no rhythm some 10 µs.
_MOST_BOTH_WAYS, _MOST_ROUNDS = 600_000_000, 30_000_000

# Of equal units, where fewer would do: what they send goes round among so many at a time.
_MOST_COPIES = 1024

# Of units, as many as are compared each with all others.
_MOST_KINDS = 1024

_OK, _DISORDER, _OVERFLOW, _BAD, _OUT_OF_MEMORY, _TOO_MANY, _TOO_MUCH = range(7)


class Kinds(NamedTuple):
    """Units by what does not change about their stations; of: int32[units]; columns: those of _BY_KIND, [kinds, chains, stations] each."""

    of: npt.NDArray[np.int32]
    columns: list[npt.NDArray[Any]]


class Rows:
    """Stations of some rings in the units of a topology: ranks and the links of their paths, [units, chains, stations].

    rings: which of `loops.orders`; stations: positions of a unit. All else is made of these when asked for, and most of it then kept by
    kind of unit.
    """

    def __init__(self, loops: RingLoops, topology: Topology, rings: npt.NDArray[Any], stations: int, late_ps: I64) -> None:
        orders = loops.orders if np.array_equal(rings, np.arange(len(loops.orders))) else loops.orders[rings]
        chains, length = orders.shape
        self.shape = (length // stations, chains, stations)
        self.backward = _backward(orders, topology, stations)
        self.orders, self.ring, self.channel = orders, rings, loops.channel[rings]
        self.rank = self._by_unit(orders)
        self.a, self.b = (self._by_unit(links) for links in _path(orders, stations, topology, self.channel))
        self._topology, self._late_ps, self._timetable = topology, late_ps, loops.timetable

    def _by_unit(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """[chains, length] as [units, chains, stations]: a view, unless rings run backwards."""
        units, chains, stations = self.shape
        shaped = column.reshape(chains, units, stations)
        if self.backward.any():
            shaped = shaped.copy()
            shaped[self.backward] = shaped[self.backward, ::-1]
        return shaped.transpose(1, 0, 2)

    def places(self, loops: RingLoops, group: int) -> tuple[I64, I64]:
        """Places of the stations of the first unit in the order of a group of ops, and from there to the next unit: [chains, stations].

        group: ranks of a node. Ops are written ring by ring, or slice by slice and rank by rank (between nodes, without a timetable).
        """
        units, chains, stations = self.shape
        by_slice = loops.in_node and not loops.timetable
        first, apart = np.where(self.backward, (units - 1) * stations, 0), np.where(self.backward, -stations, stations)
        position, ring = first[:, None] + np.arange(stations), self.ring[:, None]
        row = position * group + ring % group if by_slice else ring * loops.orders.shape[1] + position
        return row, np.broadcast_to(apart[:, None] * (group if by_slice else 1), (chains, stations))

    def take(self, chains: npt.NDArray[Any]) -> Rows:
        """The rows of some chains."""
        part = object.__new__(Rows)
        steps = np.unique(np.diff(chains))
        if len(steps) == 1 and steps[0] > 0:  # every so many: no copy is needed
            chains = slice(int(chains[0]), int(chains[-1]) + 1, int(steps[0]))  # type: ignore[assignment]
        vars(part).update(vars(self))
        part.rank, part.a, part.b = (column[:, chains] for column in (self.rank, self.a, self.b))
        for name in ("orders", "backward", "ring", "channel"):
            setattr(part, name, getattr(self, name)[chains])
        part.shape = part.rank.shape
        return part

    def kinds(self, memory_free_ps: I64, both_ways: bool = False) -> Kinds:
        """Of all units; memory_free_ps: [units, chains, stations]; both_ways: rings in both directions go on together."""
        topology, links, late_ps = self._topology, self._topology.links, self._late_ps
        latency = _taken(links.latency_ps, self.a) + _taken(links.latency_ps, self.b)
        if topology.network is not None:
            ahead = np.roll(self.orders, -1, axis=1)
            latency = latency + self._by_unit(topology.tier_latency_ps(self.orders, ahead, self.channel[:, None]))
        if (late_ps == late_ps[0]).all():
            late = ready = np.broadcast_to(late_ps[0], self.shape)
        else:
            late, ready = _taken(late_ps, self.rank), self._by_unit(_taken(late_ps, np.roll(self.orders, -1, axis=1)))
        # Links between switches are on no path.
        ticks = np.broadcast_to(np.uint8(0), self.shape) if self._timetable else (self.a >= 3 * topology.n_ranks).astype(np.uint8)
        memory, link_a, link_b = self._local_links()
        if both_ways:
            link_b = self._received_apart(link_b, ticks > 0)
        columns = [memory, link_a, link_b, _taken(topology.local_bytes_per_s, self.rank), _taken(links.bytes_per_s, self.a),
                   _taken(links.bytes_per_s, self.b), latency, ticks, late, ready, memory_free_ps]
        of, some = kinds_of_units(columns)
        return Kinds(of, [np.ascontiguousarray(column[some]) for column in columns])

    def _local_links(self) -> tuple[npt.NDArray[np.int32], ...]:
        """Links by number within the unit: memory, a, b. A NIC's receiving side belongs to the unit before, which alone sends there."""
        if self.shape[1:] == (1, 1):  # whatever they are, they are three
            return tuple(np.broadcast_to(np.int32(i), self.shape) for i in range(3))
        names = self._topology.link_in_node
        found = [alike(names.take(ids)) for ids in (2 * self._topology.n_ranks + self.rank, self.a, self.b)]
        some = [ids[:1] if ids.strides[0] == 0 else ids for ids in found]
        used = np.zeros(max(int(ids.max()) for ids in some) + 1, bool)
        for ids in some:
            used[ids.ravel()] = True
        dense = (np.cumsum(used) - 1).astype(np.int32)
        return tuple(np.broadcast_to(dense.take(ids), self.shape) for ids in some)

    def _received_apart(self, link_b: npt.NDArray[Any], far: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
        """Numbers of the second links within a unit: what backward rings use in the unit before is not what others use in the one after."""
        back = self.backward[None, :, None]
        if len(np.intersect1d(self.b[far & back], self.b[far & ~back])):
            raise Inapplicable("rings in both directions meet in a NIC, which is timed without it where all nodes, or every other one, are "
                               "alike: no NIC that they use may be slower, no rank late")
        return np.where(far & back, link_b + link_b.max() + 1, link_b)


def _path(orders: I64, stations: int, topology: Topology, channel: I64) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Links from every rank of the rings to the next one, i32[rings, length] each: of the fabric inside units, of NICs between them."""
    chains, length = orders.shape
    n, m, nodes = topology.n_ranks, topology.nics_per_node, topology.n_nodes
    if nodes == 1 or length == stations:
        path = topology.path(orders, np.roll(orders, -1, axis=1), channel[:, None])
        return path[..., 0], path[..., 1]

    def nics(ranks: I64) -> I64:
        return topology.node_of.take(ranks) * np.int64(m) + topology.nic_of(ranks, channel[:, None])

    leaves = nics(orders[:, stations - 1 :: stations])
    enters = np.roll(leaves if stations == 1 else nics(orders[:, ::stations]), -1, axis=1)
    if stations == 1:
        return (3 * n + leaves).astype(np.int32), (3 * n + nodes * m + enters).astype(np.int32)
    a = orders.astype(np.int32)
    b = np.roll(a, -1, axis=1) + np.int32(n)
    a[:, stations - 1 :: stations], b[:, stations - 1 :: stations] = 3 * n + leaves, 3 * n + nodes * m + enters
    return a, b


def _taken(column: npt.NDArray[Any], ids: I64) -> npt.NDArray[Any]:
    """column[ids]; where all of them are equal one number stands for them, which takes no memory to go over."""
    least, most = int(ids.min()), int(ids.max())
    some = column[least : most + 1]
    return np.broadcast_to(column[least], ids.shape) if (some == some[0]).all() else column.take(ids)


def alike(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same column; where all units have the same, one row stands for them."""
    return np.broadcast_to(column[:1], column.shape) if column.strides[0] and (column == column[:1]).all() else column


def by_class(values: npt.NDArray[Any], class_of: I64) -> npt.NDArray[Any]:
    """values[class_of]; of one class a view, whose rows are one in memory."""
    return np.broadcast_to(values, (len(class_of), *values.shape[1:])) if len(values) == 1 else values[class_of]


def kinds_of_units(columns: list[npt.NDArray[Any]]) -> tuple[npt.NDArray[np.int32], I64]:
    """(kind of each unit, a unit of each kind): units of one kind have equal rows in all columns.

    Where there are many kinds, equal units that lie neither side by side nor two apart may be of several.
    """
    units, columns = len(columns[0]), [column for column in columns if column.strides[0]]
    stride, differs = 1, ~_like_before(columns, units, 1)
    if np.count_nonzero(differs) > units // 4:  # every other node may be passed through the other way round
        stride, differs = 2, ~_like_before(columns, units, 2)
    like = np.arange(units)  # by unit, the first one of those that it was found to be like
    for first in range(stride):
        like[first::stride] = np.maximum.accumulate(np.where(differs[first::stride], like[first::stride], 0))
    found, kind_of = np.unique(like, return_inverse=True)
    if len(found) <= _MOST_KINDS:
        known: dict[bytes, int] = {}
        same = [known.setdefault(b"".join(column[unit].tobytes() for column in columns), int(unit)) for unit in found]
        found, kind = np.unique(same, return_inverse=True)
        kind_of = kind[kind_of]
    return kind_of.astype(np.int32), found


def _like_before(columns: list[npt.NDArray[Any]], units: int, before: int) -> npt.NDArray[np.bool_]:
    """Whether each unit has the rows of the one so many before; the first ones have not."""
    same = np.zeros(units, bool)
    same[before:] = True
    for column in columns:
        same[before:] &= (column[before:] == column[:-before]).all(axis=(1, 2))
    return same


def _same_after(columns: list[npt.NDArray[Any]], turn: int) -> bool:
    return all(column.strides[0] == 0 or np.array_equal(column[turn:], column[:-turn]) for column in columns)


def turned_onto_itself(columns: list[npt.NDArray[Any]]) -> int:
    """The least number of units, 1 or 2, by which the ring can be turned onto itself; all units where neither."""
    units = len(columns[0])
    for turn in (1, 2):
        if units % turn == 0 and units > turn and _same_after(columns, turn):
            return turn
    return units


def evaluate(rows: Rows, loops: RingLoops, rings: npt.NDArray[Any], topology: Topology, sizes: I64, nominal_bytes: int,
             alpha_ps: int, *, memory_free_ps: I64 | None = None, begin: tuple[I64, I64] | None = None, merge: bool = True,
             jumps: bool = True, merged: bool = False, known: dict[Any, Any] | None = None,
             changes: Changes = NONE, one_by_one: bool = False) -> tuple[I64, I64, I64, dict[str, int]]:  # fmt: skip
    """(finish_ps [units, chains, stations], end_ps and end_batch [units, chains, slices], counts of rounds) of some rings.

    sizes: bytes [chains, slices, depth, 1 or length]; nominal_bytes: of each in nominal time. memory_free_ps like rows; begin: ps and
    batch [units, chains, slices] at which slices may begin. merged: chains go on each by itself from the start (for tests; else only where
    going round by round fails), and `counts` are of messages, not of rounds. known: results by what they depend on; rings found there
    are not evaluated again. Raises Inapplicable.
    """
    units, chains, stations = rows.shape
    slices = loops.slice_of.shape[1]
    never = np.broadcast_to(np.int64(0), rows.shape)
    free = never if memory_free_ps is None else memory_free_ps
    kinds, both_ways = rows.kinds(free), False
    where = [np.where(np.isin(link, changes.link), link, -1) for link in (rows.a, rows.b)] if changes else []
    turn = turned_onto_itself([kinds.of, *(begin or ()), *where]) if merge and sizes.shape[-1] == 1 else units

    def told(several: int) -> dict[str, Any]:
        return _told(rows, loops, rings, topology, kinds, begin, several, changes) | {
            "alpha_ps": alpha_ps, "nominal_bytes": nominal_bytes, "n_sizes": sizes.shape[-1], "jumps": jumps,
            "bytes": np.ascontiguousarray(sizes).ravel(), "one_by_one": one_by_one, "merged": merged, "timetable": loops.timetable,
            "followed": False, "own_time": False, "swept": False, "most_merged": allowed(_MOST_EACH),
            "most_both_ways": allowed(_MOST_BOTH_WAYS), "most_rounds": allowed(_MOST_ROUNDS),
            "backward": rows.backward.astype(np.uint8)[: len(rows.backward) * both_ways]}  # fmt: skip

    def again(sizes: I64, free: I64, begin: tuple[I64, I64] | None, one_by_one: bool = False) -> tuple[I64, I64, I64, dict[str, int]]:
        return evaluate(rows, loops, rings, topology, sizes, nominal_bytes, alpha_ps, memory_free_ps=free, begin=begin, jumps=jumps,
                        changes=changes, one_by_one=one_by_one)  # fmt: skip

    if sizes.shape[-1] > 1:
        one = chains == stations == loops.depth == slices == 1 and not loops.copies
        found, simple = None, merge and not merged
        if one and simple and turned_onto_itself([rows.kinds(never).of, *where]) == 1:
            of = partial(_alone, again, rows.shape)
            latency_ps = int(kinds.columns[_BY_KIND.index("latency_ps")].flat[0])
            found = _each_by_itself(of, [sizes, free, *(begin or ())], loops.steps, latency_ps)
        messages = units * chains * stations * slices * loops.depth * loops.steps
        of_one_length = cache(lambda: again(sizes.max(axis=-1, keepdims=True), free, begin, one_by_one=True))
        if found is None and simple and jumps and not rows.backward.any():
            found = _unit_by_unit(of_one_length, lambda: told(units), rows.shape, slices, is_last=messages > allowed(_MOST_EACH))
        if found is None and simple and stations == 1 and not changes and messages <= allowed(_MOST_SWEPT):
            found = _step_by_step("swept", of_one_length, told(units), rows.shape, slices)
        if found is not None:
            return found
        if rows.backward.any():
            raise Inapplicable("rings in both directions are timed without it where all messages are alike: the number of elements is "
                               f"a multiple of {loops.parts:,}")
        check_work(messages, _MOST_EACH, "messages, no two alike since chunks differ by an element (none do where the number of elements "
                   f"is a multiple of {loops.parts:,}),", 50e-9)  # fmt: skip
    both_ways = bool(rows.backward.any()) and turn > 2
    if both_ways:
        kinds = rows.kinds(free, both_ways)
    several = _several(units, turn, loops) if jumps and not rows.backward.any() else turn
    inputs, key = told(several), None
    if known is not None and all((link < 0).all() for link in where):
        own = [inputs[name] for name in ("kind_of", *_BY_KIND, "begin_ps", "begin_batch", "slices", "row_step")]
        order = [inputs[name] - inputs[name].min() for name in ("row", "group")]  # of ops, which come elsewhere for other rings
        key = (turn, nominal_bytes, hashlib.sha256(b"".join(column.tobytes() for column in (*own, *order, sizes))).digest())
    if known is not None and key in known:
        return (*known[key], {"units": 0, "rounds": 0, "jumped": 0, "merged": 0})
    status, rounds, jumped = _core.simulate_rings(inputs)
    round_by_round = merged or one_by_one or both_ways or loops.timetable
    if status == _DISORDER and not round_by_round:  # some chains overtake others
        status, rounds, jumped = _core.simulate_rings({**inputs, "merged": (merged := True)})
    _check(status)
    shaped = (_repeated(inputs["finish_ps"].reshape(several, chains, stations)[:turn], units),
              *(_repeated(inputs[end].reshape(several, chains, slices)[:turn], units) for end in ("end_ps", "end_batch")))
    if known is not None and key is not None:
        known[key] = shaped
    return (*shaped, {"units": turn, "rounds": rounds, "jumped": jumped, "merged": rounds if merged else 0})


_BY_KIND = ("memory", "link_a", "link_b", "memory_bytes_per_s", "a_bytes_per_s", "b_bytes_per_s", "latency_ps", "ticks", "late_ps",
           "ready_ps", "memory_free_ps")  # fmt: skip


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
        "copies": loops.copies, "passes_on": loops.in_node,
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
            {"units": shape[0], "rounds": rounds, "jumped": jumped, "merged": 0})


def _repeated(found: I64, units: int) -> I64:
    """What was found of some units, one after the other until there are `units`; of one, a view."""
    if len(found) == 1:
        return np.broadcast_to(found, (units, *found.shape[1:]))
    return found if len(found) == units else np.tile(found, (units // len(found), 1, 1))


def _several(units: int, turn: int, loops: RingLoops) -> int:
    """Units to evaluate where `turn` of them stand for all: more of them find more messages at a time, and most follow (runs.hpp)."""
    return turn * min(units // turn, _MOST_COPIES) if loops.steps > _MOST_COPIES else turn


def _alone(again: Callable[..., tuple[I64, I64, I64, dict[str, int]]], shape: tuple[int, ...], nbytes: int,
           *at: int) -> tuple[I64, I64, I64, dict[str, int]]:  # fmt: skip
    """What `again` says where all units begin with so many bytes, at one time."""
    free_ps, *begins = (np.broadcast_to(np.int64(each), shape) for each in at)
    return again(np.full((1, 1, 1, 1), nbytes), free_ps, tuple(begins) or None)


def _each_by_itself(of: Callable[..., tuple[I64, I64, I64, dict[str, int]]], columns: list[I64], steps: int,
                    latency_ps: int) -> tuple[I64, I64, I64, dict[str, int]] | None:  # fmt: skip
    """What `evaluate` returns for a ring of units of one link that are alike but for `columns`; None where a message may wait.

    columns: one number a unit: bytes of the message that begins there, when its memory is free, ps and batch at which it may begin (or not
    these two). of: what `evaluate` returns if all units have such numbers.
    """
    table = np.stack([column.ravel() for column in columns], axis=1)
    first, which = kinds_of(table)
    rows = table[first]
    found = [of(*map(int, row)) for row in rows]
    end_ps, end_batch = (np.array([each[i].flat[0] for each in found]) for i in (1, 2))
    free_ps, begin_ps = rows[:, 1], rows[:, 2] if rows.shape[1] > 2 else rows[:, 1] * 0
    waits = max(np.ptp(end_ps), np.ptp(begin_ps)) > latency_ps or np.ptp(end_batch)
    if waits or (np.ptp(free_ps) and free_ps.max() > begin_ps.min() + latency_ps):
        return None
    finish, end, batch, _ = found[0]
    counts = {name: sum(done[name] for *_, done in found) for name in found[0][3]}
    last = end_ps[which[(np.arange(len(which)) - steps) % len(which)]]  # what is at a position after the last step
    return last.reshape(finish.shape), last.reshape(end.shape), batch, counts


def kinds_of(table: I64) -> tuple[I64, I64]:
    """(a row of each kind, kind of each row): rows of one kind are equal. Fast where columns have few values."""
    kind = np.zeros(len(table), np.int64)
    for column in table.T:
        if (column != column[0]).any():
            values, at = np.unique(column, return_inverse=True)
            _, kind = np.unique(kind * len(values) + at, return_inverse=True)
    return np.unique(kind, return_index=True)[1], kind


_MORE = "; patience=10 allows ten times as many"


def _check(status: int) -> None:
    if status == _OUT_OF_MEMORY:
        raise MemoryError("simulating rings")
    if status == _DISORDER:
        raise Inapplicable("a link would be served in another order than round by round, and there are too many messages to time each")
    if status == _TOO_MUCH:
        raise Inapplicable(f"lanes wait for one another in a rhythm that is not found, with too many rounds to time each{_MORE}")
    if status == _TOO_MANY:
        raise Inapplicable(f"rings in both directions pass through too many nodes that are unlike each other{_MORE}")
    if status == _OVERFLOW:
        raise UsageError("the schedule would take more than 13 days, or nominal time does not fit: raise the rates or lower the size.")
    if status != _OK:
        raise Inapplicable("the columns of the rings do not fit together")


def flat_finish(loops: RingLoops, topology: Topology, count: int, itemsize: int, late_ps: I64, alpha_ps: int,
                changes: Changes = NONE, *, merge: bool = True, jumps: bool = True) -> tuple[I64, dict[str, int]]:  # fmt: skip
    """When each rank ends, i64[n_ranks], of rings over all ranks; and how many rounds that took. Raises Inapplicable."""
    stations = _stations(loops, topology)
    rings = np.arange(len(loops.orders))
    rows = Rows(loops, topology, rings, stations, late_ps)
    sizes = loops.chunk_bytes(count, itemsize)
    nominal = loops.nominal_bytes(count, itemsize)
    finish, _, _, counts = evaluate(rows, loops, rings, topology, sizes, nominal, alpha_ps, merge=merge, jumps=jumps, changes=changes)
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
    back = _backward(loops.orders, topology, size)
    if (np.where(back[:, None, None], node[:, ::-1], node) != node[:1, :, :1]).any():
        raise Inapplicable("rings pass through the nodes in different orders")
    return size


def _backward(orders: npt.NDArray[Any], topology: Topology, stations: int) -> npt.NDArray[np.bool_]:
    """Rings that come to the units in the order opposite to that of the first one: bool[rings]."""
    node = topology.node_of[orders[:, ::stations]]
    return (node == node[0, ::-1]).all(axis=1) & (node != node[0]).any(axis=1)
