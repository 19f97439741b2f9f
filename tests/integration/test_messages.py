"""Queues of messages among ranks of this machine: shared memory, sockets, and emulated nodes with several NICs.

Is: real processes. Is not: what the ranks do (message_cases.py), nor verbs (tests/rdma).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .test_init import launch

HERE = str(Path(__file__).resolve().parent)


def run_case(calls: list[str], n: int, nodes: int, nics: int, gbits: float = 20, **extra: str) -> None:
    """Each of `calls` on n ranks, on `nodes` emulated nodes, if any. All ranks must get through."""
    cluster = f"ccl.Topology.cluster(nodes={nodes}, gpus_per_node={n // max(nodes, 1)}, nics_per_node={nics}, nic_gbits_per_s={gbits})"
    body = f"""
        sys.path.insert(0, {HERE!r})
        import message_cases as cases
        with ccl.init(timeout="60s", topology={cluster if nodes else None}) as comm:
            for call in {calls!r}:
                eval("cases." + call)
        print("fine")
    """
    for status, output in launch(body, n=n, **extra):
        assert status == 0 and "fine" in output, output


WAYS = [(2, 0, "auto", 2), (3, 0, "tcp", 1), (2, 2, "auto", 1), (4, 2, "auto", 2), (3, 3, "auto", 4)]


@pytest.mark.parametrize("n, nodes, transport, nics", WAYS)
@pytest.mark.parametrize("failover", ["on", "off"])
def test_messages_that_are_queued_are_exact(n: int, nodes: int, transport: str, nics: int, failover: str) -> None:
    run_case(["queues(comm)", "both_ways(comm)"], n, nodes, nics, CCL_LAB_TRANSPORT=transport, CCL_LAB_FAILOVER=failover)


@pytest.mark.parametrize("nics", [2, 4])
def test_a_nic_that_is_lost_while_messages_are_queued(nics: int) -> None:
    run_case([f"nic_lost(comm, {nics}, 0.4)"], 2, 2, nics, 0.4)


@pytest.mark.parametrize("failover", ["on", "off"])
def test_a_peer_that_leaves_while_a_first_call_returns(failover: str) -> None:
    """What has been done is done: a rank that is slow to return does not miss those that are through and gone."""
    body = """
        with ccl.init(topology=ccl.Topology.cluster(nodes=2, gpus_per_node=1, nics_per_node=1)) as comm:
            start = comm._start
            def slow(*arguments, **options):
                work = start(*arguments, **options)
                if comm.rank == 1:
                    time.sleep(3)  # rank 0 waits for a second before it ends the job
                return work
            comm._start = slow
            assert (comm.all_reduce(np.full(9, 2), async_op=True).wait("5s") == 4).all()
        print("fine")
    """
    for status, output in launch(body, n=2, CCL_LAB_TRANSPORT="tcp", CCL_LAB_FAILOVER=failover):
        assert status == 0 and "fine" in output, output
