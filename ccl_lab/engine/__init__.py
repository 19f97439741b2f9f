"""Runs schedules: rank processes of a World, or this process's part in a launcher's job.

Is: lazily loaded names, because a rank process must not load the planner. Is not: code beyond `init`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..errors import UsageError

if TYPE_CHECKING:
    from .communicator import Communicator as Communicator
    from .communicator import empty as empty
    from .compute import Emulated as Emulated
    from .compute import Matmul as Matmul
    from .elastic import ElasticCommunicator as ElasticCommunicator
    from .run import Run as Run
    from .work import Work as Work
    from .world import World as World

_NAMES = {
    "World": ".world",
    "Emulated": ".compute",
    "Matmul": ".compute",
    "Run": ".run",
    "Communicator": ".communicator",
    "ElasticCommunicator": ".elastic",
    "Window": ".window",
    "Work": ".work",
    "empty": ".communicator",
}
__all__ = [*_NAMES, "init"]


def init(
    *,
    transport: str | None = None,
    timeout: Any = None,
    topology: Any = None,
    elastic: bool = False,
    join: bool = False,
    patience: Any = None,
    group_size: int = 1,
) -> Any:
    """Joins the job this process was started in by torchrun, mpirun, srun or CCL_LAB_RANK, and returns its Communicator.

    transport: "auto", "shm" or "tcp"; timeout: deadline of a collective, such as "30s". Explicit arguments beat the
    environment. Raises UsageError outside a launcher, ConnectError or OpTimeout if the job does not come together.

    topology: nodes and NICs that ranks of one host play, as in a World, such as Topology.cluster(...); the same on all ranks.

    elastic=True returns an ElasticCommunicator: lost processes are left out, the others go on, new ones can join. join=True: as a
    new member of such a job, which the members let in by `grow`. patience: silence after which a process counts as lost, once
    something failed (default "5s"). group_size: members k·group_size up to (k + 1)·group_size leave together.
    """
    if elastic:
        if topology is not None:
            raise UsageError("an elastic job runs on the hosts it has: leave topology out.")
        return _init_elastic(transport, timeout, join, patience, group_size)
    if join or patience is not None or group_size != 1:
        raise UsageError("join, patience and group_size are of an elastic job: give elastic=True.")
    from .communicator import Communicator
    from .join import join as enter

    return Communicator(enter(transport, timeout, topology))


def _init_elastic(transport: str | None, timeout: Any, joins: bool, patience: Any, group_size: int) -> Any:
    from .. import units
    from .elastic import ElasticCommunicator
    from .elastic_job import ElasticJob
    from .member import options_of
    from .membership import PATIENCE_S

    patience_s = PATIENCE_S if patience is None else units.parse_duration(patience)
    if not patience_s > 0 or group_size < 1:
        raise UsageError(f"patience {patience!r}, group_size {group_size}: expected more than 0 s, and 1 or more.")
    options = options_of(transport=transport, timeout=timeout)
    return ElasticCommunicator(ElasticJob(options, joins=joins, patience_s=patience_s, group_size=group_size))


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_NAMES[name], __name__), name)
