"""What recursive, OptCC and mix repeat around nodes that lost NICs, or have slower ones: told without an op per message.

Is: the lanes, cuts and places of all_reduce_lanes in a few arrays (ir/meetings.py), for shares of one level that are not cut into
waves. Is not: the ops. Invariant: whatever is told otherwise has a `misfit`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from ..ir import Builder, Meetings, Schedule
from ..topo import Topology
from . import all_reduce_lanes
from .all_reduce_lanes import Allocation, Level, Shares, allocate, channels_of, lanes_of_units, regions_of
from .all_reduce_resilient import Split
from .degraded import node_order
from .lane_teams import Frame
from .problem import Problem


def meetings(split: Callable[[Problem], Split], problem: Problem) -> Meetings | None:
    """What the shares of `split` repeat; None where there are none."""
    shares = split(problem).shares
    if shares is None:
        return None
    misfit = _misfit(problem, shares)
    return Meetings(misfit=misfit) if misfit else _told(problem, shares)


def _misfit(problem: Problem, shares: Shares) -> str:
    """Why lanes do more than one ring and one meeting each, or are not apart."""
    topology = problem.topology
    sizes = topology.ranks_per_node
    if len(shares.levels) != 1:
        return "nodes lost different amounts, and meet in several levels"
    if int(sizes.max()) == 1 or (sizes != sizes[0]).any():
        return "nodes hold one rank, or different numbers of them"
    if max(all_reduce_lanes.depth_of(problem, shares)) > 1:
        return "slices are cut into waves and pieces that are under way together"
    found = allocate(topology, shares)
    if len(shares.levels[0].outsiders) > 1 and (why := _crowded(shares.levels[0], found)):
        return why
    return "" if _distinct(found) else "lanes share a rank or a NIC"


def _crowded(level: Level, found: Allocation) -> str:
    """Why several outsiders are not met round by round."""
    if len(level.members) < 2 * len(level.outsiders):
        return "fewer nodes are whole than twice those that lost NICs"
    apart = found.apart[0]
    alone = apart is not None and (lanes_of_units(apart, found.fraction[0], len(found.ring.channel), 1) >= 0).all()
    return "" if alone else "several nodes lost NICs, and members reduce among themselves on the lanes where they meet these"


def _distinct(found: Allocation) -> bool:
    """Whether on every node each lane has a rank and a NIC of its own."""
    apart = found.apart[0]
    places = dict(zip(found.ring.nodes, range(len(found.ring.nodes)), strict=True))
    for ring, more in ((found.ring.rank, None if apart is None else apart.rank), (found.ring.nic, None if apart is None else apart.nic)):
        table = np.sort(ring, axis=0)
        if (table[1:] == table[:-1]).any():
            return False
        if more is not None and apart is not None:
            among = ring[:, [places[node] for node in apart.nodes]]
            table = np.sort(np.concatenate([among, more]), axis=0)
            if (table[1:] == table[:-1]).any():
                return False
    return True


def _told(problem: Problem, shares: Shares) -> Meetings:
    topology, level = problem.topology, shares.levels[0]
    found, depth = allocate(topology, shares), all_reduce_lanes.depth_of(problem, shares)
    regions, parts = regions_of(topology, shares, depth)
    lanes, apart, slices = found.ring, found.apart[0], len(found.ring.channel)
    place = np.full(topology.n_nodes, -1)
    every = np.array((*level.members, *level.outsiders))
    place[every] = np.arange(len(every))
    where = np.full(topology.n_nodes, -1)
    where[list(lanes.nodes)] = np.arange(len(lanes.nodes))
    m = len(level.members)
    none, nobody = np.zeros(0, np.int64), np.zeros((0, m), np.int64)
    through = (np.arange(slices) % 2 == 0) & bool(shares.through and len(level.outsiders) == 1)
    inside = (topology.gpus_per_node, found.local, channels_of(topology, found, shares), parts,
              tuple((tuple(lo.tolist()), tuple(hi.tolist())) for lo, hi in regions), problem.in_place, problem.nbytes, problem.dtype,
              problem.redop)  # fmt: skip
    return Meetings(
        members=every[:m], outsiders=every[m:], ring=place[np.array(node_order(topology))] if shares.ring > 0 else none,
        channel=lanes.channel, rank=lanes.rank[:, where[every]], nic=lanes.nic[:, where[every]], parts=parts,
        lo=np.stack([lo for lo, _ in regions]), hi=np.stack([hi for _, hi in regions]), through=through,
        apart_channel=none if apart is None else apart.channel, apart_rank=nobody if apart is None else apart.rank,
        apart_nic=nobody if apart is None else apart.nic,
        apart_of=np.full(slices, -1) if apart is None else lanes_of_units(apart, found.fraction[0], slices, 1)[:, 0],
        node_phase=lambda rings, meets: _one_node(tuple(rings.tolist()), tuple(meets.tolist()), *inside))


@lru_cache(maxsize=64)
def _one_node(rings: tuple[int, ...], meets: tuple[int, ...], group: int, local: int, channels: int, parts: int,
              regions: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], in_place: bool, nbytes: int, dtype: str,
              redop: str) -> Schedule:  # fmt: skip
    """What is done inside a node before its lanes begin: all_reduce_lanes' `_inside` for one wave of each job."""
    b = Builder("all_reduce", group, algorithm="balance", in_place=in_place, channels=channels, parts=parts, scratch_blocks=group + 1)
    frame = Frame(b, Topology.cluster(nodes=1, gpus_per_node=group, nics_per_node=0), local, ids=iter(range(channels)))
    jobs = [(np.array(ranks), np.array(lo), np.array(hi), frame.numbers(len(ranks)))
            for ranks, (lo, hi) in zip([each for each in (rings, meets) if each], regions, strict=True)]  # fmt: skip
    for rank, lo, hi, _ in jobs:
        frame.scatter(rank, lo, hi)
    for job in jobs:
        frame.add(*job)
    return b.build(nbytes=nbytes, dtype=dtype, redop=redop)
