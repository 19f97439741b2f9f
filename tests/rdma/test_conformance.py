"""The conformance and fault suites of the native transport `verbs`, on real verbs: a native program that the rig runs.

Two machines with four NICs each run `build/tests/tests/test_verbs_rig`, which takes no argument, finds its place in RDMA_VM and
RDMA_VMS, its peer at 10.77.0.<n+1>, and ends with 0.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Run

PROGRAM = Path(__file__).resolve().parents[2] / "build/tests/tests/test_verbs_rig"


@pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM.name} is not built: make native-tests")
def test_the_verbs_transport_keeps_the_contract_of_transports(machines: Run) -> None:
    machines(str(PROGRAM), machines=2, nics=4)
