"""The exact tier against the oracle, and what must hold for any schedule."""

from __future__ import annotations

import numpy as np
import pytest

from ccl_lab.errors import DeadlockError, ScheduleError, ShapeError, UsageError
from ccl_lab.ir import Builder, Kind, OpTable, Schedule
from ccl_lab.simulator import Times, exact_times, simulate
from ccl_lab.simulator.changes import Changes
from ccl_lab.topo import LinkKind, Network, Tier, Topology, duration_ps

from ..shares import first_of
from .cases import links_of, random_network, random_schedule, random_topology, ring_all_gather
from .oracle import Oracle

COLUMNS = ("begin", "end", "start", "leave", "arrive")


def late_text(late: np.ndarray) -> dict[int, str]:
    return {rank: f"{ps}ps" for rank, ps in enumerate(late.tolist()) if ps}


def assert_equal_to_oracle(schedule: Schedule, topology: Topology, late: np.ndarray, compute: np.ndarray,
                           rates: dict[tuple[int, int], list[tuple[int, int]]] | None = None) -> Times:  # fmt: skip
    """rates: of NICs that change in time, as `random_changes` draws them."""
    changes = Changes.of(links_of(topology, rates or {}))
    times = exact_times(schedule, topology, late=late_text(late), compute_ps=compute, changes=changes)
    oracle = Oracle(schedule, topology, schedule.layout(), late.tolist(), lambda rank, arg: int(compute[rank, arg]),
                    changes={(side, *nic): rows for nic, rows in (rates or {}).items() for side in ("nic_tx", "nic_rx")})  # fmt: skip
    assert times.finish_ps.tolist() == oracle.finish
    assert times.level.tolist() == [oracle.level[op] for op in range(len(schedule.ops))]
    for column in COLUMNS:
        known, found = getattr(oracle, column), getattr(times, column + "_ps").tolist()
        assert {op: found[op] for op in known} == known, column
    return times


def draw(seed: int, most: int = 64) -> tuple[Schedule, Topology, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, most + 1))
    schedule = random_schedule(rng, n, int(rng.integers(0, 400)))
    late = rng.integers(0, 10**9, n) * (rng.random(n) < 0.3) * (rng.random() < 0.5)
    return schedule, random_topology(rng, n), late, rng.integers(0, 10**8, (n, 4))


@pytest.mark.parametrize("block", range(16))
def test_random_schedules_equal_the_oracle_to_the_picosecond(block: int) -> None:
    for seed in first_of(range(25 * block, 25 * block + 25)):
        try:
            assert_equal_to_oracle(*draw(seed))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("block", range(4))
def test_switches_between_nodes_add_their_latency(block: int) -> None:
    for seed in first_of(range(25 * block, 25 * block + 25)):
        schedule, flat, late, compute = draw(seed)
        rng = np.random.default_rng(seed + 10**6)
        tiered = flat.replace(network=random_network(rng, flat.n_nodes))
        times = assert_equal_to_oracle(schedule, tiered, late, compute)
        near = tiered.replace(network=Network((Tier("one", np.zeros(flat.n_nodes, np.int32)),)))
        assert (exact_times(schedule, flat).finish_ps == exact_times(schedule, near).finish_ps).all()
        assert (times.level == exact_times(schedule, flat).level).all()


def bandwidth_bound_ps(schedule: Schedule, times: Times, topology: Topology) -> int:
    """Bytes of the busiest link at its rate: no order of service can be faster."""
    moves = np.isin(schedule.ops.kind, (Kind.put, Kind.get, Kind.copy))
    bound = 0
    for link in np.unique(times.links[moves]):
        on_link = moves & (times.links == link).any(axis=1)
        bound = max(bound, duration_ps(int(times.nbytes[on_link].sum()), int(topology.links.bytes_per_s[link])))
    return bound


@pytest.mark.parametrize("seed", range(60))
def test_never_below_the_bandwidth_bound(seed: int) -> None:
    schedule, topology, late, compute = draw(seed)
    times = exact_times(schedule, topology, late=late_text(late), compute_ps=compute)
    assert times.time_ps >= bandwidth_bound_ps(schedule, times, topology)
    rates = topology.links.bytes_per_s[times.links].min(axis=1)
    for op in np.flatnonzero(np.isin(schedule.ops.kind, (Kind.put, Kind.get, Kind.copy))):
        assert times.leave_ps[op] - times.start_ps[op] == duration_ps(int(times.nbytes[op]), int(rates[op]))


@pytest.mark.parametrize("seed", range(60))
def test_nothing_gets_earlier_when_a_link_or_a_rank_gets_slower(seed: int) -> None:
    schedule, topology, late, compute = draw(seed, 24)
    rng = np.random.default_rng(seed + 10**6)
    before = exact_times(schedule, topology, late=late_text(late), compute_ps=compute)
    n, k = topology.n_ranks, topology.n_nodes * topology.nics_per_node
    rank, nic = int(rng.integers(n)), int(rng.integers(k))
    later, longer = late.copy(), compute.copy()
    later[rank] += int(rng.integers(1, 10**9))
    longer[rank] += int(rng.integers(1, 10**9))
    latency = np.array(topology.nic_latency_ps)
    latency[nic] += int(rng.integers(1, 10**7))
    where = (nic // topology.nics_per_node, nic % topology.nics_per_node)
    worse = [(topology.slow(1.7, nic=where), late, compute), (topology.slow(3.1, rank=rank), late, compute),
             (topology.replace(nic_latency_ps=latency), late, compute), (topology, later, compute), (topology, late, longer)]  # fmt: skip
    for changed, late_after, compute_after in worse:
        after = exact_times(schedule, changed, late=late_text(late_after), compute_ps=compute_after)
        for column in COLUMNS + ("finish",):
            assert (getattr(after, column + "_ps") >= getattr(before, column + "_ps")).all(), column


def relabelled(schedule: Schedule, topology: Topology, new: np.ndarray) -> tuple[Schedule, Topology]:
    """Rank r becomes new[r], in both."""
    columns = dict(schedule.ops.columns())
    columns["rank"] = new[columns["rank"]]
    columns["peer"] = np.where(columns["peer"] >= 0, new[np.maximum(columns["peer"], 0)], -1)
    columns["src_rank"] = new[columns["src_rank"]]
    old = np.argsort(new)
    counts = None if schedule.counts is None else schedule.counts[np.ix_(old, old)]
    per_rank = {name: getattr(topology, name)[old] for name in
                ("node_of", "local_of", "fabric_bytes_per_s", "fabric_latency_ps", "local_bytes_per_s")}  # fmt: skip
    return schedule.replace(ops=OpTable(**columns), counts=counts), topology.replace(**per_rank)


@pytest.mark.parametrize("seed", range(40))
def test_relabelling_the_ranks_changes_nothing(seed: int) -> None:
    schedule, topology, late, compute = draw(seed, 32)
    if schedule.counts is not None:  # blocks are numbered by rank, so their sizes would move
        schedule = schedule.replace(collective="all_to_all", counts=None, nbytes=12345)
    new = np.random.default_rng(seed).permutation(topology.n_ranks)
    before = exact_times(schedule, topology, late=late_text(late), compute_ps=compute)
    other, moved = relabelled(schedule, topology, new)
    old = np.argsort(new)
    after = exact_times(other, moved, late=late_text(late[old]), compute_ps=compute[old])
    for column in COLUMNS:
        assert (getattr(after, column + "_ps") == getattr(before, column + "_ps")).all(), column
    assert (after.finish_ps[new] == before.finish_ps).all()


def test_relabelling_a_ring_built_anew() -> None:
    topology = Topology.cluster(nodes=3, gpus_per_node=4).slow(3, nic=(1, 0))
    new = np.random.default_rng(7).permutation(12)
    schedule = ring_all_gather(12, 12 * 1000)
    _, moved = relabelled(schedule, topology, new)
    assert simulate(ring_all_gather(12, 12 * 1000, order=new), moved).meta["time_ps"] == simulate(schedule, topology).meta["time_ps"]


@pytest.mark.parametrize("n", [1, 2, 3, 8, 17])
@pytest.mark.parametrize("block", [0, 1, 999, 1 << 20])
def test_ring_all_gather_has_its_closed_form(n: int, block: int) -> None:
    topology = Topology.cluster(nodes=n, gpus_per_node=1, nics_per_node=1, nic_gbits_per_s=7.3, nic_latency="5us")
    hop = duration_ps(block, int(topology.nic_bytes_per_s[0])) + 5_000_000
    assert exact_times(ring_all_gather(n, n * block), topology).time_ps == (n - 1) * hop


@pytest.mark.parametrize("slow", [1, 2, 5])
def test_ring_with_one_slow_nic_goes_at_its_pace(slow: int) -> None:
    n, block = 6, 10**6
    fast = Topology.cluster(nodes=n, gpus_per_node=1, nics_per_node=1, nic_gbits_per_s=8, nic_latency="5us")
    time = exact_times(ring_all_gather(n, n * block), fast.slow(slow, nic=(2, 0))).time_ps
    # The slow NIC takes a block in `slow` times the time and sends it on one latency later, so it is never idle after the first.
    expected = (n - 1) * (block * 1000 + 5_000_000) if slow == 1 else (n - 1) * slow * block * 1000 + 2 * 5_000_000
    assert time == expected


def test_trace_of_a_ring() -> None:
    topology = Topology.cluster(nodes=2, gpus_per_node=4)
    trace = simulate(ring_all_gather(8, 8 << 20), topology)
    assert trace.meta["time_ps"] == max(trace.meta["finish_ps"])
    assert trace.time_us == trace.meta["time_ps"] / 1e6
    assert trace.meta["source"] == "simulated"
    assert len(trace.where(track="channel")) == trace.meta["n_ops"] == 8 * 7 * 2
    sent, received = trace.where(track="nic_tx"), trace.where(track="nic_rx")
    assert sorted(set(sent["rank"].tolist())) == [3, 7] and sorted(set(received["rank"].tolist())) == [0, 4]
    assert (sent["nbytes"] == 1 << 20).all() and (sent["end_ns"] - sent["begin_ns"] == 1048576).all()
    assert set(zip(received["node"].tolist(), received["index"].tolist(), strict=True)) == {(0, 0), (1, 0)}
    assert (trace.where(track="fabric")["rank"] % 4 != 3).all()
    rates = trace.stats().nics
    assert np.allclose(rates["busy_gbits_per_s"], 8)
    assert trace.busbw_gbytes_per_s == pytest.approx(trace.meta["busbw_gbytes_per_s"])


def test_get_spans_belong_to_the_side_of_the_nic() -> None:
    b = Builder("all_gather", 2, algorithm="test")
    b.get(rank=0, peer=1, src=b.input[0], dst=b.output[1])
    topology = Topology.cluster(nodes=2, gpus_per_node=1, nics_per_node=1, nic_gbits_per_s=8, nic_latency="5us")
    trace = simulate(b.build(nbytes=2000, dtype="int8"), topology)
    assert trace.meta["time_ps"] == 5_000_000 + 1_000_000 + 5_000_000
    assert trace.where(track="nic_tx")["rank"].tolist() == [1] and trace.where(track="nic_rx")["rank"].tolist() == [0]


def test_a_late_peer_holds_its_memory_but_not_signals() -> None:
    b = Builder("all_gather", 2, algorithm="test")
    b.put(rank=0, peer=1, src=b.input[0], dst=b.output[0])
    b.signal(rank=0, peer=1)
    b.wait(rank=1, peer=0, count=2)
    topology = Topology.cluster(nodes=1, gpus_per_node=2, fabric_gbytes_per_s=1, fabric_latency="1us")
    times = exact_times(b.build(nbytes=2000, dtype="int8"), topology, late={1: "3us"})
    assert times.start_ps.tolist()[0] == 3_000_000
    assert times.finish_ps.tolist() == [4_000_000, 5_000_000]


def test_nothing_to_do() -> None:
    b = Builder("barrier", 3, algorithm="test")
    trace = simulate(b.build(), Topology.cluster(nodes=1, gpus_per_node=3), late=["1us", 0, 0])
    assert trace.meta["time_ps"] == 1_000_000 and trace.meta["finish_ps"] == [1_000_000, 0, 0] and len(trace) == 3


def test_zero_bytes_cost_latency_only() -> None:
    topology = Topology.cluster(nodes=4, gpus_per_node=1, nics_per_node=1, nic_latency="5us")
    trace = simulate(ring_all_gather(4, 0), topology)
    assert trace.meta["time_ps"] == 3 * 5_000_000 and len(trace.where(track="nic_tx")) == 0


def test_deadlock_names_the_op() -> None:
    b = Builder("barrier", 2, algorithm="test")
    r = np.arange(2)
    b.wait(rank=r, peer=1 - r)
    b.signal(rank=r, peer=1 - r)
    with pytest.raises(DeadlockError, match=r"op 0 .*at most 0 of the 1 signals") as caught:
        simulate(b.build(), Topology.cluster(nodes=1, gpus_per_node=2))
    assert caught.value.op_id == 0 and caught.value.rank == 0


def test_bad_input_is_refused() -> None:
    schedule, topology = ring_all_gather(4, 400), Topology.cluster(nodes=1, gpus_per_node=4)
    with pytest.raises(ShapeError, match="4 ranks.*has 8"):
        simulate(schedule, Topology.cluster())
    for late in ({4: "1us"}, {0: -1}, {0: "1 parsec"}, {0: 10**9}):
        with pytest.raises(UsageError):
            simulate(schedule, topology, late=late)
    with pytest.raises(ShapeError):
        simulate(schedule, topology, late=[0, 0])
    with pytest.raises(UsageError, match="53 days"):
        simulate(schedule, topology.replace(fabric_bytes_per_s=1), nbytes="1TiB")
    columns = dict(schedule.ops.columns())
    for name, value in (("peer", 9), ("rank", 7), ("peer", -1), ("kind", 8), ("n_chunks", -2)):
        broken = columns[name].copy()
        broken[2] = value
        with pytest.raises((ScheduleError, UsageError)):
            simulate(schedule.replace(ops=OpTable(**{**columns, name: broken})), topology)


def test_compute_durations() -> None:
    b = Builder("barrier", 2, algorithm="test", channels=2)
    r = np.arange(2)
    b.compute(rank=r, arg=0)
    b.compute(rank=r, arg=1)
    b.compute(rank=r, arg=1, channel=1)
    schedule, topology = b.build(), Topology.cluster(nodes=1, gpus_per_node=2)
    assert exact_times(schedule, topology).time_ps == 0
    assert exact_times(schedule, topology, compute_ps=5).time_ps == 10
    assert exact_times(schedule, topology, compute_ps=[5, 7]).time_ps == 12
    assert exact_times(schedule, topology, compute_ps=[[5, 7], [5, 100]]).finish_ps.tolist() == [12, 105]
    for wrong in ([1], [[1, 2]], [-1, 2], [0.5, 1.0]):
        with pytest.raises(UsageError):
            exact_times(schedule, topology, compute_ps=wrong)
    assert simulate(schedule, topology, compute_ps=5000).where(track="compute")["end_ns"].max() == 10


def test_every_link_kind_is_used_somewhere() -> None:
    used = set()
    for seed in range(20):
        schedule, topology, late, compute = draw(seed)
        times = exact_times(schedule, topology, late=late_text(late), compute_ps=compute)
        used |= set(topology.links.kind[times.links].ravel().tolist())
    assert used == set(LinkKind) - {LinkKind.uplink, LinkKind.downlink}
