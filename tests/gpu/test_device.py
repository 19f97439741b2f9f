"""Collectives on a real GPU: every one against numpy with 2, 4 and 8 processes on the GPUs there are, replays, order, types, errors.

Is: the cases of tests/integration/device_cases.py over the system's driver. Is not: a measurement (`python -m bench cuda`).
"""

from __future__ import annotations

import ctypes
import os
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


def test_memory_of_a_gpu_has_a_dma_buf_and_its_writes_can_be_made_visible():
    """What NICs need of the GPU; the NIC's half needs a NIC that takes it (docs/cuda.md)."""
    gpu = _core.device_driver(LIBRARY)["gpus"][0]
    library = ctypes.CDLL(LIBRARY)
    context, memory, fd = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int(-1)
    nbytes = ctypes.c_size_t(4 << 20)
    assert library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    try:
        assert library.cuCtxPushCurrent_v2(context) == 0
        assert library.cuMemAlloc_v2(ctypes.byref(memory), nbytes) == 0
        result = library.cuMemGetHandleForAddressRange(ctypes.byref(fd), memory, nbytes, 1, ctypes.c_ulonglong(0))
        assert (result == 0) == gpu["dma_buf"]  # what doctor and explain() say is so
        if gpu["dma_buf"]:
            assert gpu["flushes"] and "dmabuf" in os.readlink(f"/proc/self/fd/{fd.value}")
            os.close(fd.value)
        assert library.cuMemFree_v2(memory) == 0
        assert library.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0
    finally:
        library.cuDevicePrimaryCtxRelease_v2(0)
