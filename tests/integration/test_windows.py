"""Windows among ranks of this machine: shared memory, sockets, and emulated nodes with 1, 2 and 4 NICs.

Is: real processes, and what goes wrong with them. Is not: what the ranks do (window_cases.py), nor verbs (tests/rdma).
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from .test_init import launch

HERE = str(Path(__file__).resolve().parent)


def run_case(calls: list[str], n: int, nodes: int = 0, nics: int = 2, gbits: float = 20, timeout: str = "60s", **extra: str) -> None:
    """Each of `calls`, as "name(comm, ...)", on n ranks; on `nodes` emulated nodes, if any. All ranks must get through."""
    ended = started(calls, n, nodes, nics, gbits, timeout, **extra)
    for status, output in ended:  # the first rank to complain may only have seen another one end
        assert status == 0 and "fine" in output, "\n".join(f"rank {rank}: {said}" for rank, (_, said) in enumerate(ended))


def started(
    calls: list[str], n: int, nodes: int = 0, nics: int = 2, gbits: float = 20, timeout: str = "60s", **extra: str
) -> list[tuple[int, str]]:
    cluster = f"ccl.Topology.cluster(nodes={nodes}, gpus_per_node={n // max(nodes, 1)}, nics_per_node={nics}, nic_gbits_per_s={gbits})"
    body = f"""
        sys.path.insert(0, {HERE!r})
        import window_cases as cases
        with ccl.init(timeout={timeout!r}, topology={cluster if nodes else None}) as comm:
            for call in {calls!r}:
                eval("cases." + call)
        print("fine")
    """
    return launch(body, n=n, **extra)


WAYS = [(2, 0, "auto", 2), (3, 0, "tcp", 1), (2, 2, "auto", 1), (4, 2, "auto", 2), (3, 3, "auto", 4)]


@pytest.mark.parametrize("n, nodes, transport, nics", WAYS)
def test_puts_gets_and_signals(n, nodes, transport, nics):
    run_case(["simple(comm)", "posted(comm)"], n, nodes, nics, CCL_LAB_TRANSPORT=transport)


@pytest.mark.parametrize("n, nodes, transport, nics", WAYS)
def test_random_programs_are_bitwise_what_the_model_says(n, nodes, transport, nics):
    run_case(["random_programs(comm)"], n, nodes, nics, CCL_LAB_TRANSPORT=transport)


@pytest.mark.parametrize("nics", [1, 2, 4])
@pytest.mark.parametrize("failover", ["on", "off"])
def test_a_large_put_takes_all_nics_and_gives_one_notice(nics, failover):
    run_case([f"all_nics_one_notice(comm, {nics})"], 2, 2, nics, CCL_LAB_FAILOVER=failover)


@pytest.mark.parametrize("n, nodes, transport", [(2, 0, "auto"), (3, 0, "tcp"), (4, 2, "auto")])
def test_bad_calls_closing_and_resets(n, nodes, transport):
    calls = ["bad_calls", "registered_pages", "interrupted", "closed_in_flight", "after_a_reset"]
    run_case([f"{call}(comm)" for call in calls], n, nodes, CCL_LAB_TRANSPORT=transport)


def test_without_failover():
    run_case(["simple(comm)", "posted(comm)", "closed_in_flight(comm)"], 2, 2, CCL_LAB_FAILOVER="off")


@pytest.mark.parametrize("nics", [2, 4])
def test_a_nic_pulled_in_the_middle_of_a_put(nics):
    run_case([f"nic_pulled(comm, {nics}, 0.4)"], 2, 2, nics, gbits=0.4)


@pytest.mark.parametrize("n, nodes, transport", [(2, 0, "auto"), (3, 0, "tcp"), (4, 2, "auto")])
def test_a_rank_that_is_killed_while_others_wait(n, nodes, transport):
    results = started(["killed(comm)"], n, nodes, CCL_LAB_TRANSPORT=transport)
    for status, output in results[:-1]:
        assert status == 0 and "fine" in output, output
    assert results[-1][0] == -signal.SIGKILL


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_communicator_of_one_rank(transport):
    run_case(["of_one(comm)"], 1, CCL_LAB_TRANSPORT=transport)
