"""Which NICs count as lost, by what ranks tell of their paths."""

from __future__ import annotations

from ccl_lab.engine.lost import LostNics


def event(kind: str, nic: int, peer: int, peer_nic: int, verdict: str = "none") -> dict[str, object]:
    return {"kind": kind, "nic": nic, "peer": peer, "peer_nic": peer_nic, "verdict": verdict}


def test_lost_by_verdict_until_it_is_back() -> None:
    lost = LostNics([0, 0, 1, 1])
    lost.heard(0, [event("lost", 2, 3, 2), event("verdict", 2, 3, 2, "peer_nic"), event("verdict", 1, 2, 1, "own_cable")])
    assert lost.nics == ((0, 1), (1, 2))
    lost.heard(0, [event("verdict", 0, 2, 0, "path"), event("back", 2, 3, 2)])
    assert lost.nics == ((0, 1),)


def test_forgotten_with_the_paths_that_told_of_them() -> None:
    lost = LostNics([0, 1, 2])
    lost.heard(1, [event("verdict", 3, 2, 3, "own_nic")])
    lost.forget([0, 2])
    assert lost.nics == ()
    lost.heard(1, [event("verdict", 3, 0, 3, "own_nic")])
    assert lost.nics == ((2, 3),), "rank 1 is on node 2 now"
