"""torch's collectives on tensors of a GPU over the backend, equal to Gloo's on the CPU: real processes over a mock of the driver's library.

Is: streams, order, works and errors as torch's users see them. Is not: a GPU (tests/gpu runs the same cases on one).
"""

from __future__ import annotations

import pytest

from ccl_lab import _core

from .. import native_build
from .torch_ranks import TorchRanks

pytestmark = pytest.mark.skipif(not _core.device_kernels(), reason="the module was built without nvcc: no reduction kernels for GPUs")
CASES = (
    "reductions",
    "moves",
    "gaps_and_lists",
    "async_calls_leave_the_stream_alone",
    "calls_that_wait_are_in_the_order_of_the_stream",
    "what_cannot_be_is_refused",
    "it_goes_behind_calls_that_wait_for_their_turn",
)


@pytest.fixture(scope="module", params=(2, 3), ids="{0} ranks".format)
def ranks(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEVICE_LIBRARY", str(native_build.build("mock_libcuda") / "tests/libmock_libcuda.so"))
        started = TorchRanks(request.param, "torch_cuda_cases.py")
    yield started
    assert started.close() == [0] * request.param


@pytest.mark.parametrize("case", CASES)
def test_it_is_equal_to_gloo_on_the_cpu(ranks: TorchRanks, case: str) -> None:
    ranks.run(case)
