"""Arrays of a mocked GPU over verbs: every collective, freed memory, another epoch; with `pull=yes` a NIC that is switched off meanwhile.

With `preload=` soft RoCE takes what stands for dma-bufs.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

words = dict(word.split("=", 1) for word in sys.argv[1:])
library, preload, pull = words.pop("library"), words.pop("preload", ""), words.pop("pull", "")
if preload and "LD_PRELOAD" not in os.environ:
    os.execve(sys.executable, [sys.executable, "-m", "tests.rdma.bodies.gpu_arrays", *sys.argv[1:]], {**os.environ, "LD_PRELOAD": preload})
# Memory that ends the process when the host touches it.
os.environ.update(DEVICE_LIBRARY=library, MOCK_HIDDEN="1")
sys.path.insert(0, str(Path(__file__).parents[2] / "integration"))

import device_cases  # noqa: E402

import ccl_lab as ccl  # noqa: E402

from .jobs import ME, join, paths, sh  # noqa: E402


def pulled(comm: Any) -> None:
    """Bytes of a GPU that were with a NIC when it went are sent again, from where they lie, over the other."""
    gpu, count = device_cases.Gpu(), 1 << 21
    every = np.stack([np.arange(count, dtype=np.float32) * (rank + 1) for rank in range(comm.size)])
    x, out = gpu.array(every[ME]), gpu.array(shape=every.shape, dtype=np.float32)
    for _ in range(2):
        comm.barrier()
        begin = time.monotonic()
        comm.all_gather(x, out=out, async_op=True).wait("60s")
        took_s = time.monotonic() - begin
        device_cases.check(out, every)
    out = gpu.array(np.zeros_like(every))
    comm.barrier()
    cut = threading.Timer(0.75 * took_s, sh, ["ip link set eth1 down"])
    if ME == 1:
        cut.start()
    comm.all_gather(x, out=out, async_op=True).wait("60s")
    device_cases.check(out, every)
    if ME == 1:
        cut.join()
    comm.all_gather(x, out=out)
    device_cases.check(out, every)
    comm.barrier()
    after = paths(comm)
    comm.barrier()
    if ME == 1:
        sh("ip link set eth1 up")
    comm.barrier()
    print(json.dumps({"explained": comm.explain(), "after": after}))


with join(**words) as comm:
    if pull:
        pulled(comm)
        sys.exit()
    gpu = device_cases.Gpu()
    explained = comm.explain()
    device_cases.every_collective(comm)
    x = gpu.array(np.arange(5000, dtype=np.float32) + ME)
    every = np.stack([np.arange(5000, dtype=np.float32) + rank for rank in range(comm.size)])
    out = gpu.array(shape=every.shape, dtype=np.float32)
    comm.all_gather(x, out=out)
    device_cases.check(out, every)
    memory = comm.memory()
    if ME == 0:
        x.free()
    try:
        comm.all_gather(x, out=out, async_op=True).wait("60s")
        refused = ""
    except ccl.CclError as error:
        refused = f"{type(error).__name__}: {error}"
    comm.reset()
    x = gpu.array(np.arange(5000, dtype=np.float32) + ME)  # where the freed one was, or not
    comm.all_gather(x, out=out)
    device_cases.check(out, every)
    print(json.dumps({"explained": explained, "memory": memory, "refused": refused, "in_the_end": comm.explain()}))
