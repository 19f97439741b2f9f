"""What users have on a GPU, as addresses: torch, cupy, numba, or anything with `__cuda_array_interface__` or DLPack.

Is: objects -> DeviceArray, with what the collectives ask of a numpy array (shape, dtype, size, contiguity, address), the stream its
owner works on, and new memory of the owner's kind. Is not: a copy, nor an import of those packages: what is asked of one is asked of
the object, or of the module that made it. Whether the memory is what it says, the driver is asked at every call.
"""

from __future__ import annotations

import ctypes
import math
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..errors import DtypeError, ShapeError, UsageError
from ..ir import collectives

DEFAULT_STREAM, LEGACY_STREAM = 0, 1
_DLPACK_CUDA, _DLPACK_MANAGED = 2, 13


class DeviceArray:
    """Contiguous memory of a GPU. `owner`: the user's object; `stream`: a CUstream as a number, on which its values are made."""

    def __init__(
        self, owner: Any, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], stream: int, ordinal: int | None, writable: bool
    ) -> None:
        self.owner, self.address, self.shape, self.dtype = owner, address, shape, dtype
        self.stream, self.ordinal = stream, ordinal
        self.ndim, self.size = len(shape), math.prod(shape)
        self.nbytes = self.size * dtype.itemsize
        self.flags = SimpleNamespace(writeable=writable, c_contiguous=True)
        self.ctypes = SimpleNamespace(data=address)

    def reshape(self, *shape: int) -> DeviceArray:
        """The same memory in another shape, or in one dimension (-1)."""
        wanted = (self.size,) if shape == (-1,) else shape
        assert math.prod(wanted) == self.size
        return DeviceArray(self.owner, self.address, wanted, self.dtype, self.stream, self.ordinal, self.flags.writeable)

    def part(self, begin: int, count: int) -> DeviceArray:
        """`count` of its elements, in one dimension, from the one at `begin`."""
        address = self.address + begin * self.dtype.itemsize
        return DeviceArray(self.owner, address, (count,), self.dtype, self.stream, self.ordinal, self.flags.writeable)

    def fresh(self, shape: tuple[int, ...], dtype: np.dtype[Any] | None = None) -> DeviceArray:
        """New memory of the owner's kind and GPU, of its type unless given. Raises UsageError where that is not known how."""
        owner, module = self.owner, type(self.owner).__module__.partition(".")[0]
        if hasattr(owner, "new_empty"):
            if dtype is None:
                return found(owner.new_empty(shape), "out")
            return found(owner.new_empty(shape, dtype=getattr(sys.modules["torch"], dtype.name) if module == "torch" else dtype), "out")
        if module == "cupy":
            return found(sys.modules["cupy"].empty(shape, dtype or owner.dtype), "out")
        if module == "numba":
            return found(sys.modules["numba.cuda"].device_array(shape, dtype or owner.dtype), "out")
        raise UsageError(f"{type(owner).__name__} does not say how to make another one on the GPU: pass out=.")


def on_device(*arrays: Any) -> bool:
    """True if any of them is memory of a GPU."""
    return any(isinstance(array, DeviceArray) for array in arrays)


def any_of(*values: Any) -> bool:
    """True if any of these objects of users is memory of a GPU."""
    return any(find(value, "an array") is not None for value in values)


def find(value: Any, what: str) -> DeviceArray | None:
    """The memory of `value` if that is on a GPU, else None. Raises DtypeError or ShapeError where it cannot be used as it is."""
    if isinstance(value, DeviceArray):
        return value
    if getattr(value, "is_cuda", False) and hasattr(value, "data_ptr"):
        return _tensor(value, what)
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        return _interface(value, interface, what)
    if hasattr(value, "__dlpack_device__") and int(value.__dlpack_device__()[0]) in (_DLPACK_CUDA, _DLPACK_MANAGED):
        return _dlpack(value, what)
    return None


def found(value: Any, what: str) -> DeviceArray:
    """`find`, of something that is known to be on a GPU."""
    array = find(value, what)
    assert array is not None
    return array


def _type(name: str, what: str) -> np.dtype[Any]:
    try:
        return collectives.numpy_dtype(name)
    except DtypeError as error:
        raise DtypeError(f"{what}: {error}") from None


def _strided(what: str, strides: Any, shape: tuple[int, ...], how: str) -> ShapeError:
    return ShapeError(f"{what}: expected contiguous memory, found strides {tuple(strides)} for shape {shape}; pass {how}.")


def _tensor(tensor: Any, what: str) -> DeviceArray:
    """A tensor of torch; its values are made on torch's current stream."""
    shape = tuple(int(length) for length in tensor.shape)
    if not tensor.is_contiguous():
        raise _strided(what, tensor.stride(), shape, "x.contiguous()")
    dtype = _type(str(tensor.dtype).removeprefix("torch."), what)
    ordinal = int(tensor.device.index)
    stream = int(sys.modules["torch"].cuda.current_stream(ordinal).cuda_stream)
    return DeviceArray(tensor, int(tensor.data_ptr()), shape, dtype, stream, ordinal, True)


def _interface(value: Any, interface: dict[str, Any], what: str) -> DeviceArray:
    """Version 2 or 3 of the interface; `stream` None: nothing to wait for, which the default stream says as well."""
    shape = tuple(int(length) for length in interface["shape"])
    if interface.get("mask") is not None:
        raise DtypeError(f"{what}: masked arrays of a GPU cannot be moved; pass its data.")
    try:
        dtype = np.dtype(interface["typestr"])
        collectives.dtype_name(dtype)
    except (TypeError, DtypeError) as error:
        raise DtypeError(f"{what}: {type(value).__name__} of type {interface['typestr']}: {error}") from None
    strides = interface.get("strides")
    wanted = tuple(math.prod(shape[axis + 1 :]) * dtype.itemsize for axis in range(len(shape)))
    if strides is not None and 0 not in shape and any(a != b for a, b, n in zip(strides, wanted, shape, strict=True) if n > 1):
        raise _strided(what, strides, shape, "a contiguous copy")
    address, read_only = interface["data"]
    stream = interface.get("stream")
    if stream == 0:
        raise UsageError(f"{what}: {type(value).__name__} names stream 0, which the interface forbids; 1 is the default stream.")
    ordinal = getattr(getattr(value, "device", None), "id", None)
    return DeviceArray(value, int(address), shape, dtype, _stream(stream), ordinal, not read_only)


def _stream(number: int | None) -> int:
    """As the driver knows it: the legacy default stream is no handle."""
    return DEFAULT_STREAM if number in (None, LEGACY_STREAM) else int(number)  # type: ignore[arg-type]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}


def _dlpack(value: Any, what: str) -> DeviceArray:
    """The producer makes the values good for the default stream, on which the collective is then ordered."""
    capsule = value.__dlpack__(stream=LEGACY_STREAM)
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = _DLTensor.from_address(pointer_of(capsule, b"dltensor"))
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    dtype = _type(f"{_CODES.get(tensor.code, 'unknown')}{tensor.bits}" if tensor.lanes == 1 else "vectors", what)
    wanted = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    if tensor.strides and any(tensor.strides[axis] != wanted[axis] for axis in range(len(shape)) if shape[axis] > 1):
        raise _strided(what, [tensor.strides[axis] for axis in range(len(shape))], shape, "a contiguous copy")
    address = int(tensor.data or 0) + int(tensor.byte_offset)
    # The capsule was not taken over: it gives the memory back when it goes, so it stays with the array.
    array = DeviceArray(value, address, shape, dtype, DEFAULT_STREAM, int(tensor.device_id), True)
    array.capsule = capsule  # type: ignore[attr-defined]
    return array
