"""Ranks that do the same at the same time, a call at a time: as the unrolled schedule and the oracle, up to 131,072 ranks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from ccl_lab import _core
from ccl_lab.errors import Inapplicable
from ccl_lab.ir import Buffer, Builder, Ref
from ccl_lab.planner import outline
from ccl_lab.simulator import exact_times, finish_times
from ccl_lab.simulator.exact import late_times_ps
from ccl_lab.simulator.in_step import _InStep, in_step_finish
from ccl_lab.topo import Level, Topology

from ..shares import expected, first_of
from .draws import Drawn, drawn, some_bytes

NAMES = ("recursive_doubling", "halving_doubling")


def cluster(rng: np.random.Generator) -> Topology:
    """Any rates and latencies; nodes of equal size, with a NIC a rank or more."""
    nodes, group = int(rng.choice([1, 2, 3, 4, 8, 16])), int(rng.choice([1, 2, 4, 8]))
    topology = Topology.cluster(nodes=nodes, gpus_per_node=group, nics_per_node=group * int(rng.choice([1, 1, 2])),
                                nic_gbits_per_s=float(rng.choice([1, 400])), nic_latency=f"{int(rng.choice([0, 3, 9000]))}ns",
                                fabric_gbytes_per_s=float(rng.choice([3, 90])), local_gbytes_per_s=float(rng.choice([3, 900])))  # fmt: skip
    columns: dict[str, Any] = {}
    for name in ("nic_bytes_per_s", "fabric_bytes_per_s", "local_bytes_per_s", "nic_latency_ps", "fabric_latency_ps"):
        column = np.array(getattr(topology, name))
        some = rng.random(len(column)) < rng.choice([0, 0, 0.2, 1])
        column[some] = column[some] // rng.integers(1, 9, some.sum()) + rng.integers(1, 10**6, some.sum())
        columns[name] = column
    return topology.replace(**columns)


def draw(seed: int) -> Drawn | None:
    rng = np.random.default_rng([seed, 37])
    return drawn(rng, ("all_reduce", NAMES[seed % 2]), cluster(rng), some_bytes(rng), (0.5, 0.3))


def timed(case: Drawn, merge: bool = True) -> tuple[list[int], dict[str, Any]]:
    given, topology = case.outlined, case.topology
    late_ps = late_times_ps(case.late, topology.n_ranks)
    count, alpha_ps = given.count_of(given.nbytes, given.dtype), round(case.alpha * 1e12)
    times, how = in_step_finish(given, topology, count, 4, late_ps, alpha_ps, merge=merge)
    return times.tolist(), how


def in_step(case: Drawn) -> list[int]:
    return timed(case)[0]


def test_exchanges_are_timed_as_their_ops() -> None:
    """Any rates, late ranks, sizes that parts do not divide; what is refused has ranks that are not alike, or several channels."""
    compared: Counter[str] = Counter()
    for seed in first_of(range(160)):
        case = draw(seed)
        if case is None:
            continue
        try:
            times = in_step(case)
        except Inapplicable:
            n = case.topology.n_ranks
            assert n & (n - 1) or len(set(case.schedule.ops.channel.tolist())) > 1, seed
            continue
        assert times == case.wanted(change=False)[0], seed
        compared[case.outlined.algorithm] += 1
    assert all(compared[name] >= expected(25) for name in NAMES), compared


def test_exchanges_are_timed_as_by_the_oracle() -> None:
    compared = 0
    for seed in first_of(range(1000, 1060)):
        case = draw(seed)
        if case is None or len(case.schedule.ops) > 3000:
            continue
        try:
            times = in_step(case)
        except Inapplicable:
            continue
        assert times == case.by_the_oracle(), seed
        compared += 1
    assert compared >= expected(15)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_what_times_them(name: str) -> None:
    """A slower NIC, or a lost one, whose ranks share another; not where switches add latencies, nor where ranks are no power of two."""
    base = Topology.preset("h100", 8)
    for topology, fits in ((base.slow(4, nic=(3, 2)), True), (base.without((3, 2)), True), (Topology.preset("h100", 7), False),
                           (base.with_network(Level("leaf", nodes=2, uplinks=8, per_rail=True), Level("spine", latency="1us")), False)):
        outlined = outline("all_reduce", topology, 2**20 + 4, algorithm=name)
        times, how = finish_times(outlined, topology, late={9: "3us"})
        assert how["as"] == "steps" and how.get("in_step", False) == fits
        assert times.tolist() == exact_times(outlined.unroll(), topology, late={9: "3us"}).finish_ps.tolist()


def test_ranks_that_share_nics_are_timed_as_their_ops() -> None:
    """NICs lost at random, and fewer NICs than ranks: as the unrolled schedule, and as the oracle where that is short."""
    compared, by_oracle = Counter[str](), 0
    for seed in first_of(range(160)):
        rng = np.random.default_rng([seed, 38])
        topology = cluster(rng)
        nics = [(node, nic) for node in range(topology.n_nodes) for nic in range(1, topology.nics_per_node)]
        some = [nic for nic in nics if rng.random() < rng.choice([0.1, 0.6])]
        if seed % 5 == 0:
            topology = Topology.cluster(nodes=8, gpus_per_node=4, nics_per_node=2, nic_gbits_per_s=float(rng.choice([1, 400])))
        elif some:
            topology = topology.without(*some)
        case = drawn(rng, ("all_reduce", NAMES[seed % 2]), topology, some_bytes(rng), (0.5, 0.3))
        if case is None:
            continue
        try:
            times = in_step(case)
        except Inapplicable:
            continue
        assert times == case.wanted(change=False)[0], seed
        if len(case.schedule.ops) <= 3000:
            assert times == case.by_the_oracle(), seed
            by_oracle += 1
        compared[case.outlined.algorithm] += bool(some or seed % 5 == 0)
    assert all(compared[name] >= expected(20) for name in NAMES) and by_oracle >= expected(15), (compared, by_oracle)


def mostly_alike(rng: np.random.Generator) -> Topology:
    """Nodes of one kind, of which a few lost NICs or have slower ones; some ranks have other memory."""
    nodes, group = int(rng.choice([2, 4, 8, 64, 64, 64])), int(rng.choice([2, 4, 4, 8]))
    topology = Topology.cluster(nodes=nodes, gpus_per_node=group, nics_per_node=group,
                                nic_gbits_per_s=float(rng.choice([1, 100, 400])), nic_latency=f"{int(rng.choice([0, 3, 9000]))}ns",
                                fabric_gbytes_per_s=float(rng.choice([3, 90])), local_gbytes_per_s=float(rng.choice([3, 900])))  # fmt: skip
    nics = [(node, nic) for node in range(topology.n_nodes) for nic in range(topology.nics_per_node)]
    lost = [nics[i] for i in rng.integers(0, len(nics), int(rng.integers(1, 4))) if nics[i][1]]
    topology = topology.without(*dict.fromkeys(lost)) if lost else topology
    for _ in range(int(rng.integers(0, 3))):
        node, nic = nics[int(rng.integers(len(nics)))]
        if (node, nic) not in lost:
            topology = topology.slow(float(rng.uniform(1, 9)), nic=(node, nic))
    return topology.slow(float(rng.uniform(1, 9)), rank=int(rng.integers(topology.n_ranks))) if rng.random() < 0.2 else topology


def test_ranks_that_are_alike_end_as_those_that_are_evaluated() -> None:
    """Until they meet one that is not, ranks are one, and nodes in the same states end alike: as their ops, and as the oracle."""
    fewer, compared, by_oracle = Counter[str](), Counter[str](), 0
    for seed in first_of(range(120)):
        rng = np.random.default_rng([seed, 39])
        nbytes = some_bytes(rng) if rng.random() < 0.2 else 2048 * int(rng.integers(0, 10**4))  # which parts divide, or do not
        case = drawn(rng, ("all_reduce", NAMES[seed % 2]), mostly_alike(rng), nbytes, (0.2, 0.01), channels=False,
                     most_ops=40_000)
        if case is None:
            continue
        try:
            times, how = timed(case)
        except Inapplicable:
            continue
        assert times == timed(case, merge=False)[0], seed
        assert times == case.wanted(change=False)[0], seed
        if len(case.schedule.ops) <= 2000:
            assert times == case.by_the_oracle(), seed
            by_oracle += 1
        compared[case.outlined.algorithm] += 1
        fewer[case.outlined.algorithm] += 0 < how.get("ranks", 0) < case.topology.n_ranks
    assert all(compared[name] >= expected(30) and fewer[name] >= expected(6) for name in NAMES), (compared, fewer)
    assert by_oracle >= expected(15)


def some_program(rng: np.random.Generator, ranks: int, group: int) -> dict[str, Any]:
    """Columns of a program of exchanges with any partners in any order, at the end inside nodes alone; some for a signal of before."""
    rows: list[tuple[int, ...]] = []  # step, near, apart, ticks, raise, nbytes
    signals: list[tuple[int, int]] = []  # apart, row
    aparts = [*rng.integers(1, ranks, int(rng.integers(1, 9))), *rng.integers(1, group, int(rng.integers(0, 5)) if group > 1 else 0)]
    for i, apart in enumerate(int(each) for each in aparts):
        if i + 2 < len(aparts) and rng.random() < 0.5:
            later = int(aparts[i + 2])
            signals.append((later, len(rows)))
            rows.append((2, later < group, later, 0, -1, 0))
        found = next((signal for signal in signals if signal[0] == apart and rows[-1][0] != 2), None)
        if found:
            signals.remove(found)
            rows.append((1, apart < group, apart, 0, found[1], 0))
        nbytes = int(rng.integers(0, 4)) * 1000
        rows.append((0, apart < group, apart, 0 if apart < group else nbytes, -1, nbytes))
        rows.append((1, apart < group, apart, 0, len(rows) - 1, 0))
        rows += [(step, False, 0, 0, -1, int(rng.integers(0, 5)) * 1000) for step in (3, 4) if rng.random() < 0.4]
    names = ("step", "near", "apart", "ticks", "raise", "nbytes")
    columns: dict[str, Any] = {name: np.array(column, np.uint8 if name in ("step", "near") else np.int64)
                               for name, column in zip(names, zip(*rows, strict=True), strict=True)}  # fmt: skip
    return {**columns, "row": np.full(len(rows), -1), "bytes": np.zeros(0, np.int64), "ranks": ranks}


def test_any_program_ends_alike_merged_or_not() -> None:
    """Random partners: most ranks and nodes alike, a few NICs shared, rates and latencies of some ranks other ones."""
    ended = fewer = 0
    for seed in range(3000):
        rng = np.random.default_rng([seed, 40])
        group = 2 ** int(rng.integers(0, 4))
        n = group * 2 ** int(rng.integers(1, 6))
        rates = np.repeat([90, 90, 300, 25, 25], n) * 10**9
        latency = np.repeat(rng.choice([0, 7, 500], 5) * 1000, n)
        nic = np.arange(n)
        for rank in rng.integers(0, n, int(rng.integers(1, 4))):
            nic[rank] = rank // group * group + int(rng.integers(group))
        for link in rng.integers(0, 5 * n, int(rng.integers(0, 3))):
            rates[link], latency[link] = rates[link] // int(rng.integers(2, 9)), latency[link] + 1000 * int(rng.integers(9))
        late = np.zeros(n, np.int64)
        late[rng.integers(0, n, int(rng.choice([0, 0, 2])))] = int(rng.integers(1, 10**6))
        given = {**some_program(rng, n, group), "alpha_ps": int(rng.choice([0, 3000])), "bytes_per_s": rates, "latency_ps": latency,
                 "late_ps": late, "tx": (3 * n + nic).astype(np.int32), "rx": (4 * n + nic).astype(np.int32)}  # fmt: skip
        found = []
        for merge in (True, False):
            finish = np.zeros(n, np.int64)
            status, members = _core.simulate_exchanges({**given, "merge": merge, "finish_ps": finish})
            found.append((status, members, finish.tolist()))
        if found[1][0] == 0:  # else a rank is further ahead of its partner than is kept, as it can seem where each is evaluated
            assert (found[0][0], found[0][2]) == (0, found[1][2]), seed
            ended, fewer = ended + 1, fewer + (found[0][1] < found[1][1])
    assert ended >= 1500 and fewer >= 500, (ended, fewer)


def told(*calls: Any) -> None:
    """Four ranks in one node do what `calls` say."""
    b = _InStep(Topology.cluster(nodes=1, gpus_per_node=4), 64, 4, np.zeros(4, np.int64), 0, "all_reduce", 4, algorithm="x", parts=4)
    for call in calls:
        call(b)


def test_what_is_not_in_step_is_refused() -> None:
    every = np.arange(4)

    def put(b: Builder, count: Any = 1, rank: Any = every, apart: int = 1) -> None:
        b.put(rank=rank, peer=rank ^ apart, src=Ref(Buffer.input, 0, count), dst=Ref(Buffer.output, 0, count))

    def wait(b: Builder, apart: int = 1) -> None:
        b.wait(rank=every, peer=every ^ apart)

    def add(b: Builder, rank: Any) -> None:
        b.reduce(rank=rank, dst=b.output[0], srcs=[b.input[0], b.output[0]])

    told(put, wait, lambda b: add(b, every[:2]), lambda b: add(b, every[2:]), lambda b: put(b, apart=2))
    for calls, why in (
        ((put, put), "two puts"),
        ((lambda b: put(b, rank=every[:2]),), "partner"),
        ((lambda b: b.put(rank=every, peer=(every + 1) % 4, src=b.input[0], dst=b.output[0]),), "partner"),
        ((lambda b: put(b, np.array([1, 1, 2, 2])),), "in step"),
        ((put, wait, lambda b: add(b, every[:2]), put), "in step"),
        ((put, wait, lambda b: add(b, every[:2]), lambda b: b.flush(rank=every), lambda b: add(b, every[2:]), put), "in step"),
        ((wait,), "not put yet"),
        ((put, lambda b: wait(b, 2)), "not put yet"),
        ((put, lambda b: b.signal(rank=every, peer=every ^ 1)), "signal behind a put"),
        ((lambda b: add(b, np.array([0, 0])),), "several ops"),
        ((lambda b: b.copy(rank=every, src=b.input[0], dst=b.output[0]),), "another kind"),
    ):
        with pytest.raises(Inapplicable, match=why):
            told(*calls)


@pytest.mark.parametrize("name", NAMES)
def test_131072_ranks(name: str) -> None:
    """No rank earlier where a NIC is slower, nor the last one where it is lost."""
    whole = Topology.preset("h100", 16384)
    slower, lost = whole.slow(4, nic=(7, 2)), whole.without((7, 2))
    found = []
    for topology in (whole, slower, lost):
        outlined = outline("all_reduce", topology, "1GiB", algorithm=name)
        times, how = finish_times(outlined, topology)
        assert how["in_step"]
        found.append(times)
    assert (found[1] >= found[0]).all() and found[1].max() > found[0].max()
    assert found[2].max() > found[0].max() and how["ranks"] < 40_000


@pytest.mark.parametrize("name", NAMES)
def test_another_lost_nic_among_131072_ranks_is_timed_as_the_first_one(name: str) -> None:
    """Renumbered by an exclusive or, which keeps who meets whom, ranks end as before; two lost NICs: as with every rank evaluated."""
    whole = Topology.preset("h100", 16384)
    times = [finish_times(outline("all_reduce", lost, "1GiB", algorithm=name), lost)[0]
             for lost in (whole.without((7, 2)), whole.without((9000, 2)))]  # fmt: skip
    assert np.array_equal(times[0], times[1][np.arange(131072) ^ 8 * (7 ^ 9000)])
    two = whole.without((7, 2), (9000, 5)).slow(3, nic=(77, 1))
    outlined = outline("all_reduce", two, "1GiB", algorithm=name)
    for late in (None, {12345: "1ms"}):  # whom, where they halve, the ranks of its node meet first
        merged, how = finish_times(outlined, two, late=late)
        assert how["ranks"] < 131072 or late
        assert np.array_equal(merged, finish_times(outlined, two, late=late, merge=False)[0])
