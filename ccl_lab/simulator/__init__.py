"""When a schedule's ops happen on modelled links: the same schedule the engine runs, the same Trace it makes.

Is: the exact tier (exact.py), which is also the written meaning of time. Is not: the planner's closed forms, nor a model of links
that several transfers share at one time.
"""

from .exact import Times, exact_times, simulate

__all__ = ["Times", "exact_times", "simulate"]
