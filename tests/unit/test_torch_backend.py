"""The parts of the torch backend that need no other rank."""

from __future__ import annotations

import datetime
import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist

import ccl_lab as ccl
from ccl_lab.torch_backend import BackendError, BackendTimeout, needs, register, tensors
from ccl_lab.torch_backend.mail import _after
from ccl_lab.torch_backend.plans import _rounded


def test_it_is_registered_once_however_often():
    register()
    assert dist.Backend.backend_list.count("ccl_lab") == 1 and dist.Backend.CCL_LAB == "ccl_lab"


def test_missing_torch_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ccl.UnsupportedError, match=r'pip install "ccl-lab\[torch\]"'):
        needs.need_torch()


def test_old_torch_says_which_is_needed(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.3.1")
    with pytest.raises(ccl.UnsupportedError, match="2.4"):
        needs.need_torch()


def test_torch_without_distributed_is_named(monkeypatch):
    monkeypatch.setattr(dist, "is_available", lambda: False)
    with pytest.raises(ccl.UnsupportedError, match="without torch.distributed"):
        needs.need_torch()


@pytest.mark.parametrize(
    "error, kind, also",
    [
        (ccl.OpTimeout("late", rank=1), BackendTimeout, TimeoutError),
        (ccl.PeerLostError("gone", rank=1), BackendError, dist.DistBackendError),
        (ccl.AbortedError("stopped"), BackendError, RuntimeError),
        (ccl.ShapeError("sizes"), ccl.ShapeError, ValueError),
        (ccl.UnsupportedError("cuda"), ccl.UnsupportedError, NotImplementedError),
        (KeyError("other"), KeyError, LookupError),
    ],
)
def test_errors_are_what_torch_users_catch(error, kind, also):
    raised = tensors.as_torch(error)
    assert type(raised) is kind and isinstance(raised, also)
    if isinstance(raised, BackendError):
        assert raised.cause is error and type(error).__name__ in str(raised)
    assert all(known.__module__ == "ccl_lab.errors" for known in ccl.errors.all_errors().values())


def test_reductions_have_names():
    assert tensors.redop_name(dist.ReduceOp.SUM) == "sum" == tensors.redop_name(dist.AllreduceOptions().reduceOp)
    assert tensors.redop_name(dist.ReduceOp.PRODUCT) == "prod" and tensors.redop_name(dist.ReduceOp.BXOR) == "bxor"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.complex128, torch.int64])
def test_arrays_share_the_memory_and_keep_it(dtype):
    tensor = torch.ones(6, dtype=dtype).view(2, 3)
    array = tensors.moved(tensor)
    assert array.ctypes.data == tensor.data_ptr() and array.nbytes == tensor.numel() * tensor.element_size()
    array[:] = 0
    assert not tensor.any()
    tensor.untyped_storage().resize_(0)  # FSDP frees its parameters so


def test_pairs_and_logic_are_reduced_as_such():
    array, op = tensors.reduced(torch.ones(3, dtype=torch.complex64), "sum")
    assert array.dtype == np.float32 and array.size == 6 and op == "sum"
    assert tensors.reduced(torch.ones(3, dtype=torch.bool), "sum")[1] == "max"
    with pytest.raises(ccl.DtypeError, match="bool"):
        tensors.reduced(torch.ones(3, dtype=torch.bool), "avg")
    with pytest.raises(ccl.DtypeError, match="uint16"):
        tensors.reduced(torch.ones(3, dtype=torch.uint16), "sum")
    with pytest.raises(ccl.UnsupportedError, match="resolve_conj"):
        tensors.moved(torch.ones(3, dtype=torch.complex64).conj())


def test_timeouts_of_torch():
    assert tensors.seconds_of(None) is None and tensors.seconds_of(datetime.timedelta(milliseconds=-1)) is None
    assert tensors.seconds_of(datetime.timedelta(0)) is None and tensors.seconds_of(datetime.timedelta(seconds=2)) == 2.0


def test_a_list_in_one_piece_is_used_where_it_is():
    whole = torch.arange(12.0)
    found = tensors.as_one(list(whole.split(4)))
    assert found is not None and found.data_ptr() == whole.data_ptr() and found.numel() == 12
    assert tensors.as_one([whole[4:8], whole[:4]]) is None and tensors.as_one([whole[::2], whole[6:]]) is None
    assert tensors.as_one([torch.ones(2), torch.ones(2)]) is None


def test_only_dense_tensors_of_the_cpu_and_of_gpus():
    with pytest.raises(ccl.UnsupportedError, match=r"cpu\(\)"):
        tensors.check(torch.ones(1, device="meta"), "x")
    with pytest.raises(ccl.UsageError, match="Tensor"):
        tensors.check([1.0], "x")
    with pytest.raises(ccl.UsageError, match="one device"):
        tensors.only([1, 2], "all_reduce")


def test_padded_sizes_are_few_and_waste_little():
    sizes = {_rounded(count) for count in range(1, 5000)}
    assert len(sizes) < 28 and all(count <= _rounded(count) <= max(count * 1.5, 2) for count in range(1, 5000)) and _rounded(0) == 0


def test_what_is_left_of_a_message():
    pieces = [memoryview(b"head"), memoryview(b"payload")]
    assert [bytes(piece) for piece in _after(pieces, 6)] == [b"yload"] and _after(pieces, 11) == []
    assert [bytes(piece) for piece in _after(pieces, 0)] == [b"head", b"payload"]
