"""A matmul beside a collective on one GPU: which multiprocessors (SMs) are left, and how long the matmul then takes.

Is: tiles on SMs, one after the other, and who else wants the SMs or the memory. Is not: a measurement, nor a GPU: clocks and power are
constant, caches are shared out fairly, nobody else is there. So what it says of copy engines, that they cost the matmul nothing
while memory has room, follows from what it leaves out as well. Every trace says "simulated".
Invariants: all tiles are computed once, an SM does one thing at a time, and times are whole ns.

    an SM computes one tile at a time; the next tile goes to the SM that is free first (persistent kernels, as CUTLASS has them)
    a collective by SMs holds `sms` of them from its begin to its end; by copy engines none
    the time of a tile is that of its arithmetic, or of its bytes over its share of the memory's rate, if that is longer

`python -m ccl_lab.simulator.models.multiprocessors FILE` writes the trace that lab 15 shows where there is no GPU.
"""

from __future__ import annotations

import dataclasses
import heapq
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import UsageError
from ...trace import Trace
from ...trace.columns import SpanKind, Track
from .workloads import DEVICES

ALONE, COPY_ENGINES, BY_SMS = range(3)  # coll_id of the runs in a trace of `compare`
NAMES = ("alone", "copy engines", "SMs")

SOURCES = {
    "sms": "132 on an H100 SXM: NVIDIA H100 datasheet",
    "tflops, memory_gbytes_per_s": "989 dense bf16, 3350: the same datasheet",
    "share": "0.7, an assumption: large matmuls reach 50 to 70 % of the peak",
    "tile": "128 x 256: the tile CUTLASS takes for bf16 on this architecture; one for each SM at a time",
    "link_gbytes_per_s": "370, what a ring reaches of 450 GB/s NVLink a direction: published nccl-tests on 8 x H100",
    "collective_sms": "20 of 132, what DeepSeek-V3 sets aside (arXiv 2412.19437); NCCL: one thread block a channel, up to 32",
}


@dataclasses.dataclass(frozen=True)
class Gpu:
    """What the model knows of a GPU; the defaults are an H100, see SOURCES."""

    sms: int = 132
    tflops: float = DEVICES["h100"].tflops
    share: float = 0.7
    memory_gbytes_per_s: float = DEVICES["h100"].memory_gbytes_per_s
    tile: tuple[int, int] = (128, 256)
    link_gbytes_per_s: float = 370.0


@dataclasses.dataclass(frozen=True)
class Collective:
    """An all_gather of `nbytes` among `ranks` of a node; sms: how many it holds, 0: copy engines move it."""

    nbytes: int
    ranks: int = 8
    sms: int = 0

    def duration_ns(self, gpu: Gpu) -> int:
        """(n - 1) / n of the bytes over the link."""
        return round(self.nbytes * (self.ranks - 1) / self.ranks / gpu.link_gbytes_per_s)

    def memory_gbytes_per_s(self, gpu: Gpu) -> float:
        """What it sends is read, what it receives is written."""
        return 2 * gpu.link_gbytes_per_s


def tile_bytes(gpu: Gpu, n: int) -> float:
    """Bytes of memory for one tile: the tiles of a wave lie in a square of the result, so each panel is read once for all of a row."""
    rows, columns = gpu.tile
    return (rows + columns) * n * 2 / gpu.sms**0.5 + rows * columns * 2


def tile_ns(gpu: Gpu, n: int, beside: Collective | None = None) -> int:
    """Time of one tile of an n x n x n matmul in bf16, with or without a collective at the memory."""
    rows, columns = gpu.tile
    arithmetic = 2 * rows * columns * n / (gpu.tflops * 1e3 * gpu.share / gpu.sms)
    rate = gpu.memory_gbytes_per_s - (beside.memory_gbytes_per_s(gpu) if beside else 0.0)
    if rate <= 0:
        raise UsageError(f"a memory of {gpu.memory_gbytes_per_s:g} GB/s has no room beside a link of {gpu.link_gbytes_per_s:g} GB/s.")
    return round(max(arithmetic, tile_bytes(gpu, n) / (rate / gpu.sms)))


def run(gpu: Gpu, n: int, beside: Collective | None = None, coll_id: int = ALONE) -> Trace:
    """An n x n x n matmul with `beside` from its begin on. A span a tile (index: the SM), and one for each SM or engine that copies."""
    if beside and not 0 <= beside.sms < gpu.sms:
        raise UsageError(f"a collective on {beside.sms} SMs of {gpu.sms}: expected 0 (copy engines) to {gpu.sms - 1}.")
    rows, columns = gpu.tile
    tiles = -(-n // rows) * -(-n // columns)
    ends = beside.duration_ns(gpu) if beside else 0
    held = beside.sms if beside else 0
    free = [(ends if sm < held else 0, sm) for sm in range(gpu.sms)]
    heapq.heapify(free)
    quiet, disturbed = tile_ns(gpu, n), tile_ns(gpu, n, beside)
    spans = []
    for tile in range(tiles):
        begin, sm = heapq.heappop(free)
        end = begin + _took(begin, ends, quiet, disturbed)
        spans.append((sm, Track.compute, SpanKind.compute, tile, begin, end, 0))
        heapq.heappush(free, (end, sm))
    for sm in range(held):
        spans.append((sm, Track.fabric, SpanKind.copy, -1, 0, ends, beside.nbytes // held if beside else 0))
    if beside and not held:
        spans.append((gpu.sms, Track.fabric, SpanKind.copy, -1, 0, ends, beside.nbytes))
    table = np.array(spans, np.int64).reshape(-1, 7).T
    names = ("index", "track", "kind", "op_id", "begin_ns", "end_ns", "nbytes")
    fixed = {"rank": np.zeros(len(spans), np.int32), "node": np.zeros(len(spans), np.int32), "coll_id": np.full(len(spans), coll_id)}
    return Trace({**dict(zip(names, table, strict=True)), **fixed}, _meta(gpu, n))


def _took(begin: int, ends: int, quiet: int, disturbed: int) -> int:
    """A tile's time where the first part of it, until `ends`, goes slower."""
    if begin >= ends or disturbed == quiet:
        return quiet
    slow = ends - begin
    return disturbed if slow >= disturbed else round(slow + quiet * (1 - slow / disturbed))


def compare(gpu: Gpu, n: int, collective: Collective) -> Trace:
    """The matmul alone, beside the collective by copy engines, and beside it by SMs: runs 0, 1, 2 by coll_id, all from time 0."""
    engines = dataclasses.replace(collective, sms=0)
    runs = [run(gpu, n), run(gpu, n, engines, COPY_ENGINES), run(gpu, n, collective, BY_SMS)]
    whole = Trace.concat(runs)
    return Trace(whole.columns, {**whole.meta, "collective_model": dataclasses.asdict(collective)})


def matmul_ns(trace: Trace, coll_id: int) -> int:
    """When the last tile of a run ended."""
    tiles = (trace["coll_id"] == coll_id) & (trace["track"] == Track.compute)
    return int(trace["end_ns"][tiles].max())


def slowdown(gpu: Gpu, n: int, collective: Collective) -> float:
    """How much longer the matmul takes beside the collective: 0.1 is 10 %."""
    return matmul_ns(run(gpu, n, collective), ALONE) / matmul_ns(run(gpu, n), ALONE) - 1


def _meta(gpu: Gpu, n: int) -> Mapping[str, Any]:
    fields = {**dataclasses.asdict(gpu), "tile": list(gpu.tile), "matmul": n}
    return {"source": "simulated", "device": "model of an H100", "n_ranks": 1, "model": fields, "sources": SOURCES}


LAB = (Gpu(), 8192, Collective(nbytes=512 << 20, sms=20))
"""What lab 15 stores: a bf16 matmul of 8192 cubed beside an all_gather of 512 MiB among 8 ranks."""


if __name__ == "__main__":
    compare(*LAB).save(sys.argv[1])
