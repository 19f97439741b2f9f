"""Tokens to their experts: all_to_allv_dynamic and its persistent form beside what one does without them, at sizes of a decode step.

Is: four ranks of this machine; rows of 2 KiB go to random ranks, and all contenders move the same rows, in turns, within one run:
    padded       all_to_all with room for every row in every block: what a fixed size needs if no row may be dropped
    fixed        all_to_allv: ranks exchange their counts first; four routings take turns, so plans are found and not made
    dynamic      all_to_allv_dynamic
    persistent   the same, made once by all_to_allv_init
inside a node (shm) and among emulated nodes of one rank each (tcp, loopback); and dispatch and combine with dedup beside without,
on two emulated nodes whose NICs have a rate. Is not: a GPU's time. Invariant: a ratio is the median over rounds of ratios within a
round.

    python -m bench moe
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from typing import Any

import numpy as np

from ccl_lab.trace.columns import Track

RANKS, ROW, ROUNDS, BATCH_MS = 4, 2048, 7, 15.0
SIZES = (8 << 10, 64 << 10, 512 << 10, 8 << 20)  # bytes that a rank sends, to all ranks together
NAMES = ("padded", "fixed", "dynamic", "persistent")
DEDUP = {"experts": 32, "top_k": 8, "hidden": 1024, "tokens": 128, "dtype": "bfloat16"}
NIC_GBITS = (0.5, 2.0)


def routings(n: int, rows: int, sender: int) -> list[np.ndarray]:
    """Rows for each rank: four draws."""
    return [np.random.default_rng([sender, rows, turn]).multinomial(rows, [1 / n] * n) for turn in range(4)]


def contenders(comm: Any, nbytes: int) -> tuple[dict[str, Any], Any]:
    """By name, a call that moves the rows of a turn and returns what came of each sender; and what must be freed."""
    n, rows = comm.size, nbytes // ROW
    counts = routings(n, rows, comm.rank)
    theirs = [routings(n, rows, sender) for sender in range(n)]
    x = comm.empty((rows, ROW), "uint8")
    x[:] = np.random.default_rng(comm.rank).integers(0, 255, x.shape, np.uint8)
    padded_in, padded_out, out = (comm.empty((n, rows, ROW), "uint8") for _ in range(3))
    flat = comm.empty(n * rows * ROW, "uint8")
    ids, blocks = np.arange(n), np.ones(n, np.int64)
    made = comm.all_to_allv_init(x.shape, "uint8", n)

    def padded(turn: int) -> list[np.ndarray]:
        begin = 0
        for d, count in enumerate(counts[turn]):
            padded_in[d, :count] = x[begin : begin + count]
            begin += count
        comm.all_to_all(padded_in, out=padded_out)
        return [padded_out[s, : theirs[s][turn][comm.rank]] for s in range(n)]

    def fixed(turn: int) -> list[np.ndarray]:
        total = sum(int(theirs[s][turn][comm.rank]) for s in range(n))
        got = comm.all_to_allv(x, counts[turn] * ROW, out=flat[: total * ROW]).reshape(-1, ROW)
        ends = np.cumsum([theirs[s][turn][comm.rank] for s in range(n)])
        return [got[end - theirs[s][turn][comm.rank] : end] for s, end in enumerate(ends)]

    def dynamic(turn: int) -> list[np.ndarray]:
        got = comm.all_to_allv_dynamic(x, counts[turn], ids, blocks, out=out)
        return [got.buffers[s, :count] for s, count in enumerate(got.rows)]

    def persistent(turn: int) -> list[np.ndarray]:
        got = made.exec(x, lengths=counts[turn], ids=ids, blocks=blocks)
        return [got.buffers[s, :count] for s, count in enumerate(got.rows)]

    return dict(zip(NAMES, (padded, fixed, dynamic, persistent), strict=True)), made


def batch_us(comm: Any, call: Any, calls: int) -> float:
    """µs of a call, of the slowest rank."""
    comm.barrier()
    begin = time.perf_counter_ns()
    for i in range(calls):
        call(i % 4)
    spent = np.array([time.perf_counter_ns() - begin])
    return int(comm.all_reduce(spent, "max")[0]) / calls / 1000


def compared(comm: Any, calls: dict[str, Any]) -> dict[str, Any]:
    """Times by name and round; calls take turns, in both orders."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    n_calls = {}
    for name, call in calls.items():
        one = max(batch_us(comm, call, 8), 1.0)
        n_calls[name] = int(comm.broadcast(np.array([max(8, int(1000 * BATCH_MS / one))]))[0])
    for round_ in range(ROUNDS):
        for name in list(calls)[:: 1 if round_ % 2 == 0 else -1]:
            times[name].append(batch_us(comm, calls[name], n_calls[name]))
    return times


def ratios(times: dict[str, list[float]], of: str) -> dict[str, float]:
    """How many times faster `of` is than the others."""
    return {
        name: round(statistics.median(other / own for other, own in zip(each, times[of], strict=True)), 3)
        for name, each in times.items()
        if name != of
    }


def exchanges(comm: Any) -> list[dict[str, Any]]:
    """A row for each size."""
    found = []
    for nbytes in SIZES:
        calls, made = contenders(comm, nbytes)
        for turn in range(4):
            got = {name: [np.array(part) for part in call(turn)] for name, call in calls.items()}
            for name in NAMES[1:]:
                assert all((a == b).all() for a, b in zip(got["padded"], got[name], strict=True)), name
        times = compared(comm, calls)
        found.append(
            {
                "bytes": nbytes,
                "us": {name: round(statistics.median(each), 1) for name, each in times.items()},
                "times_us": {name: [round(each, 1) for each in values] for name, values in times.items()},
                "persistent_faster_than": ratios(times, "persistent"),
                "dynamic_faster_than": ratios(times, "dynamic"),
            }
        )
        made.free()
    return found


def dedup(comm: Any) -> dict[str, Any]:
    """Dispatch and combine over rails, with and without."""
    rng = np.random.default_rng(comm.rank)
    tokens, k, hidden = DEDUP["tokens"], DEDUP["top_k"], DEDUP["hidden"]
    chosen = np.array([rng.permutation(DEDUP["experts"])[:k] for _ in range(tokens)])
    calls, carried, made = {}, {}, []
    for name, wanted in (("dedup", True), ("direct", False)):
        moe = comm.moe(**DEDUP, dedup=wanted)
        x = rng.standard_normal((tokens, hidden)).astype(moe.dtype)
        weights = np.full((tokens, k), 1 / k, np.float32)

        def step(_: int, moe: Any = moe, x: Any = x, weights: Any = weights) -> None:
            moe.combine(np.ascontiguousarray(moe.dispatch(x, chosen, weights).tokens))

        step(0)
        comm.barrier()
        comm.trace()
        step(0)
        spans = comm.trace()
        sent = np.array([int(spans["nbytes"][spans["track"] == Track.nic_tx].sum())])
        carried[name] = int(comm.all_reduce(sent)[0])
        calls[name] = step
        made.append(moe)
    times = compared(comm, calls)
    for moe in made:
        moe.free()
    return {
        "us": {name: round(statistics.median(each), 1) for name, each in times.items()},
        "times_us": times,
        "rail_bytes": carried,
        "dedup_faster_than": ratios(times, "dedup"),
        "rail_bytes_of_direct": round(carried["dedup"] / carried["direct"], 4),
    }


def worker() -> None:
    """One rank; rank 0 prints."""
    import ccl_lab as ccl

    case = os.environ["BENCH_CASE"]
    played = {
        "shm": None,
        "tcp": ccl.Topology.cluster(nodes=RANKS, gpus_per_node=1, nics_per_node=1, nic_gbits_per_s=100),
    }
    for gbits in NIC_GBITS:
        played[f"dedup {gbits}"] = ccl.Topology.cluster(
            nodes=2, gpus_per_node=RANKS // 2, nics_per_node=RANKS // 2, nic_gbits_per_s=gbits
        )
    with ccl.init(topology=played[case], timeout="60s") as comm:
        answer = dedup(comm) if case.startswith("dedup") else exchanges(comm)
        comm.barrier()
        if comm.rank == 0:
            print(json.dumps(answer))


def run() -> dict[str, Any]:
    """The facts of a record."""
    from .ranks import answer_of

    rows = {case: answer_of("bench.moe", RANKS, BENCH_CASE=case) for case in ("shm", "tcp")}
    rails = [
        {"nic_gbits_per_s": gbits, **answer_of("bench.moe", RANKS, BENCH_CASE=f"dedup {gbits}", CCL_LAB_TRACE_SPANS="65536")}
        for gbits in NIC_GBITS
    ]
    times = ", ".join(f"{each['dedup_faster_than']['direct']:.2f} x as fast at {each['nic_gbits_per_s']:g} Gb/s a NIC" for each in rails)
    least, most = rows["shm"][0], rows["shm"][-1]
    return {
        "summary": f"persistent, {RANKS} ranks over shm: {least['us']['persistent']:.0f} µs at 8 KiB, "
        f"{least['persistent_faster_than']['padded']:.2f} x padded, {least['persistent_faster_than']['dynamic']:.2f} x not persistent; at "
        f"8 MiB {most['persistent_faster_than']['padded']:.2f} x padded; dedup carries {rails[0]['rail_bytes_of_direct']:.0%} of the "
        f"bytes over rails, {times}",
        "note": f"{os.cpu_count()} cores for {RANKS} ranks, on a machine that others used meanwhile: trust ratios, which are within rounds",
        "row_bytes": ROW,
        "rounds": ROUNDS,
        "load": os.getloadavg(),
        "exchanges": rows,
        "dedup": {"layer": DEDUP, "nodes": 2, "rates": rails},
    }


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["rank"] else print(json.dumps(run(), indent=1))
