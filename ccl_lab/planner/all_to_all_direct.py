"""Direct all_to_all and all_to_allv: every rank writes every block straight to where it belongs.

Invariant: no two ranks of a round write to the same one (direct.py).
"""

from __future__ import annotations

import numpy as np

from ..ir import Builder, Cuts, Pairs
from .direct import cuts, rounds, steps
from .problem import Problem


def direct(problem: Problem) -> Builder:
    """All puts at once, in rounds of different receivers.

    Steps: n-1 rounds, none waiting for another; a timetable where NICs are shared unevenly (direct.py). Bytes sent per rank: n-1
    blocks. Out of place no scratch and no copy but the own block's; in place what arrives waits in scratch (n blocks) until the block
    it replaces has left.
    Source: NCCLX, arXiv 2510.20171 (AllToAllv); "spread out" of Kang et al., ICPP 2020.
    """
    channels = problem.slices(problem.nics_per_rank, problem.block_bytes)
    timetable = _cuts(problem, channels) is not None
    b, rank, channel = exchange_builder(problem, "direct", channels, timetable)
    order = list(steps(problem, True)) if timetable else range(problem.n - 1)
    for b.step, (to, _) in zip(order, rounds(problem, rank), strict=True):
        send(b, problem, rank, to, channel)
    keep_own(b, problem, rank, channel)
    for b.step, (_, source) in zip(order, rounds(problem, rank), strict=True):
        receive(b, problem, rank, source, channel)
    return b


def pairs(problem: Problem) -> Pairs | None:
    """What `direct` repeats; None where nodes differ in size, and of all_to_allv."""
    if problem.grid is None or problem.counts is not None:
        return None
    channels = problem.slices(problem.nics_per_rank, problem.block_bytes)
    return Pairs(problem.grid, channels, keeps=not problem.in_place, copies=problem.in_place, cuts=_cuts(problem, channels))


def _cuts(problem: Problem, channels: int) -> Cuts | None:
    return cuts(problem, channels, alone=not problem.in_place or channels == 1) if problem.counts is None else None


def exchange_builder(problem: Problem, algorithm: str, channels: int, timetable: bool = False) -> tuple[Builder, np.ndarray, np.ndarray]:
    """A Builder with one slice of every block per channel; and (rank, channel) of all rows."""
    n = problem.n
    blocks = n if problem.in_place else 0
    b = problem.builder(algorithm, channels=channels, parts=channels, scratch_blocks=blocks, timetable=timetable,
                        scratch_pairs=received_pairs(n) if problem.counts is not None and blocks else None)
    return b, np.tile(np.arange(n), channels), np.repeat(np.arange(channels), n)


def received_pairs(n: int) -> np.ndarray:
    """int32[n, n, 2]: scratch block s of rank r holds what s sent to r."""
    source, rank = np.broadcast_arrays(np.arange(n)[None, :], np.arange(n)[:, None])
    return np.stack([source, rank], axis=-1).astype(np.int32)


def send(b: Builder, problem: Problem, rank: np.ndarray, to: np.ndarray, channel: np.ndarray) -> None:
    """Block `to` of each rank goes to its place, or in place to scratch, since the block it replaces may not have left."""
    landing = b.scratch if problem.in_place else b.output
    b.put(rank=rank, peer=to, src=b.input[to * b.parts + channel], dst=landing[rank * b.parts + channel], channel=channel)


def receive(b: Builder, problem: Problem, rank: np.ndarray, source: np.ndarray, channel: np.ndarray) -> None:
    """What `source` sent is there; in place it now takes the place of what went to `source`."""
    b.wait(rank=rank, peer=source, channel=channel)
    if problem.in_place:
        b.flush(rank=rank, peer=source, channel=channel)
        b.copy(rank=rank, src=b.scratch[source * b.parts + channel], dst=b.output[source * b.parts + channel], channel=channel)


def keep_own(b: Builder, problem: Problem, rank: np.ndarray, channel: np.ndarray) -> None:
    """The block of a rank for itself."""
    own = rank * b.parts + channel
    b.copy(rank=rank, src=b.input[own], dst=b.output[own], channel=channel)
