"""Compute ops with operands: builder, text, interpreter, and what the verifier says of wrong ones."""

from __future__ import annotations

import numpy as np
import pytest

from ccl_lab.errors import BoundsError, CclError, ContributionError, RaceError, UsageError
from ccl_lab.ir import Builder, OpTable, Schedule, interpret
from ccl_lab.overlap import plan
from ccl_lab.verifier import verify


def taken(schedule: Schedule, rows: list[int], **changes: np.ndarray) -> Schedule:
    """The rows of the op table in the order given."""
    columns = dict(schedule.ops.columns()) | changes
    source = ("src_rank", "src_buf", "src_chunk")
    return schedule.replace(ops=OpTable(**{n: c if n in source else c[rows] for n, c in columns.items()}))


def changed(schedule: Schedule, column: str, row: int, value: int) -> Schedule:
    cells = schedule.ops.columns()[column].copy()
    cells[row] = value
    return schedule.replace(ops=OpTable(**{**schedule.ops.columns(), column: cells}))


def op_of(schedule: Schedule, start: str, rank: int = 0) -> int:
    found = [i for i in range(len(schedule)) if f"(rank {rank}," in schedule.describe(i) and f": {start}" in schedule.describe(i)]
    return found[0]


def refused(schedule: Schedule, error: type[CclError], *words: str) -> CclError:
    with pytest.raises(error) as caught:
        verify(schedule)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    return caught.value


def pair() -> Schedule:
    """Two ranks: each makes the other's block, puts it, makes its own and adds what came."""
    r = np.arange(2)
    b = Builder("reduce_scatter", 2, algorithm="pair", channels=2, scratch_blocks=1)
    b.compute(rank=r, arg=1 - r, produces=b.input[1 - r])
    b.put(rank=r, peer=1 - r, src=b.input[1 - r], dst=b.scratch[0])
    b.wait(rank=r, peer=1 - r)
    b.compute(rank=r, arg=r, produces=b.input[r], adds=[b.scratch[0]], dst=b.output[0])
    return b.build()


class TestBuilder:
    def test_cells(self) -> None:
        op = pair().ops[6]
        assert (op.value, op.n_chunks, op.sources, op.dst_buf) == (1, 1, ((0, 0, 0), (0, 2, 0)), 1)

    def test_arguments_that_do_not_go_together(self) -> None:
        b = Builder("all_gather", 2, algorithm="x", channels=2)
        for words, arguments in (("need produces", {"adds": [b.scratch[0]]}), ("need produces", {"dst": b.output[0]}),
                                 ("not with reads", {"produces": b.input[0], "reads": [b.output[0]]}),
                                 ("names INPUT", {"produces": b.output[0]}),
                                 ("as many in each", {"reads": [b.output[0:2], b.output[0]]})):  # fmt: skip
            with pytest.raises(UsageError, match=words):
                b.compute(rank=0, arg=0, **arguments)  # type: ignore[arg-type]


class TestText:
    def test_every_form(self) -> None:
        b = Builder("reduce_scatter", 4, algorithm="x", parts=2, scratch_blocks=2)
        b.compute(rank=0, arg=3)
        b.compute(rank=0, arg=2, reads=[b.output[1]])
        b.compute(rank=0, arg=2, reads=[b.output[0:2], b.scratch[2:4]])
        b.compute(rank=0, arg=3, produces=b.input[3])
        b.compute(rank=0, arg=3, produces=b.input[0:2], adds=[b.scratch[0:2], b.scratch[2:4]], dst=b.output[0:2])
        schedule = b.build()
        said = [schedule.describe(i).split(": ")[1] for i in range(5)]
        assert said == ["compute partition 3", "compute partition 2 output[1]", "compute partition 2 output[0:2], scratch[2:4]",
                        "compute partition 3 input[3] -> input[3]",
                        "compute partition 3 input[0:2] + scratch[0:2] + scratch[2:4] -> output[0:2]"]  # fmt: skip
        assert Schedule.from_text(schedule.text()) == schedule
        assert Schedule.decode(schedule.encode()) == schedule


class TestInterpret:
    def test_what_is_made_comes_from_the_inputs(self) -> None:
        inputs = [np.array([1, 2, 3, 4]), np.array([10, 20, 30, 40])]
        assert [out.tolist() for out in interpret(pair(), inputs)] == [[11, 22], [33, 44]]

    def test_a_function_makes_it_and_adds(self) -> None:
        calls = []

        def compute(rank: int, partition: int, target: np.ndarray | None, sources: tuple[np.ndarray, ...]) -> None:
            calls.append((rank, partition, len(sources)))
            assert target is not None
            target[:] = 100 * rank + partition + sum(sources)

        outputs = interpret(pair(), [np.zeros(4, np.int64)] * 2, compute=compute)
        assert [out.tolist() for out in outputs] == [[100, 100], [102, 102]]
        assert sorted(calls) == [(0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 1, 1)]

    def test_a_reader_gets_what_arrived(self) -> None:
        seen = {}

        def compute(rank: int, partition: int, target: np.ndarray | None, sources: tuple[np.ndarray, ...]) -> None:
            assert target is None
            seen[rank, partition] = sources[0].tolist()

        interpret(plan("all_gather_matmul", "ring", 3), [np.array([r, r + 0.5]) for r in range(3)], compute=compute)
        assert seen == {(r, p): [p, p + 0.5] for r in range(3) for p in range(3)}

    def test_input_is_empty_until_it_is_made(self) -> None:
        schedule = pair()
        early = taken(schedule, [2, 3, 0, 1, 4, 5, 6, 7])  # the put before the compute
        assert interpret(early, [np.ones(4)] * 2)[0].tolist() == [1, 1]


class TestBounds:
    def test_well_formed(self) -> None:
        schedule = plan("matmul_reduce_scatter", "ring", 3, in_place=False)
        make = op_of(schedule, "compute")
        refused(changed(schedule, "value", make, 2), BoundsError, "expected value 0")
        refused(changed(schedule, "arg", make, -1), BoundsError, "partition of 0 or more")
        refused(changed(schedule, "dst_chunk", make, 0), BoundsError, "writes input", "the chunk it makes")
        refused(changed(schedule, "n_chunks", make, 0), BoundsError, "works on no chunk")
        refused(changed(schedule, "n_chunks", make, 3), BoundsError, "lie outside")
        first = int(schedule.ops.src_begin[make])
        refused(changed(schedule, "src_buf", first, 2), BoundsError, "makes what is no input")
        refused(changed(schedule, "src_rank", first, 1), BoundsError, "put, compute: this rank")

    def test_reads_have_no_destination_to_fit(self) -> None:
        schedule = plan("all_gather_matmul", "direct", 4, sub_slices=3)
        assert verify(schedule).n_output_chunks == 48


class TestContributions:
    def test_read_before_it_is_made(self) -> None:
        b = Builder("reduce_scatter", 1, algorithm="x")
        b.reduce(rank=0, dst=b.output[0], srcs=[b.input[0]])
        b.compute(rank=0, arg=0, produces=b.input[0])
        error = refused(b.build(), ContributionError, "op 0", "reads input[0]", "before op 1", "has made it")
        assert error.op_id == 0

    def test_sent_before_it_is_made(self) -> None:
        early = taken(pair(), [2, 3, 0, 1, 4, 5, 6, 7])
        refused(early, RaceError, "compute partition 1 input[1]", "put input[1]")

    def test_nobody_makes_it(self) -> None:
        refused(taken(pair(), [1, 2, 3, 4, 5, 6, 7]), ContributionError, "rank 0 never computes partition 1")
        schedule = taken(pair(), [2, 3, 4, 5, 6, 7])
        refused(schedule, ContributionError, "never computes partition")

    def test_nobody_makes_what_a_rank_sends(self) -> None:
        schedule = changed(pair(), "src_chunk", 0, 0)
        columns = {**schedule.ops.columns()}
        columns["dst_chunk"] = columns["dst_chunk"].copy()
        columns["dst_chunk"][0] = 0
        refused(schedule.replace(ops=OpTable(**columns)), ContributionError, "makes input[0] of rank 0 again")

    def test_made_twice(self) -> None:
        refused(taken(pair(), [0, 0, 1, 2, 3, 4, 5, 6, 7]), ContributionError, "computes partition 1 twice")

    def test_added_twice(self) -> None:
        schedule = plan("matmul_reduce_scatter", "direct", 3, adds="fused")
        final = [i for i in range(len(schedule)) if "scratch[1]" in schedule.describe(i) and "compute" in schedule.describe(i)][0]
        last = int(schedule.ops.src_begin[final] + 2)
        error = refused(changed(schedule, "src_chunk", last, 0), ContributionError, "twice")
        assert error.op_id == final

    def test_computed_before_it_arrived(self) -> None:
        schedule = plan("all_gather_matmul", "direct", 2, in_place=False)
        rows = list(range(len(schedule)))
        wait = op_of(schedule, "wait")
        compute = [i for i in rows if "compute partition 1 output[1]" in schedule.describe(i) and "rank 0" in schedule.describe(i)][0]
        rows[wait], rows[compute] = rows[compute], rows[wait]
        refused(taken(schedule, rows), RaceError, "compute partition 1 output[1]")

    def test_computed_on_what_nobody_wrote(self) -> None:
        schedule = plan("all_gather_matmul", "sequential", 2)
        compute = op_of(schedule, "compute")
        b = Builder("all_gather", 1, algorithm="x")
        b.compute(rank=0, arg=0, reads=[b.output[0]])
        b.copy(rank=0, src=b.input[0], dst=b.output[0])
        refused(b.build(), ContributionError, "compute partition 0 output[0]", "where nobody has written")
        assert verify(schedule) and compute >= 0

    def test_computed_on_half_a_sum(self) -> None:
        r = np.arange(2)
        b = Builder("all_reduce", 2, algorithm="x", scratch_blocks=1)
        b.put(rank=r, peer=1 - r, src=b.input[0], dst=b.scratch[0])
        b.wait(rank=r, peer=1 - r)
        b.copy(rank=r, src=b.input[0], dst=b.output[0])
        b.compute(rank=r, arg=0, reads=[b.output[0]])
        b.reduce(rank=r, dst=b.output[0], srcs=[b.output[0], b.scratch[0]])
        refused(b.build(), ContributionError, "before it holds its final value")
