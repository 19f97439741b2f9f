"""Faults in the middle of a run: rates that change at given times, against the oracle, in every evaluation, and against the law."""

from __future__ import annotations

import numpy as np
import pytest

import ccl_lab as ccl
from ccl_lab.errors import Inapplicable, UsageError
from ccl_lab.planner import outline
from ccl_lab.simulation import changes_of
from ccl_lab.simulator import exact_times, finish_times
from ccl_lab.simulator.changes import Changes
from ccl_lab.topo import Topology

from ..shares import first_of
from .cases import links_of, random_changes, random_schedule, random_topology
from .test_exact import assert_equal_to_oracle, late_text
from .test_scale import RINGS, STEPS, draw

SHAPED = Topology.cluster(nodes=8, gpus_per_node=1, nics_per_node=4, nic_gbits_per_s=100, local_gbytes_per_s=4000)


@pytest.mark.parametrize("block", range(8))
def test_random_schedules_with_changing_rates_equal_the_oracle(block: int) -> None:
    changed = 0
    for seed in first_of(range(20 * block, 20 * block + 20)):
        rng = np.random.default_rng([seed, 11])
        n = int(rng.integers(2, 33))
        topology, schedule = random_topology(rng, n), random_schedule(rng, n, int(rng.integers(20, 300)))
        late = rng.integers(0, 10**9, n) * (rng.random(n) < 0.3)
        whole = exact_times(schedule, topology, late=late_text(late), compute_ps=0)
        rates = random_changes(rng, topology, int(whole.time_ps))
        found = assert_equal_to_oracle(schedule, topology, late, np.zeros((n, 4), np.int64), rates)
        changed += found.finish_ps.tolist() != whole.finish_ps.tolist()
    assert changed


@pytest.mark.parametrize("name", RINGS + STEPS)
def test_changing_rates_without_the_table_of_ops_equal_those_with_it(name: tuple[str, str]) -> None:
    applied = changed = 0
    for seed in first_of(range(40 if name in RINGS else 10)):
        drawn = draw(seed + 300, name)
        if drawn is None or drawn[2].n_nodes < 2:
            continue
        schedule, outlined, topology, late, alpha = drawn
        rng = np.random.default_rng([seed, 5])
        whole = exact_times(schedule, topology, late=late, alpha=alpha)
        changes = Changes.of(links_of(topology, random_changes(rng, topology, int(whole.time_ps))))
        want = exact_times(schedule, topology, late=late, alpha=alpha, changes=changes).finish_ps
        changed += want.tolist() != whole.finish_ps.tolist()
        for options in ({}, {"merge": False}, {"jumps": False}) if name in RINGS else ({},):
            try:
                found, _ = finish_times(outlined, topology, late=late, alpha=alpha, changes=changes, **options)
            except Inapplicable:
                continue
            applied += 1
            assert found.tolist() == want.tolist(), (seed, options)
    assert applied and (changed or name[0] == "barrier")


@pytest.mark.parametrize("name", RINGS)
def test_long_rings_jump_between_changes(name: tuple[str, str]) -> None:
    """Nothing is evaluated round by round but around the changes, and nothing differs."""
    topology = Topology.cluster(nodes=64, gpus_per_node=2, nics_per_node=2, nic_gbits_per_s=2, fabric_gbytes_per_s=400)
    outlined = outline(name[0], topology, 128 * 2**15, algorithm=name[1], channels=2)
    whole, _ = finish_times(outlined, topology)
    at = f"{int(whole.max()) // 3}ps"
    for fault in (f"nic:node=9,nic=1,at={at}", f"nic:node=9,nic=0,factor=3,at={at},until={int(whole.max()) // 2}ps"):
        changes = changes_of(topology, [fault])
        found, how = finish_times(outlined, topology, changes=changes)
        plainly, every = finish_times(outlined, topology, changes=changes, merge=False, jumps=False)
        assert found.tolist() == plainly.tolist() and found.max() > whole.max()
        assert how["rounds"] < every["rounds"] / 2


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_a_nic_lost_in_the_middle_costs_what_the_law_says(share: float) -> None:
    """One of m NICs lost after a share f of a bandwidth-bound ring: f + (1 - f) m / (m - 1) times as long."""
    whole = ccl.simulate("all_reduce", SHAPED, "256MiB", algorithm="ring")
    hurt = ccl.simulate("all_reduce", SHAPED, "256MiB", algorithm="ring", faults=[f"nic:node=3,nic=1,at={share * whole.time_us}us"])
    assert hurt.time_us / whole.time_us == pytest.approx(share + (1 - share) * 4 / 3, rel=0.03)


def test_a_fault_that_is_over_and_one_that_comes_too_late_cost_nothing_more() -> None:
    whole = ccl.simulate("all_reduce", SHAPED, "64MiB", algorithm="ring").meta["time_ps"]

    def time_ps(*faults: str) -> int:
        return ccl.simulate("all_reduce", SHAPED, "64MiB", algorithm="ring", faults=faults).meta["time_ps"]

    assert time_ps(f"nic:node=3,nic=1,at={whole + 1}ps") == whole
    flap = time_ps(f"nic:node=3,nic=1,at={whole // 2}ps,until={whole * 3 // 4}ps")
    assert whole < flap < time_ps(f"nic:node=3,nic=1,at={whole // 2}ps")
    slower = [time_ps(f"nic:node=3,nic=1,factor={factor},at={whole // 4}ps,until={whole // 2}ps") for factor in (1, 1.5, 3, 100)]
    assert slower == sorted(slower) and slower[0] == whole < slower[-1]


def test_two_lost_one_after_the_other_share_what_is_left() -> None:
    changes = changes_of(SHAPED, ["nic:node=2,nic=0,at=1us", "nic:node=2,nic=3,at=2us,until=3us"])
    rate, n = int(SHAPED.nic_bytes_per_s[0]), SHAPED.n_ranks
    one = changes.link == 3 * n + 2 * 4 + 1
    assert changes.from_ps[one].tolist() == [10**6, 2 * 10**6, 3 * 10**6]
    assert changes.bytes_per_s[one].tolist() == [rate * 3 // 4, rate // 2, rate * 3 // 4]


def test_131072_ranks_with_a_nic_lost_on_the_way() -> None:
    topology = Topology.preset("h100", 16384)
    whole = ccl.simulate("all_reduce", topology, "1GiB", algorithm="hierarchical")
    fault = "nic:node=7,nic=2,factor=200,at=100ms,until=120ms"
    hurt = ccl.simulate("all_reduce", topology, "1GiB", algorithm="hierarchical", faults=[fault])
    assert hurt.time_us > whole.time_us and hurt.meta["evaluated"]["jumped"] > 10**8


@pytest.mark.parametrize("fault, why", [
    ("nic:node=1,nic=1,until=3ms", "without at="), ("nic:node=1,nic=1,at=0us", "expected at= above 0"),
    ("nic:node=1,nic=1,at=3ms,until=2ms", "until= after it"), ("nic:node=1,nic=9,at=3ms", "nic"), ("nic:node=1,nic=1,at=soon", "soon"),
    ("nic:node=1,nic=1,factor=0.5,at=1ms", "1 or more"), ("rank:rank=1,factor=2,at=1ms", "rank has no 'at'"),
])  # fmt: skip
def test_faults_at_times_that_cannot_be_are_refused(fault: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        ccl.simulate("all_reduce", SHAPED, "1MiB", algorithm="ring", faults=[fault])


def test_no_nic_left_and_the_shared_tier_are_refused() -> None:
    lost = [f"nic:node=1,nic={nic},at=1ms" for nic in range(4)]
    with pytest.raises(UsageError, match="node 1 has no NIC left after 1000 us"):
        ccl.simulate("all_reduce", SHAPED, "1MiB", algorithm="ring", faults=lost)
    with pytest.raises(UsageError, match="exact tier"):
        ccl.simulate("all_reduce", SHAPED, "1MiB", algorithm="ring", tier="shared", faults=lost[:1])
