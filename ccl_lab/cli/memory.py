"""How much memory this process had at most.

Is: the peak of its resident set since it began. Is not: what a call needs by itself: the interpreter and its modules are in it.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def peak_rss_bytes() -> int:
    """Bytes. Where there is no /proc what getrusage says, which begins with the peak of whoever started the process."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
