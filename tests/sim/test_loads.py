"""Bytes over NICs: of outlines equal to those of the ops, and what the rows of a Summary say."""

from __future__ import annotations

import numpy as np
import pytest

import ccl_lab as ccl
from ccl_lab.errors import UnsupportedError, UsageError
from ccl_lab.simulator.loads import nic_bytes

from .test_scale import NAMES, draw


@pytest.mark.parametrize("name", NAMES)
def test_bytes_of_an_outline_are_those_of_its_ops(name: tuple[str, str]) -> None:
    for seed in range(1, 8):
        drawn = draw(seed + 70, name, most_nodes=4)
        if drawn is None:
            continue
        schedule, outlined, topology, _, _ = drawn
        found = nic_bytes(outlined, topology)
        assert found.tolist() == nic_bytes(schedule, topology).tolist(), seed
        assert found[0].sum() == found[1].sum()


def test_rows_of_131072_ranks_name_the_nics_that_carry_more() -> None:
    found = ccl.simulate("all_reduce", "h100:nodes=16384", "64GiB", algorithm="hierarchical", faults=["nic:node=7,nic=2"],
                         rows=("ranks", "nodes", "nics"))  # fmt: skip
    rows = found.meta["rows"]
    assert {(row["node"], row["direction"]) for row in rows["nics"][:4]} == {(7, "tx"), (7, "rx")}
    assert rows["nics"][0]["bytes"] == pytest.approx(1.5 * rows["nics"][-1]["bytes"])
    assert rows["nodes"][0]["finish_us"] == found.time_us == rows["ranks"][0]["finish_us"]
    assert len(rows["nodes"]) == 20 and all(0 < row["share"] <= 1 for row in rows["nics"])


def test_rows_of_a_small_run_agree_with_its_trace() -> None:
    topology = ccl.Topology.cluster(nodes=3, gpus_per_node=2, nics_per_node=2, nic_gbits_per_s=100)
    found = ccl.simulate("all_reduce", topology, "8MiB", algorithm="ring", rows=["nics"])
    nics = ccl.simulate("all_reduce", topology, "8MiB", algorithm="ring").stats().nics
    whole = {(int(node), int(nic), direction): int(nbytes) for node, nic, direction, nbytes in zip(
        nics["node"], nics["nic"], nics["direction"], nics["nbytes"], strict=True)}  # fmt: skip
    assert {(row["node"], row["nic"], row["direction"]): row["bytes"] for row in found.meta["rows"]["nics"]} == whole


def test_rows_of_steps_ranks_and_nics_are_those_of_the_ops() -> None:
    topology = ccl.Topology.cluster(nodes=3, gpus_per_node=2, nics_per_node=2, nic_gbits_per_s=100)
    faults, late = ["nic:node=1,nic=0,factor=2,at=100us", "rank:rank=4,late=20us"], {2: "50us"}
    schedule = ccl.plan("all_reduce", topology, "8MiB", algorithm="ring")
    trace = ccl.simulate(schedule, topology, late=late, faults=faults)
    for what in (schedule, "all_reduce"):
        more = {} if what is schedule else {"nbytes": "8MiB", "algorithm": "ring"}
        found = ccl.simulate(what, topology, late=late, faults=faults, rows=["steps", "rank:3", "nic:1:0", "ranks"], **more)
        rows = found.meta["rows"]
        assert list(rows) == ["ranks", "steps", "rank:3", "nic:1:0"] and found.time_ps == trace.meta["time_ps"]
        moved = schedule.layout().op_bytes()
        steps = schedule.ops.step[moved > 0]
        assert [row["step"] for row in rows["steps"]] == sorted(set(steps.tolist()))
        assert [row["bytes"] for row in rows["steps"]] == [int(moved[schedule.ops.step == row["step"]].sum()) for row in rows["steps"]]
        assert max(row["end_us"] for row in rows["steps"]) == pytest.approx(found.time_us, rel=1e-3)
        assert all(row["begin_us"] < row["end_us"] for row in rows["steps"])
        assert sorted(row["op_id"] for row in rows["rank:3"]) == np.flatnonzero(schedule.ops.rank == 3).tolist()
        nic = nic_bytes(schedule, topology)[:, 1, 0].tolist()
        assert [sum(row["bytes"] for row in rows["nic:1:0"] if row["direction"] == side) for side in ("tx", "rx")] == nic


def test_rows_of_steps_of_nothing_that_moves() -> None:
    found = ccl.simulate("barrier", ccl.Topology.cluster(nodes=1, gpus_per_node=1), rows="steps")
    assert found.meta["rows"] == {"steps": []}


def test_rows_that_are_not_known_are_refused() -> None:
    for more in ({"rows": ["links"]}, {"rows": ["rank:x"]}, {"rows": "nic:3"}, {"rows": ["nics"], "result": "trace"}):
        with pytest.raises(UsageError, match="expected some of ranks, nodes, nics"):
            ccl.simulate("all_reduce", "h100:nodes=2", "1MiB", algorithm="ring", **more)
    for rows, words in ((["rank:16"], "expected 0 to 15"), (["nic:2:0"], "expected node 0 to 1, NIC 0 to 7")):
        with pytest.raises(UsageError, match=words):
            ccl.simulate("all_reduce", "h100:nodes=2", "1MiB", algorithm="ring", rows=rows)
    with pytest.raises(UsageError, match="belong to the exact tier"):
        ccl.simulate("all_reduce", "h100:nodes=2", "1MiB", algorithm="ring", rows=["steps"], tier="shared")
    with pytest.raises(UnsupportedError, match="rows of steps .* at most 4,000,000 are unrolled"):
        ccl.simulate("all_reduce", "h100:nodes=16384", "1GiB", algorithm="hierarchical", rows=["steps"])
    with pytest.raises(UsageError, match="a size for each pair"):
        ccl.simulate("all_to_allv", "h100:nodes=1", counts=np.ones((8, 8), int), rows=["nics"])
