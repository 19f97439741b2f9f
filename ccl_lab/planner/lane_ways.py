"""How lanes of different shares pass through the ranks of a node: where they leave it, and the ranks between.

Is: for each kind of node, local indices in the order in which every lane comes to them. Is not: the shares of lanes or where these
enter (degraded). Invariants: a way visits every rank of the node once; lanes that are cut enter where they did, and weigh as much.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..topo import Topology
from .degraded import CHANNELS, F64, I64, Lanes, rates_of

# Lanes cut so that others leave by slow NICs, at most; kinds of nodes up to which that and matching are tried: each has its own exits.
MOST_CUTS, MOST_KINDS = 4, 16
# Matched ways are taken where NICs have that much less to do, or as much and ranks that much: exact and shared tier then gain by them.
FEWER_SECONDS, FEWER_MEETINGS = 0.95, 0.67
# Times of its fabric that a rank which adds up needs for a unit.
RANK_SECONDS = 1.5


class Ways(NamedTuple):
    """Lanes, and their ways through each kind of node, i64[lanes, ranks of the node] of local indices.

    seconds: what the slowest NIC needs, entering or leaving, per unit. meetings: units of the heaviest rank, summed over the places of a
    way, in the worst kind of node: where no two lanes are at one rank at a time, those of the heaviest lane at each place.
    """

    lanes: Lanes
    through: list[I64]
    seconds: float
    meetings: float


def find_ways(topology: Topology, lanes: Lanes, first: I64, one_way: bool, in_step: bool, adding: bool) -> tuple[Lanes, list[I64]]:
    """Lanes and ways through the nodes at the columns `first`.

    Entries and exits in turn; or, of lanes that go in step, matched, with lanes cut, where NICs or ranks gain by it.
    """
    columns = first.tolist()
    exits = [_exits(topology, column, lanes) for column in columns]
    plain = _measured(lanes, exits, [_in_turn(topology, lanes, column, each.local, one_way)
                                     for column, each in zip(columns, exits, strict=True)])
    if not in_step or len(first) > MOST_KINDS or topology.n_nodes < 2:
        return plain.lanes, plain.through
    cut, exits = _split(topology, lanes, first)
    matched = _measured(cut, exits, [_matched(topology, cut, column, each.local) for column, each in zip(columns, exits, strict=True)])
    fewer_seconds = matched.seconds < FEWER_SECONDS * plain.seconds and not (adding and _ranks_decide(topology, plain))
    fewer_meetings = matched.seconds < 1.001 * plain.seconds and matched.meetings < FEWER_MEETINGS * plain.meetings
    best = matched if fewer_seconds or fewer_meetings else plain
    return best.lanes, best.through


def _ranks_decide(topology: Topology, ways: Ways) -> bool:
    """Whether ranks, which fetch, add and put on all units, need about as long as the slowest NIC."""
    fabric = topology.fabric_bytes_per_s
    return ways.seconds * float(np.min(fabric)) < RANK_SECONDS * float(ways.lanes.weight.sum())


def _entry(topology: Topology, lanes: Lanes, column: int) -> I64:
    return topology.local_of[lanes.rank[:, column]].astype(np.int64)


def _in_turn(topology: Topology, lanes: Lanes, column: int, leave: I64, one_way: bool) -> I64:
    """From entry to exit through the others, from the entry on (one_way) or as numbered."""
    entry, size = _entry(topology, lanes, column), int(topology.ranks_per_node[lanes.nodes[column]])
    between = [[local % size for local in range(first * one_way, first * one_way + size) if local % size not in (first, last)]
               for first, last in zip(entry.tolist(), leave.tolist(), strict=True)]
    return np.column_stack([entry, np.array(between, np.int64), leave]) if size > 1 else entry[:, None]


def _matched(topology: Topology, lanes: Lanes, column: int, leave: I64) -> I64:
    """From entry to exit such that few lanes are at one rank at a time: place by place a matching of lanes, heavy ones first, and ranks.

    As many lanes as ranks, entering and leaving at one each, leave a regular bipartite graph: it has a perfect matching at each place
    (Kőnig). Lanes beyond those go where least is.
    """
    entry, size = _entry(topology, lanes, column), int(topology.ranks_per_node[lanes.nodes[column]])
    if size <= 2:
        return _in_turn(topology, lanes, column, leave, True)
    ways = np.column_stack([np.repeat(entry[:, None], size - 1, axis=1), leave])
    left = [set(range(size)) - {first, last} for first, last in zip(entry.tolist(), leave.tolist(), strict=True)]
    heavy_first = np.argsort(-lanes.weight, kind="stable").tolist()
    for place in range(1, size - 1):
        now = ways[:, place - 1].tolist()
        open_to = [sorted(ranks, key=lambda rank, at=at: (rank - at - 1) % size) for at, ranks in zip(now, left, strict=True)]
        owner: dict[int, int] = {}
        rest = [lane for lane in heavy_first if not _augment(lane, open_to, owner, set())]
        load = np.zeros(size)
        for rank, lane in owner.items():
            ways[lane, place] = rank
            load[rank] += lanes.weight[lane]
        for lane in rest:
            ways[lane, place] = min(open_to[lane], key=load.__getitem__)
            load[ways[lane, place]] += lanes.weight[lane]
        for lane, ranks in enumerate(left):
            ranks.discard(int(ways[lane, place]))
    return ways


def _augment(lane: int, open_to: list[list[int]], owner: dict[int, int], seen: set[int]) -> bool:
    """Finds a rank for `lane`, moving others along an augmenting path."""
    for rank in open_to[lane]:
        if rank not in seen:
            seen.add(rank)
            if rank not in owner or _augment(owner[rank], open_to, owner, seen):
                owner[rank] = lane
                return True
    return False


class _Exits(NamedTuple):
    """How lanes leave one node: local index of each, i64[lanes]; seconds per unit that each NIC needs for it, and for those entering."""

    local: I64
    out: F64
    into: F64


def _measured(lanes: Lanes, exits: list[_Exits], through: list[I64]) -> Ways:
    seconds = max(max(each.out.max(), each.into.max()) for each in exits)
    meetings = max(sum(np.bincount(place, lanes.weight).max() for place in ways.T[1:]) for ways in through)
    return Ways(lanes, through, float(seconds), float(meetings))


def _split(topology: Topology, lanes: Lanes, first: I64) -> tuple[Lanes, list[_Exits]]:
    """The lanes, one cut where none is left that is light enough to leave by a slow NIC, and how they leave the nodes at `first`.

    A lane never leaves by the rank at which it entered. So the only one with the share of a slow NIC cannot leave by it: a heavier one
    does, and all wait for it. What leaves there instead is cut off a heavy lane, and enters where that does.
    """
    found = [_exits(topology, column, lanes, cut=True) for column in first.tolist()]
    for _ in range(MOST_CUTS):
        bound, now = (max(each.max() for each in seconds) for seconds in ([each.into for each in found], [each.out for each in found]))
        worst = max(range(len(found)), key=lambda which: float(found[which].out.max()))
        if now <= 1.01 * bound:
            break
        best, ends = None, 0.99 * now
        for cut in _cuts(topology, lanes, int(first[worst]), found[worst]):
            trial = [_exits(topology, column, cut, cut=True) for column in first.tolist()]
            if (last := max(each.out.max() for each in trial)) < 0.999 * ends:
                best, ends = (cut, trial), last
        if best is None:
            break
        lanes, found = best
    return lanes, found


def _cuts(topology: Topology, lanes: Lanes, column: int, exits: _Exits) -> Iterator[Lanes]:
    """The lanes with one cut in two, so that a part has the share that enters a slow NIC of the node at `column`."""
    nic, tried, rates = lanes.nic[:, column], set(), rates_of(topology)
    free = np.setdiff1d(np.arange(CHANNELS), lanes.channel)
    for at in np.flatnonzero((rates[lanes.nodes[column]] < rates.max()) & (exits.into > 0)).tolist():
        share = int(lanes.weight[nic == at].sum())
        for lane in np.argsort(-lanes.weight, kind="stable").tolist():
            weight = int(lanes.weight[lane])
            if weight <= share or nic[lane] == at or (weight, share) in tried:
                continue
            same = free[(topology.nic_of(lanes.rank[lane][None, :], free[:, None]) == lanes.nic[lane][None, :]).all(axis=1)]
            if len(same):
                tried.add((weight, share))
                parts = np.append(lanes.weight, share)
                parts[lane] -= share
                yield lanes._replace(channel=np.append(lanes.channel, same[0]), weight=parts,
                                     rank=np.vstack([lanes.rank, lanes.rank[lane]]), nic=np.vstack([lanes.nic, lanes.nic[lane]]))


def _exits(topology: Topology, column: int, lanes: Lanes, cut: bool = False) -> _Exits:
    """How lanes leave the node at `column`: not by the rank they enter at, least load first, heavy lanes first.

    cut: also by the rank before their entry, as far as NICs gain by it, which keeps more of them apart.
    """
    node, entry = lanes.nodes[column], _entry(topology, lanes, column)
    ranks, rate, number = topology.ranks_of(node), np.maximum(rates_of(topology)[node], 1e-9), np.arange(len(entry))
    into = np.bincount(lanes.nic[:, column], lanes.weight, len(rate)) / rate
    if len(ranks) == 1:
        return _Exits(entry, into, into)
    nic = topology.nic_of(ranks[None, :], lanes.channel[:, None])

    def seconds(local: I64) -> F64:
        return np.bincount(nic[number, local], lanes.weight, len(rate)) / rate

    trials = [np.roll(entry, shift) for shift in range(1, max(2, len(entry)))]
    if cut:
        trials += [(entry - 1) % len(ranks), *(_one_by_one(entry, nic, lanes.weight, rate, 9, back) for back in (True, False))]
    best, least = entry, np.inf
    for trial in trials:
        if not (trial == entry).any() and seconds(trial).max() < least * 0.999:
            best, least = trial, seconds(trial).max()
    greedy = _one_by_one(entry, nic, lanes.weight, rate, 17, back=False)
    best = greedy if seconds(greedy).max() < least * (0.999 if cut else 1) else best
    return _Exits(best, seconds(best), into)


def _one_by_one(entry: I64, nic: I64, weight: I64, rate: F64, digits: int, back: bool) -> I64:
    """Each lane, heavy ones first, leaves where it ends earliest; back: of equal ends by the nearest rank before its entry."""
    load, leave, size = np.zeros(len(rate)), entry.copy(), nic.shape[1]
    for lane in np.argsort(-weight, kind="stable").tolist():
        ends = (load[nic[lane]] + weight[lane]) / rate[nic[lane]]
        ends[entry[lane]] = np.inf
        order = (entry[lane] - 1 - np.arange(size)) % size if back else np.arange(size)
        leave[lane] = order[np.argmin(np.round(ends[order] / ends.min(), digits) if digits < 17 else ends)]
        load[nic[lane, leave[lane]]] += weight[lane]
    return leave
