"""The gate: `verify(schedule)` returns a Proof or raises the error that names the op.

Is: the order of the checks and the cache of proofs. Is not: a check itself (bounds, deadlock, races, contributions).
Invariants: a Proof exists only for a schedule that passed every check; it is found again by the digest of the schedule,
so proving twice is free; a topology is compared on every call, since the digest does not know it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from ..arguments import instance
from ..ir import Schedule
from ..topo import Topology
from .bounds import check_bounds, check_reach, peer_reads
from .contributions import check_contributions
from .deadlock import run_order
from .program import Program
from .races import check_races


@dataclass(frozen=True)
class Proof:
    """What was proved of the schedule with `digest`, in numbers.

    `n_ranges`: chunk ranges found inside their buffers. `n_output_chunks`: output chunks that hold exactly what they
    must. `n_ordered`: pairs of accesses to the same memory that are ordered. `n_signals`: signals raised, each one
    waited for. `peer_reads`: (rank, peer) pairs in which `rank` reads the peer's memory with a copy or a reduce; those
    must be on one node.
    """

    digest: str
    collective: str
    algorithm: str
    n_ranks: int
    n_ops: int
    n_ranges: int
    n_output_chunks: int
    n_ordered: int
    n_signals: int
    peer_reads: frozenset[tuple[int, int]]

    def __str__(self) -> str:
        reads = f"; {len(self.peer_reads)} pairs of ranks read each other's memory" if self.peer_reads else ""
        return (
            f"{self.collective} {self.algorithm} among {self.n_ranks} ranks is correct: {self.n_ops:,} ops end, "
            f"{self.n_ranges:,} ranges are in bounds, {self.n_output_chunks:,} output chunks hold what they must, "
            f"{self.n_ordered:,} pairs of accesses are ordered, {self.n_signals:,} signals are waited for{reads}"
        )

    def __repr__(self) -> str:
        return f"<Proof {self.digest[:12]}: {self}>"

    def _repr_html_(self) -> str:
        from html import escape

        return f"<p>Proof {self.digest[:12]}: {escape(str(self))}.</p>"


def verify(schedule: Schedule, *, topology: Topology | None = None) -> Proof:
    """Proves `schedule` for every message size, or raises.

    `topology`: also checks that peer memory is read inside a node only. The proof stays with the schedule object, so
    calling again is free. Raises BoundsError, DeadlockError, RaceError or ContributionError, each naming op, rank and
    chunk range, with `op_id` and `rank` set. Cost: about 10 microseconds and (ranks * channels) * 4 bytes per op.
    """
    proof = instance(schedule, "schedule", Schedule, "a Schedule, as plan and Builder.build make them").__dict__.get("_proof")
    if topology is not None:
        instance(topology, "topology", Topology, "a Topology")
    if proof is None:
        proof = prove(schedule)
        object.__setattr__(schedule, "_proof", proof)
    if topology is not None:
        check_reach(schedule, topology)
    return proof


class Verifier:
    """Proofs of the last `size` schedules by digest, for callers that decode or plan the same schedule again."""

    def __init__(self, size: int = 256) -> None:
        self.size = size
        self._proofs: OrderedDict[str, Proof] = OrderedDict()

    def verify(self, schedule: Schedule, *, topology: Topology | None = None) -> Proof:
        """As `verify`; a schedule with a known digest is not proved again."""
        known = self._proofs.get(schedule.digest)
        if known is not None and "_proof" not in schedule.__dict__:
            object.__setattr__(schedule, "_proof", known)
        proof = verify(schedule, topology=topology)
        self._proofs[proof.digest] = proof
        self._proofs.move_to_end(proof.digest)
        if len(self._proofs) > self.size:
            self._proofs.popitem(last=False)
        return proof

    def __len__(self) -> int:
        return len(self._proofs)


def prove(schedule: Schedule) -> Proof:
    """Runs every check, without any cache."""
    n_ranges = check_bounds(schedule)
    program = Program(schedule)
    order = run_order(program)
    n_ordered = check_races(program, order)
    n_output_chunks = check_contributions(program, order)
    return Proof(
        digest=schedule.digest,
        collective=schedule.collective,
        algorithm=schedule.algorithm,
        n_ranks=int(schedule.n_ranks),
        n_ops=len(schedule.ops),
        n_ranges=n_ranges,
        n_output_chunks=n_output_chunks,
        n_ordered=n_ordered,
        n_signals=program.n_signals,
        peer_reads=peer_reads(schedule),
    )
