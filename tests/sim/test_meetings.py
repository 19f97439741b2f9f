"""All_reduce around nodes that lost NICs, lanes one by one: as the unrolled schedule and the oracle, up to 131,072 ranks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from ccl_lab import _core
from ccl_lab.errors import Inapplicable
from ccl_lab.planner import all_reduce_lanes, outline
from ccl_lab.planner.all_reduce_lanes import Depth
from ccl_lab.planner.bounds import of_problem
from ccl_lab.planner.problem import make_problem
from ccl_lab.simulator import exact_times, finish_times, summarize
from ccl_lab.simulator.changes import Changes
from ccl_lab.simulator.meeting_lanes import Batches
from ccl_lab.simulator.meeting_sweeps import order_puts
from ccl_lab.simulator.meetings import meeting_finish
from ccl_lab.topo import Topology

from ..shares import expected, first_of
from .cases import links_of, random_changes
from .draws import Drawn, drawn, equal_to_the_oracle, found, with_tiers

NAMES = ("optcc", "recursive", "mix", "resilient")


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices in one piece, as among thousands of nodes; lanes alone, which are faster for few of them, do not count."""
    monkeypatch.setattr(all_reduce_lanes, "depth_of", lambda *given, **more: Depth(1, 1, 1, 1))
    monkeypatch.setattr(all_reduce_lanes, "_alone_depth", lambda *given: (Depth(1, 1, 1, 1), float("inf")))


def cluster(rng: np.random.Generator, most_nodes: int, lost: int = 0) -> Topology:
    """A NIC lost or slower, or one of each of `lost` nodes; other rates and latencies, switches that add some, or not."""
    nodes, group = int(rng.integers(3 * max(lost, 1), max(most_nodes, 3 * lost) + 1)), int(rng.choice([2, 3, 4, 8]))
    nics = int(rng.choice([group, group, 2 * group if group < 5 else group, 2]))
    topology = Topology.cluster(nodes=nodes, gpus_per_node=group, nics_per_node=nics, nic_gbits_per_s=float(rng.choice([100, 400])),
                                nic_latency=f"{int(rng.choice([0, 3, 300, 9000]))}ns", fabric_gbytes_per_s=float(rng.choice([3, 50, 400])),
                                local_gbytes_per_s=float(rng.choice([3, 50, 2000])))  # fmt: skip
    where = int(rng.integers(nodes)), int(rng.integers(nics))
    if lost:
        topology = topology.without(*((int(node), int(rng.integers(nics))) for node in rng.choice(nodes, lost, replace=False)))
    else:
        topology = topology.without(where) if rng.random() < 0.6 else topology.slow(float(rng.choice([1.3, 2, 3, 5])), nic=where)
    if rng.random() < 0.3:
        topology = topology.slow(float(rng.choice([1.01, 3])), rank=int(rng.integers(topology.n_ranks)))
    if rng.random() < 0.3:
        latency = np.array(topology.nic_latency_ps)
        latency[int(rng.integers(len(latency)))] += int(rng.integers(0, 10**6))
        topology = topology.replace(nic_latency_ps=latency)
    if rng.random() < 0.2:
        rates = np.array(topology.nic_bytes_per_s)
        rates[rates > 0] -= rng.integers(0, 10**6, np.count_nonzero(rates))
        topology = topology.replace(nic_bytes_per_s=rates)
    return with_tiers(rng, topology) if rng.random() < 0.4 else topology


def draw(seed: int, most_nodes: int = 12) -> Drawn | None:
    rng = np.random.default_rng([seed, 23])
    topology = cluster(rng, most_nodes)
    nbytes = 4 * int(rng.choice([rng.integers(1, 3000), rng.integers(10**4, 10**6), rng.integers(10**6, 10**7)]))
    return drawn(rng, ("all_reduce", NAMES[seed % 4]), topology, nbytes, (0.4, 0.2),
                 lambda outlined: outlined.meetings is not None and not outlined.meetings.misfit)  # fmt: skip


@pytest.fixture
def as_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few nodes choose lanes as many do, among whom those that lost a NIC move as much as the others, but for some thousandths."""
    choose = all_reduce_lanes.lanes

    def chosen(topology: Topology, nodes: Any, amount: np.ndarray, *given: Any, **more: Any) -> Any:
        return choose(topology, nodes, np.full(len(nodes), np.max(amount)), *given, **more)

    monkeypatch.setattr(all_reduce_lanes, "lanes", chosen)


def draw_several(seed: int, most_nodes: int = 16) -> Drawn | None:
    """As `draw`, of recursive where several nodes lost a NIC."""
    rng = np.random.default_rng([seed, 29])
    topology = cluster(rng, most_nodes, lost=int(rng.integers(2, 6)))
    nbytes = 4 * int(rng.choice([rng.integers(1, 3000), rng.integers(10**4, 10**6)]))
    return drawn(rng, ("all_reduce", "recursive"), topology, nbytes, (0.4, 0.2), lambda outlined: outlined.meetings is not None and
                 not outlined.meetings.misfit and len(outlined.meetings.outsiders) > 1)  # fmt: skip


def lanes_of(case: Drawn) -> str:
    apart = case.outlined.meetings.apart_of >= 0  # type: ignore[union-attr]
    return "apart" if apart.all() else "both" if apart.any() else "own"


@pytest.fixture
def among(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Where raw parts came among the hops of reduce-scatters, and in which order."""
    seen: Counter[str] = Counter()
    find = Batches.hops_and_raws

    def watched(*given: Any) -> Any:
        result = find(*given)
        early, order = result[-1]
        seen["first" if not early[0].any() else "second" if early[0].all() and len(early) == 1 else "between"] += 1
        seen["out of turn"] += (np.diff(order) < 0).any()
        return result

    monkeypatch.setattr(Batches, "hops_and_raws", watched)
    return seen


def of_unequal_chunks(shares: list[np.ndarray], least: list[int]) -> tuple[list[tuple[np.ndarray, np.ndarray]], int]:
    """Parts of slices as nearly their shares as they can be: chunks of one slice differ by a part then."""
    flat = np.concatenate(shares)
    floor = np.concatenate([np.full(len(share), count) for share, count in zip(shares, least, strict=True)])
    end = np.cumsum(np.maximum(np.round(flat / flat.sum() * int(floor.sum()) * 6).astype(np.int64), floor))
    size, cuts = np.diff(end, prepend=0), np.cumsum([len(share) for share in shares])[:-1]
    return list(zip(np.split(end - size, cuts), np.split(end, cuts), strict=True)), int(end[-1])


def test_meetings_are_timed_as_their_ops(whole: None, among: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Any rates, latencies, late ranks; reduce-scatters on lanes of their own, on the slice's own, and on both; chunks alike or not."""
    compared: Counter[tuple[str, str]] = Counter()
    for seed in (*first_of(range(180)), *first_of(range(180, 360))):
        if seed == 180:
            monkeypatch.setattr(all_reduce_lanes, "_regions", of_unequal_chunks)
        case = draw(seed)
        if case is None:
            continue
        try:
            times, _ = case.found(meeting_finish, case.outlined.meetings)
        except Inapplicable as why:
            assert "before their ring is through" in str(why), seed
            continue
        assert times == case.wanted(change=False)[0], seed
        compared[case.outlined.algorithm, lanes_of(case)] += 1
    assert all(compared[name, lanes] >= expected(8) for name in NAMES for lanes in ("apart", "own")), compared
    assert compared["optcc", "both"] >= expected(8) and sum(compared.values()) >= expected(200), compared
    assert all(among[how] >= expected(5) for how in ("second", "between", "out of turn")), among


def test_meetings_are_timed_as_by_the_oracle(whole: None) -> None:
    cases = (draw(seed, most_nodes=5) for seed in first_of(range(1000, 1060), fewest=21))
    assert equal_to_the_oracle(cases, meeting_finish, "meetings", 5_000, may_refuse=True) >= expected(20)


@pytest.mark.parametrize("unequal", [False, True])
def test_several_nodes_are_met_as_by_their_ops(unequal: bool, whole: None, as_of_many: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two to five of them; any rates, latencies, late ranks; chunks alike or not."""
    if unequal:
        monkeypatch.setattr(all_reduce_lanes, "_regions", of_unequal_chunks)
    compared: Counter[int] = Counter()
    refused = 0
    for seed in first_of(range(500 * unequal, 500 * unequal + 90)):
        case = draw_several(seed)
        if case is None:
            continue
        part = case.outlined.meetings
        assert part is not None
        try:
            times, _ = case.found(meeting_finish, part)
        except Inapplicable as why:
            assert "lost a NIC" in str(why), seed
            refused += 1
            continue
        assert times == case.wanted(change=False)[0], seed
        compared[len(part.outsiders)] += 1
    assert all(compared[count] >= expected(5) for count in (2, 3, 4, 5)), compared
    assert refused <= (20 if unequal else 0), (compared, refused)


def other_rates(case: Drawn) -> Drawn:
    """The same schedule where NICs of some nodes became slower after it was planned; fabrics as fast as can be, latencies short or long."""
    topology, rng = case.topology, case.rng
    rates = np.array(topology.nic_bytes_per_s).reshape(topology.n_nodes, -1)
    for node in rng.choice(topology.n_nodes, int(rng.integers(1, 4))):
        rates[node] //= int(rng.choice([3, 40]))
    latency = np.array(topology.nic_latency_ps)
    latency[:] = int(rng.choice([0, 0, 10**6, 10**9]))
    fabric = np.full_like(topology.fabric_bytes_per_s, 10**14)
    return case._replace(topology=topology.replace(nic_bytes_per_s=rates.ravel(), nic_latency_ps=latency, fabric_bytes_per_s=fabric))


@pytest.mark.parametrize("several", [False, True])
def test_rates_that_nobody_planned_for(several: bool, whole: None, as_of_many: None) -> None:
    """What left last, and what came last, decide about ends, where nodes differ by more than plans would have them."""
    compared = 0
    for seed in first_of(range(2000, 2040)):
        drawn_case = draw_several(seed, most_nodes=12) if several else draw(seed, most_nodes=9)
        if drawn_case is None:
            continue
        case = other_rates(drawn_case)
        try:
            times, _ = case.found(meeting_finish, case.outlined.meetings)
        except Inapplicable:
            continue
        assert times == case.wanted(change=False)[0], seed
        compared += 1
    assert compared >= expected(20)


def turns_one_by_one(source: np.ndarray, to: np.ndarray, batch: np.ndarray) -> list[int]:
    """Rows by (batch, turn, op), as exact.py has it."""
    given: dict[tuple[int, int, int], set[int]] = {}
    turn = []
    for each, at, into in zip(batch.tolist(), source.tolist(), to.tolist(), strict=True):
        tx, rx = (given.setdefault((each, side, node), set()) for side, node in ((0, at), (1, into)))
        turn.append(next(i for i in range(len(batch)) if i not in tx | rx))
        tx.add(turn[-1])
        rx.add(turn[-1])
    return sorted(range(len(batch)), key=lambda row: (batch[row], turn[row], row))


def test_puts_of_a_batch_take_turns() -> None:
    for seed in range(100):
        rng = np.random.default_rng([seed, 31])
        nodes, rows = int(rng.integers(1, 9)), int(rng.integers(0, 300))
        source, to = rng.integers(0, nodes, (2, rows))
        batch = rng.integers(0, int(rng.integers(1, 9)), rows)
        assert order_puts(nodes, source, to, batch).tolist() == turns_one_by_one(source, to, batch), seed


def test_several_nodes_are_met_as_by_the_oracle(whole: None, as_of_many: None) -> None:
    cases = (draw_several(seed, most_nodes=7) for seed in first_of(range(1000, 1060)))
    assert equal_to_the_oracle(cases, meeting_finish, "meetings", 6_000, may_refuse=True) >= expected(4)


@pytest.mark.parametrize("target", _core.vector_targets())
@pytest.mark.parametrize("name", NAMES[:3])
def test_every_kind_of_vectors(target: int, name: str, whole: None) -> None:
    """More nodes than a wave has steps, and than it has nodes; code for older processors than this one."""
    several = [Topology.preset("h100", 140).without((139, 5), (3, 1), (77, 0), (78, 0))] if name == "recursive" else []
    one = [Topology.preset("h100", 150).without((149, 5)), Topology.preset("h100", 70).slow(2, nic=(7, 2)).slow(3, rank=9)]
    for topology in (*one, *several):
        outlined = outline("all_reduce", topology, 2**22 + 444, algorithm=name)
        want = exact_times(outlined.unroll(), topology, late={77: "3us"}).finish_ps.tolist()
        assert found(meeting_finish, outlined.meetings, outlined, topology, {77: "3us"}, target=target)[0] == want


def test_it_is_what_times_them() -> None:
    """As planned, among 64 nodes; a size that was not planned for."""
    topology = Topology.preset("h100", 64).without((7, 2))
    outlined = outline("all_reduce", topology, 2**20, algorithm="optcc")
    times, how = finish_times(outlined, topology, 2**20 + 4000, late={100: "1us"})
    assert how["as"] == "meetings" and how["lanes"] == 7
    assert times.tolist() == exact_times(outlined.unroll(), topology, 2**20 + 4000, late={100: "1us"}).finish_ps.tolist()


def refused(topology: Topology, why: str, name: str = "optcc", nbytes: int = 2**20, changes: Any = None) -> None:
    outlined = outline("all_reduce", topology, nbytes, algorithm=name)
    with pytest.raises(Inapplicable, match=why):
        found(meeting_finish, outlined.meetings, outlined, topology, **({} if changes is None else {"changes": changes}))


def test_what_is_refused_is_named(whole: None) -> None:
    base = Topology.preset("h100", 6)
    refused(base.without((1, 2), (3, 4), (3, 5)), "several", "recursive")
    refused(Topology.cluster(nodes=5, gpus_per_node=1, nics_per_node=4).without((2, 1)), "one rank")
    refused(Topology.cluster(nodes=5, gpus_per_node=2, nics_per_node=4).without((2, 1)), "share a rank or a NIC")
    lost = base.without((1, 2))
    rng = np.random.default_rng(1)
    refused(lost, "change", changes=Changes.of(links_of(lost, random_changes(rng, lost, 10**9))))
    refused(base.without(*((node, 3) for node in range(3))), "twice", "recursive")
    refused(Topology.preset("h100", 9).without((1, 2), (3, 4)), "on the lanes where they meet", "recursive")
    assert outline("all_reduce", base, 2**20, algorithm="optcc").meetings is None  # nothing is lost: it is balance


def test_waves_are_refused_by_name() -> None:
    outlined = outline("all_reduce", Topology.preset("h100", 6).without((5, 2)), 2**26, algorithm="recursive")
    assert outlined.meetings is not None and "waves" in outlined.meetings.misfit


@pytest.mark.parametrize(("name", "lost"), [*((name, 1) for name in NAMES[:3]), ("recursive", 10)])
def test_131072_ranks(name: str, lost: int) -> None:
    """Not before the lower bound, and all the same but later where a rank is."""
    topology = Topology.preset("h100", 16384).without((7, 2), *((1500 * i, i % 8) for i in range(1, lost)))
    outlined = outline("all_reduce", topology, "1GiB", algorithm=name)
    meta = summarize(outlined, topology).meta
    problem = make_problem("all_reduce", topology, "1GiB", dtype="float32", redop="sum", in_place=False, root=0, peer=1, channels=None,
                           counts=None)
    assert meta["evaluated"]["as"] == "meetings" and meta["time_ps"] > of_problem(problem) * 1e12
    assert name != "optcc" or (summarize(outlined, topology, late={800: "1ms"}).meta["finish_ps"] >= meta["finish_ps"]).all()


def test_columns_that_do_not_fit_are_refused() -> None:
    """Of the native sweeps: other lengths, kinds that are not there, times that doubles do not hold."""
    def times(**other: Any) -> int:
        zero, one = np.zeros(3, np.int64), np.ones(3, np.int64)
        state = {name: np.zeros(3, np.int64) for name in ("clock", "tx", "rx", "came")}
        return _core.sweep_meeting_times({"sweep": 0, "shift": 0, "steps": 2, "reducing": 1, "target": 0, "latency_ps": one, "add": one,
                                          "nic": one, "memory_kind": zero, "tx_kind": zero, "rx_kind": zero, **state, **other})  # fmt: skip

    assert times() == 0
    wrong: list[dict[str, Any]] = [{"clock": np.zeros(4, np.int64)}, {"tx_kind": np.ones(3, np.int64)}, {"nic": np.ones(4, np.int64)},
                                   {"latency_ps": -np.ones(3, np.int64)}, {"steps": -1}, {"target": 9}]  # fmt: skip
    assert [times(**each) for each in wrong] == [3] * len(wrong)
    assert times(nic=np.full(3, 2**51)) == 1
    fabrics = {"nodes": 1, "group": 2, "puts": 1, "alpha_ps": 0, "first": True, "nbytes": np.ones(1, np.int64),
               "batch": np.ones(1, np.int64), "source": np.zeros(1, np.int32), "to": np.full(1, 2, np.int32),
               "order": np.zeros(1, np.int32),
               **{name: np.ones(2, np.int64) for name in ("bytes_per_s", "latency_ps", "late_ps", "tx_ps", "rx_ps")},
               **{name: np.ones(1, np.int64) for name in ("ready_ps", "next", "left_ps", "seen_ps")}}  # fmt: skip
    few = {"source": np.zeros(1, np.int32), "to": np.ones(1, np.int32), "order": np.zeros(1, np.int32),
           **{name: np.ones(1, np.int64) for name in ("ready", "tx_for", "rx_for", "left")},
           **{name: np.ones(2, np.int64) for name in ("tx", "rx")}}  # fmt: skip
    assert [_core.serve_meeting_puts({**few, **each}) for each in ({}, {"to": np.full(1, 2, np.int32)}, {"order": np.ones(1, np.int32)},
                                                                   {"ready": np.ones(2, np.int64)})] == [0, 3, 3, 3]  # fmt: skip
    assert [_core.order_meeting_puts({**few, "nodes": nodes, "batch": np.ones(1, np.int64)}) for nodes in (2, 1, -1)] == [0, 3, 3]
    assert _core.serve_fabrics(fabrics) == 3 and _core.serve_fabrics({**fabrics, "to": np.ones(1, np.int32)}) == 0
