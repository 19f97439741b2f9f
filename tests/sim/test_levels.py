"""All_reduce over lanes that do several things at a time, told op by op: to the picosecond, and few ops wait at one time.

Recursive where nodes lost different amounts, in several levels; it, optcc and mix with slices that are cut into waves.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ccl_lab import simulate
from ccl_lab.errors import Inapplicable
from ccl_lab.ir import Builder
from ccl_lab.planner import outline
from ccl_lab.simulator import exact_times, finish_times, flow
from ccl_lab.simulator.changes import NONE, Changes
from ccl_lab.simulator.patience import patience
from ccl_lab.topo import Topology

from ..shares import first_of
from .cases import links_of, random_changes

LOST = ("nic:node=7,nic=2", "nic:node=9,nic=1", "nic:node=9,nic=3")


def degraded(rng: np.random.Generator) -> Topology:
    """A cluster of which two to four nodes lost one NIC, two, and so on."""
    nodes, nics = int(rng.integers(6, 20)), int(rng.choice([4, 8]))
    topology = Topology.cluster(nodes=nodes, gpus_per_node=int(rng.choice([1, 2, 4, 8])), nics_per_node=nics, nic_gbits_per_s=400)
    worst = rng.choice(nodes, int(rng.integers(2, 5)), replace=False).tolist()
    return topology.without(*((node, nic) for k, node in enumerate(worst) for nic in rng.choice(nics, min(k + 1, nics - 1), replace=False)))


@pytest.mark.parametrize("seed", first_of(range(40)))
def test_random_losses(seed: int) -> None:
    """In the order in which its ops happen, or put in order, as the table of ops."""
    rng = np.random.default_rng([41, seed])
    topology, nbytes = degraded(rng), int(rng.integers(1, 1 << 24)) * 4
    outlined = outline("all_reduce", topology, nbytes, algorithm="recursive")
    late = {int(rank): int(rng.integers(1, 1000)) * 1e-6 for rank in rng.choice(topology.n_ranks, int(rng.integers(0, 3)), replace=False)}
    changes = Changes.of(links_of(topology, random_changes(rng, topology, 10**9))) if rng.random() < 0.3 else NONE
    found, how = finish_times(outlined, topology, late=late, changes=changes)
    assert how["as"] == "steps"
    assert found.tolist() == exact_times(outlined.unroll(), topology, late=late, changes=changes).finish_ps.tolist()


@pytest.mark.parametrize("algorithm", ["recursive", "optcc", "mix"])
@pytest.mark.parametrize("seed", first_of(range(12), 3))
def test_slices_that_are_cut(seed: int, algorithm: str) -> None:
    """As the table of ops, around one node that lost some."""
    rng = np.random.default_rng([43, seed])
    nodes, group = int(rng.integers(3, 12)), int(rng.choice([1, 2, 4]))
    topology = Topology.cluster(nodes=nodes, gpus_per_node=group, nics_per_node=4, nic_gbits_per_s=400)
    topology = topology.without(*((int(rng.integers(nodes)), nic) for nic in range(int(rng.integers(1, 3)))))
    outlined = outline("all_reduce", topology, int(rng.integers(1 << 26, 1 << 28)) * 4, algorithm=algorithm)
    found, how = finish_times(outlined, topology)
    assert how["as"] == "steps"
    assert found.tolist() == exact_times(outlined.unroll(), topology).finish_ps.tolist()


def test_few_ops_wait_at_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """135,000 of some millions; a lane that might still be told anything would hold up all of them."""
    monkeypatch.setattr(flow, "_MOST_WAITING", 160_000)
    found = simulate("all_reduce", "h100:nodes=128", "1GiB", algorithm="recursive", faults=LOST)
    assert found.meta["evaluated"]["ordered"] and found.meta["n_ops"] > 2_000_000
    found = simulate("all_reduce", "h100:nodes=128", "16GiB", algorithm="mix", faults=LOST[:1])
    assert found.meta["evaluated"]["ordered"] and found.meta["n_ops"] > 7_000_000


def test_patience_lets_more_of_them_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "_MOST_WAITING", 10_000)
    topology = Topology.preset("h100", 24).without((7, 2), (9, 1), (9, 3))
    outlined = outline("all_reduce", topology, 2**26, algorithm="recursive")
    with pytest.raises(Inapplicable, match="more than 10,000 ops, of 40 bytes each, wait for others at one time"):
        finish_times(outlined, topology)
    with patience(10):
        assert finish_times(outlined, topology)[1]["ordered"]


def test_an_op_of_a_channel_that_ended_is_refused() -> None:
    topology = Topology.cluster(nodes=2, gpus_per_node=1, nics_per_node=1)

    def emit(make: Callable[..., Builder]) -> None:
        b = make("barrier", 2, algorithm="by hand", channels=2)
        b.wait(rank=0, peer=1, channel=0)  # before its signal: only what is put in order takes that
        b.ends(rank=[0, 1], channel=1)
        b.signal(rank=1, peer=0, channel=0)
        b.signal(rank=1, peer=0, channel=1)

    told: Any = SimpleNamespace(emit=emit, told_about=4, ops_about=4)
    with pytest.raises(Inapplicable, match="channels that it said to be done"):
        flow.flow_finish(told, topology, 0, 4, np.zeros(2, np.int64), 0)
