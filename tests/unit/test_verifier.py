"""Each way a schedule can be wrong, written by hand: the right error, with op, rank, chunks and advice in its message."""

from __future__ import annotations

import numpy as np
import pytest

from ccl_lab import Topology
from ccl_lab.errors import BoundsError, ContributionError, DeadlockError, RaceError, ScheduleError
from ccl_lab.ir import Builder, OpTable, Schedule
from ccl_lab.verifier import Proof, Verifier, verify


def ring_all_gather(n: int = 3, **options) -> Schedule:
    r = np.arange(n)
    b = Builder("all_gather", n, algorithm="my_ring", **options)
    b.copy(rank=r, src=b.input[0], dst=b.output[r])
    for step in range(n - 1):
        b.step = step
        b.put(rank=r, peer=(r + 1) % n, src=b.output[(r - step) % n], dst=b.output[(r - step) % n])
        b.wait(rank=r, peer=(r - 1) % n)
    return b.build()


def altered(schedule: Schedule, op_id: int, **cells: int) -> Schedule:
    columns = {name: column.copy() for name, column in schedule.ops.columns().items()}
    for name, value in cells.items():
        columns[name][schedule.ops.src_begin[op_id] if name in ("src_rank", "src_buf", "src_chunk") else op_id] = value
    return schedule.replace(ops=OpTable(**columns))


def rejected(schedule: Schedule, error: type[ScheduleError], *words: str, op_id: int | None = None) -> None:
    with pytest.raises(error) as found:
        verify(schedule)
    assert found.type is error
    for word in words:
        assert word in str(found.value), f"{word!r} not in {found.value}"
    if op_id is not None:
        assert found.value.op_id == op_id
        assert found.value.rank == schedule.ops[op_id].rank
        assert schedule.describe(op_id) in str(found.value)


class TestProof:
    def test_says_what_was_proved(self) -> None:
        schedule = ring_all_gather(3)
        proof = verify(schedule)
        assert isinstance(proof, Proof)
        assert (proof.digest, proof.n_ops, proof.n_signals, proof.n_output_chunks) == (schedule.digest, 15, 6, 9)
        assert "3 ranks is correct: 15 ops end" in str(proof)
        assert proof.digest[:12] in repr(proof)
        with pytest.raises(AttributeError):
            proof.n_ops = 0  # type: ignore[misc]

    def test_is_kept_with_the_schedule(self) -> None:
        schedule = ring_all_gather(3)
        assert verify(schedule) is verify(schedule)
        assert verify(schedule.replace(reasons=("other",))) == verify(schedule)

    def test_verifier_knows_digests_and_forgets_the_oldest(self) -> None:
        verifier = Verifier(size=2)
        first = verifier.verify(ring_all_gather(2))
        assert verifier.verify(ring_all_gather(2)) is first
        verifier.verify(ring_all_gather(3))
        verifier.verify(ring_all_gather(4))
        assert len(verifier) == 2
        assert verifier.verify(ring_all_gather(2)) is not first

    def test_a_bad_schedule_is_not_kept(self) -> None:
        verifier = Verifier()
        bad = altered(ring_all_gather(3), 3, sig_channel=-1)
        for _ in range(2):
            with pytest.raises(DeadlockError):
                verifier.verify(bad)
        assert len(verifier) == 0

    def test_one_rank_and_no_ops(self) -> None:
        assert verify(Builder("barrier", 1, algorithm="none").build()).n_ops == 0
        assert verify(Builder("all_reduce", 1, algorithm="none", in_place=True).build()).n_output_chunks == 1


class TestBounds:
    """Ops of ring_all_gather(3): 0-2 copy, 3-5 put, 6-8 wait, 9-11 put, 12-14 wait."""

    @pytest.mark.parametrize(
        ("op_id", "cells", "words"),
        [
            (3, {"rank": 3}, ["this rank does not exist", "0 to 2"]),
            (3, {"rank": -1}, ["this rank does not exist"]),
            (3, {"channel": 1}, ["this channel does not exist", "channels="]),
            (3, {"peer": 3}, ["the peer does not exist"]),
            (3, {"peer": 0}, ["the peer is this rank itself", "use copy"]),
            (3, {"dst_chunk": 3}, ["destination chunks [3, 4) of output at rank 1", "its 3 chunks"]),
            (3, {"dst_chunk": -1}, ["destination chunks [-1, 0)"]),
            (3, {"dst_chunk": 2**31 - 1}, ["destination chunks"]),
            (3, {"n_chunks": 4}, ["lie outside"]),
            (3, {"n_chunks": 0}, ["moves no chunk"]),
            (3, {"dst_buf": 0}, ["writes input, which is read-only"]),
            (3, {"dst_buf": 2}, ["of scratch at rank 1 lie outside its 0 chunks"]),
            (3, {"dst_buf": 9}, ["buffer 9, which does not exist"]),
            (3, {"sig_channel": -2}, ["signal channel"]),
            (3, {"src_chunk": 3}, ["source chunks [3, 4) of output at rank 0"]),
            (3, {"src_rank": 1}, ["a source is at rank 1"]),
            (3, {"src_count": 0}, ["exactly one source"]),
            (6, {"value": 0}, ["waits for no signal"]),
            (6, {"sig_channel": -1}, ["signal channel"]),
            (6, {"peer": -1}, ["the peer does not exist"]),
        ],
    )  # fmt: skip
    def test_names_op_rank_and_range(self, op_id: int, cells: dict[str, int], words: list[str]) -> None:
        rejected(altered(ring_all_gather(3), op_id, **cells), BoundsError, *words, op_id=op_id)

    def test_parts_of_different_length(self) -> None:
        b = Builder("all_reduce", 1, algorithm="shifted", parts=2)
        b.copy(rank=0, src=b.input[0], dst=b.output[1])
        rejected(b.build(), BoundsError, "part 0 of its block", "part 1", op_id=0)

    def test_blocks_of_different_length(self) -> None:
        b = Builder("all_to_allv", 2, algorithm="crossed")
        b.copy(rank=np.arange(2), src=b.input[0], dst=b.output[0])
        rejected(b.build(), BoundsError, "rank 1 sends to rank 0", "differ in length", op_id=1)

    def test_a_foreign_file_cannot_ask_for_all_memory(self) -> None:
        huge = Builder("all_gather", 1 << 20, algorithm="x").build()
        rejected(huge, BoundsError, "1048576 ranks", "what a proof can hold")
        rejected(Builder("barrier", 2, algorithm="x", parts=2**31 - 1, scratch_blocks=2**31 - 1).build(), BoundsError, "fewer parts")

    def test_scratch_pairs_are_needed(self) -> None:
        b = Builder("all_to_allv", 2, algorithm="x", scratch_blocks=1)
        rejected(b.build(), BoundsError, "scratch_pairs")

    def test_partial_overlap(self) -> None:
        b = Builder("all_gather", 4, algorithm="overlap")
        b.copy(rank=0, src=b.output[0:2], dst=b.output[1:3])
        rejected(b.build(), BoundsError, "overlap partly", op_id=0)

    def test_peer_memory_needs_one_node(self) -> None:
        n, r = 2, np.arange(2)
        b = Builder("all_gather", n, algorithm="direct")
        b.copy(rank=r, src=b.input[0], dst=b.output[r])
        b.copy(rank=r, src=b.input[0].at(1 - r), dst=b.output[1 - r])
        b.signal(rank=r, peer=1 - r)
        b.wait(rank=r, peer=1 - r)
        schedule = b.build()
        near = Topology.cluster(nodes=1, gpus_per_node=2, nics_per_node=1)
        assert verify(schedule, topology=near).peer_reads == {(0, 1), (1, 0)}
        far = Topology.cluster(nodes=2, gpus_per_node=1, nics_per_node=1)
        with pytest.raises(BoundsError, match="rank 1 is on node 1, this rank on node 0.*use put or get") as found:
            verify(schedule, topology=far)
        assert found.value.op_id == 2
        with pytest.raises(BoundsError, match="2 ranks, the topology has 4"):
            verify(schedule, topology=Topology.cluster(nodes=2, gpus_per_node=2, nics_per_node=1))


class TestContributions:
    def test_missing_rank(self) -> None:
        b = Builder("all_reduce", 1, algorithm="nothing")
        rejected(b.build(), ContributionError, "output[0] of rank 0 holds bytes that nobody wrote", "No op writes it")

    def test_wrong_block(self) -> None:
        b = Builder("all_to_all", 2, algorithm="confused")
        r = np.arange(2)
        b.copy(rank=r, src=b.input[r], dst=b.output[r])
        b.put(rank=r, peer=1 - r, src=b.input[r], dst=b.output[r])
        b.wait(rank=r, peer=1 - r)
        words = "output[1] of rank 0 holds input block 1 of rank 1", "expected input block 0 of rank 1", "Last written by op 3"
        rejected(b.build(), ContributionError, *words)

    def test_counted_twice(self) -> None:
        b = Builder("all_reduce", 1, algorithm="twice")
        b.reduce(rank=0, dst=b.output[0], srcs=[b.input[0], b.input[0]])
        rejected(b.build(), ContributionError, "adds the contribution of rank 0 twice", op_id=0)

    def test_missing_ranks_are_named(self) -> None:
        b = Builder("reduce", 3, algorithm="short", scratch_blocks=2)
        b.put(rank=[1, 2], peer=0, src=b.input[0], dst=b.scratch[[0, 1]])
        b.wait(rank=0, peer=1)
        b.wait(rank=0, peer=2)
        b.reduce(rank=0, dst=b.output[0], srcs=[b.input[0], b.scratch[0]])
        rejected(b.build(), ContributionError, "holds input block 0 of ranks 0, 1", "rank 2 missing", "Last written by op 4")

    def test_mixed_blocks(self) -> None:
        b = Builder("reduce_scatter", 1, algorithm="mixed", parts=1)
        b = Builder("all_to_all", 2, algorithm="mixed")
        b.reduce(rank=0, dst=b.output[0], srcs=[b.input[0], b.input[1]])
        rejected(b.build(), ContributionError, "input blocks 0 and 1", "different results", op_id=0)

    def test_in_place_input_is_overwritten(self) -> None:
        b = Builder("all_to_all", 2, algorithm="greedy", in_place=True)
        r = np.arange(2)
        b.put(rank=r, peer=1 - r, src=b.input[1 - r], dst=b.output[r])
        b.wait(rank=r, peer=1 - r)
        rejected(b.build(), RaceError, "reads output[0] of rank 1", "may still write it", op_id=1)

    def test_barrier_needs_everyone(self) -> None:
        b = Builder("barrier", 3, algorithm="half")
        b.signal(rank=[0, 1], peer=[1, 0])
        b.wait(rank=[0, 1], peer=[1, 0])
        rejected(b.build(), ContributionError, "may leave before rank 2 has entered")


class TestRaces:
    def test_read_before_the_bytes_are_there(self) -> None:
        schedule = ring_all_gather(3)
        late = altered(schedule, 6, kind=7, sig_channel=-1, value=0)  # the first wait becomes a compute: the forward reads too early
        rejected(late, RaceError, "reads output[2] of rank 0", "may still write it", "wait at rank 0 for the signal", op_id=9)

    def test_source_changed_before_it_left(self) -> None:
        b = Builder("all_gather", 2, algorithm="hasty", scratch_blocks=1)
        r = np.arange(2)
        b.copy(rank=r, src=b.input[0], dst=b.scratch[0])
        b.put(rank=r, peer=1 - r, src=b.scratch[0], dst=b.output[r])
        b.copy(rank=r, src=b.input[0], dst=b.scratch[0])
        b.copy(rank=r, src=b.input[0], dst=b.output[r])
        b.wait(rank=r, peer=1 - r)
        rejected(b.build(), RaceError, "writes scratch[0] of rank 0", "may still read it", "flush rank 1 on channel 0", op_id=4)

    def test_flush_or_word_of_the_receiver_frees_the_source(self) -> None:
        for way in ("flush", "word"):
            b = Builder("all_gather", 2, algorithm="patient", scratch_blocks=1)
            r = np.arange(2)
            b.copy(rank=r, src=b.input[0], dst=b.scratch[0])
            b.put(rank=r, peer=1 - r, src=b.scratch[0], dst=b.output[r])
            if way == "flush":
                b.flush(rank=r, peer=1 - r)
            else:
                b.wait(rank=r, peer=1 - r)
                b.signal(rank=r, peer=1 - r)
                b.wait(rank=r, peer=1 - r)
            b.copy(rank=r, src=b.input[0], dst=b.scratch[0])
            b.copy(rank=r, src=b.input[0], dst=b.output[r])
            if way == "flush":
                b.wait(rank=r, peer=1 - r)
            verify(b.build())

    def test_flush_of_another_peer_does_not_help(self) -> None:
        b = Builder("broadcast", 3, algorithm="x", scratch_blocks=1)
        b.copy(rank=0, src=b.input[0], dst=b.scratch[0])
        b.put(rank=0, peer=1, src=b.scratch[0], dst=b.output[0])
        b.flush(rank=0, peer=2)
        b.copy(rank=0, src=b.input[0], dst=b.scratch[0])
        rejected(
            altered(b.build(), 1, sig_channel=-1), RaceError, "may still read it", op_id=3
        )

    def test_two_channels_of_one_rank(self) -> None:
        b = Builder("all_reduce", 1, algorithm="unordered", channels=2)
        b.copy(rank=0, src=b.input[0], dst=b.output[0], channel=0)
        b.copy(rank=0, src=b.input[0], dst=b.output[0], channel=1)
        rejected(b.build(), RaceError, "output[0] of rank 0", "a signal that rank 0 raises", op_id=1)
        b = Builder("all_reduce", 1, algorithm="ordered", channels=2)
        b.copy(rank=0, src=b.input[0], dst=b.output[0], channel=0)
        b.signal(rank=0, peer=0, channel=0, sig_channel=1)
        b.wait(rank=0, peer=0, channel=1, sig_channel=1)
        b.copy(rank=0, src=b.input[0], dst=b.output[0], channel=1)
        verify(b.build())

    def test_unsignalled_put_is_covered_by_the_next_signal_of_its_channel(self) -> None:
        for channel in (0, 1):
            b = Builder("broadcast", 2, algorithm="quiet", channels=2)
            b.copy(rank=0, src=b.input[0], dst=b.output[0])
            b.put(rank=0, peer=1, src=b.input[0], dst=b.output[0], signal=False)
            b.signal(rank=0, peer=1, channel=channel)
            b.wait(rank=1, peer=0, channel=channel)
            if channel == 0:
                verify(b.build())
            else:
                rejected(b.build(), RaceError, "writes the memory of rank 1, which may have ended by then", op_id=1)

    def test_peer_reads_after_the_end(self) -> None:
        b = Builder("all_gather", 2, algorithm="late")
        r = np.arange(2)
        b.copy(rank=r, src=b.input[0], dst=b.output[r])
        b.get(rank=r, peer=1 - r, src=b.input[0], dst=b.output[1 - r])
        rejected(b.build(), RaceError, "reads the memory of rank 1, which may have ended", "let rank 1 wait", op_id=2)

    def test_signal_that_nobody_awaits(self) -> None:
        b = Builder("barrier", 2, algorithm="extra")
        r = np.arange(2)
        b.signal(rank=r, peer=1 - r)
        b.signal(rank=0, peer=1)
        b.wait(rank=r, peer=1 - r)
        rejected(b.build(), RaceError, "never waits for this signal (2 raised, 1 awaited)", op_id=2)

    def test_counter_of_two_channels(self) -> None:
        """A wait for both is fine; a wait for one of two does not say which."""
        for both in (True, False):
            b = Builder("all_reduce", 1, algorithm="join", channels=3, parts=2)
            b.copy(rank=0, src=b.input[0], dst=b.output[0], channel=0)
            b.signal(rank=0, peer=0, channel=0, sig_channel=2)
            b.copy(rank=0, src=b.input[1], dst=b.output[1], channel=1)
            b.signal(rank=0, peer=0, channel=1, sig_channel=2)
            b.wait(rank=0, peer=0, channel=2, count=2 if both else 1)
            b.copy(rank=0, src=b.input[0], dst=b.output[0], channel=2)
            if not both:
                b.wait(rank=0, peer=0, channel=2)
            b.copy(rank=0, src=b.input[1], dst=b.output[1], channel=2)
            if both:
                verify(b.build())
            else:
                rejected(b.build(), RaceError, "output[0] of rank 0")

    def test_signal_that_could_be_taken_for_another(self) -> None:
        b = Builder("all_reduce", 1, algorithm="mistaken", channels=3)
        b.signal(rank=0, peer=0, channel=0, sig_channel=2)
        b.wait(rank=0, peer=0, channel=2)
        b.signal(rank=0, peer=0, channel=2, sig_channel=1)
        b.wait(rank=0, peer=0, channel=1, sig_channel=1)
        b.signal(rank=0, peer=0, channel=1, sig_channel=2)
        b.wait(rank=0, peer=0, channel=2)
        b.copy(rank=0, src=b.input[0], dst=b.output[0], channel=2)
        verify(b.build())


class TestDeadlock:
    def test_nobody_raises_the_signal(self) -> None:
        rejected(
            altered(ring_all_gather(3), 3, sig_channel=-1),
            DeadlockError, "can never run", "rank 0 raises only 1 of 2 signals on channel 0 to rank 1", op_id=13,
        )  # fmt: skip

    def test_circle_names_who_waits_for_whom(self) -> None:
        b = Builder("barrier", 3, algorithm="circle")
        r = np.arange(3)
        b.wait(rank=r, peer=(r - 1) % 3)
        b.signal(rank=r, peer=(r + 1) % 3)
        rejected(
            b.build(), DeadlockError, "3 channels wait in a circle", "which comes from rank 2 channel 0 after its op 2",
            "before it waits", op_id=0,
        )  # fmt: skip

    def test_long_circle_is_cut(self) -> None:
        n, r = 12, np.arange(12)
        b = Builder("barrier", n, algorithm="circle")
        b.wait(rank=r, peer=(r - 1) % n)
        b.signal(rank=r, peer=(r + 1) % n)
        rejected(b.build(), DeadlockError, "12 channels wait in a circle", "4 more")

    def test_own_channel(self) -> None:
        b = Builder("barrier", 1, algorithm="self")
        b.wait(rank=0, peer=0)
        b.signal(rank=0, peer=0)
        rejected(b.build(), DeadlockError, "1 channel waits in a circle", op_id=0)
