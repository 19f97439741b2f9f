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


def run_case(call: str, library: str, n: int = 3, **extra: str) -> None:
    """`call` on n ranks; all must get through."""
    body = f"""
        sys.path.insert(0, {HERE!r})
        import device_cases
        with ccl.init(timeout="20s") as comm:
            device_cases.{call}
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
