"""The torch.distributed backend "ccl_lab": importing this module registers it.

    import ccl_lab.torch_backend
    torch.distributed.init_process_group("ccl_lab")

Is: registration, and nothing else that a user calls. Is not: compiled against torch; it subclasses
torch.distributed.ProcessGroup in Python. Invariants: torch is imported here and below only; registering twice changes
nothing. Raises UnsupportedError where torch is missing, older than 2.4, or built without torch.distributed.
"""

from __future__ import annotations

from .needs import need_torch

need_torch()

from .group import CclProcessGroup, register  # noqa: E402
from .tensors import BackendError, BackendTimeout  # noqa: E402

register()

__all__ = ["BackendError", "BackendTimeout", "CclProcessGroup", "register"]
