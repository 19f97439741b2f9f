"""Computation and communication in one: partitions that leave, or are computed on, as they are ready (CommFuse and its rivals).

Is: schedules with compute ops (`plan`), their closed forms, the choice between them, and operators and layers over torch.
Is not: an executor: the engine runs them, the simulator times them. Invariant: importing it needs no torch.
"""

import importlib
from typing import Any

from ..errors import suggest
from .choose import Candidate, Choice, Timing, choose
from .closed_form import closed_form
from .operators import OPERATORS, SCHEDULES
from .partitions import Partition, durations, partitions
from .plan import plan

__all__ = [
    "OPERATORS",
    "SCHEDULES",
    "Candidate",
    "Choice",
    "Partition",
    "Timing",
    "choose",
    "closed_form",
    "durations",
    "partitions",
    "plan",
]

# Loaded when first used; most need torch: {name: module}.
WITH_TORCH = dict.fromkeys(("all_gather_matmul", "all_to_all_matmul", "matmul_all_to_all", "matmul_reduce_scatter"), "functions")
WITH_TORCH |= dict.fromkeys(("attention_all_to_all", "attention_projection", "heads_all_to_all"), "attention")
WITH_TORCH |= {"DataParallel": "data", "choices": "tune", "parallelize": "parallel", "sharded_linear": "sharded"}


def __getattr__(name: str) -> Any:
    if name not in WITH_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{suggest(name, [*WITH_TORCH, *__all__])}")
    return getattr(importlib.import_module(f".{WITH_TORCH[name]}", __name__), name)
