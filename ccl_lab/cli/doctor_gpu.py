"""What `doctor` says of GPUs: the driver, each GPU, which reach each other, and the kernels of this build.

Is: checks as in doctor.py. Is not: a measurement. The driver is loaded and started for it, and nothing is allocated.
"""

from __future__ import annotations

import shutil
from typing import Any

from ..errors import CclError
from ..units import format_size
from .finding import Finding

NEEDED_FOR = "collectives on arrays of a GPU (docs/cuda.md)"


def _unreached(gpu: dict[str, Any]) -> list[int]:
    return [peer for peer, reached in enumerate(gpu["reaches"]) if not reached]


def _words(gpu: dict[str, Any]) -> str:
    words = [f"GPU {gpu['ordinal']} {gpu['name']}, sm_{gpu['capability']}, {format_size(gpu['memory_bytes'])}"]
    words.append(f"{gpu['copy_engines']} copy engines")
    words += [] if gpu["stream_memory_ops"] else ["no stream memory operations"]
    words += [] if gpu["posix_handles"] else ["memory of the mapping API cannot be shared"]
    if unreached := _unreached(gpu):
        words.append(f"does not reach GPU {', '.join(map(str, unreached))}")
    return ", ".join(words)


def _problems(gpus: list[dict[str, Any]]) -> list[str]:
    """What is to be done; none where every GPU can be used with every other."""
    found = []
    without = [str(gpu["ordinal"]) for gpu in gpus if not gpu["stream_memory_ops"]]
    if without:
        how = "bare Linux, a driver for CUDA 12 or newer, no vGPU"
        found.append(f"GPU {', '.join(without)}: ranks signal by stream memory operations: {how}")
    if any(_unreached(gpu) for gpu in gpus):
        how = "IOMMU or ACS may forbid it; use those that do (CUDA_VISIBLE_DEVICES)"
        found.append(f"GPUs that do not reach each other: `nvidia-smi topo -p2p r`; {how}")
    if any(gpu["capability"] < 80 for gpu in gpus):
        found.append("kernels are for sm_80 and newer: older GPUs only copy")
    return found


def check_gpus(library: str | None = None) -> Finding:
    """The driver and its GPUs. library: of the driver, for tests."""
    try:
        from ..engine import devices

        about = devices.driver(library)
    except CclError as error:
        return Finding("GPU", False, "no CUDA driver", NEEDED_FOR, str(error))
    except ImportError as error:  # the engine is not built, which is a finding of its own
        return Finding("GPU", False, "not looked at", NEEDED_FOR, str(error))
    gpus = about["gpus"]
    if not gpus:
        how = "look at CUDA_VISIBLE_DEVICES and nvidia-smi"
        return Finding("GPU", False, f"driver for CUDA {about['version']}, no GPU", NEEDED_FOR, how)
    found = f"driver for CUDA {about['version']}; " + "; ".join(map(_words, gpus))
    problems = _problems(gpus)
    usable = any(gpu["stream_memory_ops"] for gpu in gpus)
    if usable and problems:
        found += "; to do: " + "; ".join(problems)
    return Finding("GPU", usable, found, NEEDED_FOR, "; ".join(problems))


def _lacks(gpu: dict[str, Any]) -> str:
    if not gpu["dma_buf"]:
        how = "open kernel modules of a driver for CUDA 11.7 or newer, Linux 5.12 or newer"
        return f"GPU {gpu['ordinal']} has no dma-bufs: {how}"
    return "" if gpu["flushes"] else f"GPU {gpu['ordinal']} does not say how what NICs write becomes visible to it: a newer driver"


def check_gpu_direct(library: str | None = None, root: str = "/") -> Finding:
    """Whether GPUs have dma-bufs and RDMA devices take them. library, root: of the driver, of /sys, for tests."""
    name, needed_for = "GPUDirect", "arrays on a GPU between nodes without pinned memory (docs/cuda.md)"
    try:
        from ..engine import devices, verbs
        from ..rdma import devices as nics

        gpus, found = devices.driver(library)["gpus"], [nic.name for nic in nics(root)]
    except (CclError, ImportError) as error:
        return Finding(name, False, "no GPU", needed_for, str(error))
    if not gpus or not found:
        return Finding(name, False, "no GPU" if not gpus else "no RDMA device", needed_for, "a GPU and an RDMA NIC")
    lacks = [why for why in [*map(_lacks, gpus), *map(verbs.refuses_dma_bufs, found)] if why]
    said = f"dma-bufs of {sum(not _lacks(gpu) for gpu in gpus)} of {len(gpus)} GPUs, taken by {', '.join(found)}"
    return Finding(name, not lacks, said if not lacks else "not from here", needed_for, "; ".join(lacks))


def check_gpu_kernels() -> Finding:
    """The reduction kernels that this build carries, and nvcc."""
    try:
        from ..engine import devices

        kernels = devices.kernels()
    except ImportError as error:
        return Finding("GPU kernels", False, "not looked at", "reductions on GPUs", str(error))
    nvcc = shutil.which("nvcc")
    if kernels:
        return Finding("GPU kernels", True, kernels, "reductions on GPUs")
    how = "build again (pip install, make build): nvcc is here now"
    if not nvcc:
        how = "install the CUDA toolkit, put nvcc into PATH, and build again"
    return Finding("GPU kernels", False, "none: nvcc was not found at the build; copies need none", "reductions on GPUs", how)
