"""What torch builds on a backend, over both; run by torch_rank.py on every rank. Not a test by itself."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

TOLERANCE = 1e-5  # with more than two ranks Gloo adds in another order


def network():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(40, 70), torch.nn.GELU(), torch.nn.BatchNorm1d(70), torch.nn.Linear(70, 10))


def trained(c, model, steps=4):
    """Losses and final parameters of some steps on this rank's data."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # Adam would blow up what differs in the last bit
    losses = []
    for step in range(steps):
        torch.manual_seed(10 * step + c.rank)
        loss = model(torch.randn(16, 40)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses + [p.full_tensor() if isinstance(p, DTensor) else p.detach().clone() for p in model.parameters()]


def data_parallel(c):
    for options in ({}, {"bucket_cap_mb": 0.005}, {"static_graph": True}, {"gradient_as_bucket_view": True}):
        c.both(lambda group, o=options: trained(c, DistributedDataParallel(network(), process_group=group, **o)), tolerance=TOLERANCE)


def data_parallel_with_hooks(c):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    def run(group):
        model = DistributedDataParallel(network(), process_group=group)
        model.register_comm_hook(group, default_hooks.fp16_compress_hook)
        return trained(c, model)

    c.both(run, tolerance=1e-3)
    model = DistributedDataParallel(network(), process_group=c.ours)
    with model.no_sync():
        model(torch.ones(4, 40)).sum().backward()
    model(torch.ones(4, 40)).sum().backward()
    with model.join():  # uneven inputs
        for _ in range(1 + c.rank % 2):
            model(torch.ones(4, 40)).sum().backward()


def unequal_models_are_found(c):
    model = torch.nn.Linear(3 + (c.rank == 1), 2)
    try:
        DistributedDataParallel(model, process_group=c.ours)
    except RuntimeError as error:
        assert "shape" in str(error) or "size" in str(error) or "rank" in str(error)
    else:
        assert c.rank != 1  # all but rank 1 have the shapes of rank 0


def fully_sharded(c):
    def run(group, **options):
        mesh = DeviceMesh.from_group(group, "cpu", mesh=list(range(c.size)))
        model = network()
        for layer in (model[0], model[3]):
            fully_shard(layer, mesh=mesh, **options)
        return trained(c, fully_shard(model, mesh=mesh, **options))

    c.both(run, tolerance=TOLERANCE)
    c.both(lambda group: run(group, reshard_after_forward=False), tolerance=TOLERANCE)


def fully_sharded_the_old_way(c):
    from torch.distributed.fsdp import FullyShardedDataParallel

    def run(group):
        model = FullyShardedDataParallel(network(), process_group=group, device_id=torch.device("cpu"))
        losses = []
        for step in range(3):
            torch.manual_seed(10 * step + c.rank)
            loss = model(torch.randn(16, 40)).square().mean()
            loss.backward()
            losses.append(loss.detach())
        return losses

    c.both(run, tolerance=TOLERANCE)


def tensors_over_a_mesh(c):
    torch.manual_seed(5)
    a, b = torch.randn(8 * c.size, 12), torch.randn(12, 4 * c.size)

    def run(group):
        mesh = DeviceMesh.from_group(group, "cpu", mesh=list(range(c.size)))
        found = []
        for left, right in (([Shard(0)], [Replicate()]), ([Replicate()], [Shard(1)]), ([Shard(0)], [Shard(1)])):
            found.append((distribute_tensor(a, mesh, left) @ distribute_tensor(b, mesh, right)).full_tensor())
        square = torch.arange(float(12 * c.size)).view(3 * c.size, 4)
        x = distribute_tensor(square, mesh, [Shard(0)])
        found += [x.redistribute(placements=[Shard(1)]).full_tensor(), x.sum().full_tensor()]
        part = DTensor.from_local(torch.full((4,), float(c.rank)), mesh, [Partial()])
        ones = DTensor.from_local(torch.ones(2 * c.size), mesh, [Partial()])
        found += [part.full_tensor(), ones.redistribute(placements=[Shard(0)]).to_local()]
        return found

    for product in c.both(run, tolerance=TOLERANCE)[:3]:
        torch.testing.assert_close(product, a @ b)


def meshes_of_several_dimensions(c):
    mesh = init_device_mesh("cpu", (c.size // 2, 2), mesh_dim_names=("outer", "inner"))
    inner, outer = mesh["inner"].get_group(), mesh["outer"].get_group()
    assert dist.get_backend(inner) == dist.get_backend(outer) == "ccl_lab"
    x = torch.tensor([float(c.rank)])
    dist.all_reduce(x, group=inner)
    assert x.item() == 4 * (c.rank // 2) + 1
    w = distribute_tensor(torch.arange(16.0).view(4, 4), mesh, [Shard(0) if c.size > 2 else Replicate(), Shard(1)])
    c.same(w.full_tensor(), torch.arange(16.0).view(4, 4))


def functional_collectives(c):
    def run(group):
        x = torch.arange(6.0 * c.size).view(2 * c.size, 3) + c.rank
        found = [functional.all_reduce(x, "sum", group), functional.all_gather_tensor(x, 0, group)]
        found += [functional.reduce_scatter_tensor(x, "sum", 0, group), functional.broadcast(x, 1, group)]
        found += [functional.all_to_all_single(x, None, None, group), functional.all_to_all_single(x, [2] * c.size, [2] * c.size, group)]
        found += functional.all_reduce_coalesced([x, x + 1], "sum", group)
        found += functional.all_gather_into_tensor_coalesced([x, x + 1], group)
        found += functional.reduce_scatter_tensor_coalesced([x, x + 1], "sum", [0, 0], group)
        y = x.clone().requires_grad_()
        (functional.all_gather_tensor_autograd(y, 0, group) * 2).sum().backward()
        return [t.wait() if hasattr(t, "wait") else t for t in found] + [y.grad]

    c.both(run)


def checkpoints(c):
    folder = Path(f"{c.store}-checkpoint")

    def state(group, scale):
        mesh = DeviceMesh.from_group(group, "cpu", mesh=list(range(c.size)))
        whole = torch.arange(10.0 * c.size).view(-1, 5) * scale
        return {"sharded": distribute_tensor(whole, mesh, [Shard(0)]), "plain": torch.full((3,), scale), "step": int(scale)}

    saved = state(c.ours, 2.0)
    checkpoint.save(saved, checkpoint_id=folder, process_group=c.ours)
    loaded = state(c.gloo, 0.0)  # what ours wrote, the other reads
    checkpoint.load(loaded, checkpoint_id=folder, process_group=c.gloo)
    c.same([loaded["sharded"].full_tensor(), loaded["plain"], loaded["step"]], [saved["sharded"].full_tensor(), saved["plain"], 2])
    again = state(c.ours, 0.0)
    checkpoint.load(again, checkpoint_id=folder, process_group=c.ours)
    c.same(again["sharded"].full_tensor(), saved["sharded"].full_tensor())
    later = checkpoint.async_save(copy.copy(saved), checkpoint_id=Path(f"{folder}-later"), process_group=c.ours)
    later.result()
    again = state(c.ours, 0.0)
    checkpoint.load(again, checkpoint_id=Path(f"{folder}-later"), process_group=c.ours)
    c.same(again["sharded"].full_tensor(), saved["sharded"].full_tensor())


def optimizer_in_shards(c):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def run(group):
        model = DistributedDataParallel(network(), process_group=group)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, process_group=group, lr=0.1)
        torch.manual_seed(c.rank)
        model(torch.randn(8, 40)).square().mean().backward()
        optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    c.both(run, tolerance=TOLERANCE)


def random_calls_in_one_order(c):
    """Fifty calls of random kind, size and waiting, as torch programs mix them."""
    generator = torch.Generator().manual_seed(11)

    def number(low, high):
        return int(torch.randint(low, high, (1,), generator=generator))

    pending = []
    for _ in range(50):
        kind, size, later, root = number(0, 6), number(0, 4000), bool(number(0, 2)), number(0, c.size)
        x = torch.arange(float(size)) + c.rank
        if kind == 0:
            work, wanted = dist.all_reduce(x, async_op=later), torch.arange(float(size)) * c.size + sum(range(c.size))
        elif kind == 1:
            work, wanted = dist.broadcast(x, root, async_op=later), torch.arange(float(size)) + root
        elif kind == 2:
            y = torch.zeros(c.size * size)
            work, wanted = dist.all_gather_single(y, x, async_op=later), torch.cat([torch.arange(float(size)) + r for r in range(c.size)])
            x = y
        elif kind == 3:
            y = torch.zeros(size)
            work = dist.reduce_scatter_single(y, x.repeat(c.size), async_op=later)
            wanted = torch.arange(float(size)) * c.size + sum(range(c.size))
            x = y
        elif kind == 4:
            x = torch.zeros(sum(range(c.size)) if c.rank == 0 else c.rank)
            source = torch.full((c.rank * 1,), 7.0) if c.rank else torch.full((sum(range(c.size)),), 7.0)
            ins = [r if c.rank == 0 else (c.rank if r == 0 else 0) for r in range(c.size)]
            work, wanted = dist.all_to_all_single(x, source, ins, ins, async_op=later), torch.full_like(x, 7.0)
        else:
            work, wanted = dist.barrier(async_op=later), x.clone()
        if work is None:
            c.same(x, wanted)
        else:
            pending.append((work, x, wanted))
    for work, x, wanted in reversed(pending):
        work.wait()
        c.same(x, wanted)
