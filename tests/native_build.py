"""The native programs that Python tests run: built once, in the folder of the native tests, by whoever comes first.

Is not: the build of the package, nor of all native tests (Makefile, with the same folder and options).
Invariant: several test processes may ask at once; one builds, the others wait.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build/tests"


def environment() -> dict[str, str]:
    """With the programs beside this interpreter first: cmake and ninja come with the build dependencies."""
    return dict(os.environ, PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}")


def run(*command: str | Path, cwd: Path = ROOT, timeout: float = 900) -> str:
    """Output of a command that must succeed."""
    found = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout,
    )
    assert found.returncode == 0, f"{' '.join(map(str, command))}\n{found.stdout[-6000:]}"
    return found.stdout


def generator() -> list[str]:
    return ["-G", "Ninja"] if shutil.which("ninja", path=environment()["PATH"]) else []


def build(*targets: str) -> Path:
    """The build folder, with `targets` up to date in it."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DCCL_LAB_BIND=OFF", "-DCCL_LAB_BENCH=ON", "-DCCL_LAB_TESTS=ON"]
        run("cmake", "-S", "native", "-B", BUILD, *generator(), *options)
        run("cmake", "--build", BUILD, "--parallel", "2", "--target", *targets)
    return BUILD
