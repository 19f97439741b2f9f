"""What this machine has: sockets, cores, NICs with speed and state, RDMA devices, GPUs.

Is: readings of /sys and /proc (or of a copy of them, for tests). Is not: a measurement, and never an error: what cannot be
read is None or absent. Invariant: nothing is opened for writing and nothing is changed.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from ..arguments import file_path, whole
from ..units import format_rate
from .rates import MOST_RANKS
from .sysfs import link_name, names, number, text

if TYPE_CHECKING:
    from .model import Topology


@dataclasses.dataclass(frozen=True)
class Nic:
    """A network interface. `gbits_per_s` is None where the driver does not say; `numa` is -1 where unknown."""

    name: str
    state: str
    gbits_per_s: float | None
    virtual: bool
    numa: int
    driver: str


@dataclasses.dataclass(frozen=True)
class RdmaDevice:
    """One port of an RDMA device."""

    name: str
    port: int
    state: str
    gbits_per_s: float | None
    link_layer: str
    netdev: str


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU, by index; `bus` is its PCI address."""

    index: int
    name: str
    bus: str


@dataclasses.dataclass(frozen=True)
class Machine:
    """This machine. `as_dict()` for JSON, `topology()` for one node with its real NICs."""

    host: str
    sockets: int
    cores: int
    cpus: int
    numa_nodes: int
    nics: tuple[Nic, ...]
    rdma: tuple[RdmaDevice, ...]
    gpus: tuple[Gpu, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)

    def usable_nics(self) -> tuple[Nic, ...]:
        """NICs that are up and not loopback; real ones only, where there are any."""
        up = tuple(nic for nic in self.nics if nic.state == "up" and nic.name != "lo")
        real = tuple(nic for nic in up if not nic.virtual)
        return real or up

    def topology(self, ranks: int | None = None) -> Topology:
        """One node: `ranks` ranks (default: one per GPU, else one per core) and the usable NICs."""
        from .model import Topology

        nics = self.usable_nics()
        unsaid = sum(nic.gbits_per_s is None for nic in nics)
        return Topology(
            name=self.host or "this machine",
            node_of=[0] * (len(self.gpus) or max(self.cores, 1) if ranks is None else whole(ranks, "ranks", 1, MOST_RANKS)),  # type: ignore[arg-type]
            nics_per_node=len(nics),
            nic_bytes_per_s=[round((nic.gbits_per_s or 1.0) * 1.25e8) for nic in nics],  # type: ignore[arg-type]
            nic_latency_ps=50_000_000,  # type: ignore[arg-type]
            fabric_bytes_per_s=8_000_000_000,  # type: ignore[arg-type]
            fabric_latency_ps=2_000_000,  # type: ignore[arg-type]
            local_bytes_per_s=8_000_000_000,  # type: ignore[arg-type]
            device="cuda" if self.gpus else "cpu",
            emulated=False,
            nic_names=tuple(nic.name for nic in nics),
            sources={
                "nic_gbits_per_s": "speed in /sys/class/net" + (f"; assumption: 1 Gb/s for {unsaid} that do not say" * bool(unsaid)),
                "nic_latency": "assumption: 50 us", "fabric_gbytes_per_s": "assumption: 8 GB/s",
                "fabric_latency": "assumption: 2 us", "local_gbytes_per_s": "assumption: 8 GB/s"},
        )

    def __str__(self) -> str:
        lines = [f"{self.host}: {self.sockets} socket(s), {self.cores} cores, {self.cpus} CPUs, {self.numa_nodes} NUMA node(s)"]
        for nic in self.nics:
            rate = "speed unknown" if nic.gbits_per_s is None else format_rate(nic.gbits_per_s * 1.25e8)
            lines.append(f"  nic {nic.name:<10} {nic.state:<8} {rate}{' (virtual)' if nic.virtual else ''}")
        lines += [f"  rdma {dev.name} port {dev.port}: {dev.state}, {dev.link_layer}" for dev in self.rdma]
        lines += [f"  gpu {gpu.index}: {gpu.name} {gpu.bus}" for gpu in self.gpus]
        return "\n".join(lines)


def _cpus(root: Path) -> tuple[int, int, int]:
    """(sockets, cores, CPUs), from the topology of each CPU."""
    base = root / "sys/devices/system/cpu"
    cpus = [name for name in names(base) if name.startswith("cpu") and name[3:].isdigit()]
    packages, cores = set(), set()
    for name in cpus:
        package = text(base / name / "topology/physical_package_id") or "0"
        packages.add(package)
        cores.add((package, text(base / name / "topology/core_id") or name))
    return max(len(packages), 1), max(len(cores), 1), max(len(cpus), 1)


def _nic(base: Path) -> Nic:
    speed = number(base / "speed", -1)
    state = text(base / "operstate") or "unknown"
    # A loopback and some tunnels report "unknown" though they carry traffic; the flag IFF_UP settles it.
    try:
        flags = int(text(base / "flags") or "0", 16)
    except ValueError:
        flags = 0
    if state == "unknown" and flags & 1:
        state = "up"
    return Nic(base.name, state, speed / 1000 if speed > 0 else None, not (base / "device").exists(),
               number(base / "device/numa_node", -1), link_name(base / "device/driver"))


def _rdma(root: Path) -> list[RdmaDevice]:
    found = []
    base = root / "sys/class/infiniband"
    for name in names(base):
        for port in names(base / name / "ports"):
            where = base / name / "ports" / port
            rate = text(where / "rate").split(" ")[0]
            state = text(where / "state").split(":")[-1].strip().lower() or "unknown"
            try:
                gbits = float(rate)
            except ValueError:
                gbits = None
            netdev = text(where / "gid_attrs/ndevs/0") or next(iter(names(base / name / "device/net")), "")
            found.append(RdmaDevice(name, int(port) if port.isdigit() else 0, state, gbits,
                                    text(where / "link_layer") or "unknown", netdev))
    return found


def _gpus(root: Path) -> list[Gpu]:
    """From the driver's files; from nvidia-smi where only that is there and `root` is this machine."""
    base = root / "proc/driver/nvidia/gpus"
    found = []
    for index, bus in enumerate(names(base)):
        lines = dict(line.split(":", 1) for line in text(base / bus / "information").splitlines() if ":" in line)
        found.append(Gpu(index, lines.get("Model", "GPU").strip(), bus))
    tool = shutil.which("nvidia-smi") if not found and root == Path("/") else None
    if tool:
        try:
            listed = subprocess.run([tool, "--query-gpu=index,name,pci.bus_id", "--format=csv,noheader"],
                                    capture_output=True, text=True, timeout=10, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            return found
        for line in listed.splitlines():
            fields = [field.strip() for field in line.split(",")]
            if len(fields) == 3 and fields[0].isdigit():
                found.append(Gpu(int(fields[0]), fields[1], fields[2]))
    return found


def discover(root: Union[str, os.PathLike[str]] = "/") -> Machine:
    """What this machine has; `root` may be a copy of its /sys and /proc. Never raises for what is missing."""
    root = file_path(root, "root")
    sockets, cores, cpus = _cpus(root)
    net = root / "sys/class/net"
    numa = [name for name in names(root / "sys/devices/system/node") if name.startswith("node") and name[4:].isdigit()]
    nics = tuple(_nic(net / name) for name in names(net) if (net / name).is_dir())
    host = text(root / "proc/sys/kernel/hostname") or platform.node()
    return Machine(host, sockets, cores, cpus, max(len(numa), 1), nics, tuple(_rdma(root)), tuple(_gpus(root)))
