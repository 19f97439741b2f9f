"""Real jobs, kept beside the project: the known answers of their README, the late rank, what HTA says of the same files."""

from __future__ import annotations

import json
import logging
import shutil
import tarfile
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from ccl_lab import cli
from ccl_lab.trace import Trace

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "traces"
pytestmark = [
    pytest.mark.skipif(not FOLDER.is_dir(), reason="real traces are kept beside the project, not in it"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]

NAMES = ("total_us", "compute_us", "comm_us", "exposed_comm_us", "exposed_memcpy_us", "idle_us")
DLRM, DDP, SAMPLED, CHAKRA = (
    "dlrm_kineto.tar.gz",
    "ddp_rank0_with_collective_args.json.gz",
    "sampled_rank-0.json.gz",
    "chakra_feeder.tar.gz",
)
DDP_KNOWN = (660551.0, 116046.6, 46876.5, 39529.3, 1924.2, 503050.9)


def test_the_partition_of_the_dlrm_job_is_known():
    rows = Trace.load(FOLDER / DLRM).partition()
    assert [row["rank"] for row in rows] == list(range(8))
    assert [rows[0][name] for name in NAMES] == [13009, 1034, 5798, 5537, 19, 6419]
    assert [rows[1][name] for name in NAMES] == [18749, 1246, 11336, 11056, 19, 6428]


def test_the_partition_of_the_ddp_job_is_known():
    """The README's figures come from doubles of µs, which at this clock hold whole 1/1024 µs; ours are exact."""
    (row,) = Trace.load(FOLDER / DDP).partition()
    assert [row[name] for name in NAMES[:4]] == pytest.approx(DDP_KNOWN[:4], abs=0.05)
    assert [row[name] for name in NAMES] == pytest.approx(DDP_KNOWN, abs=0.1)
    assert [round(row[name] * 1000) for name in NAMES] == exact(FOLDER / DDP)
    assert [round(value, 1) for value in in_doubles(FOLDER / DDP)] == list(DDP_KNOWN)


def events(path, parse_float):
    import gzip

    found = json.loads(gzip.decompress(path.read_bytes()), parse_float=parse_float)["traceEvents"]
    return [e for e in found if e["ph"] == "X" and e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]


def partition_of(spans):
    """The definitions, on (kind, begin, end) of any number type."""

    def covered(*kinds):
        total, reach = 0, None
        for _, begin, end in sorted((s for s in spans if s[0] in kinds), key=lambda s: s[1]):
            if reach is None or begin > reach:
                total, reach = total + end - begin, end
            elif end > reach:
                total, reach = total + end - reach, end
        return total

    total = max(s[2] for s in spans) - min(s[1] for s in spans)
    compute, comm, both, every = (
        covered("compute"),
        covered("comm"),
        covered("compute", "comm"),
        covered("compute", "comm", "memcpy"),
    )
    return [total, compute, comm, both - compute, every - both, total - every]


def kind_of(e):
    return (
        "memcpy" if e["cat"] == "gpu_memcpy" else "comm" if e["name"].startswith("ncclKernel") else "compute"
    )


def exact(path):
    """Whole ns, by decimal arithmetic."""
    return [
        int(v * 1000)
        for v in partition_of([(kind_of(e), e["ts"], e["ts"] + e["dur"]) for e in events(path, Decimal)])
    ]


def in_doubles(path):
    return partition_of([(kind_of(e), e["ts"], e["ts"] + e["dur"]) for e in events(path, float)])


def test_the_late_rank_of_the_dlrm_job_is_named(capsys):
    trace = Trace.load(FOLDER / DLRM)
    late = trace.stragglers()
    assert late.late_rank == 7 and late.collectives["last_rank"][:5].tolist() == [7] * 5
    assert late.collectives["latency_us"][0] == 10 and late.collectives["time_us"][0] == 7635
    clock = trace.meta["clock"]
    assert (
        clock["collectives"] == 8
        and max(map(abs, clock["offset_us"].values())) < 7
        and clock["residual_us"]["max"] < 7
    )
    assert cli.main(["trace", "stats", "--json", str(FOLDER / DLRM)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["late_rank"] == 7 and found["ranks"] == trace.partition() and len(found["collectives"]) == 8


def test_collective_arguments_are_read():
    trace = Trace.load(FOLDER / DDP)
    comm = trace.where(kind="collective")
    assert (
        len(comm) == 21
        and trace.meta["coll_ops"].count("all_reduce") == 15
        and trace.meta["coll_ops"].count("broadcast") == 6
    )
    assert set(trace.meta["coll_ranks"]) == {2} and 6637568 * 4 in comm["nbytes"].tolist()
    table = trace.stats().collectives
    reduces = np.array(trace.meta["coll_ops"])[table["coll_id"]] == "all_reduce"
    assert np.allclose(table["busbw_gbytes_per_s"][reduces], table["algbw_gbytes_per_s"][reduces]), (
        "2 (n - 1) / n of two ranks is 1"
    )


def test_one_rank_of_many():
    trace = Trace.load(FOLDER / SAMPLED)
    assert (
        trace.n_ranks == 128 and set(trace["rank"].tolist()) == {0} and trace.stragglers().late_rank is None
    )
    (row,) = trace.partition()
    assert [row[name] for name in NAMES] == [1222847, 210348, 396199, 336981, 327, 675191]


def test_a_chakra_graph_is_laid_out_and_says_so():
    trace = Trace.load(FOLDER / CHAKRA)
    assert trace.meta["format"] == "chakra" and any("laid out" in note for note in trace.meta["notes"])
    assert [row["class"] for row in trace.meta["classified"]] == ["communication", "compute", "memcpy"]
    assert trace.meta["coll_ops"] == [
        "broadcast",
        "all_reduce",
        "all_reduce",
        "all_reduce",
        "all_reduce",
        "all_reduce",
        "all_reduce",
    ] or set(trace.meta["coll_ops"]) == {"broadcast", "all_reduce"}
    assert len(trace.where(kind="collective")) == 7


@pytest.mark.parametrize("name", [DLRM, DDP, SAMPLED])
def test_hta_agrees_on_overlap_of_the_file_and_of_our_export(name, tmp_path, monkeypatch):
    """HTA counts memsets, and kernels with Sync in their name, neither as computation nor as communication."""
    trace = Trace.load(FOLDER / name)
    left_out = np.array([word.startswith("Memset") or "Sync" in word for word in trace.meta["names"]])
    wanted = {
        row["rank"]: round(row["overlap_pct"], 2) for row in trace[~left_out[trace["name"]]].partition()
    }
    original = tmp_path / "original"
    original.mkdir()
    if name.endswith(".tar.gz"):
        with tarfile.open(FOLDER / name) as archive:
            for member in filter(tarfile.TarInfo.isreg, archive.getmembers()):
                (original / Path(member.name).name).write_bytes(archive.extractfile(member).read())
    else:
        shutil.copy(FOLDER / name, original)
    assert overlap_by_hta(original, monkeypatch) == pytest.approx(wanted, abs=0.011)
    assert overlap_by_hta(trace.save(tmp_path / "ours.kineto"), monkeypatch) == pytest.approx(
        wanted, abs=0.011
    )


def overlap_by_hta(folder, monkeypatch):
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    logging.disable(logging.WARNING)
    from hta.trace_analysis import TraceAnalysis

    try:
        analysis = TraceAnalysis(trace_dir=str(folder), include_last_profiler_step=True)
        found = analysis.get_comm_comp_overlap(visualize=False)
    finally:
        logging.disable(logging.NOTSET)
    return dict(zip(found["rank"].tolist(), found["comp_comm_overlap_pctg"].tolist(), strict=True))
