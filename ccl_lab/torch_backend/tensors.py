"""What torch passes to a collective, as arrays for the engine; and the engine's errors, as torch's users expect them.

Is: tensor -> flat numpy view of the same memory (of a GPU: its address and stream), torch's reductions and types in the engine's terms,
errors. Is not: a collective. Invariants: a contiguous tensor is never copied; what cannot be reduced is refused by name before
anything starts.

Types: reductions take float16, bfloat16, float32, float64, the integers to 64 bits and uint8; bool by logic; complex for sum
and average, as pairs. Collectives that only move take any type.
"""

from __future__ import annotations

import ctypes
import datetime
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.distributed as dist

from ..engine.device_arrays import DeviceArray
from ..errors import CclError, DtypeError, OpTimeout, ShapeError, UnsupportedError, UsageError

_REDUCED = {
    torch.float16: np.dtype(np.float16), torch.bfloat16: np.dtype(ml_dtypes.bfloat16), torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64), torch.int8: np.dtype(np.int8), torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32), torch.int64: np.dtype(np.int64), torch.uint8: np.dtype(np.uint8),
}  # fmt: skip
_PAIRS = {torch.complex64: np.dtype(np.float32), torch.complex128: np.dtype(np.float64)}
_MOVED = {1: np.dtype(np.uint8), 2: np.dtype(np.int16), 4: np.dtype(np.int32), 8: np.dtype(np.int64), 16: np.dtype(np.int64)}
_Memory = ctypes.c_byte * (1 << 46)  # one type for all sizes: making one costs more than a small collective
_NAMES = {
    "SUM": "sum", "AVG": "avg", "PRODUCT": "prod", "MIN": "min", "MAX": "max", "BAND": "band", "BOR": "bor", "BXOR": "bxor",
}  # fmt: skip
_LOGIC = {"sum": "max", "max": "max", "bor": "max", "prod": "min", "min": "min", "band": "min", "bxor": "bxor"}
_BITS = frozenset({"band", "bor", "bxor"})


class BackendError(dist.DistBackendError):
    """A collective of the backend failed. `cause` is the ccl_lab error: it names rank, NIC and op where there are any."""

    def __init__(self, cause: CclError) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.cause = cause


class BackendTimeout(BackendError, TimeoutError):
    """A collective, or a wait for one, passed its deadline."""


def as_torch(error: BaseException) -> BaseException:
    """The error torch's users expect: a DistBackendError (a RuntimeError); wrong calls stay ValueError or TypeError."""
    if isinstance(error, OpTimeout):
        raised: BaseException = BackendTimeout(error)
    elif not isinstance(error, CclError) or isinstance(error, (UsageError, UnsupportedError)):
        return error
    else:
        raised = BackendError(error)
    raised.__cause__ = error
    return raised


def redop_name(op: Any) -> str:
    """A torch ReduceOp in the engine's words. Raises UnsupportedError for PREMUL_SUM and what is not known."""
    name = getattr(op, "op", op).name
    if name not in _NAMES:
        raise UnsupportedError(
            f"ReduceOp.{name} is not supported by the ccl_lab backend: scale the tensor and use ReduceOp.SUM. "
            f"Supported: {', '.join(_NAMES)}."
        )
    return _NAMES[name]


def seconds_of(timeout: Any) -> float | None:
    """A timeout of torch's options in seconds; None where it is not set, or 0, which torch uses for "none of its own"."""
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else float(timeout)
    return seconds if seconds > 0 else None


def check(tensor: Any, what: str) -> torch.Tensor:
    """The tensor itself. Raises UnsupportedError where it is not dense memory of the CPU or of a GPU, UsageError where it is no tensor."""
    if not isinstance(tensor, torch.Tensor):
        raise UsageError(f"{what}: expected a torch.Tensor, found {type(tensor).__name__}.")
    if not (tensor.is_cpu or tensor.is_cuda):
        raise UnsupportedError(
            f"{what} is on {tensor.device}: the ccl_lab backend moves tensors of the CPU and of CUDA devices. Pass tensor.cpu()."
        )
    if tensor.layout is not torch.strided:
        raise UnsupportedError(
            f"{what} is {tensor.layout}: the ccl_lab backend moves dense tensors. Pass tensor.to_dense()."
        )
    return tensor


def only(tensors: Any, what: str) -> Any:
    """The one element of a list: a rank has one device here. Raises UsageError for another number."""
    if len(tensors) != 1:
        raise UsageError(f"{what}: expected a list of one, found {len(tensors)}: a rank of this backend has one device.")
    return tensors[0]


def _flat(tensor: torch.Tensor, dtype: np.dtype) -> Any:
    """The memory of a contiguous tensor as a flat array of `dtype` (of a GPU: a DeviceArray), which keeps the tensor alive.

    Not `tensor.numpy()`: that forbids torch to resize the storage ever after, which FSDP does to free its parameters.
    """
    nbytes = tensor.numel() * tensor.element_size()
    if tensor.is_cuda:
        return _on_gpu(tensor, nbytes // dtype.itemsize, dtype)
    if nbytes == 0:
        return np.empty(0, dtype)
    memory = _Memory.from_address(tensor.data_ptr())
    memory.owner = tensor
    return np.ndarray(nbytes // dtype.itemsize, dtype, memory)


def _on_gpu(tensor: torch.Tensor, count: int, dtype: np.dtype) -> Any:
    """The same of a GPU: ordered behind torch's current stream there."""
    ordinal = int(tensor.device.index)
    stream = int(torch.cuda.current_stream(tensor.device).cuda_stream)
    return DeviceArray(tensor, int(tensor.data_ptr()), (count,), dtype, stream, ordinal, True)


def moved(tensor: torch.Tensor) -> Any:
    """A contiguous tensor as a flat array of integers as wide as its elements (16 bytes: two), for what only moves."""
    if tensor.is_conj() or tensor.is_neg():
        raise UnsupportedError("a conjugate or negative view of a tensor has no memory of its own: pass tensor.resolve_conj().")
    return _flat(tensor, _MOVED[tensor.element_size()])


def reduced(tensor: torch.Tensor, redop: str) -> tuple[Any, str]:
    """(a contiguous tensor as a flat array that the engine can reduce, same memory; the reduction to ask for).

    Raises DtypeError, naming type and reduction, where there is none.
    """
    dtype = tensor.dtype
    known = _REDUCED.get(dtype)
    if known is not None:
        if redop in _BITS and dtype.is_floating_point:
            raise _refused(dtype, redop)
        return _flat(tensor, known), redop
    if dtype is torch.bool and redop in _LOGIC:
        return _flat(tensor, _MOVED[1]), _LOGIC[redop]
    if dtype in _PAIRS and redop in ("sum", "avg") and not tensor.is_conj():
        return _flat(tensor, _PAIRS[dtype]), redop
    raise _refused(dtype, redop)


def _refused(dtype: torch.dtype, redop: str) -> DtypeError:
    return DtypeError(
        f"reduction {redop!r} of {dtype}: the ccl_lab backend reduces float16, bfloat16, float32, float64 (not bitwise), int8 to "
        "int64, uint8, bool (not avg), and complex64 and complex128 (sum, avg). Convert the tensor first."
    )


def dense(tensor: torch.Tensor, back: list[tuple[torch.Tensor, torch.Tensor]] | None) -> torch.Tensor:
    """The tensor, or where its memory has gaps, a contiguous copy, which `back` gets to be copied back at the end."""
    if tensor.is_contiguous():
        return tensor
    copy = tensor.detach().contiguous()
    if back is not None:
        back.append((tensor, copy))
    return copy


def copy_back(back: list[tuple[torch.Tensor, torch.Tensor]]) -> Callable[[], None] | None:
    """What is left to do at the end: the copies into the caller's tensors."""
    if not back:
        return None

    def finish() -> None:
        with torch.no_grad():
            for target, source in back:
                target.copy_(source.view(target.shape))

    return finish


def same_sizes(tensors: Any) -> bool:
    """True if all hold as many elements as the first."""
    return all(tensor.numel() == tensors[0].numel() for tensor in tensors)


def one_dtype(tensors: Any, what: str) -> None:
    """Raises DtypeError where not all are of one type."""
    if any(tensor.dtype != tensors[0].dtype for tensor in tensors):
        found = sorted({str(tensor.dtype) for tensor in tensors})
        raise DtypeError(f"{what}: expected tensors of one type, found {', '.join(found)}.")
    one_device(tensors, what)


def one_device(tensors: Any, what: str) -> None:
    """Raises UsageError where not all are on one device."""
    if any(tensor.device != tensors[0].device for tensor in tensors):
        found = sorted({str(tensor.device) for tensor in tensors})
        raise UsageError(f"{what}: expected tensors on one device, found {', '.join(found)}.")


def fits(condition: bool, message: str) -> None:
    """Raises ShapeError with the message unless the sizes fit."""
    if not condition:
        raise ShapeError(message)


def as_one(tensors: list[torch.Tensor]) -> torch.Tensor | None:
    """The flat tensor that these lie in one behind the other without gaps, in order; None if they do not."""
    first = tensors[0]
    at, storage = first.data_ptr(), first.untyped_storage().data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != at or not tensor.is_contiguous() or tensor.untyped_storage().data_ptr() != storage:
            return None
        at += tensor.numel() * tensor.element_size()
    total = sum(tensor.numel() for tensor in tensors)
    return first.detach().as_strided((total,), (1,), first.storage_offset())
