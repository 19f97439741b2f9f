"""What ranks of test_torch_backend_cuda.py and of tests/gpu do: torch's collectives on tensors of a GPU, equal to Gloo's on the CPU.

Is: cases as of torch_cases.py. Is not: tests. Invariant: the group is used through torch.distributed, as a program would.
"""

from __future__ import annotations

import datetime
import threading

import pytest
import torch
import torch.distributed as dist
from torch_cuda import DEVICE, MOCKED, Held, recorded, to_device, to_host

import ccl_lab as ccl
from ccl_lab.torch_backend.tensors import BackendTimeout

SIZES = (0, 1, 7, 1000, 100_003)


def made(c, group, shape, dtype=torch.float32, salt=0):
    """The same values for both groups: on the GPU for ours."""
    generator = torch.Generator().manual_seed(100 * c.rank + salt)
    tensor = torch.randint(-9, 9, shape if isinstance(shape, tuple) else (shape,), generator=generator).to(dtype)
    return to_device(tensor) if group is c.ours else tensor


def equal(c, run):
    """run(group, make) gives the same over ours on the GPU as over Gloo on the CPU."""
    found = to_host(run(c.ours, lambda *a, **k: made(c, c.ours, *a, **k)))
    c.same(found, run(c.gloo, lambda *a, **k: made(c, c.gloo, *a, **k)))


def reductions(c):
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8, torch.float64):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
            def run(group, make, dtype=dtype, op=op):
                x = make(1000, dtype=dtype)
                dist.all_reduce(x, op, group=group)
                return x
            equal(c, run)
    for size in SIZES:
        def to_all(group, make, size=size):
            x, root = make(size), c.size - 1
            dist.all_reduce(x, group=group)
            y = make(size, salt=1)
            dist.reduce(y, dist.get_global_rank(group, root), group=group)
            return [x, y if c.rank == root else x]
        equal(c, to_all)
    flags = to_device(torch.tensor([c.rank == 0, True, False]))
    dist.all_reduce(flags, dist.ReduceOp.BAND, group=c.ours)
    assert to_host(flags).tolist() == [c.size == 1, True, False]
    pairs = to_device(torch.full((3,), complex(1, c.rank)))
    dist.all_reduce(pairs, group=c.ours)
    assert to_host(pairs).tolist() == [complex(c.size, sum(range(c.size)))] * 3
    blocks = to_device(torch.arange(c.size * 5.0).view(c.size, 5) * (c.rank + 1))
    mine = to_device(torch.zeros(5))
    dist.reduce_scatter_tensor(mine, blocks, group=c.ours)
    assert to_host(mine).tolist() == [(5 * c.rank + k) * c.size * (c.size + 1) / 2 for k in range(5)]


def moves(c):
    n, r = c.size, c.rank
    for size in SIZES:
        def run(group, make, size=size):
            x, whole = make(size), make((n, size), salt=1)
            rows = [make(size, salt=2) for _ in range(n)]
            dist.all_gather(rows, x, group=group)
            flat = make(n * size, salt=3)
            dist.all_gather_into_tensor(flat, x, group=group)
            mixed = make((n, size), salt=4)
            dist.all_to_all_single(mixed, whole, group=group)
            one = make(size, salt=5)
            dist.broadcast(one, 0, group=group)
            got = make(size, salt=6)
            dist.scatter(got, list(whole.unbind()) if r == 0 else None, 0, group=group)
            gathered = [make(size, salt=7) for _ in range(n)] if r == 0 else None
            dist.gather(x, gathered, 0, group=group)
            return [*rows, flat, mixed, one, got, *(gathered or [])]
        equal(c, run)


def gaps_and_lists(c):
    """Memory with gaps, lists in and out of one piece, blocks of different sizes."""
    n, r = c.size, c.rank

    def run(group, make):
        sent, came = [1 + (r + d) % n for d in range(n)], [1 + (d + r) % n for d in range(n)]
        out = make((sum(came), 3), salt=10)
        dist.all_to_all_single(out, make((sum(sent), 3), salt=11), came, sent, group=group)
        lists, blocks = [make(6, salt=12) for _ in range(n)], [make(6, salt=13 + d) for d in range(n)]
        if group is c.ours:
            dist.all_to_all(lists, blocks, group=group)
        else:  # Gloo has lists only in some versions of torch
            flat = torch.cat(lists)
            dist.all_to_all_single(flat, torch.cat(blocks), group=group)
            lists = list(flat.view(n, 6))
        return [out, *lists]

    equal(c, run)
    for async_op in (False, True):
        wide = to_device(torch.full((64, 10), float(r)))
        work = dist.all_reduce(wide[:, 3], group=c.ours, async_op=async_op)
        if async_op:
            work.wait()
        wanted = torch.full((64, 10), float(r))
        wanted[:, 3] = sum(range(n))
        c.same(to_host(wide), wanted)
    uneven = [to_device(torch.zeros(5 + 3 * k)) for k in range(n)]  # Gloo has no such
    dist.all_gather(uneven, to_device(torch.full((5 + 3 * r,), float(r))), group=c.ours)
    assert all((to_host(block) == k).all() for k, block in enumerate(uneven))
    many = [to_device(torch.full((k + 1,), float(r))) for k in range(5)]
    with dist._coalescing_manager(group=c.ours, device=DEVICE):
        for tensor in many:
            dist.all_reduce(tensor, group=c.ours)
    assert all((to_host(tensor) == sum(range(n))).all() for tensor in many)


def async_calls_leave_the_stream_alone(c):
    """Rank 0's GPU is late: no stream of another rank stands still but one that waits for the result."""
    x = to_device(torch.full((1 << 12,), float(c.rank)))
    dist.all_reduce(x, group=c.ours)  # memory is known from here on
    to_host(to_device(torch.ones(8)) + 1)  # and the kernel is loaded, which would wait for every stream
    x.copy_(to_device(torch.full((1 << 12,), float(c.rank))))
    to_host(x)
    held = Held() if c.rank == 0 else None
    before = len(recorded)
    work = dist.all_reduce(x, group=c.ours, async_op=True)
    assert not work.is_completed()
    assert not MOCKED or len(recorded) > before and recorded[-1][0] == x.data_ptr()
    if c.rank == 1:
        other = to_device(torch.ones(8))
        assert to_host(other + 1).tolist() == [2.0] * 8  # the current stream is not behind the collective
        assert not work.is_completed()
    with pytest.raises(BackendTimeout, match="still going"):
        work.wait(datetime.timedelta(milliseconds=50))
    assert work.wait()  # at once: it is the stream that waits
    behind = torch.cuda.current_stream(DEVICE).record_event()
    assert not behind.query() and not work.is_completed()
    dist.barrier(group=c.gloo)
    if held is not None:
        held.release()
    assert to_host(x).tolist() == [float(sum(range(c.size)))] * (1 << 12)
    assert work.is_completed() and work.is_success() and work.exception() is None and work.result()[0] is x
    future = dist.all_reduce(x, group=c.ours, async_op=True).get_future()
    assert future.done() and future.value()[0] is x


def calls_that_wait_are_in_the_order_of_the_stream(c):
    """Nobody waits on the host, and what comes later on the stream sees the sums; a barrier waits for the GPU."""
    rounds = [to_device(torch.full((1 << 12,), float(10 * k + c.rank))) for k in range(6)]
    total = to_device(torch.zeros(1 << 12))
    for each in rounds:
        dist.all_reduce(each, group=c.ours)
        total += each
    n = c.size
    assert to_host(total).tolist() == [float(sum(10 * k * n + n * (n - 1) // 2 for k in range(6)))] * (1 << 12)
    held = Held()
    work = dist.all_reduce(rounds[0], group=c.ours, async_op=True)
    threading.Timer(0.3, held.release).start()
    dist.barrier(group=c.ours)
    assert work.is_completed()


def what_cannot_be_is_refused(c):
    """By name, before anything starts; the group works afterwards."""
    gpu, host = to_device(torch.ones(4)), torch.ones(4)
    with pytest.raises(ccl.UnsupportedError, match="messages of the ccl_lab backend"):
        dist.send(gpu, (c.rank + 1) % c.size, group=c.ours)
    with pytest.raises(ccl.UnsupportedError, match="messages of the ccl_lab backend"):
        dist.recv(gpu, (c.rank + 1) % c.size, group=c.ours)
    with pytest.raises(ccl.UsageError, match="one device, found cpu, cuda:0"):
        dist.all_gather_into_tensor(torch.ones(4 * c.size), gpu, group=c.ours)
    with pytest.raises(ccl.UsageError, match="one device"):
        c.ours.allreduce_coalesced([host, gpu])
    with pytest.raises(ccl.ShapeError, match="expected an output"):
        dist.all_gather_into_tensor(to_device(torch.ones(3)), gpu, group=c.ours)
    with pytest.raises(ccl.DtypeError, match="uint16"):
        dist.all_reduce(to_device(torch.ones(3, dtype=torch.uint16)), group=c.ours)
    dist.all_reduce(gpu, group=c.ours)
    assert to_host(gpu).tolist() == [float(c.size)] * 4
    dist.all_reduce(host, group=c.ours)
    assert host.tolist() == [float(c.size)] * 4
    assert [str(device) for device in c.ours._device_types] == ["cpu", "cuda"]
    assert c.ours._get_backend(DEVICE) is c.ours and "cuda" in c.ours.communicator.explain()


def it_goes_behind_calls_that_wait_for_their_turn(c):
    """An uneven all_to_all of the CPU runs on the group's thread; a call on the GPU made meanwhile comes after it on every rank."""
    n, r = c.size, c.rank
    sent, came = [1 + (r + d) % n for d in range(n)], [1 + (d + r) % n for d in range(n)]
    out = torch.zeros(sum(came))
    first = dist.all_to_all_single(out, torch.full((sum(sent),), float(r)), came, sent, group=c.ours, async_op=True)
    x = to_device(torch.ones(1000))
    second = dist.all_reduce(x, group=c.ours, async_op=True)
    second.wait()
    assert first.wait() and out.tolist() == [float(d) for d in range(n) for _ in range(came[d])]
    assert to_host(x).tolist() == [float(n)] * 1000
