"""What users pass to a collective, as flat numpy views; and registered memory: to stage what is not, and the arrays that are.

Is: numpy arrays, buffers and DLPack objects -> 1-D arrays without a copy, a pool of staging memory, the arrays that were
registered. Is not: a copy of user data behind their back: what must be contiguous or writable and is not, is refused with
what to do.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DtypeError, ShapeError, UnsupportedError
from ..ir import collectives
from . import device_arrays

if TYPE_CHECKING:
    from .member import Member

MAX_POOLED = 8


def array_of(value: Any, what: str, *, writable: bool = False) -> Any:
    """`as_array`, or a DeviceArray where `value` is memory of a GPU."""
    array = None if isinstance(value, np.ndarray) else device_arrays.find(value, what)
    if array is None:
        return as_array(value, what, writable=writable)
    if writable and not array.flags.writeable:
        raise _read_only(what)
    return array


def as_array(value: Any, what: str, *, writable: bool = False) -> np.ndarray:
    """A contiguous array over the memory of `value` (numpy array, DLPack object or buffer), not a copy.

    Raises DtypeError if the type is unsupported, ShapeError if the memory is not contiguous or not writable, UnsupportedError for
    memory of a GPU.
    """
    if isinstance(value, np.ndarray):
        array = value
    elif device_arrays.find(value, what) is not None:
        raise UnsupportedError(
            f"{what} is memory of a GPU, which only the plain collectives of a Communicator take; copy it to the host (x.cpu(), x.get())."
        )
    elif hasattr(value, "__dlpack__"):
        try:
            array = np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError) as error:
            raise DtypeError(
                f"{what}: {type(value).__name__} cannot be shared through DLPack ({error}). Move it to the CPU, detach it, "
                "or pass a numpy view."
            ) from None
    else:
        try:
            array = np.asarray(memoryview(value))
        except TypeError:
            raise DtypeError(
                f"{what}: expected a numpy array, a DLPack object or a buffer, found {type(value).__name__}."
            ) from None
    collectives.dtype_name(array.dtype)
    if not array.flags.c_contiguous:
        raise ShapeError(
            f"{what}: expected contiguous memory, found strides {array.strides} for shape {array.shape}; "
            "pass np.ascontiguousarray(x)."
        )
    if writable and not array.flags.writeable:
        raise _read_only(what)
    return array


def _read_only(what: str) -> ShapeError:
    return ShapeError(f"{what}: the memory is read-only; pass a writable array as out=.")


def as_bytes(array: np.ndarray) -> np.ndarray:
    """The bytes of a contiguous array: u8, one dimension, same memory."""
    return array.reshape(-1).view(np.uint8)


def same_memory(a: np.ndarray, b: np.ndarray) -> bool:
    """True if both are the same bytes, and any."""
    return a.nbytes > 0 and a.ctypes.data == b.ctypes.data and a.nbytes == b.nbytes


class Staging:
    """Registered buffers by power-of-two size, reused by the calls of one communicator. Not thread-safe."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._free: dict[int, list[np.ndarray]] = defaultdict(list)

    def registered(self, view: np.ndarray) -> bool:
        """True if `view` lies in registered memory."""
        return view.nbytes == 0 or self._member.engine.arena_offset_of(view.ctypes.data, view.nbytes) >= 0

    def take(self, nbytes: int) -> np.ndarray:
        """A registered u8 buffer of at least `nbytes`; give it back with `give`."""
        size = 1 << max(nbytes - 1, 63).bit_length()
        return self._free[size].pop() if self._free[size] else self._member.empty(size)[1]

    def give(self, buffer: np.ndarray) -> None:
        """Returns a buffer to the pool, or to the system when the pool has enough of this size."""
        pool = self._free[buffer.nbytes]
        if len(pool) < MAX_POOLED:
            pool.append(buffer)


class Registered:
    """The arrays of a user that peers may use in place; kept alive as long as they are registered. Not thread-safe."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._held: dict[int, list[np.ndarray]] = defaultdict(list)  # by address, once for each time

    def add(self, array: Any) -> None:
        """Registers its memory, or counts one more time. Raises RegistrationError where it overlaps other such memory."""
        flat = as_array(array, "array", writable=True)
        self._engine.register(flat.ctypes.data, flat.nbytes)
        self._held[flat.ctypes.data].append(flat)

    def remove(self, array: Any) -> None:
        """Undoes one `add`. Raises RegistrationError if there was none."""
        address = as_array(array, "array").ctypes.data
        self._engine.unregister(address)
        held = self._held.get(address)
        if held:
            held.pop()
            if not held:
                del self._held[address]
