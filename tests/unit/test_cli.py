"""The command line: one JSON object, one clear message, exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ccl_lab import cli
from ccl_lab.cli import arguments, doctor, lab

SMALL = "cluster:nodes=2,gpus_per_node=2,nics_per_node=2,nic_gbits_per_s=8"
RESULT_KEYS = {"op", "algorithm", "ranks", "bytes", "time_us", "algbw_gbytes_per_s", "busbw_gbytes_per_s"}


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    try:
        code = cli.main(list(words))
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# Somebody with 1 GB starts a simulation, and says what it had at most.
_LARGE = """
import json, subprocess, sys
large = bytearray(2**30)
for page in range(0, len(large), 4096):
    large[page] = 1
words = [sys.executable, "-m", "ccl_lab.cli", "simulate", "all_reduce", "--bytes", "1MiB", "--topology", sys.argv[1], "--json"]
print(json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)["peak_rss_bytes"])
"""


def test_peak_memory_is_that_of_the_process_itself() -> None:
    said = subprocess.run([sys.executable, "-c", _LARGE, SMALL], check=True, capture_output=True, text=True).stdout
    assert 2**24 < int(said) < 2**29


def test_simulate_prints_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(
        capsys,
        "simulate",
        "all_reduce",
        "--bytes",
        "1MiB",
        "--topology",
        SMALL,
        "--algorithm",
        "ring",
        "--json",
    )
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert set(found) >= RESULT_KEYS
    assert (found["op"], found["algorithm"], found["ranks"], found["bytes"]) == (
        "all_reduce",
        "ring",
        4,
        1 << 20,
    )
    assert found["algbw_gbytes_per_s"] == pytest.approx(found["bytes"] / found["time_us"] / 1e3)
    assert found["busbw_gbytes_per_s"] == pytest.approx(found["algbw_gbytes_per_s"] * 2 * 3 / 4)


def test_plan_says_why_and_saves(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "schedule.ccl"
    code, out, _ = call(
        capsys, "plan", "all_gather", "--bytes", "64KiB", "--topology", SMALL, "--out", str(file), "--json"
    )
    found = json.loads(out)
    assert code == 0 and found["proved"] and found["reasons"]
    code, out, _ = call(
        capsys, "simulate", "all_gather", "--topology", SMALL, "--schedule", str(file), "--json"
    )
    assert code == 0 and json.loads(out)["schedule"] == found["schedule"]


def test_run_prints_one_object_and_checks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "run.arrow"
    words = [
        "run",
        "all_reduce",
        "--bytes",
        "64KiB",
        "--topology",
        SMALL,
        "--iterations",
        "2",
        "--out",
        str(trace),
        "--json",
    ]
    code, out, err = call(capsys, *words)
    found = json.loads(out)
    assert code == 0, err
    assert set(found) >= RESULT_KEYS and found["checked"]
    code, out, _ = call(capsys, "trace", "info", str(trace), "--json")
    assert code == 0 and json.loads(out)["ranks"] == 4
    code, out, _ = call(capsys, "trace", "stats", str(trace), "--json")
    assert code == 0 and json.loads(out)
    code, out, _ = call(capsys, "trace", "convert", str(trace), str(tmp_path / "run.pftrace"))
    assert code == 0 and (tmp_path / "run.pftrace").stat().st_size > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["simulate", "all_reduce", "--bytes", "many"], "size 'many' cannot be read"),
        (["simulate", "all_reduce", "--bytes", "-1"], "expected one argument|cannot be read"),
        (["simulate", "all_redcue"], "all_reduce"),
        (["simulate", "all_reduce", "--algorithm", "rign"], "ring"),
        (["simulate", "all_reduce", "--dtype", "float33"], "float32"),
        (["simulate", "all_reduce", "--topology", "cluster:nods=2"], "no option 'nods'.*'nodes'"),
        (["simulate", "all_reduce", "--topology", "cluster:nodes"], "not name=value"),
        (["simulate", "all_reduce", "--topology", "nowhere.json"], "does not exist"),
        (["simulate", "all_reduce", "--topology", "h1000"], "h1000"),
        (["run", "all_reduce", "--iterations", "0"], "--iterations"),
        (["frobnicate"], "invalid choice"),
        (["doctor", "--port", "1"], "unrecognized arguments: --port"),
        (["lab", "--notebook", "99_none.ipynb"], "there is no lab.*00_tour.ipynb"),
    ],
)
def test_a_wrong_call_is_one_message_and_exit_2(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    code, out, err = call(capsys, *words)
    assert (code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in err
    assert re.search(message, err), err


def test_a_missing_file_is_exit_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = call(capsys, "trace", "info", str(tmp_path / "none.arrow"))
    assert code in (1, 2) and not out and len(err.strip().splitlines()) == 1


def test_a_corrupt_trace_is_one_message(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "bad.arrow"
    file.write_bytes(b"ARROW1\0\0 but not really")
    code, out, err = call(capsys, "trace", "stats", str(file))
    assert code == 1 and not out and len(err.strip().splitlines()) == 1


def test_debug_shows_the_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CCL_LAB_LOG", "debug")
    code, _, err = call(capsys, "simulate", "all_redcue")
    assert code == 2 and "Traceback" in err


def test_an_unknown_key_stops_every_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CCL_LAB_TIMOUT", "1s")
    code, _, err = call(capsys, "simulate", "all_reduce")
    assert code == 2 and "CCL_LAB_TIMEOUT" in err


def test_doctor_reports_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "doctor", "--json")
    report = json.loads(out)
    names = {check["name"] for check in report["checks"]}
    assert {
        "python",
        "engine",
        "compiler",
        "cores",
        "shared memory",
        "sockets",
        "NICs",
        "RDMA",
        "GPU",
        "torch",
        "chromium",
    } <= names
    assert all(check["get"] for check in report["checks"] if not check["ok"])
    assert code == (0 if report["healthy"] else 1)
    code, out, _ = call(capsys, "doctor")
    assert "python" in out


def test_doctor_survives_a_broken_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_broken() -> doctor.Finding:
        raise OSError("no such thing")

    monkeypatch.setattr(doctor, "CHECKS", (check_broken,))
    assert [finding.ok for finding in doctor.examine()] == [False]


def test_lab_command_opens_the_tour() -> None:
    words = lab.command("00_tour.ipynb", ["--no-browser", "--port", "8899"])
    assert words[0] == sys.executable and words[-3:] == ["--no-browser", "--port", "8899"]
    assert any(word.endswith("/lab/tree/labs/00_tour.ipynb") for word in words)


def test_links_of_labs_lie_under_the_root_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a clone docs/ is served too, of an installed package only the notebooks are there."""
    root = lab.labs_folder().parent
    assert f"--ServerApp.root_dir={root}" in lab.command("00_tour.ipynb", []) and (root / "docs").is_dir()
    (tmp_path / "labs").mkdir()
    (tmp_path / "labs" / "own.ipynb").write_text("{}")
    monkeypatch.setattr(lab, "LABS", (tmp_path / "labs",))
    words = lab.command("own.ipynb", [])
    assert f"--ServerApp.root_dir={tmp_path / 'labs'}" in words and "--LabApp.default_url=/lab/tree/own.ipynb" in words


def test_lab_asks_nobody_for_news() -> None:
    (folder,) = (word.split("=")[1] for word in lab.command("00_tour.ipynb", []) if word.startswith("--LabApp.app_settings_dir="))
    settings = json.loads(Path(folder, "overrides.json").read_text())["@jupyterlab/apputils-extension:notification"]
    assert settings == {"checkForUpdates": False, "fetchNews": "false"}


def test_lab_passes_further_arguments_on(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(lab.subprocess, "call", lambda words: started.append(words) or 0)
    assert cli.main(["lab", "--no-browser", "--port=8899"]) == 0
    assert started[0][-2:] == ["--no-browser", "--port=8899"]


def test_topology_text() -> None:
    topology = arguments.topology_from_text(SMALL)
    assert (topology.n_nodes, topology.n_ranks) == (2, 4)
    assert arguments.topology_from_text("hgx_h100:nodes=2").n_ranks == 16
    assert arguments.topology_from_text("machine:ranks=2").n_ranks == 2


def test_topology_file(tmp_path: Path) -> None:
    topology = arguments.topology_from_text(SMALL)
    topology.save(tmp_path / "t.json")
    assert arguments.topology_from_text(str(tmp_path / "t.json")) == topology


def test_module_runs() -> None:
    found = subprocess.run([sys.executable, "-m", "ccl_lab.cli", "--version"], capture_output=True, text=True)
    assert found.returncode == 0 and found.stdout.startswith("ccl-lab ")


def test_simulate_lists_the_rows_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("simulate", "all_reduce", "--topology", "h100:nodes=64", "--algorithm", "hierarchical", "--fault", "nic:node=7,nic=2")
    code, out, _ = call(capsys, *words, "--rows", "nics,nodes", "--json")
    rows = json.loads(out)["rows"]
    assert code == 0 and list(rows) == ["nodes", "nics"] and rows["nics"][0]["node"] == 7
    code, out, _ = call(capsys, *words, "--rows", "nics")
    assert code == 0 and "nics:\n  node 7" in out
    code, out, err = call(capsys, *words, "--rows", "links")
    assert code == 2 and not out and "ranks, nodes, nics" in err
    code, out, _ = call(capsys, "simulate", "all_reduce", "--topology", "h100:nodes=2", "--rows", "steps,nic:1:2", "--json")
    rows = json.loads(out)["rows"]
    assert code == 0 and list(rows) == ["steps", "nic:1:2"] and rows["steps"][0]["ops"] > 0 and rows["nic:1:2"][0]["op_id"] >= 0


def test_predict_says_time_choice_and_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "predict", "all_reduce", "--platform", "h100", "--nodes", "8", "--bytes", "4KiB,64MiB,1GiB", "--json")
    assert code == 0 and not err
    found = json.loads(out)
    assert (found["source"], found["library"], found["ranks"]) == ("model", "nccl", 64)
    assert [row["bytes"] for row in found["rows"]] == [4096, 64 << 20, 1 << 30]
    for row in found["rows"]:
        assert row["time_us"] == pytest.approx(sum(row["parts_us"].values())) and row["algorithm"] and row["protocol"]
    assert [row["error"] and row["error"]["platform"] for row in found["rows"]] == [None, "hgx_h100", "hgx_h100"]
    code, out, _ = call(capsys, "predict", "all_gather", "--platform", "gb200_ctran", "--gpus", "16", "--bytes", "64MiB")
    assert code == 0 and "ctran" in out and "largest 6.1 %" in out
    code, out, _ = call(capsys, "predict", "all_reduce", "--platform", "b200", "--bytes", "1GiB")
    assert code == 0 and "no row of such a size is published" in out
    code, out, _ = call(capsys, "predict", "all_reduce", "--platform", "h100:nodes=4", "--bytes", "1GiB", "--json")
    assert code == 0 and json.loads(out)["nodes"] == 4


@pytest.mark.parametrize("words, why", [
    (("all_reduse",), "all_reduce"), (("all_reduce", "--platform", "h10O"), "h100"), (("all_reduce", "--bytes", ","), "expected a size"),
    (("all_reduce", "--bytes", "-5"), "-5"), (("all_reduce", "--protocol", "LLL"), "LLL"), (("all_reduce", "--library", "nckl"), "nccl"),
])  # fmt: skip
def test_predict_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], why: str) -> None:
    code, out, err = call(capsys, "predict", *words)
    assert code == 2 and not out and why in err
