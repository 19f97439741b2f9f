"""Runs a command on machines of the rig: boots them, waits, tells how each ended.

Is: `run()`. Is not: a service; machines live as long as the call. Invariant: however the launcher ends, killed included, the machines end
too and the folder of the run is removed (reaper.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from . import kernel
from .errors import RigError
from .machine import Machine, Outcome, Settings, Sink, write_run
from .wires import Wires

MAX_NICS, MAX_MACHINES, MIN_MEMORY_MIB = 16, 16, 128
LOOK_S = 0.01


class _Reaper:
    """The process that ends what we leave behind."""

    def __init__(self, folder: Path) -> None:
        program = Path(__file__).with_name("reaper.py")
        # A session of its own: an interrupt from the terminal must not reach it.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(program), str(folder)], stdin=subprocess.PIPE, start_new_session=True, text=True
        )

    def toggle(self, group: int) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{group}\n")
        self._process.stdin.flush()

    def __enter__(self) -> _Reaper:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def _checked(settings: Settings) -> None:
    bounds = {"machines": (1, MAX_MACHINES), "nics": (0, MAX_NICS), "memory_mib": (MIN_MEMORY_MIB, 1 << 16), "mtu_bytes": (1280, 9000)}
    for name, (low, high) in bounds.items():
        if not low <= getattr(settings, name) <= high:
            raise RigError(f"{name}={getattr(settings, name)}: expected {low} to {high}")
    for folder in settings.shared:
        if not folder.is_absolute() or not folder.is_dir() or ":" in str(folder):
            raise RigError(f"shared folder {folder}: expected a folder, absolute, without a colon in its name")


def run(
    command: Sequence[str], *, machines: int = 1, nics: int = 4, memory_mib: int = 1024, mtu_bytes: int = 9000, timeout_s: float = 600.0,
    shared: Iterable[Path] = (), environment: Mapping[str, str] | None = None, sink: Sink | None = None,
) -> list[Outcome]:  # fmt: skip
    """Runs `command` on every machine, in this folder, with this environment and RDMA_VM (its number, from 0), RDMA_VMS and RDMA_VM_NICS.

    Files are the host's, and what is written is gone when the machine ends, except in the folders `shared`. `environment` replaces that
    of this process; `sink(machine, "stdout" | "stderr", line)` sees output as it comes. Returns an Outcome per machine. Raises
    RigUnavailable where this machine cannot have the rig, RigError for bad arguments. Costs about a second to boot.
    """
    settings = Settings(machines, nics, memory_mib, mtu_bytes, tuple(shared))
    _checked(settings)
    if not command:
        raise RigError("no command to run")
    program = kernel.build()
    folder = Path(tempfile.mkdtemp(prefix="rig."))
    with _Reaper(folder) as reaper, Wires(machines, nics + 1) as wires:
        if not str(folder).isprintable() or {" ", ":", ",", '"'} & set(str(folder)):
            raise RigError(f"{folder} cannot be named on a kernel's command line: set TMPDIR to a plainer folder")
        write_run(folder, settings)
        end = time.monotonic() + timeout_s
        started: list[Machine] = []
        for number in range(machines):
            ends = [end.fileno() for end in wires.ends(number)]
            given = os.environ if environment is None else environment
            started.append(Machine(program, folder, number, settings, ends, command, given, sink))
            reaper.toggle(started[-1].process.pid)
        return _wait(started, end, wires, reaper)


def _wait(started: list[Machine], end: float, wires: Wires, reaper: _Reaper) -> list[Outcome]:
    outcomes: dict[int, Outcome] = {}
    while len(outcomes) < len(started) and time.monotonic() < end:
        time.sleep(LOOK_S)
        for machine in started:
            if machine.number not in outcomes and machine.process.poll() is not None:
                reaper.toggle(machine.process.pid)
                wires.machine_ended(machine.number)
                outcomes[machine.number] = machine.outcome()
    late = [machine for machine in started if machine.number not in outcomes]
    for machine in late:
        os.killpg(machine.process.pid, 9)
        machine.process.wait()
        reaper.toggle(machine.process.pid)
        outcomes[machine.number] = machine.outcome(timed_out=True)
    return [outcomes[number] for number in sorted(outcomes)]


def status_of(outcomes: Sequence[Outcome]) -> int:
    """The first status that is not 0, or 0."""
    return next((outcome.status for outcome in outcomes if outcome.status), 0)
