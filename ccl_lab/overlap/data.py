"""Data parallelism whose gradients leave while backward goes on, and whose parameters return while the next forward begins.

Is: parameters and gradients in registered buckets, each split over the ranks; a rank reduces, keeps and updates its own shard
(ZeRO 1). Is not: a replacement of single layers (layers.ShardedLinear) nor of the optimizer, which works on the shards as on any
parameters. Invariants: gradients are written where they are sent from, parameters arrive where they are used: nothing is copied;
all ranks launch the same buckets in the same order, whatever order their gradients come in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..errors import UsageError
from .torch_needed import dtype_name, tensor_over, torch

Tensor = torch.Tensor
BUCKET_NBYTES = 4 << 20


class _Bucket:
    """Some parameters of one dtype: their values and gradients, flat, in registered memory, padded to equal shards."""

    def __init__(self, comm: Any, parameters: list[torch.nn.Parameter]) -> None:
        self.comm, self.parameters = comm, parameters
        total = sum(each.numel() for each in parameters)
        self.shard = -(-total // comm.size)
        name = dtype_name(parameters[0].dtype, "a parameter")
        self._values, self._grads = (comm.empty((comm.size, self.shard), name) for _ in range(2))
        self._mine = comm.empty(self.shard, name)
        self.values, self.grads = tensor_over(self._values), tensor_over(self._grads)
        self.values.view(-1)[total:] = 0
        self.grads.zero_()
        at = 0
        for each in parameters:
            flat = self.values.view(-1)[at : at + each.numel()].view(each.shape)
            flat.copy_(each.detach())
            each.data = flat
            each.grad = self.grads.view(-1)[at : at + each.numel()].view(each.shape)
            at += each.numel()
        self._views = [each.grad for each in parameters]
        # What the optimizer sees: this rank's shard of the values, with the reduced gradients.
        self.parameter = torch.nn.Parameter(self.values[comm.rank], requires_grad=True)
        self.mine = tensor_over(self._mine)
        self.missing = len(parameters)
        self.work: Any = None

    def reduce(self, wait: bool) -> None:
        for each, view in zip(self.parameters, self._views, strict=True):
            if each.grad is not view:  # the optimizer of another, or zero_grad(set_to_none=True), took it away
                if each.grad is not None:
                    view.copy_(each.grad)
                each.grad = view
        self._do(self.comm.reduce_scatter, self._grads, "avg", self._mine, wait)

    def gather(self, wait: bool) -> None:
        self._do(self.comm.all_gather, self._values[self.comm.rank], None, self._values, wait)

    def _do(self, call: Callable[..., Any], x: np.ndarray, op: str | None, out: np.ndarray, wait: bool) -> None:
        words = (x,) if op is None else (x, op)
        if wait:
            call(*words, out=out)
        else:
            self.work = call(*words, out=out, async_op=True)

    def finish(self) -> None:
        if self.work is not None:
            work, self.work = self.work, None
            work.wait()


class DataParallel(torch.nn.Module):
    """`module` on every rank of `comm`, each with its own data: gradients are the mean over ranks.

    Use:  model = DataParallel(model, comm);  optimizer = torch.optim.AdamW(model.shards(), …)
          loss.backward();  model.step(optimizer)

    `step` waits for the gradients of this rank's shards, lets the optimizer update them, and starts to gather the parameters, own
    shard first; a layer's forward waits for its own bucket only. `overlap=False` does the same with nothing in the background. The
    parameters must be the same on all ranks when this is made. Raises UsageError where a parameter got no gradient on some rank.
    """

    def __init__(self, module: torch.nn.Module, comm: Any, *, bucket_nbytes: int = BUCKET_NBYTES, overlap: bool = True) -> None:
        super().__init__()
        self.module, self._comm, self._overlap = module, comm, overlap
        self._buckets = [_Bucket(comm, some) for some in _grouped(module, bucket_nbytes)]
        self._of = {id(each): bucket for bucket in self._buckets for each in bucket.parameters}
        self._next = 0  # the bucket that is launched next
        for bucket in self._buckets:
            for each in bucket.parameters:
                each.register_post_accumulate_grad_hook(self._came)
        for part in module.modules():
            own = {id(bucket): bucket for bucket in map(self._bucket_of, part.parameters(recurse=False)) if bucket}
            if own:
                part.register_forward_pre_hook(_finisher(list(own.values())))

    def _bucket_of(self, parameter: Tensor) -> _Bucket | None:
        return self._of.get(id(parameter))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def shards(self) -> Iterator[torch.nn.Parameter]:
        """This rank's part of the parameters, flat: what to give to an optimizer that treats elements alike."""
        return iter([bucket.parameter for bucket in self._buckets])

    def _came(self, parameter: Tensor) -> None:
        bucket = self._of[id(parameter)]
        bucket.missing -= 1
        while self._next < len(self._buckets) and self._buckets[self._next].missing == 0:
            if self._overlap:
                self._buckets[self._next].reduce(wait=False)
            self._next += 1

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Ends a backward: reduces what is left, updates this rank's shards, starts to gather."""
        if self._next < len(self._buckets):
            bucket = self._buckets[self._next]
            raise UsageError(
                f"DataParallel.step on rank {self._comm.rank}: {bucket.missing} of {len(bucket.parameters)} parameters of bucket "
                f"{self._next} got no gradient; call backward() before, and freeze (requires_grad_(False)) what is not used.",
                rank=self._comm.rank,
            )
        for bucket in self._buckets:
            bucket.finish() if self._overlap else bucket.reduce(wait=True)
            bucket.parameter.grad = bucket.mine  # zero_grad() may have taken it away
        optimizer.step()
        for bucket in self._buckets:
            bucket.grads.zero_()
            bucket.missing = len(bucket.parameters)
        self._next = 0
        for bucket in reversed(self._buckets):  # forward needs the last one first
            bucket.gather(wait=not self._overlap)

    def synchronize(self) -> None:
        """Waits until all parameters are here: before they are saved or looked at."""
        for bucket in self._buckets:
            bucket.finish()


def _finisher(buckets: list[_Bucket]) -> Callable[..., None]:
    def finish(*_: Any) -> None:
        for each in buckets:
            each.finish()

    return finish


def _grouped(module: torch.nn.Module, nbytes: int) -> list[list[torch.nn.Parameter]]:
    """Parameters in the order in which backward is expected to reach them, in groups of one dtype and about `nbytes`."""
    groups: list[list[torch.nn.Parameter]] = []
    size = 0
    for each in reversed([each for each in module.parameters() if each.requires_grad]):
        if not groups or size >= nbytes or groups[-1][0].dtype != each.dtype:
            groups.append([])
            size = 0
        groups[-1].append(each)
        size += each.numel() * each.element_size()
    return groups


__all__ = ["DataParallel"]
