"""When a schedule's ops happen on modelled links: the same schedule the engine runs, the same Trace it makes.

Is: the exact tier (exact.py), which is also the written meaning of time; the same times for schedules that are not unrolled
(outlined.py); and the shared-link tier (sharing.py), where transfers of several schedules share links at one time. Is not: the planner's
closed forms.
"""

from .exact import Times, exact_times, simulate
from .outlined import finish_times, summarize
from .sharing import Job, fair_rates, link_bytes, shared_times, simulate_jobs, simulate_shared
from .summary import Summary

__all__ = ["Job", "Summary", "Times", "exact_times", "fair_rates", "finish_times", "link_bytes", "shared_times",
           "simulate", "simulate_jobs", "simulate_shared", "summarize"]  # fmt: skip
