"""One party's cells timed in one process group, with whatever it does wrong turned into a word about that party.

Is: start, read its lines, limits of time, labels of how near the cores are. Is not: which cells, in which order (`rounds`).
Invariants: a hang, a crash or a wrong sum costs the cells it happened in, never the run; no process outlives its call; a
label is measured right before and right after a cell (where the program cannot, its process), and a sample between unequal
ones is labelled "mixed".
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .catalogue import Party, cache, command, environment

SPLIT = ("all_gather", "reduce_scatter", "all_to_all")
# One way: two threads of one core, whose caches are the same, take 20 to 30; near cores 45 to 60, far ones 160 and more.
CORE_NS, NEAR_NS = 38, 110


@dataclass(frozen=True, order=True)
class Cell:
    """What every party is asked to do: op among ranks at a size (of the larger buffer of a rank, whole blocks)."""

    op: str
    ranks: int
    bytes: int


def cell(op: str, ranks: int, nbytes: int) -> Cell:
    """The cell with its size rounded as the programs round it: whole elements per block, at least one."""
    if op == "barrier":
        return Cell(op, ranks, 0)
    blocks = ranks if op in SPLIT else 1
    return Cell(op, ranks, max(1, nbytes // 4 // blocks) * 4 * blocks)


@dataclass
class Sample:
    """What one process measured for one cell."""

    peer: str
    cell: Cell
    in_place: int
    round: int
    label: str
    cache_line_ns: float
    batch_us: list[float]


class Turns:
    """A lock file held while timing, for machines where others build meanwhile; given back now and then.

    Held across processes for up to hold_s, because asking anew for each would wait longer than it times.
    """

    def __init__(self, path: Path | None, hold_s: float = 45) -> None:
        self._path, self._hold_s, self._file, self._since = path, hold_s, None, 0.0  # type: ignore[var-annotated]

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Holds the lock within, and maybe after."""
        if self._path is not None and self._file is None:
            self._file = open(self._path, "a")
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._since = time.monotonic()
        try:
            yield
        finally:
            if time.monotonic() - self._since > self._hold_s:
                self.release()

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


@dataclass
class Limits:
    """How long anything may take, and how it is timed.

    start_s: until a process says its first line, beyond cell_s; cell_s: between lines.
    turns: the lock held while timing.
    """

    batches: int = 5
    batch_ms: float = 10
    cell_s: float = 30
    start_s: float = 30
    program_cell_s: float = 5
    turns: Turns = field(default_factory=lambda: Turns(None))


@dataclass
class Outcome:
    """Samples, and what went wrong: {cell or None: reason}."""

    samples: list[Sample] = field(default_factory=list)
    faults: list[tuple[Cell | None, str]] = field(default_factory=list)
    hung: bool = False


def floor(quick: bool = True) -> dict[str, Any]:
    """What the floor program says; {} where it is not built or fails."""
    words = [str(cache() / "bin/floor"), *(["--quick"] if quick else [])]
    try:
        found = subprocess.run(words, capture_output=True, text=True, timeout=120)
        return dict(json.loads(found.stdout)) if found.returncode == 0 else {}
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}


def label_of(*cache_line_ns: float | None) -> str:
    """ "core" (threads of one), "near", "far", "mixed", or "unknown" where nothing was measured.

    >>> label_of(48.0, 51.5), label_of(49.0, 210.0)
    ('near', 'mixed')
    """
    found = {"core" if ns < CORE_NS else "near" if ns < NEAR_NS else "far" for ns in cache_line_ns if ns is not None}
    if not found or None in cache_line_ns:
        return "unknown"
    return found.pop() if len(found) == 1 else "mixed"


def parse_line(line: str) -> dict[str, Any] | None:
    """A line of a program; None for anything else a launcher may print (several may come on one line)."""
    text = line.strip()
    if not text.startswith("{"):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


@dataclass
class Ended:
    """How a process group went: its lines with the clock when each was read, "" or why it was ended, and its last words."""

    lines: list[tuple[float, dict[str, Any]]]
    fault: str
    hung: bool
    begin: float


def start(words: Sequence[str], env: dict[str, str], first_s: float, next_s: float) -> Ended:
    """Runs a process group to its end, at most first_s until its first line and next_s between lines."""
    with tempfile.TemporaryFile("w+") as errors:
        begin = time.monotonic()
        try:
            process = subprocess.Popen(
                list(words), env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
                bufsize=1, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return Ended([], f"did not start: {error}", False, begin)
        hung = True
        try:
            lines, hung = _read(process, begin + first_s, next_s)
        finally:
            _end(process, hung)
        if hung:
            return Ended(lines, f"no result in {next_s if lines else first_s:.0f} s", True, begin)
        if process.returncode:
            errors.seek(0)
            said = [line.strip() for line in errors.read().splitlines() if line.strip().strip("-")]
            how = f"signal {-process.returncode}" if process.returncode < 0 else f"exit {process.returncode}"
            return Ended(lines, f"{how}: {' | '.join(said[-3:])[-300:]}", False, begin)
        return Ended(lines, "", False, begin)


def _read(
    process: subprocess.Popen[str], deadline: float, next_s: float
) -> tuple[list[tuple[float, dict[str, Any]]], bool]:
    """(lines until it closes stdout, whether it was too slow)."""
    assert process.stdout
    lines: list[tuple[float, dict[str, Any]]] = []
    rest = ""
    os.set_blocking(process.stdout.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                continue
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                return lines, False
            *whole, rest = (rest + data.decode(errors="replace")).split("\n")
            for found in filter(None, map(parse_line, whole)):
                lines.append((time.monotonic(), found))
                deadline = time.monotonic() + next_s
    return lines, True


def _end(process: subprocess.Popen[str], hung: bool) -> None:
    """Waits a little for a process whose output ended, asks one that hangs to go; then nothing of its session is left."""
    if hung:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5 if hung else 10)
    for pid in _session(process.pid):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    assert process.stdout
    process.stdout.close()


def _session(leader: int) -> list[int]:
    """Processes of a session: launchers put ranks in groups of their own, but not in sessions of their own."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The command's name, in brackets, may hold blanks.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader and fields[0] != "Z":
                    found.append(int(entry.name))
    return found


def _words(cells: Sequence[Cell], in_place: int, limits: Limits) -> list[str]:
    return [
        "--cells", ",".join(f"{one.op}:{one.bytes}" for one in cells), "--in-place", str(in_place),
        "--batches", str(limits.batches), "--batch-ms", str(limits.batch_ms),
        "--cell-seconds", str(limits.program_cell_s),
    ]  # fmt: skip


def measure(
    party: Party, cells: Sequence[Cell], in_place: int, round_: int, cores: int, limits: Limits
) -> Outcome:
    """Times the cells (of one number of ranks) in one process group; what hangs is skipped once and named."""
    outcome, left = Outcome(), list(cells)
    while left:
        with limits.turns.turn():
            before = floor().get("cache_line_ns")
            words = command(party, left[0].ranks, cores, _words(left, in_place, limits))
            ended = start(words, environment(party), limits.start_s + limits.cell_s, limits.cell_s)
            after = floor().get("cache_line_ns")
        done: set[Cell] = set()
        for _, line in ended.lines:
            _take(party, line, in_place, round_, (before, after), outcome, done)
        left = [one for one in left if one not in done]
        if not left:
            break
        reason = ended.fault or "printed no line for this cell"
        outcome.faults.append((left[0], reason))
        # One hang may be a cell's own; a second means the party does not work at this number of ranks.
        if outcome.hung or not done:
            outcome.faults += [(one, f"left out after: {reason}") for one in left[1:]]
            outcome.hung = True
            break
        outcome.hung = outcome.hung or ended.hung
        left = left[1:]
    return outcome


def _take(
    party: Party, line: dict[str, Any], in_place: int, round_: int, around: tuple[float | None, float | None],
    outcome: Outcome, done: set[Cell],
) -> None:  # fmt: skip
    """Adds what a line says to the outcome; its own cache lines count, else those around the process."""
    try:
        found = cell(str(line["op"]), int(line["ranks"]), int(line["bytes"]))
        times = [float(value) for value in line["batch_us"]]
        ok = bool(line["ok"])
    except (KeyError, TypeError, ValueError):
        return
    done.add(found)
    if ok and times and min(times) > 0:
        own = line.get("cache_line_ns")
        own = (
            own
            if isinstance(own, list) and own and all(isinstance(ns, (int, float)) and ns > 0 for ns in own)
            else around
        )
        known = [float(ns) for ns in own if ns is not None]
        label, ns = label_of(*own), sum(known) / len(known) if known else 0.0
        outcome.samples.append(
            Sample(party.name, found, int(line.get("in_place", in_place)), round_, label, ns, times)
        )
    elif line.get("error", "").startswith("not offered"):
        pass
    else:
        outcome.faults.append((found, str(line.get("error", "no times"))))


def measure_start(party: Party, ranks: int, cores: int, limits: Limits) -> tuple[float | None, str]:
    """(seconds from spawn to the first all_reduce done, "" or why there is none)."""
    with limits.turns.turn():
        words = command(party, ranks, cores, ["--startup"])
        ended = start(words, environment(party), limits.start_s + 60, limits.start_s + 60)
    for when, line in ended.lines:
        if "startup_done_s" in line:
            done = float(line["startup_done_s"]) or when
            return (done - ended.begin, "") if line.get("ok", True) else (None, "wrong sum")
    return None, ended.fault or "said nothing"


def measure_memory(
    party: Party, ranks: int, cores: int, nbytes: int, limits: Limits
) -> tuple[int | None, str]:
    """(bytes a rank holds beyond bare process and buffers after an all_reduce, "" or why unknown)."""
    with limits.turns.turn():
        words = command(party, ranks, cores, ["--memory", "--bytes", str(nbytes)])
        ended = start(words, environment(party), limits.start_s + limits.cell_s, limits.cell_s)
    for _, line in ended.lines:
        if "memory_bytes" in line:
            return int(line["memory_bytes"]), ""
    return None, ended.fault or "said nothing"
