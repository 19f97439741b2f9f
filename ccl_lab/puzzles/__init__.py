"""Puzzles: write a schedule yourself; `check` proves it.

Is: the puzzles of labs/puzzles, each with show(), check(), hint(). Is not: graded or timed.

    from ccl_lab.puzzles import ring_all_gather
    ring_all_gather.show()
"""

from .model import Puzzle, Verdict
from .ring_all_gather import ring_all_gather

__all__ = ["Puzzle", "Verdict", "ring_all_gather"]
