"""Traces of schedules that compute, for browser tests: a matmul and a reduce_scatter, one after the other or decomposed.

Is: two small schedules written by hand, and their simulation. Is not: the operators of ccl_lab.overlap.
"""

from __future__ import annotations

import numpy as np

import ccl_lab as ccl
from ccl_lab.ir import Builder
from ccl_lab.planner.direct import sources
from ccl_lab.trace import SpanKind, Trace, Track


def schedule(decomposed: bool, n: int = 4):
    """Partition d of rank r is for rank r + 1 + d; decomposed, each is sent as soon as it is computed, the own one comes last."""
    r = np.arange(n)
    name = "decomposed" if decomposed else "sequential"
    b = Builder("reduce_scatter", n, algorithm=name, channels=2, scratch_blocks=n - 1)
    for part in range(n):
        b.compute(rank=r, arg=part)
        if decomposed or part == n - 1:
            b.signal(rank=r, peer=r, channel=0, sig_channel=1)
    for d in range(n - 1):
        to = (r + 1 + d) % n
        if decomposed or d == 0:
            b.wait(rank=r, peer=r, channel=1)
        b.put(rank=r, peer=to, src=b.input[to], dst=b.scratch[r - (r > to)], channel=1)
    for d in range(n - 1):
        b.wait(rank=r, peer=(r - 1 - d) % n, channel=0, sig_channel=1)
    b.reduce(rank=r, dst=b.output[np.zeros_like(r)], srcs=sources(r, n, r, np.zeros_like(r), 1), channel=0)
    return b.build()


def trace(decomposed: bool, n: int = 4, part_us: int = 300, slower: float = 1.0, nbytes: str = "1MiB") -> Trace:
    """Simulated on a node per rank; `part_us` µs a partition, `slower` times that while the rank communicates."""
    cluster = ccl.Topology.cluster(nodes=n, gpus_per_node=1, nics_per_node=1, nic_gbits_per_s=8)
    durations = part_us * 1_000_000 * (100 + 7 * np.arange(n)[:, None]) // 100 * np.ones((1, n), np.int64)
    return ccl.simulate(schedule(decomposed, n), cluster, nbytes, compute_ps=durations, interference=slower)


def many(n: int = 1_000_000, ranks: int = 8) -> Trace:
    """`n` spans: half computation, half puts on three channels, partly hidden."""
    rng = np.random.default_rng(5)
    lanes = ranks * 4
    per = n // lanes
    lane = np.repeat(np.arange(lanes), per)
    on = lane % 4
    gaps, lengths = rng.integers(10, 4000, (lanes, per)), rng.integers(200, 8000, (lanes, per))
    begin = (np.cumsum(gaps + lengths, axis=1) - lengths).ravel()
    computes = on == 0
    columns = {
        "rank": lane // 4,
        "node": lane // 16,
        "track": np.where(computes, Track.compute, Track.channel),
        "index": np.maximum(on - 1, 0),
        "kind": np.where(computes, SpanKind.compute, SpanKind.put),
        "op_id": np.arange(len(lane)),
        "peer": np.where(computes, -1, (lane // 4 + 1) % ranks),
        "begin_ns": begin,
        "end_ns": begin + lengths.ravel(),
    }
    return Trace(columns, {"source": "simulated", "algorithm": "random", "n_ranks": ranks})
