"""Peak memory of a script, in a process of its own.

Is: what tests of memory have in common. Is not: a bound. What getrusage says of a process begins with the peak of whoever started it,
which is gigabytes where all tests run in one; peak_rss_bytes is of the process itself.
"""

from __future__ import annotations

import subprocess
import sys

_PEAK = """
from ccl_lab.cli.memory import peak_rss_bytes
def peak():
    return peak_rss_bytes() // 2**20
"""


def printed(script: str, *arguments: str) -> int:
    """The number that `script` prints, which may call peak(): MB (2^20 bytes) at most until then."""
    return int(subprocess.run([sys.executable, "-c", _PEAK + script, *arguments], check=True, capture_output=True, text=True).stdout)
