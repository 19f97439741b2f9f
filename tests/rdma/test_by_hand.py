"""Python's side of RDMA on real verbs: ccl_lab.rdma in a machine of the rig, and the lab that writes by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ccl_lab as ccl
from ccl_lab.trace.columns import Track

from .conftest import Run

pytestmark = pytest.mark.usefixtures("pyverbs")

MTU_BYTES = 4096


def test_counters_rates_and_errors(body: Run) -> None:
    far, near = (json.loads(outcome.stdout) for outcome in body("python_side", machines=2, nics=2))
    packets = near["nbytes"] // MTU_BYTES
    for one in (near, far):
        assert one["attributes"]["max_qp"] > 0 and one["attributes"]["phys_port_cnt"] == 1
        assert one["gid"] == {"kind": "RoCE v2", "ip": f"10.77.1.{2 if one is near else 1}"}
    assert near["sent"][0] >= packets and far["received"][0] >= packets, "packets of the device that carried it"
    assert near["sent"][1] == far["received"][1] == 0, "packets of the other device"
    # The recording ends before the writes do, and began when it could.
    assert near["peak_gbits_per_s"]["tx"] > 0 and near["carried_bytes"][0] > MTU_BYTES * 256 > near["carried_bytes"][1]
    assert near["errors"] == {
        "closed": "TransportError", "device": "UsageError", "gid": "UsageError", "late": "OpTimeout", "retries": "UsageError"
    }  # fmt: skip


def test_the_lab_runs_on_a_nic(body: Run) -> None:
    (found,) = body("notebook", "labs/14_rdma_by_hand.ipynb", machines=1, nics=1)
    assert "(b'hello', 7)" in found.stdout and ", 16 different ones" in found.stdout


def test_the_engine_does_the_same(body: Run, tmp_path: Path) -> None:
    target = tmp_path / "engine.arrow"
    body("lab_engine", str(target), machines=2, nics=2, shared=[tmp_path])
    trace, recorded = ccl.Trace.load(target), ccl.Trace.load("labs/data/rdma_engine.arrow")
    for one in (trace, recorded):
        assert one.where(track=Track.nic_tx, rank=1)["nbytes"].sum() == one.where(track=Track.nic_rx, rank=0)["nbytes"].sum() == 4 << 20
        assert set(one.where(track=Track.nic_rx, rank=0)["index"].tolist()) == {0, 1}
