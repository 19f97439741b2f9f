"""What real verbs say when a NIC is broken, on which detection and repair of the engine are built.

The facts are those of soft RoCE in Linux 6.12: an interface that goes down flushes at once; a pulled cable raises a port event at once, and
fails requests only when their retries have run out; lost packets raise no event at all; the far side is told nothing.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import Run

pytestmark = pytest.mark.usefixtures("pyverbs")

TRIES_S = 3 * 4.096e-6 * 2**16  # a try and two retries of bodies/break_nic.py, after a pulled cable
WRITES = 8
OK, FLUSHED, EXCEEDED = "IBV_WC_SUCCESS", "IBV_WC_WR_FLUSH_ERR", "IBV_WC_RETRY_EXC_ERR"


def break_nic(body: Run, how: str) -> tuple[dict[str, Any], dict[str, Any]]:
    far, near = (json.loads(outcome.stdout) for outcome in body("break_nic", how, machines=2, nics=1))
    assert far["healthy"] == near["healthy"] == [OK]
    return near, far


def nothing_was_said(far: dict[str, Any]) -> bool:
    return far["state"] == "RTS" and far["event"] is None and far["arrived"] == far["more"] == []


def works_again(near: dict[str, Any], far: dict[str, Any]) -> bool:
    return near["again"] == far["again"] == [OK] and near["bytes"] == far["bytes"] == "again"


def test_a_pulled_cable_is_an_event_at_once_and_an_error_when_retries_have_run_out(body: Run) -> None:
    near, far = break_nic(body, "cable")
    assert (near["event"], near["state_at_event"]) == ("IBV_EVENT_PORT_ERR", "RTS")
    assert near["statuses"] == [EXCEEDED] + [FLUSHED] * (WRITES - 1) and near["state"] == "ERR"
    assert near["seconds"] >= 0.9 * TRIES_S
    assert nothing_was_said(far)
    assert near["mended"] == "IBV_EVENT_PORT_ACTIVE" and works_again(near, far)


def test_a_cable_that_is_back_before_retries_have_run_out_costs_only_time(body: Run) -> None:
    near, far = break_nic(body, "cable_back")
    assert (near["event"], near["state_at_event"], near["back"]) == ("IBV_EVENT_PORT_ERR", "RTS", "IBV_EVENT_PORT_ACTIVE")
    assert near["statuses"] == far["arrived"] == [OK] * WRITES
    assert near["state"] == far["state"] == "RTS" and far["more"] == []


def test_an_interface_that_goes_down_flushes_at_once(body: Run) -> None:
    near, far = break_nic(body, "interface")
    assert (near["event"], near["state"]) == ("IBV_EVENT_PORT_ERR", "ERR")
    assert near["statuses"] == [FLUSHED] * WRITES
    assert nothing_was_said(far)
    assert near["mended"] == "IBV_EVENT_PORT_ACTIVE" and works_again(near, far)


def test_lost_packets_raise_no_event(body: Run) -> None:
    near, far = break_nic(body, "loss")
    assert near["event"] is None
    assert near["statuses"] == [EXCEEDED] + [FLUSHED] * (WRITES - 1) and near["state"] == "ERR"
    assert nothing_was_said(far) and works_again(near, far)


def test_a_queue_pair_driven_to_error_flushes_what_it_had_to_do(body: Run) -> None:
    near, far = break_nic(body, "queue_pair")
    done = near["statuses"].count(OK)
    assert near["statuses"] == [OK] * done + [FLUSHED] * (WRITES - done) and near["state"] == near["state_at_event"] == "ERR"
    assert near["event"] is None and far["state"] == "RTS" and works_again(near, far)
