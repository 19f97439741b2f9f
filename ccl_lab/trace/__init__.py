"""Traces: what happened, measured or simulated, as one table of spans; statistics, differences, files."""

from .columns import COLUMN_DOCS, COLUMNS, SPAN_DTYPE, TRACE_VERSION, SpanKind, SpanStatus, Track
from .model import Trace

__all__ = [
    "COLUMNS",
    "COLUMN_DOCS",
    "SPAN_DTYPE",
    "TRACE_VERSION",
    "SpanKind",
    "SpanStatus",
    "Trace",
    "Track",
]
