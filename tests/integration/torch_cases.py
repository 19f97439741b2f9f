"""Collectives and messages of torch over both backends; run by torch_rank.py on every rank. Not a test by itself."""

from __future__ import annotations

import datetime
import itertools
import time

import pytest
import torch
import torch.distributed as dist

import ccl_lab as ccl
from ccl_lab.torch_backend import BackendTimeout

SIZES = (0, 1, 7, 1000, 70_000)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def numbers(rank: int, size: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Small whole numbers, of which sums and products are exact in every type."""
    generator = torch.Generator().manual_seed(97 * seed + rank)
    found = torch.randint(1, 4, (size,), generator=generator)
    return (found % 2 == 0) if dtype is torch.bool else found.to(dtype)


def all_reduce_of_every_type_and_size(c):
    for dtype, size in itertools.product((*FLOATS, *INTEGERS), (0, 7, 70_000)):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):

            def run(group, dtype=dtype, size=size, op=op):
                x = numbers(c.rank, size, dtype)
                dist.all_reduce(x, op, group=group)
                return x

            if dtype in (torch.bfloat16, torch.int16):  # Gloo has them not
                wanted = run_by_hand(c, size, dtype, op)
                c.same(run(c.ours), wanted)
            else:
                c.both(run)


def run_by_hand(c, size, dtype, op):
    parts = torch.stack([numbers(r, size, torch.float64) for r in range(c.size)])
    by = {dist.ReduceOp.SUM: parts.sum(0), dist.ReduceOp.MAX: parts.amax(0), dist.ReduceOp.MIN: parts.amin(0)}
    return by.get(op, parts.prod(0)).to(dtype)


def bits_logic_averages_and_complex(c):
    for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):

        def bits(group, op=op):
            x = numbers(c.rank, 100, torch.int32)
            dist.all_reduce(x, op, group=group)
            return x

        c.both(bits)
    mine = numbers(c.rank, 100, torch.bool)
    every = torch.stack([numbers(r, 100, torch.bool) for r in range(c.size)])
    for op, wanted in ((dist.ReduceOp.SUM, every.any(0)), (dist.ReduceOp.PRODUCT, every.all(0)), (dist.ReduceOp.BAND, every.all(0))):
        x = mine.clone()
        dist.all_reduce(x, op)
        c.same(x, wanted)
    x = torch.full((5,), float(c.rank))
    dist.all_reduce(x, dist.ReduceOp.AVG)
    c.same(x, torch.full((5,), (c.size - 1) / 2))
    for dtype in (torch.complex64, torch.complex128):
        x = torch.complex(*(numbers(c.rank, 50, torch.float64, s) for s in (0, 1))).to(dtype)
        wanted = sum(torch.complex(*(numbers(r, 50, torch.float64, s) for s in (0, 1))) for r in range(c.size)).to(dtype)
        dist.all_reduce(x)
        c.same(x, wanted)
    x = torch.tensor([float("nan") if c.rank else 1.0, 2.0])
    dist.all_reduce(x, dist.ReduceOp.MAX)
    assert x[0].isnan() and x[1] == 2


def what_cannot_be_reduced_is_refused(c):
    with pytest.raises(ccl.UnsupportedError, match="PREMUL_SUM"):
        dist.all_reduce(torch.ones(2), dist._make_nccl_premul_sum(2.0))
    with pytest.raises(ccl.DtypeError, match="complex64"):
        c.ours.allreduce(torch.ones(2, dtype=torch.complex64), dist.ReduceOp.PRODUCT)
    with pytest.raises(ccl.DtypeError, match="band"):
        dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND)
    with pytest.raises(ccl.DtypeError, match="float8"):
        dist.all_reduce(torch.ones(2).to(torch.float8_e4m3fn), group=c.ours)
    with pytest.raises(ccl.UnsupportedError, match="sparse"):
        dist.all_reduce(torch.eye(3).to_sparse())
    with pytest.raises(ccl.UnsupportedError, match="cpu()"):
        dist.all_reduce(torch.ones(2, device="meta"))
    dist.barrier()  # nothing was started, so the group works


def memory_with_gaps_and_views(c):
    def strided(group):
        x = numbers(c.rank, 60, torch.float32).view(6, 10)
        dist.all_reduce(x[:, ::2], group=c.ours) if group is c.ours else dist.all_reduce(y := x[:, ::2].contiguous(), group=group)
        if group is not c.ours:
            x[:, ::2] = y
        return x

    c.both(strided)
    x = torch.zeros(4, 6)[:, 1:3]
    dist.broadcast(x if c.rank else x.fill_(3), 0)
    assert (x == 3).all()
    parameter = torch.nn.Parameter(torch.ones(3))
    dist.all_reduce(parameter)
    assert (parameter == c.size).all()
    out = torch.zeros(2 * c.size, 3).t()
    dist.all_gather_single(out, torch.full((2, 3), float(c.rank)).t())
    assert sorted(set(out.flatten().tolist())) == list(range(c.size))


def moving_collectives(c):
    types = (torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64, torch.complex128, torch.uint8)
    for dtype, size in itertools.product(types, SIZES):
        x = numbers(c.rank, size, dtype)
        every = [numbers(r, size, dtype) for r in range(c.size)]
        got = [torch.zeros_like(x) for _ in range(c.size)]
        dist.all_gather(got, x)
        c.same(got, every)
        whole = torch.zeros(size * c.size, dtype=dtype)
        dist.all_gather_single(whole, x)
        c.same(whole, torch.cat(every))
        y = x.clone()
        dist.broadcast(y, c.size - 1)
        c.same(y, every[-1])
        root = min(1, c.size - 1)
        dist.gather(x, got if c.rank == root else None, root)
        c.same(got, every)
        y = torch.zeros_like(x)
        dist.scatter(y, every if c.rank == root else None, root)
        c.same(y, x)
        dist.scatter(y, list(torch.cat(every).split(size)) if c.rank == root and size else every if c.rank == root else None, root)
        c.same(y, x)


def whole_in_place(c):
    whole = torch.zeros(c.size * 5)
    mine = whole[5 * c.rank : 5 * c.rank + 5]
    mine.fill_(c.rank)
    dist.all_gather_single(whole, mine)
    c.same(whole, torch.arange(c.size).repeat_interleave(5).float())
    whole = torch.ones(c.size * 5)
    dist.reduce_scatter_single(whole[5 * c.rank : 5 * c.rank + 5], whole)
    assert (whole[5 * c.rank : 5 * c.rank + 5] == c.size).all()


def reductions_to_one_and_to_blocks(c):
    for dtype, size in itertools.product((torch.float32, torch.int32), SIZES):

        def to_one(group, dtype=dtype, size=size):
            x = numbers(c.rank, size, dtype)
            dist.reduce(x, 1, group=group)
            return x if c.rank == 1 else []

        def to_blocks(group, dtype=dtype, size=size):
            y = torch.zeros(size, dtype=dtype)
            dist.reduce_scatter_single(y, numbers(c.rank, size * c.size, dtype), group=group)
            return y

        def to_list(group, dtype=dtype, size=size):
            y = torch.zeros(size, dtype=dtype)
            dist.reduce_scatter(y, [numbers(c.rank, size, dtype, s) for s in range(c.size)], group=group)
            return y

        for run in (to_one, to_blocks, to_list):
            c.both(run)
    x = numbers(c.rank, 10, torch.float32)
    before = x.clone()
    dist.reduce(x, 0)
    assert c.rank == 0 or x.equal(before)


def uneven_lists(c):
    sizes = [3 * r for r in range(c.size)]
    got = [torch.zeros(s) for s in sizes]
    dist.all_gather(got, torch.full((sizes[c.rank],), float(c.rank)))
    c.same(got, [torch.full((s,), float(r)) for r, s in enumerate(sizes)])
    y = torch.zeros(sizes[c.rank])
    dist.reduce_scatter(y, [torch.full((s,), float(c.rank + 1)) for s in sizes])
    c.same(y, torch.full((sizes[c.rank],), float(sum(range(1, c.size + 1)))))


def all_to_all_even_and_uneven(c):
    def even(group):
        y = torch.zeros(c.size * 3, 2)
        dist.all_to_all_single(y, numbers(c.rank, c.size * 6, torch.float32).view(-1, 2), group=group)
        return y

    def uneven(group, async_op=False):
        rows = [(c.rank + to) % 3 for to in range(c.size)]
        came = [(c.rank + of) % 3 for of in range(c.size)]
        y = torch.zeros(sum(came), 4)
        x = numbers(c.rank, 4 * sum(rows), torch.float32).view(-1, 4)
        work = dist.all_to_all_single(y, x, came, rows, group=group, async_op=async_op)
        if async_op:
            after = torch.ones(3)
            later = dist.all_reduce(after, group=group, async_op=True)
            later.wait(), work.wait()
            assert (after == c.size).all()
        return y

    c.both(even)
    c.both(uneven)
    c.same(uneven(c.ours, True), uneven(c.gloo))
    got = [torch.zeros(of + 1) for of in range(c.size)]
    dist.all_to_all(got, [torch.full((c.rank + 1,), float(c.rank)) for _ in range(c.size)])
    c.same(got, [torch.full((of + 1,), float(of)) for of in range(c.size)])
    skewed = [[50_000 if (r, to) == (0, 1) else 1 for to in range(c.size)] for r in range(c.size)]
    came = [row[c.rank] for row in skewed]
    x = torch.arange(float(sum(skewed[c.rank]))) + 100_000 * c.rank
    dist.all_to_all_single(y := torch.zeros(sum(came)), x, came, skewed[c.rank])
    starts = [100_000 * r + sum(skewed[r][: c.rank]) for r in range(c.size)]
    c.same(y, torch.cat([torch.arange(float(n)) + start for n, start in zip(came, starts, strict=True)]))
    with pytest.raises(ccl.ShapeError, match="splits"):
        dist.all_to_all_single(torch.zeros(4), torch.zeros(4), [1] * c.size, [5] * c.size)


def objects(c):
    def run(group):
        got = [None] * c.size
        dist.all_gather_object(got, {"rank": c.rank, "text": "x" * 10**c.rank}, group=group)
        shared = [("root", 1), None] if c.rank == 0 else [None, None]
        dist.broadcast_object_list(shared, 0, group=group)
        mine = [None]
        dist.scatter_object_list(mine, [{"for": r} for r in range(c.size)] if c.rank == 0 else None, 0, group=group)
        all_of = [None] * c.size if c.rank == 1 else None
        dist.gather_object(c.rank**2, all_of, 1, group=group)
        return [got, shared, mine, all_of or []]

    c.both(run)


def coalesced(c):
    def run(group):
        xs = [numbers(c.rank, s, torch.float32, s) for s in (3, 50, 400_000, 0, 7)]
        dist.all_reduce_coalesced(xs, group=group)
        return xs

    c.both(run)
    ours = dist.distributed_c10d._coalescing_manager
    xs = [numbers(c.rank, s, torch.float32, s) for s in (3, 5)]
    outs = [torch.zeros(c.size * s) for s in (3, 5)]
    with ours(group=c.ours, async_ops=True) as works:
        for x, out in zip(xs, outs, strict=True):
            dist.all_gather_single(out, x)
    works.wait()
    c.same(outs, [torch.cat([numbers(r, s, torch.float32, s) for r in range(c.size)]) for s in (3, 5)])
    blocks = [torch.zeros(4), torch.zeros(2)]
    with ours(group=c.ours):
        for block in blocks:
            dist.reduce_scatter_single(block, torch.ones(c.size * block.numel()))
    assert all((block == c.size).all() for block in blocks)
    with ours(group=c.ours, device=torch.device("cpu"), async_ops=True) as works:
        x = torch.full((3,), float(c.rank))
        dist.broadcast(x, 1)
        dist.all_to_all_single(y := torch.zeros(c.size), torch.arange(float(c.size)))
    works.wait()
    assert (x == 1).all() and (y == c.rank).all()
    rows = [[torch.zeros(2), torch.zeros(5)] for _ in range(c.size)]
    dist.all_gather_coalesced(rows, [torch.full((2,), float(c.rank)), torch.full((5,), 10.0 + c.rank)])
    assert all((rows[r][0] == r).all() and (rows[r][1] == 10 + r).all() for r in range(c.size))


def async_works_and_futures(c):
    xs = [numbers(c.rank, 1000 * i + 1, torch.float32, i) for i in range(20)]
    wanted = [sum(numbers(r, 1000 * i + 1, torch.float32, i) for r in range(c.size)) for i in range(20)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    futures = [work.get_future() for work in works[::2]]
    doubled = works[2].get_future().then(lambda f: f.value()[0] * 2)
    for work in reversed(works):
        assert work.wait() is True and work.is_completed() and work.is_success() and work.exception() is None
    c.same(xs, wanted)
    for future, x in zip(futures, xs[::2], strict=True):
        assert future.wait()[0].data_ptr() == x.data_ptr()
    c.same(doubled.wait(), wanted[2] * 2)
    done = dist.all_reduce(torch.ones(3), async_op=True)
    deadline = time.monotonic() + 20
    while not done.is_completed():
        assert time.monotonic() < deadline
    c.same(done.get_future().wait()[0], torch.full((3,), float(c.size)))
    x = torch.zeros(4, 6)[:, ::2]
    work = dist.broadcast(x.fill_(5.0) if c.rank == 0 else x, 0, async_op=True)
    c.same(work.result()[0], torch.full((4, 3), 5.0))
    dist.all_reduce(torch.ones(2), async_op=True)  # nobody keeps the work
    dist.barrier(async_op=True).wait()


def a_work_goes_on_after_a_wait_that_was_too_short(c):
    x = torch.ones(3)
    if c.rank:
        time.sleep(0.5)
    work = dist.all_reduce(x, async_op=True)
    if c.rank == 0:
        with pytest.raises(BackendTimeout, match="still going"):
            work.wait(datetime.timedelta(seconds=0.1))
    assert work.wait() and (x == c.size).all()


def messages(c):
    right, left = (c.rank + 1) % c.size, (c.rank - 1) % c.size
    for size in (0, 1, 1000, 3_000_000):  # all send before anyone receives
        sent = [dist.isend(numbers(c.rank, size, torch.float32, tag), right, tag=tag) for tag in range(3)]
        got = [torch.zeros(size) for _ in range(3)]
        for tag in (2, 0, 1):
            dist.recv(got[tag], left, tag=tag)
        for work in sent:
            work.wait()
        c.same(got, [numbers(left, size, torch.float32, tag) for tag in range(3)])
    x, y = torch.full((4, 4), float(c.rank)), torch.zeros(4, 8)[:, ::2]
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x.t(), right), dist.P2POp(dist.irecv, y, left)]):
        work.wait()
    assert (y == left).all()
    dist.send(torch.ones(2), right)
    assert dist.recv(torch.zeros(2), left) == left
    objects = [{"of": c.rank}]
    if c.rank == 0:
        dist.send_object_list(objects, 1)
    elif c.rank == 1:
        dist.recv_object_list(objects, 0)
        assert objects == [{"of": 0}]
    works = [dist.irecv(torch.zeros(1), left, tag=i) for i in range(50)]
    for i in reversed(range(50)):
        dist.send(torch.tensor([float(i)]), right, tag=i)
    assert [work.result()[0].item() for work in works] == list(range(50))


def messages_from_anyone(c):
    if c.rank == 0:
        found = {}
        for _ in range(c.size - 1):
            x = torch.zeros(5)
            source = dist.recv(x, tag=9)
            found[source] = x
        assert found.keys() == set(range(1, c.size)) and all((x == r).all() for r, x in found.items())
    else:
        dist.send(torch.full((5,), float(c.rank)), 0, tag=9)
    work = dist.irecv(torch.zeros(1, dtype=torch.int64), tag=3)
    dist.send(torch.tensor([c.rank]), c.rank ^ 1, tag=3)
    work.wait()
    assert work.result()[0].item() == c.rank ^ 1
    dist.barrier()


def a_message_that_does_not_fit(c):
    if c.rank == 0:
        dist.send(torch.ones(3), 1, tag=5)
    elif c.rank == 1:
        with pytest.raises(ccl.ShapeError, match="sent 12"):
            dist.recv(torch.ones(2), 0, tag=5)
        with pytest.raises(BackendTimeout, match="did the peer"):
            dist.irecv(torch.ones(2), 0, tag=6).wait(datetime.timedelta(seconds=0.2))
    dist.barrier()


def groups_of_some_ranks(c):
    pairs = [dist.new_group([r, r + 1]) for r in range(0, c.size - 1, 2)]
    alone = [dist.new_group([r]) for r in range(c.size)]
    back = dist.new_group(list(range(c.size))[::-1], use_local_synchronization=True)
    x = torch.full((10,), float(c.rank))
    dist.all_reduce(x, group=pairs[c.rank // 2])
    assert (x == 4 * (c.rank // 2) + 1).all()
    y = torch.full((3,), float(c.rank))
    dist.all_reduce(y, group=alone[c.rank])
    dist.all_gather_single(z := torch.zeros(3), y, group=alone[c.rank])
    dist.barrier(alone[c.rank])
    assert z.equal(y) and (y == c.rank).all()
    dist.broadcast(y, 1, group=back)
    assert (y == 1).all()
    peer = c.rank ^ 1
    work = dist.isend(torch.tensor([c.rank]), peer, group=pairs[c.rank // 2])
    dist.recv(got := torch.tensor([-1]), peer, group=pairs[c.rank // 2])
    work.wait()
    assert got.item() == peer
    works = [dist.all_reduce(torch.ones(1000), group=group, async_op=True) for group in (c.ours, pairs[c.rank // 2], back)]
    for work in works:
        assert work.wait()
    sub, subs = dist.new_subgroups(2)
    dist.all_reduce(x := torch.ones(1), group=sub)
    assert x.item() == 2 and len(subs) == c.size // 2
    for group in (*pairs, *alone, back, *subs):
        if dist.get_rank(group) >= 0:
            dist.destroy_process_group(group)
    dist.barrier()


def sizes_that_do_not_fit_are_refused_before_they_start(c):
    for call, words in (
        (lambda: dist.all_gather_single(torch.zeros(5), torch.zeros(3)), "expected an output of"),
        (lambda: dist.reduce_scatter_single(torch.zeros(5), torch.zeros(3)), "expected an input of"),
        (lambda: c.ours.allgather([[torch.zeros(3)]], [torch.zeros(3)]), "one per rank"),
        (lambda: dist.all_to_all_single(torch.zeros(c.size + 1), torch.zeros(c.size + 1)), "divides"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(ccl.DtypeError, match="one type"):
        c.ours.all_gather_single(torch.zeros(c.size), torch.zeros(1, dtype=torch.float64))
    dist.barrier()


def the_trace_shows_what_ran(c):
    comm = c.ours.communicator
    comm.trace()
    for _ in range(3):
        dist.all_reduce(torch.ones(100_000))
    dist.all_reduce(torch.ones(100_000), async_op=True).wait()
    trace = comm.trace()
    assert len(trace) >= 4 and trace.time_us > 0
    assert comm.memory()["registered_bytes"] >= 0 and comm.size == c.size


def monitored_barrier_and_names(c):
    c.ours.monitored_barrier(timeout=datetime.timedelta(seconds=10))
    assert dist.get_backend(c.ours) == "ccl_lab" and dist.get_process_group_ranks(c.ours) == list(range(c.size))
    assert c.ours.name() == "ccl_lab" and c.ours.pg_name == c.ours.group_name
    assert "cpu:ccl_lab" in str(dist.distributed_c10d._world.pg_backend_config[c.ours])
