"""Double binary tree all_reduce: two trees, each for half of the message, up by reducing and down by copying.

    channel (t, up, c)    tree t, slice c: wait for the children, add, put to the parent; the root at once puts down
    channel (t, down, c)  tree t, slice c: wait for the parent, put to the children

Up and down are channels of their own, so chunk i+1 climbs while chunk i descends. Over several nodes the trees join nodes, each
slice at another local index and NIC, and the ranks of a node hang in a chain below the one that is in the tree.
Invariant: with an even number in the trees the second is the mirror image of the first, with an odd one it is shifted by one, so
that who is inside one tree is a leaf of the other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..ir import Buffer, Builder, Ref
from ..topo import Topology
from .cost import tree_depth, tree_slices
from .problem import Problem

CHILDREN = 3  # two in the tree of nodes, one in the chain of the node


class Trees(NamedTuple):
    """One row per (tree, slice, rank): parent and children (-1: none), their rows, and the hops to the root."""

    slices: int
    rank: np.ndarray
    tree: np.ndarray
    slice: np.ndarray
    parent: np.ndarray
    children: np.ndarray
    side: np.ndarray
    level: np.ndarray


def double_binary_tree(problem: Problem) -> Builder:
    """Two pipelined binary trees.

    Steps: k + 2h - 1 for k chunks per tree and height h: ceil(log2 n) on one node, ceil(log2 K) + g - 1 over K nodes of g. Bytes
    sent per rank: at most 2 messages on one node (inside one tree 3 halves, leaf of the other 1 half), 3 on several (2 with
    a slice for each rank of a node); over a NIC at most 2 messages divided by the NICs of the node. Any n. Scratch: 1
    block on one node, 2 on several, and 1 more in place; each byte is written once.
    Source: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009; chains
    inside nodes as in NCCL 2.4.
    """
    depth = tree_depth(problem)
    trees = trees_of(problem.topology, tree_slices(problem))
    most = 2 if problem.topology.n_nodes == 1 else CHILDREN
    b = problem.builder("double_binary_tree", channels=4 * trees.slices, parts=2 * trees.slices * depth,
                        scratch_blocks=most - 1 + problem.in_place)
    height = int(trees.level.max())
    for i in range(depth):
        _up(b, problem, trees, depth, i, height)
        _down(b, trees, depth, i, height)
    return b


def trees_of(topology: Topology, slices: int) -> Trees:
    """The trees of all slices: over ranks on one node, over nodes with chains inside on several."""
    n = topology.n_ranks
    if topology.n_nodes == 1:
        parents = np.repeat(double_trees(n)[:, None], slices, axis=1)
    else:
        parents = np.stack([[_with_chains(topology, nodes, c, slices) for c in range(slices)] for nodes in double_trees(topology.n_nodes)])
    parent = parents.ravel()
    row = np.arange(len(parent))
    above = np.where(parent >= 0, row - row % n + parent, -1)
    children, side = _children(above, row % n)
    level, climber = np.zeros(len(parent), np.int64), above
    while (climber >= 0).any():
        level += climber >= 0
        climber = np.where(climber >= 0, above[climber], -1)
    return Trees(slices, row % n, row // n // slices, row // n % slices, parent, children, side, level)


def double_trees(n: int) -> np.ndarray:
    """Parents in the two trees over 0 … n-1, n >= 2: int64[2, n], -1 at the roots."""
    parent = tree_parents(n)
    members = np.arange(n)
    image = n - 1 - members if n % 2 == 0 else (members + 1) % n  # who is r in the first tree is image[r] in the second
    second = np.empty(n, np.int64)
    second[image] = np.where(parent < 0, -1, image[parent])
    return np.stack([parent, second])


def tree_parents(n: int) -> np.ndarray:
    """Parents in the in-order binary tree over 0 … n-1 with root 0: odd members are leaves. int64[n], -1 at the root."""
    members = np.arange(n)
    lowest = members & -members
    parent = (members ^ lowest) | (lowest << 1)
    parent = np.where(parent >= n, members ^ lowest, parent)
    parent[0] = -1
    return parent


def _with_chains(topology: Topology, node_parent: np.ndarray, c: int, slices: int) -> np.ndarray:
    """Parents of ranks: the local index that slice c enters at is in the tree of nodes, the others follow in a chain."""
    size, node = topology.ranks_per_node[topology.node_of], topology.node_of
    place = (topology.local_of - c * size // slices) % size
    at = np.empty((topology.n_nodes, int(size.max())), np.int64)
    at[node, place] = np.arange(topology.n_ranks)
    up = node_parent[node]
    return np.where(place > 0, at[node, place - 1], np.where(up >= 0, at[up, 0], -1))


def _children(above: np.ndarray, rank: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ranks of the children of each row, int64[rows, 3] (-1: none), and which child of its parent each row is."""
    children, side = np.full((len(above), CHILDREN), -1), np.zeros(len(above), np.int64)
    rows = np.flatnonzero(above >= 0)
    rows = rows[np.argsort(above[rows], kind="stable")]
    first = np.concatenate([[True], above[rows][1:] != above[rows][:-1]])
    begin = np.flatnonzero(first)
    side[rows] = np.arange(len(rows)) - begin[np.cumsum(first) - 1]
    children[above[rows], side[rows]] = rank[rows]
    return children, side


def _landing(problem: Problem, side: np.ndarray, chunk: np.ndarray, parts: int) -> Ref:
    """Where child `side` puts its sum: out of place the first child may use OUTPUT, which is free until the result comes down."""
    if problem.in_place:
        return Ref(Buffer.scratch, side * parts + chunk)
    return Ref(np.where(side == 0, int(Buffer.output), int(Buffer.scratch)), np.maximum(side - 1, 0) * parts + chunk)


def _up(b: Builder, problem: Problem, at: Trees, depth: int, i: int, height: int) -> None:
    chunk, up = (at.tree * at.slices + at.slice) * depth + i, 2 * at.tree * at.slices + at.slice
    degree = (at.children >= 0).sum(axis=1)
    step = i + height - at.level
    for side in range(CHILDREN):
        rows = np.flatnonzero(degree > side)
        b.step = step[rows] - 1
        b.wait(rank=at.rank[rows], peer=at.children[rows, side], channel=up[rows])
    for children in range(1, CHILDREN + 1):
        rows = np.flatnonzero(degree == children)
        where, b.step = chunk[rows], step[rows] - 1
        landed = [_landing(problem, np.full_like(rows, side), where, b.parts) for side in range(children)]
        b.reduce(rank=at.rank[rows], dst=b.output[where], srcs=[b.input[where], *landed], channel=up[rows])
    rows = np.flatnonzero(at.parent >= 0)
    own = np.where(degree[rows] > 0, int(Buffer.output), int(Buffer.input))
    b.step = step[rows]
    b.put(rank=at.rank[rows], peer=at.parent[rows], src=Ref(own, chunk[rows]), channel=up[rows],
          dst=_landing(problem, at.side[rows], chunk[rows], b.parts))


def _down(b: Builder, at: Trees, depth: int, i: int, height: int) -> None:
    chunk, up = (at.tree * at.slices + at.slice) * depth + i, 2 * at.tree * at.slices + at.slice
    down = up + at.slices
    below = np.flatnonzero(at.parent >= 0)
    step = i + height + at.level
    b.step = step[below] - 1
    b.wait(rank=at.rank[below], peer=at.parent[below], channel=down[below])
    for side in range(CHILDREN):
        rows = np.flatnonzero(at.children[:, side] >= 0)
        total, b.step = b.output[chunk[rows]], step[rows]
        # The root goes on in the channel in which it added, so that its sum is there.
        b.put(rank=at.rank[rows], peer=at.children[rows, side], src=total, dst=total, sig_channel=down[rows],
              channel=np.where(at.parent[rows] < 0, up[rows], down[rows]))
