"""The shared-link tier: against its oracle, against the exact tier where nothing is shared, and what fair sharing must hold."""

from __future__ import annotations

import numpy as np
import pytest

from ccl_lab.errors import DeadlockError, ScheduleError, ShapeError, UsageError
from ccl_lab.ir import Builder, Kind, Schedule
from ccl_lab.planner import plan
from ccl_lab.simulator import (
    Job,
    Times,
    exact_times,
    fair_rates,
    link_bytes,
    shared_times,
    simulate,
    simulate_jobs,
    simulate_shared,
)
from ccl_lab.topo import INSTANT, Level, LinkKind, Topology, duration_ps

from ..shares import expected, first_of
from .cases import random_network, random_schedule, random_topology, ring_all_gather
from .sharing_oracle import SharedOracle, random_jobs

COLUMNS = ("begin", "end", "start", "leave", "arrive")


def draw(seed: int, most: int = 24) -> tuple[np.random.Generator, Topology]:
    rng = np.random.default_rng(seed)
    topology = random_topology(rng, int(rng.integers(1, most + 1)))
    if rng.random() < 0.7:
        topology = topology.replace(network=random_network(rng, topology.n_nodes))
    return rng, topology


def assert_equal_to_oracle(seed: int) -> None:
    rng, topology = draw(seed)
    jobs, expected = [], []
    alpha = int(rng.integers(0, 10**7)) if rng.random() < 0.4 else 0
    for schedule, ranks, start in random_jobs(
        rng, topology, lambda rng, n: random_schedule(rng, n, int(rng.integers(0, 150)))
    ):
        n = len(ranks)
        late = (rng.integers(0, 10**9, n) * (rng.random(n) < 0.3)).tolist()
        compute = rng.integers(0, 10**8, (n, 4))
        jobs.append(
            Job(
                schedule,
                ranks,
                f"{start}ps",
                late={r: f"{ps}ps" for r, ps in enumerate(late) if ps},
                compute_ps=compute,
            )
        )
        expected.append(
            (
                schedule,
                ranks,
                schedule.layout(),
                [start + ps for ps in late],
                lambda r, arg, c=compute: int(c[r, arg]),
            )
        )
    oracle = SharedOracle(topology, expected, alpha)
    for found, known in zip(shared_times(jobs, topology, alpha=f"{alpha}ps"), oracle.jobs, strict=True):
        assert found.finish_ps.tolist() == known.finish
        assert found.level.tolist() == [known.level[op] for op in range(len(found.level))]
        for column in COLUMNS:
            values = getattr(found, column + "_ps").tolist()
            assert {op: values[op] for op in getattr(known, column)} == getattr(known, column), column


@pytest.mark.parametrize("block", range(12))
def test_random_jobs_equal_the_oracle_to_the_picosecond(block: int) -> None:
    for seed in first_of(range(20 * block, 20 * block + 20)):
        try:
            assert_equal_to_oracle(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


# -- where nothing is shared


def nothing_is_shared(schedule: Schedule, topology: Topology, times: Times, late: list[int]) -> bool:
    """Whether, by the exact tier, no transfer waits for one of another connection, and none is on a link while another is."""
    spans: dict[int, list[tuple[int, int, object]]] = {}
    left: dict[object, int] = {}
    for op in schedule.ops:
        if op.kind not in (Kind.put, Kind.get, Kind.copy, Kind.reduce):
            continue
        far = op.kind in (Kind.put, Kind.get)
        src, dst = (op.peer, op.rank) if op.kind == Kind.get else (op.rank, op.peer if far else op.rank)
        begin = int(times.begin_ps[op.op_id])
        if op.kind == Kind.get:
            begin += int(topology.latency_ps(dst, src, op.channel))
        connection = (
            (op.rank, op.channel, op.peer) if op.kind == Kind.put and op.peer != op.rank else op.op_id
        )
        owners = [op.peer] if far else [rank for rank, _, _ in op.sources]
        if times.start_ps[op.op_id] != max(
            [begin, left.get(connection, 0)] + [late[owner] for owner in owners]
        ):
            return False
        left[connection] = int(times.leave_ps[op.op_id])
        for link in set(topology.route(src, dst, op.channel).tolist()) - {-1}:
            spans.setdefault(link, []).append((int(times.start_ps[op.op_id]), left[connection], connection))
    return not any(
        one != other and begin_a < end_b and begin_b < end_a
        for users in spans.values()
        for i, (begin_a, end_a, one) in enumerate(users)
        for begin_b, end_b, other in users[i + 1 :]
    )


def wide_network(topology: Topology, rng: np.random.Generator) -> Topology:
    """Switches whose uplinks are as fast as any NIC."""
    if rng.random() < 0.5:
        return topology
    network = random_network(rng, topology.n_nodes)
    tiers = tuple(
        tier
        if not tier.uplinks
        else type(tier)(
            tier.name, tier.group_of, tier.latency_ps, tier.uplinks, 60_000_000_000, tier.per_rail
        )
        for tier in network.tiers
    )
    return topology.replace(network=type(network)(tiers, network.routing, network.seed))


@pytest.mark.parametrize("block", range(8))
def test_equal_to_exact_where_nothing_is_shared(block: int) -> None:
    quiet = moved = 0
    for seed in first_of(range(100 * block, 100 * block + 100)):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 33))
        topology = wide_network(random_topology(rng, n), rng)
        schedule = random_schedule(rng, n, int(rng.integers(1, 4 * n + 2)))
        late = (rng.integers(0, 10**10, n) * (rng.random(n) < 0.8)).tolist()
        alpha = int(rng.integers(0, 10**6)) if rng.random() < 0.5 else 0
        arguments = {
            "late": {r: f"{ps}ps" for r, ps in enumerate(late)},
            "compute_ps": int(rng.integers(0, 10**8)),
        }
        exact = exact_times(schedule, topology, alpha=f"{alpha}ps", **arguments)
        if not nothing_is_shared(schedule, topology, exact, late):
            continue
        quiet += 1
        moved += int((exact.leave_ps > exact.start_ps).sum())
        (shared,) = shared_times([Job(schedule, **arguments)], topology, alpha=f"{alpha}ps")
        for column in COLUMNS + ("finish",):
            assert (getattr(shared, column + "_ps") == getattr(exact, column + "_ps")).all(), (seed, column)
    assert quiet >= expected(8) and moved >= expected(30)


@pytest.mark.parametrize("n", [2, 3, 8, 17])
def test_a_ring_over_its_own_nics_is_as_exact_has_it(n: int) -> None:
    topology = Topology.cluster(
        nodes=n, gpus_per_node=1, nics_per_node=1, nic_gbits_per_s=7.3, nic_latency="5us"
    ).slow(3, nic=(1, 0))
    schedule = ring_all_gather(n, n * 999_999)
    exact, (shared,) = exact_times(schedule, topology), shared_times([Job(schedule)], topology)
    # The rank behind the slow NIC keeps its puts in line: one connection, served in order by both tiers.
    for column in COLUMNS + ("finish",):
        assert (getattr(shared, column + "_ps") == getattr(exact, column + "_ps")).all()
    traces = simulate(schedule, topology), simulate_shared(schedule, topology)
    for name in ("rank", "track", "kind", "op_id", "nbytes"):
        assert (traces[0][name] == traces[1][name]).all()
    assert traces[1].meta["tier"] == "shared" and traces[1].time_us == traces[0].time_us


# -- what fair sharing must hold


@pytest.mark.parametrize(("nodes", "ranks"), [(2, 4), (4, 2), (5, 1), (8, 1), (16, 4), (32, 1)])
def test_trees_in_the_order_of_their_timetable_are_as_fast_as_if_they_shared(nodes: int, ranks: int) -> None:
    """An order in which NICs wait for one another takes twice as long: that of nominal time does, from four nodes on."""
    topology = Topology.cluster(nodes=nodes, gpus_per_node=ranks, nics_per_node=ranks, nic_gbits_per_s=0.25)
    schedule = plan("all_reduce", topology, "4MiB", algorithm="double_binary_tree")
    exact, shared = simulate(schedule, topology).meta["time_ps"], simulate_shared(schedule, topology).meta["time_ps"]
    assert 0.97 < exact / shared < 1.03
    assert simulate(schedule.replace(timetable=False), topology).meta["time_ps"] > (1 if nodes == 2 else 1.2) * exact


@pytest.mark.parametrize("seed", range(300))
def test_rates_are_max_min_fair(seed: int) -> None:
    rng = np.random.default_rng(seed)
    links, classes = int(rng.integers(1, 30)), int(rng.integers(1, 40))
    width = int(rng.integers(1, 6))
    routes = rng.integers(-1, links, (classes, width))
    routes[:, 0] = np.maximum(routes[:, 0], 0)
    flows = rng.integers(0, 6, classes)
    rates = rng.integers(10**6, 10**11, links)
    rates[rng.random(links) < 0.1] = INSTANT
    again = [int(c) for c in rng.permutation(classes) if flows[c]]
    given = fair_rates(routes, flows, rates, again)
    assert (given == fair_rates(routes, flows, rates)).all()
    order = rng.permutation(classes)
    assert (fair_rates(routes[order], flows[order], rates) == given[order]).all()
    uses = np.zeros((classes, links), bool)
    for c in range(classes):
        uses[c, routes[c][routes[c] >= 0]] = True
    carried = (uses * (given * flows)[:, None]).sum(axis=0)
    assert (carried <= rates).all()
    slack = flows @ uses / 1024
    for c in np.flatnonzero(flows):
        own = np.flatnonzero(uses[c] & (rates < INSTANT))
        highest = np.array([given[(flows > 0) & uses[:, link]].max() for link in own])
        assert not len(own) or ((rates[own] - carried[own] <= slack[own]) & (given[c] == highest)).any()


@pytest.mark.parametrize("seed", first_of(range(60)))
def test_never_below_the_bandwidth_bound(seed: int) -> None:
    rng, topology = draw(seed)
    n = topology.n_ranks
    schedule = random_schedule(rng, n, 300)
    (times,) = shared_times([Job(schedule)], topology)
    ops, carried = schedule.ops, np.zeros(len(topology.links), np.int64)
    for op in np.flatnonzero(np.isin(ops.kind, (Kind.put, Kind.get))):
        src, dst = int(ops.rank[op]), int(ops.peer[op])
        route = set(
            topology.route(
                *((dst, src) if ops.kind[op] == Kind.get else (src, dst)), int(ops.channel[op])
            ).tolist()
        ) - {-1}
        carried[list(route)] += int(times.nbytes[op])
        slowest = int(topology.links.bytes_per_s[list(route)].min())
        assert times.leave_ps[op] - times.start_ps[op] >= duration_ps(int(times.nbytes[op]), slowest)
    network = topology.links.kind != LinkKind.local
    assert (link_bytes([Job(schedule)], topology)[network] == carried[network]).all()
    bound = max(
        duration_ps(int(b), int(rate))
        for b, rate in zip(carried, topology.links.bytes_per_s, strict=True)
        if rate
    )
    assert times.time_ps >= bound


@pytest.mark.parametrize("seed", range(20))
def test_the_order_of_jobs_changes_nothing(seed: int) -> None:
    rng, topology = draw(seed)
    jobs = [Job(schedule, ranks, f"{start}ps") for schedule, ranks, start in
            random_jobs(rng, topology, lambda rng, n: random_schedule(rng, n, 60), 4)]  # fmt: skip
    order = rng.permutation(len(jobs))
    before, after = shared_times(jobs, topology), shared_times([jobs[i] for i in order], topology)
    for times, i in zip(after, order, strict=True):
        assert (times.arrive_ps == before[i].arrive_ps).all() and (
            times.finish_ps == before[i].finish_ps
        ).all()


@pytest.mark.parametrize("seed", range(20))
def test_relabelling_the_ranks_changes_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 24))
    topology, schedule = random_topology(rng, n), random_schedule(rng, n, 200)
    new = rng.permutation(n)
    old = np.argsort(new)
    moved = topology.replace(**{name: getattr(topology, name)[old] for name in
                                ("node_of", "local_of", "fabric_bytes_per_s", "fabric_latency_ps", "local_bytes_per_s")})  # fmt: skip
    (before,), (after,) = (
        shared_times([Job(schedule)], topology),
        shared_times([Job(schedule, ranks=new.tolist())], moved),
    )
    for column in COLUMNS + ("finish",):
        assert (getattr(after, column + "_ps") == getattr(before, column + "_ps")).all(), column


# -- known answers


def puts(n: int, pairs: list[tuple[int, int]]) -> Schedule:
    """One put of a whole block for each (source, destination), at once, and a wait for it."""
    b = Builder("all_to_all", n, algorithm="test")
    for src, dst in pairs:
        b.put(rank=src, peer=dst, src=b.input[dst], dst=b.output[src], signal=True)
    for src, dst in pairs:
        b.wait(rank=dst, peer=src)
    return b.build()


def at_rate(nbytes: int, bytes_per_s: int, flows: int) -> int:
    """Picoseconds of a flow that has one of `flows` equal parts of a link."""
    return -(-nbytes * 10**12 * 1024 // (bytes_per_s * 1024 // flows))


MB = 10**6


def two_leaves(nodes: int, uplinks: int, oversubscription: float, **more: object) -> Topology:
    """Nodes of one rank and one NIC of 1 GB/s, half of them on each leaf."""
    flat = Topology.cluster(
        nodes=nodes, gpus_per_node=1, nics_per_node=1, nic_gbits_per_s=8, nic_latency="5us"
    )
    leaf = Level("leaf", nodes=nodes // 2, uplinks=uplinks, oversubscription=oversubscription)
    return flat.with_network(leaf, Level("spine", latency="2us"), **more)


def test_ecmp_collides_where_spraying_does_not() -> None:
    schedule = puts(16, [(r, 8 + r) for r in range(8)])
    spray = simulate_shared(schedule, two_leaves(16, 4, 2, routing="spray"), nbytes=16 * MB)
    assert spray.meta["time_ps"] == at_rate(MB, 10**9, 2) + 7 * MB  # 8 flows over 4 GB/s
    worst = set()
    for seed in range(12):
        topology = two_leaves(16, 4, 2, seed=seed)
        taken = np.bincount(topology.network.uplink_of(np.arange(8), np.arange(8, 16), 0)[:, 0], minlength=4)
        (times,) = shared_times([Job(schedule, nbytes=16 * MB)], topology)
        assert times.time_ps == at_rate(MB, 10**9, int(taken.max())) + 7 * MB
        worst.add(int(taken.max()))
    assert max(worst) >= 4 and min(worst) <= 3  # two a link would be fair; a hash gives some link four


def test_one_to_seven_oversubscription_slows_all_to_all() -> None:
    n = 14
    schedule = puts(n, [(r, (r + d) % n) for d in range(1, n) for r in range(n)])
    full, seventh = (
        simulate_shared(schedule, two_leaves(n, 1, factor), nbytes=n * MB).meta["time_ps"]
        for factor in (1, 7)
    )
    assert full == at_rate(MB, 10**9, 13) + 7 * MB  # the NIC's 13 blocks
    assert seventh == at_rate(MB, 10**9, 49) + 7 * MB  # 7 x 7 blocks through one GB/s: 49 / 13 times as long
    # Inside a leaf the blocks are done as soon as the NIC has carried them beside the slow ones: 6 share 1 - 7 / 49 GB/s.
    (times,) = shared_times([Job(schedule, nbytes=n * MB)], two_leaves(n, 1, 7))
    near = (schedule.ops.kind == Kind.put) & (schedule.ops.rank // 7 == schedule.ops.peer // 7)
    assert np.abs(times.leave_ps[near] - 7 * MB * 1000).max() <= 2


def test_rails_keep_off_the_spine() -> None:
    flat = Topology.cluster(nodes=4, gpus_per_node=2, nics_per_node=2, nic_gbits_per_s=8, nic_latency="5us")
    rails = flat.with_network(
        Level("leaf", nodes=4, uplinks=1, oversubscription=100, per_rail=True), Level("spine")
    )
    along = puts(8, [(r, (r + 2) % 8) for r in range(8)])
    across = puts(8, [(r, (r + 3) % 8 if r % 2 == 0 else (r + 1) % 8) for r in range(8)])
    times = [
        shared_times([Job(schedule, nbytes=8 * MB)], t)[0].time_ps
        for schedule in (along, across)
        for t in (flat, rails)
    ]
    assert times[0] == times[1] == MB * 1000 + 5 * MB == times[2]
    assert times[3] == at_rate(MB, 4 * 10**9 // 100, 4) + 5 * MB  # 4 flows up each leaf's 4 GB/s / 100
    # Through NVSwitch first, then along the rail: 100 : 1 above the leaves costs nothing.
    b = Builder("all_to_all", 8, algorithm="test", channels=1)
    b.put(rank=0, peer=1, src=b.input[3], dst=b.scratch[0], signal=True)
    b.wait(rank=1, peer=0)
    b.put(rank=1, peer=3, src=b.scratch[0], dst=b.output[0], signal=True)
    b.wait(rank=3, peer=1)
    assert (
        shared_times([Job(b.build(), nbytes=8 * MB)], rails)[0].time_ps == MB * 250 + MB + MB * 1000 + 5 * MB
    )


def test_two_jobs_on_the_same_nics_take_turns() -> None:
    topology = Topology.cluster(
        nodes=4, gpus_per_node=2, nics_per_node=1, nic_gbits_per_s=8, nic_latency="5us"
    )
    ring = ring_all_gather(4, 4 * MB)
    even, odd = Job(ring, ranks=[0, 2, 4, 6]), Job(ring, ranks=[1, 3, 5, 7])
    (alone,) = simulate_jobs([even], topology)
    assert alone.meta["time_ps"] == 3 * (MB * 1000 + 5 * MB)
    both = simulate_jobs([even, odd], topology)
    assert [trace.meta["time_ps"] for trace in both] == [3 * (2 * MB * 1000 + 5 * MB)] * 2
    assert both[1].meta["ranks"] == [1, 3, 5, 7] and set(both[1]["rank"].tolist()) == {1, 3, 5, 7}
    # In the gap that the first job's last step leaves open: the second begins 0.5 ms before the first ends.
    late = Job(ring, ranks=[1, 3, 5, 7], start="2510us")
    first, second = simulate_jobs([even, late], topology)
    assert first.meta["time_ps"] == alone.meta["time_ps"] + 500 * MB
    assert second.meta["time_ps"] == alone.meta["time_ps"] + 500 * MB and second.meta["start_ps"] == 2510 * MB
    assert (
        first.meta["jobs_end_ps"] == [2510 * MB + second.meta["time_ps"]] == [max(second.meta["finish_ps"])]
    )
    same = simulate_shared(
        ring_all_gather(8, 8 * MB), topology, jobs=[Job(ring, ranks=[0, 2, 4, 6], start="1s")]
    )
    assert same.meta["time_ps"] == simulate_shared(ring_all_gather(8, 8 * MB), topology).meta["time_ps"]


def test_channels_of_one_rank_share_and_one_connection_queues() -> None:
    topology = Topology.cluster(nodes=3, gpus_per_node=1, nics_per_node=1, nic_gbits_per_s=8, nic_latency=0)
    b = Builder("all_to_all", 3, algorithm="test", channels=2)
    b.put(rank=0, peer=1, src=b.input[1], dst=b.output[0])
    b.put(rank=0, peer=1, src=b.input[1], dst=b.output[0])
    b.put(rank=0, peer=2, src=b.input[2], dst=b.output[0], channel=1)
    (times,) = shared_times([Job(b.build(), nbytes=3 * MB)], topology)
    # Half the rate each until the second MB of each side is through; then the connection has the NIC alone.
    assert times.leave_ps.tolist() == [2000 * MB, 3000 * MB, 2000 * MB] and times.start_ps.tolist() == [
        0,
        2000 * MB,
        0,
    ]


def test_it_is_not_monotone() -> None:
    """A slower NIC of one receiver lets another one's bytes through earlier: true of fair sharing, and the reason why exact is not it."""
    topology = Topology.cluster(nodes=3, gpus_per_node=1, nics_per_node=1, nic_gbits_per_s=8, nic_latency=0)
    schedule = puts(3, [(0, 1), (0, 2)])
    before, after = (
        shared_times([Job(schedule, nbytes=3 * MB)], t)[0] for t in (topology, topology.slow(4, nic=(1, 0)))
    )
    assert before.leave_ps[:2].tolist() == [2000 * MB, 2000 * MB]
    assert (
        after.leave_ps[1] == duration_ps(MB, 750_000_000) < before.leave_ps[1]
        and after.leave_ps[0] == 4000 * MB
    )


def test_instant_links_limit_nobody() -> None:
    topology = Topology.cluster(nodes=1, gpus_per_node=4, local_gbytes_per_s=float("inf")).replace(
        fabric_bytes_per_s=INSTANT
    )
    schedule = puts(4, [(0, 1), (0, 2), (3, 1)])
    (times,) = shared_times([Job(schedule, nbytes=4 * MB)], topology, alpha="3us")
    assert (
        times.time_ps
        == 3 * MB + 1 * MB
        == exact_times(puts(4, [(0, 1)]), topology, nbytes=4 * MB, alpha="3us").time_ps
    )


def test_computation_slows_beside_communication() -> None:
    topology = Topology.cluster(nodes=2, gpus_per_node=1, nics_per_node=1, nic_gbits_per_s=8, nic_latency=0)
    b = Builder("all_to_all", 2, algorithm="test", channels=2)
    b.compute(rank=0, arg=0)
    b.put(rank=0, peer=1, src=b.input[1], dst=b.output[0], channel=1)
    schedule = b.build(nbytes=2 * MB)
    for simulated in (exact_times(schedule, topology, compute_ps=5000 * MB, interference=1.25),
                      shared_times([Job(schedule, compute_ps=5000 * MB)], topology, interference=1.25)[0]):  # fmt: skip
        assert simulated.finish_ps.tolist() == [1000 * MB + 4200 * MB, 0]


def test_bad_input_is_refused() -> None:
    schedule, topology = ring_all_gather(4, 400), Topology.cluster(nodes=1, gpus_per_node=4)
    with pytest.raises(ShapeError, match="4 ranks.*has 8"):
        simulate_shared(schedule, Topology.cluster())
    for ranks in ([0, 1, 2], [0, 1, 2, 2], [0, 1, 2, 4], [0, 1, 2, -1], [0.5, 1, 2, 3]):
        with pytest.raises(UsageError, match="expected 4 different ranks"):
            simulate_jobs([Job(schedule, ranks=ranks)], topology)
    with pytest.raises(UsageError, match="at least 1"):
        simulate_jobs([], topology)
    with pytest.raises(UsageError):
        simulate_jobs([Job(schedule, start="-1us")], topology)
    with pytest.raises(UsageError, match="start .*26 days"):
        simulate_jobs([Job(schedule, start="1e6s", late={1: 2e6})], topology)
    with pytest.raises(UsageError, match="53 days"):
        simulate_shared(schedule, topology.replace(fabric_bytes_per_s=1), nbytes="1TiB")
    with pytest.raises(UsageError, match=r"expected less than 2\^52"):
        simulate_shared(schedule, topology.replace(fabric_bytes_per_s=2**53))
    columns = dict(schedule.ops.columns())
    for name, value in (("peer", 9), ("rank", 7), ("peer", -1), ("kind", 8), ("n_chunks", -2)):
        broken = columns[name].copy()
        broken[2] = value
        with pytest.raises((ScheduleError, UsageError)):
            simulate_shared(schedule.replace(ops=type(schedule.ops)(**{**columns, name: broken})), topology)
    b = Builder("barrier", 2, algorithm="test")
    b.wait(rank=0, peer=1)
    with pytest.raises(DeadlockError, match=r"op 0 .*at most 0 of the 1 signals"):
        simulate_jobs([Job(schedule), Job(b.build(), ranks=[2, 3])], topology)
