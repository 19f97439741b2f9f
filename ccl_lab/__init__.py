"""ccl_lab: a laboratory for collective communication around a real engine.

    topology = ccl_lab.Topology.cluster(nodes=2, gpus_per_node=4, nics_per_node=4, nic_gbits_per_s=8)
    schedule = ccl_lab.plan("all_reduce", topology, nbytes="64MiB", algorithm="ring")
    ccl_lab.verify(schedule)
    trace = ccl_lab.simulate(schedule, topology)

Is: the public names, each loaded when first used, so that a rank process starts in milliseconds and a headless
machine never loads the widgets. Is not: code.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# public name -> the module that has it ("" : the module of that name)
_NAMES = {
    "Topology": ".topo",
    "discover": ".topo",
    "Schedule": ".ir",
    "Builder": ".ir",
    "Kind": ".ir",
    "Buffer": ".ir",
    "Collective": ".ir",
    "RedOp": ".ir",
    "DType": ".ir",
    "interpret": ".ir",
    "plan": ".planner",
    "verify": ".verifier",
    "Proof": ".verifier",
    "simulate": ".simulation",
    "sweep": ".sweeping",
    "Sweep": ".sweeping",
    "Summary": ".simulator",
    "Trace": ".trace",
    "FaultScript": ".faults",
    "World": ".engine",
    "Communicator": ".engine",
    "Emulated": ".engine",
    "Matmul": ".engine",
    "Work": ".engine",
    "Run": ".engine",
    "init": ".engine",
    "empty": ".engine",
    "export_html": ".widgets",
    "errors": "",
} | dict.fromkeys(
    (
        "CclError UsageError ConfigError ShapeError DtypeError ScheduleError DecodeError BoundsError "
        "ContributionError RaceError DeadlockError TransportError ConnectError RegistrationError LinkDownError "
        "PeerLostError OpTimeout AbortedError UnsupportedError"
    ).split(),
    ".errors",
)

__all__ = ["__version__", *_NAMES]

if TYPE_CHECKING:
    from . import errors as errors
    from .engine import Communicator as Communicator
    from .engine import Emulated as Emulated
    from .engine import Matmul as Matmul
    from .engine import Run as Run
    from .engine import Work as Work
    from .engine import World as World
    from .engine import empty as empty
    from .engine import init as init
    from .errors import *  # noqa: F403
    from .faults import FaultScript as FaultScript
    from .ir import Buffer as Buffer
    from .ir import Builder as Builder
    from .ir import Collective as Collective
    from .ir import DType as DType
    from .ir import Kind as Kind
    from .ir import RedOp as RedOp
    from .ir import Schedule as Schedule
    from .ir import interpret as interpret
    from .planner import plan as plan
    from .simulation import simulate as simulate
    from .simulator import Summary as Summary
    from .sweeping import Sweep as Sweep
    from .sweeping import sweep as sweep
    from .topo import Topology as Topology
    from .topo import discover as discover
    from .trace import Trace as Trace
    from .verifier import Proof as Proof
    from .verifier import verify as verify
    from .widgets import export_html as export_html


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        if name.startswith("_"):
            raise AttributeError(f"module 'ccl_lab' has no attribute {name!r}")
        from .errors import suggest

        raise AttributeError(f"module 'ccl_lab' has no attribute {name!r}.{suggest(name, _NAMES)}")
    if not _NAMES[name]:
        return importlib.import_module(f".{name}", __name__)
    value = getattr(importlib.import_module(_NAMES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
