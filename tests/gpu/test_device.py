"""Collectives on a real GPU: every one against numpy with 2, 4 and 8 processes on the GPUs there are, replays, order, types, errors.

Is: the cases of tests/integration/device_cases.py over the system's driver. Is not: a measurement (`python -m bench cuda`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ccl_lab import _core

from ..integration.test_device_calls import run_case

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no CUDA device"),
    pytest.mark.skipif(not _core.device_kernels(), reason="the module was built without nvcc: no reduction kernels for GPUs"),
]
LIBRARY = "libcuda.so.1"


@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize("case", ["every_collective", "every_algorithm", "replays", "stream_order"])
def test_processes_of_one_gpu(case, n):
    run_case(f"{case}(comm)", LIBRARY, n=n)


@pytest.mark.parametrize("case", ["types_and_reductions", "works", "wrong_arrays", "a_rank_stays_away", "a_rank_dies", "different_calls"])
def test_cases(case):
    run_case(f"{case}(comm)", LIBRARY, n=2)
