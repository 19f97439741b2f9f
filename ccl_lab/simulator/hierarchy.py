"""Hierarchical schedules without a row per op: nodes, then the rings between them, then nodes again.

    node phase   what ranks put to owners           an ordinary schedule of one node, once for each kind of node       exact.py
    rings        one per owner and lane             rounds, units of the ranks whose rings share NICs                  loops.py
    gather       the lanes' puts inside each node   node by node                                                       gathers.hpp

Owners are the ranks of a node that take part in rings: every one in a hierarchical schedule, and around lost NICs as many as the node that
lost most has left, not the same ones in every node.

Is: what the three hand to one another. Is not: arithmetic. Invariant: the phases can be evaluated one after the other, because each link
serves them one after the other: the node phase happens at tick 0 of nominal time, and whatever a ring adds or hands on inside a node
happens after a message has crossed between nodes, which takes at least a tick (its bytes; rings with empty messages are refused).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import Inapplicable
from ..ir import Kind, Outline, RingLoops
from ..topo import Topology, duration_ps
from .changes import NONE, Changes
from .exact import core_times
from .loops import evaluate
from .ring_rows import Rows, by_class

I64 = npt.NDArray[np.int64]


class NodePhase(NamedTuple):
    """What the node phase leaves behind, by class of node: [classes, group] unless said otherwise.

    class_of: [nodes]; owners: [classes, owners], their local indices; begin_ps: [classes, owners, slices], when all parts of each slice are
    there; begin_batch: the same, of their signals.
    """

    class_of: I64
    owners: I64
    begin_ps: I64
    begin_batch: I64
    tx_free_ps: I64
    rx_free_ps: I64
    end_ps: I64


def _classes(columns: list[I64]) -> tuple[I64, I64]:
    """(class of each node, a node of each class): nodes of one class have the same values in all columns [nodes, group]."""
    class_of = np.zeros(len(columns[0]), np.int64)
    columns = [column for column in columns if (column != column[0]).any()]
    if not columns:
        return class_of, np.zeros(1, np.int64)
    other = np.flatnonzero(np.any([(column != column[0]).any(axis=1) for column in columns], axis=0))
    table = np.concatenate([column[other] for column in columns], axis=1)
    _, first, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
    class_of[other] = 1 + inverse.ravel()
    return class_of, np.concatenate([[0], other[first]])


class Places(NamedTuple):
    """Where rings run: grid [nodes, group], the ranks by node, as rings come to them, and local index; owners [nodes, owners], local
    indices in the order of their rings; owner_of [rings], which of them a ring belongs to. Where rings have a part of every slice each has
    an owner of its own, but one rank may be several of them, in each node other ones."""

    grid: I64
    owners: I64
    owner_of: I64

    @classmethod
    def of(cls, loops: RingLoops, topology: Topology) -> Places:
        grid = topology.by_node(topology.local_of).reshape(topology.n_nodes, -1)[topology.node_of[loops.orders[0]]]
        local = topology.local_of[loops.orders].astype(np.int64)
        if not loops.in_turn:
            return cls(grid, local.T, np.arange(len(local)))
        first = np.sort(np.unique(local[:, 0], return_index=True)[1])
        return cls(grid, local[first].T, (local[:, :1] == local[first, 0]).argmax(axis=1))


def node_phase(outline: Outline, topology: Topology, places: Places, nbytes: int, dtype: str, late_ps: I64, alpha_ps: int) -> NodePhase:
    """Times the node phase on one node of each class."""
    assert outline.node_phase is not None and outline.loops is not None
    grid, group, slices = places.grid, places.grid.shape[1], int(outline.loops.slice_of.max()) + 1
    class_of, example = _classes([places.owners, *(column[grid] for column in (
        topology.fabric_bytes_per_s, topology.fabric_latency_ps, topology.local_bytes_per_s, late_ps) if (column != column[0]).any())])
    found: dict[str, list[Any]] = {name: [] for name in NodePhase._fields[1:]}
    for node in example:
        ranks, owners = grid[node], places.owners[node]
        schedule = outline.node_phase(owners)
        layout, ops = schedule.layout(nbytes=nbytes, dtype=dtype), schedule.ops
        puts = np.flatnonzero(ops.kind == Kind.put)
        parts = puts.reshape(slices, group - 1, len(owners)).transpose(2, 0, 1)  # they are written slice by slice, owner by owner
        one = topology.subset(ranks)
        times = core_times(schedule, one, layout, late_ps[ranks], np.zeros(len(ops), np.int64), alpha_ps)
        found["owners"].append(owners)
        if len(np.unique(times.level[puts])) > 1:
            raise Inapplicable("not all that goes to the lanes of a node is put at once")
        found["begin_ps"].append(times.arrive_ps[parts].max(axis=2, initial=0))
        found["begin_batch"].append(times.level[parts].max(axis=2, initial=0).astype(np.int64))
        free = np.zeros(len(one.links), np.int64)
        for side in (0, 1):
            busy = [duration_ps(int(nbytes), int(rate)) for nbytes, rate in
                    zip(times.nbytes[puts], one.links.bytes_per_s[times.links[puts, side]], strict=True)]
            held = np.where(times.nbytes[puts] > 0, alpha_ps, 0)
            np.maximum.at(free, times.links[puts, side], times.start_ps[puts] + held + np.array(busy, np.int64))
        found["tx_free_ps"].append(free[:group])
        found["rx_free_ps"].append(free[group : 2 * group])
        end = late_ps[ranks].copy()
        np.maximum.at(end, ops.rank, times.end_ps)
        np.maximum.at(end, ops.rank[puts], times.leave_ps[puts])
        found["end_ps"].append(end)
    return NodePhase(class_of, **{name: np.stack(each) for name, each in found.items()})


def _coupled(rows: Rows, owner_of: I64) -> list[npt.NDArray[Any]]:
    """Chains that have to be one unit, because their owners share a NIC on some node, or are one rank there."""
    first = {int(each): int(each) for each in np.unique(owner_of)}  # of the group that an owner belongs to
    sides = [np.ascontiguousarray(side[..., 0].T) for side in (rows.rank, rows.a, rows.b)]  # by chain

    def share(one: int, other: int) -> bool:
        mine, theirs = np.flatnonzero(owner_of == one), np.flatnonzero(owner_of == other)
        return any((side[a] == side[b]).any() for side in sides for a in mine for b in theirs)

    for other in first:
        for one in range(other):
            if first[one] != first[other] and share(one, other):
                joined = first[other]
                first = {each: first[one] if group == joined else group for each, group in first.items()}
    groups: dict[int, list[int]] = {}
    for chain, each in enumerate(owner_of):
        groups.setdefault(first[int(each)], []).append(chain)
    return [np.array(chains) for chains in groups.values()]


def hierarchical_finish(outline: Outline, topology: Topology, nbytes: int, dtype: str, itemsize: int, late_ps: I64, alpha_ps: int,
                        changes: Changes = NONE, *, merge: bool = True, jumps: bool = True) -> tuple[I64, dict[str, int]]:  # fmt: skip
    """When each rank ends, i64[n_ranks], and how many rounds that took. Raises Inapplicable."""
    loops = outline.loops
    assert loops is not None
    places = Places.of(loops, topology)
    count = outline.count_of(nbytes, dtype)
    sizes = loops.chunk_bytes(count, itemsize)
    if sizes[loops.slice_of >= 0].min() == 0:
        raise Inapplicable("some messages between nodes are empty")
    before = node_phase(outline, topology, places, nbytes, dtype, late_ps, alpha_ps)
    finish = before.end_ps[before.class_of]
    nominal = loops.nominal_bytes(count, itemsize)
    ends, counts = _rings(loops, topology, places, sizes, nominal, before, finish, late_ps, alpha_ps, changes, merge, jumps)
    _gather(loops, topology, places, count, itemsize, before, ends, late_ps, alpha_ps, finish)
    out = np.empty(topology.n_ranks, np.int64)
    out[places.grid] = finish
    return out, counts


def _rings(loops: RingLoops, topology: Topology, places: Places, sizes: I64, nominal_bytes: int, before: NodePhase, finish: I64,
           late_ps: I64, alpha_ps: int, changes: Changes, merge: bool, jumps: bool) -> tuple[list[I64], dict[str, int]]:  # fmt: skip
    """Of each owner end_ps and end_batch, [2, nodes, slices], or one row where they are alike in all nodes; raises `finish` [nodes, group].

    Equal groups of rings are timed once.
    """
    chains, nodes = loops.orders.shape
    owner_of, everywhere = places.owner_of, np.arange(nodes)
    everyone = np.arange(chains)
    rows = Rows(loops, topology, everyone, 1, late_ps)
    none = np.zeros((2, 0, before.begin_ps.shape[2]), np.int64)
    ends = [none] * places.owners.shape[1]
    known: dict[Any, tuple[I64, I64, I64]] = {}
    counts = {"units": 0, "rounds": 0, "jumped": 0}
    for members in _coupled(rows, owner_of):
        place = np.maximum(loops.slice_of[members], 0)
        begin = tuple(by_class(times[:, owner_of[members][:, None], place], before.class_of)
                      for times in (before.begin_ps, before.begin_batch))  # fmt: skip
        finish_ps, *found, done = evaluate(rows.take(members), loops, members, topology, sizes[members], nominal_bytes, alpha_ps,
                                           begin=begin, merge=merge, jumps=jumps,
                                           known=known if merge else None, changes=changes)  # type: ignore[arg-type]
        counts = {name: counts[name] + done[name] for name in counts}
        apart = nodes if any(each.strides[0] for each in found) else 1
        for chain, ring in enumerate(members):
            local = places.owners[:, owner_of[ring]]
            one = (everywhere, local) if (local != local[0]).any() else (slice(None), local[0])
            finish[one] = np.maximum(finish[one], finish_ps[:, chain, 0])
            mine = loops.slice_of[ring][: int(np.count_nonzero(loops.slice_of[ring] >= 0))]
            if not ends[owner_of[ring]].shape[1]:
                ends[owner_of[ring]] = np.zeros((2, apart, none.shape[2]), np.int64)
            for end, each in zip(ends[owner_of[ring]], found, strict=True):
                end[:, _as_slice(mine)] = each[:apart, chain, : len(mine)]
    return ends, counts


def _as_slice(places: I64) -> slice:
    """Places that a lane comes to in turn: they lie equally far apart, and a slice of an array is written faster than rows one by one."""
    step = int(places[1] - places[0]) if len(places) > 1 else 1
    assert (np.diff(places) == step).all()
    return slice(int(places[0]), int(places[-1]) + 1, step)


def _gather(loops: RingLoops, topology: Topology, places: Places, count: int, itemsize: int, before: NodePhase, ends: list[I64],
            late_ps: I64, alpha_ps: int, finish: I64) -> None:  # fmt: skip
    """Raises `finish` [nodes, group] to the end of what the lanes hand to the other ranks of each node."""
    nodes, group = places.grid.shape
    slices = before.begin_ps.shape[2]
    first = np.zeros((places.owners.shape[1], slices), np.int64)
    for ring, index in zip(*np.nonzero(loops.slice_of >= 0), strict=True):
        first[places.owner_of[ring], loops.slice_of[ring, index]] = loops.first[ring, index]
    length = np.zeros((len(first), 1), np.int64)
    length[places.owner_of, 0] = nodes * loops.stride
    nbytes = ((first + length) * count // loops.parts - first * count // loops.parts) * itemsize
    example = places.grid[np.array([int(np.argmax(before.class_of == c)) for c in range(len(before.end_ps))])]
    latency = topology.fabric_latency_ps[example]
    flat = {
        "owners": before.owners, "bytes": nbytes, "rows": np.array([end.shape[1] for end in ends]), "class_of": before.class_of,
        **{name: np.concatenate([end[i].ravel() for end in ends]) for i, name in enumerate(("end_ps", "end_batch"))},
        "bytes_per_s": topology.fabric_bytes_per_s[example], "late_ps": late_ps[example], "tx_latency_ps": latency - latency // 2,
        "rx_latency_ps": latency // 2, "tx_free_ps": before.tx_free_ps, "rx_free_ps": before.rx_free_ps, "finish_ps": finish,
    }  # fmt: skip
    columns = {name: np.ascontiguousarray(column, np.int64).ravel() for name, column in flat.items()}
    if not _core.simulate_gathers({"nodes": nodes, "group": group, "slices": slices, "classes": len(before.end_ps), "alpha_ps": alpha_ps,
                                   **columns}):  # fmt: skip
        raise MemoryError("simulating the end of a hierarchical schedule")
    finish[:] = columns["finish_ps"].reshape(nodes, group)
