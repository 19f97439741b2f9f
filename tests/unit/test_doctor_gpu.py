"""What `doctor` says of GPUs: from what the driver would answer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ccl_lab import _core, rdma
from ccl_lab.cli import doctor_gpu
from ccl_lab.engine import devices
from ccl_lab.errors import UnsupportedError

GPU = {
    "ordinal": 0, "name": "H200", "uuid": "GPU-0", "memory_bytes": 141 << 30, "capability": 90, "multiprocessors": 132, "copy_engines": 3,
    "stream_memory_ops": True, "posix_handles": True, "reaches": [True, True], "dma_buf": True, "flushes": True,
}  # fmt: skip


def said(monkeypatch: pytest.MonkeyPatch, *changes: dict) -> doctor_gpu.Finding:
    gpus = [{**GPU, "ordinal": at, **change} for at, change in enumerate(changes)]
    monkeypatch.setattr(devices, "driver", lambda library=None: {"version": "12.4", "gpus": gpus})
    return doctor_gpu.check_gpus()


def test_gpus_that_can_all_be_used(monkeypatch):
    found = said(monkeypatch, {}, {})
    assert found.ok and "driver for CUDA 12.4; GPU 0 H200, sm_90" in found.found and "to do" not in found.found


def test_what_is_wrong_with_some_is_to_do(monkeypatch):
    found = said(monkeypatch, {"reaches": [True, False]}, {"reaches": [False, True], "capability": 75})
    assert found.ok and "does not reach GPU 1" in found.found and "topo -p2p" in found.found and "only copy" in found.found


def test_without_stream_memory_operations_there_is_none_to_use(monkeypatch):
    found = said(monkeypatch, {"stream_memory_ops": False})
    assert not found.ok and "GPU 0: ranks signal by stream memory operations" in found.get


def test_no_driver_and_no_gpu(monkeypatch):
    assert "CUDA_VISIBLE_DEVICES" in said(monkeypatch).get
    monkeypatch.undo()
    found = doctor_gpu.check_gpus("libcuda_of_nowhere.so")
    assert not found.ok and "libcuda_of_nowhere.so does not load" in found.get


def test_gpus_and_nics_that_can_do_without_pinned_memory(monkeypatch):
    def direct(*changes: dict, refusing: str = "") -> doctor_gpu.Finding:
        def takes(device: str) -> None:
            if device == refusing:
                raise UnsupportedError(f"RDMA device {device} takes no dma-bufs: Operation not supported")

        gpus = [{**GPU, "ordinal": at, **change} for at, change in enumerate(changes)]
        monkeypatch.setattr(devices, "driver", lambda library=None: {"version": "12.4", "gpus": gpus})
        monkeypatch.setattr(_core, "rdma_takes_dma_bufs", takes)
        return doctor_gpu.check_gpu_direct()

    monkeypatch.setattr(rdma, "devices", lambda root="/": [SimpleNamespace(name="mlx5_0"), SimpleNamespace(name="mlx5_1")])
    found = direct({}, {})
    assert found.ok and found.found == "dma-bufs of 2 of 2 GPUs, taken by mlx5_0, mlx5_1"
    found = direct({}, {"dma_buf": False})
    assert not found.ok and "GPU 1 has no dma-bufs" in found.get and "GPU 0" not in found.get
    assert "GPU 0 does not say how what NICs write becomes visible" in direct({"flushes": False}).get
    assert "mlx5_1 takes no dma-bufs" in direct({}, refusing="mlx5_1").get
    assert direct().found == "no GPU"
    monkeypatch.setattr(rdma, "devices", lambda root="/": [])
    assert direct({}).found == "no RDMA device"


def test_kernels(monkeypatch):
    monkeypatch.setattr(devices, "kernels", lambda: "")
    assert "nvcc" in doctor_gpu.check_gpu_kernels().get
    monkeypatch.setattr(devices, "kernels", lambda: "sm_90 and PTX, by nvcc 13.0")
    assert doctor_gpu.check_gpu_kernels().ok


def test_the_driver_of_this_machine_answers_or_says_what_is_missing():
    try:
        assert isinstance(devices.driver()["gpus"], list)
    except UnsupportedError as error:
        assert "driver" in str(error)
