"""Models of NCCL and CTran: the published rows within their bars, what the numbers must obey, and bad input.

Is not: the fit (bench/validation.py), of which only its reproducibility on one platform is held here.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from ccl_lab.errors import UsageError
from ccl_lab.simulator.models import CTRAN_PLATFORMS, PLATFORMS, CtranPlatform, predict, published
from ccl_lab.simulator.models.nccl import ALGORITHMS, FACTORS, Pipeline
from ccl_lab.topo import PRESETS, Topology

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # the bench is part of the clone, not of the package
    sys.path.insert(0, str(ROOT))

from bench import validation  # noqa: E402

ROWS = [row for path in validation.TABLES for row in published.read(path)]
LABELS = list(dict.fromkeys(row.label for row in ROWS))
SIZES = 2 ** np.arange(3, 35)


@pytest.mark.parametrize("label", LABELS)
def test_published_rows_are_within_their_bars(label: str) -> None:
    rows = [row for row in ROWS if row.label == label]
    for size, found in published.summary(rows, published.errors(rows)).items():
        median, largest = published.BARS[size]
        assert found["median"] <= median and found["max"] <= largest, (label, size, found)


def test_all_rows_are_there() -> None:
    found = published.summary(ROWS, published.errors(ROWS))
    assert len(ROWS) == 98 and found["large"]["rows"] == 47 and found["middle"]["rows"] == 46
    assert all(row.source for row in ROWS)


def test_error_bars_are_those_of_the_record() -> None:
    errors = json.loads((ROOT / "bench" / "records" / "validation.json").read_text())["errors"]
    of_label = {row.label: row.platform for row in ROWS} | {"all": "all"}
    for label, platform in of_label.items():
        held_out = errors[label]["held out: GPUs" if platform == "gb200_ctran" else "held out: every other size"]
        for size, nbytes in (("large", 1 << 30), ("middle", 1 << 20)):
            bar = published.error_bar(platform, nbytes)
            assert bar is not None and bar.platform == (platform if size in held_out else "all")
            if size in held_out:
                want = held_out[size]
                assert (bar.rows, bar.median, bar.largest) == (want["rows"], round(want["median"], 4), round(want["max"], 4)), label
    assert published.error_bar("hgx_h200", 4096) is None and published.error_bar("hgx_b200", 1 << 30).platform == "all"


def test_no_row_of_h100_infiniband_was_fitted() -> None:
    assert "hgx_h100" not in validation.FITTED
    rows = [row for row in ROWS if row.platform == "hgx_h100"]
    assert rows and np.abs(published.errors(rows)).max() < 0.05


@pytest.mark.parametrize("seen", [4, 8])
def test_ctran_is_predicted_from_another_number_of_gpus(seen: int) -> None:
    rows = [row for row in ROWS if row.platform == "gb200_ctran"]
    known = validation.fit([row for row in rows if row.gpus == seen])
    others = [row for row in rows if row.gpus != seen]
    for size, found in published.summary(others, published.errors(others, known)).items():
        median, largest = published.BARS[size]
        assert found["median"] <= median and found["max"] <= largest, (size, found)


def test_fit_gives_the_stored_parameters() -> None:
    found = validation.fit(ROWS)
    for name, fields in validation.FITTED.items():
        stored = {**PLATFORMS, **CTRAN_PLATFORMS}[name]
        for field in fields:
            assert getattr(found[name], field) == pytest.approx(getattr(stored, field), rel=0.02), (name, field)
    for name, fields in validation.INHERITED.items():
        for field, source in fields.items():
            assert getattr(PLATFORMS[name], field) == pytest.approx(getattr(found[source], field), rel=0.02), (name, field)


def test_parts_add_up_and_the_least_candidate_is_taken() -> None:
    said = predict("all_reduce", "h100", SIZES, nodes=4)
    assert sum(said.parts.values()) == pytest.approx(said.time_us)
    assert np.array(list(said.candidates.values())).min(axis=0) == pytest.approx(said.time_us)
    for i, size in enumerate(SIZES):
        one = predict("all_reduce", "h100", int(size), said.algorithm[i], said.protocol[i], nodes=4)
        assert one.time_us == pytest.approx(said.time_us[i]) and one.algorithm == said.algorithm[i]
        assert one.busbw_gbytes_per_s == pytest.approx(size / one.time_us / 1e3 * 2 * 31 / 32)
    assert said.label == one.label == "model" and "model" in repr(said)


@pytest.mark.parametrize("name", sorted(PLATFORMS))
@pytest.mark.parametrize("op", sorted(FACTORS))
def test_time_grows_with_size_and_never_beats_the_links(op: str, name: str) -> None:
    platform = PLATFORMS[name]
    for nodes in (1, 2, 16):
        said = predict(op, name, SIZES, nodes=nodes)
        same = (said.algorithm[1:] == said.algorithm[:-1]) & (said.protocol[1:] == said.protocol[:-1])
        # Where a table changes the protocol time may fall, as it does in what is published of the A100.
        assert (np.diff(said.time_us)[same | (nodes > 1)] >= 0).all()
        assert (np.diff(said.time_us) >= -0.3 * said.time_us[1:]).all()
        assert said.time_us.min() > platform.launch_us
        if op in ("all_reduce", "all_gather", "reduce_scatter") and nodes > 1:
            crossing = SIZES * FACTORS[op](nodes) / (platform.nics_per_node * platform.nic_gbytes_per_s) / 1e3
            assert (said.time_us >= crossing).all(), nodes
        if nodes == 1 and op in ("all_gather", "reduce_scatter", "broadcast", "reduce"):
            assert (said.time_us >= SIZES * FACTORS[op](said.ranks) / platform.fabric_gbytes_per_s / 1e3).all()
        if nodes == 1 and op == "all_reduce":  # with a switch that adds each GPU still gives and gets all of it
            assert (said.time_us >= SIZES / platform.fabric_gbytes_per_s / 1e3).all()
    assert predict(op, name, "1MiB", nodes=16).time_us >= predict(op, name, "1MiB", nodes=2).time_us


def test_small_messages_use_ll_and_large_ones_simple() -> None:
    assert predict("all_reduce", "a100", 8).protocol == "LL"
    assert predict("all_reduce", "a100", "1GiB").protocol == "Simple"
    assert predict("all_reduce", "h100", "1GiB", nodes=8).algorithm == "nvls_tree"
    assert predict("all_gather", "h200", "64MiB", algorithm="ring").time_us > predict("all_gather", "h200", "64MiB").time_us / 2


def test_a_thread_of_ll_has_one_line_on_its_way() -> None:
    size, a100 = 1 << 30, PLATFORMS["dgx_a100"]
    slow = predict("all_reduce", dataclasses.replace(a100, turn_us=4.0), size, "ring", "LL").parts["bandwidth"]
    assert slow == pytest.approx(size * 2 * 7 / 8 / (24 * 512 * 8) * 4.0)
    fast = predict("all_reduce", dataclasses.replace(a100, turn_us=1e-3), size, "ring", "LL").parts["bandwidth"]
    assert fast == pytest.approx(2 * predict("all_reduce", a100, size, "ring", "LL128").parts["bandwidth"])


def test_the_protocol_of_a_ring_in_a_node_is_that_of_the_table() -> None:
    said = predict("all_reduce", "a100", [32 << 10, 1 << 20, 4 << 20, 64 << 20], "ring")
    assert said.protocol.tolist() == ["LL", "LL", "LL128", "Simple"]
    # 14 hops: 6.6 + 8.4 us + 1.75 S / 87.7 GB/s of LL against 14 + 26.6 us + 1.75 S / (0.92 B) of LL128.
    rate = 0.92 * PLATFORMS["dgx_a100"].ring_gbytes_per_s
    border = (40.6 - 15.0) * 1e3 / 1.75 / (1 / 87.7 - 1 / rate)
    assert predict("all_reduce", "a100", [border * 0.99, border * 1.01], "ring").protocol.tolist() == ["LL", "LL128"]
    assert predict("all_reduce", "a100", 1 << 20, "ring").time_us > predict("all_reduce", "a100", 1 << 20, "ring", "LL128").time_us
    over_nodes = predict("all_reduce", "h100_efa", SIZES, nodes=2)
    assert np.array(list(over_nodes.candidates.values())).min(axis=0) == pytest.approx(over_nodes.time_us)


def test_what_is_known_before_a_fit_holds_where_rows_say_little() -> None:
    rows = np.array([2.0, 2.0, 2.0])

    def errors(x: np.ndarray) -> np.ndarray:
        return np.log(x[0] / rows)

    assert validation.least_squares(errors, [1.0])[0] == pytest.approx(2.0, rel=1e-3)
    held = validation.least_squares(errors, [1.0], [0.2])[0]
    assert 1.0 < held < 2.0 and validation.least_squares(errors, [1.0], [1e-3])[0] == pytest.approx(1.0, rel=1e-2)


def test_pat_and_collnet_only_where_they_exist() -> None:
    flat = Topology.cluster(16, 1, 1, nic_gbits_per_s=400, name="flat")
    assert ("pat", "Simple") in predict("all_gather", flat, 8).candidates
    assert predict("all_gather", flat, 8).algorithm in ("pat", "ring")
    with pytest.raises(UsageError, match="PAT needs several nodes of one GPU"):
        predict("all_gather", "h100", 8, "pat", nodes=2)
    auto = predict("all_reduce", "h100", "1GiB", nodes=8)
    assert not any(name.startswith("collnet") for name, _ in auto.candidates)
    assert predict("all_reduce", "h100", "1GiB", "collnet_direct", nodes=8).time_us < auto.time_us


def test_topology_gives_rates_and_its_preset_the_rest() -> None:
    assert predict("all_reduce", Topology.preset("h100", nodes=8), "1GiB").time_us == predict("all_reduce", "h100", "1GiB", nodes=8).time_us
    halved = dataclasses.replace(Topology.preset("h100", nodes=1), fabric_bytes_per_s=183_500_000_000)
    assert predict("all_gather", halved, "16GiB").busbw_gbytes_per_s == pytest.approx(183.5, rel=0.01)
    slow = Topology.cluster(4, 8, 8, nic_gbits_per_s=100, fabric_gbytes_per_s=300, name="mine")
    fast = Topology.cluster(4, 8, 8, nic_gbits_per_s=200, fabric_gbytes_per_s=300, name="mine")
    assert predict("all_reduce", slow, "1GiB").time_us > 1.8 * predict("all_reduce", fast, "1GiB").time_us
    for name in set(PRESETS) & set(PLATFORMS):
        assert predict("all_reduce", Topology.preset(name), "1MiB").time_us > 0


def test_a_network_adds_latency_and_limits_all_to_all() -> None:
    flat, leaves = Topology.preset("h100", nodes=768), Topology.preset("llama3_24k", nodes=768)
    assert predict("all_to_all", leaves, "16GiB").time_us == pytest.approx(3.5 * predict("all_to_all", flat, "16GiB").time_us, rel=0.02)
    for size in (8, "16GiB"):
        assert predict("all_reduce", leaves, size).time_us > predict("all_reduce", flat, size).time_us
    assert predict("all_reduce", leaves, "16GiB").time_us < 1.05 * predict("all_reduce", flat, "16GiB").time_us
    pod = Topology.preset("llama3_24k", nodes=384)
    assert predict("all_to_all", pod, "16GiB").time_us < 1.05 * predict("all_to_all", Topology.preset("h100", nodes=384), "16GiB").time_us
    for name in PRESETS:
        assert predict("all_reduce", Topology.preset(name, nodes=4), "1MiB").time_us > 0


def test_platforms_are_found_as_tables_write_them() -> None:
    for row in ROWS:
        if row.platform in PLATFORMS:
            said = predict(row.op, row.label, row.nbytes)
            assert (said.platform, said.nodes, said.ranks) == (row.platform, row.nodes, row.gpus)
    assert predict("all_reduce", "A100 EFA 4x8", 8).ranks == 32
    assert predict("all_reduce", "gb200", 8, nodes=18, gpus=72).nodes == 1, "the trays of a rack are one NVLink domain"
    with pytest.raises(UsageError, match="nodes of 8 GPUs"):
        predict("all_reduce", "H100 IB 2x6", 8)


def test_tables_of_ones_own(tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    head = "platform,nodes,gpus,bytes,measure,value,source\n"
    table.write_text(head + "B200 1x8 ring,1,8,1073741824,busbw_gbytes_per_s,600,me\nH100 EFA 4x8,4,32,1073741824,time_us,6000,me\n")
    ring, four = published.read(table)
    assert (ring.platform, ring.algorithm, ring.nodes) == ("hgx_b200", "ring", 1)
    assert (four.platform, four.algorithm, four.nodes) == ("h100_efa", None, 4)
    said = predict("all_reduce", "b200", 1 << 30, "ring").time_us
    assert published.errors([ring])[0] == pytest.approx(said / ring.time_us - 1)
    table.write_text(head + "H100 EFA 4x8,4,32,0,time_us,6000,me\n")
    with pytest.raises(UsageError, match="line 2: .*1 byte or more"):
        published.read(table)


def test_pipeline_fills_once() -> None:
    """Three equal stages, all bytes in flight: three times the bandwidth term; few in flight: that many twice more."""
    nbytes = np.array([1e3, 1e12])
    parts = Pipeline(0.0, (1e-3, 1e-3, 1e-3), 1e6).parts(nbytes)
    assert parts["fill"][0] == pytest.approx(2e-3 * 1e3, rel=2e-3)
    assert parts["fill"][1] == pytest.approx(2e-3 * 1e6, rel=2e-3)


def test_ctran_one_segment_uses_one_nic_and_a_small_window_limits() -> None:
    from ccl_lab.simulator.models.ctran import put_us

    gb200 = CTRAN_PLATFORMS["gb200_ctran"]
    one, two = put_us(gb200, np.array([(512 << 10) - 1.0, 512 << 10]))
    assert one == pytest.approx(2 * two, rel=1e-4)
    narrow = CtranPlatform(**{**vars(gb200), "qps": 1, "inflight": 1, "round_trip_us": 100.0})
    assert narrow.gbytes_per_s == pytest.approx(0.524288 * 10)
    assert predict("all_gather", narrow, "1GiB", gpus=4).time_us > 10 * predict("all_gather", gb200, "1GiB", gpus=4).time_us


def test_ctran_on_other_machines_has_their_nics() -> None:
    gb200 = predict("all_gather", "gb200_ctran", "4GiB", "ring", gpus=16)
    h100 = predict("all_gather", Topology.preset("h100", nodes=2), "4GiB", "ring", library="ctran")
    assert h100.ranks == 16 and h100.library == "ctran" and h100.time_us == pytest.approx(2 * gb200.time_us, rel=0.02)
    small = [predict("all_gather", name, 8, "ring", library="ctran", gpus=16).time_us for name in ("h100", "gb200_ctran")]
    assert small[0] == pytest.approx(small[1], rel=1e-3)


def test_every_algorithm_is_reached() -> None:
    found = set()
    flat = Topology.cluster(16, 1, 1, nic_gbits_per_s=400, name="flat")
    for op in FACTORS:
        for where, more in (("h100", {"nodes": 8}), ("h200", {}), (flat, {})):
            found |= {name for name, _ in predict(op, where, 8, **more).candidates}
    assert found == {name for name in ALGORITHMS if not name.startswith("collnet")}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("all_redcue", "h100", 8), "op 'all_redcue' is not .*all_reduce"),
        (("all_reduce", "h10", 8), 'no platform .*h100'),
        (("all_reduce", "h100", 0), "size of 1 or more"),
        (("all_reduce", "h100", [8, -1]), "size of 1 or more"),
        (("all_reduce", "h100", []), "found none"),
        (("all_reduce", "h100", float("nan")), "size of 1 or more"),
        (("all_reduce", "h100", "8 bananas"), "cannot be read"),
        (("all_reduce", "h100", 8, "rnig"), "algorithm 'rnig' is not .*ring"),
        (("all_reduce", "h100", 8, "pat"), "it is for all_gather"),
        (("all_reduce", "h100", 8, "nvls_tree"), "more than one node"),
        (("all_reduce", "a100", 8, "nvls"), "no multicast"),
        (("all_reduce", "h100", 8, None, "LL12"), "protocol 'LL12' is not .*LL128"),
        (("all_reduce", "h200", 8, "nvls", "LL"), "nothing runs so"),
        (("all_reduce", "h100", 8, None, None, "nccll"), "library 'nccll' is unknown.*nccl"),
        (("all_reduce", "h100", 8, None, None, "ctran"), "how many ranks"),
        (("all_reduce", "gb200_ctrna", 8, None, None, "ctran"), "no platform .*gb200"),
        (("all_reduce", "gb200_ctran", 8), "how many ranks"),
    ],
)  # fmt: skip
def test_bad_input_is_named(arguments: tuple[object, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        predict(*arguments)  # type: ignore[arg-type]


def test_bad_numbers_of_nodes_and_tables_are_named(tmp_path: Path) -> None:
    for more, words in (({"nodes": 0}, "nodes 0"), ({"gpus": 12}, "multiple"), ({"gpus": 9, "nodes": 2}, "as many on each node")):
        with pytest.raises(UsageError, match=words):
            predict("all_reduce", "h100", 8, **more)
    with pytest.raises(UsageError, match="power of two"):
        predict("all_gather", "gb200_ctran", 8, "recursive_doubling", gpus=6)
    with pytest.raises(UsageError, match="cannot be read"):
        published.read(tmp_path / "none.csv")
    table = tmp_path / "table.csv"
    table.write_text("platform,gpus,bytes,measure,value,source\nH100 IB 8x8,64,many,time_us,5,here\n")
    with pytest.raises(UsageError, match="line 2: expected a number in column 'bytes'"):
        published.read(table)
    table.write_text("platform,gpus,bytes,measure,value,source\nTPU,64,8,time_us,5,here\n")
    with pytest.raises(UsageError, match="TPU"):
        published.read(table)
