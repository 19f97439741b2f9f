"""Hierarchical all_to_all, timed without a row per op: columns for the native evaluation (native/src/sim/rails.hpp), and how ranks end.

Is: which nodes are alike, and the copies of each rank. Is not: the puts. Invariants: the times are those of exact.py on the unrolled
schedule, to the picosecond, or `Inapplicable` is raised; merging changes nothing.

Several channels meet inside nodes, where they take turns, and in the memory that they copy in; between nodes each goes by itself, on NICs
of its own, all as busy in nominal time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import Inapplicable
from ..ir import Rails
from ..topo import Topology
from .changes import NONE, Changes
from .columns import busy_ps, no_tiers, period, too_long

I64 = npt.NDArray[np.int64]

_OK, _OVERFLOW, _OUT_OF_MEMORY = 0, 2, 4
# 1 ns each between nodes, 2 ns inside.
_MOST_PUTS, _MOST_INSIDE = 40_000_000_000, 20_000_000_000


def rail_finish(rails: Rails, topology: Topology, count: int, itemsize: int, late_ps: I64, alpha_ps: int, changes: Changes = NONE, *,
                merge: bool = True, target: int = 0) -> tuple[I64, dict[str, Any]]:  # fmt: skip
    """When each rank ends, i64[n_ranks], and counts: nodes that were evaluated, classes of nodes that are alike inside, puts between nodes.

    Blocks of `count` elements; merge: False evaluates every node, target: code for one of _core.vector_targets(), for tests. Raises
    Inapplicable where switches add latency or too many puts are different; UsageError after 13 days. Cost: 0.5 ns a put between nodes of
    which most are alike, 1 ns between others; 2 ns a put inside those that are not alike.
    """
    grid, links = rails.grid, topology.links
    (nodes, group), m, first = grid.shape, topology.nics_per_node, 3 * topology.n_ranks
    no_tiers(topology)
    ids = [first + (side * nodes + np.arange(nodes)[:, None]) * m + np.arange(m) for side in (0, 1)]
    outside = {f"{name}_{what}": getattr(links, what)[each] for name, each in zip(("tx", "rx"), ids, strict=True)
               for what in ("bytes_per_s", "latency_ps")}  # fmt: skip
    near = {f"near_{name}_{what}": getattr(links, what)[grid + side * topology.n_ranks] for side, name in enumerate(("tx", "rx"))
            for what in ("bytes_per_s", "latency_ps")} | {"near_late_ps": late_ps[grid]}  # fmt: skip
    channels, local = range(rails.channels), topology.local_bytes_per_s[grid]
    nics = [topology.nic_of(grid, channel) for channel in channels]
    _apart(nics, m)
    if changes and (changes.link < first).any():
        raise Inapplicable("rates inside nodes change")
    where = [np.where(np.isin(each, changes.link), each, -1) for each in ids] if changes else []
    units = period([*outside.values(), *near.values(), *nics, local, *where]) if merge else nodes
    classes, class_of = _classes([each[:units] for each in near.values()])
    puts = (nodes - 1) * units * int((rails.blocks >= 0).sum()) * rails.channels
    inside = nodes * len(classes) * group * (group - 1) * rails.channels**2
    if puts > _MOST_PUTS or inside > _MOST_INSIDE:
        raise Inapplicable(f"{puts + inside:,} puts differ, and at most {_MOST_PUTS:,} between nodes and {_MOST_INSIDE:,} inside them are "
                           "timed one by one")
    sizes, came, gone = rails.part_bytes(count, itemsize), [], []
    for channel, nic in enumerate(nics):
        maps, map_of = _classes([nic[:units]])
        out = {name: np.zeros(group * each, np.int64) for name, each in
               (("arrived_ps", units), ("left_ps", units), ("seen_ps", len(classes)), ("near_left_ps", len(classes)))}  # fmt: skip
        status = _core.simulate_rails({
            "nodes": nodes, "units": units, "group": group, "nics": m, "puts": rails.blocks.shape[1], "classes": len(classes),
            "alpha_ps": alpha_ps, "nic": np.ascontiguousarray(nic[maps], np.int32).ravel(), "map_of": map_of, "class_of": class_of,
            "bytes": np.where(rails.blocks >= 0, rails.blocks * sizes[channel], -1).astype(np.int64).ravel(), "channel": channel,
            "near_bytes": sizes, "late_ps": _columns(late_ps[grid][:units]), "links": len(links), "target": target,
            **{name: _columns(each[:units]) for name, each in outside.items()},
            **{name: _columns(each[classes]) for name, each in near.items()},
            **{name: np.ascontiguousarray(each[:units if changes else 0].T, np.int32).ravel()
               for name, each in zip(("tx_link", "rx_link"), ids, strict=True)},
            **out, **changes.columns()})  # fmt: skip
        _check(status)
        arrived, left = (out[name].reshape(group, units).T for name in ("arrived_ps", "left_ps"))
        seen, near_left = (out[name].reshape(group, len(classes)).T[class_of] for name in ("seen_ps", "near_left_ps"))
        came.append(np.maximum(arrived, seen))
        gone.append(np.maximum(left, near_left))
    finish = _copied(rails, [busy_ps(int(nbytes), local[:units]) for nbytes in sizes], came, gone)
    whole = np.empty(topology.n_ranks, np.int64)
    whole[grid] = np.tile(finish, (nodes // units, 1))
    return whole, {"units": units, "classes": len(classes), "puts": puts}


def _check(status: int) -> None:
    if status == _OUT_OF_MEMORY:
        raise MemoryError("simulating rails")
    if status == _OVERFLOW:
        raise too_long()
    if status != _OK:
        raise Inapplicable("columns do not fit")


def _apart(nics: list[npt.NDArray[Any]], nics_per_node: int) -> None:
    """Raises Inapplicable unless, of several channels, each has NICs of its own in each rank: then all come to their copies at one tick."""
    if len(nics) == 1:
        return
    nodes = len(nics[0])
    used = np.stack([np.arange(nodes)[:, None] * nics_per_node + nic for nic in nics])
    if len(np.unique(used)) < used.size:
        raise Inapplicable("ranks have several channels, and some of these share a NIC with others or with other ranks")


def _copied(rails: Rails, each: list[I64], came: list[I64], gone: list[I64]) -> I64:
    """When ranks end: channels copy in turns once all has come; in place a block for each other rank, once their puts have left."""
    copies = rails.grid.size - 1 if rails.in_place else 1
    if max(int(one.max()) for one in each) * copies * len(each) > 2**60:
        raise too_long()
    memory = np.zeros_like(came[0])
    for takes, here, left in zip(each, came, gone, strict=True):
        memory = np.maximum(memory, np.maximum(here, left) if rails.in_place else here) + takes
    memory = memory + (copies - 1) * sum(each[1:], each[0])
    return np.maximum(memory, np.max(gone, axis=0))


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
