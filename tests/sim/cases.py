"""Random schedules and topologies for the simulator's tests. Every value follows from the seed."""

from __future__ import annotations

import numpy as np

from ccl_lab.ir import Builder, Schedule
from ccl_lab.topo import Network, Tier, Topology


def random_topology(rng: np.random.Generator, n: int) -> Topology:
    """Uneven nodes in shuffled order, odd rates, some NICs down."""
    n_nodes = int(rng.integers(1, n + 1)) if rng.random() < 0.7 else 1
    node_of = np.concatenate([np.arange(n_nodes), rng.integers(0, n_nodes, n - n_nodes)])
    rng.shuffle(node_of)
    local_of = np.zeros(n, np.int32)
    for node in range(n_nodes):
        ranks = np.flatnonzero(node_of == node)
        local_of[ranks] = rng.permutation(len(ranks))
    nics = int(rng.integers(1, 5))
    rates = rng.integers(1_000_000, 60_000_000_000, n_nodes * nics)
    if nics > 1:
        rates.reshape(n_nodes, nics)[rng.random(n_nodes) < 0.3, int(rng.integers(nics))] = 0
    return Topology(
        "random", node_of, nics, rates, rng.integers(0, 9_000_000, n_nodes * nics), rng.integers(10**6, 10**12, n),
        rng.integers(0, 2_000_001, n), rng.integers(10**6, 10**12, n), local_of=local_of)  # fmt: skip


def random_changes(rng: np.random.Generator, topology: Topology, most_ps: int) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """{(node, nic): [(from_ps, bytes_per_s), …]} of some NICs, at times up to `most_ps`; at times nothing passes, but not for ever."""
    found = {}
    up = np.flatnonzero(topology.nic_bytes_per_s)
    for nic in rng.choice(up, min(len(up), int(rng.integers(1, 4))), replace=False):
        times = np.unique(rng.integers(1, max(most_ps, 2), int(rng.integers(1, 4))))
        rates = rng.integers(0, int(topology.nic_bytes_per_s[nic]) + 1, len(times)) * (rng.random(len(times)) < 0.7)
        rates[-1] = max(int(rates[-1]), int(topology.nic_bytes_per_s[nic]) // 7 + 1)
        found[int(nic) // topology.nics_per_node, int(nic) % topology.nics_per_node] = [
            (int(at), int(rate)) for at, rate in zip(times, rates, strict=True)]  # fmt: skip
    return found


def links_of(topology: Topology, rates: dict[tuple[int, int], list[tuple[int, int]]]) -> dict[int, list[tuple[int, int]]]:
    """The same by link: both directions of each NIC."""
    n, m = topology.n_ranks, topology.nics_per_node
    return {3 * n + side * m + nic: rows for (node, nic), rows in rates.items() for side in (node, topology.n_nodes + node)}


def random_network(rng: np.random.Generator, n_nodes: int) -> Network:
    """One to four tiers, uneven groups, rails at the bottom at times."""
    tiers, group_of = [], np.arange(n_nodes)
    depth, rails = int(rng.integers(1, 5)), int(rng.integers(0, 3))
    for k in range(depth):
        top = k == depth - 1
        parents = 1 if top else int(rng.integers(1, group_of.max() + 2))
        parent = np.concatenate([np.arange(parents), rng.integers(0, parents, group_of.max() + 1 - parents)])
        group_of = rng.permutation(parent)[group_of]
        tiers.append(Tier(f"t{k}", group_of, int(rng.integers(0, 5_000_000)), 0 if top else int(rng.integers(1, 5)),
                          int(rng.integers(1_000_000, 90_000_000_000)), k < rails and not top))  # fmt: skip
    return Network(tuple(tiers), str(rng.choice(["ecmp", "spray"])), int(rng.integers(0, 100)))


def random_schedule(rng: np.random.Generator, n: int, n_ops: int) -> Schedule:
    """Ops in an order that is one legal execution, so that it cannot deadlock. What it computes is meaningless."""
    channels, parts = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    ragged = rng.random() < 0.3
    counts = rng.integers(0, 2000, (n, n)) if ragged else None
    b = Builder("all_to_allv" if ragged else "all_to_all", n, algorithm="random", channels=channels, parts=parts, counts=counts)
    available: dict[tuple[int, int, int], int] = {}
    kinds = ["put", "put", "put", "wait", "wait", "wait", "signal", "get", "copy", "reduce", "flush", "compute"]

    def chunks() -> slice:
        low = int(rng.integers(0, n * parts))
        return slice(low, low + int(rng.integers(1, min(3, n * parts - low) + 1)))

    b.timetable = bool(rng.random() < 0.3)
    for step in range(n_ops):
        b.step = int(rng.integers(0, n_ops)) if b.timetable else step
        rank, peer, channel = int(rng.integers(n)), int(rng.integers(n)), int(rng.integers(channels))
        sig, kind = int(rng.integers(channels)) if rng.random() < 0.4 else channel, str(rng.choice(kinds))
        if kind == "put":
            carries = bool(rng.random() < 0.8)
            b.put(rank=rank, peer=peer, src=b.input[chunks()], dst=b.output[chunks()], channel=channel, signal=carries, sig_channel=sig)
            if carries:
                available[peer, rank, sig] = available.get((peer, rank, sig), 0) + 1
        elif kind == "signal":
            b.signal(rank=rank, peer=peer, channel=channel, sig_channel=sig)
            available[peer, rank, sig] = available.get((peer, rank, sig), 0) + 1
        elif kind == "wait":
            keys = [key for key, left in available.items() if left]
            if keys:
                rank, peer, sig = keys[int(rng.integers(len(keys)))]
                count = int(rng.integers(1, available[rank, peer, sig] + 1))
                available[rank, peer, sig] -= count
                b.wait(rank=rank, peer=peer, channel=channel, sig_channel=sig, count=count)
        elif kind == "get":
            b.get(rank=rank, peer=peer, src=b.input[chunks()], dst=b.output[chunks()], channel=channel)
        elif kind == "copy":
            b.copy(rank=rank, src=b.input[chunks()], dst=b.output[chunks()], channel=channel)
        elif kind == "reduce":
            sources = [b.input[chunks()].at(int(rng.integers(n))) for _ in range(int(rng.integers(1, 5)))]
            b.reduce(rank=rank, dst=b.output[chunks()], srcs=sources, channel=channel)
        elif kind == "flush":
            b.flush(rank=rank, peer=peer if rng.random() < 0.5 else -1, channel=channel)
        else:
            b.compute(rank=rank, arg=int(rng.integers(4)), channel=channel)
    nbytes = int(rng.choice([0, 1, int(rng.integers(1, 10**4)), int(rng.integers(1, 10**9))]))
    return b.build(nbytes=nbytes, dtype=str(rng.choice(["int8", "float32", "float64"])))


def ring_all_gather(n: int, nbytes: int, order: np.ndarray | None = None) -> Schedule:
    """The textbook ring, in place; `order` is the ring's sequence of ranks."""
    b = Builder("all_gather", n, algorithm="ring", in_place=True)
    place = np.arange(n)
    r = place if order is None else np.asarray(order)
    for s in range(n - 1):
        b.step = s
        block = r[(place - s) % n]
        b.put(rank=r, peer=r[(place + 1) % n], src=b.output[block], dst=b.output[block])
        b.wait(rank=r, peer=r[(place - 1) % n])
    return b.build(nbytes=nbytes, dtype="int8")


def with_own_rates(rng: np.random.Generator, topology: Topology) -> Topology:
    """Every NIC and every rank with rates and latencies of its own."""
    k, n = topology.n_nodes * topology.nics_per_node, topology.n_ranks
    return topology.replace(
        nic_bytes_per_s=rng.integers(10**8, 10**10, k), nic_latency_ps=rng.integers(0, 9 * 10**6, k),
        fabric_bytes_per_s=rng.integers(10**8, 10**11, n), fabric_latency_ps=rng.integers(0, 9 * 10**6, n),
        local_bytes_per_s=rng.integers(10**8, 10**12, n))  # fmt: skip
