"""Computation beside collectives on one GPU: what a matmul loses to copy engines and to SMs that copy, and layers without a tail.

Is: a bf16 matmul of 8192 x 8192 x 8192 beside an all_gather, and beside a kernel that moves as many bytes; all_gather_matmul and
matmul_reduce_scatter one after the other and decomposed (direct, one slice a round), with ranks that share the GPU; results checked.
Is not: a figure of several GPUs. Invariants: CUDA events, medians over rounds with the cases next to each other; of a layer the time of
the slowest rank; random data; ranks side by side on the GPU where MPS is installed. Beside the collective one rank computes, so that
nothing but the collective takes anything from it.

    python -m bench cuda_overlap       says so where torch has no GPU
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import ccl_lab as ccl
from bench import cuda
from bench.ranks import answer_of, side_by_side
from ccl_lab.engine import devices
from tests.integration.device_cases import LIBRARY

RANKS = (2, 4)
SIDE = 8192
GATHERED_BYTES = 1 << 30  # of a rank, in the all_gather beside the matmul
ROUNDS, WARM = 20, 3


def missing() -> str | None:
    """Why it cannot run here."""
    if why := cuda.missing():
        return why
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return None if torch.cuda.is_available() else "this torch sees no GPU"


class Bench:
    """A rank: its matrices, a stream that computes and one that communicates."""

    def __init__(self, comm: Any) -> None:
        import torch

        self.torch, self.comm = torch, comm
        torch.cuda.set_device(0)
        generator = torch.Generator("cuda").manual_seed(comm.rank)
        self.made = lambda *shape: torch.randn(*shape, generator=generator, device="cuda", dtype=torch.bfloat16)
        self.main, self.side = torch.cuda.Stream(), torch.cuda.Stream()

    def ms(self, call: Callable[[], Any], beside: Callable[[], Any] | None = None) -> float:
        """Between events of the main stream around what `call` puts there, while the other stream does what `beside` puts there."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.torch.cuda.synchronize()
        self.comm.barrier()
        if beside is not None:
            with self.torch.cuda.stream(self.side):
                beside()
        with self.torch.cuda.stream(self.main):
            begin.record()
            call()
            end.record()
        self.torch.cuda.synchronize()
        return float(begin.elapsed_time(end))

    def medians(self, cases: dict[str, Callable[[], float]]) -> dict[str, float]:
        """Of the slowest rank."""
        found: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(WARM + ROUNDS):
            for name, case in cases.items():
                found[name].append(case())
        slowest = {name: self.comm.all_reduce(np.array(each[WARM:]), "max") for name, each in found.items()}
        return {name: float(statistics.median(each.tolist())) for name, each in slowest.items()}

    def on_side(self, after: Any, call: Callable[[], Any]) -> Any:
        """`call` on the other stream, behind the event `after`; the event behind it."""
        self.side.wait_event(after)
        with self.torch.cuda.stream(self.side):
            call()
            return self.side.record_event()

    def exchange(self, x: Any, out: Any, distance: int) -> None:
        """x goes to the rank `distance` further, `out` comes from the one as far before."""
        n, r = self.comm.size, self.comm.rank
        counts = np.zeros(n, np.int64)
        counts[(r + distance) % n] = x.numel()
        self.comm.all_to_allv(x.view(-1), counts, out=out.view(-1))


def beside(bench: Bench) -> dict[str, float]:
    """ms of rank 0's matmul alone, beside an all_gather, beside a kernel that moves as many bytes; and the ms of these two alone."""
    torch, comm = bench.torch, bench.comm
    computes = comm.rank == 0
    a, b = bench.made(SIDE, SIDE), bench.made(SIDE, SIDE)
    product = torch.empty_like(a)
    x = bench.made(GATHERED_BYTES // 2)
    y = torch.empty(comm.size, x.numel(), **of(x))

    def gather() -> None:
        comm.all_gather(x, out=y)

    def by_sms() -> None:
        for row in [*y] * comm.size if computes else []:  # what the engines do for all ranks
            torch.add(x, 0, out=row)

    def matmul() -> None:
        if computes:
            torch.matmul(a, b, out=product)

    cases = {
        "matmul": lambda: bench.ms(matmul),
        "matmul_beside_copy_engines": lambda: bench.ms(matmul, gather),
        "matmul_beside_sms": lambda: bench.ms(matmul, by_sms),
        "copy_engines": lambda: bench.ms(gather),
        "sms": lambda: bench.ms(by_sms),
    }
    found = bench.medians(cases)
    gather()
    sums = [int(each.view(torch.int16).sum(dtype=torch.int64)) for each in (x, *y)]
    assert sums[1:] == comm.all_gather(np.array(sums[0])).tolist(), "the all_gather is wrong"
    return found


def layers(bench: Bench) -> dict[str, Any]:
    """ms of both layers: computation alone, one after the other, decomposed. Raises AssertionError where results differ."""
    torch, comm = bench.torch, bench.comm
    n, r, rows = comm.size, comm.rank, SIDE // comm.size
    shard, weights = bench.made(rows, SIDE), bench.made(SIDE, SIDE)
    gathered, product = torch.empty(n, rows, SIDE, **of(shard)), torch.empty(n, rows, SIDE, **of(shard))
    whole = bench.made(SIDE, SIDE)
    partial = torch.empty(n, rows, SIDE, **of(shard))
    arrived, mine = torch.empty_like(partial), torch.empty_like(shard)

    def gather_compute() -> None:
        torch.matmul(gathered.view(SIDE, SIDE), weights, out=product.view(SIDE, SIDE))

    def gather_then() -> None:
        comm.all_gather(shard, out=gathered)
        gather_compute()

    def gather_direct() -> None:
        begin = bench.main.record_event()
        torch.matmul(shard, weights, out=product[r])
        events = [bench.on_side(begin, lambda k=k: bench.exchange(shard, gathered[(r - k) % n], k)) for k in range(1, n)]
        for k, event in enumerate(events, 1):
            bench.main.wait_event(event)
            torch.matmul(gathered[(r - k) % n], weights, out=product[(r - k) % n])

    def scatter_compute() -> None:
        torch.matmul(whole, weights, out=partial.view(SIDE, SIDE))

    def scatter_then() -> None:
        scatter_compute()
        comm.reduce_scatter(partial, out=mine)

    def scatter_direct() -> None:
        pieces = whole.view(n, rows, SIDE)
        events = []
        for k in range(1, n):
            to = (r + k) % n
            torch.matmul(pieces[to], weights, out=partial[to])
            made = bench.main.record_event()
            events.append(bench.on_side(made, lambda k=k, to=to: bench.exchange(partial[to], arrived[(r - k) % n], k)))
        torch.matmul(pieces[r], weights, out=mine)
        for k, event in enumerate(events, 1):
            bench.main.wait_event(event)
            mine.add_(arrived[(r - k) % n])

    for one, other, result in ((gather_then, gather_direct, product), (scatter_then, scatter_direct, mine)):
        bench.ms(one)
        wanted = result.clone()
        result.zero_()
        bench.ms(other)
        # Sums of random bfloat16 in another order: a wrong slice would be off by a hundred times as much.
        error = float((result.float() - wanted.float()).norm() / wanted.float().norm())
        assert error < 0.01, f"{other.__name__}: off by {error:.3f} of what it is one after the other"
    calls = (gather_compute, gather_then, gather_direct, scatter_compute, scatter_then, scatter_direct)
    return bench.medians({call.__name__: lambda call=call: bench.ms(call) for call in calls})


def of(tensor: Any) -> dict[str, Any]:
    return {"device": tensor.device, "dtype": tensor.dtype}


def rank_main() -> dict[str, Any]:
    """What rank 0 prints: milliseconds."""
    devices.LIBRARY = LIBRARY
    with ccl.init() as comm:
        bench = Bench(comm)
        return {"ranks": comm.size, "layers_ms": layers(bench), "beside_ms": beside(bench) if comm.size == 2 else None}


def _words(row: dict[str, Any]) -> str:
    said = []
    if found := row["beside_ms"]:
        slower = {name: found[f"matmul_beside_{name}"] / found["matmul"] - 1 for name in ("copy_engines", "sms")}
        said.append(f"a matmul is slower by {slower['copy_engines']:.1%} beside copy engines, by {slower['sms']:.1%} beside SMs that copy")
    for name in ("gather", "scatter"):
        compute, then, direct = (row["layers_ms"][f"{name}_{each}"] for each in ("compute", "then", "direct"))
        of_then = f"{direct / then:.2f} of one after the other, computation {compute / then:.2f}"
        said.append(f"{name} on {row['ranks']} ranks: decomposed {of_then}")
    return ", ".join(said)


def run(ranks: tuple[int, ...] = RANKS) -> dict[str, Any]:
    """A row for each number of ranks; without a GPU only the reason."""
    if why := missing():
        return {"rows": [], "skipped": why, "summary": f"not run: {why}"}
    with side_by_side() as mps:
        rows = [answer_of("bench.cuda_overlap", n, timeout_s=120) for n in ranks]
    said = {"mps": mps, "side": SIDE, "gathered_bytes": GATHERED_BYTES}
    return {"gpus": cuda.gpus(), **said, "rows": rows, "summary": "; ".join(_words(row) for row in rows)}


if __name__ == "__main__" and sys.argv[1:] == ["rank"]:
    print(json.dumps(rank_main()), flush=True)
