"""torch's collectives on tensors, said to a Communicator: one method each, whatever the torch version calls it.

Is: sizes checked, memory with gaps and lists of tensors brought into one piece, uneven blocks taken apart. Is not: the order of
calls (works), nor moving. Invariants: contiguous tensors, and lists that lie in one piece, are used where they are; all ranks
derive the same calls from the same arguments, as torch demands them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d  # where all versions have the options

from .lanes import Lanes, placed
from .tensors import (
    as_one,
    check,
    copy_back,
    dense,
    fits,
    moved,
    one_device,
    one_dtype,
    only,
    redop_name,
    reduced,
    same_sizes,
    seconds_of,
)
from .works import Turns

SMALL = 1 << 20  # bytes; below, the tensors of a coalesced call travel as one

Tensors = list[torch.Tensor]


def _options(opts: Any) -> dict[str, Any]:
    seconds = seconds_of(getattr(opts, "timeout", None))
    return {} if seconds is None else {"timeout": seconds}


def _waits(opts: Any) -> bool:
    """True where the caller will wait at once (torch says so from 2.6 on)."""
    return not getattr(opts, "asyncOp", True)


class Collectives:
    """The collectives of a group of `size` over `_comm`; `_turns` keeps their order."""

    _comm: Any
    _turns: Turns
    _lanes: Lanes
    _rank: int
    _size: int
    _coalescing: list[Any] | None = None

    def _go(
        self, call: Any, opts: Any, outputs: Tensors, finish: Callable[[], None] | None = None, *, what: str, at_once: bool = True
    ) -> Any:
        lane = self._lanes.now()
        if lane is not None:
            return self._add(lane.go(self._turns, call, _options(opts), outputs, finish, what))
        waits = _waits(opts) and self._coalescing is None
        work = self._turns.take(call, _options(opts), outputs, finish, waits=waits, what=what, at_once=at_once)
        return self._add(work)

    def _add(self, work: Any) -> Any:
        if self._coalescing is not None:
            self._coalescing.append(work)
        return work

    # -- reductions

    @placed
    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        """Every rank's tensor becomes the reduction of all, in place."""
        opts = _as_options(opts, c10d.AllreduceOptions, timeout)
        tensor = check(only(tensors, "all_reduce") if isinstance(tensors, (list, tuple)) else tensors, "all_reduce: tensor")
        back: list[tuple[torch.Tensor, torch.Tensor]] = []
        array, op = reduced(dense(tensor, back), redop_name(opts.reduceOp))
        comm = self._comm
        return self._go(lambda o: comm.all_reduce(array, op, out=array, **o), opts, [tensor], copy_back(back), what="all_reduce")

    @placed
    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        """As allreduce of each; small ones of a type travel as one."""
        opts = opts or c10d.AllreduceCoalescedOptions()
        redop = redop_name(opts.reduceOp)
        back: list[tuple[torch.Tensor, torch.Tensor]] = []
        one_device(tensors, "all_reduce")
        pieces = _packed([dense(check(tensor, "all_reduce: tensor"), back) for tensor in tensors], back)
        arrays = [reduced(piece, redop) for piece in pieces]
        comm = self._comm

        def call(options: dict[str, Any]) -> Any:
            return [comm.all_reduce(array, op, out=array, **options) for array, op in arrays]

        return self._go(call, opts, tensors, copy_back(back[::-1]), what="all_reduce (coalesced)")

    @placed
    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        """The root's tensor becomes the reduction of all, in place; other ranks' stay."""
        opts = opts or c10d.ReduceOptions()
        tensor = check(only(tensors, "reduce"), "reduce: tensor")
        back: list[tuple[torch.Tensor, torch.Tensor]] = []
        root, here = opts.rootRank, opts.rootRank == self._rank
        array, op = reduced(dense(tensor, back if here else None), redop_name(opts.reduceOp))
        comm = self._comm
        return self._go(
            lambda o: comm.reduce(array, root, op, out=array if here else None, **o), opts, [tensor], copy_back(back), what="reduce"
        )

    @placed
    def reduce_scatter_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Any:
        """Rank r's output becomes the reduction of all ranks' block r of the source."""
        opts = opts or c10d.ReduceScatterOptions()
        call, back = self._reduce_scatter(output, source, redop_name(opts.reduceOp))
        return self._go(call, opts, [output], copy_back(back), what="reduce_scatter")

    def _reduce_scatter(self, output: torch.Tensor, source: torch.Tensor, redop: str) -> tuple[Any, list[Any]]:
        check(output, "reduce_scatter: output")
        check(source, "reduce_scatter: input")
        one_dtype([output, source], "reduce_scatter")
        fits(
            source.numel() == output.numel() * self._size,
            f"reduce_scatter on rank {self._rank}: expected an input of {self._size} x {output.numel()} elements, found {source.numel()}.",
        )
        back: list[tuple[torch.Tensor, torch.Tensor]] = []
        x, op = reduced(dense(source, None), redop)
        y, _ = reduced(dense(output, back), redop)
        comm, blocks = self._comm, x.reshape(self._size, y.size)
        return lambda o: comm.reduce_scatter(blocks, op, out=y, **o), back

    @placed
    def reduce_scatter_single_coalesced(self, outputs: Tensors, sources: Tensors, opts: Any = None) -> Any:
        """As reduce_scatter_single of each."""
        opts = opts or c10d.ReduceScatterOptions()
        redop = redop_name(opts.reduceOp)
        both = [self._reduce_scatter(output, source, redop) for output, source in zip(outputs, sources, strict=True)]
        back = [pair for _, pairs in both for pair in pairs]
        return self._go(
            lambda o: [call(o) for call, _ in both], opts, outputs, copy_back(back), what="reduce_scatter (coalesced)"
        )

    @placed
    def reduce_scatter(self, outputs: Tensors, sources: list[Tensors], opts: Any = None) -> Any:
        """Rank r's output becomes the reduction of all ranks' r-th tensor; they may differ in size."""
        opts = opts or c10d.ReduceScatterOptions()
        output, blocks = only(outputs, "reduce_scatter"), only(sources, "reduce_scatter")
        self._one_per_rank(blocks, "reduce_scatter: input list")
        if same_sizes(blocks):
            return self.reduce_scatter_single(output, _together(blocks), opts)
        one_dtype([output, *blocks], "reduce_scatter")
        fits(
            output.numel() == blocks[self._rank].numel(),
            f"reduce_scatter on rank {self._rank}: expected an output of {blocks[self._rank].numel()} elements, as its block, found "
            f"{output.numel()}.",
        )
        back: list[tuple[torch.Tensor, torch.Tensor]] = []
        arrays = [reduced(dense(check(block, "reduce_scatter: input"), None), redop_name(opts.reduceOp)) for block in blocks]
        mine, _ = reduced(dense(check(output, "reduce_scatter: output"), back), redop_name(opts.reduceOp))
        comm = self._comm

        def call(options: dict[str, Any]) -> Any:
            return [
                comm.reduce(array, root, op, out=mine if root == self._rank else None, **options)
                for root, (array, op) in enumerate(arrays)
            ]

        return self._go(call, opts, [output], copy_back(back), what="reduce_scatter (uneven)")

    # -- those that move

    @placed
    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        """Every rank's tensor becomes the root's."""
        opts = opts or c10d.BroadcastOptions()
        tensor = check(only(tensors, "broadcast"), "broadcast: tensor")
        back: list[tuple[torch.Tensor, torch.Tensor]] = []
        root = opts.rootRank
        array = moved(dense(tensor, None if root == self._rank else back))
        comm = self._comm
        return self._go(lambda o: comm.broadcast(array, root, **o), opts, [tensor], copy_back(back), what="broadcast")

    @placed
    def all_gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Any:
        """Every rank's output becomes all sources, by rank."""
        call, back = self._all_gather(output, source)
        return self._go(call, opts or c10d.AllgatherOptions(), [output], copy_back(back), what="all_gather")

    def _all_gather(self, output: torch.Tensor, source: torch.Tensor) -> tuple[Any, list[Any]]:
        check(output, "all_gather: output")
        check(source, "all_gather: input")
        one_dtype([output, source], "all_gather")
        fits(
            output.numel() == source.numel() * self._size,
            f"all_gather on rank {self._rank}: expected an output of {self._size} x {source.numel()} elements, found {output.numel()}.",
        )
        back: list[tuple[torch.Tensor, torch.Tensor]] = []
        x, y, comm = moved(dense(source, None)), moved(dense(output, back)), self._comm
        return lambda o: comm.all_gather(x, out=y, **o), back

    @placed
    def all_gather_single_coalesced(self, outputs: Tensors, sources: Tensors, opts: Any = None) -> Any:
        """As all_gather_single of each."""
        both = [self._all_gather(output, source) for output, source in zip(outputs, sources, strict=True)]
        back = [pair for _, pairs in both for pair in pairs]
        return self._go(
            lambda o: [call(o) for call, _ in both],
            opts or c10d.AllgatherOptions(),
            outputs,
            copy_back(back),
            what="all_gather (coalesced)",
        )

    @placed
    def allgather(self, outputs: list[Tensors], sources: Tensors, opts: Any = None) -> Any:
        """The r-th tensor of every rank's list becomes rank r's source; they may differ in size."""
        opts = opts or c10d.AllgatherOptions()
        source, blocks = check(only(sources, "all_gather"), "all_gather: input"), only(outputs, "all_gather")
        self._one_per_rank(blocks, "all_gather: output list")
        one_dtype([source, *blocks], "all_gather")
        fits(
            source.numel() == blocks[self._rank].numel(),
            f"all_gather on rank {self._rank}: expected output {self._rank} to have {source.numel()} elements, as the input, found "
            f"{blocks[self._rank].numel()}.",
        )
        if not same_sizes(blocks):
            return self._all_gather_uneven(blocks, source, opts)
        whole, back = _apart(blocks)
        call, _ = self._all_gather(whole, source)
        return self._go(call, opts, blocks, copy_back(back), what="all_gather")

    def _all_gather_uneven(self, blocks: Tensors, source: torch.Tensor, opts: Any) -> Any:
        back: list[tuple[torch.Tensor, torch.Tensor]] = []
        mine = dense(source, None)
        arrays = [mine if r == self._rank else dense(block, back) for r, block in enumerate(blocks)]
        back.append((blocks[self._rank], mine))
        comm, views = self._comm, [moved(array) for array in arrays]
        return self._go(
            lambda o: [comm.broadcast(view, root, **o) for root, view in enumerate(views)],
            opts,
            blocks,
            copy_back(back),
            what="all_gather (uneven)",
        )

    @placed
    def allgather_coalesced(self, outputs: list[Tensors], sources: Tensors, opts: Any = None) -> Any:
        """As allgather of each: outputs[r][i] becomes rank r's i-th source."""
        opts = opts or c10d.AllgatherOptions()
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        calls = []
        for i, source in enumerate(sources):
            blocks = [row[i] for row in outputs]
            whole, back = _apart(blocks)
            calls.append(self._all_gather(whole, source)[0])
            pairs += back
        flat = [tensor for row in outputs for tensor in row]
        return self._go(lambda o: [call(o) for call in calls], opts, flat, copy_back(pairs), what="all_gather (coalesced)")

    @placed
    def gather(self, outputs: list[Tensors], sources: Tensors, opts: Any = None) -> Any:
        """The root's r-th tensor becomes rank r's source."""
        opts = opts or c10d.GatherOptions()
        source, root, comm = check(only(sources, "gather"), "gather: input"), opts.rootRank, self._comm
        x = moved(dense(source, None))
        if root != self._rank:
            return self._go(lambda o: comm.gather(x, root, **o), opts, [], what="gather")
        blocks = only(outputs, "gather")
        self._one_per_rank(blocks, "gather: output list")
        one_dtype([source, *blocks], "gather")
        fits(
            same_sizes([source, *blocks]),
            f"gather on rank {root}: expected {self._size} outputs of {source.numel()} elements, found {[b.numel() for b in blocks]}.",
        )
        whole, back = _apart(blocks)
        y = moved(whole)
        return self._go(lambda o: comm.gather(x, root, out=y, **o), opts, blocks, copy_back(back), what="gather")

    @placed
    def scatter(self, outputs: Tensors, sources: list[Tensors], opts: Any = None) -> Any:
        """Rank r's output becomes the root's r-th tensor."""
        opts = opts or c10d.ScatterOptions()
        output, root, comm = check(only(outputs, "scatter"), "scatter: output"), opts.rootRank, self._comm
        back: list[tuple[torch.Tensor, torch.Tensor]] = []
        y = moved(dense(output, back))
        x = None
        if root == self._rank:
            blocks = only(sources, "scatter")
            self._one_per_rank(blocks, "scatter: input list")
            one_dtype([output, *blocks], "scatter")
            fits(
                same_sizes([output, *blocks]),
                f"scatter on rank {root}: expected {self._size} inputs of {output.numel()} elements, found {[b.numel() for b in blocks]}.",
            )
            x = moved(_together(blocks)).reshape(self._size, y.size)
        return self._go(lambda o: comm.scatter(x, root, out=y, **o), opts, [output], copy_back(back), what="scatter")

    @placed
    def all_to_all_single(
        self, output: torch.Tensor, source: torch.Tensor, output_splits: list[int], input_splits: list[int], opts: Any = None
    ) -> Any:
        """Rank r gets block r of every rank's source, by rank; splits: rows per block, [] for equal blocks on all ranks."""
        opts = opts or c10d.AllToAllOptions()
        check(output, "all_to_all: output")
        check(source, "all_to_all: input")
        one_dtype([output, source], "all_to_all")
        back: list[tuple[torch.Tensor, torch.Tensor]] = []
        x, y, comm = moved(dense(source, None)), moved(dense(output, back)), self._comm
        if not output_splits and not input_splits:
            fits(
                source.numel() == output.numel() and source.numel() % self._size == 0,
                f"all_to_all on rank {self._rank}: expected input and output of one size that {self._size} divides, found "
                f"{source.numel()} and {output.numel()} elements.",
            )
            blocks = x.reshape(self._size, x.size // self._size)
            return self._go(lambda o: comm.all_to_all(blocks, out=y, **o), opts, [output], copy_back(back), what="all_to_all")
        sent = self._counts(source, input_splits, x.size, "input")
        self._counts(output, output_splits, y.size, "output")
        return self._uneven(x, sent, y, opts, [output], copy_back(back))

    @placed
    def alltoall(self, outputs: Tensors, sources: Tensors, opts: Any = None) -> Any:
        """The r-th output becomes this rank's tensor in rank r's list; they may differ in size."""
        self._one_per_rank(outputs, "all_to_all: output list")
        self._one_per_rank(sources, "all_to_all: input list")
        for tensor in (*outputs, *sources):
            check(tensor, "all_to_all: tensor")
        one_dtype([*outputs, *sources], "all_to_all")
        whole, back = _apart(outputs)
        width = 2 if sources[0].element_size() == 16 else 1
        sent = [source.numel() * width for source in sources]
        opts = opts or c10d.AllToAllOptions()
        return self._uneven(moved(_together(sources)), sent, moved(whole), opts, outputs, copy_back(back))

    def _uneven(self, x: Any, sent: list[int], y: Any, opts: Any, outputs: Tensors, finish: Any) -> Any:
        """Ranks tell each other their counts first: this cannot start without waiting, so an async one takes its turn."""
        comm = self._comm
        return self._go(
            lambda o: comm.exchange(x, sent, y, **o), opts, outputs, finish, what="all_to_all (uneven)", at_once=False
        )

    def _counts(self, tensor: torch.Tensor, splits: list[int], total: int, what: str) -> list[int]:
        """Elements of the moved array per block."""
        rows = tensor.size(0) if tensor.dim() else 1
        if not splits:
            fits(rows % self._size == 0, f"all_to_all on rank {self._rank}: {self._size} does not divide the {rows} rows of the {what}.")
            splits = [rows // self._size] * self._size
        fits(
            len(splits) == self._size and sum(splits) == rows and min(splits) >= 0,
            f"all_to_all on rank {self._rank}: expected {self._size} {what} splits that add up to {rows} rows, found {list(splits)}.",
        )
        per_row = total // rows if rows else 0
        return [split * per_row for split in splits]

    def barrier(self, opts: Any = None) -> Any:
        """No rank goes on before all have come, and what each has put on the streams of its GPU has ended."""
        comm, lanes = self._comm, self._lanes

        def call(options: dict[str, Any]) -> Any:
            lanes.settle()
            return comm.barrier(**options)

        return self._go(call, opts or c10d.BarrierOptions(), [], what="barrier")

    def _one_per_rank(self, blocks: Tensors, what: str) -> None:
        fits(len(blocks) == self._size, f"{what} on rank {self._rank}: expected {self._size} tensors, one per rank, found {len(blocks)}.")


def _as_options(opts: Any, kind: Any, timeout: Any = None) -> Any:
    """Options where a bare ReduceOp, or nothing, was given."""
    if hasattr(opts, "asyncOp") or hasattr(opts, "timeout"):
        return opts
    made = kind()
    if opts is not None:
        made.reduceOp = opts
    if timeout is not None:
        made.timeout = timeout
    return made


def _apart(blocks: Tensors) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
    """(one flat tensor for all blocks, copies to do at the end): where they lie in one piece, that piece and no copies."""
    for block in blocks:
        check(block, "output")
    whole = as_one(blocks)
    if whole is not None:
        return whole, []
    whole = blocks[0].new_empty(sum(block.numel() for block in blocks))
    return whole, list(zip(blocks, whole.split([block.numel() for block in blocks]), strict=True))


def _together(blocks: Tensors) -> torch.Tensor:
    """The blocks one behind the other: where they are if they lie so, else a copy."""
    for block in blocks:
        check(block, "input")
    one_dtype(blocks, "input list")
    whole = as_one(blocks)
    return whole if whole is not None else torch.cat([block.detach().reshape(-1) for block in blocks])


def _packed(tensors: Tensors, back: list[tuple[torch.Tensor, torch.Tensor]]) -> Tensors:
    """Small tensors of a type as one, with the copies to do at the end; large ones as they are. The same on all ranks."""
    pieces = [tensor for tensor in tensors if tensor.numel() * tensor.element_size() >= SMALL]
    small: dict[torch.dtype, Tensors] = {}
    for tensor in tensors:
        if tensor.numel() * tensor.element_size() < SMALL:
            small.setdefault(tensor.dtype, []).append(tensor)
    for group in small.values():
        whole = as_one(group)
        if whole is None:
            whole = torch.cat([tensor.detach().reshape(-1) for tensor in group])
            back += zip(group, whole.split([tensor.numel() for tensor in group]), strict=True)
        pieces.append(whole)
    return pieces

