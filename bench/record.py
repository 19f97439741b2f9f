"""A record of a benchmark: what was measured, on what, of which commit.

Is not: a plot. Invariant: every record can be compared with another by its own fields alone.
"""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ccl_lab.topo import discover

ROOT = Path(__file__).resolve().parent.parent


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Count, smallest, p10, p50, p90, p99 and largest."""
    array = np.asarray(values, float)
    found = {f"p{p}": float(np.percentile(array, p)) for p in (10, 50, 90, 99)}
    return {"n": len(array), "min": float(array.min()), **found, "max": float(array.max())}


def commit() -> str:
    """The commit, with "+" where the tree differs from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain") else "")


def machine() -> dict[str, Any]:
    """What ran it, without its name."""
    found = discover()
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "",
    )
    return {
        "processor": model,
        "cores": found.cores,
        "sockets": found.sockets,
        "gpus": [gpu.name for gpu in found.gpus],
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def save(name: str, facts: dict[str, Any], folder: Path) -> Path:
    """Writes the record; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "benchmark": name,
        "commit": commit(),
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        **facts,
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path
