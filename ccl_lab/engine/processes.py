"""Signals to rank processes that cannot reach another process by mistake.

Is: process descriptors (pidfd) of ranks, opened while the fork server is known to be the parent. Is not: a supervisor.
Invariant: a signal goes to the process the descriptor was opened for, or to nobody.
"""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    from .ranks import Ranks


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat after the name: state, parent, …; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def open_rank(ranks: Ranks, member: int) -> int:
    """A descriptor of the process of a rank (of an elastic world: a member). Raises UsageError if it has ended."""
    pid = ranks.pids.get(member, -1)
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, ValueError):
        raise UsageError(f"rank {member} has no process any more: it ended before.", rank=member) from None
    # The number may have been given to another process before the descriptor held it; that one has another parent.
    fields = _stat(pid)
    if not fields or fields[0] == "Z" or int(fields[1]) != ranks._server._process.pid:
        os.close(pidfd)
        raise UsageError(f"rank {member} has no process any more: pid {pid} ended before.", rank=member)
    return pidfd


def send(pidfd: int, number: signal.Signals) -> None:
    """Sends a signal; nothing if the process has ended."""
    if pidfd < 0:
        return
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        pass


def ended(pidfd: int) -> bool:
    """Whether the process has ended."""
    if pidfd < 0:
        return False
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def stopped(pidfd: int) -> bool:
    """Whether the process is stopped by a signal."""
    if pidfd < 0:
        return False
    try:
        lines = Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines()
    except FileNotFoundError:
        return False
    pid = next((int(line.split()[1]) for line in lines if line.startswith("Pid:")), -1)
    return pid > 0 and _stat(pid)[:1] == ["T"]


def close(pidfd: int) -> int:
    """Closes the descriptor; returns -1, which stands for none."""
    if pidfd >= 0:
        os.close(pidfd)
    return -1
