"""Threads that are in native code when the interpreter goes.

Is: a process that ends while a daemon thread computes without the GIL. Is not: threads of the engine, which have none.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

BODY = """
    import threading, time
    import numpy as np
    from ccl_lab import _core

    class Lasting:  # the interpreter takes its time to go
        def __del__(self, sleep=time.sleep): sleep(0.5)
    keep = Lasting()
    values = np.ones(1 << 22, np.uint8)
    def work():
        while True: _core.reduce(8, 0, values, [values, values])
    for _ in range(2): threading.Thread(target=work, daemon=True).start()
    time.sleep(0.2)
"""


def test_a_daemon_thread_in_native_code_does_not_end_the_process_by_a_signal():
    program = textwrap.dedent(BODY)
    for _ in range(3):
        done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", program], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
