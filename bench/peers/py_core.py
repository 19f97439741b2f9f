"""The timing protocol of `bench_core.h` for libraries that are called from Python.

Is: arguments, calibration, batches, verification, lines of JSON; needs numpy alone, so that it runs in a peer's own
environment. Is not: a library; each program supplies one (see `Library`). Invariants: the same protocol, figures and lines
as `bench_core.h`: fill, one call, verify, zero, calibrate, batches; time / iterations, max over the ranks.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

SPLIT = ("all_gather", "reduce_scatter", "all_to_all")
ONE_BUFFER = ("broadcast", "ping_pong")
MOST_ITERATIONS = 1_000_000


class Library(Protocol):
    """What a program supplies; arrays are whatever its `buffer` returns."""

    rank: int
    size: int

    def buffer(self, count: int) -> tuple[Any, np.ndarray]:
        """(what the library takes, a flat float32 numpy view of it)."""

    def bind(self, op: str, in_place: bool, source: Any, target: Any) -> Any:
        """A function of no arguments that does the op once; None where it is not offered."""

    def max_over_ranks(self, value: float) -> float: ...

    def wait_for_all(self) -> None: ...


def proportional_bytes() -> int:
    """Anonymous and shared memory of this process; what several map counts in parts."""
    with open("/proc/self/smaps_rollup") as lines:
        return sum(
            int(line.split()[1]) * 1024 for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:"))
        )


def ping_pong(library: Library, data: Any, send: Any, receive: Any) -> Any:
    """One turn between this rank and its neighbour: the lower rank sends first. A rank without one does nothing."""
    peer = library.rank ^ 1
    first, second = (send, receive) if library.rank < peer else (receive, send)

    def turn() -> None:
        if peer < library.size:
            first(data, peer)
            second(data, peer)

    return turn


def fork_ranks(program: str, ranks: int, one_rank: Any) -> int:
    """Runs one_rank(rank) in a process for each rank; non-zero if one failed."""
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                one_rank(rank)
                code = 0
            except Exception as error:
                print(f"{program}: rank {rank}: {error}", file=sys.stderr)
            finally:
                sys.stdout.flush()
                os._exit(code)
        children.append(child)
    return int(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line all programs share."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--ops", default="")
    parser.add_argument("--bytes", default="")
    parser.add_argument(
        "--cells", default="", help="op:bytes,... exactly these, instead of --ops and --bytes"
    )
    parser.add_argument("--cell-seconds", type=float, default=10)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--batch-ms", type=float, default=10)
    parser.add_argument("--min-iters", type=int, default=3)
    parser.add_argument("--in-place", type=int, default=0)
    parser.add_argument("--buffers", choices=("plain", "registered"), default="plain")
    parser.add_argument("--startup", action="store_true")
    parser.add_argument("--memory", action="store_true")
    found = parser.parse_args(words)
    found.bare_bytes = proportional_bytes()  # before the library starts
    found.ops = [word for word in found.ops.split(",") if word]
    found.bytes = [int(word) for word in found.bytes.split(",") if word]
    cells = [word.rpartition(":") for word in found.cells.split(",") if word]
    found.cells = [(op, int(nbytes)) for op, _, nbytes in cells]
    found.cells += [(op, nbytes) for op in found.ops for nbytes in (found.bytes if op != "barrier" else [0])]
    return found


def block_count(op: str, nbytes: int, size: int) -> int:
    """Elements of one block, at least one."""
    if op == "barrier":
        return 0
    return max(1, nbytes // 4 // (size if op in SPLIT else 1))


def blocks(op: str, size: int) -> tuple[int, int]:
    """Blocks of input and of output."""
    return (
        size if op in ("reduce_scatter", "all_to_all") else 1,
        size if op in ("all_gather", "all_to_all") else 1,
    )


def pattern(rank: int, count: int, first: int = 0) -> np.ndarray:
    """Small integers: exact in float32 in any order of summation."""
    return (rank + np.arange(first, first + count) % 7).astype(np.float32)


def source_rank(op: str, rank: int) -> int:
    """Whose pattern a rank starts with; 99 is wrong everywhere."""
    if op == "broadcast":
        return 0 if rank == 0 else 99
    if op == "ping_pong":
        return 0 if rank % 2 == 0 else 99
    return rank


def wanted(op: str, rank: int, size: int, count: int) -> np.ndarray:
    """The right output of a rank."""
    if op == "all_reduce":
        return size * pattern(0, count) + size * (size - 1) // 2
    if op == "reduce_scatter":
        return size * pattern(0, count, rank * count) + size * (size - 1) // 2
    if op == "all_gather":
        return np.concatenate([pattern(other, count) for other in range(size)])
    if op == "all_to_all":
        return np.concatenate([pattern(other, count, rank * count) for other in range(size)])
    return pattern(0, count)


def one_batch(library: Library, call: Any, iterations: int) -> float:
    """Seconds of one call, of the slowest rank."""
    turns = range(iterations)
    library.wait_for_all()
    begin = time.perf_counter()
    for _ in turns:
        call()
    return library.max_over_ranks((time.perf_counter() - begin) / iterations)


def calibrate(library: Library, call: Any, batch_ms: float, least: int) -> int:
    """Iterations for a batch of about `batch_ms`."""
    iterations, want = 1, batch_ms * 1e-3
    for _ in range(24):
        total = one_batch(library, call, iterations) * iterations
        if want * 0.6 <= total < 20 * want:  # a rank that lost its core once must not decide
            total = min(total, one_batch(library, call, iterations) * iterations)
        if total >= want * 0.6 or iterations >= MOST_ITERATIONS:
            break
        iterations = int(iterations * min(8.0, max(1.2, want / max(total, 1e-9)))) + 1
    return max(iterations, least)


def run_cell(library: Library, op: str, nbytes: int, options: argparse.Namespace) -> dict[str, Any]:
    """One line: verified, then timed."""
    size, rank = library.size, library.rank
    count = block_count(op, nbytes, size)
    in_blocks, out_blocks = blocks(op, size)
    in_place = bool(options.in_place) or op in ONE_BUFFER
    line: dict[str, Any] = {
        "op": op, "ranks": size, "bytes": 4 * count * max(in_blocks, out_blocks), "buffers": options.buffers,
        "in_place": int(in_place), "iters": 0, "batch_us": [], "ok": False,
    }  # fmt: skip
    source, source_view = library.buffer(max(1, count * in_blocks))
    target, target_view = (source, source_view) if in_place else library.buffer(max(1, count * out_blocks))
    call = library.bind(op, in_place, source, target)
    if call is None:
        return {**line, "error": "not offered"}
    if op != "barrier":
        source_view[: count * in_blocks] = pattern(source_rank(op, rank), count * in_blocks)
    library.wait_for_all()
    call()
    wrong = op != "barrier" and not np.array_equal(
        target_view[: count * out_blocks], wanted(op, rank, size, count)
    )
    if library.max_over_ranks(float(wrong)) > 0:
        return {**line, "error": "wrong result"}
    source_view[:] = 0
    target_view[:] = 0
    begin = time.perf_counter()
    line["iters"] = calibrate(library, call, options.batch_ms, options.min_iters)
    scale = 1e6 / (2 if op == "ping_pong" else 1)
    for done in range(1, options.batches + 1):
        line["batch_us"].append(one_batch(library, call, line["iters"]) * scale)
        if done >= 3 and library.max_over_ranks(time.perf_counter() - begin) > options.cell_seconds:
            break
    return {**line, "ok": True}


def run_memory(library: Library, options: argparse.Namespace) -> None:
    """Bytes a rank holds beyond the interpreter and the two buffers of an all_reduce."""
    for nbytes in options.bytes:
        count = block_count("all_reduce", nbytes, library.size)
        (source, _), (target, _) = library.buffer(count), library.buffer(count)
        call = library.bind("all_reduce", False, source, target)
        for _ in range(3):
            call()
        library.wait_for_all()
        worst = library.max_over_ranks(float(proportional_bytes() - options.bare_bytes - 8 * count))
        if library.rank == 0:
            print(
                json.dumps({"memory_bytes": int(worst), "bytes": 4 * count, "ranks": library.size}),
                flush=True,
            )
        library.wait_for_all()


def run_startup(library: Library) -> None:
    """One all_reduce, then the clock."""
    (source, view), (target, out) = library.buffer(1), library.buffer(1)
    view[0] = 1
    library.bind("all_reduce", False, source, target)()
    if library.rank == 0:
        found = {
            "startup_done_s": time.monotonic(),
            "ranks": library.size,
            "ok": bool(out[0] == library.size),
        }
        print(json.dumps(found), flush=True)


def run_all(library: Library, options: argparse.Namespace) -> None:
    """What the command line asks for, on every rank."""
    gc.disable()  # a collection in the middle of a batch would be counted as communication
    if options.startup:
        return run_startup(library)
    if options.memory:
        return run_memory(library, options)
    for op, nbytes in options.cells:
        line = run_cell(library, op, nbytes, options)
        if library.rank == 0:
            print(json.dumps(line), flush=True)
        gc.collect()
    return None
