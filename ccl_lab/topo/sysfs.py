"""Small files and links of /sys and /proc, read so that what is missing is empty and nothing is raised.

Is not: a place for what the values mean. Invariant: nothing is opened for writing.
"""

from __future__ import annotations

import os
from pathlib import Path

CHUNK_BYTES = 65_536


def text(path: Path) -> str:
    """What a small file says; empty where it is missing, unreadable, or (a NIC that is down) refuses.

    Cost: four system calls. A GID table has a thousand such files, so they count.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    try:
        parts = []
        while part := os.read(fd, CHUNK_BYTES):
            parts.append(part)
        return b"".join(parts).decode(errors="replace").strip()
    except OSError:
        return ""
    finally:
        os.close(fd)


def number(path: Path, default: int) -> int:
    """The number a file holds, else `default`."""
    try:
        return int(text(path))
    except ValueError:
        return default


def names(path: Path) -> list[str]:
    """Names in a folder, sorted; none where it is missing."""
    try:
        return sorted(entry.name for entry in path.iterdir())
    except OSError:
        return []


def link_name(path: Path) -> str:
    """The last part of what a link leads to; empty where there is none."""
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return ""
