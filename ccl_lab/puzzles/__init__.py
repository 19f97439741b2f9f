"""Puzzles: write a schedule yourself; `check` proves it.

Is: the puzzles of labs/puzzles, each with show(), check(), hint(). Is not: graded or timed.

    from ccl_lab.puzzles import ring_all_gather
    ring_all_gather.show()
"""

from .late_rank import TracePuzzle, late_rank
from .model import Puzzle, Verdict
from .no_tail import OrderPuzzle, no_tail
from .ring_all_gather import ring_all_gather

__all__ = ["OrderPuzzle", "Puzzle", "TracePuzzle", "Verdict", "late_rank", "no_tail", "ring_all_gather"]
