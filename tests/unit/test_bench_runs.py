"""The bench's running of parties: lines read live, crashes, hangs, wrong sums, order of rounds, catching up. No timing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT, ROOT / "bench/peers"):  # peers' Python programs import py_core from beside them
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import py_core  # noqa: E402

from bench.peers import catalogue, cells, programs, rounds  # noqa: E402
from bench.peers.__main__ import chosen, main, median_floor, run_rounds, start_rows, time_starts  # noqa: E402
from bench.peers.cells import Cell, Limits, Outcome, Sample, cell  # noqa: E402

LIMITS = Limits(cell_s=1.0, start_s=4.0)
FAKE = """
import json, os, sys, time
words = sys.argv[1:]
cells = words[words.index("--cells") + 1].split(",")
for text in cells:
    op, _, nbytes = text.partition(":")
    line = {"op": op, "ranks": 2, "bytes": int(nbytes), "in_place": 0, "batch_us": [2.0, 1.0], "ok": True}
    if op == "all_to_all":
        line |= {"ok": False, "error": "wrong result, element 3"}
    if op == "broadcast":
        print("about to fall over", file=sys.stderr); sys.exit(7)
    if op == "ping_pong":
        if os.fork() == 0:
            open(os.environ["FAKE_PIDS"], "a").write(f"{os.getpid()}\\n")
        time.sleep(60)
    if op == "barrier":
        line = {"noise": True}
    print("a launcher's chatter"); print(json.dumps(line), flush=True)
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> catalogue.Party:
    """A party whose ops go right, wrong, down, and nowhere."""
    script = tmp_path / "fake.py"
    script.write_text(FAKE)
    monkeypatch.setenv("FAKE_PIDS", str(tmp_path / "pids"))
    monkeypatch.setattr(cells, "floor", lambda quick=True: {"cache_line_ns": 48.0})
    monkeypatch.setattr(
        cells, "command", lambda party, ranks, cores, words: [sys.executable, str(script), *words]
    )
    return catalogue.Party("fake", "mpi", catalogue.Library("fake"))


def measured(party: catalogue.Party, *ops: str) -> Outcome:
    return cells.measure(party, [cell(op, 2, 1024) for op in ops], 0, 0, 2, LIMITS)


def test_lines_become_samples(fake: catalogue.Party) -> None:
    found = measured(fake, "all_reduce", "all_gather")
    assert [one.cell.op for one in found.samples] == ["all_reduce", "all_gather"]
    assert found.samples[0].batch_us == [2.0, 1.0] and found.samples[0].label == "near" and not found.faults


def test_a_wrong_sum_is_named_and_not_timed(fake: catalogue.Party) -> None:
    found = measured(fake, "all_to_all", "all_reduce")
    assert [one.cell.op for one in found.samples] == ["all_reduce"]
    assert found.faults == [(Cell("all_to_all", 2, 1024), "wrong result, element 3")] and not found.hung


def test_a_crash_costs_the_cell_it_happened_in(fake: catalogue.Party) -> None:
    found = measured(fake, "all_reduce", "broadcast", "all_gather")
    assert [one.cell.op for one in found.samples] == ["all_reduce", "all_gather"]
    assert found.faults == [(Cell("broadcast", 2, 1024), "exit 7: about to fall over")]


def test_a_hang_is_ended_and_leaves_nobody(fake: catalogue.Party, tmp_path: Path) -> None:
    begin = time.monotonic()
    found = measured(fake, "all_reduce", "ping_pong", "all_gather")
    assert time.monotonic() - begin < 30  # not the minute that it sleeps
    assert [one.cell.op for one in found.samples] == ["all_reduce", "all_gather"]
    assert found.faults == [(Cell("ping_pong", 2, 1024), "no result in 1 s")] and found.hung
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        stat = Path(f"/proc/{pid}/stat")
        assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_second_fault_without_progress_leaves_the_rest_out(fake: catalogue.Party) -> None:
    found = measured(fake, "broadcast", "all_reduce")
    assert not found.samples and found.hung
    assert found.faults[0][1] == "exit 7: about to fall over"
    assert found.faults[1] == (Cell("all_reduce", 2, 1024), "left out after: exit 7: about to fall over")


def test_a_line_about_nothing_asked_is_ignored(fake: catalogue.Party) -> None:
    found = measured(fake, "all_reduce", "barrier")
    assert [one.cell.op for one in found.samples] == ["all_reduce"]
    assert found.faults == [(Cell("barrier", 2, 0), "printed no line for this cell")]


def test_a_program_that_is_not_there_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, fake: catalogue.Party
) -> None:
    monkeypatch.setattr(cells, "command", lambda *_: ["/nowhere/mpirun"])
    assert measured(fake, "all_reduce").faults[0][1].startswith("did not start")
    assert cells.measure_start(fake, 2, 2, LIMITS) == (None, cells.measure_memory(fake, 2, 2, 8, LIMITS)[1])


# -- rounds


def party(name: str, kind: str = "mpi") -> catalogue.Party:
    return catalogue.Party(name, kind, catalogue.Library(name), oversubscribed_only=name.endswith("-mt"))


class Machine:
    """Stands for `measure`: fixed times, labels in turn, and a journal."""

    def __init__(
        self, times: dict[str, float], labels: Sequence[str] = ("near",), hangs: Sequence[str] = ()
    ) -> None:
        self.times, self.labels, self.hangs, self.journal = times, list(labels), hangs, []  # type: ignore[var-annotated]

    def __call__(
        self, who: catalogue.Party, some: Sequence[Cell], in_place: int, number: int, *_: Any
    ) -> Outcome:
        self.journal.append((who.name, some[0].ranks, in_place, number, [one.op for one in some]))
        if who.name in self.hangs:
            return Outcome(faults=[(one, "no result in 1 s") for one in some], hung=True)
        label = self.labels[min(number, len(self.labels) - 1)]
        return Outcome(
            [Sample(who.name, one, in_place, number, label, 50.0, [self.times[who.name]] * 3) for one in some]
        )


def rounds_of(
    machine: Machine, names: Sequence[str], ops: Sequence[str] = ("broadcast",), ranks: Sequence[int] = (2, 4)
) -> Any:
    parties = [party(name, "ours" if name.startswith("ccl_lab") else "mpi") for name in names]
    return rounds.Rounds(
        parties, rounds.cells_of(ops, ranks, [1024, 65536]), 2, Limits(), lambda line: None, measuring=machine
    )


@pytest.fixture(autouse=True)
def near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "floor", lambda quick=True: {"cache_line_ns": 48.0})


def test_every_other_round_goes_backwards_and_times_contenders_only() -> None:
    machine = Machine({"ccl_lab": 9.0, "impi": 1.0, "ompi5": 1.2, "mpich5": 8.0})
    run = rounds_of(machine, ["ccl_lab", "impi", "ompi5", "mpich5"], ranks=(2,))
    run.round(0)
    assert [name for name, *_ in machine.journal] == ["ccl_lab", "impi", "ompi5", "mpich5"]
    machine.journal.clear()
    from bench.peers import results

    run.round(1, results.contenders(run.rows()))
    assert [name for name, *_ in machine.journal] == ["ompi5", "impi", "ccl_lab"]
    assert all(row["rounds"] == (1 if row["peer"] == "mpich5" else 2) for row in run.rows())


def test_forms_and_variants_are_tried_where_they_matter() -> None:
    machine = Machine({"ccl_lab": 1.0, "impi-tm": 1.0, "mpich5-mt": 1.0})
    run = rounds_of(machine, ["ccl_lab", "impi-tm", "mpich5-mt"], ("all_reduce", "all_to_all"))
    run.round(0)
    tried = {(name, ranks, in_place) for name, ranks, in_place, *_ in machine.journal}
    assert ("mpich5-mt", 2, 0) not in tried and ("mpich5-mt", 4, 0) in tried
    assert all(set(ops) == {"all_reduce"} for _, _, in_place, _, ops in machine.journal if in_place)
    assert min(one.cell.bytes for one in run.run.samples if one.peer == "impi-tm") == 65536


def test_a_party_that_hung_is_not_tried_again_nor_with_more_ranks() -> None:
    machine = Machine({"ccl_lab": 1.0, "impi": 1.0}, hangs=["ompi4"])
    run = rounds_of(machine, ["ccl_lab", "impi", "ompi4"])
    run.round(0)
    run.round(1)
    assert [entry[:2] for entry in machine.journal if entry[0] == "ompi4"] == [("ompi4", 2)]
    assert run.run.faults[("ompi4", 2)] == {
        "no result in 1 s": [Cell("broadcast", 2, 1024), Cell("broadcast", 2, 65536)]
    }
    assert {row["peer"] for row in run.rows()} == {"ccl_lab", "impi"}


def test_catching_up_evens_the_labels() -> None:
    class Moody(Machine):
        def __call__(self, who: catalogue.Party, *rest: Any) -> Outcome:
            self.labels = ["near" if who.name == "ccl_lab" or rest[2] else "far"]
            return super().__call__(who, *rest)

    machine = Moody({"ccl_lab": 1.0, "impi": 1.0})
    run = rounds_of(machine, ["ccl_lab", "impi"], ranks=(2,))
    run.round(0)
    assert {(row["peer"], row["label"]) for row in run.rows()} == {("ccl_lab", "near"), ("impi", "far")}
    assert run.catch_up(1) == 2  # impi's two cells, now that the cores are near
    assert run.catch_up(2) == 0
    assert {(row["peer"], row["label"]) for row in run.rows()} >= {("ccl_lab", "near"), ("impi", "near")}


def test_catching_up_evens_the_forms() -> None:
    class Moody(Machine):
        def __call__(self, who: catalogue.Party, some: Sequence[Cell], in_place: int, *rest: Any) -> Outcome:
            self.labels = ["far" if who.name == "ccl_lab" and in_place and rest[0] == 0 else "near"]
            return super().__call__(who, some, in_place, *rest)

    run = rounds_of(Moody({"ccl_lab": 1.0, "impi": 1.0}), ["ccl_lab", "impi"], ["all_reduce"], ranks=(2,))
    run.round(0)
    assert run.catch_up(1) == 2  # ours, of which only the form out of place was near
    assert run.catch_up(2) == 0
    assert {tuple(row["forms"]) for row in run.rows() if row["label"] == "near"} == {(0, 1)}


def test_cells_that_do_not_fit_into_memory_are_left_out() -> None:
    some = rounds.cells_of(["all_reduce"], [8], [1024, 1 << 30])
    assert [one.bytes for one in rounds.wanted(party("impi"), some, 2, 16 << 30)] == [1024]
    assert [one.op for one in rounds.cells_of(["ping_pong", "barrier"], [2, 4], [8])] == [
        "ping_pong",
        "barrier",
        "barrier",
    ]


def test_rows_so_far_are_written_after_each_round(tmp_path: Path) -> None:
    run = rounds_of(Machine({"ccl_lab": 1.0, "impi": 1.0}), ["ccl_lab", "impi"], ranks=(2,))
    run_rounds(run, 2, tmp_path / "rows.json")
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert {(row["peer"], row["rounds"]) for row in rows} == {("ccl_lab", 2), ("impi", 2)}
    assert not list(tmp_path.glob("*.part"))


def test_starts_timed_before_an_interrupt_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    def start(party: catalogue.Party, n: int, cores: int, limits: Limits) -> tuple[float | None, str]:
        begun.append(n)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return 0.5, ""

    monkeypatch.setattr(cells, "measure_start", start)
    times: dict[tuple[str, int], list[float]] = {}
    parties = [party("one")]
    with pytest.raises(KeyboardInterrupt):
        time_starts(times, parties, (2, 8, 32), 1, 2, LIMITS, rounds_of(Machine({}), ["one"]))
    assert [(row["op"], row["ranks"], row["median_us"]) for row in start_rows(times, parties)] == [
        ("start_up", 2, 5e5), ("start_up", 8, 5e5)
    ]  # fmt: skip


def test_floors_are_medians_of_the_rounds() -> None:
    floors = [{"a": 1.0, "rates": {"8": 10.0}}, {"a": 3.0, "rates": {"8": 30.0}}, {"a": 2.0}, {}]
    assert median_floor(floors) == {"a": 2.0, "rates": {"8": 20.0}}


# -- the command line


def test_wrong_calls_are_one_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["--ops", "all_reduc"],
        ["--ranks", "1,2"],
        ["--ranks", "x"],
        ["--peers", "nosuch"],
        ["--sizes", "8potatoes"],
    ):
        assert main(words) == 2
        said = capsys.readouterr().err.strip()
        assert said.startswith("ccl-lab bench: ") and "\n" not in said


def test_the_command_hands_its_words_to_the_bench(capsys: pytest.CaptureFixture[str]) -> None:
    from ccl_lab import cli

    assert cli.main(["bench", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[:2]] == [
        "ccl_lab",
        "ccl_lab-plain",
    ]
    assert cli.main(["bench", "--ops", "nope"]) == 2
    assert "Known: all_reduce" in capsys.readouterr().err


def test_peers_are_chosen_by_name_or_library() -> None:
    mpich = catalogue.Library("mpich5")
    parties = [
        party("ccl_lab", "ours"),
        catalogue.Party("mpich5", "mpi", mpich),
        catalogue.Party("mpich5-rg", "mpi", mpich),
        party("impi"),
    ]
    assert [one.name for one in chosen(parties, "mpich5")] == ["ccl_lab", "mpich5", "mpich5-rg"]
    assert [one.name for one in chosen(parties, "mpich5-rg,impi")] == ["ccl_lab", "mpich5-rg", "impi"]
    assert chosen(parties, "") == parties
    tcp = catalogue.Party("mpich5-tcp", "mpi", mpich, on_request=True)
    assert tcp not in chosen([*parties, tcp], "") and tcp not in chosen([*parties, tcp], "mpich5")
    assert chosen([*parties, tcp], "mpich5-tcp") == [parties[0], tcp]


# -- the protocol of the programs


class Alone:
    """A world of one rank whose every op is numpy's copy."""

    rank, size = 0, 1

    def __init__(self, wrong: bool = False) -> None:
        self.wrong, self.calls = wrong, 0

    def buffer(self, count: int) -> tuple[Any, np.ndarray]:
        array = np.zeros(count, np.float32)
        return array, array

    def bind(self, op: str, in_place: bool, source: np.ndarray, target: np.ndarray) -> Any:
        def call() -> None:
            self.calls += 1
            target[:] = source + (1 if self.wrong else 0)

        return None if op == "all_to_all" else call

    def max_over_ranks(self, value: float) -> float:
        return value

    def wait_for_all(self) -> None: ...


def test_python_protocol_verifies_times_and_says_what_is_not_offered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--cells", "all_reduce:64,all_to_all:64,barrier:0", "--batches", "2", "--batch-ms", "0.1"]
    py_core.run_all(Alone(), py_core.arguments(words))
    reduce, exchange, barrier = map(json.loads, capsys.readouterr().out.splitlines())
    assert reduce["ok"] and reduce["bytes"] == 64 and len(reduce["batch_us"]) == 2 and reduce["iters"] >= 3
    assert not exchange["ok"] and exchange["error"] == "not offered"
    assert barrier["ok"] and barrier["bytes"] == 0
    wrong = py_core.run_cell(Alone(wrong=True), "all_reduce", 64, py_core.arguments(words))
    assert wrong["error"] == "wrong result" and not wrong["batch_us"]


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
def test_wanted_results_are_the_collectives(op: str) -> None:
    size, count = 3, 5
    inputs = [
        py_core.pattern(py_core.source_rank(op, r), count * py_core.blocks(op, size)[0]) for r in range(size)
    ]
    for rank in range(size):
        mine = slice(rank * count, (rank + 1) * count)
        found = {
            "all_reduce": sum(inputs), "all_gather": np.concatenate(inputs), "reduce_scatter": sum(inputs)[mine],
            "all_to_all": np.concatenate([one[mine] for one in inputs]), "broadcast": inputs[0],
        }[op]  # fmt: skip
        np.testing.assert_array_equal(py_core.wanted(op, rank, size, count), found)


LOOPED = """
#include "bench_core.h"
static struct Library lib;
static int call(enum Op op, int in_place, float* input, float* output, size_t count) {
  if (op == ALL_TO_ALL || (in_place && input != output)) return 0;
  if (op != BARRIER && op != BROADCAST && input != output) memcpy(output, input, count * sizeof(float));
  if (op == REDUCE_SCATTER) output[count - 1] += 1;
  return 1;
}
static double max_over_ranks(double value) { return value; }
static void wait_for_all(void) {}
int main(int argc, char** argv) {
  const struct Arguments arguments = parse(argc, argv);
  lib.size = 1, lib.call = call, lib.max_over_ranks = max_over_ranks, lib.wait_for_all = wait_for_all;
  run_all(&lib, &arguments);
  return 0;
}
"""


def test_native_protocol_verifies_times_and_says_what_is_wrong(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "the tests of this project need a C compiler"
    (tmp_path / "looped.c").write_text(LOOPED)
    program = tmp_path / "looped"
    words = [compiler, "-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'bench/peers'}"]
    subprocess.run([*words, str(tmp_path / "looped.c"), "-o", str(program)], check=True)
    asked = "all_reduce:1000,reduce_scatter:64,all_to_all:64,barrier:0,broadcast:5"
    found = subprocess.run(
        [program, "--cells", asked, "--batches", "2", "--batch-ms", "0.1"],
        check=True,
        capture_output=True,
        text=True,
    )
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert [(line["op"], line["bytes"], line["ok"]) for line in lines] == [
        ("all_reduce", 1000, True), ("reduce_scatter", 64, False), ("all_to_all", 64, False), ("barrier", 0, True),
        ("broadcast", 4, True),
    ]  # fmt: skip
    assert lines[1]["error"] == "wrong result, element 15" and lines[2]["error"].startswith("not offered")
    assert len(lines[0]["batch_us"]) == 2 and lines[0]["iters"] >= 3
    assert subprocess.run([program, "--ops", "nope"], capture_output=True).returncode == 2
    memory = subprocess.run(
        [program, "--memory", "--bytes", "65536"], capture_output=True, text=True, check=True
    )
    assert abs(json.loads(memory.stdout)["memory_bytes"]) < 4 << 20
    start = subprocess.run([program, "--startup"], capture_output=True, text=True, check=True)
    assert json.loads(start.stdout)["ok"] is True


def test_a_program_that_does_not_compile_costs_its_peer_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CCL_BENCH_PEERS", str(tmp_path))
    broken = catalogue.Library("broken", (shutil.which("false") or "/bin/false",))
    parties = [
        catalogue.Party("broken", "mpi", broken),
        catalogue.Party("gloo", "gloo", catalogue.Library("gloo")),
    ]
    failed = programs.build(parties, lambda line: None)
    assert set(failed) == {"broken"} and failed["broken"]


def test_a_checkout_may_keep_its_bytecode_as_installed_peers_have_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert "PYTHONDONTWRITEBYTECODE" not in catalogue.environment(catalogue.Party("x", "mpi", catalogue.Library("x")))


def test_environment_of_a_party_is_ours_its_librarys_and_its_own() -> None:
    library = catalogue.Library("x", env=(("A", "1"), ("B", "1")))
    found = catalogue.environment(catalogue.Party("x-tm", "mpi", library, env=(("B", "2"),)))
    assert (found["A"], found["B"], found["PATH"]) == ("1", "2", os.environ["PATH"])
    assert SimpleNamespace(**found)


def test_a_pulled_nic_counts_where_something_was_sent_again() -> None:
    from bench.rdma import pulled_of

    def line(boot: int, round_: int, machine: int, again: int, **more: Any) -> str:
        said = {"fault": "link", "boot": boot, "round": round_, "machine": machine, "sent_again": again, "exact": True, "back": True}
        return json.dumps(said | more)

    late = {"cut_to_lost_ms": 900.0, "cut_to_resumed_ms": 999.0}
    found = pulled_of([
        line(0, 0, 0, 2), line(0, 0, 1, 0, cut_to_lost_ms=10.0, cut_to_resumed_ms=20.0),  # the far end had segments under way
        line(0, 1, 0, 0), line(0, 1, 1, 0, **late),  # cut between transfers: its times say nothing
        line(1, 0, 0, 0), line(1, 0, 1, 3, cut_to_lost_ms=30.0, cut_to_resumed_ms=40.0, exact=False),
    ])["link"]  # fmt: skip
    assert (found["rounds"], found["in_mid_transfer"], found["exact"], found["back"]) == (3, 2, False, True)
    assert (found["cut_to_resumed_ms"]["n"], found["cut_to_resumed_ms"]["max"]) == (2, 40.0)
    assert found["cut_to_lost_ms"]["p50"] == 20.0 and len(found["runs"]) == 6


def test_rows_of_rdma_have_the_sides_that_were_measured() -> None:
    from bench.rdma import SUMS, rows_of

    def line(round_: int, **seconds: float) -> str:
        sides = {side: {"seconds": 32 * each, "s_per_transfer": each} for side, each in seconds.items()}
        return json.dumps({"nics": 4, "bytes": 1 << 20, "round": round_, "transfers": 32, "sides": sides})

    alone = dict.fromkeys(SUMS, 4.0)
    rounds = [alone | {"all_reduce": 5.0}, alone | {"by_hand": 3.0, "all_reduce": 6.0}]
    (row,) = rows_of("\n".join(line(i, **each) for i, each in enumerate(rounds)))
    assert row["of_core_limit"] == {"all_reduce": (4 / 5 + 3 / 6) / 2, "all_reduce_in_place": 1.0}
    assert row["ranges"]["all_reduce"] == [3 / 6, 4 / 5]
    assert set(row["of_peer"]) == {"all_reduce", "all_reduce_in_place"}  # no perftest one way: only of what both ways do
    (row,) = rows_of(line(0, ib_write_bw=2.0, ib_write_bw_yielding=1.0, transport=2.0))
    assert row["of_peer"]["transport"] == 0.5 and row["of_core_limit"] == {}


def test_perftests_seconds_are_from_the_first_write_of_any_program_to_the_last_completion_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RDMA_VM", "RDMA_VMS", "RDMA_VM_NICS"):
        monkeypatch.setenv(name, "1")
    from tests.rdma.bodies.perftest import clocked_seconds

    assert clocked_seconds(["banner\nclock 1000000000 2000000000\n", "clock 1500000000 4000000000\n"]) == 3.0
    with pytest.raises(AssertionError, match="1 of 2 programs said no time"):
        clocked_seconds(["clock 1 2\n", "banner\n"])
