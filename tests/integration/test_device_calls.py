"""Collectives on arrays of a GPU as a job calls them: real processes over a mock of the driver's library, which each loads.

Is: planning, meeting, mapping, streams and errors end to end, bit by bit. Is not: a GPU (tests/gpu), and not the order of streams
(native/tests/test_device.cpp plays that).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ccl_lab import _core

from .. import native_build
from .test_init import launch

HERE = str(Path(__file__).resolve().parent)
needs_kernels = pytest.mark.skipif(not _core.device_kernels(), reason="the module was built without nvcc: no reduction kernels for GPUs")


@pytest.fixture(scope="module")
def library() -> str:
    return str(native_build.build("mock_libcuda") / "tests/libmock_libcuda.so")


def run_case(call: str, library: str, n: int = 3, nodes: int = 0, module: str = "device_cases", **extra: str) -> None:
    """`call` of a module of cases on n ranks, on emulated nodes with two NICs each if any; all must get through."""
    cluster = f"ccl.Topology.cluster(nodes={nodes}, gpus_per_node={n // max(nodes, 1)}, nics_per_node=2, nic_gbits_per_s=20)"
    body = f"""
        sys.path.insert(0, {HERE!r})
        import device_cases, staged_cases
        with ccl.init(timeout="60s", topology={cluster if nodes else None}) as comm:
            {module}.{call}
        print("fine")
    """
    for status, output in launch(body, n=n, DEVICE_LIBRARY=library, **extra):
        assert status == 0 and "fine" in output, output


@needs_kernels
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_every_collective_is_what_numpy_says(library, n):
    run_case("every_collective(comm)", library, n=n)


@needs_kernels
@pytest.mark.parametrize("dtype", ["float16", "int64", "uint8"])
def test_types(library, dtype):
    run_case(f"every_collective(comm, {dtype!r})", library, n=2)


@needs_kernels
def test_memory_of_the_mapping_api(library):
    run_case("every_collective(comm)", library, n=2, MOCK_MAPPING_API="1")


@needs_kernels
@pytest.mark.parametrize("n", [2, 3, 4])
def test_schedules_of_the_planner_run_on_streams(library, n):
    run_case("every_algorithm(comm)", library, n=n)


CASES = (
    "works", "replays", "stream_order", "types_and_reductions", "wrong_arrays", "freed_memory", "a_rank_stays_away", "a_rank_dies",
    "different_calls",
)  # fmt: skip


@needs_kernels
@pytest.mark.parametrize("case", CASES)
def test_cases(library, case):
    run_case(f"{case}(comm)", library, n=2)


@pytest.mark.parametrize(("case", "extra"), [("no_stream_operations", {"MOCK_NO_STREAM_OPS": "1"}), ("no_driver", {})])
def test_what_is_missing_is_named(library, case, extra):
    run_case(f"{case}(comm)", library, n=2, **extra)


@pytest.mark.parametrize(("n", "nodes", "transport"), [(2, 2, "auto"), (4, 2, "auto"), (3, 3, "auto"), (2, 0, "tcp")])
def test_every_collective_through_the_host(library, n, nodes, transport):
    run_case("every_collective(comm)", library, n=n, nodes=nodes, CCL_LAB_TRANSPORT=transport)


@pytest.mark.parametrize("case", ["staged_works", "held_until_the_stream_comes", "dynamic", "bad_counts"])
def test_staged_cases(library, case):
    run_case(f"{case}(comm)", library, n=2, nodes=2, module="staged_cases")


def test_types_and_reductions_through_the_host(library):
    run_case("types_and_reductions(comm)", library, n=2, nodes=2)


@pytest.mark.parametrize(("n", "nodes"), [(1, 0), (3, 0), (4, 2)])
def test_counts_in_memory_of_the_gpu(library, n, nodes):
    run_case("dynamic(comm)", library, n=n, nodes=nodes, module="staged_cases")


@pytest.mark.parametrize("call", ["all_reduce", "all_to_allv_dynamic"])
def test_every_driver_call_may_fail_in_a_staged_call(library, call):
    run_case(f"driver_fails(comm, {call!r})", library, n=2, nodes=2, module="staged_cases")


@needs_kernels
@pytest.mark.parametrize("nodes", [0, 2])
def test_a_gpu_that_is_gone_is_named_on_all_ranks(library, nodes):
    run_case("gpu_goes(comm)", library, n=2, nodes=nodes, module="staged_cases")
