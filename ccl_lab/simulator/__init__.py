"""When a schedule's ops happen on modelled links: the same schedule the engine runs, the same Trace it makes.

Is: the exact tier (exact.py), which is also the written meaning of time, and the shared-link tier (sharing.py), where transfers of
several schedules share links at one time. Is not: the planner's closed forms.
"""

from .exact import Times, exact_times, simulate
from .sharing import Job, fair_rates, shared_times, simulate_jobs, simulate_shared

__all__ = ["Job", "Times", "exact_times", "fair_rates", "shared_times", "simulate", "simulate_jobs", "simulate_shared"]
