"""Hierarchical all_to_all, timed without a row per op: columns for the native evaluation (native/src/sim/rails.hpp), and how ranks end.

Is: which nodes are alike, and the copies of each rank. Is not: the puts. Invariants: the times are those of exact.py on the unrolled
schedule, to the picosecond, or `Inapplicable` is raised; merging changes nothing.

Several channels meet inside nodes, where they take turns, and in the memory that they copy in. Between nodes each goes by itself where all
have NICs of their own, which are as busy in nominal time. Else all of them are evaluated together, and once more with a byte a tick: that
says in which order those of a rank come to their copies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import Inapplicable
from ..ir import Rails
from ..topo import INSTANT, Topology
from .changes import NONE, Changes
from .columns import busy_ps, no_changes_inside, period, tier_columns, too_long
from .patience import check_work

I64 = npt.NDArray[np.int64]

_OK, _OVERFLOW, _OUT_OF_MEMORY = 0, 2, 4
# 1 ns each between nodes, 2 ns inside.
_MOST_PUTS, _MOST_INSIDE = 40_000_000_000, 20_000_000_000


def rail_finish(rails: Rails, topology: Topology, count: int, itemsize: int, late_ps: I64, alpha_ps: int, changes: Changes = NONE, *,
                merge: bool = True, target: int = 0) -> tuple[I64, dict[str, Any]]:  # fmt: skip
    """When each rank ends, i64[n_ranks], and counts: nodes that were evaluated, classes of nodes that are alike inside, puts between nodes.

    Blocks of `count` elements; merge: False evaluates every node, target: code for one of _core.vector_targets(), for tests. Raises
    Inapplicable where too many puts are different; UsageError after 13 days. Cost: 0.5 ns a put between nodes of
    which most are alike, 1 ns between others; 2 ns a put inside those that are not alike.
    """
    grid, links = rails.grid, topology.links
    (nodes, group), m, first = grid.shape, topology.nics_per_node, 3 * topology.n_ranks
    ids = [first + (side * nodes + np.arange(nodes)[:, None]) * m + np.arange(m) for side in (0, 1)]
    outside = {f"{name}_{what}": getattr(links, what)[each] for name, each in zip(("tx", "rx"), ids, strict=True)
               for what in ("bytes_per_s", "latency_ps")}  # fmt: skip
    near = {f"near_{name}_{what}": getattr(links, what)[grid + side * topology.n_ranks] for side, name in enumerate(("tx", "rx"))
            for what in ("bytes_per_s", "latency_ps")} | {"near_late_ps": late_ps[grid]}  # fmt: skip
    channels, local = range(rails.channels), topology.local_bytes_per_s[grid]
    nics = [topology.nic_of(grid, channel) for channel in channels]
    _apart(nics, m)
    no_changes_inside(changes, topology)
    where = [np.where(np.isin(each, changes.link), each, -1) for each in ids] if changes else []
    alike = merge and not topology.tiers_add_latency
    units = period([*outside.values(), *near.values(), *nics, local, *where]) if alike else nodes
    classes, class_of = _classes([each[:units] for each in near.values()])
    puts = (nodes - 1) * units * int((rails.blocks >= 0).sum()) * rails.channels
    inside = nodes * len(classes) * group * (group - 1) * rails.channels**2
    check_work(puts, _MOST_PUTS, "puts between nodes, no two of them alike,", 1.5e-9)
    check_work(inside, _MOST_INSIDE, "puts inside nodes, no two of them alike,", 2e-9)
    sizes, apart = rails.part_bytes(count, itemsize), _apart(nics, m)
    known = {"nodes": nodes, "units": units, "group": group, "nics": m, "puts": rails.blocks.shape[1], "classes": len(classes),
             "class_of": class_of, "links": len(links), "target": target}  # fmt: skip

    def timed(lanes: list[int], part_bytes: I64, outside: dict[str, I64], near: dict[str, I64], late: I64, **options: Any) -> list[I64]:
        """Of these channels, [channels][units, ranks of a node]: when all has come that a rank waits for, and all that it puts has left."""
        own = np.concatenate([nics[channel] for channel in lanes], axis=1)[:units]
        maps, map_of = _classes([own])
        out = {name: np.zeros(len(lanes) * group * each, np.int64) for name, each in
               (("arrived_ps", units), ("left_ps", units), ("seen_ps", len(classes)), ("near_left_ps", len(classes)))}  # fmt: skip
        _check(_core.simulate_rails({
            **known, "nic": np.ascontiguousarray(own[maps], np.int32).ravel(), "map_of": map_of,
            "bytes": np.concatenate([np.where(rails.blocks >= 0, rails.blocks * part_bytes[channel], -1) for channel in lanes]).ravel(),
            "channel": lanes[0] if len(lanes) == 1 else -1, "near_bytes": part_bytes,
            "late_ps": _columns(np.tile(late, len(lanes))[:units]), **{name: _columns(each[:units]) for name, each in outside.items()},
            **{name: _columns(each[classes]) for name, each in near.items()},
            **out, **options}))  # fmt: skip
        arrived, left, seen, near_left = (each.reshape(len(lanes), group, -1).transpose(0, 2, 1) for each in out.values())
        return [np.maximum(arrived, seen[:, class_of]), np.maximum(left, near_left[:, class_of])]

    changing = {**tier_columns(topology), **{name: np.ascontiguousarray(each[:units if changes else 0].T, np.int32).ravel()
                   for name, each in zip(("tx_link", "rx_link"), ids, strict=True)}, **changes.columns()}  # fmt: skip
    parts = [[channel] for channel in channels] if apart else [list(channels)]
    found = [timed(part, sizes, outside, near, late_ps[grid], alpha_ps=alpha_ps, hop_ps=0, **changing) for part in parts]
    came, gone = (np.concatenate(each) for each in zip(*found, strict=True))
    takes = np.stack([busy_ps(int(nbytes), local[:units]) for nbytes in sizes])
    ends: list[I64] = []
    if not apart:
        longest = np.full(rails.channels, -(-count // rails.channels) * itemsize)
        ends = timed(list(channels), longest * nodes, *_nominal(outside, near), np.zeros_like(late_ps[grid]), alpha_ps=0, hop_ps=1,
                     **{name: each[:0] for name, each in changing.items()})  # fmt: skip
    finish = _copied(rails, takes, came, gone, *ends)
    whole = np.empty(topology.n_ranks, np.int64)
    whole[grid] = np.tile(finish, (nodes // units, 1))
    return whole, {"units": units, "classes": len(classes), "puts": puts}


def _nominal(outside: dict[str, I64], near: dict[str, I64]) -> tuple[dict[str, I64], dict[str, I64]]:
    """NICs that pass a byte a tick (exact.py), and links inside nodes that take none."""
    def rates(columns: dict[str, I64], rate: int) -> dict[str, I64]:
        return {name: np.where(each > 0, rate, 0) if name.endswith("bytes_per_s") else np.zeros_like(each)
                for name, each in columns.items()}

    return rates(outside, 10**12), rates(near, INSTANT)


def _check(status: int) -> None:
    if status == _OUT_OF_MEMORY:
        raise MemoryError("simulating rails")
    if status == _OVERFLOW:
        raise too_long()
    if status != _OK:
        raise Inapplicable("columns do not fit")


def _apart(nics: list[npt.NDArray[Any]], nics_per_node: int) -> bool:
    """Whether, of several channels, each has NICs of its own in each rank: then all come to their copies at one tick."""
    nodes = len(nics[0])
    used = np.stack([np.arange(nodes)[:, None] * nics_per_node + nic for nic in nics])
    return len(nics) == 1 or len(np.unique(used)) == used.size


def _copied(rails: Rails, each: I64, came: I64, gone: I64, ends: I64 | None = None, left: I64 | None = None) -> I64:
    """When ranks end: once all has come channels copy, in place a block for each other rank, once their puts have left.

    All [channels, units, ranks of a node]; ends: ticks at which all has come, times the number of nodes, and the hops that are left then,
    so many more waits; left: ticks when puts have left, times the number of nodes. None: all channels of a rank copy in turns. Those that
    begin in one batch do; others come one after the other, unless they begin at one tick and go on for many batches.
    """
    copies, nodes = rails.grid.size - 1 if rails.in_place else 1, len(rails.grid)
    if int(each.max()) * copies * len(each) > 2**60:
        raise too_long()
    ends = np.zeros_like(came) if ends is None else ends
    if rails.in_place:
        came = np.maximum(came, gone)
    if rails.in_place and left is not None:
        ends = np.where(left // nodes > ends // nodes, left // nodes * nodes - 1, ends)  # the first batch of that tick
        order = np.sort(ends, axis=0)
        if ((order[1:] != order[:-1]) & ((order[1:] + 1) // nodes == (order[:-1] + 1) // nodes)).any():
            raise Inapplicable("channels of a rank copy in one memory, some of them a few batches later than others")
    before = (ends[:, None] > ends[None]).sum(axis=1).reshape(len(each), -1)  # how many channels copy before each
    patterns, which = np.unique(before, axis=1, return_inverse=True)
    memory, takes, here = np.zeros(before.shape[1], np.int64), each.reshape(before.shape), came.reshape(before.shape)
    for i, pattern in enumerate(patterns.T):
        ranks = np.flatnonzero(which.ravel() == i)
        for place in np.unique(pattern):
            turn = np.flatnonzero(pattern == place)
            for channel in turn:
                memory[ranks] = np.maximum(memory[ranks], here[channel, ranks]) + takes[channel, ranks]
            memory[ranks] += (copies - 1) * takes[np.ix_(turn, ranks)].sum(axis=0)
    return np.maximum(memory.reshape(came.shape[1:]), np.max(gone, axis=0))


def _columns(rows: npt.NDArray[Any]) -> I64:
    """[nodes, k] as the native core takes it: [k][nodes]."""
    return np.ascontiguousarray(rows.T, np.int64).ravel()


def _classes(columns: list[npt.NDArray[Any]]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int32]]:
    """Nodes whose rows are alike: one node of each class, the most common class first, and i32[nodes], the class of each node."""
    rows = np.ascontiguousarray(np.concatenate([np.asarray(column, np.int64) for column in columns], axis=1))
    _, one, of, often = np.unique(rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel(), return_index=True,
                                  return_inverse=True, return_counts=True)  # fmt: skip
    order = np.argsort(-often, kind="stable")
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order))
    return one[order], np.ascontiguousarray(place[of.ravel()], np.int32)
