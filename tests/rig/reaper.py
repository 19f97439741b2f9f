"""Ends what a launcher leaves behind: a small process that outlives it, for just long enough.

Is: a program, `reaper.py FOLDER`. It reads numbers of process groups, one a line; a number given again is one that has ended. When
its input ends, which is when the launcher closes it or dies in any way, it kills the groups that are left and removes the folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys


def main() -> None:
    groups: set[int] = set()
    for line in sys.stdin:
        groups ^= {int(line)}
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            pass
    shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    main()
