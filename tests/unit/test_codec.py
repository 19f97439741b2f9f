"""The binary form of schedules: exact, versioned, and strict about everything it reads."""

from __future__ import annotations

import json
import struct
import zlib

import numpy as np
import pytest

from ccl_lab.errors import DecodeError, ScheduleError
from ccl_lab.ir import Builder, Kind, OpTable, Schedule
from ccl_lab.ir.ops import OPS_VERSION


def small(**options) -> Schedule:
    b = Builder("all_reduce", 2, algorithm="ünïcode", parts=2, scratch_blocks=1, **options)
    r = np.arange(2)
    b.put(rank=r, peer=1 - r, src=b.input[0:2], dst=b.scratch[0:2])
    b.wait(rank=r, peer=1 - r)
    b.step = 1
    b.reduce(rank=r, dst=b.output[0:2], srcs=[b.input[0:2], b.scratch[0:2]])
    return b.build(nbytes=1 << 40, dtype="bfloat16", redop="avg", reasons=("fast",))


def allv() -> Schedule:
    b = Builder("all_to_allv", 2, algorithm="v", scratch_blocks=1, counts=np.array([[1, 2], [3, 2**40]]),
                scratch_pairs=np.array([[[0, 1]], [[1, 0]]]))  # fmt: skip
    b.copy(rank=[0, 1], src=b.input[[0, 1]], dst=b.output[[0, 1]])
    return b.build()


def stamped(data: bytes) -> bytes:
    return data[:-4] + struct.pack("<I", zlib.crc32(data[:-4]))


def with_header(schedule: Schedule, **changes) -> bytes:
    """The encoded schedule with header fields changed (None: removed) and a good checksum."""
    data = schedule.encode()
    magic, version, ops_version, length, n_ops, n_sources = struct.unpack_from("<8sHHIII", data)
    header = json.loads(data[24 : 24 + length]) | changes
    text = json.dumps({key: value for key, value in header.items() if value is not None}).encode()
    head = struct.pack("<8sHHIII", magic, version, ops_version, len(text), n_ops, n_sources)
    return stamped(head + text + data[24 + length :])


@pytest.mark.parametrize("schedule", [small(), small(in_place=True), allv(), Builder("barrier", 1, algorithm="").build()])
def test_round_trip_is_exact(schedule: Schedule) -> None:
    data = schedule.encode()
    again = Schedule.decode(data)
    assert again == schedule and again.encode() == data and again.digest == schedule.digest
    assert (again.nbytes, again.dtype, again.redop, again.reasons) == (
        schedule.nbytes, schedule.dtype, schedule.redop, schedule.reasons)  # fmt: skip
    assert again.ops == schedule.ops
    for name in ("counts", "scratch_pairs"):
        mine, theirs = getattr(schedule, name), getattr(again, name)
        assert (mine is None) == (theirs is None) and (mine is None or np.array_equal(mine, theirs))


def test_decoded_columns_do_not_share_the_callers_bytes() -> None:
    data = bytearray(small().encode())
    schedule = Schedule.decode(data)
    before = schedule.encode()
    data[:] = bytes(len(data))
    assert schedule.encode() == before


def test_equal_schedules_have_equal_bytes_however_sources_lay() -> None:
    schedule = small()
    columns = {name: column.copy() for name, column in schedule.ops.columns().items()}
    shuffled = np.arange(len(columns["src_rank"]))[::-1]
    columns["src_begin"] = len(shuffled) - columns["src_begin"] - columns["src_count"]
    for name in ("src_rank", "src_buf", "src_chunk"):
        columns[name] = columns[name][shuffled]
    order = schedule.ops.src_count == 2
    begin = columns["src_begin"][order]
    for name in ("src_rank", "src_buf", "src_chunk"):  # two sources keep their order
        columns[name][begin], columns[name][begin + 1] = columns[name][begin + 1].copy(), columns[name][begin].copy()
    assert schedule.replace(ops=OpTable(**columns)) == schedule


def test_numpy_numbers_do_not_change_the_digest() -> None:
    assert small().replace(n_ranks=np.int64(2), in_place=np.bool_(False)).digest == small().digest


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_ranks": 0}, "'n_ranks': expected 1 to"),
        ({"n_ranks": 1 << 40}, "'n_ranks': expected 1 to"),
        ({"n_ranks": 2.0}, "'n_ranks': expected int, found float"),
        ({"n_ranks": True}, "'n_ranks': expected int, found bool"),
        ({"in_place": 1}, "'in_place': expected bool"),
        ({"parts": 0}, "'parts'"),
        ({"root": 2}, "'root': expected a rank from 0 to 1"),
        ({"collective": "all_redcue"}, "Did you mean 'all_reduce'"),
        ({"dtype": "float31"}, "float31"),
        ({"dtype": "float32", "redop": "bxor"}, "bitwise"),
        ({"reasons": [1]}, "list of strings"),
        ({"reasons": None}, "missing ['reasons']"),
        ({"more": 1}, "unknown ['more']"),
        ({"has_counts": True}, "the head promises"),
        ({"has_scratch_pairs": True, "scratch_blocks": (1 << 31) - 1, "n_ranks": 1 << 20}, "the head promises"),
        ({"nbytes": -1}, "'nbytes'"),
        ({"collective": "send_recv", "peer": -1}, "'peer': expected a rank"),
    ],
)
def test_header_is_checked(change: dict, words: str) -> None:
    with pytest.raises(DecodeError) as found:
        Schedule.decode(with_header(small(), **change))
    assert words in str(found.value)


def test_a_header_from_before_there_were_timetables_is_read() -> None:
    assert Schedule.decode(with_header(small(), timetable=None)) == small()
    assert Schedule.decode(with_header(small(), timetable=True)).timetable


def test_every_cut_and_every_flipped_bit_is_refused() -> None:
    data = small().encode()
    for length in range(len(data)):
        with pytest.raises(DecodeError):
            Schedule.decode(data[:length])
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 1 << (at % 8)
        with pytest.raises(DecodeError):
            Schedule.decode(broken)
    with pytest.raises(DecodeError):
        Schedule.decode(data + b"\0")


@pytest.mark.parametrize(
    ("at", "cells", "words"),
    [
        (0, b"CCLSCHEX", "byte 0"),
        (8, struct.pack("<H", 9), "byte 8: version 9; this ccl_lab reads 1"),
        (10, struct.pack("<H", OPS_VERSION + 1), "byte 10: op schema"),
        (12, struct.pack("<I", 2**32 - 1), "byte 12"),
        (16, struct.pack("<I", 2**32 - 1), "byte 16: 4294967295 ops"),
        (20, struct.pack("<I", 2**32 - 1), "byte 16"),
        (24, b"\xff", "header is not JSON"),
        (24, b"[", "header is not JSON"),
    ],
)
def test_head_is_checked(at: int, cells: bytes, words: str) -> None:
    data = bytearray(small().encode())
    data[at : at + len(cells)] = cells
    with pytest.raises(DecodeError) as found:
        Schedule.decode(stamped(bytes(data)))
    assert words in str(found.value)


def test_unknown_kind_and_wrong_source_counts() -> None:
    schedule = small()
    columns = {name: column.copy() for name, column in schedule.ops.columns().items()}
    columns["kind"][2] = len(Kind)
    with pytest.raises(ScheduleError, match="op 2: kind 8 is none of put, get"):
        OpTable(**columns)
    data = bytearray(schedule.encode())
    length = struct.unpack_from("<I", data, 12)[0]
    kind = 24 + length + 3 * 4 * len(schedule.ops)
    data[kind + 2] = 99
    with pytest.raises(DecodeError, match="op 2: kind 99") as found:
        Schedule.decode(stamped(bytes(data)))
    assert found.value.op_id == 2
    data[kind + 2] = schedule.ops.kind[2]
    src_count = kind + len(schedule.ops) * (1 + 4 + 4 + 4 + 1 + 4 + 4)
    assert data[src_count] == schedule.ops.src_count[0] == 1
    data[src_count] = 200
    with pytest.raises(DecodeError, match="add up to"):
        Schedule.decode(stamped(bytes(data)))
    data[src_count + 3] = 0xFF
    with pytest.raises(DecodeError, match="op 0: .* sources; expected 0 or more"):
        Schedule.decode(stamped(bytes(data)))


@pytest.mark.parametrize("name", ["ring.schedule", "ring.txt"])
def test_files(tmp_path, name: str) -> None:
    path = tmp_path / name
    small().save(path)
    assert Schedule.load(path) == small()
    path.write_bytes(b"\xff" + path.read_bytes()[1:-5])
    with pytest.raises(DecodeError, match=name):
        Schedule.load(path)
