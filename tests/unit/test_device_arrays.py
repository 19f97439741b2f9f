"""Arrays of a GPU as torch, cupy, numba and DLPack show theirs, without any of them: what is taken from each, and what is refused."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from ccl_lab.engine import device_arrays
from ccl_lab.engine.buffers import array_of, as_array
from ccl_lab.errors import DtypeError, ShapeError, UnsupportedError, UsageError


class Tensor:
    """As much of a torch tensor on GPU 2 as is asked for."""

    is_cuda = True

    def __init__(self, shape=(2, 3), dtype="torch.bfloat16", contiguous=True):
        self.shape, self.dtype, self._contiguous = shape, dtype, contiguous
        self.device = SimpleNamespace(index=2)

    def data_ptr(self):
        return 0x7000

    def is_contiguous(self):
        return self._contiguous

    def stride(self):
        return (1, 2)

    def new_empty(self, shape):
        return Tensor(shape, self.dtype)


@pytest.fixture
def torch_streams(monkeypatch):
    cuda = SimpleNamespace(current_stream=lambda ordinal: SimpleNamespace(cuda_stream=0x50 + ordinal))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


def interface(**changes):
    words = {"shape": (4, 5), "typestr": "<f4", "data": (0x9000, False), "version": 3, "strides": None, "stream": 7, **changes}
    return SimpleNamespace(__cuda_array_interface__=words)


def test_tensors(torch_streams):
    array = array_of(Tensor(), "x")
    assert (array.address, array.shape, array.dtype.name, array.nbytes) == (0x7000, (2, 3), "bfloat16", 12)
    assert (array.stream, array.ordinal) == (0x52, 2)
    assert device_arrays.on_device(array) and array.fresh((8,)).owner.shape == (8,)
    with pytest.raises(ShapeError, match=r"x.contiguous\(\)"):
        array_of(Tensor(contiguous=False), "x")
    with pytest.raises(DtypeError, match="complex64"):
        array_of(Tensor(dtype="torch.complex64"), "x")


def test_the_interface():
    array = array_of(interface(), "x")
    assert (array.address, array.size, array.stream, array.ordinal) == (0x9000, 20, 7, None)
    assert array_of(interface(stream=None), "x").stream == array_of(interface(stream=1), "x").stream == 0
    assert array_of(interface(strides=(20, 4)), "x").size == 20
    assert array_of(array, "x") is array and array.reshape(-1).shape == (20,)
    for changes, error, words in (
        ({"strides": (4, 16)}, ShapeError, "contiguous"),
        ({"typestr": "<c8"}, DtypeError, "complex64"),
        ({"stream": 0}, UsageError, "forbids"),
        ({"mask": object()}, DtypeError, "masked"),
    ):
        with pytest.raises(error, match=words):
            array_of(interface(**changes), "x")
    with pytest.raises(ShapeError, match="read-only"):
        array_of(interface(data=(0x9000, True)), "out", writable=True)
    with pytest.raises(UsageError, match="pass out="):
        array.fresh((1,))


def test_dlpack_of_a_gpu():
    """A capsule of the host's memory whose owner says it is of GPU 1."""
    host = np.arange(6, dtype=np.float64).reshape(2, 3)

    class Shown:
        asked = None

        def __dlpack_device__(self):
            return (2, 1)

        def __dlpack__(self, *, stream=None):
            self.asked = stream
            return host.__dlpack__()

    shown = Shown()
    array = array_of(shown, "x")
    assert (array.address, array.shape, array.dtype.name, shown.asked) == (host.ctypes.data, (2, 3), "float64", 1)


def test_arrays_of_the_host_are_not_on_a_device():
    assert device_arrays.find(np.zeros(3), "x") is None
    assert isinstance(array_of(np.zeros(3), "x"), np.ndarray)
    import torch

    assert isinstance(array_of(torch.zeros(3), "x"), np.ndarray)


def test_what_only_works_on_the_host_says_so(torch_streams):
    for made in (Tensor(), interface()):
        with pytest.raises(UnsupportedError, match=r"x is memory of a GPU.*copy it to the host"):
            as_array(made, "x")
