"""Balance for every other collective: the algorithm stays, its bytes go over the NICs that are left.

    rings and chains    all_gather, reduce_scatter, broadcast, reduce: a ring per lane, entering a node at the rank that crosses
    pairs               all_to_all(v), gather, scatter, send_recv: what a pair exchanges is cut by the shares of the end that lost more

Is: lanes and shares for the ring and direct builders. Is not: those builders. Invariants: without a loss it is the healthy algorithm; a
pair's shares are the same at both ends. Source: R2CCL, arXiv 2512.25059 (Balance), with path limits: a rank that drives far NICs
itself takes the subset that carries most.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..ir import Buffer, Builder, Chains, Cuts, Pairs, RingLoops
from ..topo import Topology
from . import (
    all_gather_ring,
    all_to_all_direct,
    broadcast_pipelined_ring,
    formulas,
    gather,
    reduce_ring,
    reduce_scatter_ring,
    scatter,
    send_recv_direct,
)
from .cost import OP_SECONDS, Cost, machine
from .degraded import (
    CHANNELS,
    I64,
    best_subset,
    finish,
    is_degraded,
    near_of,
    no_load,
    rates_of,
    remaining,
    ring_lanes,
    rows_alike,
)
from .direct import rounds
from .kept import kept_by_topology
from .lane_ways import find_ways
from .orders import Rings, chains
from .problem import Problem


def _named(b: Builder) -> Builder:
    b.algorithm = "balance"
    return b


# -- rings and chains


@kept_by_topology(64)
def rank_rings(topology: Topology, one_way: bool = False, in_step: bool = False, adding: bool = False) -> Rings:
    """A ring over all ranks for each lane: into a node at the rank that crosses, out at another one, whose NIC has least to do.

    one_way: lanes pass through the ranks between these as the entries follow one another, so that few meet at a time; else as numbered.
    in_step: ways may be matched and lanes cut where that is better (lane_ways); adding: ranks add up what comes.
    """
    lanes, size = ring_lanes(topology), topology.ranks_per_node
    nodes, entry = np.array(lanes.nodes), topology.local_of[lanes.rank].astype(np.int64)
    first, kind = rows_alike(np.column_stack([size[nodes], rates_of(topology)[nodes], entry.T]))
    lanes, through = find_ways(topology, lanes, first, one_way, in_step, adding)
    ranks, before = topology.by_node(topology.local_of), np.cumsum(size) - size
    place = np.cumsum(size[nodes]) - size[nodes]
    orders = np.empty((len(lanes.channel), topology.n_ranks), np.int64)
    for which, ways in enumerate(through):
        alike = np.flatnonzero(kind == which)
        orders[:, place[alike][:, None] + np.arange(ways.shape[1])] = ranks[before[nodes[alike]][None, :, None] + ways[:, None, :]]
    return Rings.along(orders, lanes.channel, lanes.weight)


def all_gather(problem: Problem) -> Builder:
    """Ring all_gather over the lanes that are left, in step. Bytes and steps as `ring`; T/T0 = 1/(1-X)."""
    if not is_degraded(problem.topology):
        return _named(all_gather_ring.ring(problem))
    return all_gather_ring.along(problem, "balance", _gathering_rings(problem), timetable=True)


def reduce_scatter(problem: Problem) -> Builder:
    """Ring reduce_scatter over the lanes that are left, in step. Bytes and steps as `ring`; T/T0 = 1/(1-X)."""
    if not is_degraded(problem.topology):
        return _named(reduce_scatter_ring.ring(problem))
    return reduce_scatter_ring.along(problem, "balance", _adding_rings(problem), timetable=True)


def all_gather_loops(problem: Problem) -> RingLoops:
    """What `all_gather` repeats."""
    if not is_degraded(problem.topology):
        return all_gather_ring.loops(problem)
    return all_gather_ring.loops_along(problem, _gathering_rings(problem), timetable=True)


def reduce_scatter_loops(problem: Problem) -> RingLoops:
    """What `reduce_scatter` repeats."""
    if not is_degraded(problem.topology):
        return reduce_scatter_ring.loops(problem)
    return reduce_scatter_ring.loops_along(problem, _adding_rings(problem), timetable=True)


def _gathering_rings(problem: Problem) -> Rings:
    """Rings of all_gather."""
    return rank_rings(problem.topology, True, _nics_decide(problem, formulas.all_gather_ring(problem), 4))


def _adding_rings(problem: Problem) -> Rings:
    """Rings of reduce_scatter: lanes of equal shares pass ranks as these are numbered, where sums come to them more evenly."""
    unequal = _unequal(problem.topology)
    return rank_rings(problem.topology, unequal, unequal and _nics_decide(problem, formulas.reduce_scatter_ring(problem), 10), True)


def _nics_decide(problem: Problem, ring: Cost, times: float) -> bool:
    """Whether a message takes the slowest NIC that many times its delay: one lane more adds to what is not the NICs' time."""
    at = machine(problem.topology)
    return ring.nic_bytes / at.one_nic > times * (problem.n - 1) * (OP_SECONDS + at.alpha_nic)


def _unequal(topology: Topology) -> bool:
    """Whether lanes have different shares."""
    weight = ring_lanes(topology).weight
    return bool((weight != weight[0]).any())


def _chain_rings(topology: Topology) -> Rings:
    """Rings that broadcast and reduce turn into chains: lanes of equal shares keep apart."""
    return rank_rings(topology, not _unequal(topology))


def broadcast(problem: Problem) -> Builder:
    """Pipelined chain over the lanes that are left. Bytes and steps as `pipelined_ring`; T/T0 = 1/(1-X)."""
    if not is_degraded(problem.topology):
        return _named(broadcast_pipelined_ring.pipelined_ring(problem))
    return broadcast_pipelined_ring.along(problem, "balance", chains(problem, _chain_rings(problem.topology)))


def reduce(problem: Problem) -> Builder:
    """Pipelined chain to the root over the lanes that are left. Bytes and steps as `ring`; T/T0 = 1/(1-X)."""
    if not is_degraded(problem.topology):
        return _named(reduce_ring.ring(problem))
    return reduce_ring.along(problem, "balance", chains(problem, _chain_rings(problem.topology)))


def broadcast_chains(problem: Problem) -> Chains:
    """What `broadcast` repeats."""
    return broadcast_pipelined_ring.chained_along(problem, _chains(problem))


def reduce_chains(problem: Problem) -> Chains:
    """What `reduce` repeats."""
    return reduce_ring.chained_along(problem, _chains(problem))


def _chains(problem: Problem) -> Rings:
    return chains(problem, _chain_rings(problem.topology) if is_degraded(problem.topology) else None)


# -- pairs


class Pieces(NamedTuple):
    """Pieces of what pairs exchange, one row each: row of the pair, channel, first part and number of parts."""

    row: I64
    channel: I64
    first: I64
    count: I64


class Shares(NamedTuple):
    """Units of what a rank exchanges with one other that go over each channel, equal sums.

    whole: i64[CHANNELS], of ranks of whole nodes; hurt: i64[kinds, most ranks of a node, CHANNELS], of those of nodes that lost NICs;
    which: i64[n_nodes], the kind of each node, -1 where it is whole. worst: seconds that the slowest NIC needs for each byte of a rank.
    """

    whole: I64
    hurt: I64
    which: I64
    worst: float

    @property
    def units(self) -> int:
        """Units of a block."""
        return int(self.whole.sum())

    @property
    def used(self) -> I64:
        """The channels that anybody uses, rising."""
        return np.flatnonzero(self.whole + self.hurt.sum(axis=(0, 1)))

    @property
    def channels(self) -> int:
        """Channels up to the last one that anybody uses."""
        return int(self.used[-1]) + 1

    def kinds(self, topology: Topology, rank: I64) -> tuple[I64, I64]:
        """(those of ranks of each kind, i64[kinds, CHANNELS]; the kind of each of `rank`)."""
        which = self.which[topology.node_of[rank]]
        kind = np.where(which >= 0, 1 + which * self.hurt.shape[1] + topology.local_of[rank], 0)
        return np.concatenate([self.whole[None], self.hurt.reshape(-1, CHANNELS)]), kind


@kept_by_topology(64)
def shares(topology: Topology) -> Shares:
    """What a rank puts over each channel to one other, and gets from it.

    A rank of a whole node uses its own NICs evenly. On a node that lost NICs each unit goes, rank by rank in turn, where it ends earliest;
    a rank that lost all of its own takes as many far NICs as its paths carry best.
    """
    best: Shares | None = None
    number = max(1, topology.nics_per_node // topology.gpus_per_node)
    sizes = sorted({number * factor for factor in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)} | {topology.nics_per_node - 1, 8, 7})
    for units in [size for size in sizes if 0 < size <= CHANNELS and size % number == 0 or size == topology.nics_per_node - 1 > 0]:
        found = _shares(topology, units, number)
        if best is None or found.worst < 0.995 * best.worst:
            best = found
    assert best is not None
    return best


def _shares(topology: Topology, units: int, number: int) -> Shares:
    whole = np.zeros(CHANNELS, np.int64)
    whole[:number] = np.diff(np.arange(number + 1) * units // number)
    rates, load, size = rates_of(topology), no_load(topology), topology.ranks_per_node
    nodes, which = np.flatnonzero(rates.min(axis=1) < rates.max()), np.full(topology.n_nodes, -1)
    first, which[nodes] = rows_alike(np.column_stack([size[nodes], rates[nodes]]))
    table = np.zeros((len(first), int(size.max()), CHANNELS), np.int64)
    for node, mine in zip(nodes[first].tolist(), table, strict=True):
        ranks = topology.ranks_of(node)
        nic = topology.nic_of(ranks[:, None], np.arange(CHANNELS)[None, :])
        near, up = near_of(topology, node), rates[node] > 0
        for turn in range(units * len(ranks)):
            local = turn % len(ranks)
            allowed = _allowed(topology, nic[local], near[local], up, mine[local])
            ends = np.where(allowed, (load[node, nic[local]] + 1) / np.maximum(rates[node, nic[local]], 1e-9), np.inf)
            channel = int(np.argmin(ends))
            mine[local, channel] += 1
            load[node, nic[local, channel]] += 1
    return Shares(whole, table, which, finish(topology, load) / units)


def _allowed(topology: Topology, nic: I64, near: np.ndarray, up: np.ndarray, used: I64) -> np.ndarray:
    """Channels that a rank may take without using more near or far NICs than its paths carry best: bool[CHANNELS]."""
    fine = up[nic]
    if not topology.path_limits:
        return fine
    most = best_subset(topology, int((near & up).sum()), int((~near & up).sum()))
    taken = np.unique(nic[used > 0])
    for kind, limit in ((near, most[0]), (~near, most[1])):
        mine = taken[kind[taken]]
        if len(mine) >= limit:
            fine = fine & (~kind[nic] | np.isin(nic, mine))
    return fine


def pieces(topology: Topology, source: I64, target: I64) -> Pieces:
    """How each pair's data is cut: by the end whose node has less left; inside a node not at all."""
    found, left = shares(topology), remaining(topology)
    from_source = left[topology.node_of[source]] <= left[topology.node_of[target]]
    table, kind = found.kinds(topology, np.where(from_source, source, target))
    table = np.concatenate([table, found.units * (np.arange(CHANNELS) == 0)[None]])
    kind[topology.node_of[source] == topology.node_of[target]] = len(table) - 1
    of_kind, channel = np.nonzero(table)  # there are few kinds, and a table of all pairs is large
    first, number = (np.cumsum(table, axis=1) - table)[of_kind, channel], np.bincount(of_kind, minlength=len(table))
    many = number[kind]
    place = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many - (np.cumsum(number) - number)[kind], many)
    return Pieces(np.repeat(np.arange(len(kind)), many), channel[place], first[place], table[of_kind, channel][place])


def _pair_builder(problem: Problem, scratch_blocks: int = 0, timetable: bool = False) -> Builder:
    found = shares(problem.topology)
    scratch_pairs = all_to_all_direct.received_pairs(problem.n) if problem.counts is not None and scratch_blocks else None
    return problem.builder("balance", channels=found.channels, parts=found.units, scratch_blocks=scratch_blocks,
                           scratch_pairs=scratch_pairs, timetable=timetable)


def _ref(b: Builder, buf: Buffer, block: I64, cut: Pieces):
    begin = block * b.parts + cut.first
    return (b.input, b.output, b.scratch)[buf][begin : begin + cut.count]


def all_to_all(problem: Problem) -> Builder:
    """Direct all_to_all(v), each block cut by the shares of its pair. Steps: n-1 rounds, out of place a timetable. Bytes as `direct`."""
    if not is_degraded(problem.topology):
        return _named(all_to_all_direct.direct(problem))
    n, landing = problem.n, Buffer.scratch if problem.in_place else Buffer.output
    b, rank = _pair_builder(problem, n if problem.in_place else 0, timetable=not problem.in_place), np.arange(n)
    for b.step, (to, _) in enumerate(rounds(problem, rank)):
        cut = pieces(problem.topology, rank, to)
        me, peer = rank[cut.row], to[cut.row]
        b.put(rank=me, peer=peer, src=_ref(b, Buffer.input, peer, cut), dst=_ref(b, landing, me, cut), channel=cut.channel)
    b.copy(rank=rank, src=b.input[rank * b.parts : (rank + 1) * b.parts], dst=b.output[rank * b.parts : (rank + 1) * b.parts])
    for b.step, (_, source) in enumerate(rounds(problem, rank)):
        cut = pieces(problem.topology, source, rank)
        me, peer = rank[cut.row], source[cut.row]
        b.wait(rank=me, peer=peer, channel=cut.channel)
    if problem.in_place:
        _replace_blocks(b, problem)
    return b


def all_to_all_pairs(problem: Problem) -> Pairs | None:
    """What `all_to_all` repeats; None where that of `direct` is."""
    if not is_degraded(problem.topology):
        return all_to_all_direct.pairs(problem)
    if problem.grid is None or problem.in_place or problem.counts is not None:
        return None
    found, left = shares(problem.topology), remaining(problem.topology)
    nodes, channels = np.flatnonzero(found.which >= 0), found.channels
    cuts = Cuts(found.units, found.whole[:channels], nodes, found.hurt[found.which[nodes], :, :channels], np.append(left[nodes], 1.0),
                np.array([found.units]))
    return Pairs(problem.grid, int(np.count_nonzero(found.whole)), keeps=True, cuts=cuts)


def _replace_blocks(b: Builder, problem: Problem) -> None:
    """In place: what arrived takes the place of what has left; a channel flushes what it sent, then copies what it may have received."""
    n, rank = problem.n, np.arange(problem.n)
    for distance in range(1, n):
        b.step = distance - 1
        other = (rank + distance) % n
        sent = pieces(problem.topology, rank, other)
        b.flush(rank=rank[sent.row], peer=other[sent.row], channel=sent.channel)
    for channel in shares(problem.topology).used:
        if channel:
            b.signal(rank=rank, peer=rank, channel=int(channel), sig_channel=int(channel))
            b.wait(rank=rank, peer=rank, channel=0, sig_channel=int(channel))
    for distance in range(1, n):
        block = (rank - distance) % n * b.parts
        b.copy(rank=rank, src=b.scratch[block : block + b.parts], dst=b.output[block : block + b.parts])


def gather_to_root(problem: Problem) -> Builder:
    """Direct gather, each block cut by the shares of its pair. Steps: 1. Bytes as `direct`."""
    if not is_degraded(problem.topology):
        return _named(gather.direct(problem))
    b, root = _pair_builder(problem), problem.root
    away = np.array([rank for rank in range(problem.n) if rank != root])
    cut = pieces(problem.topology, away, np.full_like(away, root))
    me = away[cut.row]
    b.put(rank=me, peer=root, src=_ref(b, Buffer.input, me * 0, cut), dst=_ref(b, Buffer.output, me, cut), channel=cut.channel)
    b.copy(rank=root, src=b.input[0 : b.parts], dst=b.output[root * b.parts : (root + 1) * b.parts])
    b.wait(rank=np.full(len(me), root), peer=me, channel=cut.channel)
    return b


def scatter_from_root(problem: Problem) -> Builder:
    """Direct scatter, each block cut by the shares of its pair. Steps: 1. Bytes as `direct`."""
    if not is_degraded(problem.topology):
        return _named(scatter.direct(problem))
    b, root = _pair_builder(problem), problem.root
    away = np.array([rank for rank in range(problem.n) if rank != root])
    cut = pieces(problem.topology, np.full_like(away, root), away)
    to = away[cut.row]
    b.put(rank=np.full(len(to), root), peer=to, src=_ref(b, Buffer.input, to, cut), dst=_ref(b, Buffer.output, to * 0, cut),
          channel=cut.channel)
    b.copy(rank=root, src=b.input[root * b.parts : (root + 1) * b.parts], dst=b.output[0 : b.parts])
    b.wait(rank=to, peer=root, channel=cut.channel)
    return b


def send_recv(problem: Problem) -> Builder:
    """One put per piece of the pair. Steps: 1. Bytes as `direct`."""
    if not is_degraded(problem.topology) or problem.root == problem.peer:
        return _named(send_recv_direct.direct(problem))
    b = _pair_builder(problem)
    cut = pieces(problem.topology, np.array([problem.root]), np.array([problem.peer]))
    sender, receiver = np.full(len(cut.row), problem.root), np.full(len(cut.row), problem.peer)
    b.put(rank=sender, peer=receiver, src=_ref(b, Buffer.input, sender * 0, cut), dst=_ref(b, Buffer.output, sender * 0, cut),
          channel=cut.channel)
    b.wait(rank=receiver, peer=sender, channel=cut.channel)
    return b


# -- costs: the healthy formula, its bytes over the NICs that are left


def _stretched(formula):
    """The cost by `formula`, whose time on NICs grows by how much less the worst node carries than that formula assumes."""
    def cost(problem: Problem) -> Cost:
        healthy = formula(problem)
        if not is_degraded(problem.topology) or not healthy.nic_bytes:
            return healthy
        at, left = machine(problem.topology), rates_of(problem.topology).sum(axis=1).min()
        if not left:
            return healthy  # no way out of some node: planning names it
        gained = healthy.nic_bytes / at.one_nic * (1 - at.node_nic / left)
        return healthy._replace(seconds=max(healthy.seconds - max(gained, 0.0), healthy.seconds * at.node_nic / left))
    cost.__doc__ = f"{formula.__doc__} Over the lanes that are left."
    return cost


def all_to_all_cost(problem: Problem) -> Cost:
    """As `direct`, over the NICs that are left, as far as ranks reach them."""
    healthy = formulas.all_to_all_direct(problem)
    if not is_degraded(problem.topology) or not healthy.nic_bytes:
        return healthy
    gained = healthy.nic_bytes * (1 / machine(problem.topology).one_nic - shares(problem.topology).worst)
    return healthy._replace(seconds=healthy.seconds - max(gained, 0.0))


all_gather_cost = _stretched(formulas.all_gather_ring)
reduce_scatter_cost = _stretched(formulas.reduce_scatter_ring)
broadcast_cost = _stretched(formulas.broadcast_pipelined_ring)
reduce_cost = _stretched(formulas.reduce_ring)
gather_cost = _stretched(formulas.gather_direct)
scatter_cost = _stretched(formulas.scatter_direct)
send_recv_cost = _stretched(formulas.send_recv_direct)
