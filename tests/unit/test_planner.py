"""The planner's front: bad input, reasons, what `auto` chooses, and the shape of what it plans.

Is not: whether schedules compute the right thing (tests/property/test_planned_schedules.py).
"""

from __future__ import annotations

import numpy as np
import pytest

from ccl_lab.errors import DtypeError, ShapeError, UsageError
from ccl_lab.ir import Buffer, Kind, collectives
from ccl_lab.planner import ALGORITHMS, algorithms, all_reduce_double_binary_tree, estimate, plan
from ccl_lab.planner.all_reduce_double_binary_tree import double_trees, edge_colors, trees_of
from ccl_lab.planner.choose import IN_PLACE
from ccl_lab.planner.orders import ring_orders, tree_order
from ccl_lab.planner.problem import make_problem
from ccl_lab.topo import Topology
from ccl_lab.verifier import verify

TWO_NODES = Topology.cluster(nodes=2, gpus_per_node=4, nics_per_node=4, nic_gbits_per_s=0.5)
UNEVEN = Topology.cluster(nodes=3, gpus_per_node=[1, 2, 3], nics_per_node=2)
NAMES = [(collective, name) for collective, known in ALGORITHMS.items() for name in known]


def sent_bytes(schedule) -> np.ndarray:
    """Bytes that each rank puts, or reads from peers in place."""
    ops, nbytes = schedule.ops, schedule.layout().op_bytes()
    puts = ops.kind == Kind.put
    sent = np.bincount(ops.rank[puts], weights=nbytes[puts], minlength=schedule.n_ranks)
    reader = np.repeat(np.arange(len(ops)), ops.src_count)
    reader = reader[ops.src_rank != ops.rank[reader]]
    return sent + np.bincount(ops.rank[reader], weights=nbytes[reader], minlength=schedule.n_ranks)


def fits(collective: str, name: str, topology: Topology) -> bool:
    options = {"dtype": "float32", "redop": "sum", "in_place": False, "root": 0, "peer": 1, "channels": None, "counts": None}
    return not ALGORITHMS[collective][name].misfit(make_problem(collective, topology, "1MiB", **options))


# -- bad input


@pytest.mark.parametrize(("options", "error", "words"), [
    ({"algorithm": "rng"}, UsageError, "Did you mean 'ring'"),
    ({"algorithm": "teleport"}, UsageError, "halving_doubling"),
    ({"collective": "all_reduc"}, UsageError, "Did you mean 'all_reduce'"),
    ({"collective": "broadcast", "root": 4}, UsageError, "root 4"),
    ({"collective": "broadcast", "root": -1}, UsageError, "root -1"),
    ({"collective": "broadcast", "root": 1.5}, UsageError, "root 1.5"),
    ({"collective": "send_recv", "peer": 9}, UsageError, "peer 9"),
    ({"nbytes": -1}, UsageError, "negative"),
    ({"nbytes": "many"}, UsageError, "cannot be read"),
    ({"nbytes": "-4MiB"}, UsageError, "cannot be read"),
    ({"dtype": "float8"}, DtypeError, "float8"),
    ({"redop": "median"}, UsageError, "median"),
    ({"redop": "bxor"}, DtypeError, "bitwise"),
    ({"topology": 0}, UsageError, "number of ranks"),
    ({"topology": True}, UsageError, "number of ranks"),
    ({"topology": "h100"}, UsageError, "Topology"),
    ({"channels": 0}, UsageError, "channels 0"),
    ({"counts": np.ones((4, 4), int)}, UsageError, "all_to_allv"),
    ({"collective": "all_to_allv", "counts": np.ones((3, 4), int)}, ShapeError, "[4, 4]"),
    ({"collective": "all_to_allv", "counts": -np.ones((4, 4), int)}, ShapeError, "0 or more"),
    ({"collective": "all_to_allv", "counts": np.ones((4, 4))}, ShapeError, "whole numbers"),
    ({"collective": "all_to_allv", "counts": np.triu(np.ones((4, 4), int)), "in_place": True}, ShapeError, "symmetric"),
    ({"topology": UNEVEN, "algorithm": "hierarchical"}, UsageError, "different numbers of ranks"),
    ({"topology": Topology.cluster(3, 1, 1), "algorithm": "hierarchical"}, UsageError, "does not fit"),
    ({"topology": TWO_NODES, "algorithm": "one_pass"}, UsageError, "ranks are on 2 nodes"),
    ({"topology": Topology.preset("h100", 1), "algorithm": "flat"}, UsageError, "memory of its own (device 'cuda')"),
    ({"algorithm": "two_level", "mapped": False}, UsageError, "the transport keeps ranks from reading"),
])  # fmt: skip
def test_bad_input_is_named(options: dict, error: type[Exception], words: str) -> None:
    given = {"collective": "all_reduce", "topology": 4, "nbytes": "1MiB", **options}
    with pytest.raises(error) as found:
        plan(given.pop("collective"), given.pop("topology"), **given)
    assert words in str(found.value)


def test_algorithms_of_an_unknown_collective() -> None:
    with pytest.raises(UsageError, match="Did you mean 'all_gather'"):
        algorithms("all_gathr")
    assert "ring" in algorithms("all_gather")


# -- structure


@pytest.mark.parametrize(("collective", "name"), NAMES)
@pytest.mark.parametrize("topology", [2, 3, 4, 6, 7, 8, 13, 16, TWO_NODES, UNEVEN, Topology.cluster(4, 2, 4)],
                         ids=lambda topology: str(getattr(topology, "ranks_per_node", topology)))
def test_steps_and_bytes_are_the_closed_form(collective: str, name: str, topology: Topology | int) -> None:
    n = topology if isinstance(topology, int) else topology.n_ranks
    try:
        schedule = plan(collective, topology, 5040 * 16 * 17 * 4, algorithm=name)
    except UsageError:
        return  # does not fit
    cost = estimate(collective, topology, 5040 * 16 * 17 * 4, algorithm=name)
    steps, ops = cost.steps, schedule.ops
    if schedule.timetable and name != "double_binary_tree":  # rings that share NICs: a tick a message, and one for what is sent at first
        messages = np.count_nonzero((ops.kind == Kind.put) & (ops.rank == 0) & (ops.channel == 0))
        assert messages % steps == 0
        steps = messages + 1
    assert schedule.n_steps == steps
    most = sent_bytes(schedule).max()
    slack = 4 * len(schedule.ops) / n  # chunks are cut at whole elements
    at_most = name == "double_binary_tree" or (name == "recursive_halving" and n & (n - 1))
    assert most <= cost.rank_bytes + slack
    if not at_most:
        assert most >= cost.rank_bytes - slack


def test_ring_moves_no_more_than_the_bandwidth_bound() -> None:
    n, message = 8, 8 * 8 * 1024
    for in_place in (False, True):
        schedule = plan("all_reduce", n, message, algorithm="ring", in_place=in_place)
        assert (sent_bytes(schedule) == 2 * (n - 1) * message // n).all()
        assert not (schedule.ops.kind == Kind.copy).any()
        assert schedule.scratch_blocks == int(in_place)


def test_a_ring_whose_adding_core_moves_the_bytes_too_has_whole_pieces() -> None:
    topology, message = Topology.cluster(2, 1, 4), 4 << 20
    for collective, steps in (("all_reduce", 2), ("reduce_scatter", 1)):
        parted, whole = (plan(collective, topology, message, algorithm="ring", overlaps=overlaps) for overlaps in (True, False))
        puts = [(schedule.ops.kind == Kind.put).sum() for schedule in (parted, whole)]
        assert puts[1] == 2 * 4 * steps < puts[0]  # one a rank, NIC and step
        assert (sent_bytes(whole) == sent_bytes(parted)).all()
        verify(whole)


def crossings_of(topology: Topology, channels: int, on_its_rail: bool) -> list[tuple[str, int, int]]:
    """(side, node, NIC) of each crossing of each ring."""
    crossings = []
    for channel, order in enumerate(ring_orders(topology, channels)):
        assert sorted(order) == list(range(topology.n_ranks))
        ahead = np.roll(order, -1)
        far = topology.node_of[order] != topology.node_of[ahead]
        assert far.sum() == topology.n_nodes
        tx, rx = topology.nic_of(order[far], channel), topology.nic_of(ahead[far], channel)
        crossings += [("tx", *pair) for pair in zip(topology.node_of[order[far]].tolist(), tx.tolist(), strict=True)]
        crossings += [("rx", *pair) for pair in zip(topology.node_of[ahead[far]].tolist(), rx.tolist(), strict=True)]
        assert not on_its_rail or (tx == rx).all()
    return crossings


def test_each_channel_of_a_ring_crosses_on_its_own_nic() -> None:
    for topology in (TWO_NODES, Topology.cluster(4, 4, 8), Topology.cluster(4, 8, 4), Topology.cluster(2, 1, 3)):
        m = topology.nics_per_node
        crossings = crossings_of(topology, m, on_its_rail=True)
        assert len(crossings) == len(set(crossings)) == 2 * m * topology.n_nodes


@pytest.mark.parametrize("gone", [*(((1, nic),) for nic in range(8)), ((1, 2), (1, 3)), ((0, 0), (3, 7), (3, 6), (3, 5))])
def test_around_lost_nics_a_ring_crosses_on_one_that_is_spare(gone: tuple[tuple[int, int], ...]) -> None:
    """Four rings, of nodes with eight NICs: none share one, while there are enough."""
    crossings = crossings_of(Topology.cluster(4, 8, 8).without(*gone), 4, on_its_rail=False)
    assert len(crossings) == len(set(crossings)) == 2 * 4 * 4
    crossings = crossings_of(Topology.cluster(4, 8, 8).without(*gone), 8, on_its_rail=False)  # there is none
    assert len(crossings) == 2 * 8 * 4


def test_trees_are_binary_and_share_no_inner_rank() -> None:
    for n in range(2, 70):
        trees = trees_of(Topology.cluster(1, n, 0), 1)
        assert trees.level.max() <= int(n - 1).bit_length()
        assert (trees.children[:, 2] < 0).all()
        inner = (trees.children >= 0).any(axis=1).reshape(2, n)
        assert (trees.parent.reshape(2, n) < 0).sum(axis=1).tolist() == [1, 1]
        assert (inner[0] & inner[1]).sum() <= 1 + n % 2, n
        halves_sent = ((trees.children >= 0).sum(axis=1) + (trees.parent >= 0)).reshape(2, n).sum(axis=0)
        assert halves_sent.max() <= 4, n


@pytest.mark.parametrize("topology", [TWO_NODES, UNEVEN, Topology.cluster(5, 4, 8), Topology.cluster(9, 1, 2)],
                         ids=lambda topology: str(topology.ranks_per_node))
def test_trees_over_nodes_cross_once_a_node_on_the_nic_of_their_slice(topology: Topology) -> None:
    slices = topology.nics_per_node
    trees = trees_of(topology, slices)
    below = trees.parent >= 0
    far = np.flatnonzero(below)[topology.node_of[trees.rank[below]] != topology.node_of[trees.parent[below]]]
    assert len(far) == 2 * slices * (topology.n_nodes - 1)
    assert (~below).sum() == 2 * slices
    if topology.gpus_per_node >= topology.nics_per_node and topology is not UNEVEN:
        assert (topology.nic_of(trees.rank[far], trees.slice[far]) == trees.slice[far]).all()


def test_trees_told_a_few_rows_at_a_time_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = plan("all_reduce", TWO_NODES, "1MiB", algorithm="double_binary_tree")
    monkeypatch.setattr(all_reduce_double_binary_tree, "MOST_ROWS", 3)
    assert plan("all_reduce", TWO_NODES, "1MiB", algorithm="double_binary_tree").digest == whole.digest


def test_tree_order_enters_each_node_once() -> None:
    topology = Topology.cluster(4, 4, 4)
    for root in range(16):
        order = tree_order(topology, root)
        assert order[0] == root
        assert sorted(order) == list(range(16))
        assert (np.diff(topology.node_of[order]) != 0).sum() == 3


# -- auto and its reasons


def test_auto_takes_few_steps_for_small_and_few_bytes_for_large() -> None:
    rows = Topology.cluster(16, 1, 1)
    assert plan("all_reduce", 8, 64, mapped=False).algorithm in ("direct", "hierarchical", "recursive_doubling")
    assert plan("all_reduce", TWO_NODES, "64MiB").algorithm == "hierarchical"
    assert plan("all_reduce", UNEVEN, "64MiB").algorithm != "hierarchical"
    assert plan("broadcast", rows, 64).algorithm == "binomial"
    assert plan("broadcast", rows, "256MiB").algorithm == "pipelined_ring"
    assert plan("all_reduce", Topology.preset("h100", 128), "1MiB").algorithm != "direct"


@pytest.mark.parametrize("topology", [TWO_NODES, Topology.cluster(1, 8, 1), Topology.preset("h100", 1)], ids=lambda t: t.name)
def test_auto_takes_the_cheapest_estimate_and_says_so(topology: Topology) -> None:
    for collective in ALGORITHMS:
        fitting = [name for name in algorithms(collective) if fits(collective, name, topology)]
        for nbytes in (0, 1000, "64MiB"):
            schedule = plan(collective, topology, nbytes)
            costs = {name: estimate(collective, topology, nbytes, algorithm=name).seconds for name in fitting}
            assert costs[schedule.algorithm] <= 1.01 * min(costs.values())
            assert schedule.reasons[0].startswith(f"{schedule.algorithm}: ")
            assert schedule.reasons[0].endswith("chosen")
            assert len(schedule.reasons) == len(algorithms(collective))
            told = [reason for reason in schedule.reasons if reason.split(":")[0] in costs]
            assert len(told) == len(costs)
            assert all("estimated" in reason and "step" in reason for reason in told)


def test_auto_reads_in_place_where_one_node_shares_memory_and_only_there() -> None:
    for collective in ALGORITHMS:
        for n in (2, 4, 8):
            schedule = plan(collective, n, "16MiB")
            assert schedule.algorithm == ("flat" if collective == "barrier" else "one_pass"), (collective, n)
            assert ("through memory" in schedule.reasons[0]) == (collective != "barrier")
            assert plan(collective, n, 8).algorithm in IN_PLACE
            others = (plan(collective, n, "16MiB", mapped=False), plan(collective, Topology.cluster(n, 1, 1), "16MiB"),
                      plan(collective, Topology.preset("h100", 1), "16MiB"))  # fmt: skip
            assert not {other.algorithm for other in others} & set(IN_PLACE), collective
            assert any("does not fit" in reason for reason in others[0].reasons)


def test_auto_of_all_reduce_on_shared_memory_goes_by_size_and_ranks() -> None:
    assert plan("all_reduce", 2, 8).algorithm == plan("all_reduce", 8, 64).algorithm == "flat"
    assert plan("all_reduce", 2, "64KiB").algorithm == plan("all_reduce", 16, "64KiB").algorithm == "one_pass"
    unfused = {name: estimate("all_reduce", 64, "64KiB", algorithm=name).seconds for name in ("two_level", "direct", "ring")}
    assert min(unfused, key=unfused.__getitem__) == "two_level"
    assert plan("all_reduce", 512, 64).algorithm not in IN_PLACE  # a flag for every other rank is more than 18 hops


# -- shared memory


def test_memory_traffic_of_shared_memory_algorithms() -> None:
    message = 8 * 64 * 1024
    seen = {name: estimate("all_reduce", 8, message, algorithm=name).memory_bytes for name in IN_PLACE}
    assert seen["one_pass"] == 2 * message  # each rank reads an eighth of 8 inputs, and writes an eighth of 8 outputs
    assert seen["flat"] == 9 * message
    assert seen["one_pass"] < seen["two_level"] < seen["flat"]
    assert estimate("all_gather", 8, message, algorithm="one_pass").memory_bytes == message // 8 + message
    assert estimate("reduce_scatter", 8, message, algorithm="one_pass").memory_bytes == message + message // 8


@pytest.mark.parametrize(("collective", "name"), [(c, name) for c, name in NAMES if name in ("one_pass", "flat")])
def test_every_sum_is_of_all_ranks_in_order_and_made_once(collective: str, name: str) -> None:
    """So that whoever carries out the same dataflow, in other pieces and on other ranks, gets the same floats."""
    n = 5
    for in_place in (False, True):
        schedule = plan(collective, n, "4MiB", algorithm=name, in_place=in_place, root=2)
        ops = schedule.ops
        sums = np.flatnonzero(ops.kind == Kind.reduce)
        assert (len(sums) > 0) == (collective in collectives.REDUCING)
        for op in sums:
            begin = ops.src_begin[op]
            assert ops.src_rank[begin : begin + ops.src_count[op]].tolist() == list(range(n))
            assert set(ops.src_buf[begin : begin + n].tolist()) == {int(Buffer.input)}
        made = int(schedule.layout().op_bytes()[sums].sum())
        assert made == {"flat": n, "one_pass": 1}[name] * schedule.layout().message_nbytes() * (len(sums) > 0)


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8, 16, 30, 64])
def test_shares_stay_small_and_tables_short(n: int) -> None:
    for collective in ("all_reduce", "all_gather", "broadcast", "reduce"):
        for nbytes in ("64KiB", "16MiB", "1GiB"):
            ops = plan(collective, n, nbytes, algorithm="one_pass").ops
            assert len(ops) <= 140_000
    schedule = plan("all_reduce", n, n << 20, algorithm="one_pass")
    assert schedule.layout().op_bytes().max() == 256 * 1024


@pytest.mark.parametrize("n", range(2, 40))
def test_no_rank_of_two_levels_deals_with_all_others(n: int) -> None:
    ops = plan("all_reduce", n, "1MiB", algorithm="two_level").ops
    peers = [set(ops.peer[(ops.rank == rank) & (ops.peer >= 0)].tolist()) for rank in range(n)]
    group = int(n**0.5)
    assert max(map(len, peers)) <= group - 1 + 1 + n // group - 1
    assert ops.src_count.max() <= max(group + 1, n // group)


@pytest.mark.parametrize("n", [*range(2, 35), 64, 100, 1023, 1024])
def test_edges_of_two_trees_that_meet_have_two_colors(n: int) -> None:
    parents = double_trees(n)
    color = edge_colors(parents)
    below = [(member, color[tree, member]) for tree in (0, 1) for member in range(n) if parents[tree, member] >= 0]
    above = [(parents[tree, member], color[tree, member]) for tree in (0, 1) for member in range(n) if parents[tree, member] >= 0]
    assert len(set(below)) == len(below) == len(set(above)) == len(above) == 2 * (n - 1)
    assert {shade for _, shade in below} <= {0, 1}


@pytest.mark.parametrize("topology", [Topology.cluster(8, 1, 1), Topology.cluster(7, 2, 2), Topology.cluster(6, 4, 4), 13])
def test_in_a_step_of_a_tree_nobody_sends_or_gets_two_chunks_of_a_slice(topology: Topology | int) -> None:
    """One over NICs and one inside the node."""
    ops = plan("all_reduce", topology, "64MiB", algorithm="double_binary_tree").ops
    puts = np.flatnonzero(ops.kind == Kind.put)
    node_of = np.zeros(topology, int) if isinstance(topology, int) else topology.node_of
    near = node_of[ops.rank[puts]] == node_of[ops.peer[puts]]
    slices = (int(ops.channel.max()) + 1) // 4
    for end in (ops.rank, ops.peer):
        rows = np.stack([ops.step[puts], end[puts], ops.channel[puts] % slices, near])
        assert len(np.unique(rows, axis=1).T) == len(puts)


def test_reasons_name_what_does_not_fit() -> None:
    reasons = plan("all_reduce", UNEVEN, "1MiB").reasons
    assert any(reason.startswith("hierarchical: does not fit: nodes hold different") for reason in reasons)
    assert plan("all_reduce", 4, "1MiB", algorithm="direct").reasons[0].endswith("as asked")


def test_defaults_of_a_run_are_those_of_the_plan() -> None:
    schedule = plan("all_gather", 3, "1MiB", dtype="int16", root=2)
    assert (schedule.nbytes, schedule.dtype, schedule.redop) == (1 << 20, "int16", "sum")
    counts = np.arange(9).reshape(3, 3)
    schedule = plan("all_to_allv", 3, counts=counts, dtype="int8")
    assert np.array_equal(schedule.counts, counts) and schedule.nbytes == counts.sum() // 3


def test_one_rank_only_copies() -> None:
    for collective, name in NAMES:
        kinds = plan(collective, 1, 64, algorithm=name, peer=0).ops.kind
        assert set(kinds.tolist()) <= {int(Kind.copy)}
        assert len(plan(collective, 1, 64, algorithm=name, peer=0, in_place=True).ops) <= 1


def test_plans_are_reproducible() -> None:
    for collective, name in NAMES:
        topology = 8 if name in IN_PLACE else TWO_NODES
        digests = {plan(collective, topology, "1MiB", algorithm=name).digest for _ in range(2)}
        assert len(digests) == 1
