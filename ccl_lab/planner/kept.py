"""What planners find of a topology, kept while it is asked for again: `lru_cache` whose size is counted in ranks; and of a problem.

Is: decorators. Is not: a store that anybody can rely on. Invariant: an entry keeps its topology alive, so as many ranks are kept as four
topologies of 131,072 have, or the last entry alone; a slider that tries a thousand faults on them does not fill memory.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

from ..topo import Topology
from .problem import Problem

MOST_RANKS = 1 << 19

Found = TypeVar("Found")


def kept_by_topology(most: int) -> Callable[[Callable[..., Found]], Callable[..., Found]]:
    """Keeps what a function of a topology (its first argument) returned for the last `most` arguments, fewer where topologies are large.

    Arguments are hashable and given by position. Cost: a hash of the topology, found once for each of them.
    """

    def decorate(of: Callable[..., Found]) -> Callable[..., Found]:
        kept: OrderedDict[tuple[Any, ...], Found] = OrderedDict()
        lock = threading.Lock()

        @functools.wraps(of)
        def found(topology: Topology, *more: Any) -> Found:
            key = (topology, *more)
            with lock:
                if key in kept:
                    kept.move_to_end(key)
                    return kept[key]
            value = of(topology, *more)
            with lock:
                kept[key] = value
                ranks = sum(each[0].n_ranks for each in kept)
                while len(kept) > most or (ranks > MOST_RANKS and len(kept) > 1):
                    (oldest, *_), _ = kept.popitem(last=False)
                    ranks -= oldest.n_ranks
            return value

        return found

    return decorate


def kept_with_problem(of: Callable[[Problem], Found]) -> Callable[[Problem], Found]:
    """Keeps what a function found of a problem as long as there is the problem: its cost, its ops and its reasons all ask for it."""
    name = f"_{of.__module__}.{of.__name__}"

    @functools.wraps(of)
    def found(problem: Problem) -> Found:
        kept: dict[str, Found] = problem.__dict__
        if name not in kept:
            kept[name] = of(problem)
        return kept[name]

    return found
