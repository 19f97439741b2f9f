"""The schedule and its meaning: columns, builder, layout, text and binary forms, interpreter."""

from .builder import Builder, Ref
from .interpret import interpret
from .layout import Layout
from .ops import Buffer, Collective, DType, Kind, RedOp
from .schedule import Schedule
from .table import Op, OpTable, describe

__all__ = ["Buffer", "Builder", "Collective", "DType", "Kind", "Layout", "Op", "OpTable", "RedOp", "Ref", "Schedule",
           "describe", "interpret"]  # fmt: skip
