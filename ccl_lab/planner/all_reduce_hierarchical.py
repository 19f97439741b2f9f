"""Hierarchical all_reduce: reduce-scatter inside each node, a ring per local index between nodes, all-gather inside.

    channel 0    puts and reduces slice by slice inside the node, and hands each slice to a lane
    channel 1…   lanes: the ring between nodes on the rank's own NIC, then puts to the other ranks of the node

Several lanes keep a NIC busy while another slice is being reduced. Invariant: chunk = (local index, slice, segment);
local index l of every node owns slices (l, *); lanes take slices in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from ..ir import Builder, RingLoops, Schedule
from .cost import hierarchical_depth, hierarchical_lanes
from .direct import slot, sources
from .orders import share_unevenly
from .problem import Problem


def hierarchical(problem: Problem) -> Builder:
    """Direct reduce_scatter in the node, ring over nodes on each local index's own rail, direct all_gather in the node.

    Steps: 2K for K nodes of g ranks (1 + 2(K-1) + 1), or a timetable where some NICs carry more rings than others. Bytes sent per rank:
    2(g-1)/g of the message inside the node and 2(K-1)/(K g) between nodes: g times less than crosses on a flat ring per rank of the node.
    g+1 blocks of scratch at most, each byte used once. Needs nodes of equal size.
    Source: Jia et al., arXiv 1807.11205, section 3.3 (hierarchical all-reduce); rails as in NCCLX, arXiv 2510.20171.
    """
    assert problem.grid is not None
    nodes, group = problem.grid.shape
    depth = hierarchical_depth(problem)
    lanes = hierarchical_lanes(problem, depth)
    timetable = share_unevenly(problem.topology, problem.grid, 1 + np.arange(lanes))
    b = problem.builder("hierarchical", channels=1 + lanes, parts=group * depth * nodes, scratch_blocks=group, timetable=timetable)
    _node_phase(b, problem.grid, depth, lanes)
    begins = [i // lanes * (2 * nodes - 2) if timetable else None for i in range(depth)]
    for i, ticks in enumerate(begins):
        _between_nodes(b, problem.grid, depth, i, lane=1 + i % lanes, ticks=ticks)
        _gather(b, problem.grid, depth, i, lane=1 + i % lanes, ticks=ticks)
    for i, ticks in enumerate(begins):
        _arrive(b, problem.grid, lane=1 + i % lanes, ticks=ticks)
    return b


def _members(grid: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rank, node and local index of everyone."""
    nodes, group = grid.shape
    return grid.ravel(), np.repeat(np.arange(nodes), group), np.tile(np.arange(group), nodes)


def _node_phase(b: Builder, grid: np.ndarray, depth: int, lanes: int) -> None:
    """Slices go to their owners in the node and are added; one is on its way while the one before it is added."""
    for i in range(depth + 1):
        if i < depth:
            _scatter(b, grid, depth, i)
        if i > 0:
            _reduce(b, grid, depth, i - 1, lane=1 + (i - 1) % lanes)


def _scatter(b: Builder, grid: np.ndarray, depth: int, i: int) -> None:
    """Slice i of every other local index goes to its owner in the node."""
    rank, node, local = _members(grid)
    nodes, group = grid.shape
    b.step = 0
    for distance in range(1, group):
        owner = (local + distance) % group
        theirs = (owner * depth + i) * nodes
        landing = slot(local, owner) * b.parts + theirs
        b.put(rank=rank, peer=grid[node, owner], src=b.input[theirs : theirs + nodes], dst=b.scratch[landing : landing + nodes])


def _reduce(b: Builder, grid: np.ndarray, depth: int, i: int, lane: int) -> None:
    """The owner adds slice i of its node, and tells the lane."""
    rank, node, local = _members(grid)
    nodes, group = grid.shape
    mine = (local * depth + i) * nodes
    b.step = 0
    for distance in range(1, group):
        b.wait(rank=rank, peer=grid[node, (local - distance) % group])
    b.reduce(rank=rank, dst=b.output[mine : mine + nodes], srcs=sources(local, group, mine, mine, b.parts, nodes))
    b.signal(rank=rank, peer=rank, sig_channel=lane)


def _between_nodes(b: Builder, grid: np.ndarray, depth: int, i: int, lane: int, ticks: int | None) -> None:
    """Ring all_reduce of slice i among the ranks of one local index: what arrived at a step goes on at the next.

    ticks: of a timetable, when the slice begins: at the tick at which its lane ends the one before; None where steps count hops. What
    arrives goes on at that tick.
    """
    rank, node, local = _members(grid)
    nodes, group = grid.shape
    ahead, behind = grid[(node + 1) % nodes, local], grid[(node - 1) % nodes, local]
    landing = (group - 1) * b.parts
    b.step = 1 if ticks is None else ticks
    b.wait(rank=rank, peer=rank, channel=lane)

    def chunk(position):
        return (local * depth + i) * nodes + position % nodes

    if nodes > 1:
        b.put(rank=rank, peer=ahead, src=b.output[chunk(node)], dst=b.scratch[landing + chunk(node)], channel=lane)
    for step in range(2 * nodes - 2):
        arrived = chunk(node - 1 - step)
        b.step = 1 + step + (ticks or 0)
        b.wait(rank=rank, peer=behind, channel=lane)
        if step < nodes - 1:
            b.reduce(rank=rank, dst=b.output[arrived], srcs=[b.scratch[landing + arrived], b.output[arrived]], channel=lane)
        if step < 2 * nodes - 3:
            b.step += ticks is None
            target = b.scratch[landing + arrived] if step + 1 < nodes - 1 else b.output[arrived]
            b.put(rank=rank, peer=ahead, src=b.output[arrived], dst=target, channel=lane)


def _gather(b: Builder, grid: np.ndarray, depth: int, i: int, lane: int, ticks: int | None) -> None:
    """The finished slice goes to everyone in the node."""
    rank, node, local = _members(grid)
    nodes, group = grid.shape
    mine = (local * depth + i) * nodes
    b.step = _gone_round(nodes, ticks)
    for distance in range(1, group):
        done = b.output[mine : mine + nodes]
        b.put(rank=rank, peer=grid[node, (local + distance) % group], src=done, dst=done, channel=lane)


def _gone_round(nodes: int, ticks: int | None) -> int:
    """The step at which a slice has come to all nodes."""
    return 2 * nodes - 1 if ticks is None else ticks + 2 * nodes - 2


def _arrive(b: Builder, grid: np.ndarray, lane: int, ticks: int | None) -> None:
    rank, node, local = _members(grid)
    nodes, group = grid.shape
    b.step = _gone_round(nodes, ticks)
    for distance in range(1, group):
        b.wait(rank=rank, peer=grid[node, (local - distance) % group], sig_channel=lane)


def loops(problem: Problem) -> RingLoops | None:
    """The rings between nodes: one per local index and lane, lane by lane; each takes its slices in turn. None on one node."""
    assert problem.grid is not None
    nodes, group = problem.grid.shape
    if nodes == 1:
        return None
    depth = hierarchical_depth(problem)
    lanes = hierarchical_lanes(problem, depth)
    most = -(-depth // lanes)
    lane, local = np.repeat(np.arange(lanes), group), np.tile(np.arange(group), lanes)
    slices = lane[:, None] + lanes * np.arange(most)
    timetable = share_unevenly(problem.topology, problem.grid, 1 + np.arange(lanes))
    return RingLoops(orders=problem.grid.T[local], channel=1 + lane, parts=group * depth * nodes, depth=1, steps=2 * nodes - 2,
                     reducing=nodes - 1, first=(local[:, None] * depth + slices) * nodes, stride=1, span=1,
                     slice_of=np.where(slices < depth, slices, -1), in_node=True, in_turn=True, timetable=timetable)


def node_phase(problem: Problem) -> Callable[[np.ndarray], Schedule]:
    """What the ranks of each node do among themselves before their rings begin, as a schedule of one node; all of them are owners."""
    assert problem.grid is not None
    depth = hierarchical_depth(problem)
    made = _one_node(problem.grid.shape[1], depth, hierarchical_lanes(problem, depth), problem.in_place, problem.nbytes, problem.dtype,
                     problem.redop)
    return lambda owners: made


@lru_cache(maxsize=8)
def _one_node(group: int, depth: int, lanes: int, in_place: bool, nbytes: int, dtype: str, redop: str) -> Schedule:
    grid = np.arange(group)[None, :]
    b = Builder("all_reduce", group, algorithm="hierarchical", in_place=in_place, channels=1 + lanes, parts=group * depth,
                scratch_blocks=group)
    _node_phase(b, grid, depth, lanes)
    return b.build(nbytes=nbytes, dtype=dtype, redop=redop)
