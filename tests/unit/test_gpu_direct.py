"""Arrays of a GPU that NICs reach: which schedules are left to them, what a GPU copies before, who goes another way and why.

Is: engine/direct.py, staged.py and the choice of all ranks, over natives that are played. Is not: registration, NICs and streams
(native/tests/test_device_direct.cpp).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ccl_lab import Topology, plan
from ccl_lab.engine import direct, held, staged, verbs
from ccl_lab.engine.device_arrays import DeviceArray
from ccl_lab.engine.lower import lower
from ccl_lab.engine.shapes import layout_of
from ccl_lab.errors import CclError, RegistrationError, UnsupportedError
from ccl_lab.ir import Buffer, Kind, collectives
from ccl_lab.ir.interpret import interpret
from ccl_lab.ir.layout import Layout

MOVING = ("all_gather", "all_to_all", "broadcast", "gather", "scatter", "send_recv")


def nodes(n: int) -> Topology:
    return Topology.cluster(nodes=n, gpus_per_node=1, nics_per_node=2, nic_gbits_per_s=100)


def planned(collective: str, n: int, nbytes: int = 1 << 20, algorithm: str = "auto", **more: Any) -> Any:
    more = {"peer": 1, **more} if collective == "send_recv" else more
    return plan(collective, nodes(n), nbytes, algorithm=algorithm, **more)


class Memory:
    """The native DirectMemory: an allocation that begins at each address asked for."""

    refuses: dict[str, CclError] = {}
    forwards = True

    def __init__(self, engine: Any, ordinal: int, library: str) -> None:
        if "gpu" in self.refuses:
            raise self.refuses["gpu"]
        self.asked: list[tuple[int, int, str, bool]] = []
        self.closed = False

    def find(self, address: int, nbytes: int, what: str, quiet: bool) -> Any:
        self.asked.append((address, nbytes, what, quiet))
        if what[:3].strip(" o") in self.refuses:
            raise self.refuses[what[:3].strip(" o")]
        return ("view", address, nbytes)

    n_regions = 2

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def memory(monkeypatch):
    monkeypatch.setattr(direct._core, "DirectMemory", Memory)
    monkeypatch.setattr(Memory, "refuses", {})
    monkeypatch.setattr(Memory, "forwards", True)
    return Memory


def array(address: int, count: int) -> DeviceArray:
    return DeviceArray(object(), address, (count,), np.dtype(np.float32), 7, 0, True)


def on_rank(rank: int, why: str = "") -> direct.Direct:
    return direct.Direct(SimpleNamespace(rank=rank, not_direct=why, engine=None), lambda: "")


@pytest.mark.parametrize("n", [2, 3, 5, 8])
@pytest.mark.parametrize("collective", MOVING)
@pytest.mark.parametrize("nbytes", [1 << 12, 1 << 20, 1 << 26])
def test_what_auto_plans_for_a_rank_a_node_is_left_to_nics(collective, n, nbytes):
    schedule = planned(collective, n, nbytes)
    assert [direct.moves_of(schedule, rank).why for rank in range(n)] == [""] * n


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "reduce"])
def test_sums_are_not(collective):
    whys = {direct.moves_of(planned(collective, 4), rank).why for rank in range(4)}
    assert "the processor sums" in whys


def test_copies_in_the_middle_are_not():
    schedule = planned("all_to_all", 4, in_place=True, algorithm="paired")
    assert "in the middle" in direct.moves_of(schedule, 0).why


def run_by_nics(schedule: Any, layout: Layout, inputs: list[np.ndarray], memory: Any) -> list[np.ndarray]:
    """Bytes of every rank's OUTPUT: first what its GPU keeps, then programs without copies, a step of a random rank at a time."""
    n, item = schedule.n_ranks, layout.itemsize
    topology = nodes(n)
    buffers = [
        [inputs[r].view(np.uint8).copy(), *(np.zeros(layout.nbytes(buffer, r), np.uint8) for buffer in (Buffer.output, Buffer.scratch))]
        for r in range(n)
    ]
    programs, at, counters = [], [], np.zeros((n, n, 512), int)
    for rank in range(n):
        x, out = (array(base, buf.size // item) for base, buf in zip((1 << 20, 1 << 30), buffers[rank], strict=False))
        way = on_rank(rank).way(schedule, layout, x, out, 0, True)
        assert way is not None
        for to, begin, nbytes, _ in way.kept:
            where, place = begin - x.address, to - out.address
            buffers[rank][1][place : place + nbytes] = buffers[rank][0][where : where + nbytes]
        rows = lower(schedule, layout, rank, topology, "sum", keeps=False)
        assert not (rows["kind"] == Kind.copy).any()
        programs.append(rows)
        at.append({int(c): 0 for c in np.unique(rows["channel"])})
    rng = np.random.default_rng(n)
    for _ in range(200_000):
        left = [(r, c) for r in range(n) for c in at[r] if at[r][c] < int((programs[r]["channel"] == c).sum())]
        if not left:
            break
        rank, channel = left[rng.integers(len(left))]
        rows = programs[rank]
        op = np.flatnonzero(rows["channel"] == channel)[at[rank][channel]]
        kind, peer, signal = Kind(rows["kind"][op]), int(rows["peer"][op]), int(rows["sig_channel"][op])
        if kind == Kind.wait and counters[peer, rank, signal] < rows["value"][op]:
            continue
        at[rank][channel] += 1
        if kind == Kind.put:
            nbytes, source = int(rows["nbytes"][op]), int(rows["src_begin"][op])
            begin, to = int(rows["src_offset"][source]), int(rows["dst_offset"][op])
            data = buffers[rank][rows["src_buf"][source]][begin : begin + nbytes]
            buffers[peer][rows["dst_buf"][op]][to : to + nbytes] = data
        if kind in (Kind.put, Kind.signal) and signal >= 0:
            counters[rank, peer, signal] += 1
    assert not left
    return [out for _, out, _ in buffers]


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("collective", MOVING)
def test_copies_first_and_the_rest_by_nics_is_the_collective(memory, collective, n):
    for algorithm in ("auto", "direct", "bruck", "ring", "binomial", "pipelined_ring"):
        try:
            schedule = planned(collective, n, 1 << 14, algorithm)
        except CclError:
            continue
        if any(direct.moves_of(schedule, rank).why for rank in range(n)):
            continue
        blocks = collectives.blocks(collective, n, schedule.root, schedule.peer)
        layout = Layout(schedule, 37, "float32")
        rng = np.random.default_rng(n)
        inputs = [rng.normal(size=37 * int(blocks[r, 0])).astype(np.float32) for r in range(n)]
        wanted = interpret(schedule, inputs)
        for found, want in zip(run_by_nics(schedule, layout, inputs, memory), wanted, strict=True):
            np.testing.assert_array_equal(found.view(np.float32), want)


def test_a_call_that_a_rank_cannot_leave_to_nics_says_why(memory):
    schedule = planned("all_to_all", 2)
    x, out = array(1 << 20, 64), array(1 << 30, 64)
    layout = layout_of(schedule, 0, x, out, None)

    def way(rank: direct.Direct, target: DeviceArray = out) -> Any:
        return rank.way(schedule, layout, x, target, 0, True)

    assert way(on_rank(0, "rank 1: NIC 0: no")) is None
    fine = on_rank(0)
    assert way(fine).views == [("view", 1 << 20, 256), ("view", 1 << 30, 256)] and "NICs read and write" in fine.explain()
    assert way(fine, x) is None and "are the same memory" in fine.explain()
    memory.refuses["x"] = UnsupportedError("rank 0: RDMA device a does not register a dma-buf")
    assert way(fine) is None and "does not register a dma-buf" in fine.explain() and not fine.why_not()
    memory.refuses = {"ut": RegistrationError("out of rank 0 was freed")}
    with pytest.raises(RegistrationError, match="was freed"):
        way(fine)
    memory.refuses = {"gpu": UnsupportedError("GPU 0 has no dma-bufs")}
    fine.close()
    assert way(fine) is None and fine.why_not() == "GPU 0 has no dma-bufs" and "GPU 0 has no dma-bufs" in fine.explain()


def test_what_a_gpu_cannot_order_is_not_sent_on(memory):
    schedule = planned("broadcast", 4, algorithm="binomial")
    moves = [direct.moves_of(schedule, rank) for rank in range(4)]
    assert [each.why for each in moves] == [""] * 4 and any(each.forwards for each in moves)
    forwards = next(rank for rank, each in enumerate(moves) if each.forwards)
    out = array(1 << 30, 256)
    layout = layout_of(schedule, forwards, None, out, None)
    assert on_rank(forwards).way(schedule, layout, None, out, 0, True) is not None
    memory.forwards = False
    rank = on_rank(forwards)
    assert rank.way(schedule, layout, None, out, 0, True) is None
    assert "sends on what it received" in rank.explain()


# ---- the choice of all ranks


def test_the_choice_is_the_same_everywhere_and_names_who_lacks_what(monkeypatch):
    sockets, rdma = verbs.Decision(None, "no"), verbs.Decision([("mlx5_0", 1, 3)], "")
    assert verbs.decide_direct(rdma, ["", ""], [0, 1]) == ""
    assert "over sockets" in verbs.decide_direct(sockets, ["", ""], [0, 1])
    assert verbs.decide_direct(rdma, ["", "NIC 0: too old"], [0, 1]) == "rank 1: NIC 0: too old"
    assert "ranks 0 and 2 share a node" in verbs.decide_direct(rdma, [""] * 3, [0, 1, 0])

    def takes(device: str) -> None:
        if device == "rxe0":
            raise UnsupportedError("RDMA device rxe0 takes no dma-bufs: Operation not supported")

    monkeypatch.setattr(verbs._core, "rdma_takes_dma_bufs", takes)
    settings = verbs.settings_of("")
    assert settings.gpu == "direct" and verbs.direct_card([["mlx5_0", 1, 3]], settings) == ""
    assert verbs.direct_card([["mlx5_0", 1, 3], ["rxe0", 1, 1]], settings).startswith("NIC 1: RDMA device rxe0 takes no dma-bufs")
    assert verbs.direct_card("no RDMA", settings) == ""
    assert "gpu=pinned" in verbs.direct_card([["mlx5_0", 1, 3]], verbs.settings_of("gpu=pinned"))
    with pytest.raises(CclError, match="gpu is 'both', expected direct, pinned"):
        verbs.settings_of("gpu=both")


# ---- calls


class Stage:
    def __init__(self, *_: Any) -> None:
        self.runs: list[Any] = []

    def pin(self, address: int, nbytes: int) -> None: ...

    def hold(self, *run: Any) -> Any:
        self.runs.append(run)
        return SimpleNamespace(number=len(self.runs), give_up=lambda *why: None)

    def ended(self, number: int) -> bool:
        return False

    def await_failure(self, seconds: float) -> bool:
        return False

    def close(self) -> bool:
        return True

    pinned_bytes = 0


@pytest.fixture
def rank(monkeypatch, memory):
    monkeypatch.setattr(held._core, "DeviceStage", Stage)
    started: list[Any] = []
    engine = SimpleNamespace(start=lambda *run, **how: started.append((run, how)))
    member = SimpleNamespace(
        engine=engine, rank=0, topology=nodes(2), options=SimpleNamespace(timeout_s=1.0), not_direct="",
        empty=lambda nbytes: (0, np.zeros(nbytes, np.uint8)), program=lambda *_, fused, keeps: ("program", keeps),
    )  # fmt: skip
    calls = staged.Staged(
        member, lambda collective, nbytes, algorithm, **how: plan(collective, nodes(2), nbytes, algorithm=algorithm, **how),
        lambda error: error, lambda error: error, lambda *of: of, lambda: "",
    )  # fmt: skip
    how = {"redop": "sum", "root": 0, "peer": -1, "counts": None, "algorithm": "auto", "timeout": None, "async_op": True}
    yield calls, started, how
    calls.close()


def test_a_call_goes_by_nics_with_no_pinned_memory(rank):
    calls, started, how = rank
    x, out = array(1 << 20, 64), array(1 << 30, 128)
    calls.call("all_gather", x, out, **how)
    into, back, stream, kept, by_nics = calls.session.runs[0]
    assert (list(into), list(back), stream, by_nics) == ([], [], 7, True)
    assert kept == [(1 << 30, 1 << 20, 256, "x of rank 0")]
    assert started[0][0] == (("program", False), ("view", 1 << 20, 256), ("view", 1 << 30, 512))
    assert calls.memory() == {"pinned_bytes": 0, "direct_regions": 2}
    calls.call("all_gather", x, out, **how)
    assert calls.direct._memory.asked[0][3] and not calls.direct._memory.asked[-1][3]  # a run is under way


def test_a_reduction_goes_through_pinned_memory(rank):
    calls, started, how = rank
    x, out = array(1 << 20, 64), array(1 << 30, 64)
    calls.call("all_reduce", x, out, **how)
    into, back, _, kept, by_nics = calls.session.runs[0]
    assert len(into) == 1 and len(back) == 1 and kept == [] and not by_nics
    assert started[0][0][0] == ("program", True) and isinstance(started[0][0][1], np.ndarray)


def test_memory_that_nics_do_not_take_falls_back_before_anything_is_started(rank, memory):
    calls, started, how = rank
    memory.refuses["ut"] = UnsupportedError("rank 0: NIC 1 does not register it")
    calls.call("all_gather", array(1 << 20, 64), array(1 << 30, 128), **how)
    assert not calls.session.runs[0][4] and started[0][0][0] == ("program", True)
    assert "NIC 1 does not register it" in calls.direct.explain()
    memory.refuses["ut"] = RegistrationError("out of rank 0 was freed")
    with pytest.raises(RegistrationError):
        calls.call("all_gather", array(1 << 20, 64), array(1 << 30, 128), **how)
    assert len(calls.session.runs) == 1
