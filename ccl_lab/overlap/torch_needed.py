"""torch, for the parts of `overlap` that compute with it.

Is: the one place that imports it. Is not: needed to plan, simulate or explain a schedule. Invariant: without torch, importing
this module raises UnsupportedError that says what to install.
"""

from __future__ import annotations

import numpy as np

from ..errors import DtypeError, UnsupportedError
from ..ir import collectives

try:
    import torch
except ImportError as error:
    raise UnsupportedError(
        f"operators and layers of ccl_lab.overlap compute with torch, which cannot be imported ({error}). "
        'Install it: pip install "ccl-lab[torch]". Schedules (overlap.plan, overlap.choose) and the simulator need no torch.'
    ) from error

_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float64: "float64"}


def dtype_name(dtype: torch.dtype, what: str) -> str:
    """Our name of a torch dtype. Raises DtypeError for a type the operators do not compute in."""
    if dtype not in _NAMES:
        raise DtypeError(f"{what}: expected float32, bfloat16 or float64, found {dtype}; convert it with .to(...).")
    return _NAMES[dtype]


def tensor_over(array: np.ndarray) -> torch.Tensor:
    """A tensor over the memory of a contiguous array, of its shape; it keeps the array alive."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def array_over(tensor: torch.Tensor) -> np.ndarray:
    """The reverse: a flat array over the memory of a contiguous CPU tensor."""
    flat = tensor.detach().reshape(-1)
    if tensor.dtype == torch.bfloat16:
        return flat.view(torch.int16).numpy().view(collectives.numpy_dtype("bfloat16"))
    return flat.numpy()


__all__ = ["array_over", "dtype_name", "tensor_over", "torch"]
