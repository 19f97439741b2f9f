"""discover() on made-up copies of /sys and /proc, and on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ccl_lab.topo import Topology, discover


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """Two sockets of two cores of two threads, two NICs that are up, one that is down, a bridge, RDMA, two GPUs."""
    cpu = {}
    for i in range(8):
        where = f"sys/devices/system/cpu/cpu{i}/topology"
        cpu |= {f"{where}/physical_package_id": str(i // 4), f"{where}/core_id": str(i % 4 // 2)}
    net = "sys/class/net"
    write(tmp_path, cpu | {
        "sys/devices/system/cpu/cpufreq/x": "", "sys/devices/system/node/node0/x": "", "sys/devices/system/node/node1/x": "",
        "proc/sys/kernel/hostname": "server7",
        f"{net}/eth0/operstate": "up", f"{net}/eth0/speed": "200000", f"{net}/eth0/device/numa_node": "0",
        f"{net}/eth1/operstate": "up", f"{net}/eth1/speed": "400000", f"{net}/eth1/device/numa_node": "1",
        f"{net}/eth2/operstate": "down", f"{net}/eth2/speed": "-1", f"{net}/eth2/device/x": "",
        f"{net}/br0/operstate": "up", f"{net}/lo/operstate": "unknown", f"{net}/lo/flags": "0x9",
        f"{net}/bonding_masters": "", f"{net}/tun0/operstate": "unknown", f"{net}/tun0/flags": "rubbish",
        "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE", "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)",
        "sys/class/infiniband/mlx5_0/ports/1/link_layer": "Ethernet", "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0": "eth1",
        "sys/class/infiniband/odd/ports/x/rate": "?",
        "proc/driver/nvidia/gpus/0000:19:00.0/information": "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 5",
        "proc/driver/nvidia/gpus/0000:3b:00.0/information": "",
    })  # fmt: skip
    driver = tmp_path / net / "eth0/device/driver"
    driver.symlink_to("../../../drivers/mlx5_core")
    return tmp_path


def test_what_a_server_has(server: Path) -> None:
    m = discover(server)
    assert (m.host, m.sockets, m.cores, m.cpus, m.numa_nodes) == ("server7", 2, 4, 8, 2)
    nics = {nic.name: nic for nic in m.nics}
    assert set(nics) == {"eth0", "eth1", "eth2", "br0", "lo", "tun0"}
    assert (nics["eth0"].gbits_per_s, nics["eth0"].state, nics["eth0"].driver, nics["eth0"].numa) == (
        200,
        "up",
        "mlx5_core",
        0,
    )
    assert nics["eth2"].gbits_per_s is None and nics["eth2"].state == "down" and not nics["eth2"].virtual
    assert nics["lo"].state == "up" and nics["lo"].virtual and nics["tun0"].state == "unknown"
    assert [nic.name for nic in m.usable_nics()] == ["eth0", "eth1"]
    active, odd = m.rdma
    assert (active.name, active.port, active.state, active.gbits_per_s, active.netdev) == (
        "mlx5_0",
        1,
        "active",
        400,
        "eth1",
    )
    assert odd.gbits_per_s is None and odd.state == "unknown"
    assert [(gpu.index, gpu.name, gpu.bus) for gpu in m.gpus] == [
        (0, "NVIDIA H100 80GB HBM3", "0000:19:00.0"), (1, "GPU", "0000:3b:00.0")]  # fmt: skip
    assert json.loads(json.dumps(m.as_dict()))["nics"][1]["name"] == "eth0"
    assert "eth0" in str(m) and "mlx5_0" in str(m)


def test_a_topology_of_it(server: Path) -> None:
    t = Topology.discover(server)
    assert (t.n_nodes, t.n_ranks, t.nics_per_node, t.device, t.emulated) == (1, 2, 2, "cuda", False)
    assert t.nic_gbits.tolist() == [200, 400] and t.nic_names == ("eth0", "eth1")
    assert Topology.discover(server, ranks=5).n_ranks == 5


def test_nothing_there_is_no_error(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "missing"):
        m = discover(root)
        assert m.nics == () and m.rdma == () and m.gpus == () and m.cores >= 1
        assert m.topology().n_ranks >= 1
    (tmp_path / "sys").write_text("a file where a folder is expected")
    assert discover(tmp_path).nics == ()


def test_this_machine() -> None:
    m = discover()
    assert m.cpus >= 1 and m.topology().n_nodes == 1 and str(m)
