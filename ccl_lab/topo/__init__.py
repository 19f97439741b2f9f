"""Where things run: nodes, ranks, NICs and the links between them.

Is: the noun `Topology`, its presets, this machine's (`discover`), its file form and its picture. Is not: a planner or
a model of time beyond "a link has a rate and a latency". Invariants: values are frozen; rates are whole bytes per
second and latencies whole picoseconds, so that everything computed from them is exact.
"""

from .discover import Gpu, Machine, Nic, RdmaDevice, discover
from .lanes import lane_nics
from .model import LinkKind, Links, Topology, duration_ps
from .network import Level, Network, Tier
from .presets import PRESETS, Preset
from .rates import INSTANT
from .text import topology_from_text

__all__ = [
    "INSTANT",
    "PRESETS",
    "Gpu",
    "Level",
    "LinkKind",
    "Links",
    "Machine",
    "Network",
    "Nic",
    "Preset",
    "RdmaDevice",
    "Tier",
    "Topology",
    "discover",
    "duration_ps",
    "lane_nics",
    "topology_from_text",
]
