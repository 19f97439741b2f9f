"""ccl_lab.rdma and what doctor says of RDMA, on made-up copies of /sys; verbs themselves are in tests/rdma."""

from __future__ import annotations

import resource
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from ccl_lab import rdma
from ccl_lab.cli import doctor_rdma
from ccl_lab.errors import UnsupportedError, UsageError
from ccl_lab.rdma import counters, verbs
from ccl_lab.rdma.devices import _preference
from ccl_lab.topo import Topology
from ccl_lab.trace.columns import Track

IB = "sys/class/infiniband"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def gids(port: str, *rows: tuple[str, str, str]) -> dict[str, str]:
    """Entries of a GID table: (address, type, netdev)."""
    found = {}
    for index, (address, kind, netdev) in enumerate(rows):
        found |= {f"{port}/gids/{index}": address, f"{port}/gid_attrs/types/{index}": kind, f"{port}/gid_attrs/ndevs/{index}": netdev}
    return found


LINK, MAPPED, GLOBAL = "fe80::b859:9fff:fe01:0203", "::ffff:10.1.2.3", "2001:db8::7"
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """A ConnectX with a RoCE port, one with an InfiniBand port, a soft RoCE device, and one that is down."""
    roce, fabric, soft, down = (f"{IB}/{name}/ports/1" for name in ("mlx5_0", "mlx5_1", "rxe0", "mlx5_2"))
    write(tmp_path, {
        f"{roce}/state": "4: ACTIVE", f"{roce}/phys_state": "5: LinkUp", f"{roce}/rate": "400 Gb/sec (4X NDR)",
        f"{roce}/link_layer": "Ethernet", f"{roce}/lid": "0x0", f"{IB}/mlx5_0/fw_ver": "28.39.1002",
        f"{IB}/mlx5_0/node_guid": "b859:9f03:0001:0203",
        **gids(roce, (LINK, "IB/RoCE v1", "eth0"), (LINK, "RoCE v2", "eth0"), (MAPPED, "IB/RoCE v1", "eth0"), (GLOBAL, "RoCE v2", "eth0"),
               (MAPPED, "RoCE v2", "eth0"), (EMPTY, "", "")),
        f"{roce}/counters/port_xmit_data": "1000", f"{roce}/counters/port_rcv_data": "50", f"{roce}/counters/port_xmit_packets": "9",
        f"{roce}/counters/port_rcv_packets": "8", f"{roce}/hw_counters/out_of_sequence": "3",
        "sys/class/net/eth0/mtu": "4200", "sys/class/net/eth0/statistics/tx_bytes": "77", "sys/class/net/eth0/statistics/rx_bytes": "77",
        f"{fabric}/state": "2: INIT", f"{fabric}/phys_state": "5: LinkUp", f"{fabric}/rate": "200 Gb/sec (4X HDR)", f"{fabric}/lid": "0x2a",
        f"{fabric}/link_layer": "InfiniBand", **gids(fabric, ("fe80::1", "IB/RoCE v1", "")),
        f"{soft}/state": "4: ACTIVE", f"{soft}/phys_state": "5: LinkUp", f"{soft}/rate": "2.5 Gb/sec (1X SDR)",
        f"{soft}/link_layer": "Ethernet", f"{IB}/rxe0/parent": "eth9", **gids(soft, (LINK, "RoCE v2", "eth9")),
        "sys/class/net/eth9/mtu": "1500",
        f"{soft}/hw_counters/sent_pkts": "5", f"{soft}/hw_counters/rcvd_pkts": "6", "sys/class/net/eth9/statistics/tx_bytes": "10000",
        "sys/class/net/eth9/statistics/rx_bytes": "20000",
        f"{down}/state": "1: DOWN", f"{down}/phys_state": "3: Disabled", f"{down}/link_layer": "Ethernet", f"{down}/rate": "rubbish",
        f"{IB}/mlx5_2/device/net/eth7/mtu": "1500", f"{IB}/mlx5_2/ports/odd/state": "4: ACTIVE",
        "dev/infiniband/uverbs0": "",
    })  # fmt: skip
    place = tmp_path / "sys/devices/pci0000:16/0000:17:00.0"
    write(place, {"numa_node": "1"})
    (tmp_path / IB / "mlx5_0/device").symlink_to(place)
    (place / "driver").symlink_to("../../bus/pci/drivers/mlx5_core")
    return tmp_path


def test_devices_ports_and_gids(server: Path) -> None:
    found = {device.name: device for device in rdma.devices(server)}
    assert list(found) == ["mlx5_0", "mlx5_1", "mlx5_2", "rxe0"]
    real = found["mlx5_0"]
    assert (real.driver, real.firmware, real.pci, real.numa) == ("mlx5_core", "28.39.1002", "0000:17:00.0", 1)
    (port,) = real.ports
    assert (port.state, port.physical_state, port.gbits_per_s) == ("active", "linkup", 400)
    assert (port.link_layer, port.netdev) == ("Ethernet", "eth0")
    assert port.active and (port.netdev_mtu_bytes, port.path_mtu_bytes, port.lid) == (4200, 4096, 0)
    assert [gid.index for gid in port.gids] == [0, 1, 2, 3, 4], "empty entries are left out"
    assert (found["rxe0"].driver, found["rxe0"].pci, found["rxe0"].numa) == ("rxe", "", -1)
    assert found["rxe0"].ports[0].path_mtu_bytes == 1024
    assert found["mlx5_1"].ports[0].lid == 42 and found["mlx5_1"].ports[0].path_mtu_bytes is None
    (down,) = found["mlx5_2"].ports
    assert not down.active and (down.gid, down.gbits_per_s, down.netdev, down.gids) == (None, None, "eth7", ())
    assert rdma.devices(server / "nothing") == ()


def test_the_gid_taken_is_of_roce_v2_and_ipv4_before_others(server: Path) -> None:
    port = rdma.port("mlx5_0", root=server)
    assert port.gid and (port.gid.index, port.gid.kind, port.gid.ip) == (4, "RoCE v2", "10.1.2.3")
    order = []
    left = list(port.gids)
    while left:
        chosen = min(left, key=_preference)
        order.append(chosen.index)
        left.remove(chosen)
    assert order == [4, 3, 1, 2, 0]


def test_a_port_that_is_not_there_is_named(server: Path) -> None:
    with pytest.raises(UsageError, match="'mlx5_9' is not there. Did you mean 'mlx5_"):
        rdma.port("mlx5_9", root=server)
    with pytest.raises(UsageError, match="'mlx5_0' has no port 2: it has 1"):
        rdma.port("mlx5_0", 2, server)
    with pytest.raises(UsageError, match="This machine has none"):
        rdma.port("mlx5_0", root=server / "nothing")
    port = rdma.port("mlx5_0", root=server)
    with pytest.raises(UsageError, match="has no GID 9: expected an index of"):
        verbs._chosen_gid(port, 9)
    with pytest.raises(UsageError, match="has no GID at all"):
        verbs._chosen_gid(rdma.port("mlx5_2", root=server), None)


def test_counters_say_what_they_count(server: Path) -> None:
    found = {one.device: one for one in rdma.read(server)}
    real, soft, none = found["mlx5_0"], found["rxe0"], found["mlx5_1"]
    assert (real.tx_bytes, real.rx_bytes, real.tx_packets, real.rx_packets) == (4000, 200, 9, 8), "words of four bytes"
    assert (real.bytes_of, real.packets_of, real.others["out_of_sequence"]) == ("port", "port", 3)
    assert (soft.tx_bytes, soft.rx_bytes, soft.tx_packets, soft.rx_packets) == (10_000, 20_000, 5, 6)
    assert (soft.bytes_of, soft.packets_of) == ("netdev", "hw")
    assert counters.counted(soft, rdma.port("rxe0", root=server)) == "all bytes of eth9, RDMA and other; RDMA packets of the device"
    assert (none.tx_bytes, none.tx_packets, none.bytes_of) == (-1, -1, "")


def sleeping(monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], None]) -> None:
    """`sleep` instead of the recorder's own, and of nobody else's: other threads sleep too."""
    monkeypatch.setattr(counters, "time", types.SimpleNamespace(sleep=sleep, monotonic=time.monotonic, monotonic_ns=time.monotonic_ns))


@pytest.fixture
def traffic(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the recorder sleeps, `server` carries 1000 more words and 10 more packets on mlx5_0, and 3000 bytes on eth9; once."""
    port = f"{IB}/mlx5_0/ports/1/counters"

    def carry(seconds: float) -> None:
        write(server, {f"{port}/port_xmit_data": "2000", f"{port}/port_xmit_packets": "19",
                       "sys/class/net/eth9/statistics/rx_bytes": "23000"})  # fmt: skip
        time.sleep(seconds)

    sleeping(monkeypatch, carry)


@pytest.mark.usefixtures("traffic")
def test_rates_per_port_whoever_sends(server: Path) -> None:
    found = {rate.device: rate for rate in rdma.rates(0.1, server)}
    real, soft = found["mlx5_0"], found["rxe0"]
    assert real.tx_gbits_per_s == pytest.approx(4000 * 8e-9 / real.seconds) and real.rx_gbits_per_s == 0
    assert real.tx_packets_per_s == pytest.approx(10 / real.seconds)
    assert soft.rx_gbits_per_s == pytest.approx(3000 * 8e-9 / soft.seconds) and "eth9" in soft.counted
    assert found["mlx5_1"].tx_gbits_per_s is None and found["mlx5_1"].counted == "no bytes; no packets"
    with pytest.raises(UsageError, match="interval_s=0"):
        rdma.rates(0, server)


def test_a_counter_that_was_reset_counts_what_came_since() -> None:
    assert counters._per_s(1000, 30, 2.0) == 15 and counters._per_s(-1, 30, 2.0) is None and counters._per_s(10, 30, 2.0) == 10


@pytest.mark.usefixtures("traffic")
def test_what_ports_carried_is_a_trace_that_the_heatmap_draws(server: Path) -> None:
    trace = rdma.record(0.2, 0.05, server)
    assert set(trace["index"].tolist()) == {0, 1} and set(trace["track"].tolist()) == {Track.nic_tx, Track.nic_rx}
    sent, received = trace.where(track=Track.nic_tx), trace.where(track=Track.nic_rx)
    assert sent.where(index=0)["nbytes"].sum() == 4000 and received.where(index=1)["nbytes"].sum() == 3000
    assert trace["nbytes"].sum() == 7000 and trace["begin_ns"].min() == 0
    assert list(trace.meta["counted"]) == ["mlx5_0 port 1", "rxe0 port 1"]
    topology = Topology.from_dict(trace.meta["topology"])
    assert topology.nic_names == ("mlx5_0:1", "rxe0:1") and topology.nic_gbits.tolist() == [400, 2.5]
    one = sent.where(index=0)
    assert len(one) >= 2 and (one["begin_ns"][1:] == one["end_ns"][:-1]).all(), "what is counted has no gaps"
    assert trace.heatmap() is not None
    with pytest.raises(UsageError, match="no RDMA port here counts bytes"):
        rdma.record(0.1, root=server / "nothing")


def test_a_counter_that_cannot_be_read_for_a_while_is_not_another_one(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of the interface are no continuation of the port's: nothing is drawn until the port's are back, and nothing is lost."""
    words = f"{IB}/mlx5_0/ports/1/counters/port_xmit_data"
    readings = iter(["1500", "", "1800", "2000"])

    def carry(seconds: float) -> None:
        write(server, {words: next(readings, "2000")})
        time.sleep(seconds)

    sleeping(monkeypatch, carry)
    sent = rdma.record(0.4, 0.05, server).where(track=Track.nic_tx, index=0)
    assert sent["nbytes"].tolist()[:3] == [2000, 1200, 800] and sent["nbytes"].sum() == 4000
    assert (sent["begin_ns"][1:] == sent["end_ns"][:-1]).all()
    write(server, {words: "1000"})
    readings = iter([""])
    real = {rate.device: rate for rate in rdma.rates(0.05, server)}["mlx5_0"]
    assert real.tx_gbits_per_s is None and real.rx_gbits_per_s is None and real.tx_packets_per_s == 0


def test_pyverbs_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "pyverbs"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not (Path(path) / "pyverbs").is_dir()])
    monkeypatch.setattr(verbs, "DEBIAN_FOLDER", tmp_path)
    with pytest.raises(UnsupportedError, match="python3-pyverbs on Debian, or conda install -c conda-forge rdma-core"):
        rdma.pyverbs()
    (tmp_path / "pyverbs").mkdir()
    with pytest.raises(UnsupportedError, match="for another version of Python"):
        rdma.attributes("mlx5_0")
    found = doctor_rdma.check_pyverbs()
    assert not found.ok and "apt-get install python3-pyverbs" in found.get


def test_doctor_says_which_gid_is_taken_and_what_to_do(server: Path) -> None:
    finding = doctor_rdma.check_rdma(server)
    assert finding.ok
    assert "mlx5_0 port 1 active: 400 Gb/s, GID 4 RoCE v2 10.1.2.3, path MTU 4096, on eth0, NUMA node 1" in finding.found
    for what in ("mlx5_1 port 1 is init (linkup): plug the cable in, and see that a subnet manager runs",
                 "mlx5_2 port 1 is down (disabled): ip link set eth7 up",
                 "rxe0 port 1 has path MTU 1024: ip link set eth9 mtu 9000"):  # fmt: skip
        assert what in finding.get and what in finding.found
    assert "mlx5_0" not in finding.get
    assert "mlx5_2 port 1 down: no GID, on eth7" in finding.found


def test_doctor_says_why_no_port_can_be_used(server: Path, tmp_path: Path) -> None:
    for name in ("mlx5_0", "rxe0"):
        (server / IB / name / "ports/1/state").write_text("1: DOWN\n")
    finding = doctor_rdma.check_rdma(server)
    assert not finding.ok and "mlx5_0 port 1 is down" in finding.get and "rxe0 port 1 is down" in finding.get
    (server / IB / "mlx5_0/ports/1/state").write_text("4: ACTIVE\n")
    (server / "dev/infiniband/uverbs0").unlink()
    finding = doctor_rdma.check_rdma(server)
    assert not finding.ok and finding.get.startswith("/dev/infiniband/uverbs* is not there: modprobe ib_uverbs")
    for index in range(5):
        (server / IB / f"mlx5_0/ports/1/gids/{index}").write_text(EMPTY + "\n")
    assert "mlx5_0 port 1 has no GID: give its interface an address" in doctor_rdma.check_rdma(server).get
    write(server, gids(f"{IB}/mlx5_0/ports/1", (LINK, "IB/RoCE v1", "eth0")))
    assert "no GID of RoCE v2" in doctor_rdma.check_rdma(server).get
    empty = doctor_rdma.check_rdma(tmp_path / "nothing")
    assert (empty.ok, empty.found) == (False, "no device") and "rdma link add" in empty.get


@pytest.mark.parametrize("limit, capabilities, ok", [(8 << 20, "0", False), (8 << 20, "4000", True), (2 << 30, "0", True), (-1, "0", True)])
def test_doctor_judges_locked_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: int, capabilities: str, ok: bool
) -> None:
    (tmp_path / "status").write_text(f"Name:\tx\nCapEff:\t{capabilities}\n")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    finding = doctor_rdma.check_memlock(tmp_path / "status")
    assert finding.ok == ok and (ok or ("8 MiB" in finding.found and "ulimit -l unlimited" in finding.get))


def test_doctor_says_how_to_get_libibverbs(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(doctor_rdma.ctypes, "CDLL", missing)
    finding = doctor_rdma.check_libibverbs()
    assert not finding.ok and "libibverbs1" in finding.get
