"""A job of one rank on each machine, over verbs: what the bodies of these tests share."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import numpy as np

import ccl_lab as ccl

ME, MACHINES, NICS = int(os.environ["RDMA_VM"]), int(os.environ["RDMA_VMS"]), int(os.environ["RDMA_VM_NICS"])


def join(**settings: str) -> Any:
    """The communicator of this job; environment keys without their prefix, in small letters."""
    keys = {
        "rank": str(ME),
        "world_size": str(MACHINES),
        "rendezvous": "10.77.0.1:4711",
        "secret": "of the rig",
        "nics": ",".join(f"eth{nic + 1}" for nic in range(NICS)),
        "transport": "verbs",
        "rdma": "qps=4",
        **settings,
    }
    os.environ.update({f"CCL_LAB_{name.upper()}": value for name, value in keys.items()})
    return ccl.init()


def numbers(rank: int, shape: Any, seed: int = 0) -> np.ndarray:
    """What `rank` contributes: integers, so that sums are exact."""
    return np.random.default_rng(1000 * seed + rank).integers(-1000, 1000, shape).astype(np.int32)


def summed(shape: Any, seed: int = 0) -> np.ndarray:
    """The sum over all ranks."""
    return sum(numbers(rank, shape, seed) for rank in range(MACHINES))  # type: ignore[return-value]


def sh(command: str) -> None:
    """Runs a command of this machine; it must succeed."""
    subprocess.run(command, shell=True, check=True)


def reasons(comm: Any) -> list[str]:
    """Why paths were lost from now on: a list that grows."""
    found: list[str] = []
    comm._member._repair._tell = lambda events: found.extend(each["text"] for each in events if each["kind"] == "lost")
    return found


def paths(comm: Any) -> dict[str, Any]:
    """{"states": [of each path, by NIC], and the counters of the repair}."""
    rails = comm._member.engine.rails()
    all_paths = sorted(rails.pop("paths"), key=lambda path: (path["peer"], path["nic"]))
    return {"states": [path["state"] for path in all_paths], **rails}
