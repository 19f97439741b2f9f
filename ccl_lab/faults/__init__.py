"""What goes wrong, when, and where: fault scripts as plain data.

Is: the noun `FaultScript`, its lines `FaultSpec`, and the table of kinds. Is not: an injector (engine.faults), nor aware of
any World. Invariants: values are frozen and canonical, so that equal scripts compare equal; times are whole nanoseconds;
text and JSON forms lose nothing.
"""

from .kinds import KINDS, POINTS, Kind
from .script import FaultScript
from .spec import FaultSpec

__all__ = ["KINDS", "POINTS", "FaultScript", "FaultSpec", "Kind"]
