"""TCP rails at full speed: collectives over unshaped NICs against the same sockets pushed by plain threads, and peers.

Is: a World of 2 nodes with 4 NICs each, all_reduce and all_to_all of 64 MiB, everything over TCP, and as a job has it, with
shared memory inside nodes; beside it, in turns, two floors (native/bench/sockets.cpp: the processes, sockets and bytes of the
very schedule, first by threads that only send and receive, then by one loop a process that also does the schedule's copies and
sums in its own memory: what is there to be had), Gloo and Open MPI restricted to TCP, where installed. Is not: a test of
shaped NICs. Invariants: ours, floors and peers alternate, in both orders, and a ratio is the median over rounds of ratios
within a round, since a machine changes by the minute; ours counts from the last rank that began to the last that ended, a
floor from the first thread to the last.

    python -m bench tcp_rails
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

import ccl_lab as ccl
from ccl_lab import config
from ccl_lab.engine.lower import nics_of
from ccl_lab.ir import Kind

from .peers import catalogue, cells

ROOT = Path(__file__).resolve().parent.parent
SOURCE, PROGRAM = ROOT / "native" / "bench" / "sockets.cpp", ROOT / "build" / "bench" / "sockets"
NBYTES, CALL_BYTES, LOOP_BYTES = 64 << 20, 4 << 20, 256 << 10
NODES, NICS = 2, 4
ROUNDS, REPEATS = 3, 5
# Of a collective: the schedule run, the ranks of a node, and what is between them.
CASES = (
    ("all_reduce", "ring", 1, "tcp"),
    ("all_to_all", "direct", 1, "tcp"),
    ("all_reduce", "ring", 4, "tcp"),
    ("all_to_all", "direct", 4, "tcp"),
    ("all_reduce", "hierarchical", 4, "auto"),
    ("all_to_all", "direct", 4, "auto"),
)
PEERS = ("gloo", "ompi5-tcp")


def build() -> str:
    """Compiles the floor program if it is not up to date; "" or why it cannot be."""
    if PROGRAM.exists() and PROGRAM.stat().st_mtime > SOURCE.stat().st_mtime:
        return ""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if not compiler:
        return "no C++ compiler: set CXX"
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    words = [compiler, "-O2", "-std=c++20", "-pthread", str(SOURCE), "-o", str(PROGRAM)]
    found = subprocess.run(words, capture_output=True, text=True)
    return "" if found.returncode == 0 else found.stderr.strip()[-300:]


def flows(
    schedule: ccl.Schedule, topology: ccl.Topology, connections: int, transport: str
) -> list[tuple[int, int, int, int]]:
    """(source, destination, sockets, bytes) of what a schedule moves over sockets: all of it, or what leaves a node."""
    ops, nbytes = schedule.ops, schedule.layout(nbytes=NBYTES, dtype="float32").op_bytes()
    node = topology.node_of
    by_socket = ops.peer != ops.rank if transport == "tcp" else node[ops.peer] != node[ops.rank]
    moves = np.flatnonzero((ops.kind == Kind.put) & (ops.peer >= 0) & by_socket)
    rails: dict[tuple[int, int], set[tuple[int, int]]] = {}
    total: dict[tuple[int, int], int] = {}
    for op in moves:
        rank, peer = int(ops.rank[op]), int(ops.peer[op])
        nic, peer_nic = nics_of(topology, rank, ops.peer[op : op + 1], ops.channel[op : op + 1])
        # Bytes of either direction take the same sockets.
        key = (nic[0], peer_nic[0]) if rank < peer else (peer_nic[0], nic[0])
        rails.setdefault((min(rank, peer), max(rank, peer)), set()).add((int(key[0]), int(key[1])))
        total[rank, peer] = total.get((rank, peer), 0) + int(nbytes[op])
    return [(a, b, connections * len(rails[min(a, b), max(a, b)]), n) for (a, b), n in sorted(total.items())]


def in_memory(schedule: ccl.Schedule, topology: ccl.Topology, transport: str) -> list[tuple[int, int, int]]:
    """(rank, bytes copied, bytes added) of what a schedule does without a socket; a sum of k sources counts as k // 2 of two."""
    ops, nbytes = schedule.ops, schedule.layout(nbytes=NBYTES, dtype="float32").op_bytes()
    inside = (ops.peer >= 0) & (topology.node_of[ops.peer] == topology.node_of[ops.rank]) & (ops.peer != ops.rank)
    copies = (ops.kind == Kind.copy) | ((ops.kind == Kind.put) & inside & (transport != "tcp"))
    sums = nbytes * (ops.src_count // 2) * (ops.kind == Kind.reduce)
    copied, added = (np.bincount(ops.rank, each, topology.n_ranks).astype(np.int64) for each in (nbytes * copies, sums))
    return [(rank, int(copied[rank]), int(added[rank])) for rank in range(topology.n_ranks)]


def floor_us(
    ranks: int, of: list[tuple[int, int, int, int]], local: list[tuple[int, int, int]] | None = None
) -> float:
    """Median µs of a round of plain threads, or, if told what happens in memory, of one loop a process that does that too."""
    call = CALL_BYTES if local is None else LOOP_BYTES
    words = [str(PROGRAM), "--ranks", str(ranks), "--rounds", str(REPEATS + 1), "--call", str(call)]
    for flow in of:
        words += ["--flow", ":".join(map(str, flow))]
    if local is not None:
        words += ["--style", "loop", *(word for each in local for word in ("--local", ":".join(map(str, each))))]
    found = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    return statistics.median(json.loads(found.stdout)["round_us"][1:])


def peer_us(party: catalogue.Party, collective: str, ranks: int) -> float:
    """Median µs of a peer, the better of in place and not where it offers both; inf where it failed."""
    best = float("inf")
    for in_place in (0, 1) if collective == "all_reduce" else (0,):
        limits = cells.Limits(batches=REPEATS, batch_ms=1, cell_s=60, program_cell_s=5)
        words = cells._words([cells.cell(collective, ranks, NBYTES)], in_place, limits)
        command = catalogue.command(party, ranks, os.cpu_count() or 1, words)
        ended = cells.start(command, catalogue.environment(party), 60, 60)
        for _, line in ended.lines:
            if line.get("ok") and line.get("batch_us"):
                best = min(best, statistics.median(line["batch_us"]))
    return best


def case(
    collective: str, algorithm: str, per_node: int, transport: str, parties: list[catalogue.Party]
) -> dict[str, Any]:
    """One row of the record."""
    topology = ccl.Topology.cluster(nodes=NODES, gpus_per_node=per_node, nics_per_node=NICS, nic_gbits_per_s=100)
    schedule = ccl.plan(collective, topology, nbytes=NBYTES, algorithm=algorithm)
    connections = int(config.get("connections"))
    of, local = flows(schedule, topology, connections, transport), in_memory(schedule, topology, transport)
    times: dict[str, list[float]] = {name: [] for name in ("ccl_lab", "floor", "loop", *(each.name for each in parties))}
    with ccl.World(topology, transport=transport, timeout="60s") as world:
        for node in range(NODES):
            for nic in range(NICS):
                world.set_nic(node, nic, 0)
        world.set_tracing(False)
        run = world.start(schedule, dtype="float32")
        run.wait(60)
        run.check()
        turns = {
            "ccl_lab": lambda: world.start(schedule, repeat=REPEATS, dtype="float32").wait(120).time_us,
            "floor": lambda: floor_us(topology.n_ranks, of),
            "loop": lambda: floor_us(topology.n_ranks, of, local),
            **{each.name: lambda each=each: peer_us(each, collective, topology.n_ranks) for each in parties},
        }
        for round_ in range(ROUNDS):
            for name in list(turns)[:: 1 if round_ % 2 == 0 else -1]:
                times[name].append(turns[name]())
    ours, loop = np.array(times["ccl_lab"]), np.array(times["loop"])
    return {
        "collective": collective, "algorithm": algorithm, "ranks": topology.n_ranks, "transport": transport, "bytes": NBYTES,
        "connections": connections, "sockets": sum(n for a, b, n, _ in of if a < b), "moved_bytes": sum(n for *_, n in of),
        "times_us": times,
        "of_floor": float(np.median(np.array(times["floor"]) / ours)),
        "of_loop": float(np.median(loop / ours)),
        "faster_than": {each.name: float(np.median(np.array(times[each.name]) / ours)) for each in parties},
        "loop_faster_than": {each.name: float(np.median(np.array(times[each.name]) / loop)) for each in parties},
    }  # fmt: skip


def run() -> dict[str, Any]:
    """The facts of a record."""
    if why := build():
        return {"summary": f"skipped: the floor program cannot be built ({why})", "cases": []}
    known = {party.name: party for party in catalogue.catalogue()[0]}
    parties = [known[name] for name in PEERS if name in known and catalogue.program(known[name]).exists()]
    for name in PEERS:
        if name not in {party.name for party in parties}:
            print(f"tcp_rails: {name} is not installed, left out (ccl-lab bench --install-peers)", flush=True)
    began, rows = time.time(), []
    for collective, algorithm, per_node, transport in CASES:
        rows.append(case(collective, algorithm, per_node, transport, parties))
        row = rows[-1]
        peers = "".join(
            f", {ratio:.2f} x {name} (the loop {row['loop_faster_than'][name]:.2f})"
            for name, ratio in row["faster_than"].items()
        )
        ours_ms = statistics.median(row["times_us"]["ccl_lab"]) / 1e3
        what = f"{collective} {algorithm}, {row['ranks']} ranks, {transport}"
        print(f"tcp_rails: {what}: {ours_ms:.1f} ms, {row['of_floor']:.0%} of threads, {row['of_loop']:.0%} of the loop{peers}", flush=True)
    words = "; ".join(
        f"{row['collective']} of {row['ranks']} ({row['transport']}): {row['of_floor']:.0%}" for row in rows
    )
    return {
        "summary": f"64 MiB over {NODES} nodes x {NICS} NICs, of plain threads on the same sockets: {words}",
        "rounds": ROUNDS,
        "repeats": REPEATS,
        "took_s": time.time() - began,
        "load": os.getloadavg(),
        "cases": rows,
    }
