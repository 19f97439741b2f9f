"""The schedule and its meaning: columns, builder, layout, text and binary forms, interpreter."""

from .builder import Builder, Ref
from .chains import Chains
from .interpret import interpret
from .layout import Layout
from .loops import Outline, RingLoops
from .meetings import Meetings
from .node_trees import NodeTrees
from .ops import Buffer, Collective, DType, Kind, RedOp
from .pairs import Cuts, Paired, Pairs
from .rails import Rails
from .schedule import Schedule
from .table import Op, OpTable, describe

__all__ = ["Buffer", "Builder", "Chains", "Collective", "Cuts", "DType", "Kind", "Layout", "Meetings", "NodeTrees", "Op", "OpTable",
           "Outline", "Paired", "Pairs", "Rails", "RedOp", "Ref", "RingLoops", "Schedule", "describe", "interpret"]  # fmt: skip
