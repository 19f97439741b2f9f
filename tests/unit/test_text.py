"""The text form of schedules: exact both ways, and errors that name the line."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccl_lab.errors import DecodeError
from ccl_lab.ir import Builder, Kind, OpTable, Schedule
from ccl_lab.ir.table import OP_COLUMNS, SOURCE_COLUMNS


def ring(n: int = 2) -> Schedule:
    r = np.arange(n)
    b = Builder("all_gather", n, algorithm="my_ring")
    b.copy(rank=r, src=b.input[0], dst=b.output[r])
    for step in range(n - 1):
        b.step = step
        b.put(rank=r, peer=(r + 1) % n, src=b.output[(r - step) % n], dst=b.output[(r - step) % n])
        b.wait(rank=r, peer=(r - 1) % n)
    return b.build(nbytes=64, reasons=("small",))


TEXT = """\
ccl_lab schedule 1
collective = "all_gather"
algorithm = "my_ring"
n_ranks = 2
n_channels = 1
parts = 1
in_place = false
root = 0
peer = -1
scratch_blocks = 0
timetable = false
nbytes = 64
dtype = "float32"
redop = "sum"
reasons = ["small"]
ops:
op 0 (rank 0, channel 0, step 0): copy input[0] -> output[0]
op 1 (rank 1, channel 0, step 0): copy input[0] -> output[1]
op 2 (rank 0, channel 0, step 0): put output[0] -> rank 1 output[0] +signal on channel 0
op 3 (rank 1, channel 0, step 0): put output[1] -> rank 0 output[1] +signal on channel 0
op 4 (rank 0, channel 0, step 0): wait signal 1 of rank 1 on channel 0
op 5 (rank 1, channel 0, step 0): wait signal 1 of rank 0 on channel 0
"""


def test_reads_as_a_person_expects() -> None:
    assert ring().text() == TEXT
    assert Schedule.from_text(TEXT) == ring()


def test_text_from_before_there_were_timetables() -> None:
    assert Schedule.from_text(TEXT.replace("timetable = false\n", "")) == ring()


def test_comments_blank_lines_and_missing_numbers() -> None:
    text = TEXT.replace("ops:\n", "# the program\n\nops:\n").replace("op 3 (", "  op (").replace("op 4 ", "op 77 ")
    assert Schedule.from_text(text) == ring()


def test_one_line_of_every_kind() -> None:
    b = Builder("all_reduce", 3, algorithm="all kinds", channels=2, parts=4, scratch_blocks=2)
    b.put(rank=0, peer=1, src=b.input[0:3], dst=b.scratch[4:7], signal=False)
    b.get(rank=0, peer=1, src=b.input[1], dst=b.output[1])
    b.signal(rank=0, peer=0, channel=0, sig_channel=1)
    b.flush(rank=0)
    b.flush(rank=0, peer=2)
    b.reduce(rank=0, dst=b.output[0:2], srcs=[b.input[0:2], b.scratch[0:2], b.input[0:2].at(1)])
    b.compute(rank=0, arg=7)
    schedule = b.build()
    lines = [line.split("): ")[1] for line in schedule.text().split("ops:\n")[1].splitlines()]
    assert lines == [
        "put input[0:3] -> rank 1 scratch[4:7]",
        "get rank 1 input[1] -> output[1]",
        "signal rank 0 +signal on channel 1",
        "flush all peers",
        "flush rank 2",
        "reduce input[0:2], scratch[0:2], rank 1 input[0:2] -> output[0:2]",
        "compute partition 7",
    ]
    assert Schedule.from_text(schedule.text()) == schedule


def test_counts_and_scratch_pairs() -> None:
    b = Builder("all_to_allv", 2, algorithm="v", scratch_blocks=1, counts=np.array([[1, 2], [3, 2**40]]),
                scratch_pairs=np.array([[[0, 1]], [[1, 0]]]))  # fmt: skip
    schedule = b.build()
    assert "counts = [[1, 2], [3, 1099511627776]]" in schedule.text()
    assert Schedule.from_text(schedule.text()) == schedule


ANY = {name: st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)) for name, dtype in (OP_COLUMNS | SOURCE_COLUMNS).items()}


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_round_trip_is_exact_for_any_cells(data: st.DataObject) -> None:
    """Also for ops that no verifier would pass: a text form is for looking at what is wrong."""
    n_ops = data.draw(st.integers(0, 4))
    count = [data.draw(st.integers(0, 3)) for _ in range(n_ops)]
    columns = {}
    for name, dtype in OP_COLUMNS.items():
        cells = st.one_of(st.integers(-1 if dtype.kind == "i" else 0, 3), ANY[name])
        columns[name] = [data.draw(cells) for _ in range(n_ops)]
    columns["kind"] = [data.draw(st.sampled_from(list(Kind))) for _ in range(n_ops)]
    columns |= {name: [data.draw(ANY[name]) for _ in range(sum(count))] for name in SOURCE_COLUMNS}
    columns["src_count"], columns["src_begin"] = count, np.cumsum([0, *count])[:-1]
    table = OpTable(**{name: np.array(cells, (OP_COLUMNS | SOURCE_COLUMNS)[name]) for name, cells in columns.items()})
    algorithm = data.draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
    schedule = ring().replace(ops=table, algorithm=algorithm)
    assert Schedule.from_text(schedule.text()) == schedule
    assert Schedule.decode(schedule.encode()) == schedule


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("ccl_lab schedule 1", "ccl_lab schedule 2", 1, "expected 'ccl_lab schedule 1'"),
        ("n_ranks = 2", "n_ranks = two", 4, "not JSON"),
        ("n_ranks = 2", "ranks = 2", 4, "expected one 'key = value'"),
        ("n_ranks = 2", "parts = 1", 6, "expected one 'key = value'"),
        ("n_ranks = 2\n", "", 14, "missing ['n_ranks']"),
        ("parts = 1", "parts = 0", 15, "'parts': expected 1"),
        ("parts = 1", "counts = [[1, 2], [3]]", 6, "not a whole number"),
        ("ops:", "the ops", 22, "'ops:'"),
        ("op 2 (rank 0, channel 0, step 0): put", "op 2 (rank 0, channel 0): put", 19, "op N (rank R, channel C, step S)"),
        ("): put output[0]", "): push output[0]", 19, "'push' is none of put, get"),
        ("put output[0] -> rank 1 output[0]", "put output[0] to rank 1 output[0]", 19, "SOURCES -> BUFFER[CHUNK]"),
        ("put output[0] -> rank 1 output[0]", "put output[0:2] -> rank 1 output[0]", 19, "has 2 chunks"),
        ("put output[0] -> rank 1 output[0]", "put result[0] -> rank 1 output[0]", 19, "source 'result[0]'"),
        ("rank 1 output[0] +", "rank 9999999999 output[0] +", 19, "peer 9999999999 does not fit"),
        ("wait signal 1 of rank 1 on", "wait signal 1 of rank 1 at", 21, "wait signal VALUE of rank R"),
        ("op 5", "op 5 or 6", 22, "op N"),
        ("1 of rank 0 on channel 0", "1 of rank 0 on channel 0 {colour=2}", 22, "{name=number}"),
    ],
)  # fmt: skip
def test_errors_name_the_line(old: str, new: str, line: int, words: str) -> None:
    assert old in TEXT
    with pytest.raises(DecodeError) as found:
        Schedule.from_text(TEXT.replace(old, new, 1))
    assert str(found.value).startswith(f"line {line}: "), found.value
    assert words in str(found.value)


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "\0", "ccl_lab schedule 1"])
def test_no_schedule(text: str) -> None:
    with pytest.raises(DecodeError, match="line "):
        Schedule.from_text(text)
