"""Ways of lanes through nodes: cut and matched where a slow NIC would hold up all, and proved right."""

from __future__ import annotations

import numpy as np
import pytest

from ccl_lab import plan, simulate, verify
from ccl_lab.planner.balance import rank_rings
from ccl_lab.planner.degraded import rates_of, ring_lanes
from ccl_lab.topo import Topology


def slower(nodes: int, factor: float) -> Topology:
    return Topology.preset("h100", nodes).slow(factor, nic=(1, 2))


@pytest.mark.parametrize("factor", [1.2, 2, 3])
def test_lanes_leave_by_slow_nics_as_they_enter(factor: float) -> None:
    topology = slower(4, factor)
    found, lanes = rank_rings(topology, True, True), ring_lanes(topology)
    orders, channel, weight = found.orders, found.channel_of, found.weight_of
    assert found.units == lanes.units and (np.sort(orders, axis=1) == np.arange(topology.n_ranks)).all()
    rate = rates_of(topology)[1]
    inside = np.flatnonzero(topology.node_of[orders[0]] == 1)
    into, out = (np.bincount(topology.nic_of(orders[:, at], channel), weight, 8) / rate for at in (inside[0], inside[-1]))
    assert out.max() <= 1.05 * into.max()


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("nbytes", [2**20, 2**30])
def test_right_and_as_fast_as_what_is_left(collective: str, nbytes: int) -> None:
    topology = slower(4, 2)
    verify(plan(collective, topology, nbytes, algorithm="balance"))
    if nbytes == 2**30:
        whole, hurt = (simulate(collective, each, nbytes, algorithm="balance", result="summary").finish_ps.max()
                       for each in (Topology.preset("h100", 4), topology))
        assert hurt < 1.3 * whole
