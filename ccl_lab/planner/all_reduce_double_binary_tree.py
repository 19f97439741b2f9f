"""Double binary tree all_reduce: two trees, each for half of the message, up by reducing and down by copying.

    channel (t, up, c)    tree t, slice c: wait for the children, add, put to the parent; the root at once puts down
    channel (t, down, c)  tree t, slice c: wait for the parent, put to the children

Up and down are channels of their own, so chunk i+1 climbs while chunk i descends. Over several nodes the trees join nodes, each
slice at another local index and NIC, and the ranks of a node hang in a chain below the one that is in the tree.
Steps are a timetable of rounds of four: up over edges of color 0, up over color 1, down over color 0, down over color 1 while what came
is added. What a round sends has come in the one before. In a step nobody sends, or gets, more than one chunk of a slice
between nodes, and one inside the node.
Invariants: with an even number in the trees the second is the mirror image of the first, with an odd one it is shifted by one, so
that who is inside one tree is a leaf of the other; edges of the two trees that end, or begin, at one member have different colors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..ir import Buffer, Builder, NodeTrees, Ref
from ..topo import Topology
from .cost import tree_depth, tree_slices
from .problem import Problem

CHILDREN = 3  # two in the tree of nodes, one in the chain of the node
ROUND = 4  # steps: up and down, in two colors
MOST_ROWS = 1 << 18  # that are told at a time: more would need memory, fewer time


class Trees(NamedTuple):
    """One row per (tree, slice, rank): parent and children (-1: none), their places, the hops to the root, the color of the edge to it."""

    slices: int
    rank: np.ndarray
    tree: np.ndarray
    slice: np.ndarray
    parent: np.ndarray
    children: np.ndarray
    side: np.ndarray
    level: np.ndarray
    color: np.ndarray


def double_binary_tree(problem: Problem) -> Builder:
    """Two pipelined binary trees.

    Steps: 4(k + 2h - 1) for k chunks per tree and height h: ceil(log2 n) on one node, ceil(log2 K) + g - 1 over K nodes of g. Bytes
    sent per rank: at most 2 messages on one node (inside one tree 3 halves, leaf of the other 1 half), 3 on several (2 with
    a slice for each rank of a node); over a NIC at most 2 messages divided by the NICs of the node. Any n. Scratch: 1
    block on one node, 2 on several, and 1 more in place; each byte is written once.
    Source: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009, with its
    coloring; chains inside nodes as in NCCL 2.4.
    """
    depth = tree_depth(problem)
    trees = trees_of(problem.topology, tree_slices(problem))
    most = 2 if problem.topology.n_nodes == 1 else CHILDREN
    b = problem.builder("double_binary_tree", channels=4 * trees.slices, parts=2 * trees.slices * depth,
                        scratch_blocks=most - 1 + problem.in_place, timetable=True)
    height = int(trees.level.max())
    groups = _groups(trees, problem.n, depth, height)
    del trees  # among 131,072 ranks what is kept of them counts
    for now in range(depth + 2 * height - 1):
        _puts(b, problem, groups, now)
        _waits(b, problem, groups, now)
    return b


def node_trees(problem: Problem) -> NodeTrees | None:
    """The trees over nodes that `double_binary_tree` joins; None on one node."""
    if problem.topology.n_nodes == 1:
        return None
    members = double_trees(problem.topology.n_nodes)
    return NodeTrees(members, edge_colors(members), tree_slices(problem), tree_depth(problem))


def trees_of(topology: Topology, slices: int) -> Trees:
    """The trees of all slices: over ranks on one node, over nodes with chains inside on several."""
    n = topology.n_ranks
    members = double_trees(n if topology.n_nodes == 1 else topology.n_nodes)
    color = edge_colors(members)
    parent, edge = np.empty((2, slices, n), np.int32), np.empty((2, slices, n), np.int8)
    for tree, c in np.ndindex(2, slices):
        parent[tree, c] = members[tree] if topology.n_nodes == 1 else _with_chains(topology, members[tree], c, slices)
        edge[tree, c] = color[tree] if topology.n_nodes == 1 else color[tree, topology.node_of]
        if topology.n_nodes > 1:
            edge[tree, c][topology.node_of[parent[tree, c]] == topology.node_of] = tree
    found = [_children(above, n) for above in parent.reshape(2 * slices, n)]
    children, side, level = (np.concatenate(columns) for columns in zip(*found, strict=True))
    rank, each = np.tile(np.arange(n, dtype=np.int32), 2 * slices), np.arange(2 * slices, dtype=np.int32)
    return Trees(slices, rank, np.repeat(each // slices, n), np.repeat(each % slices, n), parent.ravel(), children, side, level,
                 edge.ravel())


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


def edge_colors(parents: np.ndarray) -> np.ndarray:
    """Colors 0 and 1 of the edges from members to their parents: int64[2, n], -1 at the roots.

    Edges that share the member below, or the one above, differ. Nobody has more than two of either kind (parents[2, n], of
    `double_trees`), so edges that touch form lines and even rings. Cost: n steps of Python.
    """
    color = np.full(parents.shape, -1)
    edges = [(int(tree), int(member)) for tree, member in zip(*np.nonzero(parents >= 0), strict=True)]
    below: dict[int, list[tuple[int, int]]] = {}
    for tree, member in edges:
        below.setdefault(int(parents[tree, member]), []).append((tree, member))
    for begin in edges:
        found = [begin] if color[begin] < 0 else []
        color[begin] = max(color[begin], 0)
        while found:
            tree, member = edge = found.pop()
            for other in ((1 - tree, member), *below[int(parents[edge])]):
                if parents[other] >= 0 and color[other] < 0:
                    color[other] = 1 - color[edge]
                    found.append(other)
    return color


def _with_chains(topology: Topology, node_parent: np.ndarray, c: int, slices: int) -> np.ndarray:
    """Parents of ranks: the local index that slice c enters at is in the tree of nodes, the others follow in a chain."""
    size, node = topology.ranks_per_node[topology.node_of], topology.node_of
    place = (topology.local_of - c * size // slices) % size
    at = np.empty((topology.n_nodes, int(size.max())), np.int64)
    at[node, place] = np.arange(topology.n_ranks)
    up = node_parent[node]
    return np.where(place > 0, at[node, place - 1], np.where(up >= 0, at[up, 0], -1))


def _children(parent: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of one tree: the children of each rank, int32[n, 3] (-1: none), which child of its parent it is, int8, hops to the root, int32."""
    children, side = np.full((n, CHILDREN), -1, np.int32), np.zeros(n, np.int8)
    rank = np.flatnonzero(parent >= 0)
    rank = rank[np.argsort(parent[rank], kind="stable")]
    first = np.concatenate([[True], parent[rank][1:] != parent[rank][:-1]])
    begin = np.flatnonzero(first)
    side[rank] = np.arange(len(rank)) - begin[np.cumsum(first) - 1]
    children[parent[rank], side[rank]] = rank
    level, climber = np.zeros(n, np.int32), parent
    while (climber >= 0).any():
        level += climber >= 0
        climber = np.where(climber >= 0, parent[climber], -1)
    return children, side, level


def _landing(problem: Problem, side: np.ndarray, chunk: np.ndarray, parts: int) -> Ref:
    """Where child `side` puts its sum: out of place the first child may use OUTPUT, which is free until the result comes down."""
    if problem.in_place:
        return Ref(Buffer.scratch, side * parts + chunk)
    return Ref(np.where(side == 0, int(Buffer.output), int(Buffer.scratch)), np.maximum(side - 1, 0) * parts + chunk)


class Due(NamedTuple):
    """Rows that do something now: places in the columns of `Groups`, ranks, channels on which their trees go up, chunks, who is heard."""

    rows: np.ndarray
    rank: np.ndarray
    up: np.ndarray
    chunk: np.ndarray
    begins: np.ndarray
    child: np.ndarray | None


class Group(NamedTuple):
    """Rows that do one thing with a chunk each in every round from the one in `begins` (ascending) on, in that order.

    Those from first[i] up to first[i + 1] begin in begins[i]. Of millions of rows nothing is kept that follows from others.
    """

    rows: np.ndarray
    begins: np.ndarray
    first: np.ndarray
    n: int
    slices: int
    depth: int
    child: np.ndarray | None = None

    def due(self, now: int) -> Iterator[Due]:
        """Those that do it in round `now`, at most MOST_ROWS at a time."""
        low, high = np.searchsorted(self.begins, (now - self.depth + 1, now + 1))
        for start in range(self.first[low], self.first[high], MOST_ROWS):
            window = slice(start, min(start + MOST_ROWS, int(self.first[high])))
            begins = self.begins[np.searchsorted(self.first, np.arange(window.start, window.stop), side="right") - 1]
            which, rank = np.divmod(self.rows[window], np.int32(self.n))  # of all trees of all slices
            up = which + which // np.int32(self.slices) * np.int32(self.slices)
            chunk = which * np.int32(self.depth) + (np.int32(now) - begins)
            yield Due(self.rows[window], rank, up, chunk, begins, None if self.child is None else self.child[window])


class Groups(NamedTuple):
    """`climb`, `descend`: by color; `hear`, `add`: by number of children, from 1 on; `end`: those that hear their parent.

    Of each row its parent, which child it is, and the buffer that it sends up. Rows below the root descend from round `height` on.
    """

    climb: list[Group]
    descend: list[Group]
    hear: list[Group]
    add: list[Group]
    end: Group
    parent: np.ndarray
    side: np.ndarray
    own: np.ndarray
    height: int
    slices: int


def _groups(at: Trees, n: int, depth: int, height: int) -> Groups:
    def group(which: np.ndarray, begins: np.ndarray, child: np.ndarray | None = None) -> Group:
        rows = np.flatnonzero(which).astype(np.int32)
        rows = rows[np.argsort(begins[rows], kind="stable")]
        begin, where = np.unique(begins[rows], return_index=True)
        return Group(rows, begin, np.append(where, len(rows)), n, at.slices, depth, None if child is None else child[rows])

    degree = (at.children >= 0).sum(axis=1, dtype=np.int8)
    own = np.where(degree > 0, np.int8(Buffer.output), np.int8(Buffer.input))
    below, adds, ends = at.parent >= 0, np.int32(height - 1) - at.level, at.level + np.int32(height - 1)
    edges = [below & (at.color == color) for color in (0, 1)]
    return Groups(
        [group(each, adds + np.int32(1)) for each in edges], [group(each, ends) for each in edges],
        [group(degree > side, adds, at.children[:, side]) for side in range(CHILDREN)],
        [group(degree == children + 1, adds) for children in range(CHILDREN)], group(below, ends),
        at.parent, at.side, own, height, at.slices)  # fmt: skip


def _puts(b: Builder, problem: Problem, groups: Groups, now: int) -> None:
    """What goes up in this round, and then what goes down, one color after the other."""
    for color, group in enumerate(groups.climb):
        b.step = ROUND * now + color
        for at in group.due(now):
            b.put(rank=at.rank, peer=groups.parent[at.rows], src=Ref(groups.own[at.rows], at.chunk), channel=at.up,
                  dst=_landing(problem, groups.side[at.rows].astype(np.int32), at.chunk, b.parts))
    for color, group in enumerate(groups.descend):
        b.step = ROUND * now + 2 + color
        for at in group.due(now):
            total, down = b.output[at.chunk], at.up + np.int32(groups.slices)
            # The root goes on in the channel in which it added, so that its sum is there.
            b.put(rank=groups.parent[at.rows], peer=at.rank, src=total, dst=total, sig_channel=down,
                  channel=np.where(at.begins == groups.height, at.up, down))


def _waits(b: Builder, problem: Problem, groups: Groups, now: int) -> None:
    """What has come in this round: sums from the children, which are added, and totals from the parent."""
    b.step = ROUND * now + ROUND - 1
    for group in groups.hear:
        for at in group.due(now):
            b.wait(rank=at.rank, peer=at.child, channel=at.up)
    for more, group in enumerate(groups.add):
        for at in group.due(now):
            landed = [_landing(problem, np.full_like(at.rank, side), at.chunk, b.parts) for side in range(more + 1)]
            b.reduce(rank=at.rank, dst=b.output[at.chunk], srcs=[b.input[at.chunk], *landed], channel=at.up)
    for at in groups.end.due(now):
        b.wait(rank=at.rank, peer=groups.parent[at.rows], channel=at.up + np.int32(groups.slices))
