"""Importers: jobs of our own making with known answers, in every form that other tools write; clocks, classes, bad files."""

from __future__ import annotations

import gzip
import io
import json
import pickle

import numpy as np
import pytest
from foreign_cases import (
    BASE,
    COLLECTIVES,
    KNOWN,
    LATE,
    job,
    job_tar,
    kineto,
    tar,
    x,
    zipped,
)

from ccl_lab import cli
from ccl_lab.errors import CclError, DecodeError, UsageError
from ccl_lab.trace import SpanKind, Trace
from ccl_lab.trace.importers.events import nanoseconds
from ccl_lab.trace.importers.sources import read_bytes
from ccl_lab.trace.importers.unpickle import read_plain


def read(document, name="x.json", **options):
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    return read_bytes(data, name, **options)


def check_rank(row, late):
    compute = KNOWN["compute_us"] * COLLECTIVES
    comm, exposed = (150.0, 100.0) if late else (KNOWN["comm_us"], KNOWN["exposed_comm_us"])
    assert row["compute_us"] == compute and row["comm_us"] == comm * COLLECTIVES
    assert row["exposed_comm_us"] == exposed * COLLECTIVES and row["exposed_memcpy_us"] == 50 * COLLECTIVES
    assert row["total_us"] == 1000 * (COLLECTIVES - 1) + 650
    assert row["overlap_pct"] == pytest.approx(100 * (comm - exposed) / comm)


@pytest.mark.parametrize("arguments", [True, False])
@pytest.mark.parametrize("old", [False, True])
def test_a_job_in_a_tar(arguments, old):
    trace = read(job_tar(arguments=arguments, old=old), "job.tar.gz")
    assert trace.meta["source"] == "imported" and trace.meta["format"] == "kineto" and trace.n_ranks == 4
    for row in trace.partition():
        check_rank(row, row["rank"] == LATE)
    late = trace.stragglers()
    assert late.late_rank == LATE and late.collectives["latency_us"].tolist() == [150] * COLLECTIVES
    assert late.collectives["begin_skew_us"].tolist() == [150] * COLLECTIVES, (
        "the clocks were brought together"
    )
    assert trace.meta["coll_ops"] == ["all_reduce"] * COLLECTIVES
    assert trace.where(kind="collective")["nbytes"].tolist()[0] == (4000 if arguments and not old else 0)


def test_clocks_are_aligned_by_the_ends_and_it_says_by_how_much():
    trace = read(job_tar(), "job.tar.gz")
    assert trace.meta["clock"] == {
        "method": "ends of collectives",
        "collectives": COLLECTIVES,
        "offset_us": {"0": 0.0, "1": 100.0, "2": 200.0, "3": 300.0},
        "residual_us": {"median": 0.0, "max": 0.0},
    }
    begin = [trace.where(rank=rank).begin_ns for rank in range(4)]
    assert begin == [BASE + 125] * 4, "absolute ns = base + ts * 1000"
    apart = read(job_tar(), "job.tar.gz", align=False)
    assert apart.meta["clock"] is None
    assert [apart.where(rank=rank).begin_ns - BASE - 125 for rank in range(4)] == [
        0,
        100_000,
        200_000,
        300_000,
    ]


def test_files_folders_and_tars_give_the_same(tmp_path):
    paths = []
    for rank, document in job().items():
        paths.append(tmp_path / (f"rank{rank}.json.gz" if rank % 2 else f"rank{rank}.json"))
        paths[-1].write_bytes(zipped(document) if rank % 2 else json.dumps(document, indent=2).encode())
    wanted = read(job_tar(), "job.tar.gz")
    for given in (paths, [tmp_path]):
        trace = Trace.load(*given)
        assert all(np.array_equal(trace[name], wanted[name]) for name in trace.columns)
    plain = read(
        tar({"a/rank0.json": json.dumps(kineto()).encode(), "a/.hidden.json": b"{", "readme.txt": b"x"}, "w"),
        "x.tar",
    )
    assert len(plain) == len(read(kineto())) == 4 * COLLECTIVES


def test_names_streams_and_kinds_are_kept():
    trace = read(kineto())
    rows = list(trace.sorted())
    assert [row["name"][:13] for row in rows[:4]] == [
        "ampere_sgemm_",
        "ncclDevKernel",
        "Memset (Devic",
        "Memcpy HtoD (",
    ]
    assert [row["index"] for row in rows[:4]] == [7, 20, 7, 21] and trace.names[0] == rows[0]["name"]
    assert [row["track"] for row in rows[:4]] == ["compute", "channel", "compute", "copy"]
    both = Trace.concat([trace, read(job()[1])])
    assert both.names == trace.names + read(job()[1]).names, "tables of names are joined"
    assert len(Trace.concat([trace, trace]).meta["names"]) == len(trace.meta["names"])


def test_arguments_on_record_param_comms_are_found_by_external_id():
    document = kineto(arguments=False)
    comm = next(e for e in document["traceEvents"] if "nccl" in e["name"])
    comm["args"]["External id"] = 99
    args = {
        "External id": 99,
        "Collective name": "_allgather_base",
        "In msg nelems": 10,
        "Out msg nelems": 40,
        "dtype": "BFloat16",
        "Process Group Ranks": [0, 1],
        "Seq": 3,
    }
    document["traceEvents"].append(x("record_param_comms", "cpu_op", 1.0, 2.0, 1, **args))
    trace = read(document)
    assert trace.meta["coll_ops"][0] == "all_gather" and trace.where(kind="collective")["nbytes"].max() == 80


def test_sends_know_their_peer():
    document = {"traceEvents": [], "distributedInfo": {"rank": 0, "world_size": 2}}
    other = {"traceEvents": [], "distributedInfo": {"rank": 1, "world_size": 2}}
    send = {
        "Collective name": "send",
        "In msg nelems": 8,
        "Out msg nelems": 8,
        "dtype": "Int",
        "Dst Rank": 1,
        "Process Group Name": "0",
    }
    recv = send | {"Collective name": "recv", "Src Rank": 0}
    document["traceEvents"].append(x("ncclDevKernel_SendRecv(a)", "kernel", 1.0, 9.0, 3, **send))
    other["traceEvents"].append(x("ncclDevKernel_SendRecv(a)", "kernel", 5.0, 5.0, 3, **recv))
    trace = read(
        tar({"rank0.json": json.dumps(document).encode(), "rank1.json": json.dumps(other).encode()}),
        "j.tar.gz",
    )
    assert trace["kind"].tolist() == [SpanKind.put, SpanKind.wait] and trace["peer"].tolist() == [1, 0]
    assert trace["coll_id"].tolist() == [0, 0] and trace["nbytes"].tolist() == [32, 32]


def test_a_job_without_a_device_shows_the_host():
    events = [
        x("aten::mm", "cpu_op", 0.0, 100.0, 1),
        x("gloo:all_reduce", "user_annotation", 50.0, 100.0, 1),
        x("autograd::engine", "cpu_op", 0.0, 500.0, 1),
        x("c10d::allreduce_", "cpu_op", 50.0, 10.0, 1),
    ]
    trace = read({"traceEvents": events})
    (row,) = trace.partition()
    assert (row["compute_us"], row["comm_us"], row["exposed_comm_us"], row["total_us"]) == (100, 100, 50, 150)
    assert any("no device" in note for note in trace.meta["notes"]) and any(
        "rank" in note for note in trace.meta["notes"]
    )


def test_times_are_exact_where_doubles_are_not():
    late = "1682725898236567.123"
    text = '[{"ph":"X","cat":"kernel","name":"k","ts":%s,"dur":0.001,"tid":1},{"ph":"X","cat":"kernel","name":"k","ts":%s,"dur":1,"tid":1}]'
    trace = read((text % (late, late.replace(".123", ".125"))).encode())
    assert (
        trace["begin_ns"].tolist() == [1682725898236567123, 1682725898236567125]
        and trace["end_ns"][0] == 1682725898236567124
    )
    some = np.arange(4_458_677_009_853_422, 4_458_677_009_853_422 + 5000)
    assert np.array_equal(
        nanoseconds([float(f"{ns // 1000}.{ns % 1000:03d}") for ns in some.tolist()], "x", "ts"), some
    )
    for bad in ([1e300], [float("nan")], [None], [-1e17]):
        with pytest.raises(DecodeError, match="ts of event 0"):
            nanoseconds(bad, "x", "ts")


@pytest.mark.parametrize("window", [100, 1000, 3000, 10**6])
def test_windows_of_any_size_give_the_same(window, monkeypatch):
    monkeypatch.setattr("ccl_lab.trace.importers.events._WINDOW", window)
    document = kineto()
    document["traceEvents"][3]["args"]["nested"] = [{"a": "}, {"}, {"b": [{}, {}]}]
    document["traceEvents"][5]["name"] = 'odd "traceEvents": [ }, { ä \u2028'
    for indent in (None, 1):
        trace = read(json.dumps(document, indent=indent).encode())
        assert len(trace) == 4 * COLLECTIVES and not trace.meta["notes"]
        check_rank(trace.partition()[0], False)


def test_odd_json_of_real_files_is_read():
    good = json.dumps(kineto())
    wanted = read(kineto())
    for text in (
        good.replace('"dur": 480.0', '"dur": "480.0"'),
        good.replace('"args": {"stream": 7', '"args": {"x": NaN, "stream": 7'),
        good.replace("python", "py\tthon"),
        "\ufeff" + good,
        good.replace('"tid": 20', '"tid": "stream 20"'),
    ):
        assert read(text.encode()).partition() == wanted.partition()
    assert read(good.encode().replace(b"aten::mm", b"aten\xff\xfe")).partition() == wanted.partition()


def cut(text, events):
    """The text up to the end of so many events."""
    at = 0
    for _ in range(events):
        at = text.index('"ph"', at + 1)
    return text[: text.rindex("}", 0, text.index('"ph"', at + 1)) + 1]


@pytest.mark.parametrize("tail", ["", ",", ",\n ", "\n]"])
def test_a_file_without_its_closing_brackets_is_read_and_noted(tail):
    document = kineto()
    text = json.dumps(document["traceEvents"]) if tail == "" else json.dumps(document)
    text = cut(text, 10) + tail
    trace = read(text.encode())
    assert 0 < len(trace) < 4 * COLLECTIVES and any("closing brackets" in note for note in trace.meta["notes"])


def test_damage_in_the_middle_of_a_long_file_ends_the_search(monkeypatch):
    monkeypatch.setattr("ccl_lab.trace.importers.events._WINDOW", 1000)
    monkeypatch.setattr("ccl_lab.trace.importers.events._MAX_UNCUT", 20_000)
    text = json.dumps(kineto(steps=200)).encode()
    middle = text.index(b', {"ph"', len(text) // 3)
    with pytest.raises(DecodeError, match=r"byte \d+: no whole event in the 20000 bytes from here.*events before it are whole"):
        read(text[:middle] + b"}}}" + text[middle:])


@pytest.mark.parametrize("lost", [1, 40, 200])
def test_a_file_cut_inside_an_event_is_refused_unless_recovered(lost):
    text = cut(json.dumps(kineto()), 16)[:-lost].encode()
    with pytest.raises(
        DecodeError, match=r"x\.json: byte \d+: the file is cut off inside an event.*whole ones.*recover"
    ):
        read(text)
    trace = read(text, recover=True)
    assert len(trace) > 2 and any("cut off" in note for note in trace.meta["notes"])
    packed = gzip.compress(json.dumps(kineto(host=False, steps=40)).encode())[:-lost]
    with pytest.raises(DecodeError, match="gzip file is cut off"):
        read(packed, "x.json.gz")
    assert len(read(packed, "x.json.gz", recover=True)) > 30


def pickled_call():
    class Evil:
        def __reduce__(self):
            return (print, ("owned",))

    return pickle.dumps({"entries": [Evil()]})


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("x.json", b"", r"x\.json: byte 0: the file is empty \(0 bytes\): expected"),
        ("x.et", b"", "empty"),
        ("x.json", b"hello, world", r"byte 0: no JSON object.*begins b'hello, world'.*expected Kineto"),
        ("x.json", b'{"a": 1}', r"a JSON object of \{a\}: expected \"traceEvents\""),
        ("x.json", b"[1, 2]", "a JSON list without events"),
        ("x.json", b"{" * 100_000, "x.json"),
        ("x.json", b'{"traceEvents": [3]}', r"traceEvents\[0\] is a int"),
        ("x.json", b'{"traceEvents": []}', "no kernel, copy or collective"),
        ("x.json", b'{"traceEvents": [{"ph":"X","cat":"kernel","name":"k"}]}', "ts of event 0"),
        (
            "x.json",
            b'{"traceEvents": [{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":-4}]}',
            "lasts -4000 ns",
        ),
        (
            "x.json",
            b'{"baseTimeNanoseconds": -1, "traceEvents": [{"ph":"X","cat":"kernel","name":"k","ts":1}]}',
            "baseTimeNanoseconds is -1",
        ),
        ("x.json", b'{"entries": [3]}', r"entries\[0\] is a int"),
        ("x.json", b'{"entries": [{"state": "started"}]}', "no time_created_ns"),
        ("x.json", b'{"entries": [], "version": "9.0"}', "version '9.0'"),
        ("x.json.gz", gzip.compress(b"nothing"), "no JSON object"),
        ("x.json.gz", b"\x1f\x8b" + b"junk" * 9, "no gzip"),
        ("x.tar.gz", tar({"a.txt": b"x"}), "no trace in this archive"),
        ("x.tar", tar({"a.json": json.dumps(kineto()).encode()}, "w")[:2000], "tar"),
        ("x.zip", b"PK\x03\x04", "zip archive: unpack it"),
        ("x.et", b"\xff" * 40, "no Chakra node"),
        ("x.et", b"\x00", "no Chakra trace"),
        ("x.et", b"\x7f\x0a", "cut off inside node 0"),
        ("x", b"\x80\x04N.", 'no list "entries"'),
        ("x", b"\x80\x02}q\x00", "no whole pickle"),
        ("x", pickled_call(), r"byte \d+: the pickle would run code: .*this file was not read"),
        ("x", pickle.dumps({"entries": np.arange(3)}), "would run code"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)}B",  # archives hold the time they were made at
)
def test_bad_files_say_what_is_wrong_with_them(name, data, words, tmp_path, capsys):
    with pytest.raises(DecodeError, match=words):
        read(data, name)
    path = tmp_path / name
    path.write_bytes(data)
    assert cli.main(["trace", "stats", str(path)]) == 1
    said = capsys.readouterr()
    assert (
        said.out == "" and str(path) in said.err and "Traceback" not in said.err and "owned" not in said.err
    )


def test_every_opcode_that_could_run_code_is_refused():
    for data in (
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x02(cos\nsystem\no.",
        b"\x80\x02P1\n.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02ios\nsystem\n.",
        b"\x80\x02}b.",
    ):
        with pytest.raises(DecodeError, match="would run code"):
            read_plain(data, "x")
    value = {"a": [1, 2.5, None, True, "ä", b"x", (1, 2, 3, 4), {5}, frozenset([6]), 2**100, -3]}
    for protocol in range(6):
        if protocol in (0, 1, 2):
            value = {"a": value["a"][:5]}
        try:
            assert read_plain(pickle.dumps(value, protocol), "x") == value
        except DecodeError:
            # sets of the old protocols are calls
            assert protocol < 4


def test_two_files_of_one_rank_are_refused():
    data = json.dumps(kineto()).encode()
    with pytest.raises(DecodeError, match="rank 0 is already in"):
        read(tar({"a.json": data, "b.json": data}), "x.tar.gz")
    with pytest.raises(UsageError, match="no file named"):
        Trace.load()


def test_an_empty_folder_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="not a file, and no trace is in that folder"):
        Trace.load(tmp_path)


def test_stats_on_the_command_line(tmp_path, capsys):
    path = tmp_path / "job.tar.gz"
    path.write_bytes(job_tar())
    assert cli.main(["trace", "stats", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["ranks", "collectives", "late_rank"] and found["late_rank"] == LATE
    keys = [
        "rank",
        "total_us",
        "compute_us",
        "comm_us",
        "exposed_comm_us",
        "exposed_memcpy_us",
        "idle_us",
        "overlap_pct",
    ]
    assert all(list(row) == keys for row in found["ranks"]) and len(found["collectives"]) == COLLECTIVES
    assert cli.main(["trace", "stats", str(path)]) == 0
    out = capsys.readouterr().out
    for words in (
        f"Rank {LATE} is late",
        "exposed_comm_us",
        "Clocks, by the ends of collectives",
        "rank 3 +300",
        "NCCL",
        "Classified",
    ):
        assert words in out
    assert cli.main(["trace", "info", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "kineto"
    short = tmp_path / "rank0.json"
    short.write_bytes(json.dumps(kineto()).encode()[:-400])
    assert cli.main(["trace", "stats", str(short)]) == 1 and "--recover" in capsys.readouterr().err
    assert (
        cli.main(["trace", "stats", str(short), "--recover"]) == 0
        and "note: the file is cut off" in capsys.readouterr().err
    )


def test_memory_stays_that_of_a_window(monkeypatch):
    """The reader of events holds a window, not the file."""
    from ccl_lab.trace.importers.events import EventFile

    monkeypatch.setattr("ccl_lab.trace.importers.events._WINDOW", 4096)
    data = json.dumps(kineto(steps=500)).encode()
    file, most = EventFile(io.BytesIO(data), "x"), 0
    for _ in file:
        most = max(most, len(file._buffer))
    assert most < 10_000 < len(data) and file.n_events == 500 * 6 + 2


def test_every_refusal_is_of_our_tree():
    assert issubclass(DecodeError, CclError)
