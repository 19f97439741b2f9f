"""What may be passed to a collective: arrays, buffers and DLPack objects, by reference; what may not, and what to do."""

from __future__ import annotations

import array
import gc
import weakref

import ml_dtypes
import numpy as np
import pytest

import ccl_lab
from ccl_lab.engine.buffers import Registered, as_array, as_bytes
from ccl_lab.engine.pattern import PERIOD, fill, make
from ccl_lab.engine.shapes import layout_of
from ccl_lab.errors import DtypeError, RegistrationError, ShapeError, UsageError


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


class Engine:
    """Counts what is registered, as the native registry does."""

    def __init__(self):
        self.counts = {}

    def register(self, address, nbytes):
        self.counts[address] = self.counts.get(address, 0) + 1

    def unregister(self, address):
        if not self.counts.get(address):
            raise RegistrationError("is not registered")
        self.counts[address] -= 1


def test_a_registered_array_lives_until_it_was_given_back_as_often_as_registered():
    held, x = Registered(Engine()), np.zeros(10)
    alive = weakref.ref(x)
    held.add(x)
    held.add(x)
    held.remove(x)
    del x
    gc.collect()
    assert alive() is not None, "its pages are still shared: the system must not hand them out"
    held.remove(alive())
    gc.collect()
    assert alive() is None
    with pytest.raises(RegistrationError):
        held.remove(np.zeros(3))


def test_what_cannot_be_written_cannot_be_registered():
    with pytest.raises(ShapeError, match="read-only"):
        Registered(Engine()).add(b"abc")


def test_registered_memory_needs_a_communicator():
    with pytest.raises(UsageError, match=r"ccl_lab.init\(\) first"):
        ccl_lab.empty(3, "float32")


@pytest.mark.parametrize("collective, x, out, fits", [
    ("all_reduce", slice(0, 8), slice(0, 8), True),
    ("all_reduce", slice(0, 8), slice(8, 16), True),
    ("all_reduce", slice(0, 8), slice(7, 15), False),
    ("all_gather", slice(8, 16), slice(0, 16), True),
    ("all_gather", slice(0, 8), slice(0, 16), False),
    ("reduce_scatter", slice(0, 16), slice(8, 16), True),
    ("reduce_scatter", slice(0, 16), slice(0, 8), False),
    ("all_to_all", slice(0, 16), slice(0, 16), True),
    ("all_to_all", slice(0, 16), slice(8, 24), False),
])  # fmt: skip
def test_input_and_output_overlap_block_for_block_or_not_at_all(collective, x, out, fits):
    memory, schedule = np.zeros(32, np.float32), ccl_lab.plan(collective, 2, "64B")
    if fits:
        layout_of(schedule, 1, memory[x], memory[out], None)
    else:
        with pytest.raises(ShapeError, match="overlap.*x.copy"):
            layout_of(schedule, 1, memory[x], memory[out], None)
