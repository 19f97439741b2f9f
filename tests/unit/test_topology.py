"""Topology: the value, its questions nic_of and path, its file form and its picture."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from ccl_lab.errors import DecodeError, UsageError
from ccl_lab.topo import PRESETS, LinkKind, Topology, duration_ps, topology_from_text
from ccl_lab.topo.rates import parse_latency, parse_rate


def test_cluster_has_the_shape_that_was_asked_for() -> None:
    t = Topology.cluster(nodes=2, gpus_per_node=4, nics_per_node=4, nic_gbits_per_s=8)
    assert (t.n_nodes, t.n_ranks, t.gpus_per_node, t.nics_per_node) == (2, 8, 4, 4)
    assert t.node_of.tolist() == [0] * 4 + [1] * 4 and t.local_of.tolist() == [0, 1, 2, 3] * 2
    assert t.nic_gbits.tolist() == [8.0] * 8 and t.nic_bytes_per_s.tolist() == [10**9] * 8
    assert t.fabric_gbytes_per_s.tolist() == [4.0] * 8 and t.local_gbytes_per_s.tolist() == [8.0] * 8
    assert t.rails and t.emulated and t.device == "cpu" and t.ranks_of(1).tolist() == [4, 5, 6, 7]
    assert [c.dtype for c in (t.node_of, t.local_of)] == [np.int32] * 2


def test_rates_and_latencies_may_be_text() -> None:
    t = Topology.cluster(
        nic_gbits_per_s="400Gb/s", nic_latency="5us", fabric_gbytes_per_s="46 GB/s", fabric_latency=1e-6
    )
    assert t.nic_bytes_per_s[0] == 50 * 10**9 and t.fabric_bytes_per_s[0] == 46 * 10**9
    assert t.nic_latency_ps[0] == 5_000_000 and t.fabric_latency_ps[0] == 1_000_000
    assert parse_rate("1Mbps", 1.0, "x") == 125_000 and parse_rate(3, 1.25e8, "x") == 375_000_000
    assert parse_latency("3ps", "x") == 3


def test_nodes_may_be_uneven_and_in_any_order() -> None:
    t = Topology.cluster(nodes=3, gpus_per_node=[3, 1, 2], nics_per_node=2)
    assert t.ranks_per_node.tolist() == [3, 1, 2] and t.gpus_per_node == 3
    assert t.nic_of(np.arange(6)).tolist() == [0, 0, 1, 0, 0, 1]
    mixed = Topology("mixed", [1, 0, 1], 1, 10, 0, 10, 0, 10)
    assert mixed.local_of.tolist() == [0, 0, 1] and mixed.ranks_of(1).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("gpus", "nics", "channel", "expected"),
    [(4, 4, 0, [0, 1, 2, 3]), (4, 4, 5, [0, 1, 2, 3]), (4, 8, 0, [0, 2, 4, 6]), (4, 8, 1, [1, 3, 5, 7]), (4, 8, 2, [0, 2, 4, 6]),
     (4, 2, 0, [0, 0, 1, 1]), (4, 1, 3, [0, 0, 0, 0]), (3, 2, 0, [0, 0, 1]), (2, 3, 0, [0, 1]), (2, 3, 1, [0, 2])],
)  # fmt: skip
def test_nic_of_takes_the_nearest(gpus: int, nics: int, channel: int, expected: list[int]) -> None:
    t = Topology.cluster(nodes=2, gpus_per_node=gpus, nics_per_node=nics)
    assert t.nic_of(np.arange(2 * gpus), channel).tolist() == expected * 2


def test_every_nic_is_used_by_some_rank_and_channel() -> None:
    for gpus in range(1, 9):
        for nics in range(1, 9):
            t = Topology.cluster(nodes=1, gpus_per_node=gpus, nics_per_node=nics)
            used = t.nic_of(np.arange(gpus)[:, None], np.arange(8)[None, :])
            assert used.min() >= 0 and used.max() < nics
            assert nics > gpus * 8 or len(np.unique(used)) == min(nics, max(gpus, nics))


def test_a_nic_that_is_down_is_gone_round() -> None:
    t = Topology.cluster(nodes=2, gpus_per_node=2, nics_per_node=4).without((1, 2))
    assert t.nic_of([2, 3], 0).tolist() == [0, 3] and t.nic_of([2, 3], 1).tolist() == [1, 3]
    assert t.nic_of([0, 1], 0).tolist() == [0, 2]
    lost = t.without((1, 3))
    assert set(lost.nic_of(3, np.arange(4)).tolist()) == {0, 1}
    none = lost.without((1, 0)).without((1, 1))
    with pytest.raises(UsageError, match="node 1 .* no NIC"):
        none.path(0, 2)
    assert none.path(2, 3).tolist() == [2, 4 + 3]


def test_paths_and_links() -> None:
    t = Topology.cluster(nodes=2, gpus_per_node=2, nics_per_node=2, nic_latency="5us", fabric_latency="3ps")
    path = t.path(0, [0, 1, 2, 3], 0)
    kinds = t.links.kind[path]
    assert path.dtype == np.int32 and path.shape == (4, 2)
    assert kinds.tolist() == [[2, 2], [0, 1], [3, 4], [3, 4]]
    assert t.links.owner[path].tolist() == [[0, 0], [0, 1], [0, 0], [0, 1]]
    assert t.links.node[path].tolist() == [[0, 0], [0, 0], [0, 1], [0, 1]]
    assert t.links.latency_ps[path].sum(axis=1).tolist() == [0, 3, 5_000_000, 5_000_000]
    assert len(t.links) == 3 * 4 + 2 * 4 and LinkKind(int(t.links.kind[-1])) == LinkKind.nic_rx
    assert t.path(0, 3).shape == (2,) and t.path(np.zeros((2, 3), int), 1, 0).shape == (2, 3, 2)
    for bad in (-1, 4):
        with pytest.raises(UsageError, match="expected 0 to 3"):
            t.path(0, bad)


@pytest.mark.parametrize("t", [
    Topology.cluster(nodes=3, gpus_per_node=[3, 1, 2], nics_per_node=2), Topology("mixed", [1, 0, 1], 2, 10, 4, 10, 5, 10),
    Topology.preset("rail_leaf_spine", nodes=32)])  # fmt: skip
def test_other_nic_rates_leave_the_rest_and_change_all_that_follows_from_them(t: Topology) -> None:
    """A copy with another NIC rate takes over what it can: equal, in all that it says, to one that is made anew."""
    for changed in (t.slow(2, nic=(1, 1)), t.without((1, 1)), t.slow(3, nic=(0, 0)).without((1, 0)).slow(2, rank=1)):
        anew = Topology(**{name: getattr(changed, name) for name in (field.name for field in dataclasses.fields(Topology))})
        assert changed == anew and changed.digest == anew.digest != t.digest
        for column in ("kind", "node", "owner", "bytes_per_s", "latency_ps"):
            assert getattr(changed.links, column).tolist() == getattr(anew.links, column).tolist()
        ranks, channels = np.arange(t.n_ranks), np.arange(3)[:, None]
        assert changed.nic_of(ranks, channels).tolist() == anew.nic_of(ranks, channels).tolist()
        assert changed.link_in_node.tolist() == anew.link_in_node.tolist()
        assert not changed.nic_bytes_per_s.flags.writeable and not changed.links.bytes_per_s.flags.writeable
        assert changed.sources is not t.sources and changed.ranks_per_node.tolist() == t.ranks_per_node.tolist()


def test_links_have_numbers_in_their_nodes() -> None:
    t = Topology("mixed", [1, 0, 1], 2, 10, 0, 10, 0, 10)
    assert t.link_in_node.tolist() == [0, 0, 1, 2, 2, 3, 4, 4, 5] + [6, 7] * 2 + [8, 9] * 2
    assert t.by_node(t.local_of).tolist() == [1, 0, 2] and t.by_node(np.array([1, 0, 0])).tolist() == [1, 2, 0]


@pytest.mark.parametrize("local_of", [[0, 0, 2], [0, 0, 0], [-1, 0, 1], [0, 1, 1]])
def test_local_indices_number_each_rank_of_a_node_once(local_of: list[int]) -> None:
    with pytest.raises(UsageError, match="each number once"):
        Topology("mixed", [1, 0, 1], 1, 10, 0, 10, 0, 10, local_of=local_of)


def test_slow_and_replace_make_copies() -> None:
    t = Topology.cluster()
    s = t.slow(2, nic=(1, 3)).slow(4, rank=0)
    assert s.nic_bytes_per_s.tolist() == [10**9] * 7 + [5 * 10**8] and s.fabric_bytes_per_s[0] == 10**9
    assert t == Topology.cluster() and s != t and s.digest != t.digest
    assert t.replace(name="other").digest == t.digest and t.replace(name="other") != t
    with pytest.raises(UsageError, match="no column 'speed'"):
        t.replace(speed=1)
    for bad in (
        {"factor": 0, "rank": 0},
        {"factor": 2},
        {"factor": 2, "nic": (2, 0)},
        {"factor": 2, "rank": 8},
        {"factor": float("inf"), "nic": (0, 0)},
        {"factor": 1e-300, "nic": (0, 0)},
        {"factor": 1e-12, "rank": 0},
    ):
        with pytest.raises(UsageError):
            t.slow(**bad)


def test_values_are_frozen() -> None:
    t = Topology.cluster()
    with pytest.raises(AttributeError):
        t.name = "x"  # type: ignore[misc]
    for column in (t.node_of, t.nic_bytes_per_s, t.links.bytes_per_s):
        with pytest.raises(ValueError):
            column[0] = 1
    assert hash(t) == hash(Topology.cluster()) and len({t, Topology.cluster()}) == 1
    assert pickle.loads(pickle.dumps(t)) == t


@pytest.mark.parametrize(
    "arguments",
    [{"nodes": 0}, {"nodes": 1.5}, {"gpus_per_node": 0}, {"gpus_per_node": [1]}, {"gpus_per_node": "4"}, {"nics_per_node": -1},
     {"nics_per_node": 0}, {"nic_gbits_per_s": 0}, {"nic_gbits_per_s": -1}, {"nic_gbits_per_s": "fast"}, {"nic_latency": "-1us"},
     {"nic_gbits_per_s": float("nan")}, {"nic_latency": float("inf")}, {"fabric_gbytes_per_s": 0}, {"local_gbytes_per_s": 0},
     {"nic_gbits_per_s": True}, {"nic_latency": "1e30s"}],
)  # fmt: skip
def test_bad_arguments_say_what_was_expected(arguments: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="expected"):
        Topology.cluster(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "columns",
    [{"node_of": []}, {"node_of": [0, 2]}, {"node_of": [-1, 0]}, {"node_of": [[0]]}, {"node_of": [0.5]}, {"local_of": [0, 0]},
     {"nic_bytes_per_s": [1, 2, 3]}, {"fabric_latency_ps": -1}, {"nic_names": ("a", "b")}, {"local_of": [0, 1, 2]}],
)  # fmt: skip
def test_bad_columns_say_what_was_expected(columns: dict[str, object]) -> None:
    good = {"node_of": [0, 0], "nics_per_node": 1, "nic_bytes_per_s": 1, "nic_latency_ps": 0, "fabric_bytes_per_s": 1,
            "fabric_latency_ps": 0, "local_bytes_per_s": 1}  # fmt: skip
    with pytest.raises(UsageError, match="expected"):
        Topology("bad", **{**good, **columns})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_have_a_source_for_each_number(name: str) -> None:
    t = Topology.preset(name, nodes=2)
    assert t.n_nodes == 2 and t.name == name
    rates = {"nic_gbits_per_s", "nic_latency", "fabric_gbytes_per_s", "fabric_latency", "local_gbytes_per_s"}
    more = set(["path_limits"] if t.path_limits else [])
    if t.network is not None:
        more |= {"network.routing"} | {f"network.{tier.name}" for tier in t.network.tiers}
    assert set(t.sources) == rates | more and all(t.sources.values())


def test_a_text_said_again_gives_a_topology_of_its_own() -> None:
    """Columns are shared, which nobody can write to; dicts are not, nor what rates decide."""
    first = topology_from_text("h100:nodes=3")
    first.sources["fabric"] = "changed"
    first.path_limits["near"] = 1
    lost = first.without((1, 2))
    assert lost.digest != first.digest and not lost.nic_bytes_per_s.all() and first.digest != Topology.preset("h100", nodes=3).digest
    again = topology_from_text("h100:nodes=3")
    assert again == Topology.preset("h100", nodes=3) and again.nic_bytes_per_s.all() and again.node_of is first.node_of
    assert again.without((1, 2)).digest == Topology.preset("h100", nodes=3).without((1, 2)).digest
    with pytest.raises(ValueError, match="read-only"):
        again.nic_bytes_per_s[0] = 1


def test_presets_by_alias_and_wrong_name() -> None:
    assert Topology.preset("h100", nodes=4).n_ranks == 32
    assert Topology.preset("GB200-NVL72", nodes=1).n_ranks == 72
    assert Topology.preset("lab").n_ranks == 8
    with pytest.raises(UsageError, match="Did you mean 'h100'"):
        Topology.preset("h10")


def test_save_and_load(tmp_path: Path) -> None:
    for t in (Topology.cluster(), Topology.preset("h100", nodes=100).slow(2, nic=(7, 1)), Topology("x", [1, 0, 1], 1, 9, 0, 9, 1, 9),
              Topology.cluster(nodes=1, nics_per_node=0), Topology("y", [0, 0], 0, 0, 0, 1, 0, 1, local_of=[1, 0])):  # fmt: skip
        path = t.save(tmp_path / "topology.json")
        assert Topology.load(path) == t and Topology.load(path).digest == t.digest
        assert path.stat().st_size < 4000 and list(tmp_path.iterdir()) == [path]


def test_a_corrupt_file_is_named(tmp_path: Path) -> None:
    good = json.loads(Topology.cluster().save(tmp_path / "good.json").read_text())
    changes = [
        *({"format": "else"}, {"version": 2}, {"version": "1"}, {"nics_per_node": "4"}, {"nics_per_node": -1}, {"rails": 1}),
        *({"sources": []}, {"nic_names": [1]}, {"fabric_bytes_per_s": [[0, 8]]}, {"local_of": [[0, 8]]}),
        *({"node_of": bad} for bad in (3, None, [[0, -1]], [[0, 1 << 40]], [[0, 8, 2]], [[5, 8]], [[0, 1 << 23]] * 4, [[]])),
        *({"nic_bytes_per_s": [bad]} for bad in ([1.5, 8], [True, 8], [1, 7], [1 << 70, 8])),
    ]
    path = tmp_path / "bad.json"
    for change in changes:
        path.write_text(json.dumps({**good, **change}))
        with pytest.raises(DecodeError, match="bad.json"):
            Topology.load(path)
    missing = dict(good)
    del missing["node_of"]
    for text in (json.dumps(missing), "", "[]", "{", "\xff", "[" * 100_000, json.dumps(good)[:-9]):
        path.write_text(text)
        with pytest.raises(DecodeError, match="bad.json"):
            Topology.load(path)
    path.write_bytes(bytes(range(256)))
    with pytest.raises(DecodeError, match="bad.json"):
        Topology.load(path)


def test_random_damage_is_a_named_error_or_a_topology(tmp_path: Path) -> None:
    data = bytearray(Topology.cluster().save(tmp_path / "good.json").read_bytes())
    rng = np.random.default_rng(0)
    path = tmp_path / "bad.json"
    for _ in range(500):
        damaged = bytearray(data)
        for at in rng.integers(0, len(data), int(rng.integers(1, 4))):
            damaged[at] = int(rng.integers(32, 127))
        path.write_bytes(damaged)
        try:
            assert isinstance(Topology.load(path), Topology)
        except DecodeError:
            pass


def test_the_picture() -> None:
    t = Topology.cluster(nodes=2, gpus_per_node=2, nics_per_node=2).without((1, 0)).slow(2, nic=(0, 1))
    picture = repr(t)
    assert "4 ranks = 2 nodes x 2 (cpu, emulated)" in picture and "[r3]" in picture
    assert "nic0 down" in picture and "nic1 4 Gb/s" in picture and picture.count("node ") >= 2
    assert (
        "and 996 more nodes" in repr(Topology.preset("h100", nodes=1000))
        and len(repr(Topology.preset("gb200", nodes=9))) < 3000
    )
    assert "NICs    none" in repr(Topology.cluster(nodes=1, nics_per_node=0))


def test_durations_round_up() -> None:
    assert duration_ps(0, 3) == 0 and duration_ps(1, 10**12) == 1 and duration_ps(1, 3) == 333_333_333_334
    assert duration_ps(10**15, 10**9) == 10**18


def test_131072_ranks_are_cheap() -> None:
    t = Topology.preset("h100", nodes=16384)
    ranks = np.arange(t.n_ranks)
    path = t.path(ranks, (ranks + 8) % t.n_ranks, 0)
    assert (t.links.kind[path] == [LinkKind.nic_tx, LinkKind.nic_rx]).all()
    assert len(json.dumps(t.to_dict())) < 10**6
