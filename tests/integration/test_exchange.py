"""all_to_allv_dynamic, its persistent form, and dispatch and combine of experts, in ranks of this machine.

Is: real processes over shared memory, over sockets, and on emulated nodes with rails. Is not: what the ranks do (exchange_cases.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .test_init import launch

HERE = str(Path(__file__).resolve().parent)


def run_case(calls: str, n: int, nodes: int = 0, **extra: str) -> None:
    """`calls` of exchange_cases on n ranks; on `nodes` emulated nodes with two NICs each, if any. All must get through."""
    cluster = f"ccl.Topology.cluster(nodes={nodes}, gpus_per_node={n // max(nodes, 1)}, nics_per_node=2, nic_gbits_per_s=20)"
    body = f"""
        sys.path.insert(0, {HERE!r})
        import exchange_cases as cases
        with ccl.init(timeout="20s", topology={cluster if nodes else None}) as comm:
            for call in {calls.split()!r}:
                getattr(cases, call)(comm)
        print("fine")
    """
    for status, output in launch(body, n=n, **extra):
        assert status == 0 and "fine" in output, output


@pytest.mark.parametrize("n, nodes, transport", [(1, 0, "auto"), (3, 0, "auto"), (3, 0, "tcp"), (4, 2, "auto")])
def test_every_routing_is_bitwise_what_the_reference_says(n, nodes, transport):
    run_case("random_routings long_pieces two_posted", n, nodes, CCL_LAB_TRANSPORT=transport)


@pytest.mark.parametrize("n, nodes, transport", [(3, 0, "auto"), (3, 0, "tcp"), (4, 2, "auto")])
def test_counts_are_read_when_the_collective_starts(n, nodes, transport):
    run_case("read_when_it_starts", n, nodes, CCL_LAB_TRANSPORT=transport)


@pytest.mark.parametrize("n, nodes, transport", [(1, 0, "auto"), (3, 0, "auto"), (3, 0, "tcp"), (4, 2, "auto")])
def test_persistent_exchanges(n, nodes, transport):
    run_case("persistent groups", n, nodes, CCL_LAB_TRANSPORT=transport)


@pytest.mark.parametrize("n, nodes", [(1, 0), (3, 0), (4, 2), (6, 3)])
def test_dispatch_and_combine(n, nodes):
    run_case("moe_routings like_dense bad_moe", n, nodes)


def test_bytes_over_the_rails_are_what_the_bitmaps_predict():
    run_case("rails", 4, 2)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_bad_counts_are_named_on_every_rank(transport):
    run_case("bad_counts ranks_differ", 3, CCL_LAB_TRANSPORT=transport)


@pytest.mark.parametrize("n", [1, 3])
def test_bad_calls_are_refused(n):
    run_case("bad_calls", n)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_rank_that_does_not_come_is_named(transport):
    run_case("late_rank", 3, CCL_LAB_TRANSPORT=transport)


def test_a_nic_lost_between_two_steps_or_within_one():
    run_case("lost_nic", 4, 2)


def test_nodes_that_are_played_must_be_the_same_ones():
    results = launch("""
        sizes = {"0": 3, "1": 3, "2": 4}
        played = ccl.Topology.cluster(nodes=sizes[os.environ["CCL_LAB_RANK"]], gpus_per_node=1, nics_per_node=1, nic_gbits_per_s=1)
        try:
            ccl.init(topology=played)
        except ccl.UsageError as error:
            print("differ" in str(error))
    """)
    assert all("True" in output for _, output in results), results
