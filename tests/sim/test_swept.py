"""Messages of two lengths among units that are not alike, all units at once (swept.hpp): as one by one, and as the table of ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ccl_lab.errors import Inapplicable
from ccl_lab.planner import outline
from ccl_lab.simulator import exact_times, finish_times, loops, summarize
from ccl_lab.topo import Topology


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether it could, of each that was tried; nothing is followed instead (followed.hpp)."""
    found: list[bool] = []
    step_by_step = loops._step_by_step

    def watched(how: str, *given: Any) -> Any:
        if how != "swept":
            return None
        result = step_by_step(how, *given)
        found.append(result is not None)
        return result

    monkeypatch.setattr(loops, "_step_by_step", watched)
    return found


def equal(topology: Topology, algorithm: str, planned: int, nbytes: int, channels: int | None = None, **options: Any) -> None:
    outlined = outline("all_reduce", topology, planned, algorithm=algorithm, channels=channels)
    want = exact_times(outlined.unroll(), topology, nbytes, **options).finish_ps.tolist()
    assert finish_times(outlined, topology, nbytes, **options)[0].tolist() == want
    assert finish_times(outlined, topology, nbytes, merge=False, jumps=False, **options)[0].tolist() == want


def case(rng: np.random.Generator) -> tuple[Topology, dict[str, Any]]:
    """A cluster whose messages come closer than a latency, or not; slower NICs and ranks, late ranks."""
    nodes, group = int(rng.integers(3, 20)), int(rng.choice([1, 2, 4]))
    topology = Topology.cluster(nodes=nodes, gpus_per_node=group, nics_per_node=group * int(rng.choice([1, 2])), nic_gbits_per_s=400,
                                nic_latency=f"{int(rng.choice([0, 0, 3, 300, 9000]))}ns", fabric_gbytes_per_s=100,
                                local_gbytes_per_s=float(rng.choice([3, 50, 2000])))  # fmt: skip
    for _ in range(int(rng.integers(0, 3))):
        topology = topology.slow(float(rng.choice([1.003, 1.4, 6])), nic=(int(rng.integers(nodes)), int(rng.integers(group))))
    for _ in range(int(rng.integers(0, 2))):
        topology = topology.slow(float(rng.choice([1.01, 3])), rank=int(rng.integers(topology.n_ranks)))
    late = {int(rng.integers(topology.n_ranks)): f"{int(rng.integers(1, 3000))}ns" for _ in range(int(rng.integers(0, 3)))}
    return topology, {"late": late, "alpha": float(rng.choice([0, 1e-7]))}


@pytest.mark.parametrize("seed", range(120))
def test_random_clusters(seed: int, swept: list[bool]) -> None:
    rng = np.random.default_rng(seed)
    topology, options = case(rng)
    equal(topology, "hierarchical" if topology.gpus_per_node > 1 else "ring", int(rng.choice([2**12, 2**16, 2**24])),
          4 * int(rng.integers(1000, 90000)), **options)  # fmt: skip


@pytest.mark.parametrize("lost", [False, True])
def test_it_is_used(lost: bool, swept: list[bool]) -> None:
    """A late rank and slower memory: no two units are alike. Two lanes of a rank share its NIC; lanes around a lost NIC do not."""
    base = Topology.preset("h100", 24)
    topology = base.without((3, 2)) if lost else base
    algorithm = "balance" if lost else "hierarchical"
    equal(topology.slow(2, rank=41), algorithm, 2**22, 2**22 + 52, late={77: "3us"})
    assert swept and all(swept)


@pytest.mark.parametrize("seed", range(40))
def test_messages_that_come_in_twos(seed: int, swept: list[bool]) -> None:
    """Lanes around a lost NIC, or a slower one, that is slow enough for two messages of a lane to be under way."""
    rng = np.random.default_rng(seed)
    nodes, group = int(rng.integers(3, 12)), int(rng.choice([1, 2, 4]))
    topology = Topology.cluster(nodes=nodes, gpus_per_node=group, nics_per_node=2 * group, nic_gbits_per_s=int(rng.integers(5, 60)),
                                fabric_gbytes_per_s=300, local_gbytes_per_s=float(rng.choice([20, 1000])))  # fmt: skip
    nic = int(rng.integers(nodes)), int(rng.integers(2 * group))
    topology = topology.without(nic) if seed % 2 else topology.slow(2, nic=nic)
    late = {int(rng.integers(topology.n_ranks)): "30us"} if rng.random() < 0.5 else {}
    made = outline("all_reduce", topology, 2**24, algorithm="balance").loops
    assert made is None or made.depth > 1
    equal(topology, "balance", 2**24, 2**24 - 4 * int(rng.integers(1, 10**4)), late=late)
    assert made is None or not made.in_node or swept and all(swept)


def test_links_in_several_ways(swept: list[bool]) -> None:
    """Lanes of a lost NIC go to that of another rank on one node alone; those of different shares meet where NICs are slower."""
    topology = Topology.preset("h100", 8)
    equal(topology.without((3, 2)), "hierarchical", 2**22, 2**22 + 52)
    assert swept == [True] * 6
    for nodes in (8, 24):
        topology = Topology.preset("h100", nodes).slow(4, nic=(3, 2)).slow(3, nic=(5, 3))
        for late in ({}, {41: "3us"}):
            equal(topology, "balance", 2**22, 2**22 + 52, late=late)
    assert all(swept)


def test_what_it_does_not_do_is_left_to_others(swept: list[bool]) -> None:
    """No two NICs of one rate."""
    topology = Topology.cluster(nodes=70, gpus_per_node=1, nics_per_node=1, nic_gbits_per_s=400)
    for node in range(70):
        topology = topology.slow(1 + node / 100, nic=(node, 0))
    equal(topology, "ring", 2**22, 2**22 + 52)
    assert swept == [False]


def test_every_message_among_131072_ranks(swept: list[bool]) -> None:
    """Around a lost NIC with a late rank: 4 · 10⁹ messages, in seconds; nobody is earlier than without, and the late node ends last."""
    topology = Topology.preset("h100", 16384).without((7, 2))
    outlined = outline("all_reduce", topology, "1GiB", algorithm="balance")
    found = summarize(outlined, topology, late={800: "1ms"}).meta
    plain = summarize(outlined, topology).meta
    assert swept == [True] * 14
    assert (found["finish_ps"] >= plain["finish_ps"]).all() and found["time_ps"] - plain["time_ps"] <= 10**9


def test_too_many_are_refused(swept: list[bool]) -> None:
    topology = Topology.cluster(nodes=262144, gpus_per_node=1, nics_per_node=1, nic_gbits_per_s=400)
    with pytest.raises(Inapplicable, match="chunks differ by an element.* would take some 5 minutes .patience=2 allows it"):
        summarize(outline("all_reduce", topology, "1GB", algorithm="ring"), topology, late={5: "1us"})
