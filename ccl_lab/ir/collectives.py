"""What each collective is: the blocks of its buffers, in-place aliasing, contributions, and the numpy reference.

Is: the specification that planner, verifier, interpreter and tests share. Is not: an algorithm.
Invariant: everything here follows from (collective, n_ranks, root, peer) alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ..arguments import named
from ..errors import DtypeError, ShapeError, suggest
from .ops import ITEMSIZE, Buffer, Collective, DType, RedOp

ROOTED = ("broadcast", "reduce", "gather", "scatter", "send_recv")
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
FLOATS = ("float16", "bfloat16", "float32", "float64")
BITWISE = ("band", "bor", "bxor")


def check_names(collective: str, dtype: str = "float32", redop: str = "sum") -> None:
    """UsageError or DtypeError, with a suggestion, if a name is unknown or the reduction does not fit the dtype."""
    named(collective, "collective", Collective.__members__)
    named(dtype, "dtype", DType.__members__, DtypeError, "is not supported")
    named(redop, "reduction", RedOp.__members__)
    if redop in BITWISE and dtype in FLOATS:
        raise DtypeError(f"reduction {redop!r} on {dtype}: bitwise reductions need an integer type; use int32 or a view.")


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """numpy's dtype of a DType name; bfloat16 comes from ml_dtypes."""
    if dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    check_names("barrier", dtype)
    return np.dtype(dtype)


@lru_cache(maxsize=64)
def dtype_name(dtype: np.dtype[Any]) -> str:
    """DType name of a numpy dtype; DtypeError if the engine has no such type."""
    if dtype.name not in DType.__members__:
        raise DtypeError(f"dtype {dtype.name} is not supported.{suggest(dtype.name, DType.__members__)}")
    return dtype.name


def itemsize(dtype: str) -> int:
    """Bytes of an element."""
    check_names("barrier", dtype)
    return ITEMSIZE[DType[dtype]]


def blocks(collective: str, n_ranks: int, root: int = 0, peer: int = -1) -> np.ndarray:
    """Blocks of INPUT and OUTPUT per rank: int64[n_ranks, 2]."""
    n, shape = n_ranks, np.zeros((n_ranks, 2), np.int64)
    ins = {"all_reduce": 1, "all_gather": 1, "reduce_scatter": n, "reduce": 1, "gather": 1, "all_to_all": n, "all_to_allv": n}
    outs = {"all_reduce": 1, "all_gather": n, "reduce_scatter": 1, "broadcast": 1, "scatter": 1, "all_to_all": n, "all_to_allv": n}
    shape[:, 0], shape[:, 1] = ins.get(collective, 0), outs.get(collective, 0)
    if collective in ("broadcast", "send_recv"):
        shape[root, 0] = 1
    if collective == "scatter":
        shape[root, 0] = n
    if collective in ("reduce", "gather"):
        shape[root, 1] = 1 if collective == "reduce" else n
    if collective == "send_recv":
        shape[peer, 1] = 1
    return shape


def message_blocks(collective: str, n_ranks: int) -> int:
    """Blocks of the larger buffer of a rank: `nbytes` of a message divided by this is one block."""
    return n_ranks if collective in ("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all", "all_to_allv") else 1


def alias(collective: str, rank: int, root: int) -> tuple[int, int, int] | None:
    """In-place aliasing on a rank: (aliased buffer, base buffer, block of the base where it begins), or None."""
    if collective in ("all_reduce", "all_to_all", "all_to_allv"):
        return (Buffer.input, Buffer.output, 0)
    if collective in ("broadcast", "reduce") and rank == root:
        return (Buffer.input, Buffer.output, 0)
    if collective == "all_gather" or (collective == "gather" and rank == root):
        return (Buffer.input, Buffer.output, rank)
    if collective == "reduce_scatter" or (collective == "scatter" and rank == root):
        return (Buffer.output, Buffer.input, rank)
    return None


def expected(collective: str, n_ranks: int, rank: int, root: int = 0, peer: int = -1) -> list[tuple[list[int], int]]:
    """For each OUTPUT block of `rank`: (source ranks whose contributions it must hold exactly once, their INPUT block)."""
    n, everyone = n_ranks, list(range(n_ranks))
    if collective == "all_reduce" or (collective == "reduce" and rank == root):
        return [(everyone, 0)]
    if collective == "all_gather" or (collective == "gather" and rank == root):
        return [([source], 0) for source in range(n)]
    if collective == "reduce_scatter":
        return [(everyone, rank)]
    if collective == "broadcast" or (collective == "send_recv" and rank == peer):
        return [([root], 0)]
    if collective == "scatter":
        return [([root], rank)]
    if collective in ("all_to_all", "all_to_allv"):
        return [([source], rank) for source in range(n)]
    return []


def accumulate(parts: list[np.ndarray], redop: str) -> np.ndarray:
    """`parts[0] (+) parts[1] (+) …` in that order, as the engine computes it (avg: the sum; see `finish`)."""
    dtype = parts[0].dtype
    wide = np.float32 if dtype.itemsize == 2 and dtype_name(dtype) in FLOATS else dtype
    functions = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
                 "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}  # fmt: skip
    total = parts[0].astype(wide)
    with np.errstate(all="ignore"):
        for part in parts[1:]:
            functions[redop](total, part.astype(wide), out=total)
        return total.astype(dtype)


def finish(output: np.ndarray, redop: str, n_ranks: int) -> np.ndarray:
    """The end of an avg: output / n, 16-bit floats through float32, integers rounding toward zero."""
    if redop != "avg" or output.size == 0:
        return output
    name = dtype_name(output.dtype)
    with np.errstate(all="ignore"):
        if name in ("float16", "bfloat16"):
            return (output.astype(np.float32) / np.float32(n_ranks)).astype(output.dtype)
        if name in FLOATS:
            return output / output.dtype.type(n_ranks)
        wide = output.astype(np.int64)
        # Rounded toward zero from the floor, since abs() of the smallest int64 has no value.
        return (wide // n_ranks + ((wide < 0) & (wide % n_ranks != 0))).astype(output.dtype)


def reference(collective: str, inputs: list[np.ndarray], *, redop: str = "sum", root: int = 0, peer: int = -1,
              counts: np.ndarray | None = None) -> list[np.ndarray]:  # fmt: skip
    """Outputs of a collective computed directly with numpy, rank by rank.

    `inputs`: one 1-D array per rank (empty where the rank has none). Reductions go through `accumulate` in rank order:
    exact for integers and for floats whose sums are exact; other floats differ from a schedule's order by rounding.
    """
    n = len(inputs)
    empty = inputs[root][:0]
    if collective in REDUCING:
        total = finish(accumulate(inputs, redop), redop, n)
        if collective == "all_reduce":
            return [total.copy() for _ in range(n)]
        if collective == "reduce":
            return [total if r == root else empty for r in range(n)]
        if total.size % n:
            raise ShapeError(f"reduce_scatter input has {total.size} elements: expected a multiple of {n} ranks.")
        return [block.copy() for block in total.reshape(n, -1)]
    if collective in ("all_gather", "gather"):
        whole = np.concatenate(inputs)
        return [whole.copy() if collective == "all_gather" or r == root else empty for r in range(n)]
    if collective in ("broadcast", "send_recv"):
        return [inputs[root].copy() if collective == "broadcast" or r == peer else empty for r in range(n)]
    if collective == "scatter":
        return [block.copy() for block in inputs[root].reshape(n, -1)]
    if collective in ("all_to_all", "all_to_allv"):
        if counts is None:
            counts = np.array([[x.size // n] * n for x in inputs])
        starts = np.concatenate([np.zeros((n, 1), np.int64), np.cumsum(counts, axis=1)], axis=1)
        return [np.concatenate([inputs[s][starts[s, r] : starts[s, r + 1]] for s in range(n)]) for r in range(n)]
    return [empty for _ in range(n)]
