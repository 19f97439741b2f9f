"""Peak memory of a script, in a process of its own.

Is: what tests of memory have in common. Is not: a bound. What getrusage says of a process begins with the peak of whoever started it,
which is gigabytes where all tests run in one; VmHWM is of the process itself.
"""

from __future__ import annotations

import subprocess
import sys

_PEAK = """
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:")) // 1024
"""


def printed(script: str, *arguments: str) -> int:
    """The number that `script` prints, which may call peak(): MB (2^20 bytes) at most until then."""
    return int(subprocess.run([sys.executable, "-c", _PEAK + script, *arguments], check=True, capture_output=True, text=True).stdout)
