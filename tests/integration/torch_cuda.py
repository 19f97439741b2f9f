"""torch with a GPU, where torch has none: tensors in memory of the mocked driver, and torch.cuda's streams and events over it.

Is: what a rank of the torch tests imports where DEVICE_LIBRARY names the mock; on a machine with a GPU the same names are torch's own.
Is not: a device for torch. Invariants: what torch does to such a tensor happens on the host, when the current stream has come to it, and
its result is memory of the device again; what the backend enqueues happens on the streams of the mock.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from typing import Any

import torch
from device_cases import Gpu
from torch.distributed import distributed_c10d

MOCKED = "DEVICE_LIBRARY" in os.environ
DEVICE = torch.device("cuda", 0)
COMPUTES = {"copy_", "cat", "clone", "contiguous", "add", "__add__", "add_", "__iadd__"}  # what kernels do; the rest only asks
_here = threading.local()
recorded: list[tuple[int, int]] = []  # (address, stream) of every record_stream


class Event:
    """As torch.cuda.Event."""

    def __init__(self) -> None:
        self.handle = ctypes.c_void_p()
        GPU.here("cuEventCreate", ctypes.byref(self.handle), ctypes.c_uint(2))

    def query(self) -> bool:
        return bool(GPU.library.cuEventQuery(self.handle) == 0)


class Stream:
    """As torch.cuda.Stream."""

    def __init__(self, device: Any = None) -> None:
        handle = ctypes.c_void_p()
        GPU.here("cuStreamCreateWithPriority", ctypes.byref(handle), ctypes.c_uint(1), ctypes.c_int(0))
        self.cuda_stream = int(handle.value or 0)

    def record_event(self) -> Event:
        event = Event()
        GPU.here("cuEventRecord", event.handle, ctypes.c_void_p(self.cuda_stream))
        return event

    def wait_event(self, event: Event) -> None:
        GPU.here("cuStreamWaitEvent", ctypes.c_void_p(self.cuda_stream), event.handle, ctypes.c_uint(0))

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def synchronize(self) -> None:
        GPU.here("cuStreamSynchronize", ctypes.c_void_p(self.cuda_stream))


def current_stream(device: Any = None) -> Stream:
    if not hasattr(_here, "stream"):
        _here.stream = Stream()
    return _here.stream


@contextlib.contextmanager
def stream(chosen: Stream) -> Iterator[None]:
    before = current_stream()
    _here.stream = chosen
    try:
        yield
    finally:
        _here.stream = before


class Future(torch.futures.Future):
    """Of a torch that knows no devices."""

    def __init__(self, *, devices: Any = None) -> None:
        super().__init__()


class OnDevice(torch.Tensor):
    """A tensor in memory of the mock."""

    is_cuda = True
    is_cpu = False
    device = DEVICE

    def record_stream(self, used: Stream) -> None:
        recorded.append((self.data_ptr(), used.cuda_stream))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in COMPUTES:
            current_stream().synchronize()
        return _there(super().__torch_function__(func, types, args, kwargs or {}))


def _there(value: Any) -> Any:
    """Results of torch on the host, brought to the device where they are not there yet."""
    if isinstance(value, OnDevice):
        at = value.untyped_storage().data_ptr()
        return value if at in _owned or at == 0 else to_device(value.as_subclass(torch.Tensor))
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_there(each) for each in value)
    return value


_owned: set[int] = set()
_kept: list[Any] = []


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the GPU."""
    if not MOCKED:
        return tensor.to(DEVICE)
    nbytes = max(tensor.numel() * tensor.element_size(), 1)
    address = ctypes.c_uint64()
    GPU.here("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
    memory = (ctypes.c_byte * nbytes).from_address(int(address.value))
    flat = torch.frombuffer(memory, dtype=torch.uint8)
    _owned.add(flat.untyped_storage().data_ptr())
    _kept.append(memory)
    copy = flat[: tensor.numel() * tensor.element_size()].view(tensor.dtype).view(tensor.shape)
    copy.copy_(tensor)
    return copy.as_subclass(OnDevice)


def to_host(value: Any) -> Any:
    """What tensors hold when the current stream has come this far, as plain tensors."""
    if isinstance(value, (list, tuple)):
        return [to_host(each) for each in value]
    if not MOCKED:
        return value.cpu()
    current_stream().synchronize()
    return value.as_subclass(torch.Tensor).clone() if isinstance(value, OnDevice) else value


class Held:
    """The current stream of this rank stands still until `release`."""

    def __init__(self) -> None:
        self._gpu = GPU if MOCKED else Gpu()
        self._flag, self._side = ctypes.c_uint64(), ctypes.c_void_p()
        self._gpu.here("cuMemAlloc_v2", ctypes.byref(self._flag), ctypes.c_size_t(8))
        self._gpu.here("cuMemcpyHtoD_v2", self._flag, ctypes.byref(ctypes.c_uint64(0)), ctypes.c_size_t(8))
        self._gpu.here("cuStreamCreateWithPriority", ctypes.byref(self._side), ctypes.c_uint(1), ctypes.c_int(0))
        now = torch.cuda.current_stream(DEVICE).cuda_stream
        self._gpu.here("cuStreamWaitValue64_v2", ctypes.c_void_p(now), self._flag, ctypes.c_uint64(1), ctypes.c_uint(0))

    def release(self) -> None:
        self._gpu.here("cuStreamWriteValue64_v2", self._side, self._flag, ctypes.c_uint64(1), ctypes.c_uint(0))


if MOCKED:
    GPU = Gpu()
    torch.cuda.Stream, torch.cuda.Event = Stream, Event  # type: ignore[misc]
    torch.cuda.current_stream, torch.cuda.stream = current_stream, stream  # type: ignore[assignment]
    distributed_c10d.has_torch_function = lambda *_: False  # type: ignore[attr-defined,assignment]
    torch.cuda.get_device_capability = lambda *_: (8, 0)  # type: ignore[assignment]
    torch.futures.Future = Future  # type: ignore[misc]
