"""What a world may leave behind: processes, shared memory, sockets, mappings."""

from __future__ import annotations

import gc
import os
from pathlib import Path


def _read(path: Path) -> str:
    """A file of /proc; "" if its process has just ended."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


# What browser tests keep running in the same process; it starts and ends processes when it likes.
BROWSING = ("chrom", "jupyter", "node")


def children_of(pid: int) -> set[int]:
    """All descendants of a process, but for browsers, notebook servers and what these started."""
    found, todo = set(), [pid]
    while todo:
        for task in Path(f"/proc/{todo.pop()}/task").glob("*/children"):
            new = {int(child) for child in _read(task).split()} - found
            new = {child for child in new if not _read(Path(f"/proc/{child}/comm")).startswith(BROWSING)}
            found |= new
            todo += new
    return found


def alive(pids: set[int]) -> set[int]:
    """Those of `pids` that run (zombies do not)."""
    states = {pid: _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split() for pid in pids}
    return {pid for pid, state in states.items() if state and state[0] != "Z"}


def leftovers() -> dict[str, object]:
    """What a closed world must have given back: children, shared memory names, sockets and mappings of this process."""
    gc.collect()
    fds = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.lexists(f"/proc/self/fd/{fd}")
    ]
    return {
        "children": alive(children_of(os.getpid())),
        "shared memory": sorted(name for name in os.listdir("/dev/shm") if "ccl" in name),
        "sockets": sum(name.startswith("socket:") for name in fds),
        "mappings": sum(
            "ccl_lab" in line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd" in line
        ),
    }
