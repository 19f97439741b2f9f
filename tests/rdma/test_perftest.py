"""perftest, which everybody measures RDMA with, runs on the rig and can be timed (bench/rdma.py does)."""

from __future__ import annotations

import json
import shutil

import pytest

from bench.rdma import CLOCK, build

from .conftest import Run

PATH_MTU_BYTES = 4096
MOST_BYTES_PER_S = 4e9  # of a machine; it moves a tenth of that


@pytest.fixture(scope="module", autouse=True)
def possible() -> None:
    if shutil.which("ib_write_bw") is None or shutil.which("ibv_rc_pingpong") is None:
        pytest.skip("perftest or ibverbs-utils is not installed")


def test_ib_write_bw_moves_what_it_was_asked_to_over_every_nic(body: Run) -> None:
    nbytes, iterations = 65_536, 50
    _, client = body("perftest", str(nbytes), str(iterations), machines=2, nics=2)
    found = json.loads(client.stdout)
    packets = nbytes // PATH_MTU_BYTES * iterations
    assert found["seconds"] > 0 and len(found["sent"]) == 2
    assert all(packets <= sent < 2 * packets for sent in found["sent"]), "data packets, and what was sent again of them"


def test_a_clock_times_the_writes_of_all_programs_without_their_starts(body: Run) -> None:
    if why := build():
        pytest.skip(why)
    nbytes, iterations = 65_536, 50
    outside, clocked = (
        json.loads(body("perftest", str(nbytes), str(iterations), *clock, machines=2, nics=2)[1].stdout) for clock in ([], [str(CLOCK)])
    )
    assert all(packets >= nbytes // PATH_MTU_BYTES * iterations for packets in clocked["sent"])
    least_s = 2 * nbytes * iterations / MOST_BYTES_PER_S
    assert least_s < clocked["seconds"] < outside["seconds"] / 2


def test_a_pingpong_between_two_machines(machines: Run) -> None:
    # The first GID is that of the link; index 1 is that of the IPv4 address. The client asks until the server listens.
    words = "ibv_rc_pingpong -d rxe1 -g 1 -e -n 100 -s 4096"
    asking = f"for _ in $(seq 100); do {words} 10.77.0.1 2>/dev/null && exit; sleep 0.1; done; exit 1"
    script = f"if [ $RDMA_VM = 0 ]; then {words}; else {asking}; fi"
    for outcome in machines("sh", "-c", script, machines=2, nics=1):
        assert "819200 bytes in" in outcome.stdout and "100 iters in" in outcome.stdout
