"""Ranks of a bench as processes of this machine, joined as a launcher would: `python -m MODULE rank` each.

Is: the start, the environment and rank 0's answer; a server through which ranks share a GPU. Is not: a measurement.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
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


@contextlib.contextmanager
def side_by_side() -> Iterator[bool]:
    """Processes started meanwhile run side by side on a GPU (NVIDIA's MPS) and not in turns; False where it is not installed."""
    control = shutil.which("nvidia-cuda-mps-control") or shutil.which("nvidia-cuda-mps-control", path="/usr/local/nvidia/bin")
    if control is None:
        yield False
        return
    with tempfile.TemporaryDirectory() as folder:
        ours = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        os.environ.update(ours)
        try:
            subprocess.run([control, "-d"], check=True)
            time.sleep(1)  # it says nothing when it listens
            yield True
        finally:
            subprocess.run([control], input="quit\n", text=True, stdout=subprocess.DEVNULL, timeout=20)
            for name in ours:
                del os.environ[name]
