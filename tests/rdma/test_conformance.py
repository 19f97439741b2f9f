"""The conformance suite of the native transport `verbs` on real verbs: a native program that the rig runs.

`build/tests/tests/test_verbs_rig` takes no argument, connects queue pairs on every NIC of its machine, and ends with 0. Where it finds no
NIC it says "skipped" and passes, which here is a failure.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Run

PROGRAM = Path(__file__).resolve().parents[2] / "build/tests/tests/test_verbs_rig"


@pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM.name} is not built: make native-tests")
def test_the_verbs_transport_keeps_the_contract_of_transports(machines: Run) -> None:
    (found,) = machines(str(PROGRAM), machines=1, nics=4)
    assert "0 failed" in found.stdout and "skipped" not in found.stdout, str(found)
