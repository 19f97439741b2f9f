"""Dispatch and combine of a mixture of experts, as a rank calls them: what a router decided becomes an exchange, and comes back.

Is: packing of tokens for their experts' ranks, `dedup` over rails, and the sum on the way back (NCCLX, arXiv 2510.20171, section on
AllToAllv with metadata). Is not: a router, nor the experts. What it must equal, for all ranks at once, is moe_reference.py.

    direct   rank s ──a row for each rank that has an expert of the token──► rank d
    dedup    rank s ──a row for each NODE that has one──► rail peer ──bitmap: to whom in the node──► rank d
                     over the rails                      (same place in its node)    shared memory

A row is [token][bitmap u64][sender i32][token's index i32][experts i32 × k][weights f32 × k]. Rows of a rank lie in the order of the
ranks they came from, dedup: of the rail peers they came from, within one of those of the nodes, and then of token indices.

Combine goes the same way back: a rank sums what its experts made of a token (with weights), dedup: its rail peer adds up the ranks of
its node, in their order; the sender adds up what comes, in order. 16-bit floats are added in float32 and rounded once at each of these.

Invariants: a token goes at most once to a rank, dedup: at most once over the rails to a node; sums have one order, so the same
routing gives the same bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..errors import DtypeError, ShapeError, UnsupportedError, UsageError
from ..ir import collectives
from .buffers import as_array
from .exchange import PersistentExchange

MAX_LOCAL = 64  # ranks of a node: bits of the bitmap


class Dispatched(NamedTuple):
    """The tokens that have an expert on this rank, each once."""

    tokens: np.ndarray  # [n, hidden]
    experts: np.ndarray  # int32[n, k]: those of this rank; -1 where one of the k is elsewhere
    weights: np.ndarray  # float32[n, k]
    senders: np.ndarray  # int32[n]: the rank each came from
    indices: np.ndarray  # int32[n]: which token of that rank it was


class Placement(NamedTuple):
    """Which rank has which expert, and how ranks lie on nodes."""

    owner: np.ndarray  # int32[experts]
    node_of: np.ndarray  # int32[ranks]
    local_of: np.ndarray  # int32[ranks]: the place of each in its node

    @property
    def n_nodes(self) -> int:
        """Nodes."""
        return int(self.node_of.max()) + 1

    def ranks_of(self, node: int) -> np.ndarray:
        """The ranks of a node, by place."""
        return np.flatnonzero(self.node_of == node)

    def destinations(self, experts: np.ndarray) -> np.ndarray:
        """bool[tokens, ranks]: who has an expert of a token."""
        wanted = np.zeros((len(experts), len(self.node_of)), bool)
        token, slot = np.nonzero(experts >= 0)
        wanted[token, self.owner[experts[token, slot]]] = True
        return wanted

    def bitmaps(self, wanted: np.ndarray) -> np.ndarray:
        """u64[tokens, nodes]: bit l of a node is set where its rank at place l is wanted."""
        found = np.zeros((len(wanted), self.n_nodes), np.uint64)
        for rank, (node, local) in enumerate(zip(self.node_of, self.local_of, strict=True)):
            found[:, node] |= wanted[:, rank].astype(np.uint64) << np.uint64(local)
        return found


def placement_of(experts: int, node_of: np.ndarray) -> Placement:
    """Experts in equal runs: rank r of n has those e with e · n // experts = r."""
    node_of = np.asarray(node_of, np.int32)
    n = len(node_of)
    local = np.array([int((node_of[:rank] == node_of[rank]).sum()) for rank in range(n)], np.int32)
    return Placement((np.arange(experts) * n // experts).astype(np.int32), node_of, local)


def row_type(hidden: int, dtype: np.dtype[Any], k: int) -> np.dtype[Any]:
    """What travels of a token; a multiple of 8 bytes, so that fields of neighbouring rows are aligned."""
    token = hidden * dtype.itemsize
    meta = -(-token // 8) * 8
    fields = ("token", "bitmap", "sender", "index", "experts", "weights")
    formats = [(dtype, (hidden,)), np.uint64, np.int32, np.int32, (np.int32, (k,)), (np.float32, (k,))]
    offsets = [0, meta, meta + 8, meta + 12, meta + 16, meta + 16 + 4 * k]
    names = {"names": list(fields), "formats": formats, "offsets": offsets, "itemsize": meta + 16 + 8 * k}
    return np.dtype(names)  # type: ignore[call-overload]


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What sums of `dtype` are added in."""
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


class MoE:
    """Dispatch and combine among the ranks of a Communicator; made by `Communicator.moe`, by all ranks alike.

    experts: how many there are, in equal runs over ranks. top_k: experts of a token. hidden: elements of a token. tokens: how many a
    rank has at most. dtype: "float32", "bfloat16", "float16" or "float64". dedup: a token goes once to each node (default: where there
    are several nodes, of equally many ranks). Cost of a dispatch: two exchanges with dedup, else one; a combine costs the same.
    """

    def __init__(
        self, comm: Any, *, experts: int, top_k: int, hidden: int, tokens: int, dtype: str = "float32", dedup: bool | None = None
    ) -> None:
        if min(experts, top_k, hidden, tokens) < 1 or dtype not in collectives.FLOATS:
            raise UsageError(
                f"moe: experts {experts}, top_k {top_k}, hidden {hidden}, tokens {tokens}, dtype {dtype!r}: expected 1 or more of each, "
                f"and one of {', '.join(collectives.FLOATS)}."
            )
        self._comm, self.rank = comm, comm.rank
        self.placement = placement_of(experts, comm.topology.node_of)
        self.experts, self.top_k, self.hidden, self.tokens = experts, top_k, hidden, tokens
        self.dtype = collectives.numpy_dtype(dtype)
        self.row = row_type(hidden, self.dtype, top_k)
        self.dedup = self._dedup(dedup)
        self._hops = [Hop(comm, group, rows, capacity, self.row, hidden, self.dtype) for group, rows, capacity in self._groups()]
        self._came = -1  # rows of the last dispatch; -1: there is none to combine

    def _dedup(self, wanted: bool | None) -> bool:
        sizes = np.bincount(self.placement.node_of)
        alike = len(sizes) > 1 and bool((sizes == sizes[0]).all()) and sizes[0] <= MAX_LOCAL
        if wanted and not alike and len(sizes) > 1:
            raise UnsupportedError(
                f"moe(dedup=True): nodes have {sizes.tolist()} ranks; a rail peer needs equally many on each, at most {MAX_LOCAL}. "
                "Use dedup=False."
            )
        return alike if wanted is None else bool(wanted) and len(sizes) > 1

    def _groups(self) -> list[tuple[list[int], int, int]]:
        """(ranks, rows that this rank sends at most, rows it takes of each) of every hop."""
        where, n = self.placement, len(self.placement.node_of)
        if not self.dedup:
            return [(list(range(n)), n * self.tokens, self.tokens)]
        rail = np.flatnonzero(where.local_of == where.local_of[self.rank]).tolist()
        node = where.ranks_of(int(where.node_of[self.rank])).tolist()
        arriving = len(rail) * self.tokens
        return [(rail, arriving, self.tokens), (node, len(node) * arriving, arriving)]

    def dispatch(self, x: Any, experts: Any, weights: Any, *, timeout: Any = None) -> Dispatched:
        """Sends each token to the ranks of its experts. Returns Dispatched: views that hold until the next dispatch.

        x: [n, hidden], n up to `tokens`. experts: integers[n, k], -1 for none. weights: float32[n, k].
        """
        tokens, chosen, weights = self._checked(x, experts, weights)
        wanted = self.placement.destinations(chosen)
        rows = np.zeros(len(tokens), self.row)
        rows["token"], rows["experts"], rows["weights"] = tokens, chosen, weights
        rows["sender"], rows["index"] = self.rank, np.arange(len(tokens))
        first = self._hops[0]
        if self.dedup:
            bitmaps = self.placement.bitmaps(wanted)
            parts = [np.flatnonzero(bitmaps[:, node]) for node in range(self.placement.n_nodes)]
            marks = [bitmaps[part, node] for node, part in enumerate(parts)]
            arrived = first.go(rows, parts, marks, timeout=timeout)
            bits = arrived["bitmap"]
            local = [np.flatnonzero(bits >> np.uint64(place) & np.uint64(1)) for place in range(len(self._hops[1].exchange.group))]
            arrived = self._hops[1].go(arrived, local, timeout=timeout)
        else:
            arrived = first.go(rows, [np.flatnonzero(wanted[:, rank]) for rank in range(wanted.shape[1])], timeout=timeout)
        self._came = len(arrived)
        here = np.where(arrived["experts"] >= 0, self.placement.owner[arrived["experts"]] == self.rank, False)
        mine = np.where(here, arrived["experts"], np.int32(-1))
        return Dispatched(arrived["token"], mine, arrived["weights"], arrived["sender"], arrived["index"])

    def combine(self, y: Any, *, timeout: Any = None) -> np.ndarray:
        """What the last dispatch sent out comes back, added up: [n, hidden], by token; zero for one without an expert.

        y: [rows of Dispatched, hidden], what this rank's experts made of each token, summed with their weights.
        """
        array = as_array(y, "y")
        if self._came < 0:
            raise UsageError("moe.combine: there is no dispatch that was not combined yet.", rank=self.rank)
        if array.shape != (self._came, self.hidden) or array.dtype != self.dtype:
            raise ShapeError(
                f"y of moe.combine on rank {self.rank}: expected {self.dtype} of shape {(self._came, self.hidden)}, found {array.dtype} "
                f"of shape {array.shape}.", rank=self.rank,
            )  # fmt: skip
        self._came = -1
        for hop in reversed(self._hops):
            array = hop.back(array, timeout=timeout)
        return array

    def _checked(self, x: Any, experts: Any, weights: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        tokens, chosen, factors = as_array(x, "x"), np.asarray(experts), np.asarray(weights)
        n = len(tokens) if tokens.ndim else -1
        if tokens.dtype != self.dtype or not np.issubdtype(chosen.dtype, np.integer):
            raise DtypeError(
                f"moe.dispatch on rank {self.rank}: expected tokens of {self.dtype} and experts of integers, found {tokens.dtype} and "
                f"{chosen.dtype}.", rank=self.rank,
            )  # fmt: skip
        fits = tokens.shape == (n, self.hidden) and chosen.shape == factors.shape == (n, self.top_k)
        if not fits or n > self.tokens:
            raise ShapeError(
                f"moe.dispatch on rank {self.rank}: expected x of shape (n, {self.hidden}) with n up to {self.tokens}, experts and weights "
                f"of shape (n, {self.top_k}); found {tokens.shape}, {chosen.shape} and {factors.shape}.", rank=self.rank,
            )  # fmt: skip
        if chosen.size and (chosen.min() < -1 or chosen.max() >= self.experts):
            raise UsageError(
                f"moe.dispatch on rank {self.rank}: experts from {chosen.min()} to {chosen.max()}, expected -1 (none) to "
                f"{self.experts - 1}.",
                rank=self.rank,
            )
        return tokens, chosen.astype(np.int32), factors.astype(np.float32)

    def row_nbytes(self) -> int:
        """Bytes of a token on its way out."""
        return self.row.itemsize

    def free(self) -> None:
        """Gives its memory back, once all ranks have called this; idempotent."""
        for hop in self._hops:
            hop.free()

    def __enter__(self) -> MoE:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            self.free()


class Hop:
    """Rows out to a group of ranks, and what becomes of them back: two persistent exchanges. Keeps who got which rows."""

    def __init__(
        self, comm: Any, group: list[int], rows: int, capacity: int, row: np.dtype[Any], hidden: int, dtype: np.dtype[Any]
    ) -> None:
        n = len(group)
        self._row, self._dtype, self._hidden = row, dtype, hidden
        self.exchange: PersistentExchange = comm.all_to_allv_init((rows, row.itemsize), np.uint8, n, capacity=capacity, group=group)
        self._back: PersistentExchange = comm.all_to_allv_init((n * capacity, hidden), dtype, n, capacity=capacity, group=group)
        self._ids, self._blocks = np.arange(n), np.ones(n, np.int64)
        self._parts: list[np.ndarray] = []
        self._n_rows, self._came = 0, np.zeros(n, np.int64)

    def go(
        self, rows: np.ndarray, parts: list[np.ndarray], marks: list[np.ndarray] | None = None, *, timeout: Any = None
    ) -> np.ndarray:
        """Sends rows[parts[p]] to the rank at place p, with those bitmaps; returns what came, by place."""
        send = self.exchange.send.reshape(-1).view(self._row)
        at = 0
        for place, part in enumerate(parts):
            send[at : at + len(part)] = rows[part]
            if marks is not None:
                send["bitmap"][at : at + len(part)] = marks[place]
            at += len(part)
        lengths = np.array([len(part) for part in parts], np.int64)
        came = self.exchange.exec(lengths=lengths, ids=self._ids, blocks=self._blocks, timeout=timeout)
        self._parts, self._n_rows, self._came = parts, len(rows), came.rows.copy()
        return _behind_each_other(came).reshape(-1).view(self._row)

    def back(self, values: np.ndarray, *, timeout: Any = None) -> np.ndarray:
        """Sends values, of rows as they came, to where those came from; returns the sums, by row as it was sent."""
        self._back.send[: len(values)] = values
        came = self._back.exec(lengths=self._came, ids=self._ids, blocks=self._blocks, timeout=timeout)
        total = np.zeros((self._n_rows, self._hidden), accumulator(self._dtype))
        for place, part in enumerate(self._parts):
            total[part] += came.buffers[place, : len(part)]
        return total.astype(self._dtype, copy=False)

    def free(self) -> None:
        """Both exchanges."""
        self.exchange.free()
        self._back.free()


def _behind_each_other(came: Any) -> np.ndarray:
    return np.concatenate([came.buffers[place, :rows] for place, rows in enumerate(came.rows)])
