"""Hierarchical all_reduce: reduce-scatter inside each node, a ring per local index between nodes, all-gather inside.

    channel 0    puts slice by slice to their owners inside the node, whose lanes wait for them
    channel 1…   lanes: the ring between nodes on the rank's own NIC, then puts to the other ranks of the node

What the ranks of a node have of a chunk is added where the chunk begins its way or comes by, together with what arrived: that reads memory
once less than a sum of the node before, and nobody waits for the sums of other chunks. Several lanes keep a NIC busy while another slice is
being reduced. Invariant: chunk = (local index, slice, segment); local index l of every node owns slices (l, *); lanes take slices in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from ..ir import Builder, RingLoops, Schedule
from .cost import Cut, hierarchical_cut
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
    cut = hierarchical_cut(problem)
    timetable = share_unevenly(problem.topology, problem.grid, 1 + np.arange(cut.lanes))
    b = problem.builder("hierarchical", channels=1 + cut.lanes, parts=cut.chunks(nodes, group), scratch_blocks=group, timetable=timetable)
    _scatter(b, problem.grid, cut)
    begins = [i // cut.lanes * (2 * nodes - 2) if timetable else None for i in range(cut.slices)]
    for i, ticks in enumerate(begins):
        _between_nodes(b, problem.grid, cut, i, ticks)
        _gather(b, problem.grid, cut, i, ticks)
    _arrive(b, problem.grid, cut, begins[-1])
    return b


def _members(grid: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rank, node and local index of everyone."""
    nodes, group = grid.shape
    return grid.ravel(), np.repeat(np.arange(nodes), group), np.tile(np.arange(group), nodes)


def _scatter(b: Builder, grid: np.ndarray, cut: Cut) -> None:
    """Every slice of every other local index goes to its owner in the node, and tells the lane there."""
    owner, node, local = _members(grid)
    nodes, group = grid.shape
    b.step = 0
    for i in range(cut.slices):
        begin = cut.begin(local, i, nodes)
        for distance in range(1, group):
            sender = (local + distance) % group
            landing = slot(sender, local) * b.parts + begin
            b.put(rank=grid[node, sender], peer=owner, src=b.input[begin : begin + nodes], dst=b.scratch[landing : landing + nodes],
                  sig_channel=cut.lane(i))


def _between_nodes(b: Builder, grid: np.ndarray, cut: Cut, i: int, ticks: int | None) -> None:
    """Ring all_reduce of slice i among the ranks of one local index: what arrived at a step goes on at the next.

    ticks: of a timetable, when the slice begins: at the tick at which its lane ends the one before; None where steps count hops. What
    arrives goes on at that tick.
    """
    rank, node, local = _members(grid)
    nodes, group = grid.shape
    ahead, behind = grid[(node + 1) % nodes, local], grid[(node - 1) % nodes, local]
    lane, landing = cut.lane(i), (group - 1) * b.parts
    b.step = 1 if ticks is None else ticks
    for distance in range(1, group):
        b.wait(rank=rank, peer=grid[node, (local + distance) % group], channel=lane)

    def of_node(chunk):
        return sources(local, group, chunk, chunk, b.parts)

    at = cut.begin(local, i, nodes) + node
    b.reduce(rank=rank, dst=b.output[at], srcs=of_node(at), channel=lane)
    if nodes > 1:
        b.put(rank=rank, peer=ahead, src=b.output[at], dst=b.scratch[landing + at], channel=lane)
    for step in range(2 * nodes - 2):
        at = cut.begin(local, i, nodes) + (node - 1 - step) % nodes
        b.step = 1 + step + (ticks or 0)
        b.wait(rank=rank, peer=behind, channel=lane)
        if step < nodes - 1:
            b.reduce(rank=rank, dst=b.output[at], srcs=[b.scratch[landing + at], *of_node(at)], channel=lane)
        if step < 2 * nodes - 3:
            b.step += ticks is None
            target = b.scratch[landing + at] if step + 1 < nodes - 1 else b.output[at]
            b.put(rank=rank, peer=ahead, src=b.output[at], dst=target, channel=lane)


def _gather(b: Builder, grid: np.ndarray, cut: Cut, i: int, ticks: int | None) -> None:
    """The finished slice goes to everyone in the node."""
    rank, node, local = _members(grid)
    nodes, group = grid.shape
    mine = cut.begin(local, i, nodes)
    b.step = _gone_round(nodes, ticks)
    for distance in range(1, group):
        done = b.output[mine : mine + nodes]
        b.put(rank=rank, peer=grid[node, (local + distance) % group], src=done, dst=done, channel=cut.lane(i), sig_channel=0)


def _gone_round(nodes: int, ticks: int | None) -> int:
    """The step at which a slice has come to all nodes."""
    return 2 * nodes - 1 if ticks is None else ticks + 2 * nodes - 2


def _arrive(b: Builder, grid: np.ndarray, cut: Cut, ticks: int | None) -> None:
    """Everyone has all slices of the others in the node."""
    rank, node, local = _members(grid)
    nodes, group = grid.shape
    b.step = _gone_round(nodes, ticks)
    for distance in range(1, group):
        b.wait(rank=rank, peer=grid[node, (local - distance) % group], count=cut.slices)


def loops(problem: Problem) -> RingLoops | None:
    """The rings between nodes: one per local index and lane, lane by lane; each takes its slices in turn. None on one node."""
    assert problem.grid is not None
    nodes, group = problem.grid.shape
    if nodes == 1:
        return None
    cut = hierarchical_cut(problem)
    lane, local = np.repeat(np.arange(cut.lanes), group), np.tile(np.arange(group), cut.lanes)
    slices = lane[:, None] + cut.lanes * np.arange(-(-cut.slices // cut.lanes))
    timetable = share_unevenly(problem.topology, problem.grid, 1 + np.arange(cut.lanes))
    return RingLoops(orders=problem.grid.T[local], channel=1 + lane, parts=cut.chunks(nodes, group), depth=1, steps=2 * nodes - 2,
                     reducing=nodes - 1, own=group, first=cut.begin(local[:, None], slices, nodes), stride=1, span=1,
                     slice_of=np.where(slices < cut.slices, slices, -1), in_node=True, in_turn=True, timetable=timetable)


def node_phase(problem: Problem) -> Callable[[np.ndarray], Schedule]:
    """What the ranks of each node do among themselves before their rings begin, as a schedule of one node; all of them are owners."""
    assert problem.grid is not None
    made = _one_node(problem.grid.shape[1], hierarchical_cut(problem), problem.in_place, problem.nbytes, problem.dtype,
                     problem.redop)
    return lambda owners: made


@lru_cache(maxsize=8)
def _one_node(group: int, cut: Cut, in_place: bool, nbytes: int, dtype: str, redop: str) -> Schedule:
    grid = np.arange(group)[None, :]
    b = Builder("all_reduce", group, algorithm="hierarchical", in_place=in_place, channels=1 + cut.lanes,
                parts=cut.chunks(1, group), scratch_blocks=group)
    _scatter(b, grid, cut)
    return b.build(nbytes=nbytes, dtype=dtype, redop=redop)
