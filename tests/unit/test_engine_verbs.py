"""Whether verbs carry bytes between nodes: settings, the decision of all ranks, and what is said of it. No NIC is needed."""

from __future__ import annotations

import pytest

from ccl_lab import _core
from ccl_lab.engine import verbs
from ccl_lab.engine.hosts import _nics_with_addresses
from ccl_lab.engine.member import Options
from ccl_lab.errors import ConfigError, UnsupportedError, UsageError
from ccl_lab.topo.discover import Machine, Nic, RdmaDevice

DEVICES = [["mlx5_0", 1, 3], ["mlx5_1", 1, 3]]


def test_settings_are_a_row_of_the_table_with_what_was_said_instead() -> None:
    assert verbs.settings_of("") == verbs.Settings(16, 512 << 10, 128, "dqplb", "lazy", -1, 16, 6)
    assert verbs.settings_of("reach=cross_zone")[:4] == (16, 1 << 20, 128, "spray")
    assert verbs.settings_of("reach=all_to_all")[:4] == (4, 1 << 20, 128, "spray")
    assert verbs.settings_of(" qps=3, segment=64KiB,mode=spray,register=async,gid=5 ")[:6] == (3, 64 << 10, 128, "spray", "async", 5)
    assert verbs.settings_of("segment=0").segment_bytes == 0


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("qps", "no setting"), ("speed=9", "no setting"), ("qps=0", "1 to 64"), ("qps=65", "1 to 64"), ("qps=-1", "1 to 64"),
        ("qps=two", "1 to 64"), ("inflight=1", "2 to 1024"), ("mode=fast", "dqplb, spray"), ("register=on", "off, lazy, async, eager"),
        ("reach=moon", "same_zone"), ("segment=much", "segment"), ("gid=256", "0 to 255"), ("retries=8", "0 to 7"),
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


def test_explained_in_two_lines() -> None:
    options = Options()
    assert verbs.explain(options, verbs.Decision(None, "all ranks are on one node")) == (
        "inside a node: shared memory\nbetween nodes: tcp (all ranks are on one node)"
    )
    assert "16 queue pairs" in verbs.explain(options, verbs.decide("auto", [DEVICES], 0))


def test_what_the_core_is_told_is_judged() -> None:
    with pytest.raises(ConfigError, match="moon"):
        _core.rdma_spread("moon")
    with pytest.raises(UsageError, match="not an address"):
        _core.rdma_nic_of("somewhere")


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
