"""Trace files: exact round trips, what other tools see, and that damage is named."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from trace_cases import random_trace, ring_trace

from ccl_lab.errors import DecodeError, UnsupportedError, UsageError
from ccl_lab.trace import COLUMNS, Trace
from ccl_lab.trace.export.arrow import to_table
from ccl_lab.trace.files import decode, unzip
from ccl_lab.trace.lanes import assign_lanes, put_wait_pairs, signal_of_wait, tracks_of

READ = [".arrow", ".parquet", ".json", ".json.gz"]
CASES = {
    "ring": ring_trace(repeats=2),
    "random": random_trace(1),
    "sorted": random_trace(2).sorted(),
    "empty": Trace({}, {"source": "simulated"}),
    "one": random_trace(3, n=1),
    "far": random_trace(4, n=3).replace(begin_ns=[-(2**63), 0, 5], end_ns=[2**63 - 1, 0, 2]),
    "unnamed": random_trace(5, n=2).replace(kind=[200, 0], track=[0, 99], status=[7, 255]),
}


@pytest.mark.parametrize("suffix", READ)
@pytest.mark.parametrize("case", CASES)
def test_round_trip_is_exact(case, suffix, tmp_path):
    path = CASES[case].save(tmp_path / f"x{suffix}")
    assert Trace.load(path) == CASES[case]
    assert [p.name for p in tmp_path.iterdir()] == [f"x{suffix}"], "no temporary file is left"
    first = path.read_bytes()
    assert CASES[case].save(path).read_bytes() == first, "the same trace gives the same file"


def test_other_tools_read_the_columns(tmp_path):
    trace = ring_trace()
    table = pq.read_table(trace.save(tmp_path / "x.parquet"))
    assert table.column_names == list(COLUMNS) and table["end_ns"].to_pylist() == trace["end_ns"].tolist()
    with pa.ipc.open_file(trace.save(tmp_path / "x.arrow")) as file:
        assert file.read_all()["nbytes"].to_pylist() == trace["nbytes"].tolist()
    assert Trace.from_arrow(trace.to_arrow()) == trace
    assert Trace.from_arrow(trace.to_arrow().replace_schema_metadata(None)).meta == {}


def test_chrome_json_is_what_kineto_readers_expect(tmp_path):
    trace = random_trace(1)
    data = json.loads(trace.save(tmp_path / "x.json").read_text())
    assert data["schemaVersion"] == 1 and data["distributedInfo"]["world_size"] == 5
    spans = [event for event in data["traceEvents"] if event["ph"] == "X"]
    absolute = sorted(round(data["baseTimeNanoseconds"] + event["ts"] * 1000) for event in spans)
    assert np.allclose(absolute, np.sort(trace["begin_ns"]), atol=256), "absolute ns = base + ts * 1000"
    names = {e["args"]["name"] for e in data["traceEvents"] if e["name"] == "process_name"}
    assert any(name.startswith("rank 0") for name in names)


@pytest.mark.parametrize("case", CASES)
def test_perfetto_is_written_and_not_read(case, tmp_path):
    path = CASES[case].save(tmp_path / "x.pftrace")
    assert path.stat().st_size > 0
    with pytest.raises(UnsupportedError, match=r"\.arrow"):
        Trace.load(path)


def test_perfetto_slices_nest(tmp_path):
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    trace = random_trace(6, n=500)
    message = pb.Trace.FromString(trace.save(tmp_path / "x.pftrace").read_bytes())
    depth, last, begins = {}, {}, 0
    for packet in message.packet:
        event = packet.track_event
        if event.type not in (pb.TrackEvent.TYPE_SLICE_BEGIN, pb.TrackEvent.TYPE_SLICE_END):
            continue
        uuid = event.track_uuid
        assert packet.timestamp >= last.get(uuid, 0)
        last[uuid] = packet.timestamp
        begins += event.type == pb.TrackEvent.TYPE_SLICE_BEGIN
        depth[uuid] = depth.get(uuid, 0) + (1 if event.type == pb.TrackEvent.TYPE_SLICE_BEGIN else -1)
        assert depth[uuid] >= 0
    assert set(depth.values()) == {0} and begins == len(trace) + 1


@pytest.mark.parametrize("name", ["x", "x.txt", "x.arrow.bak", "x.gz"])
def test_an_unknown_suffix_names_the_known_ones(name, tmp_path):
    with pytest.raises(UsageError, match=r"\.arrow, \.parquet, \.json, \.json\.gz, \.pftrace"):
        ring_trace().save(tmp_path / name)
    with pytest.raises(UsageError, match="cannot be read"):
        Trace.load(tmp_path / name)
    path = ring_trace().save(tmp_path / "x.arrow").rename(tmp_path / name)
    assert Trace.load(path) == ring_trace(), "what a file is, its content says"


def test_paths_that_cannot_be_meant(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        ring_trace().save(tmp_path / "no" / "x.arrow")
    with pytest.raises(UsageError, match="cannot be read"):
        Trace.load(tmp_path / "no.arrow")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(UsageError, match="not a file"):
        Trace.load(tmp_path / "folder.json")


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = ring_trace().save(tmp_path / "x.json")
    before = path.read_bytes()
    monkeypatch.setattr("ccl_lab.trace.export.chrome.pieces", lambda *a: iter(["{", 3]))
    with pytest.raises(TypeError):
        random_trace(1).save(path)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("suffix", READ)
def test_damage_is_a_decode_error_that_names_the_file(suffix, tmp_path):
    trace = random_trace(7, n=3)
    path = trace.save(tmp_path / f"x{suffix}")
    good = path.read_bytes()
    for size in range(0, len(good), 7):
        path.write_bytes(good[:size])
        with pytest.raises(DecodeError, match="x.*byte|x.*footer|x.*cut|x.*JSON|x.*char|x.*delimiter"):
            Trace.load(path)
    for at in range(len(good)):
        broken = bytearray(good)
        broken[at] ^= 0x55
        try:
            assert decode(bytes(broken), suffix, "x") == trace, f"byte {at}"
        except DecodeError as error:
            assert str(error).startswith("x")


@pytest.mark.parametrize("suffix", READ)
@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"\0" * 100,
        b"{}",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"a":' * 50_000 + b"}",
        b"ARROW1" * 9,
        b"PAR1" * 9,
    ],
)
def test_junk_is_refused(suffix, junk):
    for data in (junk, gzip.compress(junk)):
        with pytest.raises(DecodeError):
            decode(data, suffix, "x")


def _pieces(trace):
    from ccl_lab.trace.export.chrome import pieces

    return pieces(trace)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ccl_lab": 3}, "ccl_lab"),
        ({"ccl_lab__version": 3}, "newer"),
        ({"ccl_lab__version": True}, "version"),
        ({"ccl_lab__crc32": 1}, "checksum"),
        ({"ccl_lab__meta": []}, "meta"),
        ({"ccl_lab__spans": 9}, "spans"),
        ({"traceEvents": {}}, "traceEvents"),
        ({"traceEvents": [3]}, r"traceEvents\[0\]"),
        ({"baseTimeNanoseconds": 1e3}, "baseTimeNanoseconds"),
        ({"baseTimeNanoseconds": 2**63}, "baseTimeNanoseconds"),
        ({"traceEvents__-1__args": None}, "args"),
        ({"traceEvents__-1__args__rank": 2**40}, "rank"),
        ({"traceEvents__-1__args__rank": "1"}, "rank"),
        ({"traceEvents__-1__args__rank": 10**30}, "rank"),
        ({"traceEvents__-1__args__kind": "putt"}, "kind"),
        ({"traceEvents__-1__cat": []}, "track"),
        ({"traceEvents__-1__ts": -1}, "ts"),
        ({"traceEvents__-1__ts": 10**400}, "ts"),
        ({"traceEvents__-1__dur": 1e300}, "dur"),
        ({"traceEvents__-1__dur": None}, "dur"),
    ],
)
def test_chrome_json_says_what_is_wrong(changes, words):
    events = json.loads("".join(_pieces(random_trace(8, n=2))))["traceEvents"]
    last = max(i for i, event in enumerate(events) if event["ph"] == "X")
    changes = {key.replace("-1", str(last)): value for key, value in changes.items()}
    data = json.loads("".join(_pieces(random_trace(8, n=2))))
    for key, value in changes.items():
        *path, name = [int(step) if step.isdigit() else step for step in key.split("__")]
        place = data
        for step in path:
            place = place[step]
        place[name] = value
    with pytest.raises(DecodeError, match=words):
        decode(json.dumps(data).encode(), ".json", "x")


def _arrow(table, **options):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _parquet(table, **options):
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(("suffix", "write"), [(".arrow", _arrow), (".parquet", _parquet)])
def test_columnar_files_say_what_is_wrong(suffix, write):
    table = to_table(random_trace(9), crc=True)
    assert decode(write(table), suffix, "x") == random_trace(9)

    def said(wrong, **options):
        with pytest.raises(DecodeError) as caught:
            decode(write(wrong, **options), suffix, "x")
        return str(caught.value)

    metadata = dict(table.schema.metadata)
    assert "not a trace written by ccl_lab" in said(table.replace_schema_metadata({"a": "b"}))
    assert "newer" in said(table.replace_schema_metadata({**metadata, b"ccl_lab.trace": b"9"}))
    assert "expected a number" in said(table.replace_schema_metadata({**metadata, b"ccl_lab.crc32": b"-1"}))
    assert "checksum" in said(table.replace_schema_metadata({**metadata, b"ccl_lab.crc32": b"1"}))
    assert "checksum" in said(table.replace_schema_metadata({**metadata, b"ccl_lab.meta": b"{}"}))
    assert "meta" in said(table.replace_schema_metadata({**metadata, b"ccl_lab.meta": b"[" * 100_000}))
    assert "columns" in said(table.drop_columns(["rank"]))
    assert "'rank'" in said(table.set_column(0, "rank", pa.array([0] * len(table), pa.int64())))
    nullable = pa.field("rank", pa.int32())
    with_null = table.set_column(0, nullable, pa.array([None] * len(table), pa.int32()))
    assert "null" in said(with_null)
    assert "compress" in said(table, compression="zstd" if suffix == ".arrow" else "zstd")


def test_a_columnar_file_cannot_promise_more_rows_than_it_could_hold():
    rows = 80_000_000
    table = pa.table({name: pa.array(np.zeros(1, dtype)) for name, dtype in COLUMNS.items()})
    data = bytearray(_parquet(table))
    size = int.from_bytes(data[-8:-4], "little")
    footer = bytes(data[-8 - size : -8])
    # version, schema, then field 3 num_rows as zigzag 1 -> 02; the next field is the row groups
    at = footer.index(b"\x16\x02\x19")
    number = bytearray()
    value = rows * 2
    while value > 0x7F:
        number.append(value & 0x7F | 0x80)
        value >>= 7
    number.append(value)
    footer = footer[:at] + b"\x16" + bytes(number) + footer[at + 2 :]
    data = data[: -8 - size] + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    with pytest.raises(DecodeError, match="too many"):
        decode(bytes(data), ".parquet", "x")


def test_gzip_is_unpacked_only_so_far():
    bomb = gzip.compress(b" " * 10_000_000)
    with pytest.raises(DecodeError, match="unpacks to more"):
        unzip(bomb, "x", limit=1_000_000)


@pytest.mark.parametrize("n", [50, 2000])
@pytest.mark.parametrize("seed", range(5))
def test_spans_on_a_lane_nest_or_follow(seed, n):
    trace = random_trace(seed, n=n)
    tracks, track_of = tracks_of(trace)
    lanes = assign_lanes(trace, track_of)
    begin, end = trace["begin_ns"], trace["end_ns"]
    for track, lane in set(zip(track_of.tolist(), lanes.tolist(), strict=True)):
        rows = np.flatnonzero((track_of == track) & (lanes == lane))
        b, e = begin[rows][:, None], end[rows][:, None]
        apart = (e <= b.T) | (e.T <= b)
        inside = ((b <= b.T) & (e.T <= e)) | ((b.T <= b) & (e <= e.T))
        assert (apart | inside).all()
        assert set(range(lane)) <= set(lanes[track_of == track].tolist()), "no empty lane before a used one"


def test_hundreds_of_overlapping_spans_get_lanes():
    n = 3000
    begin = np.arange(n)
    trace = Trace({"rank": np.zeros(n, int), "begin_ns": begin, "end_ns": begin + 500})
    lanes = assign_lanes(trace, np.zeros(n, np.int64))
    assert lanes.max() + 1 == 500
    for lane in range(500):
        rows = np.flatnonzero(lanes == lane)
        assert (trace["end_ns"][rows][:-1] <= begin[rows][1:]).all()


def test_arrows_go_from_puts_to_the_waits_they_end():
    trace = ring_trace(repeats=2)
    puts, waits = put_wait_pairs(trace)
    assert len(puts) == 2 * 4 * 2 * 3
    for name, other in (
        ("rank", "peer"),
        ("peer", "rank"),
        ("index", "index"),
        ("step", "step"),
        ("coll_id", "coll_id"),
    ):
        assert (trace[name][puts] == trace[other][waits]).all()
    missing = trace[np.flatnonzero(np.arange(len(trace)) != puts[0])]
    assert len(put_wait_pairs(missing)[0]) == len(puts) - 3, "where counts differ nothing is guessed"
    assert len(put_wait_pairs(Trace())[0]) == 0


def test_arrows_are_exact_with_the_schedule():
    from ccl_lab.ir import Builder

    n = 4
    r = np.arange(n)
    b = Builder("all_gather", n, algorithm="two at once")
    b.put(rank=r, peer=(r + 1) % n, src=b.input[np.zeros(n, int)], dst=b.output[r])
    b.signal(rank=r, peer=(r + 1) % n)
    b.wait(rank=r, peer=(r - 1) % n, count=2)
    schedule = b.build(nbytes=1024, dtype="float32", redop="sum")
    source = signal_of_wait(schedule.ops)
    waits = np.flatnonzero(schedule.ops.kind == 3)
    assert (schedule.ops.kind[source[waits]] == 2).all(), "a wait for two is ended by the second, the signal"
    assert (schedule.ops.rank[source[waits]] == schedule.ops.peer[waits]).all()
    columns = {name: getattr(schedule.ops, name) for name in ("rank", "kind", "peer")}
    trace = Trace({**columns, "op_id": range(len(schedule.ops)), "end_ns": np.full(len(schedule.ops), 9)})
    puts, seen = put_wait_pairs(trace, schedule)
    assert trace["op_id"][puts].tolist() == source[trace["op_id"][seen]].tolist() and len(puts) == n
