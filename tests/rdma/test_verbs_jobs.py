"""Jobs over real verbs: every collective, and NICs that break while bytes are under way."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import Run


@pytest.mark.parametrize(
    "settings",
    [["rdma=qps=4"], ["rdma=qps=3,segment=64KiB,inflight=4,mode=spray,register=async"], ["rdma=qps=1,segment=0", "failover=off"]],
    ids=["dqplb", "spray", "unrepaired"],
)
def test_every_collective_is_exact_over_verbs(body: Run, settings: list[str]) -> None:
    for outcome in body("collectives", *settings, machines=2, nics=2):
        found = json.loads(outcome.stdout)
        assert found["wrong"] == []
        assert "between nodes: verbs (every NIC of all 2 ranks is an RDMA device; here rxe1, rxe2)" in found["explained"]
        assert "soft RoCE on one core): rings send and add whole pieces" in found["explained"]


def test_three_machines_and_a_nic_without_rdma_between_them(body: Run) -> None:
    """eth0 has no RDMA: by itself that means sockets, and the reason is said."""
    for outcome in body("collectives", "transport=auto", "nics=eth0,eth1", machines=3, nics=1):
        found = json.loads(outcome.stdout)
        assert found["wrong"] == []
        assert "between nodes: tcp (rank 0: no RDMA device has address 10.77.0.1; there are: rxe1 (eth1))" in found["explained"]


FAULTS = {
    "link": "PORT_ERR",
    "cable": "PORT_ERR",
    "silent": "nothing was confirmed",
    "moved": "GID_CHANGE",
    "qp": "WR_FLUSH_ERR",
}


def test_a_nic_that_breaks_in_mid_transfer_costs_no_sum_and_comes_back(body: Run) -> None:
    far, near = (json.loads(outcome.stdout) for outcome in body("fail_over", *FAULTS, machines=2, nics=2))
    for story in (far, near):
        assert story["healthy"]
        for turn, fault in enumerate(FAULTS, 1):
            told: dict[str, Any] = story[fault]
            assert told["broken"] == told["healed"] == "exact", (fault, told)
            # On a busy host more paths than those that were broken may be lost, and come back.
            assert min(told["after"][what] for what in ("lost", "recovered", "back")) >= turn, (fault, told)
    for fault, word in FAULTS.items():
        assert any(word in why for story in (far, near) for why in story[fault]["why"]), (fault, near[fault], far[fault])


@pytest.mark.parametrize("settings", [["rdma=qps=4"], ["rdma=qps=2,segment=64KiB,mode=spray,register=off"]], ids=["dqplb", "spray"])
def test_exchanges_whose_counts_are_read_when_they_start(body: Run, settings: list[str]) -> None:
    for outcome in body("exchanges", *settings, machines=2, nics=2):
        assert "between nodes: verbs" in json.loads(outcome.stdout)["explained"]


@pytest.mark.parametrize(
    "settings",
    [["rdma=qps=4"], ["rdma=qps=2,segment=64KiB,mode=spray,register=off"], ["rdma=qps=1,segment=0", "failover=off"]],
    ids=["dqplb", "spray", "unrepaired"],
)
@pytest.mark.parametrize("what", ["windows", "messages"])
def test_a_nic_that_is_switched_off_while_what_was_queued_comes_in(body: Run, what: str, settings: list[str]) -> None:
    for outcome in body(what, *settings, machines=2, nics=2, timeout_s=170.0):
        found = json.loads(outcome.stdout)
        assert "between nodes: verbs" in found["explained"]
        if "failover=off" not in settings:
            assert found["after"]["lost"] >= 1 and found["after"]["back"] >= 1, found
