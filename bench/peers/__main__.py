"""`ccl-lab bench`, `python -m bench.peers`: our paths beside every installed peer, in one run.

Is: the command line and the course of a run. Is not: how anything is timed (`cells`), ordered (`rounds`), compared
(`results`), drawn (`report`, `curves`). Invariants: what a peer does wrong is reported by its name and ends nothing; the
record holds every row, the floor, and the facts needed to compare it with another.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.record import save
from ccl_lab.errors import UsageError
from ccl_lab.units import format_size, parse_size

from . import cells, curves, programs, report, results, score
from .catalogue import OPS, ROOT, Party, cache, catalogue
from .rounds import Rounds, cells_of

KIB, MIB = 1 << 10, 1 << 20
QUICK_SIZES = (8, KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB)
SIZES = (8, KIB, 8 * KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
FULL_SIZES = tuple(8 << power for power in range(26))
START_RANKS = (2, 8, 32, 64)
NOT_AT_START = ("ccl_lab-plain", "ccl_lab-staged", "ccl_lab-python-plain", "ompi5-han")
MEMORY_BYTES = 16 * MIB


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="ccl-lab bench",
        description="Our native and Python paths beside every installed peer, in one run.",
    )
    top.add_argument("--ops", default=",".join(OPS), help="comma-separated (default: all)")
    top.add_argument("--ranks", default="2,4,8", help="comma-separated (default: %(default)s)")
    top.add_argument(
        "--sizes", default="", help="comma-separated, such as 8,64KiB,16MiB (default: 8 B to 256 MiB)"
    )
    top.add_argument(
        "--rounds", type=int, default=0, help="rounds over all parties (default: 5; quick 3; full 7)"
    )
    top.add_argument(
        "--peers", default="", help="comma-separated names or libraries (default: all installed)"
    )
    pace = top.add_mutually_exclusive_group()
    pace.add_argument("--quick", action="store_true", help="fewer sizes and rounds: minutes")
    pace.add_argument("--full", action="store_true", help="every power of two: hours")
    top.add_argument("--no-start-up", action="store_true", help="leave start-up times out")
    top.add_argument("--no-memory", action="store_true", help="leave memory per rank out")
    top.add_argument("--json", type=Path, metavar="FILE", help="write the rows as a list")
    top.add_argument("--html", type=Path, metavar="FILE", help="draw the curves into one file")
    top.add_argument(
        "--record",
        type=Path,
        metavar="FOLDER",
        help="folder of the record (default: bench/records, for a run of all cells)",
    )
    top.add_argument(
        "--lock", type=Path, metavar="FILE", help="hold this lock while timing, up to 45 s at a time"
    )
    top.add_argument(
        "--install-peers", action="store_true", help="install the peers under build/peers, and stop"
    )
    top.add_argument("--list", action="store_true", help="list parties and missing peers, and stop")
    return top


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _ops(text: str) -> list[str]:
    found = _words(text)
    for word in found:
        if word not in OPS:
            raise UsageError(f"--ops {word!r} is unknown. Known: {', '.join(OPS)}.")
    return found


def _ranks(text: str) -> list[int]:
    try:
        found = [int(word) for word in _words(text)]
    except ValueError:
        raise UsageError(f"--ranks {text!r}: expected numbers such as 2,4,8.") from None
    if not found or min(found) < 2 or max(found) > 256:
        raise UsageError(f"--ranks {text!r}: expected 2 to 256 ranks.")
    return found


def chosen(parties: Sequence[Party], text: str) -> list[Party]:
    """Ours and the peers named; a library's name means all its variants. UsageError names an unknown one."""
    wanted = set(_words(text))
    if not wanted:
        return [party for party in parties if not party.on_request]
    known = {party.name for party in parties} | {party.library.name for party in parties}
    unknown = sorted(wanted - known)
    if unknown:
        raise UsageError(
            f"--peers {unknown[0]!r} is not installed or unknown. Here: {', '.join(sorted(known))}."
        )
    return [
        party
        for party in parties
        if party.ours or party.name in wanted or (party.library.name in wanted and not party.on_request)
    ]


def available_memory() -> int:
    """Bytes the kernel would give us."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 62


def huge_pages() -> dict[str, str]:
    """The state of transparent huge pages, which is alike for all parties."""
    folder = Path("/sys/kernel/mm/transparent_hugepage")
    found = {}
    for name in ("enabled", "shmem_enabled", "defrag"):
        try:
            found[name] = (folder / name).read_text().strip()
        except OSError:
            found[name] = "unknown"
    return found


def median_floor(floors: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure over the rounds' floors."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(key for one in floors for key in one):
        values = [one[name] for one in floors if one.get(name) is not None]
        if values and isinstance(values[0], dict):
            found[name] = median_floor(values)
        elif values and isinstance(values[0], (int, float)):
            found[name] = statistics.median(values)
    return found


def say(line: str) -> None:
    """Progress, beside the tables."""
    print(line, file=sys.stderr, flush=True)


def run_rounds(rounds: Rounds, number: int, file: Path | None) -> None:
    """Scout with everybody, then time ours and the contenders, then even out the labels; file has the rows so far."""
    for at in range(number):
        rounds.round(at, results.contenders(rounds.rows()) if at else None)
        if file:
            write_rows(rounds.rows(), file)
    for extra in range(number, number + 3):
        if not rounds.catch_up(extra):
            break


def write_rows(rows: list[results.Row], file: Path) -> None:
    """The --json list; in one step, so that a reader never sees half of it."""
    beside = file.with_name(f"{file.name}.part")
    beside.write_text(json.dumps(rows, indent=1, allow_nan=False) + "\n")
    beside.replace(file)


def time_starts(
    times: dict[tuple[str, int], list[float]], parties: Sequence[Party], ranks: Sequence[int], rounds: int, cores: int,
    limits: cells.Limits, rounds_run: Rounds,
) -> None:  # fmt: skip
    """Adds to `times`, by party and ranks, us from spawn to the first all_reduce done."""
    # Options of algorithms and of malloc have nothing to do with starting.
    parties = [
        party
        for party in parties
        if party.name not in NOT_AT_START and not party.name.endswith(("-tm", "-rg"))
    ]
    for at in range(rounds):
        for n in ranks:
            for party in parties if at % 2 == 0 else parties[::-1]:
                if (party.name, n) in rounds_run.run.hung:
                    continue
                found, fault = cells.measure_start(party, n, cores, limits)
                say(
                    f"start-up, {n} ranks, {party.name}: {f'{found:.3f} s' if found is not None else fault[:120]}"
                )
                if found is not None:
                    times.setdefault((party.name, n), []).append(found * 1e6)
                else:
                    outcome = cells.Outcome(faults=[(None, f"start-up: {fault}")], hung=True)
                    rounds_run.run.add(party, n, outcome)


def start_rows(times: dict[tuple[str, int], list[float]], parties: Sequence[Party]) -> list[results.Row]:
    """Rows of op "start_up"."""
    known = {party.name: party for party in parties}
    return [
        results.row(
            name, cells.Cell("start_up", n, 0), some, some, label="unknown", language=known[name].language,
            buffers=known[name].buffers, in_place=0,
        )
        for (name, n), some in times.items()
    ]  # fmt: skip


def measure_memory(
    found: dict[str, dict[str, int]], parties: Sequence[Party], ranks: Sequence[int], cores: int, limits: cells.Limits
) -> None:
    """Adds to `found`, {party: {ranks: bytes beyond bare process and buffers}} of an all_reduce of 16 MiB."""
    for n in ranks:
        for party in parties:
            # An interpreter's own heap moves by more than what is asked for here.
            if party.language == "python" or party.oversubscribed_only and n <= cores:
                continue
            nbytes, fault = cells.measure_memory(party, n, cores, MEMORY_BYTES, limits)
            say(
                f"memory, {n} ranks, {party.name}: {format_size(max(0, nbytes)) if nbytes is not None else fault[:120]}"
            )
            if nbytes is not None:
                found.setdefault(party.name, {})[str(n)] = nbytes


def bench(given: argparse.Namespace) -> int:
    """The whole run."""
    ops, ranks = _ops(given.ops), _ranks(given.ranks)
    sizes = [parse_size(word) for word in _words(given.sizes)]
    sizes = sizes or list(QUICK_SIZES if given.quick else FULL_SIZES if given.full else SIZES)
    number = given.rounds or (3 if given.quick else 7 if given.full else 5)
    parties, missing = catalogue()
    parties = chosen(parties, given.peers)
    if given.list:
        print("\n".join(f"{party.name:22} {party.kind:12} {party.language}" for party in parties))
        print(report.faults({}, missing))
        return 0
    floor_error = programs.build_floor()
    failed = programs.build(parties, say)
    missing |= {name: f"did not build: {reason}" for name, reason in failed.items()}
    missing |= {"floor": f"did not build: {floor_error}"} if floor_error else {}
    parties = [party for party in parties if party.name not in failed]
    cores = len(os.sched_getaffinity(0))
    turns = cells.Turns(given.lock)
    limits = cells.Limits(turns=turns)
    if given.quick:
        limits = cells.Limits(batch_ms=8, cell_s=12, start_s=20, program_cell_s=2, turns=turns)
    rounds = Rounds(parties, cells_of(ops, ranks, sizes), cores, limits, say, available_memory())
    # Ended from outside is ended by hand: no rank stays behind, and what was measured is told.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    interrupted = False
    starts: dict[tuple[str, int], list[float]] = {}
    memory: dict[str, dict[str, int]] = {}
    try:
        run_rounds(rounds, number, given.json)
        if not given.no_memory:
            measure_memory(memory, parties, [max(ranks)] if given.quick else ranks, cores, limits)
        if not given.no_start_up:
            time_starts(starts, parties, START_RANKS, 1 if given.quick else 3, cores, limits, rounds)
    except KeyboardInterrupt:
        interrupted = True
        say("interrupted: what was measured so far follows")
    turns.release()
    finish(given, rounds, start_rows(starts, parties), memory, missing, cores, number)
    return 130 if interrupted else 0


def finish(
    given: argparse.Namespace, rounds: Rounds, start: list[results.Row], memory: dict[str, dict[str, int]],
    missing: dict[str, str], cores: int, number: int,
) -> None:  # fmt: skip
    """Prints the tables, writes the files."""
    floor = median_floor(rounds.run.floors)
    rows = rounds.rows()
    for row in rows:
        row["floor_us"] = results.floor_us(results.cell_of(row), floor, cores)
    rows += start
    left_out = report.faults(rounds.run.faults, missing)
    python = [row for row in rows if results.language_of(row) == "python"]
    print(report.floor(floor), end="\n\n")
    print(report.table([row for row in rows if results.language_of(row) == "native"]))
    print("## From Python: beside mpi4py and Gloo\n")
    print(report.table(python, f"{results.OURS}-python", lambda row: not results.is_ours(row["peer"])))
    print(
        "\n".join(
            part
            for part in (report.start_up(rows), report.memory(memory), report.ranking(rows), "", left_out)
            if part
        )
    )
    print(score.text(rows, left_out=left_out.splitlines()))
    facts = {
        "summary": _summary(rows), "cores": cores, "rounds": number, "huge_pages": huge_pages(), "floor": floor,
        "memory_bytes": memory, "left_out": left_out.splitlines()[1:], "floor_rounds": rounds.run.floors,
    }  # fmt: skip
    if given.json:
        write_rows(rows, given.json)
        say(f"rows -> {given.json}")
    if given.html:
        curves.write(rows, {key: value for key, value in facts.items() if key != "floor_rounds"}, given.html)
        say(f"curves -> {given.html}")
    # A run of a few cells must not take the place of the record of all of them.
    whole = not given.peers and not given.sizes and (given.ops, given.ranks) == (",".join(OPS), "2,4,8")
    if whole or given.record:
        name = "peers_quick" if given.quick else "peers"
        path = save(name, {**facts, "rows": rows}, given.record or ROOT / "bench/records")
        say(f"record -> {path}")


def _summary(rows: list[results.Row]) -> str:
    ratios = results.cell_ratios(results.compare(rows, results.OURS))
    if not ratios:
        return "nothing of ours to compare"
    mean = results.geometric_mean(ratios.values())
    return f"ours registered against the best peer of each cell: geometric mean {mean:.2f}x over {len(ratios)} cells"


def main(words: Sequence[str] | None = None) -> int:
    """Runs the command; 2 for a wrong call."""
    given = parser().parse_args(words)
    if given.install_peers:
        failed = programs.install(say, _words(given.peers))
        for name, reason in failed.items():
            say(f"{name}: {reason}")
        say(f"peers are in {cache()}")
        return 1 if len(failed) == len(programs.ENVIRONMENTS) + 1 else 0
    try:
        return bench(given)
    except UsageError as error:
        print(f"ccl-lab bench: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
