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

from typing import NamedTuple

import numpy as np

from ..ir import Buffer, Builder, Ref
from ..topo import Topology
from .cost import tree_depth, tree_slices
from .problem import Problem

CHILDREN = 3  # two in the tree of nodes, one in the chain of the node
ROUND = 4  # steps: up and down, in two colors


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
    groups = _groups(trees, depth, height)
    for now in range(depth + 2 * height - 1):
        _puts(b, problem, groups, now)
        _waits(b, problem, groups, now)
    return b


def trees_of(topology: Topology, slices: int) -> Trees:
    """The trees of all slices: over ranks on one node, over nodes with chains inside on several."""
    n = topology.n_ranks
    members = double_trees(n if topology.n_nodes == 1 else topology.n_nodes)
    color = edge_colors(members)
    if topology.n_nodes == 1:
        parents, color = (np.repeat(each[:, None], slices, axis=1) for each in (members, color))
    else:
        parents = np.stack([[_with_chains(topology, nodes, c, slices) for c in range(slices)] for nodes in members])
        color = np.repeat(color[:, None, topology.node_of], slices, axis=1)
    parent = parents.ravel()
    near = (topology.n_nodes > 1) & (topology.node_of[parent] == np.tile(topology.node_of, len(parent) // n))
    row = np.arange(len(parent))
    above = np.where(parent >= 0, row - row % n + parent, -1)
    children, side = _children(above, row % n)
    level, climber = np.zeros(len(parent), np.int64), above
    while (climber >= 0).any():
        level += climber >= 0
        climber = np.where(climber >= 0, above[climber], -1)
    return Trees(slices, row % n, row // n // slices, row // n % slices, parent, children, side, level,
                 np.where(near, row // n // slices, color.ravel()))


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


class Group(NamedTuple):
    """Rows that do one thing with a chunk each in every round from `begins` (ascending) on, and what they need for it, in that order."""

    begins: np.ndarray
    columns: dict[str, np.ndarray]
    depth: int

    def due(self, now: int) -> dict[str, np.ndarray]:
        """The columns of those that do it in round `now`; `chunk` is the one that they do it with. Views, but for that."""
        low, high = np.searchsorted(self.begins, (now - self.depth + 1, now + 1))
        found = {name: column[low:high] for name, column in self.columns.items()}
        return {**found, "chunk": found["chunk"] + np.int32(now)}


class Groups(NamedTuple):
    """`climb`, `descend`: by color; `hear`, `add`: by number of children, from 1 on; `end`: those that hear their parent."""

    climb: list[Group]
    descend: list[Group]
    hear: list[Group]
    add: list[Group]
    end: Group


def _groups(at: Trees, depth: int, height: int) -> Groups:
    up = 2 * at.tree * at.slices + at.slice
    degree = (at.children >= 0).sum(axis=1)
    first = (at.tree * at.slices + at.slice) * depth

    def group(which: np.ndarray, begins: np.ndarray, **columns: np.ndarray) -> Group:
        rows = np.flatnonzero(which)
        rows = rows[np.argsort(begins[rows], kind="stable")]
        columns |= {"rank": at.rank, "chunk": first - begins}
        return Group(begins[rows], {name: column[rows].astype(np.int32) for name, column in columns.items()}, depth)

    own = np.where(degree > 0, int(Buffer.output), int(Buffer.input))
    # The root goes on in the channel in which it added, so that its sum is there.
    down, begun = up + at.slices, np.where(at.level == 1, up, up + at.slices)
    below, adds = at.parent >= 0, height - at.level - 1
    edges = [below & (at.color == color) for color in (0, 1)]
    return Groups(
        [group(each, adds + 1, parent=at.parent, up=up, side=at.side, own=own) for each in edges],
        [group(each, height + at.level - 1, parent=at.parent, down=down, begun=begun) for each in edges],
        [group(degree > side, adds, up=up, child=at.children[:, side]) for side in range(CHILDREN)],
        [group(degree == children + 1, adds, up=up) for children in range(CHILDREN)],
        group(below, height + at.level - 1, parent=at.parent, down=down))  # fmt: skip


def _puts(b: Builder, problem: Problem, groups: Groups, now: int) -> None:
    """What goes up in this round, and then what goes down, one color after the other."""
    for color, group in enumerate(groups.climb):
        at, b.step = group.due(now), ROUND * now + color
        b.put(rank=at["rank"], peer=at["parent"], src=Ref(at["own"], at["chunk"]), channel=at["up"],
              dst=_landing(problem, at["side"], at["chunk"], b.parts))
    for color, group in enumerate(groups.descend):
        at, b.step = group.due(now), ROUND * now + 2 + color
        total = b.output[at["chunk"]]
        b.put(rank=at["parent"], peer=at["rank"], src=total, dst=total, sig_channel=at["down"], channel=at["begun"])


def _waits(b: Builder, problem: Problem, groups: Groups, now: int) -> None:
    """What has come in this round: sums from the children, which are added, and totals from the parent."""
    b.step = ROUND * now + ROUND - 1
    for group in groups.hear:
        at = group.due(now)
        b.wait(rank=at["rank"], peer=at["child"], channel=at["up"])
    for more, group in enumerate(groups.add):
        at = group.due(now)
        landed = [_landing(problem, np.full_like(at["rank"], side), at["chunk"], b.parts) for side in range(more + 1)]
        b.reduce(rank=at["rank"], dst=b.output[at["chunk"]], srcs=[b.input[at["chunk"]], *landed], channel=at["up"])
    at = groups.end.due(now)
    b.wait(rank=at["rank"], peer=at["parent"], channel=at["down"])
