"""Tiers of switches: where NICs meet, over which links, how far it is, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ccl_lab.errors import DecodeError, UsageError
from ccl_lab.topo import Level, LinkKind, Network, Tier, Topology


def leaf_spine(nodes: int = 4, *, per_rail: bool = False, **more: object) -> Topology:
    flat = Topology.cluster(
        nodes=nodes, gpus_per_node=2, nics_per_node=2, nic_gbits_per_s=8, nic_latency="5us"
    )
    return flat.with_network(
        Level("leaf", nodes=2, uplinks=2, oversubscription=2, per_rail=per_rail),
        Level("spine", latency="3us"),
        **more,
    )


def names(topology: Topology, route: np.ndarray) -> list[tuple[str, int, int]]:
    """(kind, node or switch, owner) of each link passed."""
    links = topology.links
    return [
        (LinkKind(int(links.kind[link])).name, int(links.node[link]), int(links.owner[link]))
        for link in route
        if link >= 0
    ]


def test_a_route_climbs_to_where_two_nics_meet() -> None:
    t = leaf_spine()
    assert names(t, t.route(0, 1)) == [("fabric_tx", 0, 0), ("fabric_rx", 0, 1)]
    assert names(t, t.route(0, 2)) == [("nic_tx", 0, 0), ("nic_rx", 1, 0)]
    (tx, up, down, rx) = names(t, t.route(0, 7))
    assert (tx, rx) == (("nic_tx", 0, 0), ("nic_rx", 3, 1))
    assert up[:2] == ("uplink", 0) and down[:2] == ("downlink", 1) and up[2] == down[2]
    # 2 nodes of 2 NICs of 1 GB/s, oversubscribed 2 to 1, over 2 uplinks.
    assert set(t.links.bytes_per_s[t.links.kind >= LinkKind.uplink].tolist()) == {10**9}
    assert (t.route(np.arange(8), np.arange(8))[:, 1:3] == -1).all() and t.route(
        np.zeros((2, 3), int), 1
    ).shape == (2, 3, 4)


def test_rails_meet_at_their_leaf_and_cross_at_the_spine() -> None:
    t = leaf_spine(per_rail=True)
    assert names(t, t.route(0, 2)) == [("nic_tx", 0, 0), ("nic_rx", 1, 0)]
    kinds = [name for name, _, _ in names(t, t.route(0, 3))]
    assert kinds == ["nic_tx", "uplink", "downlink", "nic_rx"]
    assert (
        names(t, t.route(0, 3))[1][1] == 0 and names(t, t.route(0, 3))[2][1] == 1
    )  # leaf of rail 0, leaf of rail 1
    rail_only = t.replace(network=Network((Tier("rail", np.zeros(4, int), per_rail=True),)))
    assert rail_only.route(0, 2).tolist() == rail_only.path(0, 2).tolist()
    with pytest.raises(UsageError, match="no switch .* joins ranks 0 and 3"):
        rail_only.latency_ps(0, 3)


def test_latency_is_that_of_the_tier_where_they_meet() -> None:
    t = leaf_spine(per_rail=True)
    assert t.latency_ps(0, [0, 1, 2, 3, 4]).tolist() == [0, 10**6, 5 * 10**6, 8 * 10**6, 8 * 10**6]
    assert t.tier_latency_ps(0, [0, 1, 2, 3, 4]).tolist() == [0, 0, 0, 3 * 10**6, 3 * 10**6]
    flat = t.replace(network=None)
    assert flat.latency_ps(0, [0, 1, 2, 3, 4]).tolist() == [0, 10**6, 5 * 10**6, 5 * 10**6, 5 * 10**6]
    assert (
        flat.route(0, 3).tolist() == flat.path(0, 3).tolist()
        and t.path(0, 3).tolist() == flat.path(0, 3).tolist()
    )


def test_the_picture_says_what_the_network_is() -> None:
    assert "switches leaf per rail 2 x 2 (2 up, 4 Gb/s each), spine 1 x 1 +3 µs; ecmp" in repr(
        leaf_spine(per_rail=True)
    )


def test_a_topology_without_network_is_what_it_was() -> None:
    assert (
        Topology.cluster().digest == "f79dfd408dfe824fbc922df0531ea83c"
        and "network" not in Topology.cluster().to_dict()
    )
    assert leaf_spine().digest != leaf_spine().replace(network=None).digest


def test_the_hash_is_fixed_spread_and_seeded() -> None:
    t = Topology.cluster(nodes=64, gpus_per_node=1, nics_per_node=1).with_network(
        Level("leaf", nodes=32, uplinks=4), Level("spine"), seed=3
    )
    taken = t.network.uplink_of(np.arange(4096) % 32, 32 + np.arange(4096) % 31, np.arange(4096) // 32)
    assert taken[:8, 0].tolist() == t.network.uplink_of(np.arange(8), 32 + np.arange(8), 0)[:, 0].tolist()
    assert np.bincount(taken[:, 0]).min() > 900 and (taken[:, 1] == -1).all()
    other = t.replace(network=Network(t.network.tiers, seed=4)).network.uplink_of(0, np.arange(32, 64), 0)
    assert (other[:, 0] != t.network.uplink_of(0, np.arange(32, 64), 0)[:, 0]).any()
    # What files and results depend on may not change from release to release.
    assert t.network.uplink_of(0, np.arange(32, 40), 0)[:, 0].tolist() == FIXED


FIXED = [1, 2, 1, 2, 1, 0, 3, 0]


def test_planes_stay_apart_to_the_top() -> None:
    t = Topology.preset("hpn", nodes=256)
    src, dst = np.arange(1024), 1024 + np.arange(1024)
    taken = t.network.uplink_of(src, dst, 0)
    assert (
        (taken[:, 0] == taken[:, 1] // 60).all()
        and (taken[:, 2] == taken[:, 1]).all()
        and set(taken[:, 0].tolist()) == {0, 1}
    )
    rates = t.links.bytes_per_s[t.route(0, 1024)]
    assert (rates * 8 / 1e9).tolist()[:3] == [400, 200, 400]  # NIC, port, segment's uplink


def test_spray_makes_one_link_of_all() -> None:
    ecmp, spray = leaf_spine(), leaf_spine(routing="spray")
    assert len(spray.links) < len(ecmp.links)
    assert spray.links.bytes_per_s[spray.route(0, 7)].tolist() == [10**9, 2 * 10**9, 2 * 10**9, 10**9]


def test_every_link_is_on_some_route_and_numbered_once() -> None:
    t = Topology.cluster(nodes=12, gpus_per_node=2, nics_per_node=2).with_network(
        Level("leaf", nodes=2, uplinks=2, per_rail=True),
        Level("pod", nodes=6, uplinks=4, oversubscription=3),
        Level("core"),
    )
    src, dst, channel = np.meshgrid(np.arange(24), np.arange(24), np.arange(16))
    used = np.unique(t.route(src, dst, channel))
    assert used[0] == -1 and used[1:].tolist() == list(range(len(t.links)))
    route = t.route(src, dst, channel)
    for column, kind in enumerate(["uplink", "uplink", "downlink", "downlink"]):
        links = route[..., 1 + column]
        assert set(t.links.kind[links[links >= 0]].tolist()) == {LinkKind[kind]}


def test_presets_of_whole_networks() -> None:
    llama = Topology.preset("llama3_24k")
    assert llama.n_ranks == 24_576 and [tier.groups for tier in llama.network.tiers] == [1536, 8, 1]
    rack, pod = llama.links.bytes_per_s[llama.route(0, 24_000)][[1, 2]] * 8 / 1e9
    assert rack == 16 * 400 and pod == pytest.approx(3072 * 400 / 7)
    ncclx = Topology.preset("ncclx_100k")
    assert ncclx.n_ranks == 38 * 3072 and [tier.groups for tier in ncclx.network.tiers] == [7296, 38, 5, 1]
    far = ncclx.latency_ps(0, [8, 16, 3072, 8 * 3072]) - ncclx.latency_ps(0, 8) + 10**6
    assert far.tolist() == [10**6, 7 * 10**6, 15 * 10**6, 30 * 10**6]
    zone = ncclx.links.bytes_per_s[ncclx.route(0, 3072)]
    assert zone[2] * 8 / 1e9 == pytest.approx(3072 * 400 / 2.8) and ncclx.network.tiers[1].uplinks == 76
    hpn = Topology.preset("hpn")
    assert hpn.n_ranks == 15_360 and [tier.groups for tier in hpn.network.tiers] == [1920, 15, 1, 1]
    rails = Topology.preset("rail_leaf_spine")
    assert [kind for kind, _, _ in names(rails, rails.route(0, 8))] == ["nic_tx", "nic_rx"]
    assert len(names(rails, rails.route(0, 9))) == 4 and len(names(rails, rails.route(0, 8 * 32))) == 4
    assert Topology.preset("llama3", nodes=10).latency_ps(0, 8 * 9) == 6 * 10**6


def test_save_load_and_subset_keep_the_network(tmp_path: Path) -> None:
    for t in (leaf_spine(per_rail=True, seed=9), Topology.preset("hpn", nodes=300)):
        loaded = Topology.load(t.save(tmp_path / "t.json"))
        assert (
            loaded == t
            and loaded.digest == t.digest
            and loaded.route(0, 9).tolist() == t.route(0, 9).tolist()
            if t.n_ranks > 9
            else True
        )
    t = leaf_spine(nodes=6)
    part = t.subset([4, 5, 8, 9])  # nodes 2 and 4, leaves 1 and 2
    assert part.network.tiers[0].group_of.tolist() == [0, 1] and part.latency_ps(0, 2) == t.latency_ps(4, 8)
    assert Topology.cluster().to_dict()["version"] == 1 and t.to_dict()["version"] == 2


def test_a_damaged_network_is_a_named_error(tmp_path: Path) -> None:
    good = leaf_spine().to_dict()
    path = tmp_path / "bad.json"
    tiers = good["network"]["tiers"]
    networks = [
        3,
        {},
        {"routing": "ecmp", "seed": 0, "tiers": 3},
        {**good["network"], "routing": "random"},
        {**good["network"], "seed": -1},
        {**good["network"], "tiers": []},
        {**good["network"], "tiers": [3]},
        {**good["network"], "tiers": tiers[:1] * 9},
    ]
    networks += [
        {**good["network"], "tiers": [{**tiers[0], **change}, tiers[1]]}
        for change in (
            {"uplinks": "2"},
            {"uplinks": 0},
            {"uplink_bytes_per_s": 0},
            {"latency_ps": -1},
            {"group_of": [[0, 3]]},
            {"group_of": [[7, 4]]},
            {"group_of": 3},
            {"more": 1},
            {"uplinks": 1 << 60},
            {"name": 4},
        )
    ]
    for network in networks:
        path.write_text(json.dumps({**good, "network": network}))
        with pytest.raises(DecodeError, match="bad.json.*expected"):
            Topology.load(path)
    path.write_text(json.dumps({**good, "version": 1}))
    with pytest.raises(DecodeError, match="version 1"):
        Topology.load(path)


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ([], "0 tiers"),
        ([Level("a", nodes=3), Level("b", nodes=4)], "'b': 4 nodes: expected a multiple of the 3"),
        ([Level("a", uplinks=0), Level("b")], "uplinks 0"),
        ([Level("a", oversubscription=0), Level("b")], "oversubscription 0"),
        ([Level("a", nodes=0)], "nodes 0"),
        ([Level("a", latency="-1us")], "a.latency"),
        ([Level("a", nodes=2), Level("b", per_rail=True)], "per rail"),
        ([Level("a", nodes=1.5)], "nodes 1.5"),
        ([Level("a", oversubscription="2"), Level("b")], "oversubscription '2'"),
    ],
)
def test_levels_that_do_not_fit_say_so(levels: list[Level], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Topology.cluster(nodes=12).with_network(*levels)


def test_tiers_that_do_not_fit_say_so() -> None:
    good = Tier("a", np.array([0, 0, 1, 1]), 0, 1, 5)
    for tiers, message in (
        ((good, Tier("b", np.array([0, 1, 1, 1]))), "node 1 is in group 1"),
        ((Tier("a", np.array([0, 2, 2])),), "without gaps"),
        ((Tier("a", np.array([0.5])),), "group_of"),
        ((good, Tier("b", np.zeros(3, int))), "same nodes"),
    ):
        with pytest.raises(UsageError, match=message):
            Network(tiers)
    with pytest.raises(UsageError, match="network of 4 nodes: expected 2"):
        Topology.cluster(nodes=2).replace(network=Network((good, Tier("b", np.zeros(4, int)))))


def test_a_network_larger_than_memory_is_refused_before_it_is_made() -> None:
    with pytest.raises(UsageError, match="links between switches: expected at most"):
        Topology.cluster(nodes=12).with_network(Level("a", nodes=2, uplinks=10**9), Level("b"))
    assert (
        Topology.cluster(nodes=12)
        .with_network(Level("a", nodes=2, uplinks=10**9), Level("b"), routing="spray")
        .route(0, 47)
        .min()
        >= 0
    )


def test_131072_ranks_are_cheap() -> None:
    t = Topology.preset("ncclx_100k", nodes=16384)
    ranks = np.arange(t.n_ranks)
    assert t.route(ranks, (ranks + 8) % t.n_ranks).shape == (131_072, 8)
    assert set(t.latency_ps(ranks, (ranks + 8) % t.n_ranks).tolist()) == {x * 10**6 for x in (5, 11, 19, 34)}
