"""The bench's arithmetic: cells, rows, best peers, labels, ratios, means, the score and the file formats. No timing."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # the bench is part of the clone, not of the package
    sys.path.insert(0, str(ROOT))

from bench.peers import catalogue, curves, report, results, score  # noqa: E402
from bench.peers.cells import Cell, Sample, cell, label_of, parse_line  # noqa: E402

MIB = 1 << 20


def row(
    peer: str, us: float, op: str = "all_reduce", ranks: int = 2, nbytes: int = MIB, **more: Any
) -> results.Row:
    """A row as a run writes it."""
    return results.row(peer, Cell(op, ranks, nbytes), [us], [us], **{"label": "near", "in_place": 0, **more})


def test_parser_takes_lines_of_programs_and_nothing_else() -> None:
    assert parse_line('{"op": "barrier", "batch_us": [1, 2]}\n') == {"op": "barrier", "batch_us": [1, 2]}
    for other in ("", "MPI startup(): Pinning", '{"op": "barr', "[1, 2]", "{half} a line"):
        assert parse_line(other) is None


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (("all_reduce", 4, 8), 8), (("all_reduce", 4, 1), 4), (("all_gather", 4, 8), 16), (("all_to_all", 8, 1024), 1024),
        (("reduce_scatter", 3, 1 << 16), 65532), (("barrier", 8, 77), 0), (("ping_pong", 2, 7), 4),
    ],
)  # fmt: skip
def test_sizes_are_whole_elements_of_every_block(asked: tuple[str, int, int], found: int) -> None:
    assert cell(*asked).bytes == found
    assert cell(asked[0], asked[1], found) == cell(
        *asked
    )  # what a program reports is the cell it was asked for


def test_labels() -> None:
    assert label_of(25.0, 27.0) == "core"
    assert label_of(25.0, 60.0) == "mixed"
    assert label_of(48.0, 60.0) == "near"
    assert label_of(200.0, 449.0) == "far"
    assert label_of(48.0, 200.0) == "mixed"
    assert label_of(None, 48.0) == label_of() == "unknown"


def test_bandwidths_are_those_of_nccl_tests() -> None:
    found = row("impi", 100.0, ranks=4, nbytes=MIB)
    assert found["algbw_gbytes_per_s"] == pytest.approx(MIB / 100e3)
    assert found["busbw_gbytes_per_s"] == pytest.approx(MIB / 100e3 * 2 * 3 / 4)
    assert row("impi", 5.0, op="barrier", nbytes=0)["busbw_gbytes_per_s"] == 0
    assert row("impi", 5.0, op="ping_pong")["busbw_gbytes_per_s"] == pytest.approx(MIB / 5e3)


def test_a_row_is_the_median_of_rounds_and_the_better_form() -> None:
    at = Cell("all_reduce", 2, 8)
    samples = [
        Sample("impi", at, 0, 0, "near", 50, [1.0, 1.1, 9.0]),
        Sample("impi", at, 0, 1, "near", 50, [2.0, 2.1, 2.2]),
        Sample("impi", at, 0, 2, "near", 50, [3.0, 3.1, 3.2]),
        Sample("impi", at, 1, 0, "near", 50, [1.5, 1.5, 1.5]),
        Sample("impi", at, 0, 0, "far", 200, [7.0]),
    ]
    near, far = sorted(
        results.rows_of(samples, {"impi": {"language": "native"}}), key=lambda one: one["median_us"]
    )
    assert (near["median_us"], near["in_place"], near["label"], near["language"]) == (
        1.5,
        1,
        "near",
        "native",
    )
    assert (far["median_us"], far["label"], far["in_place"]) == (7.0, "far", 0)
    out_of_place = results.rows_of([one for one in samples if not one.in_place], {})
    assert next(one for one in out_of_place if one["label"] == "near")["median_us"] == 2.1


def test_only_equal_labels_are_compared() -> None:
    rows = [
        row("ccl_lab", 10), row("impi", 20), row("ompi5", 30), row("ccl_lab", 50, label="far"), row("ompi5", 40, label="far"),
        row("mpich5", 1, label="mixed"), row("ccl_lab", 9, label="mixed"), row("mpi4py-impi", 2, language="python"),
    ]  # fmt: skip
    found = {one.label: one for one in results.compare(rows, "ccl_lab")}
    assert set(found) == {"near", "far"}
    assert (found["near"].peer, found["near"].ratio, found["near"].peers) == ("impi", 2.0, 2)
    assert (found["far"].peer, found["far"].ratio) == ("ompi5", 0.8)
    assert results.cell_ratios(found.values()) == {
        Cell("all_reduce", 2, MIB): pytest.approx(math.sqrt(2.0 * 0.8))
    }


def test_a_row_of_one_form_alone_is_not_ours_to_show_nor_all_there_is_to_beat() -> None:
    rows = [
        row("ccl_lab", 10, forms=[0, 1]), row("impi", 20, forms=[0, 1]), row("ompi5", 15, forms=[1]),
        row("ompi5", 9, forms=[0, 1], label="far"), row("ccl_lab", 50, forms=[0], label="far"), row("oneccl", 30, forms=[0]),
        row("ccl_lab", 8, forms=[0, 1], label="core"), row("ompi5", 99, forms=[0], label="core"),
    ]  # fmt: skip
    found = results.compare(rows, "ccl_lab")
    assert [(one.label, one.peer, one.ratio, one.peers) for one in found] == [("near", "ompi5", 1.5, 3)]  # ompi5: 15 or less
    assert results.rows_of([Sample("impi", Cell("all_reduce", 2, 8), 1, 0, "near", 50, [1.0])], {})[0]["forms"] == [1]


def test_mixed_counts_where_nothing_else_is_there() -> None:
    rows = [row("ccl_lab", 10, label="mixed"), row("impi", 15, label="mixed"), row("impi", 1, label="far")]
    assert [(one.label, one.ratio) for one in results.compare(rows, "ccl_lab")] == [("mixed", 1.5)]


def test_a_missing_peer_or_path_of_ours_is_no_comparison() -> None:
    assert results.compare([row("impi", 3)], "ccl_lab") == []
    assert results.compare([row("ccl_lab", 3), row("ccl_lab-plain", 2)], "ccl_lab") == []


def test_geometric_mean() -> None:
    assert results.geometric_mean([1.0, 4.0, 16.0]) == pytest.approx(4.0)
    assert math.isnan(results.geometric_mean([]))


def test_contenders_are_those_near_the_best_of_their_kind_at_any_label() -> None:
    rows = [
        row("ccl_lab", 99), row("impi", 10), row("ompi5", 12.9), row("ompi4", 13.1), row("mpich5", 50),
        row("mpich5", 40, label="far"), row("impi", 60, label="far"), row("gloo", 900, language="python"),
        row("mpi4py-impi", 11, language="python"), row("mpi4py-ompi5", 15, language="python"),
    ]  # fmt: skip
    assert {peer for peer, _ in results.contenders(rows)} == {
        "ccl_lab",
        "impi",
        "ompi5",
        "mpich5",
        "gloo",
        "mpi4py-impi",
    }


def test_the_floor_is_bytes_that_cross_memory_and_hand_overs() -> None:
    floor = {
        "cache_line_ns": 50.0,
        "yield_us": 1.0,
        "copy_together_gbytes_per_s": {str(MIB): 10.0, "65536": 20.0},
    }
    big = results.floor_us(Cell("all_reduce", 4, MIB), floor, cores=2)
    assert big == pytest.approx(0.05 + 1.0 + 4 * MIB / 10e3)
    assert results.floor_us(Cell("all_gather", 2, 65536), floor, cores=2) == pytest.approx(
        0.05 + 2 * 65536 / 20e3
    )
    assert results.floor_us(Cell("broadcast", 8, MIB), floor, cores=2) == pytest.approx(
        0.05 + 3.0 + 7 * MIB / 10e3
    )
    assert results.floor_us(Cell("start_up", 8, 0), floor, cores=2) is None
    assert results.floor_us(Cell("all_reduce", 4, MIB), {}, cores=2) is None


def test_table_has_ours_the_best_peer_and_the_ratio() -> None:
    rows = [
        row("ccl_lab", 50, floor_us=40.0), row("ccl_lab-plain", 80), row("impi", 100), row("ompi5", 110),
        row("ompi5", 7, op="broadcast", ranks=4, nbytes=8),
    ]  # fmt: skip
    text = report.table(rows)
    line = next(line for line in text.splitlines() if line.strip().startswith(f"{MIB} "))
    assert line.split() == [
        str(MIB), str(MIB // 4), "float", "sum", "|", "50", "21", "21", "0", "|", "80", "|", "100", "10.5", "10.5", "impi",
        "|", "2", "1.25", "|", "40", "80%",
    ]  # fmt: skip
    alone = next(line for line in text.splitlines() if " none " in line)
    assert alone.split()[5] == "-" and "ompi5" in alone  # ours is missing: said, not invented
    assert "# all_reduce, 2 ranks" in text and "# broadcast, 4 ranks" in text


def test_left_out_names_the_peer_and_its_cells() -> None:
    faults = {
        ("ompi4", 8): {"exit 1: no memory": [Cell("all_to_all", 8, MIB)]},
        ("gloo", 64): {"start-up: no result": []},
    }
    text = report.faults(faults, {"oneccl": "not installed"})
    assert "oneccl: not installed" in text and "gloo, 64 ranks: start-up: no result" in text
    assert "ompi4, 8 ranks: exit 1: no memory (all_to_all 1 MiB)" in text
    assert report.faults({}, {}) == ""


def scored(ours_us: float, peer_us: float) -> list[results.Row]:
    sizes, ranks = (8, 1024, 65536, MIB, 16 * MIB, 64 * MIB), (2, 4, 8)
    cells = [cell(op, n, size) for op in score.FIVE for n in ranks for size in sizes]
    return [
        row(peer, us, op=at.op, ranks=at.ranks, nbytes=at.bytes)
        for at in cells
        for peer, us in (("ccl_lab", ours_us), ("impi", peer_us), ("ompi5", 2 * peer_us))
    ]


def test_score_decides_what_rows_can_decide() -> None:
    good = {one.goal: one for one in score.verdicts(scored(1.0, 3.0))}
    bad = {one.goal: one for one in score.verdicts(scored(3.0, 1.0))}
    registered = [
        goal for goal in good if goal.startswith(("registered", "all_reduce of 16 MiB and more,", "8 B"))
    ]
    assert len(registered) == 7
    assert all(good[goal].met is True and bad[goal].met is False for goal in registered)
    undecided = [goal for goal in good if goal not in registered]
    assert undecided and all(good[goal].met is None and good[goal].found == "no data" for goal in undecided)
    assert "3.00x over 60 cells" in good[registered[0]].found


def test_one_slow_cell_is_found_whatever_the_mean() -> None:
    rows = [*scored(1.0, 3.0), row("ccl_lab", 10.0, label="far"), row("impi", 5.0, label="far")]
    verdict = next(one for one in score.verdicts(rows) if "no cell below 0.9x" in one.goal)
    assert verdict.met is False and "worst 0.50x, all_reduce 2 ranks 1 MiB, far, impi" in verdict.found
    assert "  0.50x  all_reduce 2 ranks 1 MiB" in score.text(rows)


def test_fifteen_aims() -> None:
    found = score.aims(
        [
            row("ccl_lab", 0.08, nbytes=8),
            row("ccl_lab", 1.0, nbytes=8, label="far"),
            row("impi", 0.01, nbytes=8),
        ]
    )
    assert len(found) == 15
    assert found[0] == (2, 8, 0.09, 0.08, "near")
    assert all(time_us is None for *_, time_us, _ in found[1:])
    assert "Aims of all_reduce (us): 1 of 15 met" in score.text([row("ccl_lab", 0.08, nbytes=8)])


def test_score_tells_of_a_wrong_result_of_ours() -> None:
    lines = ["  mpich5, 4 ranks: wrong result, element 3 (all_gather 64 KiB)", "  ccl_lab, 4 ranks: no result in 30 s (barrier)"]
    assert score.right(lines).met and score.right(None).met is None
    wrong = "  ccl_lab-plain, 4 ranks: wrong result, element 12582912 (all_gather 64 MiB)"
    assert score.right([*lines, wrong]) == score.Verdict("every result of ours is right", wrong.strip(), False)
    assert f"NOT MET  every result of ours is right: {wrong.strip()}" in score.text(scored(1.0, 3.0), left_out=[wrong])


def test_score_reads_a_list_and_a_record_and_nothing_else(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    rows = scored(1.0, 3.0)
    for name, value in (("list.json", rows), ("record.json", {"benchmark": "peers", "rows": rows})):
        (tmp_path / name).write_text(json.dumps(value))
        monkeypatch.setattr(sys, "argv", ["score", str(tmp_path / name)])
        assert score.main() == 0
        assert "geometric mean at least 1.5x: 3.00x" in capsys.readouterr().out
    (tmp_path / "other.json").write_text('"words"')
    with pytest.raises(SystemExit, match="expected a list of rows"):
        score.load(tmp_path / "other.json")


def test_rows_have_the_columns_of_the_json_list() -> None:
    found = json.loads(json.dumps([row("ccl_lab", 5.0)], allow_nan=False))
    assert set(results.COLUMNS) <= set(found[0])
    assert [type(found[0][name]) for name in results.COLUMNS] == [
        str,
        str,
        int,
        int,
        float,
        float,
        float,
        float,
    ]


def test_html_is_one_file_with_the_curves_and_the_facts(tmp_path: Path) -> None:
    rows = [*scored(1.0, 3.0), row("ccl_lab", 5.0, label="far")]
    curves.write(rows, {"floor": {"cache_line_ns": 48.5}, "note": "<script>"}, tmp_path / "curves.html")
    text = (tmp_path / "curves.html").read_text()
    assert "<script src=" not in text and "<link " not in text  # opens without a network
    assert "Plotly.newPlot" in text and "all_to_all, 8 ranks" in text and "48.5" in text
    assert "cores near" in text and "cores far" in text
    assert text.index("cores near") < text.index("cores far")  # the label of most rows comes first
    assert "&lt;script&gt;" in text
    assert text.count("!function") < text.count("Plotly.newPlot") * 1000  # plotly itself is in it once
    assert "best peer" in text


def test_html_of_nothing_is_still_a_page(tmp_path: Path) -> None:
    curves.write([], {}, tmp_path / "none.html")
    assert "No rows." in (tmp_path / "none.html").read_text()


def test_catalogue_names_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CCL_BENCH_PEERS", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    parties, missing = catalogue.catalogue()
    assert [party.name for party in parties] == [
        "ccl_lab",
        "ccl_lab-plain",
        "ccl_lab-staged",
        "ccl_lab-python",
        "ccl_lab-python-plain",
    ]
    assert set(missing) == {"impi", "ompi5", "ompi4", "mpich5", "mpich4", "oneccl", "mpi4py", "gloo"}
    assert all("--install-peers" in reason for reason in missing.values())


def test_commands_of_parties() -> None:
    mpi = catalogue.Library("ompi5", ("mpicc",), ("mpirun", "--oversubscribe"))
    party = catalogue.Party("ompi5-x", "mpi", mpi, options=("--mca", "a", "b"))
    words = catalogue.command(party, 4, 2, ["--cells", "barrier:0"])
    assert words[:5] == ["mpirun", "--oversubscribe", "--mca", "a", "b"]
    assert (
        words[words.index("--bind-to") + 1] == "none" and words[words.index("mpi_yield_when_idle") + 1] == "1"
    )
    assert words[-5:-2] == ["-n", "4", str(catalogue.cache() / "bin/mpi_bench.ompi5")]
    near = catalogue.command(party, 2, 2, [])
    assert near[near.index("--bind-to") + 1] == "core"
    ours = catalogue.Party(
        "ccl_lab", "ours", catalogue.Library("ccl_lab"), arguments=("--buffers", "registered")
    )
    assert catalogue.command(ours, 8, 2, [])[1:] == ["--buffers", "registered", "--ranks", "8"]
    assert ours.buffers == "registered" and ours.language == "native" and party.language == "native"
