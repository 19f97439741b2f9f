"""Runs schedules: rank processes of a World, or this process's part in a launcher's job.

Is: lazily loaded names, because a rank process must not load the planner. Is not: code beyond `init`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .communicator import Communicator as Communicator
    from .communicator import Work as Work
    from .run import Run as Run
    from .world import World as World

_NAMES = {"World": ".world", "Run": ".run", "Communicator": ".communicator", "Work": ".communicator"}
__all__ = [*_NAMES, "init"]


def init(*, transport: str | None = None, timeout: Any = None) -> Communicator:
    """Joins the job this process was started in by torchrun, mpirun, srun or CCL_LAB_RANK, and returns its Communicator.

    transport: "auto", "shm" or "tcp"; timeout: deadline of a collective, such as "30s". Explicit arguments beat the
    environment. Raises UsageError outside a launcher, ConnectError or OpTimeout if the job does not come together.
    """
    from .communicator import Communicator
    from .join import join

    return Communicator(join(transport, timeout))


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_NAMES[name], __name__), name)
