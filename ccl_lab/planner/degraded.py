"""Lanes over the NICs that are left: which channel crosses between nodes on which NIC, and what share of the message it takes.

    lane s = channel c, weight w, and at every node one rank that crosses: its NIC there is topology.nic_of(rank, c)

Is: pure functions of a topology and of the load that its NICs already carry. Is not: an algorithm. Invariants: a channel belongs to
one lane; a rank crosses on a NIC near it where it has one; lanes keep to one rail where that costs nothing; equal arguments give
equal lanes, so that all ranks plan the same. Shares are whole units, placed one after the other where they end earliest.
Source: R2CCL, arXiv 2512.25059 (Balance): share_i = c_i / sum(c), c_i = min(nic_i, path_i).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..topo import Topology
from .kept import kept_by_topology

F64, I64 = npt.NDArray[np.float64], npt.NDArray[np.int64]

# Channels of an engine (its default): lanes use numbers below it, and number c prefers NIC c modulo the NICs of a rank.
CHANNELS = 64
# Units that shares are counted in: finer than this gains less than the fixed cost of a channel.
MOST_UNITS = 64


class Lanes(NamedTuple):
    """Rows of lanes: channel i64[S], weight i64[S] in units, rank i64[S, nodes] and nic i64[S, nodes] of the crossing.

    `load`: f64[n_nodes, nics_per_node], bytes over each NIC per byte of the message, with what was there before.
    """

    nodes: tuple[int, ...]
    channel: I64
    weight: I64
    rank: I64
    nic: I64
    load: F64

    @property
    def units(self) -> int:
        """Units of all lanes."""
        return int(self.weight.sum())


def rates_of(topology: Topology) -> F64:
    """Usable bytes/s of each NIC, f64[n_nodes, nics_per_node]: the NIC's own, or that of the path to it where that is lower."""
    rates = topology.nic_bytes_per_s.reshape(topology.n_nodes, -1).astype(np.float64)
    return np.minimum(rates, topology.path_limits.get("near", np.inf))


def remaining(topology: Topology) -> F64:
    """b of each node: what its NICs carry together as a fraction of the best node's, f64[n_nodes]."""
    whole = rates_of(topology).sum(axis=1)
    return whole / whole.max() if len(whole) and whole.max() > 0 else np.zeros(topology.n_nodes)


def lost(topology: Topology) -> float:
    """X: the largest fraction of its rate that a node has lost, against the best node and, of equal NICs, against all of them up."""
    rates = rates_of(topology)
    if topology.n_nodes == 1 or not rates.size or not rates.max():
        return 0.0
    return float(1 - rates.sum(axis=1).min() / (rates.max() * topology.nics_per_node))


def is_degraded(topology: Topology) -> bool:
    """True where NICs are down or slower than others of the cluster."""
    rates = rates_of(topology)
    return topology.n_nodes > 1 and bool(rates.min() < rates.max())


def unlike(topology: Topology) -> int:
    """Nodes whose NICs are not as those of most nodes, or carry less than the best node's: what planning lanes costs grows with them."""
    _, kind = rows_alike(rates_of(topology))
    return max(topology.n_nodes - int(np.bincount(kind).max()), int((remaining(topology) < 1).sum()))


def finish(topology: Topology, load: F64) -> float:
    """Seconds per byte of the message that the slowest NIC needs for `load`."""
    rates = rates_of(topology)
    used = load > 0
    if not used.any():
        return 0.0
    return float(np.max(load[used] / np.maximum(rates[used], 1e-9)))


def no_load(topology: Topology) -> F64:
    """NICs that carry nothing yet."""
    return np.zeros((topology.n_nodes, topology.nics_per_node))


def lanes(topology: Topology, nodes: Sequence[int], amount: npt.ArrayLike, load: F64 | None = None,
          taken: frozenset[int] = frozenset(), most: int = MOST_UNITS, avoid: npt.NDArray[np.bool_] | None = None,
          few: bool = False) -> Lanes:  # fmt: skip
    """Lanes among `nodes` over which node k moves amount[k] bytes per byte of the message, on top of `load`.

    taken: channels that are not free; avoid: bool[n_nodes, nics_per_node], NICs that are not. few: as few lanes as carry as much, each on
    its own rail; else more of them, over which what happens inside nodes spreads. Tries few units first, and takes the first split within
    0.5 % of what the NICs could carry at best, or the best one.
    """
    at = np.asarray(nodes, np.int64)
    load = no_load(topology) if load is None else load
    load = load if avoid is None else np.where(avoid, np.inf, load)
    rates, wanted = rates_of(topology)[at], np.asarray(amount, float)
    open_to = np.isfinite(load[at])
    before = np.where(open_to, load[at], 0).sum(axis=1)
    ideal = float(((before + wanted) / np.maximum((rates * open_to).sum(axis=1), 1e-9)).max())
    whole = np.unique(rates.sum(axis=1) / np.maximum(rates.max(axis=1), 1e-9)).tolist()  # in NICs of the node's best rate
    sizes = sorted({round(size * factor) for size in (*whole, topology.nics_per_node) for factor in (1, 2, 3, 4, 6, 8)} | {most})
    best: Lanes | None = None
    for units in [size for size in sizes if 0 < size <= most] or [1]:
        found = min((_place(topology, at, wanted, load, taken, units, way) for way in ((True, False) if few else (False,))),
                    key=lambda each: _rounded_up(finish(topology, each.load)))  # fmt: skip
        if best is None or finish(topology, found.load) < 0.999 * finish(topology, best.load):
            best = found
        if finish(topology, best.load) <= 1.005 * max(ideal, finish(topology, np.where(np.isfinite(load), load, 0))):
            break
    assert best is not None
    return best


class _Reach(NamedTuple):
    """What the ranks of one kind of node reach: nic i64[kinds, channels, ranks]; out f64: 0, or inf where a rank should not cross."""

    nic: I64
    out: F64


def _place(topology: Topology, nodes: I64, amount: F64, load: F64, taken: frozenset[int], units: int, few: bool) -> Lanes:
    """Each unit goes to the channel on which it ends earliest; few: of equal ends to one in use and on its own rail, rather than to one on
    which other nodes end earlier."""
    rates, size = rates_of(topology), topology.ranks_per_node
    first, kind = rows_alike(np.column_stack([size[nodes], rates[nodes], load[nodes], amount]))
    number, members = np.bincount(kind), nodes[first].tolist()
    reach, now = _reach(topology, members), load[members].copy()
    rate, unit = rates[members], amount[first] / units
    channels = np.array([c for c in range(CHANNELS) if c not in taken])
    picked = np.full((len(members), CHANNELS), -1)
    weight, which = np.zeros(CHANNELS, np.int64), np.arange(len(members))
    grid = np.arange(len(members))[:, None, None]
    # Channels as many apart as a node has NICs mostly reach the same ones: those are gone over once.
    m = topology.nics_per_node
    once = np.arange(m if m < CHANNELS and (reach.nic[:, m:] == reach.nic[:, :-m]).all() else CHANNELS)
    like, some, out = np.arange(CHANNELS) % len(once), reach.nic[:, once], reach.out[:, once]
    # Among equal ends the NIC of the channel's own rail, then the lowest rank.
    carries, off_rail = np.maximum(rate[grid, some], 1e-9), 1 + 1e-9 * (some != (once % m)[None, :, None])
    for _ in range(units):
        ends = (now[grid, some] + unit[:, None, None]) / carries + out
        option = np.where(picked >= 0, picked, np.argmin(ends * off_rail, axis=2)[:, like])
        end, nic = ends[which[:, None], like, option], reach.nic[which[:, None], np.arange(CHANNELS), option]
        worst, mean = end.max(axis=0), (end * number[:, None]).sum(axis=0) / number.sum()
        mixed = (nic != nic[:1]).any(axis=0) | (nic[0] != np.arange(CHANNELS) % topology.nics_per_node)
        others = ((weight == 0)[channels], mixed[channels])
        keys = (_rounded(mean[channels]), *others) if few else (*others, _rounded(mean[channels]))
        key = np.lexsort((channels, *keys, _rounded(worst[channels])))
        c = int(channels[key[0]])
        picked[:, c] = option[:, c]
        weight[c] += 1
        now[which, nic[:, c]] += unit
    used = np.flatnonzero(weight)
    local = picked[:, used]
    begin = np.cumsum(size) - size
    rank = topology.by_node(topology.local_of)[begin[nodes] + local[kind].T]
    nic = topology.nic_of(rank, used[:, None])
    after = np.where(np.isfinite(load), load, 0)
    np.add.at(after, (nodes[None, :], nic), weight[used][:, None] * amount[None, :] / units)
    return Lanes(tuple(nodes.tolist()), used.astype(np.int64), weight[used], rank.astype(np.int64), nic.astype(np.int64), after)


def rows_alike(table: npt.NDArray[Any]) -> tuple[I64, I64]:
    """(first row of each kind, kind of each row) as np.unique of rows gives them: fast where most rows are equal to the first."""
    other = np.flatnonzero((table != table[0]).any(axis=1))
    _, first, kind = np.unique(table[np.append(0, other)], axis=0, return_index=True, return_inverse=True)
    kind = kind.ravel()
    kinds = np.full(len(table), kind[0], np.int64)
    kinds[other] = kind[1:]
    return np.append(0, other)[first], kinds


def _rounded_up(seconds: float) -> float:
    """So that what takes no longer but for rounding compares as equal."""
    return float(f"{seconds:.6e}")


def _rounded(values: F64) -> F64:
    """So that sums of the same terms in another order compare as equal."""
    scale = np.max(values[np.isfinite(values)], initial=1e-300)
    return np.round(np.where(np.isfinite(values), values, 1e9 * scale) / scale, 9)


def _reach(topology: Topology, nodes: list[int]) -> _Reach:
    """NICs that the ranks of `nodes` reach on each channel; a rank crosses on its own NICs unless no rank of the node can."""
    group = topology.gpus_per_node
    nic = np.zeros((len(nodes), CHANNELS, group), np.int64)
    out = np.full((len(nodes), CHANNELS, group), np.inf)
    up = topology.nic_bytes_per_s.reshape(topology.n_nodes, -1) > 0
    for i, node in enumerate(nodes):
        ranks = topology.ranks_of(node)
        nic[i, :, : len(ranks)] = topology.nic_of(ranks[None, :], np.arange(CHANNELS)[:, None])
        near = near_of(topology, node)
        own = np.stack([near[r][nic[i, :, r]] for r in range(len(ranks))], axis=1)
        fine = own | ~own.any(axis=1)[:, None]
        out[i, :, : len(ranks)] = np.where(fine & up[node][nic[i, :, : len(ranks)]], 0.0, np.inf)
    return _Reach(nic, out)


def near_of(topology: Topology, node: int) -> npt.NDArray[np.bool_]:
    """Whether a NIC is near a rank of `node`, by local index: bool[ranks, nics_per_node]."""
    group, m = int(topology.ranks_per_node[node]), topology.nics_per_node
    local, nic = np.arange(group)[:, None], np.arange(m)[None, :]
    first = local * m // group
    return (nic >= first) & (nic < np.maximum((local + 1) * m // group, first + min(m, 1)))


@kept_by_topology(256)
def ring_lanes(topology: Topology, most: int = MOST_UNITS) -> Lanes:
    """Lanes of one ring over all nodes: every node sends and receives the same."""
    order = node_order(topology)
    return lanes(topology, order, np.ones(len(order)), most=most)


# -- the order of nodes


def shared(topology: Topology, nodes: Sequence[int] | I64, others: Sequence[int] | I64) -> F64:
    """Bytes/s that nodes[i] and others[i] have on rails that are up at both, f64[...]; shapes broadcast."""
    rates = rates_of(topology)
    return np.minimum(rates[np.asarray(nodes)], rates[np.asarray(others)]).sum(axis=-1)


def neighbours_share(topology: Topology, order: Sequence[int]) -> F64:
    """`shared` of each node along a ring and the next one, f64[n_nodes]."""
    return shared(topology, order, np.roll(order, -1))


@kept_by_topology(256)
def node_order(topology: Topology) -> tuple[int, ...]:
    """Nodes along a ring such that neighbours share rails: as numbered, and where two neighbours lost different ones, with a bridge.

    A bridge is a node that shares with both sides more than these share with each other. Swaps, tried in a fixed order, each raising
    the least that neighbours share, or lowering the number of pairs that share no more. Cost: hurt nodes squared times nodes. Source:
    R2CCL, re-ranking.
    """
    order = np.arange(topology.n_nodes)
    if not topology.rails or len(order) < 4 or not is_degraded(topology):
        return tuple(order.tolist())
    # Only the hurt nodes and their places matter: all others are alike.
    hurt = np.flatnonzero(remaining(topology) < 1)
    edges = neighbours_share(topology, order)
    best = float(edges.min()), -int((edges <= edges.min()).sum())
    for _ in range(len(hurt)):
        found = None
        for i in np.flatnonzero(np.isin(order, hurt)):
            least, ties = _after_swaps(topology, order, edges, int(i))
            j = int(np.lexsort((ties, -least))[0])
            if (float(least[j]), -int(ties[j])) > best:
                best, found = (float(least[j]), -int(ties[j])), (int(i), j)
        if found is None:
            break
        order[list(found)] = order[list(found[::-1])]
        edges = neighbours_share(topology, order)
    return tuple(order.tolist())


def _after_swaps(topology: Topology, order: I64, edges: F64, i: int) -> tuple[F64, I64]:
    """The least of `edges` of a ring, and how many are no more, if place i changed with place j: for every j, [n_nodes] each."""
    n, j = len(order), np.arange(len(order))
    edge = np.stack([np.full(n, (i - 1) % n), np.full(n, i), (j - 1) % n, j])  # those that a swap touches; number k is between k and k + 1
    once = np.array([~(edge[:k] == edge[k]).any(axis=0) for k in range(4)])

    def after(place: I64) -> I64:
        return np.where(place == i, order[j], np.where(place == j, order[i], order[place]))

    gone, come = edges[edge], np.where(once, shared(topology, after(edge), after((edge + 1) % n)), np.inf)
    # Four edges go, so the least that stay are among the five lowest values.
    values, counts = (found[:5] for found in np.unique(edges, return_counts=True))
    stay = counts[:, None] - (once & (gone == values[:, None, None])).sum(axis=1)
    first = (stay > 0).argmax(axis=0)
    kept = np.where((stay > 0).any(axis=0), values[first], np.inf)
    least = np.minimum(kept, come.min(axis=0))
    return least, np.where(kept == least, stay[first, j], 0) + (come == least).sum(axis=0)


def bridges(topology: Topology) -> str:
    """What re-ranking changed, in words; empty where nodes stay in order."""
    order = node_order(topology)
    if order == tuple(range(topology.n_nodes)):
        return ""
    plain, now = (neighbours_share(topology, ring).min() / 1.25e8 for ring in (range(len(order)), order))
    shown = ", ".join(map(str, order[:12])) + (", …" if len(order) > 12 else "")
    return f"re-ranked {shown}: neighbours share {now:.4g} Gb/s of rails or more instead of {plain:.4g}"


# -- one rank and the NICs it can reach


def reachable(topology: Topology, near: int, far: int) -> float:
    """Bytes/s that one rank gets of `near` and `far` NICs together, by the path limits.

    Measured on H100: one near 400 Gb/s; one far 234; two far 117 each; near and far at once 70 each. Assumption: more far NICs do not
    get more together than one alone.
    """
    limits, one = topology.path_limits, float(topology.nic_bytes_per_s.max())
    if near and far:
        together = limits.get("far", np.inf) if "mixed_each" in limits else np.inf
        return min((near + far) * min(one, limits.get("mixed_each", np.inf)), together)
    if far == 1:
        return min(one, limits.get("far", np.inf))
    if far:
        return min(far * min(one, limits.get("far_each", np.inf)), limits.get("far", np.inf) if "far_each" in limits else np.inf)
    return near * min(one, limits.get("near", np.inf))


def best_subset(topology: Topology, near: int, far: int) -> tuple[int, int]:
    """(near, far) NICs to use, of those that are up, for the most bytes/s; of equal ones the fewest NICs."""
    every = [(a, b) for a in range(near + 1) for b in range(far + 1) if a + b]
    return min(every, key=lambda pair: (-reachable(topology, *pair), sum(pair), pair[1]), default=(0, 0))
