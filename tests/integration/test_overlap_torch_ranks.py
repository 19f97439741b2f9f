"""The torch operators and layers on real ranks: the bits of the sequential emulation of the same order, over shared memory and sockets.

Is: `ccl_lab.init()` in processes, started once for all cases of a transport (overlap_rank_side.py). Is not: every shape
(test_overlap_torch.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ..ports import free_port

PROGRAM = Path(__file__).resolve().parent / "overlap_rank_side.py"
N = 3
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Results of all ranks, by transport; that the program ended well says that choices, memory and errors behave."""
    made = tmp_path_factory.mktemp("overlap")
    # Sums of a matmul in one order, wherever in memory its operands lie.
    env = {**os.environ, "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, str(PROGRAM), str(made), str(free_port())]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stderr[-4000:]
    return made


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_bitwise_what_the_emulation_says(transport, folder):
    for rank in range(N):
        right, mine = np.load(folder / f"emulated{rank}.npz"), np.load(folder / f"{transport}{rank}.npz")
        assert set(mine) == set(right) and len(right.files) > 300
        wrong = [name for name in right.files if not np.array_equal(mine[name], right[name])]
        assert not wrong, f"rank {rank}: {wrong[:8]}"
