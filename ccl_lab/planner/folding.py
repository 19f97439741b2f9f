"""Ranks beyond a power of two: rank core + e folds what it has into rank e first, and gets the result at the end.

Is: the end of it, which is the same in all algorithms that fold. Is not: what is folded where, which differs.
"""

from __future__ import annotations

from ..ir import Builder, Ref
from .runs import everyone


def put_result(b: Builder, core: int, extra: int, result: Ref, step: int) -> None:
    """Each of the first `extra` ranks puts the result to the one that folded into it, which waits for it unless it does already."""
    rank, channel = everyone(extra, b.channels)
    b.step = step
    b.put(rank=rank, peer=rank + core, src=result, dst=result, channel=channel)
    if not b.early_waits:
        wait_for_result(b, core, extra, step)


def wait_for_result(b: Builder, core: int, extra: int, step: int) -> None:
    """Ranks that folded have nothing else to do: where waits are told early (`Builder.early_waits`), as soon as they have put."""
    rank, channel = everyone(extra, b.channels)
    b.step = step
    b.wait(rank=rank + core, peer=rank, channel=channel)
