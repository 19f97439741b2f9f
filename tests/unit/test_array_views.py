"""The direct way reads numpy arrays where they are: what it takes, and what it leaves to Python."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import ccl_lab as ccl
from ccl_lab.ir import Collective

from ..ports import free_port

KIND = int(Collective.all_gather)  # of one rank: a copy


@pytest.fixture(scope="module")
def comm() -> Iterator[ccl.Communicator]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CCL_LAB_RANK", "0")
        patch.setenv("CCL_LAB_WORLD_SIZE", "1")
        patch.setenv("CCL_LAB_RENDEZVOUS", f"127.0.0.1:{free_port()}")
        with ccl.init() as one:
            yield one


def directly(comm: ccl.Communicator, x: object, out: object) -> bool:
    return comm._member.engine.collective(KIND, x, out, "sum", 0, -1, 30.0)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "q"])
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (2, 3, 4)])
def test_arrays_of_every_type_and_shape_go_directly(comm: ccl.Communicator, dtype: str, shape: tuple[int, ...]) -> None:
    x = np.arange(1, np.prod(shape) + 1).astype(dtype).reshape(shape)
    out = np.zeros((1, *shape), dtype)
    comm.all_gather(x, out=out)
    out[:] = 0
    assert directly(comm, x, out)
    assert np.array_equal(out[0], x)
    x.setflags(write=False)  # an input may be read-only
    assert directly(comm, x, out)


class Subclass(np.ndarray):
    pass


@pytest.mark.parametrize("view", [memoryview, bytearray, lambda a: a.view(Subclass)])
def test_other_buffers_go_by_the_protocol(comm: ccl.Communicator, view: object) -> None:
    x = view(np.arange(12, dtype=np.uint8))  # type: ignore[operator]
    out = np.zeros((1, 12), np.uint8)
    comm.all_gather(np.arange(12, dtype=np.uint8), out=out)
    out[:] = 0
    assert directly(comm, x, out)
    assert out[0].tolist() == list(range(12))


def test_what_is_not_plain_memory_is_left_to_python(comm: ccl.Communicator) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    out = np.zeros((1, 3, 4), np.float32)
    comm.all_gather(x, out=out)
    locked = np.zeros((1, 3, 4), np.float32)
    locked.setflags(write=False)
    before = out.copy()
    assert not directly(comm, x, locked)
    assert not directly(comm, x.T, out)
    assert not directly(comm, np.zeros((3, 8), np.float32)[:, ::2], out)
    assert not directly(comm, np.frombuffer(bytearray(49), np.float32, 12, offset=1).reshape(3, 4), out)
    assert not directly(comm, x.astype(">f4"), out)
    assert not directly(comm, x.astype(np.uint32), out.view(np.uint32))
    assert not directly(comm, x.astype(bool), np.zeros((1, 3, 4), bool))
    assert not directly(comm, x, np.zeros((1, 3, 4), np.int32))
    assert not directly(comm, x, np.zeros((1, 3, 5), np.float32))
    assert np.array_equal(out, before) and not locked.any()
