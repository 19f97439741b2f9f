"""Stations of rings in their units: ranks and links, and which units are alike (loops.py says what a unit is).

Is: columns, [units, chains, stations] or by kind of unit. Is not: the evaluation (loops.py). Invariant: units of one kind have equal
rows in all columns of `Rows.kinds`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..ir import RingLoops
from ..topo import Topology

I64 = npt.NDArray[np.int64]

# Of units, as many as are compared each with all others.
_MOST_KINDS = 1024


class Kinds(NamedTuple):
    """Units by what does not change about their stations; of: int32[units]; columns: those of _BY_KIND, [kinds, chains, stations] each."""

    of: npt.NDArray[np.int32]
    columns: list[npt.NDArray[Any]]

    @property
    def same_links_every_other(self) -> bool:
        """Whether all units have the same links, or every other one has, all round."""
        links = np.stack(self.columns[:3], axis=1)[self.of]
        return any(len(links) % apart == 0 and (links[apart:] == links[:-apart]).all() for apart in (1, 2))


class Rows:
    """Stations of some rings in the units of a topology: ranks and the links of their paths, [units, chains, stations].

    rings: which of `loops.orders`; stations: positions of a unit. All else is made of these when asked for, and most of it then kept by
    kind of unit.
    """

    def __init__(self, loops: RingLoops, topology: Topology, rings: npt.NDArray[Any], stations: int, late_ps: I64) -> None:
        orders = loops.orders if np.array_equal(rings, np.arange(len(loops.orders))) else loops.orders[rings]
        chains, length = orders.shape
        self.shape = (length // stations, chains, stations)
        self.backward = backward(orders, topology, stations)
        self.orders, self.ring, self.channel = orders, rings, loops.channel[rings]
        self.rank = self._by_unit(orders)
        self.a, self.b = (self._by_unit(links) for links in _path(orders, stations, topology, self.channel))
        self._topology, self._late_ps, self._timetable, self._timeless = topology, late_ps, loops.timetable, False

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

        group: ranks of a node. Ops are written ring by ring, or slice by slice and rank by rank (`RingLoops.in_turn`).
        """
        units, chains, stations = self.shape
        first, apart = np.where(self.backward, (units - 1) * stations, 0), np.where(self.backward, -stations, stations)
        position, ring = first[:, None] + np.arange(stations), self.ring[:, None]
        row = position * group + ring % group if loops.in_turn else ring * loops.orders.shape[1] + position
        return row, np.broadcast_to(apart[:, None] * (group if loops.in_turn else 1), (chains, stations))

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

    def without_times(self) -> Rows:
        """The same rows, all links alike: what is left is the order in which they are served."""
        part = object.__new__(Rows)
        vars(part).update(vars(self), _timeless=True)
        return part

    def kinds(self, both_ways: bool = False) -> Kinds:
        """Of all units; both_ways: rings in both directions go on together."""
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
        crosses = self.a >= 3 * topology.n_ranks
        ticks = np.broadcast_to(np.uint8(0), self.shape) if self._timetable else crosses.astype(np.uint8)
        memory, link_a, link_b = self._local_links()
        if both_ways:  # what backward rings use in the unit before is not what others use in the one after
            link_b = np.where(crosses & self.backward[None, :, None], link_b + link_b.max() + 1, link_b)
        columns = [memory, link_a, link_b, _taken(topology.local_bytes_per_s, self.rank), _taken(links.bytes_per_s, self.a),
                   _taken(links.bytes_per_s, self.b), latency, ticks, late, ready]
        if self._timeless:
            rate, never = (np.broadcast_to(np.int64(each), self.shape) for each in (10**12, 0))
            columns[3:] = [rate, rate, rate, never, ticks, never, never]
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

    @property
    def meet(self) -> bool:
        """Whether rings in both directions are received by one NIC."""
        far = self.b[:, :, -1]
        return bool(np.intersect1d(far[:, self.backward], far[:, ~self.backward]).size)

    def far(self, meet: bool) -> npt.NDArray[np.int32]:
        """Links that receive what leaves a unit, [units * chains]; nothing where rings do not `meet` in them."""
        return np.ascontiguousarray(self.b[: len(self.b) * meet, :, -1], np.int32).ravel()


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


def kinds_of(table: I64) -> tuple[I64, I64]:
    """(a row of each kind, kind of each row): rows of one kind are equal. Fast where columns have few values."""
    kind = np.zeros(len(table), np.int64)
    for column in table.T:
        if (column != column[0]).any():
            values, at = np.unique(column, return_inverse=True)
            _, kind = np.unique(kind * len(values) + at, return_inverse=True)
    return np.unique(kind, return_index=True)[1], kind


def backward(orders: npt.NDArray[Any], topology: Topology, stations: int) -> npt.NDArray[np.bool_]:
    """Rings that come to the units in the order opposite to that of the first one: bool[rings]."""
    node = topology.node_of[orders[:, ::stations]]
    return (node == node[0, ::-1]).all(axis=1) & (node != node[0]).any(axis=1)
