"""Plans for topologies that lost NICs: simulated T/T0 against the formulas, reasons, bounds, lanes, path limits.

Is not: whether they compute the right thing (tests/property/test_degraded_schedules.py). Times are of the simulator, so they are exact.
"""

from __future__ import annotations

import numpy as np
import pytest

from ccl_lab.errors import UsageError
from ccl_lab.ir import Kind
from ccl_lab.planner import algorithms, formulas_degraded, plan
from ccl_lab.planner.all_reduce_balance import WHOLE
from ccl_lab.planner.all_reduce_lanes import depth_of
from ccl_lab.planner.all_reduce_resilient import split
from ccl_lab.planner.bounds import lower_bound
from ccl_lab.planner.degraded import (
    best_subset,
    bridges,
    finish,
    is_degraded,
    lost,
    node_order,
    rates_of,
    ring_lanes,
)
from ccl_lab.planner.lane_meeting import number_of_rounds, rounds
from ccl_lab.planner.problem import make_problem
from ccl_lab.simulator import exact_times
from ccl_lab.topo import Topology

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "all_to_all", "send_recv")


def cluster(nodes: int = 4, group: int = 1) -> Topology:
    """8 NICs a node, memory and fabric far faster than they."""
    return Topology.cluster(nodes, group, 8, nic_gbits_per_s=400, local_gbytes_per_s=2000, fabric_gbytes_per_s=2000)


def hurt(topology: Topology, nics: int, node: int = 0) -> Topology:
    return topology.without(*[(node, i) for i in range(nics)])


def seconds(collective: str, topology: Topology, nbytes: object, algorithm: str) -> float:
    return exact_times(plan(collective, topology, nbytes, algorithm=algorithm), topology).time_ps * 1e-12


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_balance_takes_1_over_1_minus_x(collective: str) -> None:
    # Long enough that pipelines are as deep before the loss as after it.
    nbytes = {"broadcast": "64GiB", "reduce": "64GiB", "reduce_scatter": "4GiB"}.get(collective, "1GiB")
    whole = seconds(collective, cluster(), nbytes, "balance")
    for nics in (1, 2, 3, 4):
        ratio = seconds(collective, hurt(cluster(), nics), nbytes, "balance") / whole
        assert ratio == pytest.approx(formulas_degraded.balance(nics / 8), rel=0.03), nics


@pytest.mark.parametrize("nics", [1, 2, 3, 4])
def test_resilient_takes_what_its_formula_says(nics: int) -> None:
    topology, x = hurt(cluster(), nics), nics / 8
    problem = make_problem("all_reduce", topology, "1GiB", dtype="float32", redop="sum", in_place=False, root=0, peer=1, channels=None,
                           counts=None)
    found = split(problem)
    assert found.shares is not None, found.why
    ratio = seconds("all_reduce", topology, "1GiB", "resilient") / seconds("all_reduce", cluster(), "1GiB", "balance")
    k = depth_of(problem, found.shares).waves
    assert ratio == pytest.approx(formulas_degraded.resilient(4, x, 1 - found.shares.ring, k), rel=0.04)
    assert ratio == pytest.approx(formulas_degraded.resilient(4, x, k=k), rel=0.03)


@pytest.mark.parametrize("lost", [1, 2, 3, 4])
def test_mix_comes_close_to_the_bound_whatever_is_lost(lost: int) -> None:
    topology = Topology.cluster(4, 1, 8, nic_gbits_per_s=400, local_gbytes_per_s=2000, fabric_gbytes_per_s=2000)
    topology = topology.without(*[(0, nic) for nic in range(lost)])
    bound = lower_bound(topology, "all_reduce", "16GiB")
    assert bound <= seconds("all_reduce", topology, "16GiB", "mix") <= 1.05 * bound


@pytest.mark.parametrize("lost", [1, 2, 3, 4])
@pytest.mark.parametrize(("nbytes", "within"), [("256MiB", 1.08), ("1GiB", 1.03), ("16GiB", 1.015)])
def test_mix_comes_closer_to_the_bound_the_longer_the_message(lost: int, nbytes: str, within: float) -> None:
    """In the order of nominal time 1 GiB came to 1.078, chunks of unequal length included; 256 MiB without the early unit to 1.135."""
    topology = hurt(cluster(), lost)
    bound = lower_bound(topology, "all_reduce", nbytes)
    assert bound <= seconds("all_reduce", topology, nbytes, "mix") <= within * bound


@pytest.mark.parametrize(("group", "lost", "within"), [(2, 4, 1.04), (8, 4, 1.04), (2, 1, 1.12), (8, 1, 1.27)])
def test_sums_inside_the_nodes_come_when_the_mix_needs_them(group: int, lost: int, within: float) -> None:
    """All at once in the beginning they had whole waves wait for one another: 1.19 to 1.49 of the bound."""
    topology = hurt(cluster(4, group), lost)
    assert seconds("all_reduce", topology, "1GiB", "mix") <= within * lower_bound(topology, "all_reduce", "1GiB")


@pytest.mark.parametrize("lost", [1, 3])
def test_chunks_of_the_meetings_are_of_one_length(lost: int) -> None:
    schedule = plan("all_reduce", hurt(cluster(), lost), "1GiB", algorithm="mix")
    chunks = schedule.ops.n_chunks[schedule.ops.kind == Kind.put]
    length, count = np.unique(chunks, return_counts=True)
    assert len(length) == 2 and count.min() > 100  # one of the ring, one of the meetings
    assert length[0] > 0.8 * length[1]


def test_the_steps_of_a_mix_never_go_back_on_a_channel() -> None:
    """An op comes at its step at the earliest, so that one behind a later one would not come when the timetable says."""
    for topology in (hurt(cluster(), 3), hurt(cluster(4, 4), 1), cluster(5).slow(2.5, nic=(0, 1))):
        schedule = plan("all_reduce", topology, "1GiB", algorithm="mix")
        ops = schedule.ops
        assert schedule.timetable
        for rank, channel in np.unique(np.stack([ops.rank, ops.channel], axis=1), axis=0):
            step = ops.step[(ops.rank == rank) & (ops.channel == channel)]
            assert (np.diff(step) >= 0).all(), (rank, channel)


def test_mix_comes_close_to_the_bound_for_one_nic_of_eight() -> None:
    topology = hurt(cluster(), 1)
    bound = lower_bound(topology, "all_reduce", "4GiB")
    assert bound <= seconds("all_reduce", topology, "4GiB", "mix") <= 1.05 * bound


def test_the_bound_of_equal_blocks_is_that_of_their_counts() -> None:
    """Nodes of different sizes, one of which lost a NIC."""
    topology = Topology.cluster(nodes=3, gpus_per_node=4, nics_per_node=4).subset([0, 1, 2, 3, 4, 5, 8, 9, 10]).without((1, 2))
    counts = np.full((9, 9), 1000)
    assert lower_bound(topology, "all_to_all", 9 * 1000) == pytest.approx(lower_bound(topology, "all_to_allv", 0, counts=counts))


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_no_plan_is_faster_than_the_bound(collective: str) -> None:
    for topology in (cluster(3), hurt(cluster(3), 3), hurt(cluster(3, 4), 1), hurt(cluster(2), 2).slow(3, nic=(1, 1))):
        bound = lower_bound(topology, collective, "16MiB")
        for name in algorithms(collective):
            try:
                assert seconds(collective, topology, "16MiB", name) >= bound * (1 - 1e-9), name
            except UsageError:
                continue  # does not fit


def test_formulas_are_those_of_the_papers() -> None:
    f = formulas_degraded
    assert f.resilient(8, 1 / 8, k=10**9) == pytest.approx(1.082, abs=5e-4)
    assert f.balance(1 / 8) == pytest.approx(1.143, abs=5e-4)
    assert f.mix(8, 1 / 8) == pytest.approx(f.bound(8, 1 / 8)) == pytest.approx(1.016, abs=5e-4)
    assert f.resilient(4, 1 / 4, k=7) == pytest.approx(1 + (1 + 1 / 7) * 4 * 0.25 / (2 * 3 * 0.75))
    for n in (3, 4, 8, 128):
        for x in (1 / 16, 1 / 8, 1 / 2, 7 / 8):
            assert f.bound(n, x) <= f.mix(n, x) * (1 + 1e-12) <= f.optcc(n, x) * (1 + 1e-12)
            assert f.bound_of([1 - x] + [1] * (n - 1)) == pytest.approx(f.bound(n, x))
            assert f.resilient(n, x, f.y_star(n, x), 64) <= f.resilient(n, x, x, 64) + 1e-12
            for k in (1, 2, 64):
                assert f.beats_balance(n, k) == (f.resilient(n, x, k=k) < f.balance(x) * (1 - 1e-12))
    assert f.recursive([0.5, 0.75, 1, 1], 8) == pytest.approx(f.resilient(4, 0.5, k=8))
    with pytest.raises(UsageError, match="expected 2 members"):
        f.resilient(1, 0.5)


def test_fallbacks_say_why() -> None:
    two, several = hurt(cluster(2), 1), hurt(hurt(cluster(), 1), 2, node=2)
    for name in ("resilient", "optcc", "mix"):
        assert any("nobody for a partial ring" in line for line in plan("all_reduce", two, "1GiB", algorithm=name).reasons)
        assert any("2 nodes lost NICs" in line for line in plan("all_reduce", several, "1GiB", algorithm=name).reasons)
    small = plan("all_reduce", hurt(cluster(), 1), "64KiB", algorithm="resilient").reasons
    assert any("faster for this size" in line for line in small)
    assert plan("all_reduce", cluster(), "1MiB", algorithm="mix").algorithm == "mix"  # nothing lost: the healthy ring


def test_auto_takes_them_on_degraded_topologies_only_and_names_the_bound() -> None:
    large = plan("all_reduce", hurt(cluster(), 1), "1GiB")
    assert large.algorithm in ("mix", "resilient", "recursive")
    assert any(line.startswith("lower bound: ") for line in large.reasons)
    assert plan("all_gather", hurt(cluster(), 1), "1GiB").algorithm == "balance"
    assert plan("all_reduce", cluster(), "1GiB").algorithm not in ("balance", "mix", "resilient", "recursive", "optcc")
    digests = {plan("all_reduce", hurt(cluster(), 1), "1GiB").digest for _ in range(2)}
    assert len(digests) == 1


def test_auto_is_no_slower_than_balance_with_several_ranks_a_node() -> None:
    for group in (4, 8):
        topology = hurt(cluster(4, group), 1)
        taken = exact_times(plan("all_reduce", topology, "1GiB"), topology).time_ps * 1e-12
        assert taken <= 1.05 * seconds("all_reduce", topology, "1GiB", "balance")


def test_balance_keeps_the_nics_busy_with_several_ranks_a_node() -> None:
    # One chunk a step would leave a NIC idle while its chunk is under way: 1.4 times the whole network's time, not less than 1/(1-X).
    whole, topology = Topology.preset("h100", 16), Topology.preset("h100", 16).without((0, 0))
    problem = make_problem("all_reduce", topology, "256MiB", dtype="float32", redop="sum", in_place=False, root=0, peer=1, channels=None,
                           counts=None)
    assert depth_of(problem, WHOLE).ring_depth == 2
    assert plan("all_reduce", topology, "256MiB").algorithm == "balance"
    assert seconds("all_reduce", topology, "256MiB", "balance") < 8 / 7 * seconds("all_reduce", whole, "256MiB", "hierarchical")


def test_lanes_use_all_that_is_left_on_one_rail_each() -> None:
    topology = cluster(4, 8).without((0, 0), (1, 1))
    lanes = ring_lanes(topology)
    assert finish(topology, lanes.load) * rates_of(topology).max() == pytest.approx(1 / 7)
    straight = hurt(cluster(), 1)
    assert (ring_lanes(straight).nic == ring_lanes(straight).nic[:, :1]).all()
    slow = cluster().slow(2, nic=(1, 3))
    assert is_degraded(slow) and lost(slow) == pytest.approx(1 / 16)
    assert finish(slow, ring_lanes(slow).load) * rates_of(slow).max() == pytest.approx(1 / 7.5, rel=0.01)


def test_neighbours_that_share_no_rail_get_a_bridge() -> None:
    topology = cluster().without(*[(0, i) for i in range(4)], *[(1, i) for i in range(4, 8)])
    order = node_order(topology)
    assert sorted(order) == [0, 1, 2, 3]
    assert abs(order.index(0) - order.index(1)) == 2
    assert "instead of 0" in bridges(topology)
    assert node_order(cluster()) == (0, 1, 2, 3) and not bridges(cluster())


def naive_order(topology: Topology) -> tuple[int, ...]:
    """Every swap of a hurt node with any other, tried on the whole ring; the best one is kept as long as one helps."""
    rates = topology.nic_bytes_per_s.reshape(topology.n_nodes, -1)
    whole = rates.sum(axis=1)

    def worth(ring: list[int]) -> tuple[int, int]:
        edges = [int(np.minimum(rates[a], rates[b]).sum()) for a, b in zip(ring, ring[1:] + ring[:1], strict=True)]
        return min(edges), -edges.count(min(edges))

    order = list(range(topology.n_nodes))
    for _ in range(int((whole < whole.max()).sum())):
        tried = []
        for i in (place for place, node in enumerate(order) if whole[node] < whole.max()):
            for j in range(len(order)):
                trial = order.copy()
                trial[i], trial[j] = trial[j], trial[i]
                tried.append(trial)
        best = max(tried, key=worth)  # the first of equal ones
        if worth(best) <= worth(order):
            break
        order = best
    return tuple(order)


@pytest.mark.parametrize("block", range(4))
def test_nodes_are_put_in_order_as_if_every_swap_were_tried_on_the_whole_ring(block: int) -> None:
    moved = 0
    for seed in range(25 * block, 25 * block + 25):
        rng = np.random.default_rng(seed)
        nodes, nics = int(rng.integers(4, 14)), int(rng.integers(1, 6))
        topology = Topology.cluster(nodes=nodes, gpus_per_node=nics, nics_per_node=nics, nic_gbits_per_s=100)
        rates = topology.nic_bytes_per_s.copy()
        for _ in range(int(rng.integers(1, 8))):
            nic = int(rng.integers(len(rates)))
            rates[nic] = rates[nic] // 2 * int(rng.integers(2))
        topology = topology.replace(nic_bytes_per_s=rates)
        assert node_order(topology) == naive_order(topology), seed
        moved += node_order(topology) != tuple(range(nodes))
    assert moved >= 5


def test_path_limits_of_an_h100_make_one_far_nic_better_than_all() -> None:
    topology = Topology.preset("h100", 2)
    assert best_subset(topology, 0, 7) == (0, 1)
    assert best_subset(topology, 1, 7) == (1, 0)
    ops = plan("send_recv", topology.without((0, 0)), "64MiB", algorithm="balance", root=0, peer=8).ops
    assert len(set(topology.without((0, 0)).nic_of(0, np.unique(ops.channel[ops.rank == 0])).tolist())) == 1
    assert Topology.from_dict(topology.to_dict()) == topology
    with pytest.raises(UsageError, match="path_limits"):
        topology.replace(path_limits={"sideways": 1})


@pytest.mark.parametrize(("members", "outsiders"), [(1, 1), (2, 1), (7, 1), (3, 2), (2, 3), (1, 4), (8, 8)])
def test_in_every_round_a_node_sends_and_receives_once(members: int, outsiders: int) -> None:
    met, passed = set(), 0
    for now in rounds(members, outsiders):
        places = [j for j in now.before if j >= 0]
        assert len(places) == len(set(places))
        met |= {(o, j) for o, j in enumerate(now.before) if j >= 0}
        busy = {(j - 1) % members for j in places}  # these send to an outsider
        assert not busy & {p for p, item in enumerate(now.item) if item >= 0} or members == 1
        passed += sum(item >= 0 for item in now.item)
    assert len(met) == members * outsiders
    assert passed == members * (members - 1)
    assert number_of_rounds(members, outsiders) == len(rounds(members, outsiders))


@pytest.mark.parametrize("name", ["balance", "resilient", "recursive", "optcc", "mix"])
def test_channels_are_as_many_as_are_used(name: str) -> None:
    """What is timed as it is told has memory for each channel of each rank."""
    for topology in (Topology.preset("h100", 3).without((1, 2)), Topology.cluster(5, 1, 4, nic_gbits_per_s=100).slow(2.5, nic=(1, 0))):
        schedule = plan("all_reduce", topology, "8MiB", algorithm=name)
        used = 1 + int(max(schedule.ops.channel.max(), schedule.ops.sig_channel.max()))
        assert used <= schedule.n_channels <= used + 1
