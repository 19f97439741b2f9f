"""Direct algorithms, timed without a row per op: columns for the native evaluation (native/src/sim/pairs.hpp), and how ranks end.

Is: which nodes are alike, and the copies and sums of each rank. Is not: the puts. Invariants: the times are those of exact.py on the
unrolled schedule, to the picosecond, or `Inapplicable` is raised; merging changes nothing.

**Merging.** If rates, latencies, late ranks and changes repeat after some number of nodes, so do all times: that many are evaluated.

**Pieces.** Where nodes lost NICs and blocks are cut for it (Cuts), nodes of one *kind* are those with the same NICs and shares.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import Inapplicable
from ..ir import Pairs
from ..topo import Topology
from .changes import NONE, Changes
from .columns import busy_ps, check, no_changes_inside, period, tier_columns, too_long
from .patience import allowed, check_work

I64 = npt.NDArray[np.int64]

# Of nodes between which nothing is alike: 0.3 ns each; inside nodes 2 ns.
_MOST_PUTS, _MOST_INSIDE = 40_000_000_000, 2_000_000_000
# Puts of nodes whose lanes have other NICs than those of most: they are dealt out one by one, in minutes.
_MOST_ODD = 500_000_000
# Puts that copies of several channels wait for, where each rank of each node makes its copies in an order of its own: 0.1 µs each.
_MOST_ORDERED = 2_000_000_000
# Puts of nodes that exchange pieces: 10 ns each, with those of their neighbours, which are not put side by side then; kinds of such nodes.
_MOST_CUT, _MOST_KINDS = 4_000_000_000, 64
# Words of bits that are looked at for turns that follow no pattern: some minutes.
_MOST_WORK = 300_000_000_000
# Free NICs of a turn, from which on pairs of them are looked at instead of rounds: the fastest of 4, 8, …, 256 among 8,192 ranks.
_FEW = 16


def pair_finish(pairs: Pairs, topology: Topology, count: int, itemsize: int, late_ps: I64, alpha_ps: int, changes: Changes = NONE, *,
                merge: bool = True, target: int = 0, few: int = _FEW) -> tuple[I64, dict[str, Any]]:  # fmt: skip
    """When each rank ends, i64[n_ranks], and counts: nodes that were evaluated, puts that were, turns if they follow no pattern; of pieces
    how many kinds of nodes there are.

    Blocks of `count` elements; merge: False evaluates every node, target: code for one of _core.vector_targets(), few: as _FEW, for tests.
    Raises Inapplicable where too many puts are different, or too many nodes lost NICs; UsageError after 13 days. Cost: 0.3 ns a put between
    nodes of which most are alike, 1.5 ns between others, with AVX-512; around lost NICs some 10 ns. Where switches add latencies no node
    stands for another one.
    """
    grid, links = pairs.grid, topology.links
    (nodes, group), m = grid.shape, topology.nics_per_node if topology.n_nodes > 1 else 0
    cut = _cut(pairs, topology, count, itemsize)
    nic, odd = (cut.nic, _NO_ODD) if pairs.cuts else _nics(pairs, topology)
    nics = np.arange(nodes)[:, None] * m + np.arange(m)  # a row of nodes; grid's nodes are the topology's
    first = 3 * topology.n_ranks
    tx, rx = (first + side * nodes * m + nics for side in (0, 1))
    columns = {"late_ps": late_ps[grid]}
    for name, ids in (("tx", tx), ("rx", rx), ("near_tx", grid), ("near_rx", topology.n_ranks + grid)):
        columns |= {f"{name}_bytes_per_s": links.bytes_per_s[ids], f"{name}_latency_ps": links.latency_ps[ids]}
    local = topology.local_bytes_per_s[grid]
    no_changes_inside(changes, topology)
    where = [np.where(np.isin(link, changes.link), link, -1) for link in (tx, rx)] if changes else []
    kind = [cut.columns["cut_kind"]] if pairs.cuts else []
    alike = merge and not len(odd.node) and not topology.tiers_add_latency
    units = period([*columns.values(), local, *where, *kind]) if alike else nodes
    _few(nodes, units, group, pairs.channels)
    if pairs.copies and pairs.channels > 1 and len(odd.node):
        check_work(pairs.channels * grid.size**2, _MOST_ORDERED, "puts, whose copies each rank makes in an order of its own,", 100e-9)
    cut = _few_cut(cut, nodes, units, group)
    sizes, lanes = cut.bytes[: pairs.channels] if pairs.cuts else pairs.part_bytes(count, itemsize), pairs.channels * group
    arrived, left = np.zeros(lanes * units, np.int64), np.zeros(lanes * units, np.int64)
    copy = np.stack([busy_ps(int(nbytes), local[:units]).T for nbytes in sizes if pairs.copies] or [np.zeros(0, np.int64)]).ravel()
    if copy.size and copy.max() > 2**60 // (pairs.channels * grid.size):
        raise too_long()
    places = np.zeros(lanes * units if pairs.sums else 0, np.int64)
    status, dealt = _core.simulate_pairs({
        "nodes": nodes, "units": units, "group": group, "nics": m, "channels": pairs.channels, "alpha_ps": alpha_ps,
        "nic": nic, "odd_node": odd.node, "odd_nic": odd.nic, "few": few, "most_work": allowed(_MOST_WORK), "bytes": sizes,
        "arrived_ps": arrived, "left_ps": left, "places": places, "copy_ps": copy, "flushes": pairs.flushes,
        "links": len(links), "target": target,
        **tier_columns(topology), **cut.columns, "cut_by_node": pairs.cuts is not None and pairs.cuts.by_node,
        **{name: np.ascontiguousarray(column[:units].T, np.int64).ravel() for name, column in columns.items()},
        **{name: np.ascontiguousarray(link[:units if changes else 0].T, np.int32).ravel()
           for name, link in (("tx_link", tx), ("rx_link", rx))},
        **changes.columns()})  # fmt: skip
    check(status, "pairs", "turns follow no pattern, and take many minutes to deal out")
    arrived, left = (times.reshape(pairs.channels, group, units).transpose(0, 2, 1) for times in (arrived, left))
    finish = np.maximum(arrived, left).max(axis=0)
    late = late_ps[grid][:units]
    if pairs.keeps:
        own = cut.columns["cut_near_bytes"] if pairs.cuts else sizes
        finish = np.maximum(finish, late + sum(busy_ps(int(nbytes), local[:units]) for nbytes in own))
    if pairs.copies:  # the others are in `arrived` and `left`
        finish = np.maximum(finish, late + (grid.size - 1) * copy.reshape(pairs.channels, group, units).sum(axis=0).T)
    if pairs.sums:
        order = np.argsort(places.reshape(pairs.channels, group, units).transpose(0, 2, 1), axis=0, kind="stable")
        finish = np.maximum(finish, _summed(pairs, sizes, local[:units], arrived, left, order))
    out = np.empty(topology.n_ranks, np.int64)
    out[grid] = np.tile(finish, (nodes // units, 1))
    if pairs.cuts:
        return out, {"units": units, "kinds": len(cut.columns["cut_left"])}
    return out, {"units": units, "puts": (nodes - 1) * units * group * group * pairs.channels, **({"turns": dealt} if dealt else {})}


class _Odd(NamedTuple):
    """Nodes whose lanes have other NICs than in most, and which: i32[odd], i32[odd * channels * group]."""

    node: npt.NDArray[np.int32]
    nic: npt.NDArray[np.int32]


_NONE, _NO_BYTES = np.zeros(0, np.int32), np.zeros(0, np.int64)
_NO_ODD = _Odd(_NONE, _NONE)


def _in_order(pairs: Pairs) -> None:
    if (np.diff(pairs.grid, axis=1) < 0).any():
        raise Inapplicable("ranks of a node are not numbered in the order of their places")


def _nics(pairs: Pairs, topology: Topology) -> tuple[npt.NDArray[np.int32], _Odd]:
    """The NIC of its node that each lane uses in most nodes, i32[channels * group], and the others."""
    grid = pairs.grid
    _in_order(pairs)
    if topology.n_nodes == 1:
        return _NONE, _NO_ODD
    nic = topology.nic_of(grid[:, None, :], np.arange(pairs.channels)[None, :, None]).reshape(len(grid), -1)
    kinds, kind_of, n = np.unique(nic, axis=0, return_inverse=True, return_counts=True)
    odd = np.flatnonzero(kind_of.ravel() != n.argmax())
    check_work(len(odd) * grid.size * nic.shape[1], _MOST_ODD, f"puts of {len(odd):,} nodes that lost NICs, which follow no pattern,",
               700e-9)  # fmt: skip
    return np.ascontiguousarray(kinds[n.argmax()], np.int32), _Odd(odd.astype(np.int32), np.ascontiguousarray(nic[odd], np.int32).ravel())


class _Cut(NamedTuple):
    """Columns of native/src/sim/pair_cuts.hpp; nic: of the lanes of nodes that lost nothing; bytes: of theirs, then of other pieces."""

    columns: dict[str, npt.NDArray[Any]]
    nic: npt.NDArray[np.int32]
    bytes: I64


def _cut(pairs: Pairs, topology: Topology, count: int, itemsize: int) -> _Cut:
    """What nodes exchange in pieces; empty where all is exchanged over the channels of the sender."""
    cuts, (nodes, group) = pairs.cuts, pairs.grid.shape
    if cuts is None:
        none = dict.fromkeys(("kind", "nic", "left", "first", "channel", "size"), _NONE) | dict.fromkeys(("bytes", "near_bytes"), _NO_BYTES)
        return _Cut({f"cut_{name}": column for name, column in none.items()}, _NONE, none["bytes"])
    _in_order(pairs)
    channels, kind = len(cuts.whole), np.zeros(nodes, np.int32)
    kind[cuts.nodes] = 1
    looked_at = np.append(np.argmin(kind), cuts.nodes)  # the first that lost nothing, if there is one, stands for all such
    nic = topology.nic_of(pairs.grid[looked_at, None, :], np.arange(channels)[None, :, None]).reshape(len(looked_at), -1)
    left = np.unique(cuts.left, return_inverse=True)[1].ravel()
    rows = np.column_stack([left[:-1], nic[1:], cuts.table.reshape(len(cuts.nodes), group * channels)])
    _, first, kind_of = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    kind[cuts.nodes] = kind_of.ravel() + 1
    table = np.concatenate([np.broadcast_to(cuts.whole, (1, group, channels)), cuts.table[first]])
    which, rank, channel = np.nonzero(table)
    nbytes = cuts.bytes_of((np.cumsum(table, axis=2) - table)[which, rank, channel], table[which, rank, channel], count, itemsize)
    own = nbytes[: pairs.channels]
    others, size = np.unique(nbytes, return_inverse=True)
    size = size.ravel() + len(own)
    size[: group * len(own)] = np.tile(np.arange(len(own)), group)
    columns = {
        "kind": kind, "nic": nic[np.append(0, first + 1)].ravel(), "left": np.append(left[-1], left[:-1][first]),
        "first": np.append(0, np.cumsum((table > 0).sum(axis=2))), "channel": channel, "size": size,
    }  # fmt: skip
    lanes = nic[0].reshape(channels, group)[np.flatnonzero(cuts.whole)]
    sizes, near = np.append(own, others), cuts.bytes_of(np.cumsum(cuts.inside) - cuts.inside, cuts.inside, count, itemsize)
    return _Cut({f"cut_{name}": np.ascontiguousarray(column, np.int32) for name, column in columns.items()}
                | {"cut_bytes": sizes, "cut_near_bytes": near},
                np.ascontiguousarray(lanes, np.int32).ravel(), sizes)


def _few_cut(cut: _Cut, nodes: int, units: int, group: int) -> _Cut:
    """The same for the first `units` nodes, which stand for all."""
    kind, first = cut.columns["cut_kind"][:units], cut.columns["cut_first"]
    if not len(kind):
        return cut
    pieces, ways = int(np.diff(first[::group]).max()) * group, len(cut.columns["cut_left"]) - 1
    if ways > _MOST_KINDS:
        raise Inapplicable(f"NICs are lost at {np.count_nonzero(kind):,} nodes, in {ways:,} ways, and at most {_MOST_KINDS} are told apart")
    lost = int(np.count_nonzero(kind))
    check_work(2 * lost * nodes * pieces, _MOST_CUT, f"puts of {lost:,} nodes that lost NICs, one by one,", 10e-9)
    return cut._replace(columns=cut.columns | {"cut_kind": kind})


def _few(nodes: int, units: int, group: int, channels: int) -> None:
    puts, inside = (nodes - 1) * units * group * group * channels, units * group * (group - 1) * channels
    check_work(puts, _MOST_PUTS, "puts between nodes, no two of them alike,", 1.5e-9)
    check_work(inside, _MOST_INSIDE, "puts inside nodes, no two of them alike,", 2e-9)


def _summed(pairs: Pairs, sizes: I64, local: I64, arrived: I64, left: I64, order: I64) -> I64:
    """When each rank has added up what came, [units, group]; order: its channels as they come to their sums, which are of one memory,
    [channels, units, group]."""
    n, memory = pairs.grid.size, np.zeros(local.shape, np.int64)
    ready = np.maximum(arrived, left) if pairs.flushes else arrived
    each = np.stack([busy_ps(int(nbytes) * n, local) for nbytes in sizes])
    for turn in order:
        memory = np.maximum(memory, np.take_along_axis(ready, turn[None], axis=0)[0]) + np.take_along_axis(each, turn[None], axis=0)[0]
    return memory
