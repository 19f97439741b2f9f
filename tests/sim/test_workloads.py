"""Workloads on predicted collectives: training and decode steps, all_to_allv, replays of Chakra graphs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccl_lab.errors import DecodeError, UsageError
from ccl_lab.simulator.models import (
    DEVICES,
    Device,
    Parallel,
    Transformer,
    all_to_allv_us,
    decode_step,
    predict,
    replay,
    training_step,
)
from ccl_lab.trace.importers.protobuf import delimited, put_bytes, put_int

LLAMA = Transformer(80, 8192, 28672, key_value_share=1 / 8)
MOE = Transformer(60, 7168, 2048, experts=256, active=8, key_value_share=0.1)


def step(parallel: Parallel, model: Transformer = LLAMA, **more: object):
    return training_step(model, parallel, "h100", **{"sequence": 8192, "batch": 2, **more})  # type: ignore[arg-type]


def test_parameters_of_known_models() -> None:
    assert LLAMA.parameters == pytest.approx(70.6e9, rel=0.01)  # Llama 3 70B: arXiv 2407.21783
    assert Transformer(32, 4096, 14336, key_value_share=1 / 4).parameters == pytest.approx(8.0e9, rel=0.01)


def test_one_rank_only_computes_what_the_roofline_says() -> None:
    alone = step(Parallel())
    assert alone.exposed == 0 and alone.seconds == alone.parts["compute"] and alone.label == "model"
    h100 = DEVICES["h100"]
    assert alone.seconds == pytest.approx(3 * 80 * LLAMA.layer_flops(2 * 8192, 8192) / (h100.tflops * 1e12 * h100.share))
    slow_memory = Device(989, 0.5, 1e-3)
    assert step(Parallel(), device=slow_memory).seconds > 100 * alone.seconds
    assert step(Parallel(), layer_seconds=0.01).seconds == pytest.approx(3 * 80 * 0.01)


@pytest.mark.parametrize(
    "parallel",
    [
        Parallel(tensor=8), Parallel(tensor=8, sequence=False), Parallel(pipeline=4, microbatches=8), Parallel(data=64),
        Parallel(data=64, sharding="fsdp"), Parallel(data=64, sharding="hsdp", shards=8),
        Parallel(tensor=8, pipeline=4, data=16, microbatches=8, sharding="fsdp"),
    ],
    ids=str,
)  # fmt: skip
def test_parts_add_up_and_nothing_is_free(parallel: Parallel) -> None:
    found = step(parallel, batch=parallel.microbatches)
    assert found.seconds == pytest.approx(sum(found.parts.values()))
    assert min(found.parts.values()) >= 0 and 0 < found.exposed < 1
    assert found.parts["data"] <= found.whole["data"] + 1e-12
    assert (found.parts["tensor"] > 0) == (parallel.tensor > 1) and (found.parts["bubble"] > 0) == (parallel.pipeline > 1)


def test_the_bubble_is_p_minus_1_over_m() -> None:
    found = step(Parallel(pipeline=4, microbatches=8), batch=8)
    assert found.parts["bubble"] == pytest.approx(found.parts["compute"] * 3 / 8)


def test_tensor_parallelism_is_four_pairs_a_layer() -> None:
    found = step(Parallel(tensor=8))
    nbytes = 2 * 8192 * 8192 * 2
    pair = sum(predict(op, "h100", nbytes, nodes=1, gpus=8).time_us for op in ("all_gather", "reduce_scatter"))
    assert found.parts["tensor"] == pytest.approx(4 * 80 * pair / 1e6)


def test_data_parallelism_hides_under_computation_until_there_is_too_little() -> None:
    much, little = step(Parallel(data=64), layer_seconds=1.0), step(Parallel(data=64), layer_seconds=1e-6)
    assert much.parts["data"] == pytest.approx(much.whole["data"] / 80) and little.parts["data"] > 0.99 * little.whole["data"]
    shards = step(Parallel(data=64, sharding="fsdp"), layer_seconds=1e-6)
    assert shards.whole["data"] > little.whole["data"]  # gathers twice
    copies = step(Parallel(data=512, sharding="hsdp", shards=8), layer_seconds=1e-6)
    assert copies.whole["data"] < step(Parallel(data=512, sharding="fsdp"), layer_seconds=1e-6).whole["data"]


def test_experts_send_and_more_of_them_send_farther() -> None:
    near, far = (step(Parallel(data=64, expert=n), MOE, sequence=4096) for n in (8, 64))
    assert 0 < near.parts["expert"] < far.parts["expert"]
    assert step(Parallel(data=64), MOE, sequence=4096).parts["expert"] == 0


def test_all_to_allv_is_half_handshake_at_8_mb_among_128() -> None:
    """arXiv 2510.20171: at 8 MB over 128 GPUs about half is handshake."""
    found = all_to_allv_us(128, 8e6)
    assert found["total"] == pytest.approx(found["control"] + found["bandwidth"])
    assert found["control"] / found["total"] == pytest.approx(0.5, abs=0.05)
    assert all_to_allv_us(1, 0)["total"] == 0
    assert all_to_allv_us(128, 8e6, control="persistent")["total"] < 0.7 * found["total"]


def test_persistent_handles_shorten_decoding_most_where_messages_are_small() -> None:
    """arXiv 2510.20171: decode latency falls by 15 to 80 %; handshakes are the part of it that this model knows."""
    gains = []
    for batch in (1, 8, 64, 1024):
        before, after = (decode_step(MOE, ranks=128, batch=batch, context=4096, control=how) for how in ("handshake", "persistent"))
        assert before.seconds == pytest.approx(sum(before.parts.values()))
        gains.append(1 - after.seconds / before.seconds)
    assert gains == sorted(gains, reverse=True) and 0.15 < gains[2] < gains[0] < 0.8 and gains[3] < 0.15


def test_bad_splits_are_named() -> None:
    for parallel, words in (
        (Parallel(pipeline=3), "80 layers over 3"), (Parallel(data=0), "data 0"), (Parallel(sharding="zero"), "sharding .zero. is unknown"),
        (Parallel(data=8, sharding="hsdp", shards=3), "shards 3"), (Parallel(data=6, expert=4), "6 data ranks over 4"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=words):
            step(parallel)
    with pytest.raises(UsageError, match="device .* is unknown.*h100"):
        step(Parallel(), device="h10")
    with pytest.raises(UsageError, match="control .* is unknown.*handshake"):
        all_to_allv_us(8, 8, control="handshak")
    with pytest.raises(UsageError, match="256 experts over 100"):
        decode_step(MOE, ranks=100, batch=1, context=1)
    with pytest.raises(UsageError, match="nbytes -1"):
        all_to_allv_us(8, -1)


# -- Chakra


def write(path: Path, *nodes: tuple[int, str, int, list[int], list[int], int, dict[str, object]]) -> Path:
    """An .et of (id, name, type, data_deps, ctrl_deps, duration us, attr)."""
    out = delimited(put_bytes(1, "0.0.4"))
    for number, name, kind, data, control, duration, attr in nodes:
        node = put_int(1, number) + put_bytes(2, name) + put_int(3, kind) + put_int(7, duration)
        node += (put_bytes(4, bytes(control)) if control else b"") + (put_bytes(5, bytes(data)) if data else b"")
        for key, value in attr.items():
            one = put_bytes(29, value) if isinstance(value, str) else put_int(9, value)  # type: ignore[arg-type]
            node += put_bytes(10, put_bytes(1, key) + one)
        out += delimited(node)
    path.write_bytes(out)
    return path


def test_a_graph_is_replayed_with_predicted_collectives(tmp_path: Path) -> None:
    reduce = {"comm_type": 0, "comm_size": 64 << 20, "pg_name": "dp"}
    path = write(
        tmp_path / "job.0.et",
        (1, "gemm", 4, [], [], 100, {}),
        (2, "reduce", 7, [1], [], 7, reduce),
        (3, "gemm2", 4, [1], [], 200, {}),
        (4, "gemm3", 4, [], [2], 50, {}),
        (5, "unsized", 7, [4], [], 30, {"comm_type": 0}),
    )
    said = predict("all_reduce", "h100", 64 << 20, nodes=4, gpus=32).time_us
    trace = replay(path, "h100", nodes=4, gpus=32)
    columns = (trace[column] for column in ("name", "begin_ns", "end_ns"))
    spans = {trace.meta["names"][name]: (begin, end) for name, begin, end in zip(*columns, strict=True)}
    assert spans["gemm"] == (0, 100_000) and spans["gemm2"] == (100_000, 300_000)
    assert spans["reduce"] == (100_000, 100_000 + round(said * 1000))
    assert spans["gemm3"][0] == spans["reduce"][1], "a control dependency holds, too"
    assert spans["unsized"] == (spans["gemm3"][1], spans["gemm3"][1] + 30_000)
    assert trace.meta["label"] == "model" and any("1 all_reduce kept" in note for note in trace.meta["notes"])
    inside = replay(path, "h100", nodes=4, gpus=32, groups={"dp": (1, 8)}, compute=0.5)
    assert inside.time_us < trace.time_us and inside["end_ns"][0] == 50_000


def test_a_file_that_is_no_graph_is_named(tmp_path: Path) -> None:
    with pytest.raises(DecodeError, match="none.et"):
        replay(tmp_path / "none.et", "h100", nodes=1, gpus=8)
    (tmp_path / "text.et").write_text("no graph")
    with pytest.raises(DecodeError, match="text.et"):
        replay(tmp_path / "text.et", "h100", nodes=1, gpus=8)
    path = write(tmp_path / "x.0.et", (1, "gemm", 4, [], [], 1, {}))
    with pytest.raises(UsageError, match="compute -1"):
        replay(path, "h100", nodes=1, gpus=8, compute=-1)
