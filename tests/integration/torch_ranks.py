"""Starts the ranks of the torch tests and gives them cases."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent


def clean_environment() -> dict[str, str]:
    """Without what a launcher, or ccl_lab, would be told by it."""
    prefixes = ("CCL_LAB", "OMPI", "PMI", "SLURM", "RANK", "WORLD", "MASTER", "LOCAL_")
    return {key: value for key, value in os.environ.items() if not key.startswith(prefixes)} | {"OMP_NUM_THREADS": "1"}


class TorchRanks:
    """`size` processes in Gloo and ccl_lab; `run(case)` runs a function of the file on all of them."""

    def __init__(self, size: int, cases: str) -> None:
        self.size = size
        self._folder = tempfile.TemporaryDirectory()
        store = str(Path(self._folder.name) / "store")
        self._ranks = [
            subprocess.Popen(
                [sys.executable, "-W", "ignore", str(HERE / "torch_rank.py"), str(rank), str(size), store, str(HERE / cases)],
                env=clean_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
            for rank in range(size)
        ]

    def run(self, case: str, seconds: float = 200) -> None:
        """AssertionError with the traceback of each rank on which it failed, or which did not answer."""
        for process in self._ranks:
            process.stdin.write(json.dumps({"case": case}) + "\n")
            process.stdin.flush()
        errors = [self._answer(process, time.monotonic() + seconds) for process in self._ranks]
        text = "\n".join(f"rank {rank}: {error}" for rank, error in enumerate(errors) if error)
        assert not text, text

    @staticmethod
    def _answer(process: subprocess.Popen, deadline: float) -> str | None:
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(max(deadline - time.monotonic(), 0.1)):
                process.kill()
                return "did not answer in time"
        line = process.stdout.readline()
        return json.loads(line)["error"] if line else f"ended ({process.poll()})"

    def close(self) -> list[int | None]:
        """Exit statuses, after all have left their groups."""
        for process in self._ranks:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for process in self._ranks:
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.cleanup()
        return [process.returncode for process in self._ranks]
