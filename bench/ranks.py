"""Ranks of a bench as processes of this machine, joined as a launcher would: `python -m MODULE rank` each.

Is: the start, the environment and rank 0's answer. Is not: a measurement.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any


def answer_of(module: str, ranks: int, timeout_s: float = 170.0, **environment: str) -> Any:
    """The JSON that rank 0 prints last. Traces are off; `environment` is added. Raises RuntimeError if a rank fails."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    job = {"CCL_LAB_WORLD_SIZE": str(ranks), "CCL_LAB_RENDEZVOUS": f"127.0.0.1:{port}", "CCL_LAB_TRACE_SPANS": "0"}
    shared = os.environ | job | environment
    python = [sys.executable, *(["-S"] if sys.flags.no_site else [])]
    processes = [
        subprocess.Popen([*python, "-m", module, "rank"], env=shared | {"CCL_LAB_RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    try:
        outputs = [process.communicate(timeout=timeout_s)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(process.returncode for process in processes):
        raise RuntimeError(f"a rank of {ranks} failed; its error is above")
    return json.loads(outputs[0].strip().splitlines()[-1])
