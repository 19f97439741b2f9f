"""The names of overlap: operators, schedules, and where results are added.

Is: a table. Is not: any schedule.
"""

from __future__ import annotations

from typing import NamedTuple

from ..arguments import named

SCHEDULES = ("sequential", "k_slice", "ring", "direct", "auto")
ADDS = ("separate", "early", "fused")


class Operator(NamedTuple):
    """`collective` moves what is computed on (`gathers`) or what is computed; `adds`: results are summed; `by`: ways to decompose."""

    collective: str
    gathers: bool
    adds: bool
    by: tuple[str, ...]


OPERATORS = {
    "all_gather_matmul": Operator("all_gather", True, False, ("ring", "direct")),
    "matmul_reduce_scatter": Operator("reduce_scatter", False, True, ("ring", "direct")),
    "matmul_all_to_all": Operator("all_to_all", False, False, ("direct",)),
    "all_to_all_matmul": Operator("all_to_all", True, False, ("direct",)),
    "attention_projection": Operator("reduce_scatter", False, True, ("ring", "direct")),
}


def operator_of(name: str) -> Operator:
    """What an operator is; UsageError for an unknown name."""
    return OPERATORS[named(name, "overlap operator", OPERATORS)]
