"""Whether verbs carry bytes between nodes: settings, the decision of all ranks, and what is said of it. No NIC is needed."""

from __future__ import annotations

import pytest

from ccl_lab import _core
from ccl_lab.engine import verbs
from ccl_lab.engine.hosts import _nics_with_addresses, topology_of
from ccl_lab.engine.member import Options
from ccl_lab.engine.reach import reaches_of
from ccl_lab.errors import ConfigError, UnsupportedError, UsageError
from ccl_lab.rdma.devices import Device
from ccl_lab.topo import Topology
from ccl_lab.topo.discover import Machine, Nic, RdmaDevice
from ccl_lab.topo.network import Level

DEVICES = [["mlx5_0", 1, 3], ["mlx5_1", 1, 3]]


NEAR, FAR, TO_ALL = (16, 512 << 10, 128, "dqplb"), (16, 1 << 20, 128, "spray"), (4, 1 << 20, 128, "spray")


def test_settings_are_the_table_with_what_was_said_instead() -> None:
    assert verbs.settings_of("") == verbs.Settings((NEAR, NEAR, FAR, FAR, TO_ALL), "", "lazy", -1, 16, 6)
    said = verbs.settings_of(" qps=3, segment=64KiB,mode=spray,register=async,gid=5 ")
    assert set(said.spreads) == {(3, 64 << 10, 128, "spray")} and said[2:4] == ("async", 5)
    assert verbs.settings_of("segment=0").spread("same_rack").segment_bytes == 0


def test_a_word_of_one_class_beats_the_same_of_all_and_touches_no_other() -> None:
    said = verbs.settings_of("cross_zone.segment=2MiB,qps=8,all_to_all.qps=2,same_rack.inflight=9,cross_building.mode=dqplb")
    assert said.spreads == (
        (8, 512 << 10, 9, "dqplb"), (8, 512 << 10, 128, "dqplb"), (8, 2 << 20, 128, "spray"), (8, 1 << 20, 128, "dqplb"),
        (2, 1 << 20, 128, "spray"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("qps", "no setting"), ("speed=9", "no setting"), ("qps=0", "1 to 64"), ("qps=65", "1 to 64"), ("qps=-1", "1 to 64"),
        ("qps=two", "1 to 64"), ("inflight=1", "2 to 1024"), ("mode=fast", "dqplb, spray"), ("register=on", "off, lazy, async, eager"),
        ("reach=moon", "same_zone"), ("moon.qps=4", "no setting"), ("cross_zone.gid=1", "no setting"),
        ("cross_zone.qps=65", "cross_zone.qps is '65'"),
        ("all_to_all.segment=much", "all_to_all.segment"),
        ("cross_zone.mode=fast", "cross_zone.mode is 'fast'"),
        ("segment=much", "segment"), ("gid=256", "0 to 255"), ("retries=8", "0 to 7"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_named(text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        verbs.settings_of(text)


def test_verbs_carry_where_every_nic_of_every_rank_has_them() -> None:
    chosen = verbs.decide("auto", [DEVICES, DEVICES], 1)
    assert chosen.nics == [("mlx5_0", 1, 3), ("mlx5_1", 1, 3)]
    assert "every NIC of all 2 ranks" in chosen.why and "mlx5_0, mlx5_1" in chosen.why


def test_one_rank_without_means_sockets_for_all_and_it_is_named() -> None:
    cards = [DEVICES, "no RDMA device has address 10.0.0.7", "another reason"]
    for rank in range(3):
        assert verbs.decide("auto", cards, rank) == verbs.Decision(None, "rank 1: no RDMA device has address 10.0.0.7")
    with pytest.raises(UnsupportedError, match="rank 1: no RDMA device has address 10.0.0.7.*CCL_LAB_NICS") as caught:
        verbs.decide("verbs", cards, 0)
    assert caught.value.rank == 1


def test_a_card_says_why_there_is_no_rdma_here() -> None:
    assert verbs.card("tcp", ["127.0.0.1"], verbs.settings_of("")) == "transport is 'tcp'"
    said = verbs.card("auto", ["192.0.2.1"], verbs.settings_of(""))
    assert isinstance(said, str) and "192.0.2.1" in said


def _hosts(*places: str, ranks: int = 2) -> Topology:
    """A job on hosts at these places, `ranks` of it on each."""
    cards = [
        {"host": f"boot{k}", "name": f"host{k}", "nics": [("eth0", 100.0), ("eth1", 100.0)], "place": place}
        for k, place in enumerate(places)
        for _ in range(ranks)
    ]
    return topology_of(cards, [("eth0", 100.0, "10.0.0.1"), ("eth1", 100.0, "10.0.0.2")])[0]


SPREAD_OUT = ("b1/z1/r1", "b1/z1/r1", "b1/z1/r2", "b1/z2/r1", "b2/z1/r1")


def test_the_class_of_two_nodes_is_the_tier_at_which_their_places_meet() -> None:
    topology = _hosts(*SPREAD_OUT)
    names = [[reach.name for reach in verbs.settings_of("").reaches(topology, rank)] for rank in range(10)]
    assert names[0][2::2] == ["same_rack", "same_zone", "cross_zone", "cross_building"]
    assert names[9][:8:2] == ["cross_building"] * 4 and names[6][4] == "cross_zone"
    assert all(names[a][b] == names[b][a] for a in range(10) for b in range(10))
    assert [reach.name for reach in verbs.settings_of("").reaches(_hosts("r1", "r1", "r2"), 0)][2::2] == ["same_rack", "same_zone"]


def test_without_places_all_are_in_one_zone_and_reach_says_otherwise() -> None:
    topology = _hosts("", "", "")
    assert topology.network is None
    assert {reach.name for reach in verbs.settings_of("").reaches(topology, 0)} == {"same_zone"}
    assert {reach.name for reach in verbs.settings_of("reach=cross_zone").reaches(_hosts(*SPREAD_OUT), 0)} == {"cross_zone"}


@pytest.mark.parametrize(
    ("places", "word"), [(("z1/r1", ""), "host1 is ''"), (("z1/r1", "r1"), "equally many"), (("a/b/c/d", "a/b/c/d"), "building/zone/rack"),
                         (("z1//r1", "z1/r1"), "host host0")],
)  # fmt: skip
def test_places_that_do_not_go_together_are_named(places: tuple[str, ...], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        _hosts(*places)


def test_tiers_of_other_names_are_judged_by_what_they_carry() -> None:
    def classes(*levels: Level) -> list[str]:
        topology = Topology.cluster(nodes=8, gpus_per_node=1, emulated=False).with_network(*levels)
        return [reach.name for reach in verbs.settings_of("").reaches(topology, 0)][1:]

    assert classes(Level("leaf", nodes=2), Level("spine")) == ["same_rack"] + ["same_zone"] * 6
    narrow = Level("pod", nodes=4, oversubscription=3)
    assert classes(Level("leaf", nodes=2), narrow, Level("core")) == ["same_rack", "same_zone", "same_zone"] + ["cross_zone"] * 4
    preset = Topology.preset("llama3_24k", nodes=4)
    assert {reach.name for reach in reaches_of(preset, 0)} <= {"same_rack", "same_zone", "cross_zone"}


def test_one_core_that_moves_the_bytes_of_soft_nics_too_is_told_from_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def device(name: str, pci: str) -> Device:
        return Device(name, "", "", "", pci, -1, ())

    monkeypatch.setattr(verbs.rdma, "devices", lambda: (device("rxe1", ""), device("rxe2", ""), device("mlx5_0", "0000:01:00.0")))
    soft, mixed, real = ([[name, 1, 0] for name in names] for names in (("rxe1", "rxe2"), ("rxe1", "mlx5_0"), ("mlx5_0",)))
    monkeypatch.setattr(verbs.os, "sched_getaffinity", lambda _: {3})
    assert verbs.one_core(soft) and not verbs.one_core(mixed) and not verbs.one_core(real) and not verbs.one_core("no verbs")
    monkeypatch.setattr(verbs.os, "sched_getaffinity", lambda _: {3, 4})
    assert not verbs.one_core(soft)


def test_explained_a_line_each_with_what_was_chosen_for_whom_and_why() -> None:
    topology, options = _hosts(*SPREAD_OUT), Options(rdma=verbs.settings_of("cross_zone.qps=5"))
    assert verbs.explain(options, verbs.Decision(None, "no card"), topology, 0) == (
        "inside a node: shared memory\nbetween nodes: tcp (no card)"
    )
    lines = verbs.explain(options, verbs.decide("auto", [DEVICES] * 10, 0), topology, 6).splitlines()
    assert lines[1].startswith("between nodes: verbs (every NIC") and lines[1].endswith("registration lazy")
    assert lines[2:] == [
        "  cross_zone, 3 nodes from here (they meet at their building): 5 queue pairs for each pair of NICs, segments of 1048576 bytes, "
        "128 in flight on each, spray",
        "  cross_building, 1 node from here (they meet at their region): 16 queue pairs for each pair of NICs, segments of 1048576 bytes, "
        "128 in flight on each, spray",
        "  all_to_all, to any (many send to one at a time): 4 queue pairs for each pair of NICs, segments of 1048576 bytes, "
        "128 in flight on each, spray",
    ]
    alone = verbs.explain(options, verbs.decide("auto", [DEVICES] * 10, 0)._replace(overlaps=False), topology, 6).splitlines()
    assert alone[:-1] == lines and alone[-1].endswith("rings send and add whole pieces")


def test_what_the_core_is_told_is_judged() -> None:
    with pytest.raises(ConfigError, match="moon"):
        _core.rdma_spread("moon")
    with pytest.raises(UsageError, match="not an address"):
        _core.rdma_nics_of(["somewhere"])


def test_nics_with_rdma_are_used_alone_unless_others_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def nic(name: str) -> Nic:
        return Nic(name=name, state="up", gbits_per_s=10.0, virtual=name != "eth0", numa=0, driver="")

    nics = tuple(map(nic, ("eth0", "eth1", "eth2")))
    rdma = (RdmaDevice("rxe1", 1, "active", 10.0, "Ethernet", "eth1"), RdmaDevice("rxe2", 1, "down", 10.0, "Ethernet", "eth2"))
    machine = type("Found", (), {"nics": nics, "rdma": rdma, "usable_nics": lambda self: Machine.usable_nics(self)})()
    monkeypatch.setattr("ccl_lab.engine.hosts._ipv4_of", lambda name: f"10.0.0.{name[-1]}")
    assert [name for name, *_ in _nics_with_addresses(machine)] == ["eth1"]
    monkeypatch.setenv("CCL_LAB_NICS", "eth0,10.0.0.2")
    assert [name for name, *_ in _nics_with_addresses(machine)] == ["eth0", "eth2"]
    monkeypatch.setenv("CCL_LAB_NICS", "")
    machine.rdma = ()
    assert [name for name, *_ in _nics_with_addresses(machine)] == ["eth0"]
