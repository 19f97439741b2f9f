"""The job of docs/production.md under the launchers that this machine has.

Is: the text of the page, started as the page says. Is not: the variables alone (test_init.py), nor several hosts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "production.md").read_text()
FOREIGN = ("CCL_LAB", "OMPI", "PMI", "SLURM", "RANK", "WORLD", "MASTER")


def job(folder: Path) -> Path:
    """The program of the page."""
    (text,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    path = folder / "job.py"
    path.write_text(text)
    return path


def run(*words: str) -> str:
    """What a launcher's job printed; it must succeed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    path = os.pathsep.join([str(ROOT), *filter(None, [clean.get("PYTHONPATH")])])
    ended = subprocess.run(words, env=clean | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=150)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_torchrun(tmp_path):
    assert "--standalone --nproc-per-node 4 job.py" in PAGE
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    printed = run(*torchrun, "--standalone", "--nproc-per-node", "4", str(job(tmp_path)))
    assert printed.count("inside a node: shared memory") == 1


def test_mpirun(tmp_path):
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("no mpirun")
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True).stdout
    words = ["--oversubscribe", "--allow-run-as-root"] if "Open MPI" in version else []
    assert run(mpirun, *words, "-n", "4", sys.executable, str(job(tmp_path))).count("inside a node: shared memory") == 1
