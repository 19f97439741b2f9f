"""The noun Topology: which rank is on which node, its NICs, and every link's rate and latency.

    rank r ── fabric_tx(r) ──► fabric of the node ──► fabric_rx(q) ── rank q          same node
    rank r ── nic_tx(node, i) ──► network ──► nic_rx(node', j) ── rank q              another node
    rank r ── local(r)                                                              its own memory engine

Is: a frozen value with numpy columns, and the two questions every worker asks of it, `nic_of` and `path`. Is not: a
routing or queueing model; the network between NICs is non-blocking, or what `network` says (network.py). Invariants: rates are whole
bytes/s, latencies whole ps; columns are read-only; link ids are fabric_tx 0…n, fabric_rx n…2n, local 2n…3n, then nic_tx
and nic_rx, NIC i of node k at k * nics_per_node + i, then those between switches. Half of a latency is charged at each end of a
path, so that a path between equal ends costs exactly the latency that was given.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from .. import views
from ..arguments import amount, flag, instance, named, number, whole, wholes
from ..errors import UsageError
from ..units import Duration
from . import files, network, places
from .network import Level, Network
from .rates import GBIT, GBYTE, INSTANT, Rate, parse_latency, parse_rate, scaled, whole_list

# What follows from where ranks and NICs are, whatever their rates.
_OF_PLACES = ("n_nodes", "ranks_per_node", "link_in_node", "_near", "_texts")
# Of one rank: a NIC near it; the only far NIC it uses; each of several far ones; each NIC when near and far are used together.
PATH_LIMITS = ("near", "far", "far_each", "mixed_each")
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]


class LinkKind(IntEnum):
    """What a link is."""

    fabric_tx = 0  # from a rank into the fabric of its node
    fabric_rx = 1  # from the fabric of the node to a rank
    local = 2  # a rank's own memory: copies and reductions
    nic_tx = 3  # from a node into the network
    nic_rx = 4  # from the network to a node
    uplink = 5  # from a switch to the tier above
    downlink = 6  # from there to a switch


@dataclasses.dataclass(frozen=True, eq=False)
class Links:
    """Every link as a row: kind u8, node i32, owner i32 (rank, or NIC of the node), bytes_per_s i64, latency_ps i64.

    Between switches, node is the switch of its tier, owner the number of the uplink there."""

    kind: npt.NDArray[np.uint8]
    node: I32
    owner: I32
    bytes_per_s: I64
    latency_ps: I64

    def __len__(self) -> int:
        return len(self.kind)


def duration_ps(nbytes: int, bytes_per_s: int) -> int:
    """Whole picoseconds that `nbytes` need at `bytes_per_s`, rounded up; 0 for no bytes."""
    return -(-nbytes * 10**12 // bytes_per_s) if nbytes and bytes_per_s < INSTANT else 0


def _column(values: Any, length: int, dtype: Any, what: str) -> npt.NDArray[Any]:
    """A read-only column of `length`: `values` copied, or one number repeated."""
    try:
        array = np.array(np.broadcast_to(np.asarray(values, dtype=dtype), (length,)))
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(f"topology column {what}: expected one number or {length} of them ({error}).") from None
    array.setflags(write=False)
    return array


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Topology:
    """Nodes, ranks, NICs, rails, and the rate and latency of each link.

    Most people want `Topology.cluster` or `Topology.preset`; this constructor takes the columns themselves (a number
    stands for a whole column), so that nodes may hold different numbers of ranks and every link its own rate.

    node_of: i32[n_ranks], node of each rank; nodes are numbered from 0 without gaps. local_of: i32[n_ranks], index of
    the rank in its node (default: in rank order). nic_bytes_per_s: i64[n_nodes * nics_per_node]; 0 says that this NIC
    is absent or down, and `nic_of` goes round it. rails: NIC i of every node is on leaf switch i. emulated: rates
    are imposed by the lab (shaped), not those of real hardware. sources: where each number comes from.
    path_limits: bytes/s that one rank gets of a NIC over its path inside the node, by PATH_LIMITS; what is not given does
    not limit. Planners read it, links do not. network: the switches between nodes (network.py); None: non-blocking.

    Raises UsageError if columns do not fit or a rate is not usable.
    """

    name: str
    node_of: I32
    nics_per_node: int
    nic_bytes_per_s: I64
    nic_latency_ps: I64
    fabric_bytes_per_s: I64
    fabric_latency_ps: I64
    local_bytes_per_s: I64
    local_of: I32 = None  # type: ignore[assignment]
    rails: bool = True
    device: str = "cpu"
    emulated: bool = True
    nic_names: tuple[str, ...] = ()
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)
    path_limits: Mapping[str, int] = dataclasses.field(default_factory=dict)
    network: Network | None = None

    # -- construction

    def __post_init__(self) -> None:
        node_of = np.asarray(self.node_of)
        if node_of.ndim != 1 or not len(node_of) or not np.issubdtype(node_of.dtype, np.integer):
            raise UsageError(f"node_of: expected the node of each of at least 1 rank, found {self.node_of!r}.")
        n, n_nodes = len(node_of), int(node_of.max()) + 1
        if node_of.min() < 0 or n_nodes > n or not np.bincount(node_of, minlength=n_nodes).all():
            raise UsageError(f"node_of: expected nodes 0 to {n_nodes - 1} with at least 1 rank each; number nodes without gaps.")
        nics = int(self.nics_per_node) * n_nodes
        if self.nics_per_node < 0 or (n_nodes > 1 and not nics):
            raise UsageError(f"nics_per_node {self.nics_per_node}: expected 1 or more for {n_nodes} nodes.")
        lengths = {"nic_bytes_per_s": nics, "nic_latency_ps": nics, "fabric_bytes_per_s": n,
                   "fabric_latency_ps": n, "local_bytes_per_s": n}
        for column, length in lengths.items():
            object.__setattr__(self, column, _column(getattr(self, column), length, np.int64, column))
            lowest = 1 if column in ("fabric_bytes_per_s", "local_bytes_per_s") else 0
            if length and getattr(self, column).min() < lowest:
                raise UsageError(f"{column}: expected {lowest} or more everywhere, found {getattr(self, column).min()}.")
        local_of = places.local_indices(node_of) if self.local_of is None else _column(self.local_of, n, np.int32, "local_of")
        places.check_local(node_of, local_of)
        object.__setattr__(self, "node_of", _column(node_of, n, np.int32, "node_of"))
        object.__setattr__(self, "local_of", _column(local_of, n, np.int32, "local_of"))
        object.__setattr__(self, "nics_per_node", int(self.nics_per_node))
        object.__setattr__(self, "nic_names", tuple(self.nic_names))
        object.__setattr__(self, "sources", dict(instance(self.sources, "sources", Mapping, "texts by name")))
        limits = instance(self.path_limits, "path_limits", Mapping, f"bytes/s for some of {', '.join(PATH_LIMITS)}")
        object.__setattr__(self, "path_limits", {named(key, "path_limits", PATH_LIMITS): int(amount(rate, f"path_limits {key!r}", least=1))
                                                 for key, rate in limits.items()})  # fmt: skip
        if self.nic_names and len(self.nic_names) != nics:
            raise UsageError(f"nic_names: expected {nics} names, found {len(self.nic_names)}.")
        if self.network is not None:
            network.check(self.network, n_nodes, self.nics_per_node)

    @classmethod
    def cluster(
        cls,
        nodes: int = 2,
        gpus_per_node: Union[int, Sequence[int]] = 4,
        nics_per_node: int = 4,
        nic_gbits_per_s: Rate = 8,
        nic_latency: Duration = "5us",
        fabric_gbytes_per_s: Rate = 4,
        fabric_latency: Duration = "1us",
        rails: bool = True,
        device: str = "cpu",
        *,
        local_gbytes_per_s: Rate = 8,
        name: str = "cluster",
        emulated: bool = True,
        sources: Mapping[str, str] | None = None,
    ) -> Topology:
        """Equal nodes, ranks numbered node after node.

        gpus_per_node: ranks of a node, or a list with one number per node. Rates: a number in the unit of the name, or
        text with its own ("400Gb/s"); latencies: seconds or text ("5us"), one way. local_gbytes_per_s: rate at which a
        rank copies its own memory; math.inf: copies and reductions take no time.

            >>> Topology.cluster(nodes=2, gpus_per_node=4).n_ranks
            8
        """
        sizes, nics_per_node = whole_list(gpus_per_node, nodes), whole(nics_per_node, "nics_per_node", 0, 2**16)
        nic_rate = parse_rate(nic_gbits_per_s, GBIT, "nic_gbits_per_s")
        if nics_per_node and not nic_rate:
            raise UsageError("nic_gbits_per_s 0: expected more than 0; for nodes without NICs give nics_per_node=0.")
        return cls(
            name=name,
            node_of=np.repeat(np.arange(len(sizes), dtype=np.int32), sizes),
            nics_per_node=nics_per_node,
            nic_bytes_per_s=nic_rate,  # type: ignore[arg-type]
            nic_latency_ps=parse_latency(nic_latency, "nic_latency"),  # type: ignore[arg-type]
            fabric_bytes_per_s=parse_rate(fabric_gbytes_per_s, GBYTE, "fabric_gbytes_per_s"),  # type: ignore[arg-type]
            fabric_latency_ps=parse_latency(fabric_latency, "fabric_latency"),  # type: ignore[arg-type]
            local_bytes_per_s=(INSTANT if isinstance(local_gbytes_per_s, float) and local_gbytes_per_s == math.inf else
                               parse_rate(local_gbytes_per_s, GBYTE, "local_gbytes_per_s")),  # type: ignore[arg-type]
            rails=flag(rails, "rails"), device=device, emulated=emulated, sources={} if sources is None else sources,
        )

    @classmethod
    def preset(cls, name: str, nodes: int | None = None) -> Topology:
        """`nodes` of a known machine ("h100", "gb200_nvl72", "llama3_24k", …); `.sources` says where numbers come from.

        Raises UsageError with the nearest name if there is none."""
        from .presets import build

        return build(name, nodes)

    @classmethod
    def discover(cls, root: Union[str, os.PathLike[str]] = "/", ranks: int | None = None) -> Topology:
        """This machine as one node with its real NICs that are up; `ranks` of it (default: GPUs, else cores)."""
        from .discover import discover

        return discover(root).topology(ranks)

    def replace(self, **changes: Any) -> Topology:
        """A copy with some columns changed, by the names of the constructor."""
        unknown = sorted(set(changes) - {field.name for field in dataclasses.fields(self)})
        if unknown:
            known = ", ".join(field.name for field in dataclasses.fields(self))
            raise UsageError(f"replace: no column {unknown[0]!r}. Known: {known}.")
        return dataclasses.replace(self, **changes)

    def slow(self, factor: float, *, nic: tuple[int, int] | None = None, rank: int | None = None) -> Topology:
        """A copy in which NIC `(node, index)`, or the fabric and memory of `rank`, is `factor` times slower (below 1: faster)."""
        if not 0 < number(factor, "factor", "a number above 0") < np.inf or (nic is None) == (rank is None):
            raise UsageError(f"slow(factor={factor}): expected a finite factor above 0 and either nic=(node, index) or rank=.")
        if nic is not None:
            return self._with_nic_rates(scaled(self.nic_bytes_per_s, self._nic_row(nic), factor))
        row = whole(rank, "rank", 0, self.n_ranks - 1)
        return self.replace(fabric_bytes_per_s=scaled(self.fabric_bytes_per_s, row, factor),
                            local_bytes_per_s=scaled(self.local_bytes_per_s, row, factor))

    def without(self, *nics: tuple[int, int]) -> Topology:
        """A copy in which each NIC `(node, index)` given is gone; its ranks use the other NICs of the node."""
        rates = np.array(self.nic_bytes_per_s)
        for nic in nics:
            rates[self._nic_row(nic)] = 0
        return self._with_nic_rates(rates)

    def _with_nic_rates(self, rates: I64) -> Topology:
        """A copy with other NICs' rates, 0 or more; what does not depend on them is the same arrays, neither checked nor found again."""
        rates.setflags(write=False)
        own, links = {name: getattr(self, name) for name in (*_OF_PLACES, *(f.name for f in dataclasses.fields(self)))}, self.links
        nics, first = len(rates), 3 * self.n_ranks
        by_link = np.array(links.bytes_per_s)
        by_link[first : first + nics] = by_link[first + nics : first + 2 * nics] = rates
        by_link.setflags(write=False)
        other = object.__new__(type(self))
        # Its dicts are its own: they alone are no frozen values.
        other.__dict__.update(own, nic_bytes_per_s=rates, links=dataclasses.replace(links, bytes_per_s=by_link),
                              sources=dict(self.sources), path_limits=dict(self.path_limits))
        return other

    def with_network(self, *levels: Level, routing: str = "ecmp", seed: int = 0) -> Topology:
        """A copy whose nodes, in order of their numbers, hang on the switches of `levels`, from the NICs up; routing, seed: see Network.

            >>> Topology.cluster(nodes=8).with_network(Level("leaf", nodes=4, uplinks=2), Level("spine")).network.n_nodes
            8
        """
        node_rate = int(self.nic_bytes_per_s.reshape(self.n_nodes, -1).sum(axis=1).max())
        return self.replace(network=network.build(levels, self.n_nodes, node_rate, self.nics_per_node, routing, seed))

    def subset(self, ranks: Sequence[int]) -> Topology:
        """The topology of some ranks, which become 0, 1, 2, … in the order given; nodes without a rank are left out."""
        from .subset import subset

        return subset(self, ranks)

    def nic_at(self, nic: tuple[int, int]) -> tuple[int, int]:
        """(node, index) as ints, of a NIC that is there; or UsageError."""
        return places.nic_at(self, nic)

    def _nic_row(self, nic: tuple[int, int]) -> int:
        node, index = self.nic_at(nic)
        return node * self.nics_per_node + index

    # -- sizes and rates

    @property
    def n_ranks(self) -> int:
        return len(self.node_of)

    @cached_property
    def n_nodes(self) -> int:
        return int(self.node_of.max()) + 1

    @cached_property
    def ranks_per_node(self) -> I64:
        """i64[n_nodes]."""
        return np.bincount(self.node_of, minlength=self.n_nodes)

    @property
    def gpus_per_node(self) -> int:
        """Ranks of a node; of the largest one where they differ."""
        return int(self.ranks_per_node.max())

    @property
    def nic_gbits(self) -> npt.NDArray[np.float64]:
        """Gb/s of each NIC, f64[n_nodes * nics_per_node]."""
        return self.nic_bytes_per_s * 8 / 1e9

    nic_gbits_per_s = nic_gbits

    @property
    def fabric_gbytes_per_s(self) -> npt.NDArray[np.float64]:
        """GB/s of each rank into the fabric of its node, f64[n_ranks]."""
        return self.fabric_bytes_per_s / 1e9

    @property
    def local_gbytes_per_s(self) -> npt.NDArray[np.float64]:
        """GB/s at which each rank copies its own memory, f64[n_ranks]."""
        return self.local_bytes_per_s / 1e9

    def ranks_of(self, node: int) -> I32:
        """Ranks of a node by local index, i32[ranks of the node]."""
        ranks = np.flatnonzero(self.node_of == whole(node, "node", 0, self.n_nodes - 1))
        return ranks[np.argsort(self.local_of[ranks])].astype(np.int32)

    # -- links and paths

    @cached_property
    def links(self) -> Links:
        """Every link, row index = link id."""
        ranks, nodes = np.arange(self.n_ranks), np.repeat(np.arange(self.n_nodes), self.nics_per_node)
        nics = np.tile(np.arange(self.nics_per_node), self.n_nodes)
        n, k = len(ranks), len(nics)
        kinds = np.repeat(np.arange(5), [n, n, n, k, k])
        fabric, nic, zero = self.fabric_latency_ps, self.nic_latency_ps, np.zeros(n, np.int64)
        columns: dict[str, npt.NDArray[Any]] = {
            "kind": kinds.astype(np.uint8),
            "node": np.concatenate([self.node_of] * 3 + [nodes] * 2).astype(np.int32),
            "owner": np.concatenate([ranks] * 3 + [nics] * 2).astype(np.int32),
            "bytes_per_s": np.concatenate([self.fabric_bytes_per_s] * 2 + [self.local_bytes_per_s] + [self.nic_bytes_per_s] * 2),
            "latency_ps": np.concatenate([fabric - fabric // 2, fabric // 2, zero, nic - nic // 2, nic // 2]),
        }
        if self.network is not None:
            more = self.network.link_columns(self.nics_per_node)
            more["kind"] = np.where(more.pop("up"), LinkKind.uplink, LinkKind.downlink).astype(np.uint8)
            columns = {name: np.concatenate([column, more[name]]) for name, column in columns.items()}
        for column in columns.values():
            column.setflags(write=False)
        return Links(**columns)

    @cached_property
    def link_in_node(self) -> I32:
        """Each link's number among those of its node, i32[links]: ranks' fabric_tx, fabric_rx, local, then nic_tx, nic_rx."""
        return places.link_in_node(self)

    def by_node(self, place: npt.NDArray[Any]) -> I64:
        """All ranks, node after node, in a node by `place`[rank], which numbers its ranks 0, 1, 2, …; i64[n_ranks]."""
        return places.by_node(self.node_of, place)

    @cached_property
    def _near(self) -> tuple[I64, I64]:
        """(first, number): NICs first[r] up to first[r] + number[r] are near rank r, up or not."""
        m, size = self.nics_per_node, self.ranks_per_node[self.node_of]
        first = self.local_of.astype(np.int64) * m // size
        return first, np.maximum((self.local_of.astype(np.int64) + 1) * m // size - first, min(m, 1))

    @cached_property
    def _spare(self) -> tuple[I64, I64, I64, I64]:
        """(begin, count, listed, turn): for a NIC that is down, rank r takes listed[begin[r] : begin[r] + count[r]] in turn.

        Near NICs first, then the others, beginning at the rank's own index so that ranks spread; turn[node, i] is the place of NIC i
        among those of its node that are down, so that several lost NICs do not all go to one.
        """
        first, number = self._near
        up = self.nic_bytes_per_s.reshape(self.n_nodes, self.nics_per_node) > 0
        begin, count, listed = np.zeros(self.n_ranks, np.int64), np.zeros(self.n_ranks, np.int64), []
        for rank in np.flatnonzero(~up.all(axis=1)[self.node_of]):
            alive = np.flatnonzero(up[self.node_of[rank]])
            own = (alive >= first[rank]) & (alive < first[rank] + number[rank])
            others = alive[~own]
            begin[rank], count[rank] = len(listed), len(alive)
            listed += alive[own].tolist() + np.roll(others, -int(self.local_of[rank]) % max(len(others), 1)).tolist()
        return begin, count, np.array(listed, np.int64), np.cumsum(~up, axis=1) - 1

    def nic_of(self, rank: npt.ArrayLike, channel: npt.ArrayLike = 0) -> npt.NDArray[np.int32]:
        """Index in its node of the NIC that `rank` uses on `channel`; both broadcast; i32.

        With at least as many NICs as ranks, a rank has NICs floor(l·m/g) up to floor((l+1)·m/g) of its m NICs and g ranks, and
        channels take turns on them; with fewer, NIC floor(l·m/g). Where that NIC is down the channels that would use it take turns
        on the others that are up, the rank's own first; all other channels stay where they are. Raises UsageError where a node has
        no NIC left.
        """
        rank, channel = np.broadcast_arrays(self._checked(rank, "rank"), wholes(channel, "channel", 0))
        if not self.nics_per_node:
            raise UsageError(f"topology {self.name!r} has no NICs; give it some, or keep traffic inside the node.")
        first, number = self._near
        nic = first[rank]
        if (number > 1).any():
            nic += channel % number[rank]
        if self.nic_bytes_per_s.all():
            return nic.astype(np.int32)
        down = self.nic_bytes_per_s[self.node_of[rank].astype(np.int64) * self.nics_per_node + nic] == 0
        if down.any():
            begin, count, listed, turn = self._spare
            who, node = rank[down], self.node_of[rank[down]]
            if not count[who].all():
                raise UsageError(f"node {node[count[who] == 0].flat[0]} of topology {self.name!r} has no NIC that is up; give it one, or "
                                 "keep traffic inside the node.")  # fmt: skip
            nic = np.array(nic)
            nic[down] = listed[begin[who] + (channel[down] // number[who] + turn[node, nic[down]]) % count[who]]
        return nic.astype(np.int32)

    def path(self, src: npt.ArrayLike, dst: npt.ArrayLike, channel: npt.ArrayLike = 0) -> I32:
        """Links from rank `src` to rank `dst` on `channel`, i32[..., 2]; all three broadcast.

        In a node: fabric_tx(src), fabric_rx(dst); between nodes: nic_tx, nic_rx of the NICs `nic_of` gives; to itself: local twice.
        """
        src, dst, channel = np.broadcast_arrays(
            self._checked(src, "src"), self._checked(dst, "dst"), wholes(channel, "channel", 0))
        n, m = self.n_ranks, self.nics_per_node
        out = np.empty((*src.shape, 2), np.int32)
        out[..., 0], out[..., 1] = src, n + dst
        near, to = self.node_of[src], self.node_of[dst]
        far = near != to
        if far.any():
            which = ... if far.all() else far
            out[which, 0] = 3 * n + near[which] * m + self.nic_of(src[which], channel[which])
            out[which, 1] = 3 * n + (self.n_nodes + to[which]) * m + self.nic_of(dst[which], channel[which])
        if not far.all():
            own = src == dst
            out[own] = 2 * n + src[own][:, None]
        return out

    def route(self, src: npt.ArrayLike, dst: npt.ArrayLike, channel: npt.ArrayLike = 0) -> I32:
        """Links from rank `src` to rank `dst`, those between switches too: i32[..., 2 * tiers], -1 where one is not passed.

        The first and the last are those of `path`. Raises UsageError where no switch joins the two."""
        return network.route(self, src, dst, channel)

    def latency_ps(self, src: npt.ArrayLike, dst: npt.ArrayLike, channel: npt.ArrayLike = 0) -> I64:
        """One way, from rank `src` to rank `dst`: of the links of `path`, and of the tier where they meet; i64[...]."""
        return self.links.latency_ps[self.path(src, dst, channel)].sum(axis=-1) + self.tier_latency_ps(src, dst, channel)

    def tier_latency_ps(self, src: npt.ArrayLike, dst: npt.ArrayLike, channel: npt.ArrayLike = 0) -> I64:
        """What the network adds to the latencies of two NICs, by the tier where they meet; 0 in a node, or without network; i64[...]."""
        return network.tier_latency_ps(self, self._checked(src, "src"), self._checked(dst, "dst"), channel)

    @property
    def tiers_add_latency(self) -> bool:
        """Whether the network adds to the latencies of some pair of NICs."""
        return self.network is not None and any(tier.latency_ps for tier in self.network.tiers)

    def _checked(self, ranks: npt.ArrayLike, what: str) -> I64:
        return wholes(ranks, what, 0, self.n_ranks - 1)

    # -- value

    @cached_property
    def digest(self) -> str:
        """Hex of everything that changes what the topology means (not its name or sources)."""
        return files.digest(self)

    @cached_property
    def _texts(self) -> dict[str, str]:
        """Of files.digest, shared with copies that have other NICs' rates."""
        return {}

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, Topology) and (self.name, self.sources) == (other.name, other.sources)
        return self is other or same and self.digest == other.digest  # kept: plans are kept by topology, so equal ones meet often

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        from .picture import picture

        return picture(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; columns as runs [value, count]."""
        return files.to_dict(self)

    @classmethod
    def from_dict(cls, data: Any) -> Topology:
        """The topology of `to_dict`. Raises DecodeError saying what is wrong."""
        return files.from_dict(data)

    def save(self, path: Union[str, os.PathLike[str]]) -> Path:
        """Writes the topology as JSON; returns the path."""
        return files.save(self, path)

    @classmethod
    def load(cls, path: Union[str, os.PathLike[str]]) -> Topology:
        """Reads what `save` wrote, a description, or a file of ASTRA-sim or SimAI (files.py). Raises DecodeError naming what is wrong."""
        return files.load(path)

    def show(self, **options: Any) -> Any:
        """Draws the topology; returns a widget."""
        return views.draw("topology", self, **options)
