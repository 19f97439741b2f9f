"""Arrays on a GPU over real verbs. The GPU is the mock of its driver, whose memory ends a process when the host touches it.

Is: jobs end to end, with soft RoCE as it is, which takes no dma-bufs, and with a stand-in for the one call that it lacks. Is not: a
GPU, nor a NIC that reaches one.
"""

from __future__ import annotations

import json

import pytest

from .. import native_build
from .conftest import Run


def libraries() -> tuple[str, str]:
    built = native_build.build("mock_libcuda", "soft_dma_bufs") / "tests"
    return f"library={built / 'libmock_libcuda.so'}", f"preload={built / 'libsoft_dma_bufs.so'}"


@pytest.mark.parametrize(
    "settings", [["rdma=qps=2"], ["rdma=qps=2,segment=64KiB,mode=spray,register=off"], ["rdma=qps=1", "failover=off"]],
    ids=["dqplb", "spray", "unrepaired"],
)  # fmt: skip
def test_nics_read_and_write_arrays_of_a_gpu(body: Run, settings: list[str]) -> None:
    for outcome in body("gpu_arrays", *libraries(), *settings, machines=2, nics=2, timeout_s=170.0):
        found = json.loads(outcome.stdout.splitlines()[-1])
        for explained in (found["explained"], found["in_the_end"]):
            assert "arrays on a GPU: direct (NICs read and write them where a call only moves bytes; what the processor sums, " in explained
        assert found["memory"]["direct_regions"] >= 2
        assert "freed" in found["refused"], found["refused"]


def test_a_nic_that_is_switched_off_costs_no_byte_of_a_gpu(body: Run) -> None:
    ends = body("gpu_arrays", *libraries(), "rdma=qps=2", "pull=yes", machines=2, nics=2, timeout_s=170.0)
    stories = [json.loads(outcome.stdout.splitlines()[-1]) for outcome in ends]
    print("segments sent again:", [story["after"]["resent"] for story in stories])  # mostly, but not for sure, some
    for story in stories:
        assert "arrays on a GPU: direct" in story["explained"]
        assert story["after"]["lost"] >= 1, story


def test_soft_nics_as_they_are_take_no_dma_bufs_and_say_so(body: Run) -> None:
    for outcome in body("gpu_arrays", libraries()[0], "rdma=qps=2", machines=2, nics=1, timeout_s=170.0):
        found = json.loads(outcome.stdout.splitlines()[-1])
        assert "arrays on a GPU: staged (not by NICs alone: rank 0: NIC 0: RDMA device rxe1 takes no dma-bufs: " in found["explained"]
        assert "direct_regions" not in found["memory"] and found["memory"]["pinned_bytes"] > 0
