"""The builder: rows for all ranks at once, running totals of waits, dropped copies, errors."""

from __future__ import annotations

import numpy as np
import pytest

from ccl_lab.errors import DtypeError, ScheduleError, UsageError
from ccl_lab.ir import Buffer, Builder, Kind, OpTable, describe


def test_one_call_emits_one_row_per_rank_and_broadcasts() -> None:
    r = np.arange(3)
    b = Builder("all_gather", 3, algorithm="x", channels=2)
    b.step = 4
    b.put(rank=r, peer=(r + 1) % 3, src=b.input[0], dst=b.output[r], channel=1)
    ops = b.build().ops
    assert len(ops) == 3
    assert ops.kind.tolist() == [Kind.put] * 3 and ops.step.tolist() == [4] * 3 and ops.channel.tolist() == [1] * 3
    assert ops.peer.tolist() == [1, 2, 0] and ops.dst_chunk.tolist() == [0, 1, 2] and ops.sig_channel.tolist() == [1] * 3
    assert ops.dst_buf.tolist() == [Buffer.output] * 3 and ops.src_rank.tolist() == [0, 1, 2]
    assert describe(ops[1]) == "op 1 (rank 1, channel 1, step 4): put input[0] -> rank 2 output[1] +signal on channel 1"


def test_slices_cover_chunks() -> None:
    b = Builder("all_gather", 4, algorithm="x")
    b.copy(rank=[0, 1], src=b.output[np.array([0, 1]) : np.array([2, 3])], dst=b.output[2:4])
    assert b.build().ops.n_chunks.tolist() == [2, 2]
    for bad in (slice(None, 2), slice(0, None), slice(0, 4, 2)):
        with pytest.raises(UsageError, match="both ends and no step"):
            b.output[bad]


def test_values_of_waits_are_running_totals_per_counter() -> None:
    b = Builder("barrier", 3, algorithm="x", channels=2)
    b.wait(rank=0, peer=1)
    b.wait(rank=0, peer=2, count=3)
    b.wait(rank=0, peer=1, channel=1)
    b.wait(rank=0, peer=1, channel=1, sig_channel=0, count=2)
    b.wait(rank=1, peer=0)
    b.wait(rank=0, peer=2)
    assert b.build().ops.value.tolist() == [1, 3, 1, 3, 1, 4]


def test_copies_onto_themselves_are_dropped_in_place_only() -> None:
    r = np.arange(3)
    for in_place, rows in ((False, 3), (True, 0)):
        b = Builder("all_gather", 3, algorithm="x", in_place=in_place)
        b.copy(rank=r, src=b.input[0], dst=b.output[r])
        assert len(b.build().ops) == rows
    b = Builder("all_gather", 3, algorithm="x", in_place=True)
    b.copy(rank=r, src=b.input[0], dst=b.output[(r + 1) % 3])
    b.copy(rank=r, src=b.input[0].at((r + 1) % 3), dst=b.output[r])
    assert len(b.build().ops) == 6
    b = Builder("reduce_scatter", 3, algorithm="x", parts=2, in_place=True)
    b.copy(rank=r, src=b.input[2 * r + 1], dst=b.output[1])
    assert len(b.build().ops) == 0


def test_no_ranks_no_rows() -> None:
    b = Builder("barrier", 2, algorithm="x")
    b.signal(rank=np.zeros(0, int), peer=np.zeros(0, int))
    assert len(b.build()) == 0


def test_several_sources_keep_their_order() -> None:
    b = Builder("all_reduce", 2, algorithm="x", scratch_blocks=3)
    b.copy(rank=[0, 1], src=b.input[0], dst=b.scratch[0])
    b.reduce(rank=[0, 1], dst=b.output[0], srcs=[b.scratch[2], b.input[0].at([1, 0]), b.scratch[1]])
    ops = b.build().ops
    assert ops[3].sources == ((1, Buffer.scratch, 2), (0, Buffer.input, 0), (1, Buffer.scratch, 1))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Builder("all_redcue", 2, algorithm="x"), UsageError, "Did you mean 'all_reduce'"),
        (lambda: Builder("all_reduce", 0, algorithm="x"), UsageError, "n_ranks of all_reduce 0: expected a whole number, 1 or more"),
        (lambda: Builder("broadcast", 2, algorithm="x", root=2), UsageError, "root of broadcast 2: expected a whole number, 0 to 1"),
        (lambda: Builder("send_recv", 2, algorithm="x"), UsageError, "peer of send_recv -1"),
        (lambda: Builder("barrier", 2, algorithm="x").signal(rank=[0, 1], peer=[1, 0, 1]), UsageError, "do not fit 2 ranks"),
        (lambda: Builder("all_reduce", 2, algorithm="x").build(dtype="float31"), DtypeError, "float31"),
        (lambda: Builder("all_reduce", 2, algorithm="x").build(redop="band"), DtypeError, "integer type"),
    ],
)
def test_errors_say_what_to_do(make, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as found:
        make()
    assert words in str(found.value)


def test_channels_must_be_declared() -> None:
    b = Builder("barrier", 2, algorithm="x")
    b.signal(rank=0, peer=1, channel=1)
    with pytest.raises(ScheduleError, match=r"expected 0\.\.0; pass channels="):
        b.build()


def test_tables_are_checked_and_read_only() -> None:
    b = Builder("barrier", 2, algorithm="x")
    b.signal(rank=[0, 1], peer=[1, 0])
    ops = b.build().ops
    with pytest.raises(ValueError, match="read-only"):
        ops.rank[0] = 1
    columns = ops.columns()
    with pytest.raises(ScheduleError, match="differ in length"):
        OpTable(**(columns | {"rank": columns["rank"][:1]}))
    with pytest.raises(ScheduleError, match="one dimension"):
        OpTable(**(columns | {"rank": columns["rank"].reshape(1, 2)}))
    with pytest.raises(ScheduleError, match=r"op 1: sources \[0, 1\) lie outside"):
        OpTable(**(columns | {"src_count": np.array([0, 1])}))


def test_schedule_facts_and_pictures() -> None:
    b = Builder("all_reduce", 1, algorithm="<copy>")
    b.copy(rank=0, src=b.input[0], dst=b.output[0])
    schedule = b.build(nbytes=1 << 20, reasons=("a < b",))
    assert repr(schedule) == "<Schedule all_reduce <copy>: 1 ranks, 1 channels, 1 steps, 1 ops (1 copy), 1 MiB float32>"
    html = schedule._repr_html_()
    assert "&lt;copy&gt;" in html and "a &lt; b" in html
    assert schedule.digest != schedule.replace(in_place=True).digest
    assert schedule.digest == schedule.replace(reasons=(), nbytes=1, algorithm="y").digest
