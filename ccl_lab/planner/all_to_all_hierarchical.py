"""Hierarchical all_to_all and all_to_allv: blocks first meet inside the node at the right local index, then cross on its rail.

    rank (k, l)  ──► (k, l')   blocks for local index l' of all other nodes      inside the node
    rank (k, l') ──► (k', l')  the blocks of all ranks of node k                  between nodes, one run of blocks

Between nodes a rank talks only to its own local index: K-1 long messages instead of (K-1) g short ones, each on its own rail.
Invariant: scratch block (t, s) of a rank holds what local index s of its node sends to the node t further on; in place, what
arrives lands in scratch too, since the block it replaces may not have left.
"""

from __future__ import annotations

import numpy as np

from ..ir import Buffer, Builder, Rails
from .direct import slot
from .problem import Problem
from .runs import Run, put_run, wait_run


def hierarchical(problem: Problem) -> Builder:
    """Two phases over a grid of K nodes by g ranks.

    Steps: K+1 (1 inside, K-1 between nodes, 1 to finish). Bytes sent per rank: (K-1)(g-1) + (g-1) blocks inside the node and
    (K-1) g between nodes. Scratch: (K-1)(g-1) blocks, in place n more. Needs nodes of equal size.
    Source: NCCLX, arXiv 2510.20171, 2.6 (rail peers); PXN of NCCL; Träff and Rougier, "MPI collectives and datatypes for
    hierarchical all-to-all communication", 2014.
    """
    assert problem.grid is not None
    grid = problem.grid
    nodes, group = grid.shape
    channels = problem.slices(problem.nics_per_rank, problem.block_bytes * group)
    staged = (nodes - 1) * (group - 1)
    pairs = _pairs(grid, problem.in_place) if problem.counts is not None else None
    b = problem.builder("hierarchical", channels=channels, parts=channels,
                        scratch_blocks=staged + problem.n * problem.in_place, scratch_pairs=pairs)
    at = _Grid(grid, channels)
    _to_the_rail(b, problem, at)
    for hop in range(1, nodes):
        b.step = hop
        _across(b, problem, at, hop)
    b.step = nodes
    _finish(b, problem, at)
    return b


def rails(problem: Problem) -> Rails | None:
    """What `hierarchical` repeats; None on one node, and of all_to_allv."""
    grid = problem.grid
    if grid is None or len(grid) == 1 or problem.counts is not None:
        return None
    group = grid.shape[1]
    channels = problem.slices(problem.nics_per_rank, problem.block_bytes * group)
    local = np.arange(group)
    runs = [np.ones(group, np.int64), *(count for _, count in _runs(_Grid(grid, 1), local))]
    if channels > 1:  # block by block (runs.py)
        runs = [(count > i).astype(np.int64) for count in runs for i in range(int(count.max()))]
    blocks = np.stack(runs, axis=1)
    return Rails(grid, np.where(blocks > 0, blocks, -1), problem.in_place, channels)


class _Grid:
    """Everyone on every channel: rank, node, local index; and the rank at (node, local)."""

    def __init__(self, grid: np.ndarray, channels: int) -> None:
        self.nodes, self.group = grid.shape
        self.grid = grid
        self.rank = np.tile(grid.ravel(), channels)
        self.node = np.tile(np.repeat(np.arange(self.nodes), self.group), channels)
        self.local = np.tile(np.tile(np.arange(self.group), self.nodes), channels)
        self.channel = np.repeat(np.arange(channels), grid.size)

    def at(self, hop, local) -> np.ndarray:
        """Rank of local index `local` on the node `hop` further on."""
        return self.grid[(self.node + hop) % self.nodes, local]


def _pairs(grid: np.ndarray, in_place: bool) -> np.ndarray:
    """int32[n, blocks, 2]: the (source, destination) that sizes each scratch block."""
    nodes, group = grid.shape
    n = grid.size
    staged = np.zeros((n, (nodes - 1) * (group - 1), 2), np.int32)
    for node in range(nodes):
        for local in range(group):
            others = np.delete(grid[node], local)
            for hop in range(1, nodes):
                rows = slice((hop - 1) * (group - 1), hop * (group - 1))
                staged[grid[node, local], rows, 0] = others
                staged[grid[node, local], rows, 1] = grid[(node + hop) % nodes, local]
    landed = np.stack(np.broadcast_arrays(np.arange(n)[None, :], np.arange(n)[:, None]), axis=-1).astype(np.int32)
    return np.concatenate([staged, landed], axis=1) if in_place else staged


def _landing(problem: Problem, at: _Grid, source: np.ndarray) -> Run:
    """Where the block of `source` arrives."""
    if problem.in_place:
        return Run(Buffer.scratch, (at.nodes - 1) * (at.group - 1) + source)
    return Run(Buffer.output, source)


def _to_the_rail(b: Builder, problem: Problem, at: _Grid) -> None:
    """Blocks for other nodes go to the rank with the receiver's local index, blocks for this node to the receiver."""
    for hop in (*range(1, at.nodes), 0):
        for distance in range(1, at.group):
            local = (at.local + distance) % at.group
            landing = (Run(Buffer.scratch, (hop - 1) * (at.group - 1) + slot(at.local, local)) if hop
                       else _landing(problem, at, at.rank))
            put_run(b, at.rank, at.at(0, local), Run(Buffer.input, at.at(hop, local)), landing, 1, at.channel)


def _across(b: Builder, problem: Problem, at: _Grid, hop: int) -> None:
    """Everything this node has for local index l of the node `hop` further on, in as few runs as ranks allow."""
    for distance in range(1, at.group):
        wait_run(b, at.rank, at.at(0, (at.local - distance) % at.group), [1], at.channel)
    to = at.at(hop, at.local)
    put_run(b, at.rank, to, Run(Buffer.input, to), _landing(problem, at, at.rank), 1, at.channel)
    for first, count in _runs(at, at.local):
        staged = Run(Buffer.scratch, (hop - 1) * (at.group - 1) + slot(first, at.local))
        put_run(b, at.rank, to, staged, _landing(problem, at, at.at(0, np.minimum(first, at.group - 1))), count, at.channel)


def _runs(at: _Grid, local: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """(first local index, count) of runs over all local indices but `local`; single ones unless ranks are numbered node by node."""
    if np.array_equal(at.grid, at.grid[:, :1] + np.arange(at.group)):
        return [(np.zeros_like(local), local), (local + 1, at.group - 1 - local)]
    return [(np.full_like(local, each), (local != each).astype(np.int64)) for each in range(at.group)]


def _finish(b: Builder, problem: Problem, at: _Grid) -> None:
    """Everything has arrived: blocks of this node, then those of the others; in place they now take their places."""
    for distance in range(1, at.group):
        wait_run(b, at.rank, at.at(0, (at.local - distance) % at.group), [1], at.channel)
    for hop in range(1, at.nodes):
        counts = [1, *(count for _, count in _runs(at, at.local))]
        wait_run(b, at.rank, at.at(-hop, at.local), counts, at.channel)
    own = at.rank * b.parts + at.channel
    b.copy(rank=at.rank, src=b.input[own], dst=b.output[own], channel=at.channel)
    if problem.in_place:
        b.flush(rank=at.rank, channel=at.channel)
        for distance in range(1, problem.n):
            source = (at.rank + distance) % problem.n
            landed = _landing(problem, at, source)
            b.copy(rank=at.rank, src=b.scratch[landed.block * b.parts + at.channel],
                   dst=b.output[source * b.parts + at.channel], channel=at.channel)
