"""Balance all_reduce around NICs of any rates: lanes of any shares, several of which may have one rank, or one NIC, in step."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from ccl_lab.ir import Kind
from ccl_lab.planner import outline
from ccl_lab.simulator import exact_times, finish_times, loops
from ccl_lab.simulator.changes import Changes
from ccl_lab.topo import Topology

from .cases import links_of, random_changes
from .test_lanes import BALANCE, equal, shared_ranks


def case(rng: np.random.Generator, nodes: int) -> tuple[Topology, dict[str, Any]]:
    """One to four NICs lost or slower; slower ranks, late ones, latencies that hide waits or do not, NICs that change."""
    group = int(rng.choice([1, 2, 3, 4, 6, 8]))
    nics = int(rng.choice([2, 4, 8])) if group == 1 else group * int(rng.choice([1, 1, 2]))
    topology = Topology.cluster(nodes=nodes, gpus_per_node=group, nics_per_node=nics, nic_gbits_per_s=float(rng.choice([25, 400])),
                                nic_latency=f"{int(rng.choice([0, 1, 300, 9000, 10**5]))}ns",
                                fabric_gbytes_per_s=float(rng.choice([5, 100, 400])),
                                local_gbytes_per_s=float(rng.choice([10, 100, 1500])))  # fmt: skip
    for _ in range(int(rng.integers(1, 5))):
        nic = (int(rng.integers(nodes)), int(rng.integers(nics)))
        less = topology.without(nic) if rng.random() < 0.25 else topology.slow(float(rng.choice([1.1, 1.2, 1.5, 2, 3, 4, 10])), nic=nic)
        topology = less if less.nic_bytes_per_s.reshape(nodes, -1).any(axis=1).all() else topology
    options: dict[str, Any] = {"alpha": float(rng.choice([0, 1e-6]))}
    if not rng.integers(3):
        topology = topology.slow(float(rng.choice([1.001, 2, 5])), rank=int(rng.integers(topology.n_ranks)))
    if not rng.integers(3):
        options["late"] = {int(rank): f"{int(rng.integers(1, 3000))}us" for rank in rng.integers(0, topology.n_ranks, 2)}
    if not rng.integers(5):
        options["changes"] = Changes.of(links_of(topology, random_changes(rng, topology, 10**8)))
    return topology, options


def sizes(rng: np.random.Generator, planned: int, parts: int) -> int:
    """As planned, an odd one, one whose parts are equal."""
    return max(4 * parts, int(rng.choice([planned, planned + 4 * int(rng.integers(-99, 99)), 4 * parts * int(rng.integers(1, 30))])))


@pytest.mark.parametrize("block", range(12))
def test_random_clusters(block: int) -> None:
    meet = 0
    for seed in range(10 * block, 10 * (block + 1)):
        rng = np.random.default_rng([seed, 1])
        topology, options = case(rng, int(rng.integers(2, 17)))
        planned = int(2 ** rng.uniform(14, 29)) // 16 * 16
        made = outline("all_reduce", topology, planned, algorithm=BALANCE)
        if made.loops is None or made.ops_about > 30_000:
            continue
        assert equal(topology, BALANCE, planned, sizes(rng, planned, made.loops.parts), **options)["as"].startswith("rings")
        meet += shared_ranks(made.loops)
    assert meet


@pytest.mark.parametrize("swept", [False, True])
def test_many_nodes(swept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds that are gone over, and units; messages that differ, followed or all units at once."""
    if swept:
        step_by_step = loops._step_by_step
        monkeypatch.setattr(loops, "_step_by_step", lambda how, *given: step_by_step(how, *given) if how == "swept" else None)
    saved = 0
    for seed in range(12):
        rng = np.random.default_rng([seed, 2])
        topology, options = case(rng, int(rng.integers(40, 160)))
        if swept:
            options.pop("changes", None)
        made = outline("all_reduce", topology, 2**26, algorithm=BALANCE)
        assert made.loops is not None
        nbytes = 2**26 + 4 * int(rng.integers(100)) if swept else sizes(rng, 2**26, made.loops.parts)
        found, how = finish_times(made, topology, nbytes, **options)
        plainly, every = finish_times(made, topology, nbytes, merge=False, jumps=False, **options)
        assert found.tolist() == plainly.tolist(), seed
        saved += how["rounds"] < every["rounds"] and how["as"].startswith("rings")
    assert swept or saved >= 6


def test_steps_are_ticks() -> None:
    """Message m of a slice comes at tick m + 1 from its beginning, on every lane."""
    topology = Topology.cluster(nodes=3, gpus_per_node=4, nics_per_node=4, nic_gbits_per_s=400, fabric_gbytes_per_s=2).slow(3, nic=(1, 2))
    made = outline("all_reduce", topology, 2**24, algorithm=BALANCE)
    assert made.loops is not None and made.loops.timetable
    ops, slices = made.unroll().ops, made.loops.slice_of.shape[1]
    assert slices > 1
    ticks = slices * made.loops.steps * made.loops.depth
    for channel in made.loops.channel:
        waits = (ops.channel == channel) & (ops.peer // 4 != ops.rank // 4) & (ops.kind == Kind.wait) & (ops.rank < 4)
        assert ops.step[waits].tolist() == list(range(1, ticks + 1))


@pytest.mark.parametrize("factors", [(4, 3), (2, 3), (2, 2)])
def test_nominal_time_would_have_kept_them_waiting(factors: tuple[int, int]) -> None:
    """Where lanes of different shares meet in a NIC the lighter one asks for it early, and the heavier one waits."""
    topology = Topology.preset("h100", 8).slow(factors[0], nic=(3, 2)).slow(factors[1], nic=(5, 3))
    schedule = outline("all_reduce", topology, "256MiB", algorithm=BALANCE).unroll()
    in_step, first_come = (exact_times(dataclasses.replace(schedule, timetable=each), topology).time_ps for each in (True, False))
    assert in_step < 0.95 * first_come
