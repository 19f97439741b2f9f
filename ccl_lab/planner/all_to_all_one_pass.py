"""One-pass all_to_all and all_to_allv on shared memory: each rank takes its block from every input where it lies.

Invariants: out of place block r of every input is read by rank r alone. In place the two blocks of a pair change places: the lower rank
exchanges the first half of them, the higher one the second, and nobody else touches them.
"""

from __future__ import annotations

from ..ir import Builder
from .all_to_all_direct import received_pairs
from .mapped import Shares, end_reading, wait_for_all
from .problem import Problem
from .runs import everyone


def one_pass(problem: Problem) -> Builder:
    """n copies, no step waiting for another.

    Steps: 1. Bytes read from peers, per rank: n-1 blocks; in place half of them are read and the other half put, and n blocks of scratch
    hold what is on its way. Any n, one node.
    Source: the exchange of Kang et al., ICPP 2020, by reading; in place as MPI_Sendrecv_replace in MPI libraries, by halves.
    """
    n = problem.n
    channels = problem.slices(1, problem.block_bytes)
    at = Shares(*everyone(n, channels), channels, 1)
    if problem.in_place:
        return _exchange(problem, at)
    b = problem.builder("one_pass", channels=channels, parts=channels)
    for distance in range(n):
        peer = (at.rank + distance) % n
        b.copy(rank=at.rank, src=b.input[at.rank * b.parts + at.channel].at(peer), dst=b.output[peer * b.parts + at.channel],
               channel=at.channel)
    end_reading(b, at, n)
    return b


def _exchange(problem: Problem, at: Shares) -> Builder:
    n = problem.n
    b = problem.builder("one_pass", channels=at.channels, parts=2 * at.channels, scratch_blocks=n,
                        scratch_pairs=received_pairs(n) if problem.counts is not None else None)
    for distance in range(1, n):
        peer = (at.rank + distance) % n
        half = 2 * at.channel + (at.rank > peer)
        here, there = peer * b.parts + half, at.rank * b.parts + half
        b.copy(rank=at.rank, src=b.output[here], dst=b.scratch[here], channel=at.channel)
        b.copy(rank=at.rank, src=b.output[there].at(peer), dst=b.output[here], channel=at.channel)
        b.put(rank=at.rank, peer=peer, src=b.scratch[here], dst=b.output[there], channel=at.channel)
    wait_for_all(b, at, n)
    return b
