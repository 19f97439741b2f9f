"""RDMA devices, their ports and GIDs, as /sys has them.

Is: readings of /sys/class/infiniband (or of a copy of it, for tests). Is not: verbs; nothing is opened and no library is needed.
Invariant: what cannot be read is empty, -1 or None, and never an error.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import re
from pathlib import Path
from typing import Union

from ..errors import UsageError, suggest
from ..topo.sysfs import link_name, names, number, text

FOLDER = "sys/class/infiniband"
ROCE_V2 = "RoCE v2"
PATH_MTUS = (4096, 2048, 1024, 512, 256)
ROCE_HEADERS_BYTES = 96  # GRH 40, UDP 8, BTH 12, XRC 4, AtomicETH 28, ICRC 4, as Linux's iboe_get_mtu subtracts them
Root = Union[str, os.PathLike[str]]


@dataclasses.dataclass(frozen=True)
class Gid:
    """An entry of a port's GID table. `kind` is "RoCE v2", "IB/RoCE v1" or empty."""

    index: int
    address: str
    kind: str
    netdev: str

    @property
    def ip(self) -> str:
        """The IP address that the GID stands for: IPv4 where it is a mapped one."""
        parsed = ipaddress.IPv6Address(self.address)
        return str(parsed.ipv4_mapped or parsed)


@dataclasses.dataclass(frozen=True)
class Port:
    """A port of an RDMA device. `gids` are the entries that hold an address."""

    device: str
    number: int
    state: str
    physical_state: str
    gbits_per_s: float | None
    link_layer: str
    netdev: str
    netdev_mtu_bytes: int | None
    lid: int  # local identifier; 0 on Ethernet
    gids: tuple[Gid, ...]

    @property
    def active(self) -> bool:
        return self.state == "active"

    @property
    def gid(self) -> Gid | None:
        """The GID that is taken where none is asked for: RoCE v2 before others, then that of an IPv4 address, those of a link last."""
        return min(self.gids, key=_preference, default=None)

    @property
    def path_mtu_bytes(self) -> int | None:
        """The largest path MTU that fits frames of the network interface; None where there is no such interface."""
        if self.netdev_mtu_bytes is None:
            return None
        room = self.netdev_mtu_bytes - ROCE_HEADERS_BYTES
        return next((mtu for mtu in PATH_MTUS if mtu <= room), None)


@dataclasses.dataclass(frozen=True)
class Device:
    """An RDMA device. `pci` is its bus address, empty for a software device; `numa` is -1 where unknown."""

    name: str
    driver: str
    firmware: str
    node_guid: str
    pci: str
    numa: int
    ports: tuple[Port, ...]


def _preference(gid: Gid) -> tuple[bool, bool, bool, int]:
    parsed = ipaddress.IPv6Address(gid.address)
    return gid.kind != ROCE_V2, not parsed.ipv4_mapped, parsed.is_link_local, gid.index


def _gids(port: Path) -> tuple[Gid, ...]:
    found = []
    for name in names(port / "gids"):
        address = text(port / "gids" / name)
        try:
            if not name.isdigit() or int(ipaddress.IPv6Address(address)) == 0:
                continue
        except ValueError:
            continue
        attributes = port / "gid_attrs"
        found.append(Gid(int(name), address, text(attributes / "types" / name), text(attributes / "ndevs" / name)))
    return tuple(sorted(found, key=lambda gid: gid.index))


def _word(path: Path) -> str:
    """ "active" of "4: ACTIVE"."""
    return text(path).split(":")[-1].strip().lower() or "unknown"


def _port(root: Path, device: Path, name: str) -> Port:
    where = device / "ports" / name
    gids = _gids(where)
    netdev = next((gid.netdev for gid in gids if gid.netdev), "") or next(iter(names(device / "device/net")), "")
    mtu = number(root / "sys/class/net" / netdev / "mtu", -1) if netdev else -1
    try:
        gbits = float(text(where / "rate").split(" ")[0])
    except ValueError:
        gbits = None
    layer, lid = text(where / "link_layer") or "unknown", text(where / "lid")
    return Port(
        device.name, int(name), _word(where / "state"), _word(where / "phys_state"), gbits, layer, netdev, mtu if mtu > 0 else None,
        int(lid, 16) if re.fullmatch("0x[0-9a-f]{1,4}", lid) else 0, gids,
    )  # fmt: skip


def _device(root: Path, name: str) -> Device:
    where = root / FOLDER / name
    held = tuple(_port(root, where, port) for port in sorted(filter(str.isdigit, names(where / "ports")), key=int))
    driver = link_name(where / "device/driver") or ("rxe" if text(where / "parent") else "")
    pci, numa = link_name(where / "device"), number(where / "device/numa_node", -1)
    return Device(name, driver, text(where / "fw_ver"), text(where / "node_guid"), pci, numa, held)


def devices(root: Root = "/") -> tuple[Device, ...]:
    """RDMA devices of this machine by name; `root` may be a copy of its /sys. Cost: some file reads per port and entry of a GID table."""
    return tuple(_device(Path(root), name) for name in names(Path(root) / FOLDER))


def ports(root: Root = "/") -> tuple[Port, ...]:
    """Every port of every device, in order."""
    return tuple(port for device in devices(root) for port in device.ports)


def port(name: str, number: int | None = None, root: Root = "/") -> Port:
    """Port `number` of the device `name` (None: its first active one, else its first). Raises UsageError for another name or number."""
    known = names(Path(root) / FOLDER)
    if name not in known:
        raise UsageError(f"RDMA device {name!r} is not there.{suggest(name, known) if known else ' This machine has none.'}")
    held = _device(Path(root), name).ports
    chosen = [one for one in held if one.number == number] if number is not None else sorted(held, key=lambda one: not one.active)
    if not chosen:
        raise UsageError(f"RDMA device {name!r} has no port {number}: it has {', '.join(str(one.number) for one in held) or 'none'}.")
    return chosen[0]
