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
