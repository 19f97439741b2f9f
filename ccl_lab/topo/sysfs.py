"""Small files and links of /sys and /proc, read so that what is missing is empty and nothing is raised.

Is not: a place for what the values mean. Invariant: nothing is opened for writing.
"""

from __future__ import annotations

import os
from pathlib import Path


def text(path: Path) -> str:
    """What a small file says; empty where it is missing, unreadable, or (a NIC that is down) refuses."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (OSError, ValueError):
        return ""


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
