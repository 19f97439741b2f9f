"""One machine of the rig: a User-Mode-Linux kernel as a process, the files it is told by, and what it said.

Is not: the wires (wires.py), nor who decides when it ends (launcher.py).
Invariant: a machine leads a process group of its own, so one signal ends the kernel and every process inside.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from .errors import RigError

TIMED_OUT, DIED = 124, 125  # statuses that no command gave
INIT = Path(__file__).with_name("guest_init.sh")
MEMORY_FOLDER = "/dev/shm"
LAST_WORDS_S = 5.0  # a console is read on for this long after its machine ended
# Each run of pages of a machine's process is a mapping of the host's. Who has too many ends with a segmentation fault, and only the kernel
# says why.
NO_MORE_MAPPINGS = "ran out of memory on the host side"
Sink = Callable[[int, str, bytes], None]


@dataclasses.dataclass(frozen=True)
class Settings:
    """What all machines of a run have alike. `memory_mib` also bounds what a command may write to files."""

    machines: int = 1
    nics: int = 4
    memory_mib: int = 1024
    mtu_bytes: int = 9000
    shared: tuple[Path, ...] = ()


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a command ended on a machine. `status` 124: it did not in time; 125: the machine failed, `kernel` says how."""

    machine: int
    status: int
    stdout: str
    stderr: str
    kernel: str

    def __str__(self) -> str:
        parts = [f"machine {self.machine} ended with {self.status}"]
        shown = ("stdout", "stderr", "kernel") if self.status in (TIMED_OUT, DIED) else ("stdout", "stderr")
        parts += [f"{name}:\n{text}" for name in shown if (text := getattr(self, name))]
        if NO_MORE_MAPPINGS in self.kernel:
            most = Path("/proc/sys/vm/max_map_count").read_text().strip()
            told = f"a process touched more than vm.max_map_count ({most}) scattered pages; use less"
            parts.append(f"the host gave it no more memory: {told}")
        return "\n".join(parts)


def write_run(folder: Path, settings: Settings) -> None:
    """What all machines of a run read at boot."""
    shutil.copy(INIT, folder / "init")
    (folder / "init").chmod(0o755)
    shared = ":".join(map(str, settings.shared))
    (folder / "settings").write_text(f"NICS={settings.nics} MTU={settings.mtu_bytes} SHARED={shlex.quote(shared)}\n")


def _write_command(file: Path, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
    lines = [f"export {key}={shlex.quote(value)}\n" for key, value in environment.items() if key.isidentifier()]
    lines.append(f"cd {shlex.quote(str(folder))} && exec {shlex.join(command)}\n")
    file.write_text("".join(lines))


def _memory_folder(settings: Settings) -> str:
    """Where the memory of machines lies, as a file: where there is room. Docker's /dev/shm has 64 MiB."""
    wanted = settings.machines * settings.memory_mib << 20
    places = [MEMORY_FOLDER, os.environ.get("TMPDIR") or "/tmp", "/var/tmp"]
    for place in places:
        if os.path.isdir(place) and shutil.disk_usage(place).free >= wanted:
            return place
    raise RigError(
        f"{settings.machines} machines of {settings.memory_mib} MiB do not fit in any of {', '.join(places)}: "
        "ask for fewer or smaller ones, or run the container with --shm-size"
    )


class Machine:
    """Machine `number` of a run: started when made. `ends` are its sockets, rail by rail; `sink` gets its lines as they come."""

    def __init__(
        self, kernel: Path, run: Path, number: int, settings: Settings, ends: Sequence[int], command: Sequence[str],
        environment: Mapping[str, str], sink: Sink | None,
    ) -> None:  # fmt: skip
        self.number, self._run, self._sink = number, run, sink
        told = dict(environment, RDMA_VM=str(number), RDMA_VMS=str(settings.machines), RDMA_VM_NICS=str(settings.nics), TERM="dumb")
        place = dict(os.environ, TMPDIR=_memory_folder(settings))
        _write_command(run / f"command.{number}", command, told, Path.cwd())
        consoles = [os.pipe(), os.pipe()]
        writes = [write for _, write in consoles]
        words = [
            str(kernel), f"mem={settings.memory_mib}M", "root=/dev/root", "rootfstype=hostfs", "ro", f"init={run}/init", "panic=-1",
            "loglevel=0", "con=null", f"con0=null,fd:{writes[0]}", f"con1=null,fd:{writes[1]}", f"uml_dir={run}", f"umid=vm{number}",
            f"RUN={run}", f"VM={number}",
        ]  # fmt: skip
        for rail, end in enumerate(ends):
            words.append(f"vec{rail}:transport=fd,fd={end},mtu={settings.mtu_bytes},mac=02:00:00:00:{rail:02x}:{number + 1:02x}")
        with (run / f"log.{number}").open("wb") as log:
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=run,
                pass_fds=[*ends, *writes], env=place,
            )  # fmt: skip
        for write in writes:
            os.close(write)
        self._said: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        self._readers = [
            threading.Thread(target=self._read, args=(name, os.fdopen(read, "rb")), name="rig-console", daemon=True)
            for name, (read, _) in zip(self._said, consoles, strict=True)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str, console: BinaryIO) -> None:
        with console:
            for line in console:
                self._said[name].append(line)
                if self._sink:
                    self._sink(self.number, name, line)

    def outcome(self, timed_out: bool = False) -> Outcome:
        """How it ended. Call it when the process has."""
        for reader in self._readers:
            reader.join(LAST_WORDS_S)
        status, kernel = TIMED_OUT, self._text("kernel")
        if not timed_out:
            written = self._text("status").strip()
            status = int(written) if written.isdigit() else DIED
        if status in (TIMED_OUT, DIED) and not kernel:
            kernel = "\n".join(self._text("log").splitlines()[-25:])
        said = {name: b"".join(lines).decode(errors="replace") for name, lines in self._said.items()}
        return Outcome(self.number, status, said["stdout"], said["stderr"], kernel)

    def _text(self, name: str) -> str:
        try:
            return (self._run / f"{name}.{self.number}").read_text(errors="replace")
        except OSError:
            return ""
