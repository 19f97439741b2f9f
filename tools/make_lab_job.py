"""Writes labs/data/job.tar.gz: a small data-parallel job of four ranks as torch.profiler would have recorded it.

Is: made by arithmetic, the same bytes each time; no machine ran it. Is not: a model of any GPU.

    python tools/make_lab_job.py [FILE]

Three steps of a network with six layers: forward, then backward; the gradients of two layers make a bucket that is all-reduced on
a stream of its own while earlier layers still compute; then the optimizer, and the next batch is copied in. A rank leaves an
all_reduce when all have entered and the bytes have moved. Rank 2 gets its batches late. Every rank has a clock of its own.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import sys
import tarfile
from pathlib import Path
from typing import Any

RANKS, STEPS, LAYERS, PER_BUCKET = 4, 3, 6, 2
FORWARD_US, BACKWARD_US, OPTIMIZER_US, COPY_US, STALL_US, BUCKET_US = 180.0, 360.0, 90.0, 60.0, 1400.0, 520.0
LATE, CLOCKS_US = 2, (0.0, 1873.25, -642.5, 95.125)
BASE = 1_760_000_000_000_000_000
ELEMENTS = 6_553_600
TARGET = Path(__file__).resolve().parent.parent / "labs" / "data" / "job.tar.gz"

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"
NORM = (
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float)"
)
BACK = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_nt_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"
ADAM = "void at::native::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float, 4>>"
COMM = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


class Rank:
    """The events of one rank, in its own clock."""

    def __init__(self, rank: int) -> None:
        self.rank, self.events, self.number = rank, [], 0
        self.dice = random.Random(rank)

    def add(self, name: str, cat: str, begin: float, length: float, stream: int, **args: Any) -> float:
        """An event and its launch; returns when it ends."""
        self.number += 1
        at, ids = (
            begin + 5000.0 + CLOCKS_US[self.rank],
            {"External id": self.number, "correlation": self.number},
        )
        launch = {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "pid": 900 + self.rank,
            "tid": 900 + self.rank,
            "ts": round(at - 40.0, 3),
            "dur": 4.25,
            "args": ids,
        }
        done = {
            "ph": "X",
            "cat": cat,
            "name": name,
            "pid": self.rank,
            "tid": stream,
            "ts": round(at, 3),
            "dur": round(length, 3),
            "args": ids | {"device": self.rank, "stream": stream} | args,
        }
        self.events += [launch, done]
        return begin + length

    def jitter(self, length: float) -> float:
        return length * (1 + 0.02 * self.dice.random())


def simulate() -> list[Rank]:
    """The job: all ranks, step by step; collectives wait for the last."""
    ranks = [Rank(r) for r in range(RANKS)]
    free, comm_free, seq = [0.0] * RANKS, 0.0, 0
    for step in range(STEPS):
        ready: list[list[float]] = []
        for r, rank in enumerate(ranks):
            t = rank.add(
                "Memcpy HtoD (Pinned -> Device)",
                "gpu_memcpy",
                free[r] + (STALL_US if r == LATE and step else 20.0),
                COPY_US,
                7,
            )
            for _ in range(LAYERS):
                t = rank.add(NORM, "kernel", t + 2, rank.jitter(0.1 * FORWARD_US), 7)
                t = rank.add(GEMM, "kernel", t + 2, rank.jitter(0.9 * FORWARD_US), 7)
            buckets = []
            for layer in range(LAYERS):
                t = rank.add(BACK, "kernel", t + 2, rank.jitter(BACKWARD_US), 7)
                if layer % PER_BUCKET == PER_BUCKET - 1:
                    buckets.append(t)
            ready.append(buckets)
        for bucket in range(LAYERS // PER_BUCKET):
            entered = [max(ready[r][bucket] + 3, comm_free) for r in range(RANKS)]
            end = max(entered) + BUCKET_US
            args = {
                "Collective name": "allreduce",
                "In msg nelems": ELEMENTS,
                "Out msg nelems": ELEMENTS,
                "Group size": RANKS,
                "dtype": "BFloat16",
                "In split size": "[]",
                "Out split size": "[]",
                "Process Group Name": "0",
                "Process Group Description": "default_pg",
                "Process Group Ranks": str(list(range(RANKS))),
                "Seq": seq,
            }
            for r, rank in enumerate(ranks):
                free[r] = rank.add(
                    COMM, "kernel", entered[r], end - entered[r] + 2 * rank.dice.random(), 20, **args
                )
            comm_free, seq = end + 5, seq + 1
        for r, rank in enumerate(ranks):
            free[r] = rank.add(ADAM, "kernel", free[r] + 4, rank.jitter(OPTIMIZER_US), 7)
    return ranks


def document(rank: Rank) -> dict[str, Any]:
    """The file of a rank."""
    info = {"backend": "nccl", "rank": rank.rank, "world_size": RANKS, "nccl_version": "2.27.3"}
    events = [e for e in rank.events if e["dur"] > 0]
    return {
        "schemaVersion": 1,
        "distributedInfo": info,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE,
        "traceEvents": sorted(events, key=lambda e: e["ts"]),
        "traceName": f"rank{rank.rank}.pt.trace.json",
    }


def build() -> bytes:
    """The archive; the same bytes each time."""
    out = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=out, mode="wb", mtime=0, filename="") as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for rank in simulate():
            data = json.dumps(document(rank)).encode()
            member = tarfile.TarInfo(f"job/rank{rank.rank}.pt.trace.json")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(build())
    print(f"{target}: {target.stat().st_size} bytes")
