"""Topologies from a description, from ASTRA-sim's network files and from SimAI's; and what is refused, with the place named."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ccl_lab.errors import DecodeError, UnsupportedError
from ccl_lab.topo import Level, Topology

DESCRIPTION: dict[str, Any] = {
    "format": "ccl_lab.cluster", "nodes": 8, "gpus_per_node": 2, "nics_per_node": 2, "nic_gbits_per_s": 400,
    "levels": [{"name": "leaf", "nodes": 4, "uplinks": 2, "oversubscription": 2, "per_rail": True}, {"name": "spine", "latency": "1us"}],
    "seed": 7,
}  # fmt: skip


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


# -- descriptions


def test_a_description_is_what_the_calls_make(tmp_path: Path) -> None:
    flat = Topology.cluster(nodes=8, gpus_per_node=2, nics_per_node=2, nic_gbits_per_s=400)
    known = flat.with_network(Level("leaf", 4, 2, 2, per_rail=True), Level("spine", latency="1us"), seed=7)
    assert Topology.load(write(tmp_path / "c.json", json.dumps(DESCRIPTION))) == known
    yaml = """
format: ccl_lab.cluster
nodes: 8
gpus_per_node: 2
nics_per_node: 2
nic_gbits_per_s: 400
levels:
  - {name: leaf, nodes: 4, uplinks: 2, oversubscription: 2, per_rail: true}
  - {name: spine, latency: 1us}
seed: 7
"""
    assert Topology.load(write(tmp_path / "c.yaml", yaml)) == known
    h100 = Topology.load(
        write(tmp_path / "h.json", json.dumps({"format": "ccl_lab.cluster", "preset": "h100", "nodes": 4}))
    )
    assert h100 == Topology.preset("h100", nodes=4)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"node": 8}, "unknown key 'node'. Did you mean 'nodes'"), ({"levels": 3}, "levels: expected a list"),
     ({"levels": [{"name": "a", "upinks": 2}]}, r"levels\[0\]: unknown key 'upinks'. Did you mean 'uplinks'"),
     ({"levels": [{"uplinks": 2}]}, r"levels\[0\]: name is None"), ({"nodes": -1}, "nodes -1"), ({"nic_gbits_per_s": "fast"}, "'fast'"),
     ({"routing": "random"}, "routing 'random'"), ({"seed": "x"}, "seed 'x'"), ({"preset": "h10"}, "unknown key"),
     ({"levels": [{"name": "a", "nodes": "3"}]}, "nodes '3'"), ({"levels": [{"name": "a", "latency": "far"}]}, "a.latency"),
     ({"levels": []}, "0 tiers")],
)  # fmt: skip
def test_a_wrong_description_names_the_key(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(DecodeError, match=f"c.json: .*{message}"):
        Topology.load(write(tmp_path / "c.json", json.dumps({**DESCRIPTION, **change})))


def test_yaml_needs_a_reader_and_must_be_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "c.yaml", "format: [")
    with pytest.raises(DecodeError, match="c.yaml: not YAML"):
        Topology.load(path)
    real = builtins.__import__

    def without_yaml(name: str, *args: Any, **more: Any) -> Any:
        if name == "yaml":
            raise ImportError(name)
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without_yaml)
    with pytest.raises(UnsupportedError, match="pip install pyyaml"):
        Topology.load(path)


# -- ASTRA-sim


def astra(tmp_path: Path, kinds: str, sizes: str, rates: str, latencies: str, more: str = "") -> Topology:
    text = f"topology: [ {kinds} ]  # a comment\nnpus_count: [ {sizes} ]\nbandwidth: [ {rates} ]\nlatency: [ {latencies} ]\n{more}"
    return Topology.load(write(tmp_path / "network.yml", text))


def test_astra_sim_one_dimension_is_a_node(tmp_path: Path) -> None:
    switch = astra(tmp_path, "Switch", "8", "400.0", "936.25")
    assert (switch.n_nodes, switch.n_ranks, switch.nics_per_node) == (1, 8, 0)
    assert switch.fabric_bytes_per_s[0] == 400 * 2**30 and switch.latency_ps(0, 5) == 2 * 936_250
    full = astra(tmp_path, "FullyConnected", "4", "50", "500")
    assert full.fabric_bytes_per_s[0] == 3 * 50 * 2**30 and full.latency_ps(0, 3) == 500_000
    assert astra(tmp_path, "Ring", "16", "50", "500").fabric_bytes_per_s[0] == 2 * 50 * 2**30
    assert astra(tmp_path, "Ring", "2", "50", "500").fabric_bytes_per_s[0] == 50 * 2**30
    assert "FullyConnected of 4; links of an NPU together" in full.sources["dimension 0"]


def test_astra_sim_further_dimensions_are_nics_and_tiers(tmp_path: Path) -> None:
    two = astra(tmp_path, "FullyConnected, Switch", "8, 4", "100, 50", "100, 1000")
    assert (two.n_nodes, two.n_ranks, two.nics_per_node) == (4, 32, 8) and two.network is None
    assert two.nic_bytes_per_s[0] == 50 * 2**30 and two.latency_ps(0, 8) == 2 * 10**6
    three = astra(
        tmp_path, "Ring, FullyConnected, Switch", "2, 8, 4", "200.0, 100.0, 50.0", "50.0, 500.0, 2000.0"
    )
    assert three.n_ranks == 64 and [tier.groups for tier in three.network.tiers] == [4, 1]
    assert three.latency_ps(0, [1, 2, 16]).tolist() == [50_000, 500_000, 4 * 10**6]
    nic, up, down, rx = three.links.bytes_per_s[three.route(0, 16)].tolist()
    assert nic == rx == 7 * 100 * 2**30 and up == down == pytest.approx(16 * 50 * 2**30)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("Torus", "8", "1", "1"), r"topology\[0\] is 'Torus': expected Ring"), (("Ring", "0", "1", "1"), r"npus_count\[0\] is 0"),
     (("Ring", "8.5", "1", "1"), r"npus_count\[0\] is 8.5"), (("Ring", "8", "0", "1"), r"bandwidth\[0\] is 0"),
     (("Ring", "8", "x", "1"), "'x'"),
     (("Ring", "8", "1", "-1"), r"latency\[0\] is -1"), (("Ring", "8, 8", "1", "1"), r"\[1, 2, 1, 1\] dimensions"),
     (("Ring, Ring", "1048576, 2", "1, 1", "1, 1"), "at most"), (("Ring", "8", "true", "1"), r"bandwidth\[0\] is True")],
)  # fmt: skip
def test_astra_sim_files_that_do_not_fit_name_the_key(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(DecodeError, match=f"network.yml: .*{message}"):
        astra(tmp_path, *arguments)


def test_astra_sim_files_that_a_topology_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="network.yml: dimension 2 is faster"):
        astra(tmp_path, "Switch, Switch, Switch", "2, 2, 2", "100, 50, 60", "1, 2, 3")
    with pytest.raises(UnsupportedError, match="key 'faults'"):
        astra(tmp_path, "Switch", "2", "100", "1", "faults: [1]\n")
    with pytest.raises(DecodeError, match="no bandwidth"):
        Topology.load(write(tmp_path / "n.yml", "topology: [Ring]\nnpus_count: [4]\nlatency: [1]\n"))
    with pytest.raises(DecodeError, match="topology is 'Ring': expected a list"):
        Topology.load(
            write(tmp_path / "n.yml", "topology: Ring\nnpus_count: [4]\nlatency: [1]\nbandwidth: [1]\n")
        )


# -- SimAI


def simai(
    servers: int,
    per_server: int,
    segment: int,
    *,
    planes: int = 1,
    spines: int = 2,
    rails: bool = True,
    cores: int = 0,
) -> list[str]:
    """The lines of a file: rails of `segment` servers on a leaf, every leaf on the spines of its plane."""
    gpus = servers * per_server
    leaves_per_segment = (per_server if rails else 1) * planes
    segments = servers // segment
    first_leaf = gpus + servers
    first_spine = first_leaf + segments * leaves_per_segment
    first_core = first_spine + spines
    links = [f"{gpu} {gpus + gpu // per_server} 2880Gbps 0.000025ms 0" for gpu in range(gpus)]
    for gpu in range(gpus):
        rail = gpu % per_server if rails else 0
        for plane in range(planes):
            leaf = first_leaf + (gpu // per_server // segment) * leaves_per_segment + rail * planes + plane
            links.append(f"{gpu} {leaf} {400 // planes}Gbps 0.0005ms 0")
    for leaf in range(first_leaf, first_spine):
        for spine in range(first_spine, first_core):
            if (leaf - first_leaf) % planes == (spine - first_spine) % planes:
                links.append(f"{leaf} {spine} 400Gbps 0.0005ms 0")
    links += [
        f"{spine} {core} 800Gbps 0.001ms 0"
        for spine in range(first_spine, first_core)
        for core in range(first_core, first_core + cores)
    ]
    total = first_core + cores
    head = f"{total} {per_server} {servers} {total - gpus - servers} {len(links)} H100"
    return [head, " ".join(str(i) for i in range(gpus, total)) + " ", *links]


def load_simai(tmp_path: Path, lines: list[str]) -> Topology:
    return Topology.load(write(tmp_path / "topo", "\n".join(lines) + "\n"))


def test_simai_rails_on_a_spine(tmp_path: Path) -> None:
    t = load_simai(tmp_path, simai(servers=8, per_server=4, segment=4, spines=3))
    assert (t.n_nodes, t.n_ranks, t.nics_per_node) == (8, 32, 4)
    assert t.fabric_bytes_per_s[0] == 360 * 10**9 and t.latency_ps(0, 1) == 50_000
    leaf, spine = t.network.tiers
    assert (leaf.name, leaf.per_rail, leaf.group_of.tolist(), leaf.uplinks) == (
        "leaf",
        True,
        [0] * 4 + [1] * 4,
        3,
    )
    assert (spine.name, spine.per_rail, spine.groups) == ("spine", False, 1)
    assert t.nic_bytes_per_s[0] == leaf.uplink_bytes_per_s == 50 * 10**9
    assert t.latency_ps(0, [4, 5, 16]).tolist() == [10**6, 2 * 10**6, 2 * 10**6]
    assert len(np.unique(t.route(0, 16, np.arange(40))[:, 1])) == 3


def test_simai_two_planes_and_three_layers(tmp_path: Path) -> None:
    t = load_simai(tmp_path, simai(servers=4, per_server=2, segment=2, planes=2, spines=4, cores=2))
    assert [tier.name for tier in t.network.tiers] == ["port", "leaf", "spine"] or len(t.network.tiers) == 4
    port, leaf = t.network.tiers[:2]
    assert (port.uplinks, port.uplink_bytes_per_s, t.nic_bytes_per_s[0]) == (2, 25 * 10**9, 50 * 10**9)
    assert leaf.per_rail and leaf.uplinks == 4 and leaf.groups == 2
    taken = t.network.uplink_of(0, 4, np.arange(50))
    assert (taken[:, 0] == taken[:, 1] // 2).all() and len(np.unique(taken[:, 1])) == 4
    whole = load_simai(tmp_path, simai(servers=4, per_server=2, segment=2, rails=False))
    assert not whole.network.tiers[0].per_rail and whole.network.tiers[0].groups == 2


def test_simai_nvlink_alone_is_one_node(tmp_path: Path) -> None:
    t = load_simai(
        tmp_path,
        [
            "10 8 2 0 16 H100",
            "8 9",
            *(f"{gpu} {switch} 1440Gbps 0.000025ms 0" for gpu in range(8) for switch in (8, 9)),
        ],
    )
    assert (t.n_nodes, t.n_ranks, t.nics_per_node) == (1, 8, 0) and t.fabric_bytes_per_s[0] == 360 * 10**9


GOOD = simai(servers=4, per_server=2, segment=2)


@pytest.mark.parametrize(
    ("line", "text", "message"),
    [(0, "x 2 4 6 1 H100", "not JSON"), (0, "18 2 4 6 99 H100", r":1: link_num 99: found"),
     (0, "18 3 4 6 24 H100", "expected whole servers"),
     (0, "18 0 4 6 24 H100", "expected whole servers"),
     (1, "8 9 10 11 12 13", ":2: 6 switches: expected"), (1, "8 nine", ":2: 'nine': expected"),
     (5, "3 9 2880Gbps 0.000025ms", ":6: .*expected from, to, rate, delay and error rate"),
     (5, "3 99 2880Gbps 0.1ms 0", ":6: a link from 3 to 99"),
     (5, "3 3 2880Gbps 0.1ms 0", ":6: a link from 3 to 3"), (5, "3 9 fast 0.1ms 0", ":6: rate 'fast'"),
     (5, "3 9 1Gbps near 0", ":6: delay"),
     (5, "3 9 0Gbps 1ms 0", ":6: rate 0Gbps"), (5, "3 9 1Gbps 1ms x", ":6: "),
     (5, "3 9 1Gbps 1ms 7", ":6: .*0 to 1"),
     (5, "-3 9 1Gbps 1ms 0", ":6: '-3'"), (5, "2 9 1Gbps 1ms 0", "GPU 3 has no link to an NVSwitch"),
     (13, "4 12 400Gbps 0.1ms 0", "GPU 3 has no link to a switch")],
)  # fmt: skip
def test_simai_files_that_do_not_fit_name_the_line(
    tmp_path: Path, line: int, text: str, message: str
) -> None:
    lines = list(GOOD)
    lines[line] = text
    with pytest.raises(DecodeError, match=f"topo.*{message}"):
        load_simai(tmp_path, lines)


def test_simai_files_that_a_topology_cannot_hold(tmp_path: Path) -> None:
    for line, text, message in ((5, "3 9 1Gbps 1ms 0.1", "error rate 0.1"), (5, "3 4 1Gbps 1ms 0", "between GPUs 3 and 4"),
                                (-1, "15 17 100Gbps 0.5ms 0", "2 rates"), (-1, "12 13 400Gbps 0.5ms 0", "of one layer")):  # fmt: skip
        lines = list(GOOD)
        lines[line] = text
        with pytest.raises(UnsupportedError, match=f"topo.*{message}"):
            load_simai(tmp_path, lines)


def test_random_damage_is_a_named_error_or_a_topology(tmp_path: Path) -> None:
    data = bytearray("\n".join(GOOD), "utf-8")
    rng = np.random.default_rng(0)
    for _ in range(500):
        damaged = bytearray(data)
        for at in rng.integers(0, len(data), int(rng.integers(1, 4))):
            damaged[at] = int(rng.choice(list(b"0123456789 .\nGbpsmx-")))
        path = tmp_path / "topo"
        path.write_bytes(damaged)
        try:
            assert isinstance(Topology.load(path), Topology)
        except (DecodeError, UnsupportedError) as error:
            assert "topo" in str(error)
