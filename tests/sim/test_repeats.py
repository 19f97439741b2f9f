"""Ops that come many times in a row and are told once: as the unrolled schedule and the oracle, up to 131,072 ranks."""

from __future__ import annotations

import numpy as np
import pytest

from ccl_lab.errors import Inapplicable, UsageError
from ccl_lab.planner import outline
from ccl_lab.simulator import exact_times
from ccl_lab.simulator.flow import flow_finish
from ccl_lab.topo import Topology

from ..shares import expected, first_of
from .cases import random_network, random_topology
from .draws import Drawn, drawn, found, some_bytes
from .test_scale import MOST_OPS

NAMES = [("all_gather", "recursive_doubling"), ("reduce_scatter", "recursive_halving")]


def swapping(rng: np.random.Generator) -> Topology:
    """Nodes of any size, mostly a power of two of ranks, whose NICs are their own or shared; some slower, later, gone."""
    group, power = int(2 ** rng.integers(0, 4)), rng.random() < 0.7
    nodes = int(2 ** rng.integers(1, 6)) if power else int(rng.integers(2, 24))
    nics = group * int(rng.choice([1, 1, 1, 2])) if rng.random() < 0.7 else int(rng.integers(1, 9))
    topology = Topology.cluster(nodes=nodes, gpus_per_node=group, nics_per_node=nics, nic_gbits_per_s=float(rng.integers(1, 400)),
                                fabric_gbytes_per_s=int(rng.integers(1, 300)), local_gbytes_per_s=int(rng.integers(1, 1000)))  # fmt: skip
    if rng.random() < 0.3:
        k, n = nodes * nics, nodes * group
        topology = topology.replace(
            nic_bytes_per_s=rng.integers(10**8, 10**10, k), nic_latency_ps=rng.integers(0, 9 * 10**6, k),
            fabric_bytes_per_s=rng.integers(10**8, 10**11, n), local_bytes_per_s=rng.integers(10**8, 10**12, n))  # fmt: skip
    if rng.random() < 0.3:
        topology = topology.slow(float(rng.uniform(1, 5)), nic=(int(rng.integers(nodes)), int(rng.integers(nics))))
    for _ in range(int(rng.integers(0, 3)) if nics > 2 else 0):
        topology = topology.without((int(rng.integers(nodes)), int(rng.integers(nics))))
    return topology.replace(network=random_network(rng, nodes)) if rng.random() < 0.2 else topology


def draw(seed: int, name: tuple[str, str], most_ops: int = MOST_OPS) -> Drawn | None:
    rng = np.random.default_rng([seed, 7, *name[0].encode()])
    try:
        topology = swapping(rng) if rng.random() < 0.8 else random_topology(rng, int(rng.integers(2, 40)))
    except UsageError:
        return None
    nbytes = some_bytes(rng, topology.n_ranks * 4 * 10**5)
    return drawn(rng, name, topology, nbytes, (0.3, 0.2), channels=rng.random() < 0.7, most_ops=most_ops)


@pytest.mark.parametrize("name", NAMES)
def test_what_comes_many_times_is_timed_as_if_it_were_written_out(name: tuple[str, str]) -> None:
    """Any rates and latencies, late ranks, lost NICs, NICs that ranks share, several channels, rates that change in the middle."""
    compared = ordered = changed = 0
    for seed in first_of(range(200)):
        case = draw(seed, name)
        if case is None:
            continue
        want, changes = case.wanted(change=case.topology.n_nodes > 1)
        try:
            times, how = case.found(flow_finish, case.outlined, changes)
        except Inapplicable:
            continue
        assert times == want, seed
        compared, ordered, changed = compared + 1, ordered + how.get("ordered", False), changed + bool(changes)
    assert compared >= expected(120) and ordered >= expected(20) and changed >= expected(20)


def test_what_comes_many_times_is_timed_as_by_the_oracle() -> None:
    compared = 0
    for seed in first_of(range(60)):
        case = draw(1000 + seed, NAMES[seed % 2], most_ops=5_000)
        if case is None:
            continue
        times, _ = case.found(flow_finish, case.outlined)
        assert times == case.by_the_oracle(), seed
        compared += 1
    assert compared >= expected(20)


@pytest.mark.parametrize("name", NAMES)
def test_512_ranks_as_their_ops(name: tuple[str, str]) -> None:
    whole = Topology.preset("h100", 64)
    for topology, late, many in ((whole, None, False), (whole.slow(3, nic=(7, 2)), {3: "20us"}, False), (whole.without((7, 2)), None, True),
                                 (whole.without((7, 2), (7, 5), (20, 3)), {77: "1us"}, True)):  # fmt: skip
        outlined = outline(name[0], topology, "64MiB", algorithm=name[1])
        times, how = found(flow_finish, outlined, outlined, topology, late)
        assert times == exact_times(outlined.unroll(), topology, late=late).finish_ps.tolist()
        assert how["ops"] < 5 * 9 * 512 + many * 20_000


@pytest.mark.parametrize("name", NAMES)
def test_131072_ranks(name: tuple[str, str]) -> None:
    """All alike; around a lost NIC two ranks take twice as long, and nothing ends earlier."""
    whole = Topology.preset("h100", 16384)
    gone = whole.without((7, 2))
    outlines = [(outline(name[0], each, "1GiB", algorithm=name[1]), each) for each in (whole, gone)]
    before, after = (found(flow_finish, outlined, outlined, topology) for outlined, topology in outlines)
    assert len(set(before[0])) == 1 and before[1]["ops"] < 7_000_000
    assert after[1]["ordered"] and (np.array(after[0]) >= before[0]).all() and 1.3 < max(after[0]) / max(before[0]) < 2
