"""Importers, form by form: classes of kernels, flight recorder, Chakra, words."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from foreign_cases import (
    BASE,
    COLLECTIVES,
    flight,
    flight_pickle,
    kineto,
)

from ccl_lab import cli
from ccl_lab.errors import UsageError
from ccl_lab.trace import SpanKind, SpanStatus, Trace
from ccl_lab.trace.importers.classes import Classifier, parse_rules
from ccl_lab.trace.importers.job import op_word, rank_in_name
from ccl_lab.trace.importers.sources import read_bytes


def read(document, name="x.json", **options):
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    return read_bytes(data, name, **options)


COMMUNICATION = [
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*)",
    "ncclDevKernel_Generic_4(ncclDevKernelArgs)",
    "ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs4K)",
    "rccl_main_kernel",
    "mscclKernel_Sum_half_Simple_false",
    "hcom_allReduce__123_1_1",
    "void deep_ep::internode::dispatch<false, 8>(int4*)",
    "void deep_ep::intranode::combine<__nv_bfloat16, 8>(float*)",
    "deep_ep::internode_ll::dispatch",
    "nvshmemi_barrier_all_kernel",
    "void nvshmemx_reduce_on_stream",
    "userbuffers_fp16_sum_inplace_gpu_rw_ag",
    "kuserbuffers_pushsend",
    "void two_shot_all_reduce_kernel<c10::BFloat16>",
    "multimem_all_reduce_kernel",
    "void vllm::cross_device_reduce_1stage<half, 8>",
    "Memcpy PtoP (Device -> Device)",
    "void mscclpp::allreduce",
    "trtllm::allreduce_fusion_kernel_oneshot_lamport",
]
COMPUTATION = [
    "ncclPostProcess(float*)",
    "nccl_like_user_kernel",
    "ampere_sgemm_128x64_nn",
    "reduce_kernel<512, 1>",
    "void at::native::gather_kernel",
    "void deep_ep::layout::get_dispatch_layout<256>",
    "void allreduceless_matmul",
    "void scatter_gather_elementwise_kernel",
]


def test_classes_come_from_the_table_and_not_from_a_prefix():
    classifier = Classifier()
    assert {name: classifier.rule(name).span_class.name for name in COMMUNICATION} == dict.fromkeys(
        COMMUNICATION, "communication"
    )
    assert {name: classifier.rule(name).span_class.name for name in COMPUTATION} == dict.fromkeys(
        COMPUTATION, "compute"
    )
    assert Classifier().rule("Memcpy HtoD (Pinned -> Device)").span_class.name == "memcpy"


def test_the_table_can_be_edited_and_the_report_says_what_was_what(tmp_path, capsys):
    table = tmp_path / "mine.txt"
    table.write_text("# ours\ncommunication  mine  ^ampere_sgemm\nignore  mine  ^Memset\n")
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(kineto()))
    trace = Trace.load(path, classes=table)
    assert trace.partition()[0]["compute_us"] == 0 and len(trace) == 3 * COLLECTIVES
    row = next(row for row in trace.meta["classified"] if row["library"] == "mine")
    assert (
        row["class"] == "communication"
        and row["spans"] == COLLECTIVES
        and row["time_us"] == 480 * COLLECTIVES
    )
    assert row["examples"] == ["ampere_sgemm_128x64_nn"] and row["pattern"] == "^ampere_sgemm"
    assert cli.main(["trace", "stats", str(path), "--classes", str(table)]) == 0
    assert "mine" in capsys.readouterr().out
    for text, words in (
        ("communication x", "two blanks"),
        ("talk  a  b", "class 'talk' is unknown"),
        ("compute  a  (", "no regular expression"),
    ):
        with pytest.raises(UsageError, match=words):
            parse_rules(text, "t")
    with pytest.raises(UsageError, match="cannot be read"):
        Trace.load(path, classes=tmp_path / "none.txt")


@pytest.mark.parametrize("form", ["json", "pickle"])
def test_flight_recorder_dumps(form, tmp_path):
    for rank in range(2):
        data = json.dumps(flight(rank)).encode() if form == "json" else flight_pickle(rank)
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(data)
    trace = Trace.load(tmp_path / "nccl_trace_rank_0", tmp_path / "nccl_trace_rank_1")
    assert trace.meta["format"] == "flight recorder" and trace.n_ranks == 2 and len(trace) == 8
    assert trace.stragglers().late_rank == 1
    first = trace.stragglers().rows()[0]
    assert (first["op"], first["latency_us"], first["time_us"], first["nbytes"], first["wait_us"]) == (
        "all_reduce",
        100,
        400,
        4000,
        {0: 300.0, 1: 0.0},
    )
    hung = trace[trace["status"] == SpanStatus.open]
    assert len(hung) == 2 and set(hung.names) == {"nccl:all_gather"}
    pair = trace[np.isin(trace["kind"], [SpanKind.put, SpanKind.wait])]
    assert pair["peer"].tolist() == [1, 0] and len(set(pair["coll_id"].tolist())) == 1
    assert any("upper bounds" in note for note in trace.meta["notes"]) and any(
        "had not ended" in note for note in trace.meta["notes"]
    )


def test_a_known_duration_beats_the_watchdog():
    dump = flight()
    dump["entries"][0]["duration_ms"] = 0.25
    trace = read(dump)
    assert trace["end_ns"][0] - trace["begin_ns"][0] == 250_000 and trace["end_ns"][0] == BASE + 500_000


def chakra(*nodes):
    """An .et of (id, name, type, deps, start, duration, attr)."""
    from ccl_lab.trace.importers.protobuf import delimited, put_bytes, put_int

    out = delimited(put_bytes(1, "0.0.4"))
    for number, name, kind, deps, start, duration, attr in nodes:
        node = (
            put_int(1, number)
            + put_bytes(2, name)
            + put_int(3, kind)
            + put_int(6, start)
            + put_int(7, duration)
        )
        node += put_bytes(5, bytes(deps)) if deps else b""
        for key, value in attr.items():
            node += put_bytes(
                10,
                put_bytes(1, key) + (put_bytes(29, value) if isinstance(value, str) else put_int(9, value)),
            )
        node += put_bytes(10, put_bytes(1, "ratio") + b"\x19" + struct.pack("<d", 0.5))
        out += delimited(node)
    return out


def test_chakra_with_times_and_without():
    nodes = [
        (1, "gemm", 4, [], 10, 100, {}),
        (2, "reduce", 7, [1], 90, 50, {"comm_type": 0, "comm_size": 4096, "pg_name": "tp"}),
        (3, "send", 5, [], 150, 10, {"comm_dst": 3, "comm_size": 8}),
        (4, "load", 2, [], 170, 5, {}),
        (5, "meta", 1, [], 0, 9, {}),
    ]
    trace = read(chakra(*nodes), "x.2.et")
    assert trace["rank"].tolist() == [2] * 4 and trace.meta["coll_ops"] == ["all_reduce", "send"]
    assert trace["begin_ns"].tolist() == [10_000, 90_000, 150_000, 170_000] and trace["peer"].tolist() == [
        -1,
        -1,
        3,
        -1,
    ]
    assert trace["nbytes"].tolist() == [0, 4096, 8, 0] and trace.partition()[0]["exposed_comm_us"] == 40
    bare = [(i, name, kind, deps, 0, duration, attr) for i, name, kind, deps, _, duration, attr in nodes]
    laid = read(chakra(*bare), "x.et")
    assert any("laid out" in note for note in laid.meta["notes"])
    assert laid["begin_ns"].tolist() == [0, 0, 100_000, 150_000], (
        "the load and the product at once, then the collective, then the send"
    )


def test_words_for_collectives_and_ranks():
    words = {
        "_allgather_base": "all_gather",
        "allreduce_coalesced": "all_reduce",
        "ReduceScatter": "reduce_scatter",
        "all_to_allv": "all_to_all",
        "nccl:broadcast": "broadcast",
        "_reduce_oop": "reduce",
        "barrier": "barrier",
        "x": "communication",
    }
    assert {word: op_word(word) for word in words} == words
    names = {
        "a/worker3_step_12.1694.pt.trace.json": 3,
        "rank-12.json.gz": 12,
        "nccl_trace_rank_5": 5,
        "x.7.et": 7,
        "chakra.0.et": 0,
        "x.json": -1,
        "sampled_rank-0.json.gz": 0,
    }
    assert {name: rank_in_name(name) for name in names} == names
