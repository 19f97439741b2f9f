"""Who of the others says nothing while something is awaited of them: suspected long before a deadline passes.

Is: the count of rounds in which a rank was asked and said nothing, and who is to be told. Is not: a verdict (nobody is aborted
or left out for it), nor a thread: whoever waits calls `round` as it does. Invariants: rounds are counted, not seconds, so that
a process that stood still itself blames nobody; a rank is told to be silent once, and to be back once.

    each round    silent rounds + 1 of whom nothing was heard ──► enough of them: tell(rank, seconds)
                  ask all again                               ──► heard again:    tell(rank, 0)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

SILENT_S = 1.0  # silence after which a rank is suspected
ROUND_S = 0.25  # how often ranks are asked
MAX_ASKED = 5  # questions in a row to one that says nothing: what waits for it in its socket is bounded


class Suspicion:
    """Suspects those that are silent for `silent_s`, asked every `round_s`, in seconds.

    ask(rank) sends a question that any running process answers at once, whatever it does. tell(rank, seconds) is called on the
    thread of `round` when a rank has been silent for that long, and on the thread of `heard` (or `forget`), with 0 (or -1), when
    it is back (or was lost).
    Cost: a message to each rank and its answer per round, and none in a wait shorter than one.
    """

    def __init__(
        self, ask: Callable[[int], object], tell: Callable[[int, float], None], silent_s: float = SILENT_S, round_s: float = ROUND_S
    ) -> None:
        self._ask, self._tell, self._silent_s, self.round_s = ask, tell, silent_s, round_s
        self._lock = threading.Lock()
        self._heard: set[int] = set()
        self._rounds: dict[int, int] = {}
        self._suspected: set[int] = set()

    @property
    def silent(self) -> dict[int, float]:
        """{rank: seconds it has been silent for} of those that are suspected now."""
        with self._lock:
            return {rank: self._rounds.get(rank, 0) * self.round_s for rank in sorted(self._suspected)}

    def begin(self, ranks: Iterable[int]) -> None:
        """Something is awaited of `ranks` from now on: what they said, or did not, before does not count."""
        with self._lock:
            self._rounds = {rank: self._rounds.get(rank, 0) if rank in self._suspected else 0 for rank in ranks}
            self._heard = set(self._rounds) - self._suspected

    def heard(self, rank: int) -> None:
        """`rank` said something; any thread."""
        with self._lock:
            self._heard.add(rank)
            back = rank in self._suspected
            self._suspected.discard(rank)
        if back:
            self._tell(rank, 0.0)

    def round(self) -> None:
        """Called every `round_s` by who waits: counts who was silent since the last time, and asks all again."""
        with self._lock:
            self._rounds = {rank: 0 if rank in self._heard else n + 1 for rank, n in self._rounds.items()}
            self._heard = set()
            long = {rank: n * self.round_s for rank, n in self._rounds.items() if n * self.round_s >= self._silent_s}
            new = [rank for rank in long if rank not in self._suspected]
            self._suspected.update(new)
            asked = [rank for rank, n in self._rounds.items() if n < MAX_ASKED]
        for rank in new:
            self._tell(rank, long[rank])
        for rank in asked:
            self._ask(rank)

    def forget(self, rank: int) -> None:
        """It is known what became of `rank`: nothing is awaited of it any more."""
        with self._lock:
            self._rounds.pop(rank, None)
            known = rank in self._suspected
            self._suspected.discard(rank)
        if known:
            self._tell(rank, -1.0)


__all__ = ["ROUND_S", "SILENT_S", "Suspicion"]
