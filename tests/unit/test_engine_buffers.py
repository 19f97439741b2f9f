"""What may be passed to a collective: arrays, buffers and DLPack objects, by reference; what may not, and what to do."""

from __future__ import annotations

import array

import ml_dtypes
import numpy as np
import pytest

from ccl_lab.engine.buffers import as_array, as_bytes
from ccl_lab.engine.pattern import PERIOD, fill, make
from ccl_lab.errors import DtypeError, ShapeError


class Exporter:
    """An object that shares its memory through DLPack alone."""

    def __init__(self, memory):
        self.memory = memory

    def __dlpack__(self, **options):
        return self.memory.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.memory.__dlpack_device__()


@pytest.mark.parametrize("share", [lambda x: x, memoryview, Exporter], ids=["numpy", "buffer", "dlpack"])
def test_memory_is_shared_not_copied(share):
    memory = np.arange(6, dtype=np.float32)
    view = as_array(share(memory), "x")
    memory[2] = 99
    assert view[2] == 99 and view.dtype == np.float32


def test_array_module_and_bytearray_are_buffers():
    assert as_array(array.array("i", [1, 2, 3]), "x").tolist() == [1, 2, 3]
    assert as_array(bytearray(b"ab"), "x").dtype == np.uint8


def test_bytes_of_a_bfloat16_array():
    assert as_bytes(np.ones((2, 3), ml_dtypes.bfloat16)).shape == (12,)


@pytest.mark.parametrize("value, error, match", [
    (np.zeros((4, 4), np.float32)[:, 1], ShapeError, "np.ascontiguousarray"),
    (np.zeros(3, complex), DtypeError, "complex128 is not supported"),
    ([1, 2, 3], DtypeError, "found list"),
    (None, DtypeError, "found NoneType"),
])  # fmt: skip
def test_what_cannot_be_used_is_refused_with_a_remedy(value, error, match):
    with pytest.raises(error, match=match):
        as_array(value, "x")


def test_read_only_memory_is_no_output():
    with pytest.raises(ShapeError, match="read-only"):
        as_array(b"abc", "out", writable=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8", "uint8", "int64"])
def test_the_pattern_is_the_same_for_every_size(dtype):
    whole = make(3 * PERIOD + 5, dtype, rank=3)
    assert np.array_equal(whole[:PERIOD], make(PERIOD, dtype, rank=3)) and not np.array_equal(whole, make(len(whole), dtype, rank=4))
    empty = whole[:0]
    fill(empty, 1)
    assert empty.size == 0
