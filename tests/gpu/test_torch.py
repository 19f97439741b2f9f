"""torch's collectives on tensors of a real GPU, equal to Gloo's on the CPU: the cases of tests/integration/torch_cuda_cases.py.

Is not: a measurement. Needs a torch with CUDA.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from ccl_lab import _core

from ..integration.test_torch_backend_cuda import CASES
from ..integration.torch_ranks import TorchRanks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no CUDA device"),
    pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="this torch was built without CUDA"),
    pytest.mark.skipif(not _core.device_kernels(), reason="the module was built without nvcc: no reduction kernels for GPUs"),
]


@pytest.fixture(scope="module", params=(2, 4), ids="{0} ranks".format)
def ranks(request):
    assert "DEVICE_LIBRARY" not in os.environ
    started = TorchRanks(request.param, "torch_cuda_cases.py")
    yield started
    assert started.close() == [0] * request.param


@pytest.mark.parametrize("case", CASES)
def test_it_is_equal_to_gloo_on_the_cpu(ranks: TorchRanks, case: str) -> None:
    ranks.run(case)
