"""Groups, what is left of inputs, parts of topologies, and who may go on after a loss."""

from __future__ import annotations

import numpy as np
import pytest

import ccl_lab as ccl
from ccl_lab.engine.council import LeftOut, View, _quorum
from ccl_lab.engine.membership import Event, groups_of, kept_input, place_of
from ccl_lab.errors import PeerLostError, UsageError


def test_groups():
    assert groups_of(None, 3) == [(0,), (1,), (2,)]
    assert groups_of(2, 6) == [(0, 1, 2), (3, 4, 5)]
    assert groups_of([[0, 2], [1]], 3) == [(0, 2), (1,)]


@pytest.mark.parametrize("groups", [0, 4, [[0, 1]], [[0, 1], [1, 2]], [[0, 1, 2], []]])
def test_groups_that_cannot_be(groups):
    with pytest.raises(UsageError, match="groups="):
        groups_of(groups, 3)


def test_blocks_for_the_lost_are_dropped():
    x = np.arange(12)
    assert kept_input("reduce_scatter", x, 4, [0, 3]).tolist() == [0, 1, 2, 9, 10, 11]
    assert kept_input("all_reduce", x, 4, [0, 3]) is x
    assert kept_input("all_to_allv", x, 3, [0, 2], np.array([5, 4, 3])).tolist() == [0, 1, 2, 3, 4, 9, 10, 11]


def test_a_lost_root_is_named():
    assert place_of(2, (0, 1, 5), (1, 5), "the root", "broadcast") == 1
    with pytest.raises(PeerLostError, match="member 0, the root of broadcast, is lost"):
        place_of(0, (0, 1, 5), (1, 5), "the root", "broadcast")


def test_only_one_side_goes_on():
    members = (0, 1, 2, 3)
    assert _quorum(members, {1, 2, 3}, set()) == {1, 2, 3}
    assert _quorum(members, {0, 1}, set()) == {0, 1}  # half, with the lowest
    assert _quorum(members, {3}, {0, 1, 2}) == {3}  # the others are known dead
    for living, dead in (({2, 3}, set()), ({1}, set()), ({2}, {0})):
        with pytest.raises(LeftOut, match="are not the majority"):
            _quorum(members, living, dead)


def test_at_most_one_part_of_any_split_goes_on():
    rng = np.random.default_rng(1)
    for _ in range(2000):
        members = tuple(sorted(rng.choice(20, rng.integers(1, 9), replace=False).tolist()))
        dead = {m for m in members if rng.random() < 0.2}
        side = {m: int(rng.integers(3)) for m in members if m not in dead}
        going = 0
        for part in range(3):
            living = {m for m, at in side.items() if at == part}
            if living:
                try:
                    _quorum(members, living, dead)
                    going += 1
                except LeftOut:
                    pass
        assert going <= 1


def test_a_view_survives_the_wire():
    view = View(3, (0, 4), {0: ("127.0.0.1", 1), 4: ("127.0.0.1", 2)}, 17, 5, b"\x01" * 32)
    assert View.from_wire(view.to_wire(4)) == view


def test_an_event_says_what_happened():
    assert str(Event("left", 3, 1, "killed")) == "epoch 1: member 3 left: killed"


def test_part_of_a_topology():
    topology = ccl.Topology.cluster(nodes=3, gpus_per_node=[2, 1, 3], nics_per_node=2).slow(2, nic=(2, 1)).slow(4, rank=4)
    part = topology.subset([0, 3, 5, 4])
    assert part.node_of.tolist() == [0, 1, 1, 1] and part.local_of.tolist() == [0, 0, 2, 1]
    assert part.nic_bytes_per_s.tolist() == topology.nic_bytes_per_s[[0, 1, 4, 5]].tolist()
    assert part.fabric_bytes_per_s.tolist() == topology.fabric_bytes_per_s[[0, 3, 5, 4]].tolist()
    assert topology.subset(range(6)) == topology
    for wrong in ([], [6], [0, 0], [-1]):
        with pytest.raises(UsageError, match="expected at least 1 of the ranks 0 to 5, each once"):
            topology.subset(wrong)


def test_elastic_options_need_elastic():
    with pytest.raises(UsageError, match="elastic=True"):
        ccl.World(2, groups=2)
    with pytest.raises(UsageError, match="elastic=True"):
        ccl.init(join=True)
    with pytest.raises(UsageError, match="more than 0 s"):
        ccl.World(2, elastic=True, patience=0.0)
