"""The compiled reductions, bit for bit against numpy, on every instruction set of this processor."""

from __future__ import annotations

import ast
import itertools
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import ccl_lab
from ccl_lab import _core
from ccl_lab.errors import DtypeError, ShapeError, UsageError
from ccl_lab.ir import DType, RedOp

INTEGERS = [d for d in DType if d >= DType.int8]
FLOATS = [d for d in DType if d < DType.int8]
NUMPY = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
         "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}  # fmt: skip
BITWISE = (RedOp.band, RedOp.bor, RedOp.bxor)
CASES = [(d, r) for d in DType for r in RedOp if d in INTEGERS or r not in BITWISE]


def dtype_of(dtype: DType) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if dtype == DType.bfloat16 else dtype.name)


def wide(dtype: DType) -> np.dtype:
    """16-bit floats accumulate in float32."""
    return np.dtype(np.float32) if dtype in (DType.float16, DType.bfloat16) else dtype_of(dtype)


def bits(array: np.ndarray) -> np.ndarray:
    """The bits, with one NaN for all: which payload survives is the processor's business."""
    raw = array.view(f"u{array.itemsize}").copy()
    if array.dtype.kind not in "iu":
        raw[np.isnan(array.astype(np.float64))] = 0
    return raw


def values(dtype: DType, n: int, rng: np.random.Generator) -> np.ndarray:
    """Random bits: for floats that is every exponent, denormals, infinities and NaN."""
    return np.frombuffer(rng.bytes(n * dtype_of(dtype).itemsize), dtype_of(dtype)).copy()


@pytest.mark.parametrize(("dtype", "redop"), CASES, ids=[f"{d.name}-{r.name}" for d, r in CASES])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_reduce_is_numpy(dtype, redop):
    rng = np.random.default_rng([dtype, redop])
    for n, n_sources, isa in itertools.product((0, 1, 7, 1024, 3001), (1, 2, 3, 6), (0, 1, 2)):
        sources = [values(dtype, n, rng) for _ in range(n_sources)]
        want = sources[0].astype(wide(dtype))
        for source in sources[1:]:
            want = NUMPY[redop.name](want, source.astype(wide(dtype)))
        out = sources[-1].copy()
        inputs = [*sources[:-1], out]
        _core.reduce(dtype, redop, out.view(np.uint8), [x.view(np.uint8) for x in inputs], isa)
        np.testing.assert_array_equal(bits(out), bits(want.astype(dtype_of(dtype))))


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_edges_of_floats(dtype):
    kind = dtype_of(dtype)
    info = ml_dtypes.finfo(kind)
    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, info.max, -info.max, info.tiny, info.smallest_subnormal, 1.0, -1.5], kind)
    a, b = (np.ascontiguousarray(x.reshape(-1)) for x in np.meshgrid(edges, edges))
    for redop in (RedOp.sum, RedOp.prod, RedOp.min, RedOp.max):
        out = np.empty_like(a)
        _core.reduce(dtype, redop, out.view(np.uint8), [a.view(np.uint8), b.view(np.uint8)])
        want = NUMPY[redop.name](a.astype(wide(dtype)), b.astype(wide(dtype))).astype(kind)
        np.testing.assert_array_equal(np.isnan(out.astype(float)), np.isnan(want.astype(float)))
        if redop in (RedOp.sum, RedOp.prod):
            np.testing.assert_array_equal(bits(out), bits(want))
        else:  # numpy leaves open which of two zeros is the smaller
            np.testing.assert_array_equal(out.astype(float), want.astype(float))


@pytest.mark.parametrize("dtype", list(DType), ids=lambda d: d.name)
def test_divide(dtype):
    kind = dtype_of(dtype)
    x = np.arange(-60, 61).astype(kind) if dtype != DType.uint8 else np.arange(200).astype(kind)
    out = x.copy()
    _core.divide(dtype, out.view(np.uint8), 7)
    if dtype in FLOATS:
        want = (x.astype(wide(dtype)) / wide(dtype).type(7)).astype(kind)
    else:
        want = np.trunc(x.astype(np.float64) / 7).astype(kind)
    np.testing.assert_array_equal(bits(out), bits(want))


def test_what_is_not_defined_is_refused():
    a, b = np.zeros(8, np.uint8), np.zeros(4, np.uint8)
    with pytest.raises(DtypeError, match="bxor is not defined for float32"):
        _core.reduce(DType.float32, RedOp.bxor, a, [a, a])
    with pytest.raises(DtypeError, match="element type"):
        _core.reduce(99, RedOp.sum, a, [a])
    with pytest.raises(ShapeError, match="source 1 has 4 bytes, dst has 8"):
        _core.reduce(DType.uint8, RedOp.sum, a, [a, b])
    with pytest.raises(ShapeError, match="at least one source"):
        _core.reduce(DType.uint8, RedOp.sum, a, [])
    with pytest.raises(ShapeError, match="not a multiple"):
        _core.reduce(DType.float64, RedOp.sum, b, [b])
    with pytest.raises(UsageError, match="divisor"):
        _core.divide(DType.float64, a, 0)


def test_codes_are_error_classes():
    from ccl_lab.errors import all_errors

    codes = _core.status_codes()
    assert set(codes) <= set(all_errors())
    assert sorted(codes.values()) == list(range(1, len(codes) + 1))
    assert _core.build_info()["isa"] in ("base", "avx2", "avx512")
    assert 0 < _core.now_ns() <= _core.now_ns()


def test_the_stub_names_all_that_the_module_has_and_nothing_else() -> None:
    def named(body: list[ast.stmt]) -> set[str]:
        variables = {each.target.id for each in body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)}
        return variables | {each.name for each in body if isinstance(each, ast.FunctionDef | ast.ClassDef)}

    stub = ast.parse(Path(ccl_lab.__file__).with_name("_core.pyi").read_text()).body
    assert named(stub) == {name for name in vars(_core) if not name.startswith("__")}
    for each in stub:
        if not isinstance(each, ast.ClassDef):
            continue
        members = {name for name in named(each.body) if not name.startswith("_")}
        assert members == {name for name in vars(getattr(_core, each.name)) if not name.startswith("_")}, each.name


def test_no_symbol_of_the_library_of_cpp_is_seen_from_outside():
    """Linked in statically, its streams and locales would be mixed up with those of the shared one that numpy brings."""
    shown = subprocess.run(["nm", "-D", "--defined-only", _core.__file__], capture_output=True, text=True, check=True).stdout
    names = [line.split()[-1] for line in shown.splitlines()]
    assert "PyInit__core" in names
    assert not [name for name in names if name.startswith(("_ZNSt6locale", "_ZNSt8ios_base", "_ZNSt7num_get", "_ZNSi", "_ZNSo"))]
